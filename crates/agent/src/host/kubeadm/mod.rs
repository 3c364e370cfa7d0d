//! Running kubeadm: with which arguments, what its failures mean, what it leaves behind.

mod backups;
pub(crate) mod certificates;
pub(crate) mod preflight;

use std::path::Path;

use refit_kinds::refit::{KubeadmArgs, Role};
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
/// Where newer versions of kubeadm keep what of it is this host's own.
pub(super) const INSTANCE_CONFIG: &str = "/var/lib/kubelet/instance-config.yaml";
/// How long kubeadm waits for each static pod where etcd has one member: the wait goes through the
/// API server, which is down meanwhile (kubernetes/kubeadm#3297).
const SINGLE_ETCD_TIMEOUT_SECONDS: i32 = 900;
/// The first minor whose `--config` is an UpgradeConfiguration with timeouts.
const CONFIG_MINOR: u64 = 31;
/// The first minor whose `upgrade apply` has phases to skip.
const APPLY_PHASES_MINOR: u64 = 32;

/// One `kubeadm upgrade`.
#[derive(Clone, Debug)]
pub(super) struct Upgrade<'a> {
    /// `apply` for the first control plane, `node` for every other machine; which is first is
    /// decided by the controller and never by kubeadm-config (`spec/node.md 2.3`).
    pub role: Role,
    /// The target.
    pub version: &'a KubernetesVersion,
    /// How kubeadm is run.
    pub args: &'a KubeadmArgs,
}

/// How etcd runs on this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Etcd {
    /// Not as a static pod here: a worker, or an external etcd, which its owner upgrades.
    Elsewhere,
    /// As a static pod that was started as the only member, or as the first.
    Alone,
    /// As a static pod that joined others.
    Stacked,
}

impl Etcd {
    /// How etcd runs on a host.
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

/// Runs the upgrade, then lets go of what kubeadm has kept of older ones.
pub(super) async fn upgrade(site: &Site, upgrade: &Upgrade<'_>) -> Result<(), WorkError> {
    let call = prepare(site, upgrade)?;
    let said = site.run(&call).await;
    // Kept of each upgrade, cleaned up by nobody, and as large as etcd (`spec/node.md 2.4`).
    backups::prune(site, backups::KEPT);
    match said {
        Ok(_) => Ok(()),
        Err(error) => Err(explain(&error)),
    }
}

/// The call of kubeadm; writes its configuration file where it needs one.
pub(super) fn prepare(site: &Site, upgrade: &Upgrade<'_>) -> Result<Invocation, WorkError> {
    check(site, upgrade.args)?;
    let etcd = Etcd::of(site);
    let timeout = timeout(upgrade, etcd);
    let mut call = match upgrade.role {
        Role::FirstControlPlane => site.call(
            Program::Kubeadm,
            // Always a version: without one kubeadm asks the Internet.
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
    Ok(call)
}

fn timeout(upgrade: &Upgrade<'_>, etcd: Etcd) -> Option<i32> {
    let asked = upgrade.args.manifest_timeout_seconds;
    asked.or_else(|| {
        (upgrade.role != Role::Worker && etcd == Etcd::Alone).then_some(SINGLE_ETCD_TIMEOUT_SECONDS)
    })
}

/// What goes onto a command line of kubeadm or into its configuration, word by word.
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
            return Err(WorkError::last(format!(
                "kubeadm.{field} holds {bad:?}, which is no name"
            )));
        }
    }
    if !args.patches.is_empty() && !site.path(&args.patches).is_dir() {
        return Err(WorkError::needs_person(format!(
            "kubeadm.patches is {}, but the host has no such folder: without it local changes of \
             manifests would be lost",
            args.patches
        )));
    }
    Ok(())
}

/// Phases to leave out, as this command of this version knows them.
fn skipped(upgrade: &Upgrade<'_>) -> Result<Vec<String>, WorkError> {
    let minor = upgrade.version.minor();
    let apply = upgrade.role == Role::FirstControlPlane;
    if apply && minor < APPLY_PHASES_MINOR && !upgrade.args.skip_phases.is_empty() {
        return Err(WorkError::last(format!(
            "kubeadm.skipPhases is set, but `kubeadm upgrade apply` of v1.{minor} skips none: it \
             can from v1.{APPLY_PHASES_MINOR} on"
        )));
    }
    let known = |phase: &&String| apply || minor >= CONFIG_MINOR || !phase.starts_with("addon");
    Ok(upgrade.args.skip_phases.iter().filter(known).cloned().collect())
}

fn etcd_upgrade(upgrade: &Upgrade<'_>, etcd: Etcd) -> Option<bool> {
    // An external etcd is its owner's.
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

/// The same as a configuration, which kubeadm does not take together with flags; JSON is YAML.
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

/// What a failure of kubeadm means.
pub(super) fn explain(error: &ProgramError) -> WorkError {
    let said = error.said();
    let failed: Vec<&str> = said
        .lines()
        .filter_map(|line| line.trim().strip_prefix("[ERROR "))
        .filter_map(|line| line.split(']').next())
        .collect();
    // What the cluster gets over by itself: a node that is not ready yet, a Job that did not end.
    let passing = |name: &&str| ["ControlPlaneNodesReady", "CreateJob", "ImagePull"].contains(name);
    if !failed.is_empty() && !failed.iter().all(passing) {
        return WorkError::needs_person(format!(
            "kubeadm refuses by its checks {}; mend what they say, or name them in \
             kubeadm.ignorePreflightErrors: {error}",
            failed.join(", ")
        ));
    }
    if said.contains("is invalid due to these fatal errors") {
        return WorkError::last(format!("kubeadm does not go to that version: {error}"));
    }
    // A static pod whose hash did not change in time may do so in the next try: each is idempotent.
    WorkError::retriable(error.to_string())
}

/// Whether every static pod of Kubernetes that has a manifest here is of this version.
pub(super) fn static_pods_at(manifests: &Path, version: &KubernetesVersion) -> Evidence {
    for component in CONTROL_PLANE {
        let path = manifests.join(format!("{component}.yaml"));
        let Some(image) = image_of(&path) else {
            // A power cut leaves files empty that nobody made durable.
            if path.exists() {
                return Evidence::Missing { what: format!("{} names no image", path.display()) };
            }
            continue;
        };
        if KubernetesVersion::of_image(&image).as_ref() != Some(version) {
            return Evidence::Missing {
                what: format!("{} is of {image}, not of {version}", path.display()),
            };
        }
    }
    Evidence::Done
}

/// The image of a static pod, as its manifest has it.
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
