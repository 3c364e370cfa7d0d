//! `refit sandbox --platform openshift`: a cluster of OpenShift that refit-managed upgrades.

use std::process::ExitCode;

use jiff::Timestamp;
use lab_world::sandbox::{
    Ports,
    openshift::{Change, OpenShift, OpenShiftOptions, Phase, UPGRADES},
};

use super::{STOPPED, print_hints, print_progress, quoted, temporary_directory};
use crate::{exit::interrupted, global::GlobalArgs, printer::Printer};

/// Serves a cluster until Ctrl-C or SIGTERM, and shows its upgrades.
pub(super) async fn stay_up(
    global: &GlobalArgs,
    printer: Printer,
    ports: Ports,
    speed: u32,
) -> anyhow::Result<ExitCode> {
    let ended = interrupted();
    tokio::pin!(ended);
    // After the first poll, signals are handled: even an early one leaves nothing behind.
    if futures::poll!(&mut ended).is_ready() {
        return Ok(ExitCode::SUCCESS);
    }
    let directory = temporary_directory()?;
    print_progress(global, "Starting a cluster of OpenShift in simulated time ...");
    let options = OpenShiftOptions { directory: directory.path().to_owned(), speed };
    let shown = async {
        let mut openshift = OpenShift::start(ports, options).await?;
        print_hints(printer, openshift.kubeconfig(), &hints(&openshift, speed))?;
        loop {
            let (at, change) = openshift.change().await?;
            for line in lines(&change, &curl(&openshift)) {
                print_progress(global, &format!("{}  {line}", clock(at)));
            }
        }
    };
    tokio::select! {
        biased;
        _ = &mut ended => {}
        failed = shown => return failed,
    }
    print_progress(global, STOPPED);
    Ok(ExitCode::SUCCESS)
}

/// Suggests the next commands.
fn hints(openshift: &OpenShift, speed: u32) -> Vec<String> {
    let [first, next] = UPGRADES;
    let ocm = curl(openshift);
    let at = clock(openshift.next_run());
    vec![
        String::new(),
        format!("OCM has scheduled an upgrade to {first} at {at} on the clock of the cluster."),
        String::new(),
        "Watch it, in another terminal:".to_owned(),
        format!("  export KUBECONFIG={}", quoted(openshift.kubeconfig())),
        "  kubectl get upgradeconfigs -n openshift-managed-upgrade-operator -w".to_owned(),
        "  kubectl get clusterversion,clusteroperators,machineconfigpools,nodes".to_owned(),
        "  kubectl get machines -n openshift-machine-api -w".to_owned(),
        String::new(),
        "Show the upgrade policy in OCM, and schedule the next one once it is completed:"
            .to_owned(),
        format!("  {ocm}"),
        format!("  {ocm} -d '{{\"version\": \"{next}\"}}'"),
        String::new(),
        format!(
            "Everything in the cluster runs {speed} times as fast as in real time (--speed), on a \
             clock that started a day ago. Press Ctrl-C to stop."
        ),
    ]
}

/// The command that calls OCM.
fn curl(openshift: &OpenShift) -> String {
    format!("curl -K {}", quoted(openshift.ocm()))
}

/// A time of the cluster.
fn clock(at: Timestamp) -> String {
    at.strftime("%H:%M:%SZ").to_string()
}

/// Describes a change.
fn lines(change: &Change, curl: &str) -> Vec<String> {
    match change {
        Change::Policy { id, policy } => {
            vec![format!(
                "OCM: {id} to {} is {}: {}",
                policy.version, policy.state, policy.description
            )]
        }
        Change::Step { step, waits: None } => vec![format!("  {step}: done")],
        Change::Step { step, waits: Some(why) } if why.starts_with(step) => {
            vec![format!("  {why}")]
        }
        Change::Step { step, waits: Some(why) } => vec![format!("  {step}: {why}")],
        Change::Phase { version, phase: Phase::Upgraded } => {
            let mut lines = vec![format!("Completed: the cluster runs {version}.")];
            let mut rest = UPGRADES.iter().skip_while(|known| *known != version);
            if let Some(next) = rest.nth(1) {
                lines.push(format!("To upgrade again: {curl} -d '{{\"version\": \"{next}\"}}'"));
            }
            lines
        }
        Change::Phase { version, phase } => {
            vec![format!("UpgradeConfig of {version}: {phase}")]
        }
    }
}
