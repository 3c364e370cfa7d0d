//! A program that ends when the bed ends, even if the bed is killed.
//!
//! A shell runs in between: it holds the read end of a pipe, and this process holds the write end.
//! When this process is gone, killed or not, the process group of the shell kills itself.

use std::{
    collections::BTreeMap,
    fs::{File, OpenOptions},
    io::Write as _,
    iter,
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
    time::Duration,
};

use anyhow::Context as _;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::{process::Command, sync::watch};

/// Shell script that runs a program and ends it together with this process.
const KEEPER: &str = r#"
trap : TERM INT
exec 3<&0
"$@" 3<&- </dev/null &
child=$!
(trap - TERM INT; cat <&3 >/dev/null 2>&1; kill -KILL 0) 3<&3 &
watcher=$!
while :; do
  wait "$child"; code=$?
  kill -0 "$child" 2>/dev/null || break
done
kill -KILL "$watcher" 2>/dev/null
exit "$code"
"#;
/// How long a program may take to stop on SIGTERM.
const GRACE: Duration = Duration::from_secs(15);
/// How long a program stays down before a restart; a kubelet backs off longer.
const BACK_OFF: Duration = Duration::from_secs(1);

/// Environment of a Go program that makes it collect garbage less often, which otherwise takes a
/// third of its time.
pub(crate) fn go_env(limit: &str) -> BTreeMap<String, String> {
    let env = [("GOGC", "400"), ("GOMEMLIMIT", limit)];
    env.map(|(key, value)| (key.to_owned(), value.to_owned())).into()
}

/// A program to run.
#[derive(Clone, Debug, Default)]
pub struct Program {
    /// Name in messages and logs.
    pub name: String,
    /// Path of the program.
    pub path: PathBuf,
    /// Arguments of the program.
    pub args: Vec<String>,
    /// Environment variables, in addition to those of this process.
    pub env: BTreeMap<String, String>,
    /// Whether the program is restarted when it exits, as in a Deployment.
    pub restart: bool,
}

impl Program {
    fn command_line(&self) -> String {
        let words = iter::once(self.path.display().to_string()).chain(self.args.iter().cloned());
        words.collect::<Vec<_>>().join(" ")
    }
}

/// The desired state of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Desired {
    Run,
    /// Stop it with SIGTERM, and do not restart it.
    End,
    /// Stop it with SIGKILL, and do not restart it.
    Kill,
}

/// A program that runs until the value is dropped.
#[derive(Debug)]
pub struct Part {
    shared: Arc<Shared>,
    task: tokio::task::JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    program: Program,
    log: PathBuf,
    desired: watch::Sender<Desired>,
    /// Process group of the running instance.
    running: watch::Sender<Option<u32>>,
    /// How often the program exited by itself, and its last exit.
    ends: watch::Sender<(usize, Exit)>,
}

/// How a program ended.
#[derive(Clone, Debug, Default)]
struct Exit {
    success: bool,
    description: String,
}

impl Exit {
    fn without_success(description: impl Into<String>) -> Self {
        Self { success: false, description: description.into() }
    }
}

impl Part {
    /// Starts a program. Its output goes to `<directory>/<name>.log`.
    pub fn start(program: Program, directory: &Path) -> anyhow::Result<Self> {
        anyhow::ensure!(
            program.path.exists(),
            "{} does not exist: run `cargo xtask testbed build`",
            program.path.display()
        );
        let shared = Arc::new(Shared {
            log: directory.join(format!("{}.log", program.name)),
            program,
            desired: watch::channel(Desired::Run).0,
            running: watch::channel(None).0,
            ends: watch::Sender::default(),
        });
        let task = tokio::spawn(shared.clone().keep());
        Ok(Self { shared, task })
    }

    /// Returns the path of the log.
    pub fn log(&self) -> &Path {
        &self.shared.log
    }

    /// Returns the command line of the program.
    pub fn command_line(&self) -> String {
        self.shared.program.command_line()
    }

    /// Whether the program runs.
    pub fn is_running(&self) -> bool {
        self.shared.running.borrow().is_some()
    }

    /// Returns how often the program exited by itself, and how it exited last.
    pub fn ends(&self) -> (usize, String) {
        let (ends, last) = &*self.shared.ends.borrow();
        (*ends, last.description.clone())
    }

    /// Kills the program as a crash would. It is restarted if [`Program::restart`] is set.
    pub fn crash(&self) {
        self.shared.signal(Signal::KILL);
    }

    /// Kills the program, and keeps it stopped until [`Part::start_again`].
    pub async fn kill(&self) {
        self.ended(Desired::Kill).await;
    }

    /// Stops the program with SIGTERM, and keeps it stopped until [`Part::start_again`].
    pub async fn end(&self) {
        self.ended(Desired::End).await;
    }

    /// Starts the program again.
    pub fn start_again(&self) {
        self.shared.desired.send_replace(Desired::Run);
    }

    async fn ended(&self, desired: Desired) {
        self.shared.desired.send_replace(desired);
        let mut running = self.shared.running.subscribe();
        // The sender lives in `self`, so the channel stays open.
        let _ = running.wait_for(Option::is_none).await;
    }

