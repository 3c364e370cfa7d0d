//! Whether a kubelet would start with the flags and the configuration of this host.
//!
//! A flag, a feature gate or a value that a version does not support keeps its kubelet from starting. The
//! kubelet itself has to check them, because its `--help` lists neither all gates nor what it accepts
//! (`docs/facts/kubeadm.md#how-a-kubelet-starts`): it is started as on this host, and with ports that do
//! not exist. It reads flags, configuration and gates, validates all of them, and ends with a complaint
//! about the ports before it has done anything else. Any other complaint is the host's own.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::LazyLock,
    time::Duration,
};

use regex::Regex;

use super::{
    Invocation, Program, Site,
    kubeadm::KUBELET_CONFIG,
    kubelet,
    program::{read_from, tail},
    work::WorkError,
};

/// Flags that no kubelet accepts: it cannot go beyond its validation. They come last, so that they count.
const REFUSED: [&str; 2] = ["--port=65536", "--healthz-port=65536"];
/// A kubelet needs less than a second for it.
const DEADLINE: Duration = Duration::from_secs(30);
/// How much of a complaint is shown, in characters.
const SHOWN: usize = 600;

/// What the output of a kubelet shows about flags and configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Verdict {
    /// It would start.
    Accepts,
    /// It does not know a flag.
    NoFlag(String),
    /// It does not know a feature gate, or does not let it be changed.
    NoGate(String),
    /// It would not start for another reason.
    Refuses(String),
    /// Its output does not show it.
    Unclear,
}

/// Checks that the installed kubelet would start. The old one still runs.
pub(super) async fn check(site: &Site) -> Result<(), WorkError> {
    if !site.has(Program::Kubelet) {
        return Ok(());
    }
    let start = Start::of(site).await;
    let call = site.call(Program::Kubelet, start.words.clone());
    refuse("installed", complaint(site, &start, call).await)
}

/// Checks that a kubelet that is not installed yet would start with the configuration of this host. Flags
/// are left out: the step that installs it may change them.
pub(super) async fn check_fetched(site: &Site, program: &Path) -> Result<(), WorkError> {
    let start = Start::of(site).await.without_flags();
    let call = Invocation::at(program.display().to_string(), start.words.clone());
    refuse("fetched", complaint(site, &start, call).await)
}

fn refuse(which: &str, complaint: Option<String>) -> Result<(), WorkError> {
    complaint.map_or(Ok(()), |what| {
        let message = format!("the {which} kubelet does not {what} (the old kubelet still runs)");
        Err(WorkError::needs_person(message))
    })
}

/// What a kubelet does not accept, and the remedy.
async fn complaint(site: &Site, start: &Start, call: Invocation) -> Option<String> {
    let output = ask(site, call).await;
    let (what, remedy) = match judge(&output) {
        Verdict::Accepts => return None,
        Verdict::Unclear => {
            let end = tail(&output);
            site.log_and_go_on(&format!("the kubelet could not check its configuration: {end}"));
            return None;
        }
        Verdict::NoFlag(name) => {
            let file = start.file_with(site, &format!("--{name}"));
            let remedy =
                "list the flag in kubelet.removeArgs of the plan, or remove it from the file";
            (format!("support the flag --{name} in {file}"), remedy.to_owned())
        }
        Verdict::NoGate(why) => {
            let name = why.split(' ').next_back().unwrap_or_default();
            let file = start.file_with(site, name);
            let remedy = "remove the gate there, and for all nodes from the ConfigMap kubelet-config in \
                          kube-system";
            (format!("accept a feature gate in {file} ({why})"), remedy.to_owned())
        }
        Verdict::Refuses(why) => (
            format!("accept the configuration of this host ({})", tail(&why)),
            format!("correct the kubelet's flags or {KUBELET_CONFIG}"),
        ),
    };
    Some(format!("{what}, and would not start; {remedy}"))
}

