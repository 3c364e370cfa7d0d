//! Tests on real hosts: `cargo xtask hosts test [1|2|3|4|5|6|7]`.

use std::{
    env,
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{ExitCode, Stdio},
};

use anyhow::{Context as _, bail};

use crate::{
    cargo,
    package::{self, PackageArgs},
};

/// The test programs, by number.
const TESTS: [&str; 7] = [
    "transaction",
    "power_cut",
    "kubernetes",
    "oldest",
    "layouts",
    "kubeadm_cuts",
    "configuration",
];
/// The tests that need Kubernetes programs, and the variable with their directory.
const KUBERNETES: u8 = 3;
const KUBEADM_CUTS: u8 = 6;
const PROGRAMS_DIRECTORY: &str = "REFIT_K8S_BIN";
/// The test of changes of KubeadmConfigs and HostSettings.
const CONFIGURATION: u8 = 7;
/// The test that needs the agent's package, and the variable with its path.
const OLDEST: u8 = 4;
const PACKAGE: &str = "REFIT_AGENT_DEB";

/// Selection of the tests.
#[derive(clap::Args)]
pub(crate) struct HostsTestArgs {
    /// Run only this test: 1, the whole transaction on five hosts; 2, power cuts; 3, clusters of
    /// real Kubernetes from the programs in REFIT_K8S_BIN; 4, the agent's package on Debian 11;
    /// 5, hosts that differ from kubeadm's defaults; 6, power cuts of real kubeadm from
    /// REFIT_K8S_BIN, which take hours and can be resumed; or 7, changes of KubeadmConfigs and of
    /// packages of the operating system
    /// [default: 1, 2, 4, 5 and 7, and 3 if REFIT_K8S_BIN is set]
    #[arg(value_parser = clap::value_parser!(u8).range(1..=7))]
    which: Option<u8>,
    /// Cut the power this many times while kubeadm replaces manifests, and run nothing else of test 2
    #[arg(long, value_name = "N", requires = "which")]
    cuts: Option<u32>,
    /// Choose the moments of these cuts by this seed
    #[arg(long, value_name = "S", default_value_t = 0, requires = "cuts")]
    seed: u64,
}

impl HostsTestArgs {
    /// What the tests read from their environment.
    fn environment(&self) -> Vec<(&'static str, String)> {
        let cuts = self.cuts.map(|cuts| [("REFIT_CUTS", cuts.to_string())]);
        let seed = [("REFIT_CUTS_SEED", self.seed.to_string())];
        cuts.into_iter().flatten().chain(seed).collect()
    }
}

