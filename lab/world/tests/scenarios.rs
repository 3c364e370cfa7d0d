//! Scenario scripts and their expected output.
//!
//! Each `scenarios/NAME.txt` is a test of that name, which compares the script's output with
//! `scenarios/NAME.out`. `UPDATE_GOLDENS=1 cargo test -p lab-world --test scenarios` writes these
//! files again; review the difference before you keep it.

#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use lab_world::script::{self, ScriptOutcome};
use libtest_mimic::{Arguments, Failed, Trial};
use refit_openshift::{
    config::Platform,
    decide::VALID,
    steps::{self, FAILED},
};

/// Simulated clusters allocate all the time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios")
}

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let mut trials: Vec<Trial> = scripts()
        .into_iter()
        .map(|file| {
            let name = file.file_stem().unwrap().to_string_lossy().into_owned();
            Trial::test(name, move || compare(&file))
        })
        .collect();
    trials.push(Trial::test("the_same_script_prints_the_same", same_twice));
    trials.push(Trial::test("the_documentation_has_the_language", documented));
    trials.push(Trial::test("every_output_has_its_script", no_orphans));
    trials.push(Trial::test("every_gate_of_an_openshift_upgrade_fails_in_a_script", gates));
    trials.push(Trial::test("all_errors_of_a_script_are_reported", wrong));
    trials.push(Trial::test("all_errors_of_a_script_for_openshift_are_reported", wrong_openshift));
    trials.push(Trial::test("an_unknown_name_of_openshift_is_reported", missing_openshift));
    trials.push(Trial::test("an_unknown_name_is_reported_with_the_known_ones", missing));
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// All scripts, by name.
fn scripts() -> Vec<PathBuf> {
    let files = fs::read_dir(directory()).unwrap().map(|entry| entry.unwrap().path());
    let mut scripts: Vec<PathBuf> =
        files.filter(|path| path.extension().is_some_and(|e| e == "txt")).collect();
    scripts.sort();
    scripts
}

/// The output of a script, with its result in the last line.
fn printed(file: &Path) -> String {
    let text = fs::read_to_string(file).unwrap();
    let mut out = Vec::new();
    let outcome = script::run(&text, file, &mut out);
    let mut out = String::from_utf8(out).unwrap();
    match outcome {
        Ok(ScriptOutcome::Passed) => out.push_str("passed\n"),
        Ok(ScriptOutcome::WaitRanOut { line, what }) => {
            writeln!(out, "line {line}: the wait timed out: {what}").unwrap();
        }
        Err(error) => writeln!(out, "failed: {error}").unwrap(),
    }
    out
}

fn compare(file: &Path) -> Result<(), Failed> {
    let golden = file.with_extension("out");
    let found = printed(file);
    // Such an output would be compared with itself for ever.
    if let Some(why) = found.lines().last().filter(|line| line.starts_with("failed: ")) {
        return Err(why.into());
    }
    if std::env::var_os("UPDATE_GOLDENS").is_some() {
        fs::write(&golden, &found).unwrap();
        return Ok(());
    }
    let wanted = fs::read_to_string(&golden).unwrap_or_default();
    if wanted == found {
        return Ok(());
    }
    let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join(golden.file_name().unwrap());
    fs::write(&kept, &found).unwrap();
    let same = wanted.lines().zip(found.lines()).take_while(|(a, b)| a == b).count();
    let line = |text: &str| text.lines().nth(same).unwrap_or("(the end)").to_owned();
    Err(format!(
        "{}:{}:\n  wanted {}\n  got    {}\nall of it: diff {} {}\nUPDATE_GOLDENS=1 keeps it",
        golden.file_name().unwrap().to_string_lossy(),
        same + 1,
        line(&wanted),
        line(&found),
        golden.display(),
        kept.display(),
    )
    .into())
}

fn same_twice() -> Result<(), Failed> {
    let file = directory().join("controller-restarts.txt");
    if printed(&file) == printed(&file) {
        Ok(())
    } else {
        Err("two runs of controller-restarts.txt differ".into())
    }
}

