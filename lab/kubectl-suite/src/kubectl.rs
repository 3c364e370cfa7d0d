//! Runs kubectl.

use std::ffi::OsStr;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::{env, fs};

/// kubectl was not found.
#[derive(Debug, thiserror::Error)]
#[error("kubectl {version} not found in {}; run `cargo xtask kubectl`", directory.display())]
pub struct MissingKubectl {
    version: String,
    directory: PathBuf,
}

/// A kubectl with its own kubeconfig and home directory.
#[derive(Debug, Clone)]
pub struct Kubectl {
    program: PathBuf,
    kubeconfig: PathBuf,
    home: PathBuf,
    /// Flags before every command.
    flags: Vec<String>,
}

/// The result of one run.
#[derive(Debug)]
pub struct Output {
    /// Exit code; -1 if a signal ended it.
    pub code: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
    command: String,
}

impl Output {
    /// The standard output; panics if the command failed.
    #[track_caller]
    pub fn ok(self) -> String {
        assert!(
            self.code == 0,
            "`kubectl {}` ended with {}:\n{}{}",
            self.command,
            self.code,
            self.stdout,
            self.stderr
        );
        self.stdout
    }

    /// The standard error; panics if the command succeeded.
    #[track_caller]
    pub fn err(self) -> String {
        assert!(
            self.code != 0,
            "`kubectl {}` succeeded:\n{}{}",
            self.command,
            self.stdout,
            self.stderr
        );
        self.stderr
    }
}

/// The version of kubectl that the project builds.
fn version() -> String {
    let text = include_str!("../../../tools/kubectl/go.mod");
    let line = text.lines().find_map(|line| line.trim().strip_prefix("k8s.io/kubectl "));
    line.unwrap_or("unknown").to_owned()
}

/// The kubectl in the cache: `REFIT_CACHE`, by default `~/.cache/refit`.
fn program() -> Result<PathBuf, MissingKubectl> {
    let version = version();
    let cache = env::var_os("REFIT_CACHE").map_or_else(
        || PathBuf::from(env::var_os("HOME").unwrap_or_default()).join(".cache/refit"),
        PathBuf::from,
    );
    let directory = cache.join("kubectl");
    let wanted = format!("{version}-");
    let mut found: Vec<PathBuf> = fs::read_dir(&directory)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(&wanted))
        .map(|entry| entry.path().join("kubectl"))
        .filter(|path| path.is_file())
        .collect();
    found.sort();
    found.pop().ok_or(MissingKubectl { version, directory })
}

impl Kubectl {
    /// The project's kubectl, with caches and configuration in `home`.
    pub fn new(kubeconfig: &Path, home: &Path) -> Result<Self, MissingKubectl> {
        Ok(Self {
            program: program()?,
            kubeconfig: kubeconfig.to_owned(),
            home: home.to_owned(),
            flags: Vec::new(),
        })
    }

    /// The same kubectl with a flag before every command.
    #[must_use]
    pub fn with(&self, flag: &str) -> Self {
        let mut other = self.clone();
        other.flags.push(flag.to_owned());
        other
    }

    fn command<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(&self.flags)
            .args(args)
            .env("KUBECONFIG", &self.kubeconfig)
            .env("HOME", &self.home)
            .env_remove("KUBERNETES_SERVICE_HOST")
            .current_dir(&self.home)
            .stdin(Stdio::null());
        command
    }

    /// Runs a command line, split at spaces.
    #[track_caller]
    pub fn run(&self, line: &str) -> Output {
        self.args(line.split_whitespace())
    }

    /// Runs a command.
    #[track_caller]
    pub fn args<'a>(&self, args: impl IntoIterator<Item = &'a str>) -> Output {
        self.args_with(args, "", &[])
    }

    /// Runs a command line with this standard input.
    #[track_caller]
    pub fn feed(&self, line: &str, stdin: &str) -> Output {
        self.args_with(line.split_whitespace(), stdin, &[])
    }

    /// Runs a command with this standard input and these variables.
    #[track_caller]
    pub fn args_with<'a>(
        &self,
        args: impl IntoIterator<Item = &'a str>,
        stdin: &str,
        variables: &[(&str, &str)],
    ) -> Output {
        let args: Vec<&str> = args.into_iter().collect();
        let mut child = self
            .command(&args)
            .envs(variables.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("failed to run {}: {error}", self.program.display()));
        if let Some(mut pipe) = child.stdin.take() {
            // A command that reads nothing may have exited already.
            let _ = pipe.write_all(stdin.as_bytes());
        }
        let output = child
            .wait_with_output()
            .unwrap_or_else(|error| panic!("failed to wait for kubectl: {error}"));
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Output {
            code: output.status.code().unwrap_or(-1),
            stdout: text(output.stdout),
            stderr: text(output.stderr),
            command: args.join(" "),
        }
    }

    /// Starts a command whose output is read while it runs.
    #[track_caller]
    pub fn start(&self, line: &str) -> Child {
        self.command(line.split_whitespace())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("failed to run {}: {error}", self.program.display()))
    }
}
