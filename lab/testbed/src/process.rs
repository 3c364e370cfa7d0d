//! A program that ends when the bed does, however that ends.
//!
//! A shell stands between: it holds the read end of a pipe of which this process holds the other.
//! When this process is gone, killed or not, the shell's process group kills itself.

use std::{
    collections::BTreeMap,
    fs::{File, OpenOptions},
    io::Write as _,
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
    time::Duration,
};

use anyhow::Context as _;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::{process::Command, sync::watch};

/// Runs a program and ends it with this process.
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
/// How long a program may take to end when it is asked to.
const GRACE: Duration = Duration::from_secs(15);
/// How long a program that is started again stays down: a kubelet backs off longer.
const BACK_OFF: Duration = Duration::from_secs(1);

/// What a Go program is told so that it collects garbage less often: a third of its time otherwise.
pub(crate) fn go_env(limit: &str) -> BTreeMap<String, String> {
    let env = [("GOGC", "400"), ("GOMEMLIMIT", limit)];
    env.map(|(key, value)| (key.to_owned(), value.to_owned())).into()
}

/// What is run.
#[derive(Clone, Debug, Default)]
pub struct Program {
    /// What it is called in messages and logs.
    pub name: String,
    /// The file.
    pub path: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
    /// Its variables, beside those of this process.
    pub env: BTreeMap<String, String>,
    /// Whether it is started again when it ends by itself, as a Deployment would.
    pub restart: bool,
}

/// What the one who runs a program wants of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wish {
    Run,
    /// Ask it to end, and leave it ended.
    End,
    /// End it at once, and leave it ended.
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
    wish: watch::Sender<Wish>,
    /// Process group of the running incarnation.
    running: watch::Sender<Option<u32>>,
    /// How often it ended by itself, and how last.
    ends: watch::Sender<(usize, End)>,
}

/// How a program ended.
#[derive(Clone, Debug, Default)]
struct End {
    success: bool,
    said: String,
}

impl End {
    fn without_success(said: impl Into<String>) -> Self {
        Self { success: false, said: said.into() }
    }
}

impl Part {
    /// Starts a program; what it says goes to `<folder>/<name>.log`.
    pub fn start(program: Program, folder: &Path) -> anyhow::Result<Self> {
        anyhow::ensure!(
            program.path.exists(),
            "{} is not there: run `cargo xtask testbed build`",
            program.path.display()
        );
        let shared = Arc::new(Shared {
            log: folder.join(format!("{}.log", program.name)),
            program,
            wish: watch::channel(Wish::Run).0,
            running: watch::channel(None).0,
            ends: watch::Sender::default(),
        });
        let task = tokio::spawn(shared.clone().keep());
        Ok(Self { shared, task })
    }

    /// Its log.
    pub fn log(&self) -> &Path {
        &self.shared.log
    }

    /// Whether it runs.
    pub fn is_running(&self) -> bool {
        self.shared.running.borrow().is_some()
    }

    /// How often it ended by itself, and how last.
    pub fn ends(&self) -> (usize, String) {
        let (ends, last) = &*self.shared.ends.borrow();
        (*ends, last.said.clone())
    }

    /// Kills it as a crash would. It comes back if it is one that is restarted.
    pub fn crash(&self) {
        self.shared.signal(Signal::KILL);
    }

    /// Kills it, and leaves it dead until [`Part::start_again`].
    pub async fn kill(&self) {
        self.ended(Wish::Kill).await;
    }

    /// Asks it to end, and leaves it ended until [`Part::start_again`].
    pub async fn end(&self) {
        self.ended(Wish::End).await;
    }

    /// Starts it again.
    pub fn start_again(&self) {
        self.shared.wish.send_replace(Wish::Run);
    }

    async fn ended(&self, wish: Wish) {
        self.shared.wish.send_replace(wish);
        let mut running = self.shared.running.subscribe();
        // The sender lives in `self`, so the channel stays open.
        let _ = running.wait_for(Option::is_none).await;
    }

    /// Waits until it has ended by itself and is not started again; says how, with its last words.
    pub async fn over(&self) -> String {
        self.success().await;
        let (_, last) = self.ends();
        format!("{} {last}; {}", self.shared.program.name, self.tail())
    }

