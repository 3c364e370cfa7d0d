//! Running kubeadm: its arguments, the meaning of its failures, and the backups it leaves behind.

mod api;
mod backups;
pub(crate) mod certificates;
pub(super) mod credentials;
pub(crate) mod etcd;
pub(crate) mod manifest;
mod mend;
pub(crate) mod preflight;
mod proxy;
mod readers;
mod room;
mod sync;

use std::path::Path;

use refit_kinds::refit::{KubeadmArgs, Role, SINGLE_ETCD_MANIFEST_SECONDS};
use refit_kinds::version::KubernetesVersion;
use serde_json::json;

use super::{
    CONTROL_PLANE, Evidence, Invocation, Program, ProgramError, Site,
    files::atomic::{self, Access},
    work::WorkError,
};

/// Static pod manifests.
pub(super) const MANIFESTS: &str = "/etc/kubernetes/manifests";
/// The kubelet's configuration.
pub(super) const KUBELET_CONFIG: &str = "/var/lib/kubelet/config.yaml";
/// The host-specific part of the kubelet's configuration, written by newer versions of kubeadm.
pub(super) const INSTANCE_CONFIG: &str = "/var/lib/kubelet/instance-config.yaml";
/// The flags of the kubelet that kubeadm writes.
pub(super) const KUBELET_FLAGS: &str = "/var/lib/kubelet/kubeadm-flags.env";
/// The static pods whose manifests kubeadm writes, in the order in which it upgrades them.
const COMPONENTS: [&str; 4] =
    ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"];
/// The first minor version whose `--config` is an UpgradeConfiguration with timeouts.
const CONFIG_MINOR: u64 = 31;
/// The first minor version whose `upgrade apply` can skip phases.
const APPLY_PHASES_MINOR: u64 = 32;

/// One `kubeadm upgrade`.
#[derive(Clone, Debug)]
pub(super) struct Upgrade<'a> {
    /// `apply` for the first control plane, `node` for every other machine. The controller decides
    /// which machine is first, never kubeadm-config (`docs/facts/kubeadm.md#first-control-plane`).
    pub role: Role,
    /// Target version of the upgrade.
    pub version: &'a KubernetesVersion,
    /// Arguments of kubeadm from the plan.
    pub args: &'a KubeadmArgs,
}

/// How etcd runs on this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Etcd {
    /// Not a static pod on this host: a worker, or an external etcd, which its owner upgrades.
    Elsewhere,
    /// A static pod that was started as the only or the first member.
    Alone,
    /// A static pod that joined existing members.
    Stacked,
}

impl Etcd {
    /// Detects how etcd runs on a host.
    pub(super) fn of(site: &Site) -> Self {
        let manifest = site.read(&format!("{MANIFESTS}/etcd.yaml"));
        if manifest.is_empty() {
            return Self::Elsewhere;
        }
        let members = manifest
            .lines()
            .find_map(|line| line.trim().strip_prefix("- --initial-cluster="))
            .map_or(1, |cluster| cluster.split(',').count());
        if members > 1 { Self::Stacked } else { Self::Alone }
    }
}

/// Restores what a power cut has damaged, runs the upgrade, then restarts the static pods of other tools that
/// read renewed certificates. Removes kubeadm's backups of older upgrades.
pub(super) async fn upgrade(
    site: &Site,
    plan: &str,
    upgrade: &Upgrade<'_>,
) -> Result<(), WorkError> {
    mend::damages(site, plan, upgrade.role).await?;
    let call = prepare(site, upgrade)?;
    let certificates = certificates::fingerprint(site);
    api::wait(site, upgrade.role, api::PATIENCE).await;
    let outcome = run(site, &call).await;
    // kubeadm makes a backup as large as etcd at each upgrade and never removes one
    // (`docs/facts/kubeadm.md#backups-of-kubeadm`).
    backups::prune(site, backups::KEPT, outcome.is_ok());
    outcome.map_err(|error| through_proxies(explain(&error), &call.environment))?;
    credentials::forget(site, plan)?;
    // They are not kubeadm's: kubeadm does not run again because one of them does not come back.
    if let Err(error) = certificates::restart_other_readers(site, &certificates).await {
        site.log(&format!("{error}; restart it, so that it reads the renewed certificates"));
    }
    Ok(())
}

/// Runs kubeadm, and syncs what it writes.
async fn run(site: &Site, call: &Invocation) -> Result<String, ProgramError> {
    let outcome = tokio::select! {
        biased;
        outcome = site.run(call) => outcome,
        never = sync::while_kubeadm_writes(site) => match never {},
    };
    sync::all(site).await;
    outcome
}

