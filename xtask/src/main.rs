//! Project tasks: `cargo xtask <task>`. The result is the last line on stdout, progress goes to
//! stderr.

use std::{path::PathBuf, process::ExitCode};

use clap::{Parser, Subcommand};

mod cargo;
mod crds;
mod docs;
mod go;
mod goldens;
mod hosts;
mod hosts_build;
mod kubectl;
mod package;
mod sweep;
mod testbed;

/// A sweep is thousands of short lives of the same world: a fifth of it is this allocator's gain.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// What can be done.
#[derive(Parser)]
#[command(name = "cargo xtask", about = "Generates what is generated and runs what takes long")]
struct Args {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Writes the CustomResourceDefinitions of refit.dev to deploy/crds/.
    Crds {
        /// Only says whether they are up to date.
        #[arg(long)]
        check: bool,
    },
    /// Replays upstream's rollout logs; the last line is `N goldens, F failed`.
    Goldens(goldens::GoldensArgs),
    /// Builds the kubectl of tools/kubectl into the cache and prints its path.
    Kubectl,
    /// Writes docs/cli.md from the command line's own definition.
    Docs {
        /// Only says whether it is up to date.
        #[arg(long)]
        check: bool,
    },
    /// Hosts with real systemd and kubeadm, for tests.
    #[command(subcommand)]
    Hosts(HostsTask),
    /// The test bed of a real kube-apiserver and real Cluster API: lab/testbed/README.md.
    #[command(subcommand)]
    Testbed(testbed::TestbedTask),
    /// Builds the agent as .deb and .rpm and prints where they are.
    Package(package::PackageArgs),
    /// Kills every process at every effect of a demo run and looks whether the end is the same.
    Sweep(sweep::SweepArgs),
}

/// What can be done for real hosts.
#[derive(Subcommand)]
enum HostsTask {
    /// Builds kubeadm, kubelet and the rest of Kubernetes that are not in the cache yet and prints
    /// the folder for `REFIT_K8S_BIN`.
    Build(hosts_build::HostsBuildArgs),
    /// Boots hosts and upgrades them with the real agent: the whole transaction, power cuts.
    Test(hosts::HostsTestArgs),
}

fn main() -> ExitCode {
    let outcome = match Args::parse().task {
        Task::Crds { check } => crds::run(&root().join("deploy/crds"), check),
        Task::Goldens(args) => goldens::run(&root(), &args),
        Task::Kubectl => kubectl::run(&root()),
        Task::Docs { check } => docs::run(&root(), check),
        Task::Hosts(HostsTask::Build(args)) => hosts_build::run(&root(), &args),
        Task::Hosts(HostsTask::Test(args)) => hosts::run(&root(), &args),
        Task::Testbed(task) => testbed::run(&root(), &task),
        Task::Package(args) => package::run(&root(), &args),
        Task::Sweep(args) => sweep::run(&root(), &args),
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            #[expect(clippy::print_stderr, reason = "the program's own last word")]
            {
                eprintln!("error: {error:#}");
            }
            ExitCode::FAILURE
        }
    }
}

/// The project's root.
fn root() -> PathBuf {
    let manifest = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().map(PathBuf::from).unwrap_or(manifest)
}
