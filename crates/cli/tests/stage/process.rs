//! Runs the command as a process: to its end, or reading its output while it runs.

use std::{
    io::{BufRead as _, BufReader},
    process::{Child, Command, Output, Stdio},
    time::Duration,
};

use serde_json::Value;

/// How long a test waits for an expected event.
const PATIENCE: Duration = Duration::from_secs(20);

/// The binary, in a clean environment.
pub(crate) fn refit(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_refit"));
    command.args(args);
    for name in ["CARGO", "REFIT_LOG", "KUBECONFIG", "KUBERNETES_SERVICE_HOST", "HOME", "NO_COLOR"]
    {
        command.env_remove(name);
    }
    command
}

/// A command that has exited.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ended {
    pub(crate) fn of(output: Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// Parses the lines of stdout as JSON.
    pub(crate) fn json_lines(&self) -> Vec<Value> {
        let lines = self.stdout.lines();
        lines.map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

/// A running command.
pub(crate) struct Running {
    child: Option<Child>,
    lines: std::sync::mpsc::Receiver<String>,
    seen: Vec<String>,
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Running {
    /// Starts a command and reads its lines while it runs.
    pub(crate) fn start(mut command: Command) -> Self {
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary runs");
        let stdout = child.stdout.take().expect("it is piped");
        let (sender, lines) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self { child: Some(child), lines, seen: Vec::new() }
    }

    /// Waits for a line that contains these words and returns it.
    pub(crate) fn until(&mut self, words: &str) -> String {
        loop {
            match self.lines.recv_timeout(PATIENCE) {
                Ok(line) => {
                    self.seen.push(line.clone());
                    if line.contains(words) {
                        return line;
                    }
                }
                Err(error) => {
                    panic!("no line with {words:?} ({error}) in:\n{}", self.seen.join("\n"))
                }
            }
        }
    }

    /// Returns the process ID.
    pub(crate) fn id(&self) -> u32 {
        self.child.as_ref().unwrap().id()
    }

    /// Waits for the command to exit.
    pub(crate) fn end(mut self) -> Ended {
        let output = self.child.take().unwrap().wait_with_output().unwrap();
        self.seen.extend(self.lines.try_iter());
        // The reader ends with the pipe; read its remaining lines now.
        while let Ok(line) = self.lines.recv_timeout(Duration::from_millis(200)) {
            self.seen.push(line);
        }
        Ended {
            code: output.status.code(),
            stdout: self.seen.join("\n"),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}