/// Builds the kubeadm call, and writes its configuration file if it needs one.
pub(super) fn prepare(site: &Site, upgrade: &Upgrade<'_>) -> Result<Invocation, WorkError> {
    check(site, upgrade.args)?;
    let etcd = Etcd::of(site);
    let timeout = timeout(upgrade, etcd);
    let mut call = match upgrade.role {
        Role::FirstControlPlane => site.call(
            Program::Kubeadm,
            // Always with a version: without one kubeadm queries the Internet.
            ["upgrade", "apply", &upgrade.version.to_string(), "--yes"],
        ),
        Role::ControlPlane | Role::Worker => site.call(Program::Kubeadm, ["upgrade", "node"]),
    };
    match timeout {
        Some(seconds) if upgrade.version.minor() >= CONFIG_MINOR => {
            let path = site.state().join("kubeadm-upgrade.yaml");
            let text = configuration(upgrade, etcd, seconds)?;
            atomic::replace(&path, text.as_bytes(), Access::of_mode(0o600))?;
            call.arguments.push(format!("--config={}", path.display()));
        }
        _ => call.arguments.extend(flags(upgrade, etcd)?),
    }
    if upgrade.role != Role::Worker {
        call.environment.extend(proxy::of_manifests(site));
    }
    Ok(call)
}

fn timeout(upgrade: &Upgrade<'_>, etcd: Etcd) -> Option<i32> {
    let asked = upgrade.args.manifest_timeout_seconds;
    asked.or_else(|| {
        (upgrade.role != Role::Worker && etcd == Etcd::Alone)
            .then_some(SINGLE_ETCD_MANIFEST_SECONDS)
    })
}

/// Validates the arguments that reach kubeadm's command line or configuration.
fn check(site: &Site, args: &KubeadmArgs) -> Result<(), WorkError> {
    let word = |text: &String| {
        !text.is_empty()
            && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-/_.".contains(&b))
            && !text.starts_with('-')
    };
    for (field, words) in [
        ("skipPhases", &args.skip_phases),
        ("ignorePreflightErrors", &args.ignore_preflight_errors),
    ] {
        if let Some(bad) = words.iter().find(|text| !word(text)) {
            return Err(WorkError::permanent(format!("invalid name {bad:?} in kubeadm.{field}")));
        }
    }
    if !args.patches.is_empty() && !site.path(&args.patches).is_dir() {
        return Err(WorkError::needs_person(format!(
            "kubeadm.patches is {}, but that directory does not exist on the host; without it \
             local changes of manifests would be lost",
            args.patches
        )));
    }
    Ok(())
}

/// Phases to skip, limited to those that this command of this version supports.
fn skipped(upgrade: &Upgrade<'_>) -> Result<Vec<String>, WorkError> {
    let minor = upgrade.version.minor();
    let apply = upgrade.role == Role::FirstControlPlane;
    if apply && minor < APPLY_PHASES_MINOR && !upgrade.args.skip_phases.is_empty() {
        return Err(WorkError::permanent(format!(
            "kubeadm.skipPhases is set, but `kubeadm upgrade apply` of v1.{minor} cannot skip \
             phases; v1.{APPLY_PHASES_MINOR} and newer can"
        )));
    }
    let known = |phase: &&String| apply || minor >= CONFIG_MINOR || !phase.starts_with("addon");
    Ok(upgrade.args.skip_phases.iter().filter(known).cloned().collect())
}

fn etcd_upgrade(upgrade: &Upgrade<'_>, etcd: Etcd) -> Option<bool> {
    // An external etcd is upgraded by its owner.
    let elsewhere = upgrade.role != Role::Worker && etcd == Etcd::Elsewhere;
    upgrade.args.etcd_upgrade.or(elsewhere.then_some(false))
}

fn flags(upgrade: &Upgrade<'_>, etcd: Etcd) -> Result<Vec<String>, WorkError> {
    let args = upgrade.args;
    let mut flags = Vec::new();
    if let Some(renewal) = args.certificate_renewal {
        flags.push(format!("--certificate-renewal={renewal}"));
    }
    if let Some(etcd) = etcd_upgrade(upgrade, etcd) {
        flags.push(format!("--etcd-upgrade={etcd}"));
    }
    if !args.ignore_preflight_errors.is_empty() {
        let names = args.ignore_preflight_errors.join(",");
        flags.push(format!("--ignore-preflight-errors={names}"));
    }
    if !args.patches.is_empty() {
        flags.push(format!("--patches={}", args.patches));
    }
    let skipped = skipped(upgrade)?;
    if !skipped.is_empty() {
        flags.push(format!("--skip-phases={}", skipped.join(",")));
    }
    Ok(flags)
}