    /// Waits until it has ended by itself and is not started again; whether its exit code was 0.
    pub async fn success(&self) -> bool {
        let mut ends = self.shared.ends.subscribe();
        let once = |(ends, _): &(usize, End)| *ends > 0 && !self.shared.program.restart;
        // The sender lives in `self`, so the channel stays open.
        let ended = ends.wait_for(once).await;
        ended.is_ok_and(|ended| ended.1.success)
    }

    /// The last lines of its log.
    pub fn tail(&self) -> String {
        let text = std::fs::read_to_string(&self.shared.log).unwrap_or_default();
        let said = text.lines().filter(|line| !line.starts_with("--- "));
        let lines: Vec<&str> = said.rev().take(8).collect();
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
            // Gone already is as good.
            let _ = kill_process_group(group, signal);
        }
    }

    async fn keep(self: Arc<Self>) {
        let mut wish = self.wish.subscribe();
        loop {
            // The sender lives in `self`, so the channel stays open.
            let _ = wish.wait_for(|wish| *wish == Wish::Run).await;
            let said = match self.once(&mut wish).await {
                Ok(said) => said,
                Err(error) => End::without_success(format!("cannot be run: {error:#}")),
            };
            self.running.send_replace(None);
            if *wish.borrow() != Wish::Run {
                continue;
            }
            self.ends.send_modify(|(ends, last)| {
                *ends += 1;
                *last = said;
            });
            if !self.program.restart {
                let _ = wish.wait_for(|wish| *wish != Wish::Run).await;
                continue;
            }
            tokio::time::sleep(BACK_OFF).await;
        }
    }

    /// One incarnation; returns how it ended.
    async fn once(&self, wish: &mut watch::Receiver<Wish>) -> anyhow::Result<End> {
        let mut log = self.open_log()?;
        writeln!(log, "--- {} {}", self.program.path.display(), self.program.args.join(" "))?;
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
            .context("/bin/sh cannot be started")?;
        self.running.send_replace(child.id());
        // Waiting closes it, and with it the program would end.
        let _held = child.stdin.take();
        let wished = tokio::select! {
            biased;
            status = child.wait() => {
                let status = status?;
                return Ok(End {
                    success: status.success(),
                    said: format!("ended by itself: {status}"),
                });
            }
            wished = wish.wait_for(|wish| *wish != Wish::Run) => *wished?,
        };
        if wished == Wish::End {
            self.signal(Signal::TERM);
            if tokio::time::timeout(GRACE, child.wait()).await.is_ok() {
                return Ok(End::without_success("ended"));
            }
        }
        self.signal(Signal::KILL);
        child.wait().await?;
        Ok(End::without_success("was killed"))
    }

    fn open_log(&self) -> anyhow::Result<File> {
        let file = OpenOptions::new().create(true).append(true).open(&self.log);
        file.with_context(|| format!("{} cannot be written", self.log.display()))
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

    fn folder(name: &str) -> PathBuf {
        let folder =
            std::env::temp_dir().join(format!("refit-testbed-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }

    async fn until(mut found: impl FnMut() -> bool) {
        for _ in 0..200 {
            if found() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("not within 4 s");
    }

    #[tokio::test]
    async fn a_part_that_crashes_comes_back_and_one_that_is_killed_does_not() {
        let folder = folder("crash");
        let part = Part::start(shell("echo up; exec sleep 60", true), &folder).unwrap();
        let ups =
            || std::fs::read_to_string(part.log()).unwrap_or_default().matches("\nup").count();
        until(|| ups() == 1).await;
        part.crash();
        until(|| ups() == 2).await;
        part.kill().await;
        assert!(!part.is_running());
        part.start_again();
        until(|| ups() == 3).await;
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[tokio::test]
    async fn the_end_of_a_part_is_told_with_its_last_words() {
        let folder = folder("end");
        let part = Part::start(shell("echo cannot >&2; exit 3", false), &folder).unwrap();
        let told = part.over().await;
        assert!(told.contains("exit status: 3") && told.contains("cannot"), "{told}");
        std::fs::remove_dir_all(folder).unwrap();
    }
}