    /// Waits until the program has exited by itself and is not restarted. Returns how it exited,
    /// with the end of its log.
    pub async fn over(&self) -> String {
        self.success().await;
        let (_, last) = self.ends();
        format!("{} {last}; {}", self.shared.program.name, self.tail())
    }

    /// Waits until the program has exited by itself and is not restarted. Returns whether its exit
    /// code was 0.
    pub async fn success(&self) -> bool {
        let mut ends = self.shared.ends.subscribe();
        let once = |(ends, _): &(usize, Exit)| *ends > 0 && !self.shared.program.restart;
        // The sender lives in `self`, so the channel stays open.
        let ended = ends.wait_for(once).await;
        ended.is_ok_and(|ended| ended.1.success)
    }

    /// Returns the last lines of the log.
    pub fn tail(&self) -> String {
        let text = std::fs::read_to_string(&self.shared.log).unwrap_or_default();
        let output = text.lines().filter(|line| !line.starts_with("--- "));
        let lines: Vec<&str> = output.rev().take(8).collect();
        let lines: Vec<&str> = lines.into_iter().rev().collect();
        format!("{}:\n{}", self.shared.log.display(), lines.join("\n"))
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.task.abort();
        self.shared.signal(Signal::KILL);
    }
}

impl Shared {
    fn signal(&self, signal: Signal) {
        let group = *self.running.borrow();
        let group = group.and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        if let Some(group) = group {
            // The group may have exited already.
            let _ = kill_process_group(group, signal);
        }
    }

    async fn keep(self: Arc<Self>) {
        let mut desired = self.desired.subscribe();
        loop {
            // The sender lives in `self`, so the channel stays open.
            let _ = desired.wait_for(|desired| *desired == Desired::Run).await;
            let exit = match self.once(&mut desired).await {
                Ok(exit) => exit,
                Err(error) => Exit::without_success(format!("failed to start: {error:#}")),
            };
            self.running.send_replace(None);
            if *desired.borrow() != Desired::Run {
                continue;
            }
            self.ends.send_modify(|(ends, last)| {
                *ends += 1;
                *last = exit;
            });
            if !self.program.restart {
                let _ = desired.wait_for(|desired| *desired != Desired::Run).await;
                continue;
            }
            tokio::time::sleep(BACK_OFF).await;
        }
    }

    /// Runs the program once and returns how it ended.
    async fn once(&self, desired: &mut watch::Receiver<Desired>) -> anyhow::Result<Exit> {
        let mut log = self.open_log()?;
        writeln!(log, "--- {}", self.program.command_line())?;
        let mut child = Command::new("/bin/sh")
            .arg("-c")
            .arg(KEEPER)
            .arg("keeper")
            .arg(&self.program.path)
            .args(&self.program.args)
            .envs(&self.program.env)
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("failed to start /bin/sh")?;
        self.running.send_replace(child.id());
        // Waiting closes stdin, and the program would then end.
        let _held = child.stdin.take();
        let requested = tokio::select! {
            biased;
            status = child.wait() => {
                let status = status?;
                return Ok(Exit {
                    success: status.success(),
                    description: format!("exited: {status}"),
                });
            }
            requested = desired.wait_for(|desired| *desired != Desired::Run) => *requested?,
        };
        if requested == Desired::End {
            self.signal(Signal::TERM);
            if tokio::time::timeout(GRACE, child.wait()).await.is_ok() {
                return Ok(Exit::without_success("ended"));
            }
        }
        self.signal(Signal::KILL);
        child.wait().await?;
        Ok(Exit::without_success("was killed"))
    }

    fn open_log(&self) -> anyhow::Result<File> {
        let file = OpenOptions::new().create(true).append(true).open(&self.log);
        file.with_context(|| format!("failed to write {}", self.log.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, restart: bool) -> Program {
        Program {
            name: "part".to_owned(),
            path: "/bin/sh".into(),
            args: vec!["-c".to_owned(), script.to_owned()],
            restart,
            ..Program::default()
        }
    }

    fn directory(name: &str) -> PathBuf {
        let directory =
            std::env::temp_dir().join(format!("refit-testbed-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        directory
    }

    async fn until(mut found: impl FnMut() -> bool) {
        for _ in 0..200 {
            if found() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("timed out after 4 s");
    }

    #[tokio::test]
    async fn a_crashed_part_restarts_and_a_killed_one_does_not() {
        let directory = directory("crash");
        let part = Part::start(shell("echo up; exec sleep 60", true), &directory).unwrap();
        let ups =
            || std::fs::read_to_string(part.log()).unwrap_or_default().matches("\nup").count();
        until(|| ups() == 1).await;
        part.crash();
        until(|| ups() == 2).await;
        part.kill().await;
        assert!(!part.is_running());
        part.start_again();
        until(|| ups() == 3).await;
        std::fs::remove_dir_all(directory).unwrap();
    }

    #[tokio::test]
    async fn the_exit_of_a_part_includes_its_last_output() {
        let directory = directory("end");
        let part = Part::start(shell("echo cannot >&2; exit 3", false), &directory).unwrap();
        let message = part.over().await;
        assert!(message.contains("exit status: 3") && message.contains("cannot"), "{message}");
        std::fs::remove_dir_all(directory).unwrap();
    }
}
