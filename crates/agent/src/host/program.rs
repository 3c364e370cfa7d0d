//! The external programs that the agent runs, and what is said when one fails.

use std::{fmt, process::Stdio, sync::LazyLock, time::Duration};

use regex::Regex;

/// How much of a program's output an error keeps.
pub const TAIL_BYTES: usize = 4096;
/// How long a program that only answers a question may take.
const QUESTION_DEADLINE: Duration = Duration::from_mins(1);

/// An external program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Program {
    /// Installs packages.
    AptGet,
    /// Holds packages back.
    AptMark,
    /// Copies manifests into a snapshot.
    Cp,
    /// Tells how much room is left.
    Df,
    /// Asks which packages are installed.
    DpkgQuery,
    /// Saves etcd.
    Etcdctl,
    /// Upgrades what kubeadm manages.
    Kubeadm,
    /// Makes folders.
    Mkdir,
    /// Restarts services, asks about units, reboots.
    Systemctl,
    /// Starts transient units.
    SystemdRun,
    /// Leaves a mark that a unit ended well.
    Touch,
}

impl Program {
    /// Where it is. Absolute: nothing in the environment chooses what runs as root.
    pub fn path(self) -> &'static str {
        match self {
            Self::AptGet => "/usr/bin/apt-get",
            Self::AptMark => "/usr/bin/apt-mark",
            Self::Cp => "/bin/cp",
            Self::Df => "/bin/df",
            Self::DpkgQuery => "/usr/bin/dpkg-query",
            Self::Etcdctl => "/usr/bin/etcdctl",
            Self::Kubeadm => "/usr/bin/kubeadm",
            Self::Mkdir => "/bin/mkdir",
            Self::Systemctl => "/bin/systemctl",
            Self::SystemdRun => "/usr/bin/systemd-run",
            Self::Touch => "/usr/bin/touch",
        }
    }
}

/// A program and its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invocation {
    /// Path of the program.
    pub program: String,
    /// Its arguments.
    pub arguments: Vec<String>,
}

impl Invocation {
    /// A program of ours with these arguments.
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
        }
    }

    /// Runs it to its end and returns what it wrote to standard output.
    pub async fn output(&self) -> Result<String, ProgramError> {
        let child = tokio::process::Command::new(&self.program)
            .args(&self.arguments)
            .env("LC_ALL", "C")
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output();
        let not_run = |source| ProgramError::NotRun {
            command: mask(&self.to_string()),
            source,
        };
        let output = tokio::time::timeout(QUESTION_DEADLINE, child)
            .await
            .map_err(|_| not_run(std::io::ErrorKind::TimedOut.into()))?
            .map_err(not_run)?;
        let standard = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() {
            return Ok(standard);
        }
        let both = standard + &String::from_utf8_lossy(&output.stderr);
        Err(ProgramError::Failed {
            command: mask(&self.to_string()),
            code: output.status.code(),
            tail: tail(&both),
        })
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

/// The whole picture of a program that failed.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// It did not run to its end.
    #[error("`{command}` did not run: {source}")]
    NotRun {
        /// Program and arguments, secrets masked.
        command: String,
        /// Why.
        source: std::io::Error,
    },
    /// It ended badly.
    #[error("`{command}` ended with {}; its output ends: {tail}", exit(*code))]
    Failed {
        /// Program and arguments, secrets masked.
        command: String,
        /// Exit code; `None` if a signal ended it.
        code: Option<i32>,
        /// The end of its output, secrets masked.
        tail: String,
    },
}

fn exit(code: Option<i32>) -> String {
    code.map_or_else(|| "a signal".to_owned(), |code| format!("exit code {code}"))
}

/// The last 4 KiB of a program's output, secrets masked.
pub fn tail(output: &str) -> String {
    // Masked before it is cut: a secret cut in two is not recognised.
    let masked = mask(output.trim_end());
    let mut start = masked.len().saturating_sub(TAIL_BYTES);
    while !masked.is_char_boundary(start) {
        start += 1;
    }
    masked[start..].to_owned()
}

/// Replaces what looks like a secret.
pub fn mask(text: &str) -> String {
    static RULES: LazyLock<[(Regex, &str); 6]> = LazyLock::new(|| {
        let rule = |pattern| Regex::new(pattern).expect("the pattern is a constant");
        [
            (
                rule(
                    r"(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\z)",
                ),
                "<private key>",
            ),
            (rule(r"\b[a-z0-9]{6}\.[a-z0-9]{16}\b"), "<bootstrap token>"),
            (rule(r"\beyJ[\w-]+\.[\w-]+\.[\w-]*"), "<token>"),
            (rule(r"(?i)\b(bearer|basic) +[\w.~+/=-]{8,}"), "$1 <masked>"),
            (rule(r"://[^/\s:@]+:[^/\s@]+@"), "://<masked>@"),
            (
                rule(
                    r#"(?i)((?:token|password|passwd|secret|certificate-key|client-key-data|api-?key)["']?\s*[=: ]\s*["']?)[^\s"',]{6,}"#,
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
            (
                "kubeadm join --token abcdef.0123456789abcdef",
                "0123456789abcdef",
            ),
            ("using token: abcdef.0123456789abcdef.", "0123456789abcdef"),
            ("password=hunter2222 user=x", "hunter2222"),
            (
                "\"client-key-data\": \"TFMwdExTMUNSVWRK\"",
                "TFMwdExTMUNSVWRK",
            ),
            ("GET https://bob:s3cretpw@repo.example/deb", "s3cretpw"),
            ("Authorization: Bearer abc.def-ghi_jkl", "def-ghi"),
            (
                "--certificate-key 0123456789abcdef0123",
                "0123456789abcdef0123",
            ),
            (
                "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----",
                "MIIE",
            ),
            ("-----BEGIN PRIVATE KEY-----\nMIIEcut off", "MIIE"),
        ] {
            let masked = mask(text);
            assert!(!masked.contains(secret), "{masked}");
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
        let invocation = Invocation::at("/bin/ls", ["/no/such/folder"]);
        let text = invocation.output().await.unwrap_err().to_string();
        assert!(text.contains("`/bin/ls /no/such/folder`"), "{text}");
        assert!(text.contains("exit code 2"), "{text}");
        assert!(text.contains("No such file"), "{text}");
    }

    #[tokio::test]
    async fn a_missing_program_is_named() {
        let invocation = Invocation::at("/no/such/program", ["x"]);
        let text = invocation.output().await.unwrap_err().to_string();
        assert!(text.contains("`/no/such/program x` did not run"), "{text}");
    }
}
