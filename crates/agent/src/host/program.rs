//! The external programs that the agent runs, and their errors.

use std::{fmt, path::Path, path::PathBuf, process::Stdio, sync::LazyLock, time::Duration};

use regex::{Regex, RegexBuilder};

/// Maximum size of the program output in an error.
pub(super) const TAIL_BYTES: usize = 4096;
/// Memory limit of each rule that finds secrets.
const RULE_BYTES: usize = 32 << 10;
/// Maximum number of bytes read from a log.
const LOG_BYTES: u64 = 256 << 10;
/// Deadline of a program that only prints information.
const QUESTION_DEADLINE: Duration = Duration::from_mins(1);

/// Directories of the Kubernetes programs, in the order in which the agent looks for them: those of
/// packages, of an administrator, and of systems with a read-only `/usr`.
pub(super) const DIRECTORIES: [&str; 3] = ["/usr/bin", "/usr/local/bin", "/opt/bin"];

/// An external program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Program {
    /// Lists the available versions of a package.
    AptCache,
    /// Installs Debian packages.
    AptGet,
    /// Holds packages.
    AptMark,
    /// Lists what inhibits a shutdown.
    Busctl,
    /// Sets passwords, which it reads from standard input.
    Chpasswd,
    /// Prints the version of containerd.
    Containerd,
    /// Copies manifests into a snapshot.
    Cp,
    /// Pulls images with any container runtime.
    Crictl,
    /// Imports images into containerd.
    Ctr,
    /// Installs RPM packages (dnf 4).
    Dnf,
    /// Installs RPM packages (dnf 5).
    Dnf5,
    /// Completes an interrupted installation.
    Dpkg,
    /// Prints the metadata of a package file.
    DpkgDeb,
    /// Lists the installed Debian packages.
    DpkgQuery,
    /// Deletes the firmware's `BootNext` entry.
    Efibootmgr,
    /// Saves etcd.
    Etcdctl,
    /// Creates groups.
    Groupadd,
    /// Upgrades the components that kubeadm manages.
    Kubeadm,
    /// Checks flags of the kubelet.
    Kubelet,
    /// Sets the SELinux labels of files.
    Restorecon,
    /// Removes fetched packages.
    Rm,
    /// Lists the installed RPM packages.
    Rpm,
    /// Converts RPM packages into tarballs.
    Rpm2archive,
    /// Runs the commands of a plan.
    Sh,
    /// Restarts services, queries units, reboots.
    Systemctl,
    /// Starts transient units.
    SystemdRun,
    /// Unpacks binaries.
    Tar,
    /// Installs RPM packages on small systems.
    Tdnf,
    /// Writes OS images.
    Trident,
    /// Creates users.
    Useradd,
    /// Modifies users.
    Usermod,
}

