//! The `refit` command.

use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use refit_manifests::LoadError;
use refit_runtime::process::{StartError, log_filter};
use tracing_subscriber::{layer::SubscriberExt as _, util::SubscriberInitExt as _};

mod abort;
mod adopt;
mod ask;
mod bundle;
mod client;
mod contract;
#[cfg(feature = "sandbox")]
mod demo;
mod doctor;
mod except;
mod exit;
mod global;
mod install;
mod left;
mod managed;
mod pace;
mod plan;
mod printer;
mod progress;
mod reach;
mod reference;
mod release;
mod renew_certs;
mod retry;
#[cfg(feature = "sandbox")]
mod sandbox;
mod target;
mod upgrade;
mod watch;

use global::GlobalArgs;

/// Upgrades Kubernetes machines in place.
///
/// Refit upgrades fleets that Cluster API manages from version to version without replacing a
/// machine.
#[derive(Debug, Parser)]
#[command(name = "refit", version, propagate_version = true)]
struct Args {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    global: GlobalArgs,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Predict what a change does to the machines.
    Plan(plan::Args),
    /// Upgrade a control plane, a MachineDeployment or a whole cluster.
    Upgrade(upgrade::Args),
    /// Upgrade a whole cluster at a time or in a maintenance window.
    Schedule(managed::ScheduleArgs),
    /// List the upgrades of whole clusters.
    Upgrades(managed::UpgradesArgs),
    /// Show what became of the upgrades of a cluster, step by step.
    History(managed::HistoryArgs),
    /// Stop the upgrade of a whole cluster.
    Cancel(managed::CancelArgs),
    /// Watch updates until they finish.
    Watch(watch::Args),
    /// Abort updates that are in progress.
    Abort(abort::Args),
    /// Retry updates that failed or were aborted.
    Retry(retry::Args),
    /// Take a node that was upgraded by hand as it is.
    Adopt(adopt::Args),
    /// Renew kubeadm's certificates on control plane machines, without an upgrade.
    RenewCerts(renew_certs::Args),
    /// Let no further machine of a group begin.
    Pause(pace::PauseArgs),
    /// Let the machines of a paused or stopped group, or of a stopped UpgradeTask, go on.
    Resume(pace::ResumeArgs),
    /// Let a rollout go on after its first machines.
    Approve(pace::ApproveArgs),
    /// Let a machine not begin until it is released.
    Hold(except::HoldArgs),
    /// Leave a machine out of the present rollout.
    Skip(except::SkipArgs),
    /// Let a machine that is held or skipped begin, or Cluster API go on with an owner.
    Release(except::ReleaseArgs),
    /// Check the installation and suggest fixes.
    Doctor(doctor::Args),
    /// Upgrade a simulated cluster in place and show that every machine was kept.
    #[cfg(feature = "sandbox")]
    Demo(demo::Args),
    /// Print or apply the installation manifests.
    Install(install::Args),
    /// Test a provider against the contract.
    Contract(contract::Args),
    /// Build and verify signed bundles for hosts without internet access.
    Bundle(bundle::Args),
    /// Run a simulated fleet for kubectl and Refit.
    #[cfg(feature = "sandbox")]
    Sandbox(sandbox::Args),
    /// Print shell completions to stdout.
    Completions(reference::Completions),
    /// Generate man pages.
    Man(reference::Man),
}

fn main() -> ExitCode {
    let args = match Args::from_arg_matches(&command(global::program()).get_matches()) {
        Ok(args) => args,
        Err(error) => error.exit(),
    };
    if let Err(error) = init_logs(args.global.verbose) {
        print_error(&error.into());
        return ExitCode::FAILURE;
    }
    refit_runtime::tls::install_provider();
    let global = &args.global;
    let outcome = match &args.command {
        Command::Plan(args) => plan::run(args, global),
        Command::Upgrade(args) => upgrade::run(args, global),
        Command::Schedule(args) => managed::schedule(args, global),
        Command::Upgrades(args) => managed::upgrades(args, global),
        Command::History(args) => managed::history(args, global),
        Command::Cancel(args) => managed::cancel(args, global),
        Command::Watch(args) => watch::run(args, global),
        Command::Abort(args) => abort::run(args, global),
        Command::Retry(args) => retry::run(args, global),
        Command::Adopt(args) => adopt::run(args, global),
        Command::RenewCerts(args) => renew_certs::run(args, global),
        Command::Pause(args) => pace::pause(args, global),
        Command::Resume(args) => pace::resume(args, global),
        Command::Approve(args) => pace::approve(args, global),
        Command::Hold(args) => except::hold(args, global),
        Command::Skip(args) => except::skip(args, global),
        Command::Release(args) => except::release(args, global),
        Command::Doctor(args) => doctor::run(args, global),
        #[cfg(feature = "sandbox")]
        Command::Demo(args) => demo::run(args, global),
        Command::Install(args) => install::run(args, global),
        Command::Contract(args) => contract::run(args, global),
        Command::Bundle(args) => bundle::run(args, global),
        #[cfg(feature = "sandbox")]
        Command::Sandbox(args) => sandbox::run(args, global),
        Command::Completions(args) => reference::completions(args),
        Command::Man(args) => reference::man(args, global),
    };
    match outcome {
        Ok(code) => code,
        Err(error) if exit::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            print_error(&error);
            exit::code_of(&error)
        }
    }
}

/// Builds the command line, as shown under this program name.
fn command(program: &str) -> clap::Command {
    let command = Args::command();
    if program == global::PROGRAM {
        return command;
    }
    let rename = move |command: clap::Command| renamed(command, program);
    command.bin_name(program).mut_subcommands(rename)
}

/// Renames the program in the examples of a command and its subcommands.
fn renamed(command: clap::Command, program: &str) -> clap::Command {
    let command = match command.get_after_help() {
        Some(text) => {
            let text = text.to_string().replace("\n  refit ", &format!("\n  {program} "));
            command.after_help(text)
        }
        None => command,
    };
    command.mut_subcommands(|sub| renamed(sub, program))
}

/// Prints an error. Problems in manifests get one line each, as compilers print them.
#[expect(clippy::print_stderr, reason = "the final error message of the program")]
fn print_error(error: &anyhow::Error) {
    if let Some(LoadError::Invalid(problems)) = error.downcast_ref() {
        for problem in problems {
            eprintln!("{problem}");
        }
        let count = problems.len();
        let noun = if count == 1 { "problem" } else { "problems" };
        eprintln!("error: {count} {noun} in the manifests; nothing was written");
    } else {
        eprintln!("error: {error:#}");
    }
}

/// Logs go to stderr, and only on request: progress has its own output.
fn init_logs(verbose: u8) -> Result<(), StartError> {
    let level = match verbose {
        0 => "off",
        1 => "info",
        _ => "debug,hyper=info,hyper_util=info,rustls=info,tower=info,h2=info",
    };
    let filter = std::env::var("REFIT_LOG").unwrap_or_else(|_| level.to_owned());
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).without_time();
    tracing_subscriber::registry().with(log_filter(&filter)?).with(lines).init();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn called_as_a_plugin_of_kubectl_usage_and_examples_say_so() {
        let mut command = command(global::PLUGIN);
        command.build();
        let plan = command.find_subcommand_mut("plan").unwrap();
        let help = plan.render_help().to_string();
        assert!(help.contains("Usage: kubectl refit plan"), "{help}");
        assert!(help.contains("\n  kubectl refit plan cluster/"), "{help}");
    }
}
