//! Checks on the host whether the work of a command is done, independent of the result of its unit.

use std::{collections::BTreeMap, fs};

use refit_kinds::{
    refit::{HostStep, KubeletArgs, PackageArgs, StepEvidence},
    version::KubernetesVersion,
};

use super::{
    Command, Evidence, HostError, Job, Since, Site, Undo, boot,
    carry_out::{PackageSet, extra_packages, kubernetes_packages, manager, mark_path},
    files::{self, keep},
    kubeadm::{MANIFESTS, etcd, static_pods_at},
    kubelet,
    ntp::{self, Others},
    packages,
    trident::{OsImage, TridentCli},
    work::WorkError,
};

/// Changes at each boot.
pub(super) const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Looks for the evidence that the step table requires: the completion mark of the command, the
/// state of the host, or both. `running` returns the version of the running kubelet.
pub(crate) async fn look(
    site: &Site,
    job: &Job,
    since: &Since,
    running: impl AsyncFnOnce() -> Result<Option<KubernetesVersion>, HostError>,
) -> Result<Evidence, HostError> {
    let proof = job.command.rules().evidence;
    if proof != StepEvidence::Host && !mark_path(site, &job.unit).exists() {
        let what = format!("{} did not run to completion", job.command.name());
        return Ok(Evidence::Missing { what });
    }
    if proof == StepEvidence::Mark {
        return Ok(Evidence::Done);
    }
    let found = match &job.command {
        Command::Step(HostStep::Verify { version }) => {
            return Ok(runs(site, running().await?, version.as_ref()));
        }
        Command::Step(HostStep::Reboot {}) => return booted(since),
        Command::Step(HostStep::RebootIfRequired {}) => {
            let is_marked = mark_path(site, &job.unit).exists();
            return boot::shows(site, &job.plan, is_marked, since);
        }
        Command::Step(step) => step_shows(site, &job.plan, step).await,
        Command::Undo(undo) => undo_shows(site, &job.plan, undo).await,
    };
    Ok(found.unwrap_or_else(|error| Evidence::Missing { what: error.message }))
}

/// Evidence of a step in the state of the host.
async fn step_shows(site: &Site, plan: &str, step: &HostStep) -> Result<Evidence, WorkError> {
    let trident = TridentCli::new(site);
    let os = |image| OsImage::new(site, &trident, plan, image);
    match step {
        HostStep::OsPackagesInstall(_) => packages::os::installed(site, plan).await,
        HostStep::KubeadmInstall { version, packages }
        | HostStep::KubectlInstall { version, packages } => {
            installed(site, &kubernetes_packages(step, version, packages)?).await
        }
        HostStep::KubeletInstall { version, packages, kubelet } => {
            match installed(site, &kubernetes_packages(step, version, packages)?).await? {
                Evidence::Done => Ok(flags_set(site, kubelet)),
                missing @ (Evidence::Missing { .. } | Evidence::Refused { .. }) => Ok(missing),
            }
        }
        HostStep::ContainerRuntimeInstall { packages } => {
            installed(site, &PackageSet { from: packages, wants: extra_packages(packages)? }).await
        }
        HostStep::KubeadmUpgrade { version, .. } => {
            Ok(static_pods_at(&site.path(MANIFESTS), version))
        }
        HostStep::Files(files) => Ok(files::check(site, files)),
        HostStep::EtcdUpgrade(args) => Ok(etcd::check(site, args)),
        HostStep::KeysRevoke(keys) => Ok(files::revoke::check(site, keys)),
        HostStep::Ntp(ntp) => Ok(ntp::check(site, ntp, Others::Kept)),
        HostStep::NtpReplace(ntp) => Ok(ntp::check(site, ntp, Others::Disabled)),
        HostStep::KubeletFlags(kubelet) => Ok(flags_set(site, kubelet)),
        HostStep::OsImageStage { os_image, .. } => os(os_image).is_staged().await,
        HostStep::OsImageFinalize { os_image } => os(os_image).is_finalized().await,
        HostStep::OsImageCommit { os_image } => os(os_image).is_committed().await,
        // Proven by their marks, or checked by the caller.
        HostStep::Preflight { .. }
        | HostStep::Stage { .. }
        | HostStep::OsPackagesStage(_)
        | HostStep::RebootIfRequired {}
        | HostStep::ImagePreload { .. }
        | HostStep::Snapshot {}
        | HostStep::CertificatesRenew(_)
        | HostStep::UnitActions(_)
        | HostStep::Commands(_)
        | HostStep::KubeletRestart {}
        | HostStep::Reboot {}
        | HostStep::Verify { .. } => Ok(Evidence::Done),
    }
}

/// Evidence of a rollback in the state of the host.
async fn undo_shows(site: &Site, plan: &str, undo: &Undo) -> Result<Evidence, WorkError> {
    match undo {
        Undo::Packages { packages } => restored(site, packages).await,
        Undo::OsPackages => packages::os::is_restored(site, plan).await,
        Undo::Files { step } => keep::is_back(site, plan, step).map(|other| {
            let path = other.clone().unwrap_or_default();
            Evidence::from_check(other.is_none(), || format!("{path} was not restored"))
        }),
        Undo::OsImage { os_image } => {
            OsImage::new(site, &TridentCli::new(site), plan, os_image).is_undone().await
        }
        // Proven by their marks.
        Undo::Configuration | Undo::KubeletRestart | Undo::Units(_) => Ok(Evidence::Done),
    }
}

/// Whether the host has booted since a step started.
pub(super) fn booted(since: &Since) -> Result<Evidence, HostError> {
    let now = fs::read_to_string(BOOT_ID)
        .map_err(|source| HostError::File { path: BOOT_ID.to_owned(), source })?;
    Ok(Evidence::from_check(now.trim() != since.boot_id, || "the host has not rebooted".to_owned()))
}

/// Whether the new version is running; without a version, whether any kubelet is.
fn runs(
    site: &Site,
    running: Option<KubernetesVersion>,
    wanted: Option<&KubernetesVersion>,
) -> Evidence {
    match (running, wanted) {
        (None, None) => Evidence::Missing { what: "no kubelet is running".to_owned() },
        (Some(_), None) => Evidence::Done,
        (Some(running), Some(wanted)) if running == *wanted => {
            static_pods_at(&site.path(MANIFESTS), wanted)
        }
        (running, Some(wanted)) => {
            let running = running.map_or_else(String::new, |version| version.to_string());
            let what = format!("the kubelet runs {running:?}, expected {wanted}");
            Evidence::Missing { what }
        }
    }
}

async fn installed(site: &Site, wanted: &PackageSet<'_>) -> Result<Evidence, WorkError> {
    manager(site, wanted.from)?.check(&wanted.wants).await
}

fn flags_set(site: &Site, kubelet: &KubeletArgs) -> Evidence {
    Evidence::from_check(kubelet::has_flags(site, kubelet), || {
        "the kubelet's flags differ from the plan".to_owned()
    })
}

async fn restored(site: &Site, packages: &BTreeMap<String, String>) -> Result<Evidence, WorkError> {
    let manager = manager(site, &PackageArgs::default())?;
    Ok(packages::compare_restored(&manager.installed().await?, packages))
}
