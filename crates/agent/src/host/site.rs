//! The host as its drivers see it: directories, programs, a log.
//!
//! In production the root is `/` and programs are at their usual paths. Tests set another root and
//! other programs, so that the same drivers work on a directory with stub packages.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use refit_bundle::fetch::Proxies;

use super::{Invocation, Program, ProgramError, files::atomic, program::open_log, work::GOES_ON};

/// `PATH` of maintainer scripts and programs.
const SEARCH_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A replacement for a known program, for tests and unusual hosts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tool {
    /// Its path; empty for the path of the known program.
    pub path: String,
    /// Arguments to put before all others.
    pub arguments: Vec<String>,
    /// Variables to add to its environment.
    pub environment: Vec<(String, String)>,
}

/// The host as its drivers see it.
#[derive(Clone, Debug)]
pub struct Site {
    root: PathBuf,
    state: PathBuf,
    tools: BTreeMap<Program, Tool>,
    log: PathBuf,
    proxies: Proxies,
}

impl Site {
    /// This host; `state` is the agent's own directory.
    pub fn new(state: impl Into<PathBuf>) -> Self {
        Self::at("/", state)
    }

    /// A host whose root is at `root`.
    pub fn at(root: impl Into<PathBuf>, state: impl Into<PathBuf>) -> Self {
        let state = state.into();
        Self {
            root: root.into(),
            log: state.join("host.log"),
            state,
            tools: BTreeMap::new(),
            proxies: Proxies::default(),
        }
    }

    /// Replaces a known program.
    #[must_use]
    pub fn with_tool(mut self, program: Program, tool: Tool) -> Self {
        self.tools.insert(program, tool);
        self
    }

    /// Writes the output of programs to `log`.
    #[must_use]
    pub fn logging_to(mut self, log: impl Into<PathBuf>) -> Self {
        self.log = log.into();
        self
    }

    /// Downloads through these proxies.
    #[must_use]
    pub fn through(mut self, proxies: Proxies) -> Self {
        self.proxies = proxies;
        self
    }

    /// The proxies of downloads.
    pub fn proxies(&self) -> &Proxies {
        &self.proxies
    }