/// The arguments as a configuration file, which kubeadm does not accept together with flags. JSON
/// is valid YAML.
fn configuration(upgrade: &Upgrade<'_>, etcd: Etcd, seconds: i32) -> Result<String, WorkError> {
    let args = upgrade.args;
    let mut part = serde_json::Map::new();
    let mut set = |name: &str, value: serde_json::Value| part.insert(name.to_owned(), value);
    if let Some(renewal) = args.certificate_renewal {
        set("certificateRenewal", json!(renewal));
    }
    if let Some(etcd) = etcd_upgrade(upgrade, etcd) {
        set("etcdUpgrade", json!(etcd));
    }
    if !args.ignore_preflight_errors.is_empty() {
        set("ignorePreflightErrors", json!(args.ignore_preflight_errors));
    }
    if !args.patches.is_empty() {
        set("patches", json!({ "directory": args.patches }));
    }
    let skipped = skipped(upgrade)?;
    if !skipped.is_empty() {
        set("skipPhases", json!(skipped));
    }
    let kind = match upgrade.role {
        Role::FirstControlPlane => "apply",
        Role::ControlPlane | Role::Worker => "node",
    };
    let whole = json!({
        "apiVersion": "kubeadm.k8s.io/v1beta4",
        "kind": "UpgradeConfiguration",
        kind: part,
        "timeouts": { "upgradeManifests": format!("{seconds}s") },
    });
    Ok(format!("{whole:#}\n"))
}

/// Classifies a failure of kubeadm.
pub(super) fn explain(error: &ProgramError) -> WorkError {
    let output = error.output_tail();
    let failed: Vec<&str> = output
        .lines()
        .filter_map(|line| line.trim().strip_prefix("[ERROR "))
        .filter_map(|line| line.split(']').next())
        .collect();
    // Failures that the cluster recovers from: a node that is not ready yet, a Job that did not
    // end.
    let transient =
        |name: &&str| ["ControlPlaneNodesReady", "CreateJob", "ImagePull"].contains(name);
    if !failed.is_empty() && !failed.iter().all(transient) {
        return WorkError::needs_person(format!(
            "kubeadm's preflight checks {} failed; fix what they report, or list them in \
             kubeadm.ignorePreflightErrors: {error}",
            failed.join(", ")
        ));
    }
    if output.contains("is invalid due to these fatal errors") {
        return WorkError::permanent(format!("kubeadm cannot upgrade to that version: {error}"));
    }
    // A static pod whose hash did not change in time may do so on a retry: an upgrade is
    // idempotent.
    WorkError::retriable(error.to_string())
}

/// Adds to a failure the proxies through which kubeadm connected: the API server, from whose manifest they are, may have
/// no need to connect to all that kubeadm does. Their values may contain passwords.
fn through_proxies(mut error: WorkError, environment: &[(String, String)]) -> WorkError {
    let names = environment.iter().map(|(name, _)| name.as_str());
    let names: Vec<&str> = names.filter(|name| proxy::is_variable(name)).collect();
    if !names.is_empty() {
        error.message += &[
            "; kubeadm used ",
            &names.join(", "),
            " of the static pods' manifests: if it could not connect to the control plane or to etcd, add their \
             addresses to NO_PROXY there",
        ]
        .concat();
    }
    error
}

/// Whether every Kubernetes static pod with a manifest on this host has this version.
pub(super) fn static_pods_at(manifests: &Path, version: &KubernetesVersion) -> Evidence {
    for component in CONTROL_PLANE {
        let path = manifests.join(format!("{component}.yaml"));
        let Some(image) = image_of(&path) else {
            // A power cut leaves files empty that were not synced.
            if path.exists() {
                return Evidence::Missing {
                    what: format!("{} specifies no image", path.display()),
                };
            }
            continue;
        };
        if KubernetesVersion::of_image(&image).as_ref() != Some(version) {
            return Evidence::Missing {
                what: format!("{} runs {image}, expected {version}", path.display()),
            };
        }
    }
    Evidence::Done
}

/// IDs of the running containers with this name; empty if none runs.
async fn running(site: &Site, container: &str) -> Result<String, ProgramError> {
    let filter = format!("--name=^{container}$");
    let query = ["ps", "--quiet", "--state=Running", &filter];
    site.ask(Program::Crictl, query).await.map(|ids| ids.trim().to_owned())
}

/// The image in the manifest of a static pod.
pub(super) fn image_of(manifest: &Path) -> Option<String> {
    let text = std::fs::read_to_string(manifest).ok()?;
    let line = text
        .lines()
        .find_map(|line| line.trim().trim_start_matches("- ").strip_prefix("image:"))?;
    Some(line.trim().trim_matches('"').to_owned())
}

#[cfg(test)]
#[path = "kubeadm_tests.rs"]
mod tests;