impl Program {
    /// Paths where the program may be. They are absolute, so that the environment does not choose
    /// what runs as root. They cover both layouts of `/usr` and the link directories of tarball
    /// installations.
    pub fn candidates(self) -> &'static [&'static str] {
        match self {
            Self::AptCache => &["/usr/bin/apt-cache"],
            Self::AptGet => &["/usr/bin/apt-get"],
            Self::AptMark => &["/usr/bin/apt-mark"],
            Self::Busctl => &["/usr/bin/busctl", "/bin/busctl"],
            Self::Chpasswd => &["/usr/sbin/chpasswd", "/sbin/chpasswd"],
            Self::Containerd => &["/usr/bin/containerd", "/usr/local/bin/containerd"],
            Self::Cp => &["/usr/bin/cp", "/bin/cp"],
            Self::Crictl => &["/usr/bin/crictl", "/usr/local/bin/crictl", "/opt/bin/crictl"],
            Self::Ctr => &["/usr/bin/ctr", "/usr/local/bin/ctr"],
            Self::Dnf => &["/usr/bin/dnf"],
            Self::Dnf5 => &["/usr/bin/dnf5"],
            Self::Dpkg => &["/usr/bin/dpkg"],
            Self::DpkgDeb => &["/usr/bin/dpkg-deb"],
            Self::DpkgQuery => &["/usr/bin/dpkg-query"],
            Self::Efibootmgr => {
                &["/usr/bin/efibootmgr", "/usr/sbin/efibootmgr", "/sbin/efibootmgr"]
            }
            Self::Etcdctl => &["/usr/bin/etcdctl", "/usr/local/bin/etcdctl", "/opt/bin/etcdctl"],
            Self::Groupadd => &["/usr/sbin/groupadd", "/sbin/groupadd"],
            Self::Kubeadm => &["/usr/bin/kubeadm", "/usr/local/bin/kubeadm", "/opt/bin/kubeadm"],
            Self::Kubelet => &["/usr/bin/kubelet", "/usr/local/bin/kubelet", "/opt/bin/kubelet"],
            Self::Restorecon => &["/usr/sbin/restorecon", "/sbin/restorecon"],
            Self::Rm => &["/usr/bin/rm", "/bin/rm"],
            Self::Rpm => &["/usr/bin/rpm", "/bin/rpm"],
            Self::Rpm2archive => &["/usr/bin/rpm2archive"],
            Self::Sh => &["/bin/sh", "/usr/bin/sh"],
            Self::Systemctl => &["/usr/bin/systemctl", "/bin/systemctl"],
            Self::SystemdRun => &["/usr/bin/systemd-run", "/bin/systemd-run"],
            Self::Tar => &["/usr/bin/tar", "/bin/tar"],
            Self::Tdnf => &["/usr/bin/tdnf"],
            Self::Trident => &["/usr/bin/trident", "/usr/local/bin/trident"],
            Self::Useradd => &["/usr/sbin/useradd", "/sbin/useradd"],
            Self::Usermod => &["/usr/sbin/usermod", "/sbin/usermod"],
        }
    }

    /// The first candidate that exists, or the first candidate.
    pub fn path(self) -> &'static str {
        let places = self.candidates();
        let found = places.iter().find(|place| Path::new(place).exists());
        found.or(places.first()).copied().unwrap_or_default()
    }

    /// Whether this host has the program.
    pub fn is_there(self) -> bool {
        Path::new(self.path()).exists()
    }
}

/// A program and its arguments.
#[derive(Clone, PartialEq, Eq)]
pub struct Invocation {
    /// Path of the program.
    pub program: String,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// Variables to add to its environment.
    pub environment: Vec<(String, String)>,
    /// Working directory, if it matters.
    pub directory: Option<PathBuf>,
    /// Standard input. It may hold secrets and is never logged.
    pub input: Option<Vec<u8>>,
}

impl Invocation {
    /// A known program with these arguments.
    pub fn new<S: Into<String>>(program: Program, arguments: impl IntoIterator<Item = S>) -> Self {
        Self::at(program.path(), arguments)
    }

    /// A program at a path that was found on the host.
    pub fn at<S: Into<String>>(
        path: impl Into<String>,
        arguments: impl IntoIterator<Item = S>,
    ) -> Self {
        Self {
            program: path.into(),
            arguments: arguments.into_iter().map(Into::into).collect(),
            environment: Vec::new(),
            directory: None,
            input: None,
        }
    }

    /// Sets the working directory.
    #[must_use]
    pub fn within(mut self, directory: impl Into<PathBuf>) -> Self {
        self.directory = Some(directory.into());
        self
    }

    /// Sets the standard input.
    #[must_use]
    pub fn reading(mut self, input: impl Into<Vec<u8>>) -> Self {
        self.input = Some(input.into());
        self
    }

    /// Adds an environment variable.
    #[must_use]
    pub fn with_environment(mut self, name: &str, value: impl Into<String>) -> Self {
        self.environment.push((name.to_owned(), value.into()));
        self
    }

    fn process(&self) -> tokio::process::Command {
        let mut process = tokio::process::Command::new(&self.program);
        process
            .args(&self.arguments)
            .env("LC_ALL", "C")
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .kill_on_drop(true);
        if let Some(directory) = &self.directory {
            process.current_dir(directory);
        }
        process
    }

    /// Runs the program and returns its standard output. For queries: the deadline is one minute.
    pub async fn output(&self) -> Result<String, ProgramError> {
        let mut process = self.process();
        process.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let output = tokio::time::timeout(QUESTION_DEADLINE, process.output())
            .await
            .map_err(|_| self.not_run(std::io::ErrorKind::TimedOut.into()))?
            .map_err(|source| self.not_run(source))?;
        let standard = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() {
            return Ok(standard);
        }
        let both = standard + &String::from_utf8_lossy(&output.stderr);
        Err(self.failed(output.status.code(), &both))
    }