/// Runs the tests; the last line on stdout is `P passed, F failed`.
pub(crate) fn run(root: &Path, args: &HostsTestArgs) -> anyhow::Result<ExitCode> {
    let programs = programs_directory()?;
    let numbers = numbers(args.which, programs.is_some())?;
    let (mut passed, mut failed) = (0, 0);
    for (number, name) in (1..).zip(TESTS) {
        if !numbers.contains(&number) {
            continue;
        }
        let mut variables = args.environment();
        variables
            .extend(programs.as_ref().map(|path| (PROGRAMS_DIRECTORY, path.display().to_string())));
        if number == OLDEST {
            let [deb, _] = package::packages(root, &PackageArgs::default())?;
            variables.push((PACKAGE, deb.display().to_string()));
        }
        let counts = test(root, name, profile(number), variables)?;
        passed += counts.0;
        failed += counts.1;
    }
    #[expect(clippy::print_stdout, reason = "the result of the task")]
    {
        println!("{passed} passed, {failed} failed");
    }
    Ok(if failed == 0 && passed > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The directory with Kubernetes programs, as an absolute path because tests run in their own
/// directory.
fn programs_directory() -> anyhow::Result<Option<PathBuf>> {
    let Some(directory) = env::var_os(PROGRAMS_DIRECTORY).filter(|directory| !directory.is_empty())
    else {
        return Ok(None);
    };
    let directory = std::path::absolute(&directory);
    let directory =
        directory.with_context(|| format!("invalid {PROGRAMS_DIRECTORY}, expected a path"))?;
    Ok(Some(directory))
}

/// The tests to run.
fn numbers(which: Option<u8>, programs: bool) -> anyhow::Result<Vec<u8>> {
    match which {
        Some(number @ (KUBERNETES | KUBEADM_CUTS)) if !programs => bail!(
            "test {number} needs {PROGRAMS_DIRECTORY}: a directory with two subdirectories named after \
             their version, such as v1.34.10 and v1.35.8, each with kubeadm, kubelet, kubectl, \
             kube-apiserver, kube-controller-manager and kube-scheduler; \
             `{PROGRAMS_DIRECTORY}=$(cargo xtask hosts build)` builds them, once, in half an hour"
        ),
        Some(number) => Ok(vec![number]),
        None if programs => Ok(vec![1, 2, KUBERNETES, OLDEST, 5, CONFIGURATION]),
        None => Ok(vec![1, 2, OLDEST, 5, CONFIGURATION]),
    }
}

/// The build profile of a test and its agent. The third test measures time on a machine that it
/// shares with controllers and the model of Cluster API, which must not use much of the CPU.
fn profile(number: u8) -> &'static str {
    if number == KUBERNETES { "ship" } else { "dev" }
}

fn call_cargo(root: &Path, arguments: &[&str]) -> anyhow::Result<()> {
    let status = cargo::command(root)
        .args(arguments)
        .stdout(Stdio::null())
        .status()
        .context("failed to run cargo")?;
    if !status.success() {
        bail!("cargo {} failed with {status}", arguments.join(" "));
    }
    Ok(())
}

/// Runs one test program and passes its output on; returns the counts of passed and failed tests.
fn test(
    root: &Path,
    name: &str,
    profile: &str,
    variables: Vec<(&'static str, String)>,
) -> anyhow::Result<(u32, u32)> {
    // The agent of these hosts, next to the test, which looks for it there.
    call_cargo(root, &["build", "--package", "refit-agent", "--profile", profile])?;
    let mut child = cargo::command(root)
        .envs(variables)
        // From the whole workspace, so that features are unified as in earlier builds.
        .args(["test", "--workspace"])
        .args(["--profile", profile, "--test", name, "--", "--nocapture"])
        .stdout(Stdio::piped())
        .spawn()
        .context("failed to run cargo")?;
    let mut counts = None;
    let output = child.stdout.take().context("the output is not piped")?;
    for line in BufReader::new(output).lines() {
        let line = line.context("failed to read the output of the test")?;
        counts = counts.or_else(|| read_counts(&line));
        writeln!(std::io::stderr(), "{line}").context("failed to write to stderr")?;
    }
    let status = child.wait().context("failed to wait for the test")?;
    // Without a summary the tests never ran. What a test leaves behind is a failure too.
    Ok(match counts {
        Some((passed, failed)) if status.success() || failed > 0 => (passed, failed),
        Some((passed, _)) => (passed, 1),
        None => (0, 1),
    })
}

/// Reads `test result: ok. 3 passed; 0 failed; ...`.
fn read_counts(line: &str) -> Option<(u32, u32)> {
    let (_, rest) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let number = |part: &str, word: &str| part.trim().strip_suffix(word)?.trim().parse().ok();
    let mut parts = rest.split(';');
    Some((number(parts.next()?, "passed")?, number(parts.next()?, "failed")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_with_real_kubernetes_require_its_programs() {
        assert_eq!(numbers(None, false).unwrap(), [1, 2, 4, 5, 7]);
        assert_eq!(numbers(None, true).unwrap(), [1, 2, 3, 4, 5, 7]);
        assert_eq!(numbers(Some(2), true).unwrap(), [2]);
        assert_eq!(numbers(Some(6), true).unwrap(), [6], "hours: only on request");
        for number in [3, 6] {
            let error = numbers(Some(number), false).unwrap_err().to_string();
            assert!(error.contains(&format!("test {number} needs REFIT_K8S_BIN")), "{error}");
        }
    }

    #[test]
    fn the_summary_of_a_test_program_is_read() {
        let line =
            "test result: FAILED. 3 passed; 12 failed; 0 ignored; 0 measured; 0 filtered out";
        assert_eq!(read_counts(line), Some((3, 12)));
        assert_eq!(read_counts("test a ... ok"), None);
    }
}