fn documented() -> Result<(), Failed> {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/scenarios.md");
    let docs = fs::read_to_string(docs).unwrap();
    if docs.contains(&format!("```text\n{}```", script::HELP)) {
        Ok(())
    } else {
        Err("docs/scenarios.md does not have the text of lab/world/src/script/help.txt".into())
    }
}

fn no_orphans() -> Result<(), Failed> {
    for entry in fs::read_dir(directory()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "out") && !path.with_extension("txt").exists() {
            return Err(format!("{} has no script", path.display()).into());
        }
    }
    Ok(())
}

/// The metric of a condition whose failure has no message: its step takes too long, and the upgrade goes on or waits.
const ONLY_METRICS: [(&str, &str); 2] = [
    ("ComputeCapacityReserved", "upgradeoperator_scaling_failed"),
    ("WorkerNodesUpgraded", "upgradeoperator_worker_timeout"),
];

/// Each condition of an upgrade is waited for in the script of a gate, until it is False, and a golden shows why it is: some are False
/// for some time in every upgrade.
fn gates() -> Result<(), Failed> {
    let mut lacking = Vec::new();
    for (platform, prefix) in [(Platform::Osd, "osd-gate-"), (Platform::Aro, "aro-gate-")] {
        let of_gates = |file: &&PathBuf| {
            file.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix))
        };
        let goldens: Vec<String> = scripts()
            .iter()
            .filter(of_gates)
            .map(|file| fs::read_to_string(file.with_extension("out")).unwrap_or_default())
            .collect();
        let failed = (platform == Platform::Osd).then_some(FAILED);
        let steps = steps::of(platform);
        let conditions: BTreeSet<&str> =
            steps.iter().map(|step| step.name).chain(failed).chain([VALID]).collect();
        let fails = |condition: &str| {
            let line = format!("upgrade/managed-upgrade-config has condition {condition}=False,");
            goldens.iter().any(|golden| golden.contains(&line) && shows_why(golden, condition))
        };
        let missing = conditions.into_iter().filter(|condition| !fails(condition));
        lacking.extend(missing.map(|condition| format!("{prefix}*.txt: {condition}")));
    }
    if lacking.is_empty() {
        return Ok(());
    }
    let lacking = lacking.join(", ");
    Err(format!("no script waits until these are False, and shows why: {lacking}").into())
}

/// Whether a golden shows the failure of a condition: in the history, in the UpgradeConfig, or as a metric.
fn shows_why(golden: &str, condition: &str) -> bool {
    if let Some((_, metric)) = ONLY_METRICS.iter().find(|(of, _)| *of == condition) {
        let is_raised =
            |line: &str| line.starts_with(&format!("{metric}{{")) && line.ends_with(" 1");
        return golden.lines().any(is_raised);
    }
    let is_failure = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let message = match words[..] {
            [_, "condition", shown, ref message @ ..] if shown == format!("{condition}=False") => {
                message
            }
            [shown, "False", _, _, ref message @ ..] if shown == condition => message,
            _ => return false,
        };
        message != ["-"] && !message.ends_with(&["still", "in", "progress"])
    };
    golden.lines().any(is_failure)
}

fn error_of(text: &str) -> String {
    let error = script::run(text, &directory().join("x.txt"), &mut std::io::sink()).unwrap_err();
    error.to_string()
}

fn wrong() -> Result<(), Failed> {
    let error = error_of(
        "show machines\nload a.yaml b.yaml\nload c.yaml\nwait 5\nfly away\nbreak host n step x\n\
         wait md/a sleeping 5m\nchange md/a spec..x 1\nat 5m wait 1m\napply <<END\nkind: X\n",
    );
    let wanted = [
        "x.txt:1: script: got a command before any load, want load FILE... first",
        "x.txt:3: load: got a second load",
        "x.txt:4: time: got 5, want a duration such as 30s, 10m or 1h30m",
        "x.txt:5: command: got fly, want load, apply",
        "x.txt:6: step: got x, want preflight",
        "x.txt:7: condition: got sleeping, want ready",
        "x.txt:8: field: got spec..x, want names with dots",
        "x.txt:9: at: got wait 1m, want a command that does not wait",
        "x.txt:10: here-document: got the end of the script, want a line END",
    ];
    begin_with(&error, &wanted)
}

