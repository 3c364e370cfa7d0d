//! Shell commands of a plan.
//!
//! The end of a unit's output is in the report of its step, and so in the cluster. What commands print stays on the
//! host: in a file of the plan's snapshot, for root only.

use std::{io::Write as _, path::Path};

use refit_kinds::refit::CommandArgs;

use super::{Program, ProgramError, Site, program::open_log, snapshot, work::WorkError};

/// Name of the file with the output of a plan's commands.
const OUTPUT: &str = "commands.log";

/// Runs the commands one after another, until one fails.
pub(super) async fn run(site: &Site, plan: &str, args: &CommandArgs) -> Result<(), WorkError> {
    let output = snapshot::make_directory(site, plan)?.join(OUTPUT);
    for (at, command) in args.commands.iter().enumerate() {
        site.log(&format!("running commands[{at}]"));
        open_log(&output)
            .and_then(|mut log| writeln!(log, "== commands[{at}]"))
            .map_err(|error| WorkError::file(&output, &error))?;
        let call = site.call(Program::Sh, ["-c", command]);
        call.run_into(&output).await.map_err(|error| failure(at, &error, &output))?;
    }
    Ok(())
}

/// A failed command. Neither its text nor its output is in the message.
fn failure(at: usize, error: &ProgramError, output: &Path) -> WorkError {
    let how = match error {
        ProgramError::NotRun { .. } => "could not be run".to_owned(),
        ProgramError::Failed { code: Some(code), .. } => format!("failed with exit code {code}"),
        ProgramError::Failed { code: None, .. } => "was ended by a signal".to_owned(),
    };
    WorkError::retriable(format!(
        "commands[{at}] {how}, and the commands after it did not run; see the end of {} on the host, then correct the \
         command or what it needs",
        output.display()
    ))
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _};

    use super::*;
    use crate::host::scripted::ScriptedHost;

    fn args(commands: &[&str]) -> CommandArgs {
        CommandArgs { commands: commands.iter().map(|&text| text.to_owned()).collect() }
    }

    #[tokio::test]
    async fn commands_run_in_order_until_one_fails_and_their_output_stays_on_the_host() {
        let host = ScriptedHost::with_directories(&["/etc"]);
        let made = host.directory.path().join("made").display().to_string();
        let first = format!("echo hunter2; echo first >> {made}");
        let third = format!("echo third >> {made}");
        let broken = args(&[&first, "echo hunter3 >&2; exit 3", &third]);
        let error = run(&host.site, "p", &broken).await.unwrap_err();
        let output = host.site.snapshot("p").join(OUTPUT);
        let start = "commands[1] failed with exit code 3, and the commands after it did not run";
        assert!(error.message.starts_with(start), "{error}");
        assert!(error.message.contains(&output.display().to_string()), "{error}");
        assert_eq!(fs::read_to_string(&made).unwrap(), "first\n");
        for secret in ["hunter2", "hunter3"] {
            assert!(!error.message.contains(secret) && !host.log().contains(secret), "{error}");
            assert!(fs::read_to_string(&output).unwrap().contains(secret));
        }
        assert_eq!(fs::metadata(&output).unwrap().permissions().mode() & 0o777, 0o600);
        // The next attempt begins with the first command.
        run(&host.site, "p", &args(&[&first, &third])).await.unwrap();
        assert_eq!(fs::read_to_string(&made).unwrap(), "first\nfirst\nthird\n");
    }

    #[tokio::test]
    async fn a_command_that_a_signal_ends_or_that_cannot_run_has_failed() {
        let mut host = ScriptedHost::with_directories(&["/etc"]);
        let error = run(&host.site, "p", &args(&["kill -9 $$"])).await.unwrap_err();
        assert!(error.message.starts_with("commands[0] was ended by a signal"), "{error}");
        host.without(Program::Sh);
        let error = run(&host.site, "p", &args(&["echo hunter2"])).await.unwrap_err();
        assert!(error.message.starts_with("commands[0] could not be run"), "{error}");
        assert!(!error.message.contains("hunter2"), "{error}");
    }
}