/// Runs a kubelet with flags that it refuses, and returns its output.
async fn ask(site: &Site, mut call: Invocation) -> String {
    // A file of its own: the complaint comes before a copy of the whole configuration.
    let log = site.state().join("kubelet-probe.log");
    let own_root = format!("--root-dir={}", site.state().join("kubelet-probe").display());
    call.arguments.push(own_root);
    call.arguments.extend(REFUSED.map(str::to_owned));
    site.log(&format!("+ {call}"));
    if tokio::time::timeout(DEADLINE, call.run_into(&log)).await.is_err() {
        site.log(&format!("it did not end within {} s", DEADLINE.as_secs()));
    }
    let output = read_from(&log, 0).unwrap_or_default();
    if let Err(error) = fs::remove_file(&log) {
        tracing::debug!(%error, path = %log.display(), "file not removed");
    }
    output
}

fn rule(pattern: &str) -> Regex {
    Regex::new(pattern).expect("the pattern is a constant")
}

/// Judges the output of a kubelet with [`REFUSED`] flags.
fn judge(output: &str) -> Verdict {
    static FLAG: LazyLock<Regex> = LazyLock::new(|| rule(r"unknown flag: --([A-Za-z0-9-]+)"));
    static GATE: LazyLock<Regex> = LazyLock::new(|| {
        rule(r"unrecognized feature gate: [A-Za-z0-9]+|cannot set feature gate [A-Za-z0-9]+")
    });
    static INVALID: LazyLock<Regex> =
        LazyLock::new(|| rule(r"failed to validate kubelet configuration, error: (.*)"));
    static OURS: LazyLock<Regex> = LazyLock::new(|| {
        rule(
            r"(invalid configuration: )?[A-Za-z]+ \(--(healthz-)?port\) 65536 must be between 1 and 65535, inclusive",
        )
    });
    static OTHER: LazyLock<Regex> = LazyLock::new(|| {
        rule(
            r"(failed to (parse kubelet flag|validate kubelet flags|load kubelet config file|merge kubelet configs|precedence kubeletConfigFlag|set feature gates)|initialize logging|unknown command|panic)[:, ].*",
        )
    });
    if let Some(found) = FLAG.captures(output) {
        let ours = |flag: &str| flag == "root-dir" || flag == "port" || flag == "healthz-port";
        return if ours(&found[1]) {
            Verdict::Unclear
        } else {
            Verdict::NoFlag(found[1].to_owned())
        };
    }
    if let Some(found) = GATE.find(output) {
        return Verdict::NoGate(found.as_str().to_owned());
    }
    if let Some(found) = INVALID.captures(output) {
        // The configuration itself follows.
        let complaints = found[1].split(", path: ").next().unwrap_or_default();
        let rest = OURS.replace_all(complaints, "");
        if rest == complaints {
            return Verdict::Refuses(shown(complaints));
        }
        let rest = rest.trim_matches(|c: char| "[], \"".contains(c));
        return if rest.is_empty() { Verdict::Accepts } else { Verdict::Refuses(shown(rest)) };
    }
    OTHER.find(output).map_or(Verdict::Unclear, |found| Verdict::Refuses(shown(found.as_str())))
}

fn shown(text: &str) -> String {
    text.chars().take(SHOWN).collect()
}

/// How the service of the kubelet starts it.
#[derive(Debug, Default, PartialEq, Eq)]
struct Start {
    /// Its flags, as systemd passes them.
    words: Vec<String>,
    /// Files with flags.
    files: Vec<String>,
}

impl Start {
    async fn of(site: &Site) -> Self {
        let properties = "--property=ExecStart,Environment,EnvironmentFiles";
        let shown = site.ask(Program::Systemctl, ["show", "kubelet.service", properties]).await;
        let read = |path: &str| site.read(path);
        let known = shown.ok().and_then(|shown| Self::parse(&shown, read));
        known.unwrap_or_else(|| Self::usual(site))
    }

    /// As kubeadm's own unit starts it.
    fn usual(site: &Site) -> Self {
        let config = site.path(KUBELET_CONFIG).exists();
        let mut words: Vec<String> = config
            .then(|| format!("--config={}", site.path(KUBELET_CONFIG).display()))
            .into_iter()
            .collect();
        for (file, variable) in kubelet::FILES {
            let value = environment(&site.read(file)).remove(variable).unwrap_or_default();
            words.extend(split(&value));
        }
        Self { words, files: kubelet::FILES.map(|(file, _)| file.to_owned()).to_vec() }
    }