fn begin_with(error: &str, wanted: &[&str]) -> Result<(), Failed> {
    let lines: Vec<&str> = error.lines().collect();
    if lines.len() == wanted.len() && lines.iter().zip(wanted).all(|(a, b)| a.starts_with(b)) {
        Ok(())
    } else {
        Err(error.into())
    }
}

fn wrong_openshift() -> Result<(), Failed> {
    let error = error_of(
        "cancel\nload openshift\nload openshift\nload openshift with hosts\nschedule 4.16.4\nbreak host n\n\
         wait upgrade ready 5m\nkill controller\nrepeat m\nat 5m wait 1m\nshow east:node/a\nbreak ocm 5\n",
    );
    let wanted = [
        "x.txt:1: script: got a command before any load, want load openshift first",
        "x.txt:3: load: got a second load, want one load",
        "x.txt:4: load: got hosts, want aro or strict after with",
        "x.txt:5: schedule: got the end of the line, want in TIME after the version",
        "x.txt:6: trouble: got host, want alert, operator",
        "x.txt:7: condition: got ready, want gone, phase=PHASE, FIELD=VALUE",
        "x.txt:8: process: got controller, want refit-managed",
        "x.txt:9: command: got repeat, want load, apply",
        "x.txt:10: at: got wait 1m, want a command that does not wait",
        "x.txt:11: object: got east:node/a, want KIND/NAME",
        "x.txt:12: break: got 5, want the end of the line",
    ];
    begin_with(&error, &wanted)
}

fn missing_openshift() -> Result<(), Failed> {
    for (command, wanted) in [
        ("break operator nope", "x.txt:2: object: got clusteroperator/nope, want one of "),
        ("break node nope", "want one of lab-master-0, "),
        ("break version 4.16.9", "x.txt:2: version: got 4.16.9, want one of 4.16.4, "),
        ("cancel", "x.txt:2: cancel: got a policy that does not exist, want an upgrade that is"),
        ("change upgrade spec.type ARO", "want an existing UpgradeConfig; no UpgradeConfig exists"),
        ("show nothing/x", "x.txt:2: kind: got nothing, want a kind that the API server serves"),
        ("at 5m break ocm", "x.txt:2: at: got a command for +5m00s in a script that ends at +0s"),
    ] {
        let error = error_of(&format!("load openshift\n{command}\n"));
        if !error.contains(wanted) {
            return Err(format!("{command}: {error}").into());
        }
    }
    Ok(())
}

fn missing() -> Result<(), Failed> {
    let load = "load manifests/edge-box.yaml\nwait cluster/edge-1 ready 10m\n";
    for (command, wanted) in [
        (
            "change md/nope spec.replicas 1",
            "x.txt:3: object: got md/nope, want an existing MachineDeployment",
        ),
        ("change kcp/nope spec.replicas 1", "want one of edge-1"),
        ("change kcp/edge-1 spec.replicas many", "a request that the API server accepts"),
        ("kill agent nope", "x.txt:3: host: got nope, want one that has booted: edge-1-1"),
        ("show nothing/x", "x.txt:3: kind: got nothing, want a kind that the API server serves"),
        ("break api nope", "x.txt:3: cluster: got nope, want one of the workload clusters: edge-1"),
        (
            "apply nope.yaml",
            "x.txt:3: file: got nope.yaml, want a file in the directory of the script",
        ),
        ("at 5m kill capi", "x.txt:3: at: got a command for"),
    ] {
        let error = error_of(&format!("{load}{command}\n"));
        if !error.contains(wanted) {
            return Err(format!("{command}: {error}").into());
        }
    }
    Ok(())
}