    /// Runs the program without a deadline, appends its output to `log` and returns the output.
    ///
    /// The output goes to a file and not through a pipe: a service that an installation starts may
    /// keep a pipe open forever.
    pub async fn run_into(&self, log: &Path) -> Result<String, ProgramError> {
        let not_run = |source| self.not_run(source);
        let file = open_log(log).map_err(not_run)?;
        let from = file.metadata().map_err(not_run)?.len();
        let other = file.try_clone().map_err(not_run)?;
        let mut process = self.process();
        process.stdout(file).stderr(other);
        let status = match &self.input {
            None => process.stdin(Stdio::null()).status().await,
            Some(input) => {
                let mut child = process.stdin(Stdio::piped()).spawn().map_err(not_run)?;
                if let Some(mut pipe) = child.stdin.take() {
                    // A program that does not read all of its input fails with an exit code.
                    let _ = tokio::io::AsyncWriteExt::write_all(&mut pipe, input).await;
                }
                child.wait().await
            }
        };
        let status = status.map_err(not_run)?;
        let output = read_from(log, from).map_err(not_run)?;
        if status.success() {
            return Ok(output);
        }
        Err(self.failed(status.code(), &output))
    }

    fn not_run(&self, source: std::io::Error) -> ProgramError {
        ProgramError::NotRun { command: mask(&self.to_string()), source }
    }

    fn failed(&self, code: Option<i32>, output: &str) -> ProgramError {
        ProgramError::Failed { command: mask(&self.to_string()), code, tail: tail(output) }
    }
}

/// Opens a log for appending. Only root may read it.
pub(super) fn open_log(path: &Path) -> std::io::Result<std::fs::File> {
    let mut options = std::fs::OpenOptions::new();
    options.create(true).append(true);
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

/// The text of a file from an offset on, limited to the last `LOG_BYTES`.
pub(super) fn read_from(path: &Path, from: u64) -> std::io::Result<String> {
    use std::io::{Read as _, Seek as _, SeekFrom};
    let mut file = std::fs::File::open(path)?;
    let end = file.metadata()?.len();
    file.seek(SeekFrom::Start(from.max(end.saturating_sub(LOG_BYTES))))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

impl fmt::Debug for Invocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl fmt::Display for Invocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.program)?;
        for argument in &self.arguments {
            write!(f, " {argument}")?;
        }
        Ok(())
    }
}

/// The failure of a program, with its arguments and output.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// The program could not be run, or exceeded its deadline.
    #[error("cannot run `{command}`: {source}")]
    NotRun {
        /// Program and arguments, secrets masked.
        command: String,
        /// The I/O error.
        source: std::io::Error,
    },
    /// The program failed.
    #[error("`{command}` failed with {}; last output: {tail}", exit(*code))]
    Failed {
        /// Program and arguments, secrets masked.
        command: String,
        /// Exit code; `None` if a signal ended it.
        code: Option<i32>,
        /// The end of its output, secrets masked.
        tail: String,
    },
}

impl ProgramError {
    /// The end of the program's output; empty if it did not run.
    pub fn output_tail(&self) -> &str {
        match self {
            Self::NotRun { .. } => "",
            Self::Failed { tail, .. } => tail,
        }
    }

    /// Its exit code, if it has one.
    pub fn code(&self) -> Option<i32> {
        match self {
            Self::NotRun { .. } => None,
            Self::Failed { code, .. } => *code,
        }
    }
}

fn exit(code: Option<i32>) -> String {
    code.map_or_else(|| "a signal".to_owned(), |code| format!("exit code {code}"))
}

/// The last 4 KiB of a program's output, secrets masked.
pub(super) fn tail(output: &str) -> String {
    // The output is masked before it is cut, because half a secret is not recognized.
    let masked = mask(output.trim_end());
    let mut start = masked.len().saturating_sub(TAIL_BYTES);
    while !masked.is_char_boundary(start) {
        start += 1;
    }
    masked[start..].to_owned()
}