    /// Maps an absolute path of the host to a path below the root. Paths in the agent's own
    /// directory are returned unchanged.
    pub fn path(&self, absolute: impl AsRef<Path>) -> PathBuf {
        let path = absolute.as_ref();
        if path.starts_with(&self.state) {
            return path.to_owned();
        }
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// The absolute path on the host that a write to `absolute` changes: the target, if `absolute`
    /// is a link. `None` if the link leads out of the root.
    pub fn resolved(&self, absolute: &str) -> Option<String> {
        let path = self.path(absolute);
        let real = atomic::resolved(&path);
        if real == path {
            return Some(absolute.to_owned());
        }
        let root = fs::canonicalize(&self.root).ok()?;
        let inside = real.strip_prefix(root).ok()?.to_str()?;
        Some(format!("/{inside}"))
    }

    /// The agent's own directory.
    pub fn state(&self) -> &Path {
        &self.state
    }

    /// Directory of the outputs, marks and jobs of units.
    pub fn units(&self) -> PathBuf {
        self.state.join("units")
    }

    /// Directory of the state that a rollback of the plan restores.
    pub fn snapshot(&self, plan: &str) -> PathBuf {
        self.state.join("snapshots").join(plain(plan))
    }

    /// Whether the host has a program.
    pub fn has(&self, program: Program) -> bool {
        match self.tools.get(&program) {
            Some(tool) if !tool.path.is_empty() => Path::new(&tool.path).exists(),
            _ => program.is_there(),
        }
    }

    /// A program with these arguments.
    pub fn call<S: Into<String>>(
        &self,
        program: Program,
        arguments: impl IntoIterator<Item = S>,
    ) -> Invocation {
        let arguments = arguments.into_iter().map(Into::into);
        let mut call = match self.tools.get(&program) {
            None => Invocation::new(program, arguments),
            Some(tool) => {
                let path = if tool.path.is_empty() { program.path() } else { &tool.path };
                let all = tool.arguments.iter().cloned().chain(arguments);
                let mut call = Invocation::at(path, all);
                call.environment.clone_from(&tool.environment);
                call
            }
        };
        call.environment.extend(
            [
                ("PATH", SEARCH_PATH),
                ("DEBIAN_FRONTEND", "noninteractive"),
                // needrestart would restart containerd during the installation
                // (`docs/facts/hosts.md#apt`).
                ("NEEDRESTART_SUSPEND", "1"),
            ]
            .map(|(name, value)| (name.to_owned(), value.to_owned())),
        );
        call
    }

    /// Runs a query: the deadline is one minute, and the output is not logged.
    pub async fn ask<S: Into<String>>(
        &self,
        program: Program,
        arguments: impl IntoIterator<Item = S>,
    ) -> Result<String, ProgramError> {
        self.call(program, arguments).output().await
    }

    /// Runs a program, logs its output and returns it.
    pub async fn run(&self, call: &Invocation) -> Result<String, ProgramError> {
        self.log(&format!("+ {call}"));
        call.run_into(&self.log).await
    }

    /// Writes a line to the log. Best effort: a log that cannot be written does not stop the work.
    pub fn log(&self, text: &str) {
        use std::io::Write as _;
        let written = open_log(&self.log).and_then(|mut log| writeln!(log, "{text}"));
        if let Err(error) = written {
            tracing::debug!(%error, "cannot write the log of a unit");
        }
    }

    /// Writes a failure to the log after which the work goes on, so that only what follows decides
    /// why the step fails.
    pub fn log_and_go_on(&self, text: &str) {
        self.log(&format!("{text}\n{GOES_ON}"));
    }

    /// Notes in the log that nothing so far decides why the step fails: what succeeded may have printed warnings.
    pub fn log_success(&self) {
        self.log(GOES_ON);
    }

    /// The text of a file of the host; empty if the file does not exist.
    pub fn read(&self, absolute: &str) -> String {
        fs::read_to_string(self.path(absolute)).unwrap_or_default()
    }
}

/// Converts a string to the name of a single plain directory.
pub(crate) fn plain(name: &str) -> String {
    let clean: String = name
        .chars()
        .take(120)
        .map(|c| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '_' })
        .collect();
    match clean.trim_start_matches('.') {
        "" => "none".to_owned(),
        clean => clean.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::work::deciding;

    #[test]
    fn a_path_of_the_host_is_below_its_root() {
        let site = Site::at("/host", "/state");
        assert_eq!(site.path("/etc/x"), Path::new("/host/etc/x"));
        assert_eq!(site.path("/state/x"), Path::new("/state/x"));
        assert_eq!(Site::new("/state").path("/etc/x"), Path::new("/etc/x"));
        assert_eq!(site.snapshot("../x"), Path::new("/state/snapshots/_x"));
    }

    #[tokio::test]
    async fn program_output_is_in_the_log_and_in_the_error() {
        let directory = tempfile::tempdir().unwrap();
        let site = Site::new(directory.path());
        let good = Invocation::at("/bin/sh", ["-c", "echo fine; echo odd >&2"]);
        assert_eq!(site.run(&good).await.unwrap(), "fine\nodd\n");
        let bad = Invocation::at("/bin/sh", ["-c", "echo worse; exit 7"]);
        let error = site.run(&bad).await.unwrap_err();
        assert_eq!((error.code(), error.output_tail()), (Some(7), "worse"));
        let log = fs::read_to_string(directory.path().join("host.log")).unwrap();
        assert!(log.contains("fine\nodd\n+ /bin/sh -c echo worse"), "{log}");
    }

    #[tokio::test]
    async fn secret_input_is_not_logged() {
        let directory = tempfile::tempdir().unwrap();
        let site = Site::new(directory.path());
        let call = Invocation::at("/bin/sh", ["-c", "cat >/dev/null"]).reading("hunter2");
        site.run(&call).await.unwrap();
        let log = fs::read_to_string(directory.path().join("host.log")).unwrap();
        assert!(!log.contains("hunter2") && !format!("{call:?}").contains("hunter2"));
    }

    #[test]
    fn a_failure_after_which_the_work_goes_on_does_not_decide() {
        let directory = tempfile::tempdir().unwrap();
        let site = Site::new(directory.path());
        site.log("first");
        site.log_and_go_on("trying all sources: NO_PUBKEY");
        site.log("Could not resolve");
        let log = fs::read_to_string(directory.path().join("host.log")).unwrap();
        assert!(log.contains("first\ntrying all sources: NO_PUBKEY\n"), "{log}");
        assert_eq!(deciding(&log).trim(), "Could not resolve");
    }

    #[test]
    fn the_warnings_of_what_succeeded_do_not_decide() {
        let directory = tempfile::tempdir().unwrap();
        let site = Site::new(directory.path());
        site.log("W: GPG error: https://other.example InRelease: NO_PUBKEY 1234");
        site.log_success();
        site.log("E: dpkg was interrupted");
        let log = fs::read_to_string(directory.path().join("host.log")).unwrap();
        assert_eq!(deciding(&log).trim(), "E: dpkg was interrupted");
    }

    #[test]
    fn another_program_keeps_its_own_arguments_in_front() {
        let tool = Tool {
            path: "/opt/dpkg".to_owned(),
            arguments: vec!["--root=/x".to_owned()],
            environment: vec![("A".to_owned(), "b".to_owned())],
        };
        let site = Site::new("/state").with_tool(Program::Dpkg, tool);
        let call = site.call(Program::Dpkg, ["--configure", "-a"]);
        assert_eq!(call.to_string(), "/opt/dpkg --root=/x --configure -a");
        assert!(call.environment.contains(&("A".to_owned(), "b".to_owned())));
    }
}