    /// Parses `systemctl show`; `None` if the service does not start the kubelet itself.
    fn parse(shown: &str, read: impl Fn(&str) -> String) -> Option<Self> {
        let values = |name: &str| {
            let name = format!("{name}=");
            shown
                .lines()
                .filter_map(move |line| line.strip_prefix(name.as_str()).map(str::to_owned))
        };
        let start = values("ExecStart").next_back()?;
        let argv = start.split_once("argv[]=")?.1.split(" ; ").next()?;
        let mut argv = split(argv).into_iter();
        let program = argv.next()?;
        if Path::new(&program).file_name()? != "kubelet" {
            return None;
        }
        let mut variables = BTreeMap::new();
        // systemd quotes a value with blanks as a shell does, in newer versions with `$'`.
        let assignments = values("Environment").map(|line| line.replace("$'", "'"));
        for assignment in assignments.flat_map(|line| split(&line)) {
            let (name, value) = assignment.split_once('=')?;
            variables.insert(name.to_owned(), value.to_owned());
        }
        let files: Vec<String> = values("EnvironmentFiles")
            .filter_map(|line| Some(line.split_once(" (")?.0.to_owned()))
            .collect();
        for file in &files {
            variables.extend(environment(&read(file)));
        }
        Some(Self { words: argv.flat_map(|word| expanded(&word, &variables)).collect(), files })
    }

    /// Only the flags that name its configuration.
    fn without_flags(self) -> Self {
        let names = ["--config", "--config-dir"];
        let word = |name: &str| Some(format!("{name}={}", self.value(name)?));
        Self { words: names.into_iter().filter_map(word).collect(), files: Vec::new() }
    }

    /// The file that contains a text: one with flags, the configuration, or a drop-in of it.
    fn file_with(&self, site: &Site, text: &str) -> String {
        let drop_ins = self.value("--config-dir").map(fs::read_dir);
        let drop_ins = drop_ins.into_iter().flatten().flatten().flatten().map(|entry| entry.path());
        let files = self.files.iter().map(|file| site.path(file));
        let mut all = files.chain(self.value("--config").map(PathBuf::from)).chain(drop_ins);
        let found =
            all.find(|file| fs::read_to_string(file).is_ok_and(|content| content.contains(text)));
        found.map_or_else(|| "its unit".to_owned(), |file| file.display().to_string())
    }

    /// The value of a flag, in one word with it or in the next one.
    fn value(&self, flag: &str) -> Option<String> {
        self.words.iter().enumerate().rev().find_map(|(at, word)| {
            let rest = word.strip_prefix(flag)?;
            let next = || self.words.get(at + 1).filter(|_| rest.is_empty()).map(String::as_str);
            rest.strip_prefix('=').or_else(next).map(str::to_owned)
        })
    }
}

/// Splits words as systemd does: at blanks outside of quotes.
fn split(text: &str) -> Vec<String> {
    shlex::split(text).unwrap_or_else(|| text.split_whitespace().map(str::to_owned).collect())
}

/// A word of a command line with its variables: `$NAME` becomes any number of words, `${NAME}` part of one.
fn expanded(word: &str, variables: &BTreeMap<String, String>) -> Vec<String> {
    static INNER: LazyLock<Regex> = LazyLock::new(|| rule(r"\$\{([A-Za-z0-9_]+)\}"));
    let value = |name: &str| variables.get(name).cloned().unwrap_or_default();
    match word.strip_prefix('$').filter(|name| !name.starts_with(['{', '$'])) {
        Some(name) => split(&value(name)),
        None => vec![
            INNER.replace_all(word, |found: &regex::Captures<'_>| value(&found[1])).into_owned(),
        ],
    }
}

/// The variables in an environment file of systemd.
fn environment(text: &str) -> BTreeMap<String, String> {
    let text = text.replace("\\\n", "");
    let assignments = text.lines().map(str::trim).filter(|line| !line.starts_with(['#', ';']));
    let variable = |line: &str| {
        let (name, value) = line.split_once('=')?;
        let quoted = value.starts_with(['"', '\'']);
        let value = if quoted { split(value).join(" ") } else { value.to_owned() };
        Some((name.trim().to_owned(), value))
    };
    assignments.filter_map(variable).collect()
}

#[cfg(test)]
#[path = "kubelet_probe_tests.rs"]
mod tests;