/// Replaces everything that looks like a secret.
pub(super) fn mask(text: &str) -> String {
    static RULES: LazyLock<[(Regex, &str); 6]> = LazyLock::new(|| {
        // Secrets are ASCII. With Unicode classes the rules would take more memory than the rest of
        // the agent, from the first failure on.
        let rule = |pattern| {
            RegexBuilder::new(pattern)
                .size_limit(RULE_BYTES)
                .dfa_size_limit(RULE_BYTES)
                .build()
                .expect("the pattern is a constant, and smaller than that")
        };
        [
            (
                rule(
                    r"(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\z)",
                ),
                "<private key>",
            ),
            (rule(r"(?-u:\b)[a-z0-9]{6}\.[a-z0-9]{16}(?-u:\b)"), "<bootstrap token>"),
            (rule(r"(?-u:\beyJ[\w-]+\.[\w-]+\.[\w-]*)"), "<token>"),
            (rule(r"(?i-u:\b(bearer|basic) +[\w.~+/=-]{8,})"), "$1 <masked>"),
            (rule(r"://[^/\s:@]+:[^/\s@]+@"), "://<masked>@"),
            (
                rule(
                    r#"((?i-u:token|password|passwd|secret|certificate-key|client-key-data|api-?key)["']?(?-u:\s)*[=: ](?-u:\s)*["']?)[^\s"',]{6,}"#,
                ),
                "$1<masked>",
            ),
        ]
    });
    let mut text = text.to_owned();
    for (rule, replacement) in RULES.iter() {
        if let std::borrow::Cow::Owned(masked) = rule.replace_all(&text, *replacement) {
            text = masked;
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_do_not_leave_the_host() {
        for (text, secret) in [
            ("kubeadm join --token abcdef.0123456789abcdef", "0123456789abcdef"),
            ("using token: abcdef.0123456789abcdef.", "0123456789abcdef"),
            ("password=hunter2222 user=x", "hunter2222"),
            ("\"client-key-data\": \"TFMwdExTMUNSVWRK\"", "TFMwdExTMUNSVWRK"),
            ("GET https://bob:s3cretpw@repo.example/deb", "s3cretpw"),
            ("Authorization: Bearer abc.def-ghi_jkl", "def-ghi"),
            ("--certificate-key 0123456789abcdef0123", "0123456789abcdef0123"),
            ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----", "MIIE"),
            ("-----BEGIN PRIVATE KEY-----\nMIIEcut off", "MIIE"),
        ] {
            let masked = mask(text);
            assert!(!masked.contains(secret), "{masked}");
        }
    }

    #[test]
    fn kubernetes_programs_are_started_in_the_order_in_which_their_links_are_sought() {
        for (program, name) in [(Program::Kubeadm, "kubeadm"), (Program::Kubelet, "kubelet")] {
            let expected = DIRECTORIES.map(|directory| format!("{directory}/{name}"));
            assert_eq!(program.candidates(), expected);
        }
    }

    #[test]
    fn ordinary_output_stays_readable() {
        let text = "E: Version '1.35.0-*' for 'kubeadm' was not found\nexit at 10:42:13";
        assert_eq!(mask(text), text);
    }

    #[test]
    fn only_the_last_four_kibibytes_are_kept() {
        let text = "ä".repeat(TAIL_BYTES) + "the end";
        let kept = tail(&text);
        assert!(kept.len() <= TAIL_BYTES && kept.len() > TAIL_BYTES - 4);
        assert!(kept.ends_with("the end"));
    }

    #[tokio::test]
    async fn a_failed_program_shows_arguments_exit_code_and_output() {
        let invocation = Invocation::at("/bin/ls", ["/no/such/directory"]);
        let text = invocation.output().await.unwrap_err().to_string();
        assert!(text.contains("`/bin/ls /no/such/directory`"), "{text}");
        assert!(text.contains("exit code 2"), "{text}");
        assert!(text.contains("No such file"), "{text}");
    }

    #[tokio::test]
    async fn a_missing_program_is_named() {
        let invocation = Invocation::at("/no/such/program", ["x"]);
        let text = invocation.output().await.unwrap_err().to_string();
        assert!(text.contains("cannot run `/no/such/program x`"), "{text}");
    }
}
