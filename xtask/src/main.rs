//! Project tasks: `cargo xtask <task>`. The result is the last line on stdout, progress goes to
//! stderr.

use std::{path::PathBuf, process::ExitCode};

use clap::{Parser, Subcommand};

mod calls;
mod cargo;
mod crds;
mod docs;
mod go;
mod goldens;
mod hosts;
mod hosts_build;
mod kubectl;
mod package;
mod print;
mod simulate;
mod sweep;
mod testbed;
mod writes;
mod zig;

/// A sweep runs thousands of short simulations: this allocator saves a fifth of the time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Run the project's code generation, builds and long tests")]
struct Args {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Write the CustomResourceDefinitions of refit.dev to deploy/crds/, and UpgradeConfig's to deploy/openshift/crds/.
    Crds {
        /// Only check whether they are up to date.
        #[arg(long)]
        check: bool,
    },
    /// Replay upstream's rollout logs; the last line is `N goldens, F failed`.
    Goldens(goldens::GoldensArgs),
    /// Build the kubectl of tools/kubectl into the cache and print its path.
    Kubectl,
    /// Write docs/cli.md from the command line's own definition.
    Docs {
        /// Only check whether it is up to date.
        #[arg(long)]
        check: bool,
    },
    /// Build and test hosts with real systemd and kubeadm.
    #[command(subcommand)]
    Hosts(HostsTask),
    /// Run the test bed of a real kube-apiserver and real Cluster API: lab/testbed/README.md.
    #[command(subcommand)]
    Testbed(testbed::TestbedTask),
    /// Build the agent as .deb and .rpm and print their paths.
    Package(package::PackageArgs),
    /// Break the world around Refit in seeded runs and judge what happens; the last line is
    /// `N seeds, F failures`.
    Simulate(simulate::SimulateArgs),
    /// Kill every process at every effect of a demo run and check that the final state is the same.
    Sweep(sweep::SweepArgs),
    /// Count the writes of Refit's processes in the upgrade of a simulated fleet; the last line is
    /// `N machines, W writes per machine, expected below 30`.
    Writes(writes::WritesArgs),
    /// Count the API calls of the controller in an upgrade by annotation of one owner: each Machine must cost the same,
    /// whatever the size of the owner. The last line is `C calls per Machine of N, C per Machine of M`.
    Calls(calls::CallsArgs),
}

#[derive(Subcommand)]
enum HostsTask {
    /// Build missing kubeadm, kubelet and other Kubernetes programs into the cache and print the
    /// directory for `REFIT_K8S_BIN`.
    Build(hosts_build::HostsBuildArgs),
    /// Boot hosts and upgrade them with the real agent: the whole transaction, power cuts.
    Test(hosts::HostsTestArgs),
}

fn main() -> ExitCode {
    let outcome = match Args::parse().task {
        Task::Crds { check } => crds::run(&root(), check),
        Task::Goldens(args) => goldens::run(&root(), &args),
        Task::Kubectl => kubectl::run(&root()),
        Task::Docs { check } => docs::run(&root(), check),
        Task::Hosts(HostsTask::Build(args)) => hosts_build::run(&root(), &args),
        Task::Hosts(HostsTask::Test(args)) => hosts::run(&root(), &args),
        Task::Testbed(task) => testbed::run(&root(), &task),
        Task::Package(args) => package::run(&root(), &args),
        Task::Simulate(args) => simulate::run(&root(), &args),
        Task::Sweep(args) => sweep::run(&root(), &args),
        Task::Writes(args) => writes::run(&root(), &args),
        Task::Calls(args) => calls::run(&root(), &args),
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            #[expect(clippy::print_stderr, reason = "the program prints its final error")]
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
