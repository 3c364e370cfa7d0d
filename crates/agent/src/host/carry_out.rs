//! Carrying out a command on a real host. This code runs inside the unit.
//!
//! Each command checks the current state, does what is missing, and checks again. A second run
//! after a kill or a power cut therefore continues where the first one ended.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use refit_bundle::fetch::Proxies;
use refit_kinds::{
    refit::{HostStep, PackageArgs, PlanId},
    version::KubernetesVersion,
};
use serde::{Deserialize, Serialize};

use super::{
    Command, Evidence, Program, Site, Undo, boot, bundle, commands,
    files::{
        self,
        atomic::{self, Access},
        keep,
        secret::SecretSource,
    },
    images,
    kubeadm::{self, preflight},
    kubelet, kubelet_fetched, kubelet_probe,
    ntp::{self, Others},
    packages::{self, KUBERNETES, Order, Packages, Want},
    reboot::{self, Patience},
    running, runtime, snapshot,
    trident::{OsImage, TridentCli},
    units,
    work::WorkError,
};
use crate::policy::OwnPaths;

/// A job, in the form in which the unit reads it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobFile {
    /// The plan.
    pub plan: PlanId,
    /// Name of the unit.
    pub unit: String,
    /// Id of the step.
    pub step: String,
    /// The command to carry out.
    pub command: Command,
    /// The agent's own directory.
    pub state: PathBuf,
    /// Kubeconfig with the identity with which the host reads its secrets.
    #[serde(default)]
    pub kubeconfig: PathBuf,
    /// The namespace of its secrets.
    #[serde(default)]
    pub namespace: String,
    /// What no plan may write.
    #[serde(default)]
    pub own: OwnPaths,
    /// The proxy variables of the agent's environment: a unit does not have it, and other users may read the environment
    /// of a unit.
    #[serde(default)]
    pub proxies: BTreeMap<String, String>,
}

impl JobFile {
    /// Reads a job file.
    pub fn load(path: &Path) -> Result<Self, WorkError> {
        let text = fs::read(path).map_err(|error| WorkError::file(path, &error))?;
        serde_json::from_slice(&text).map_err(|error| {
            WorkError::retriable(format!("invalid job file {}: {error}", path.display()))
        })
    }

    /// The host as this job sees it.
    pub fn site(&self) -> Site {
        let site = Site::new(&self.state);
        let log = site.units().join(format!("{}.log", self.unit));
        let variables = self.proxies.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        site.logging_to(log).through(Proxies::of(variables))
    }

    /// Writes the job file atomically: a reader finds all of it or nothing.
    pub fn save(&self, path: &Path) -> Result<(), WorkError> {
        let text = serde_json::to_vec(self).expect("plain data serialises to JSON");
        atomic::replace(path, &text, Access::of_mode(0o600)).map(|_| ())
    }
}

/// The mark that a unit leaves when it succeeds. It outlives a reboot; the unit does not.
pub(crate) fn mark_path(site: &Site, unit: &str) -> PathBuf {
    site.units().join(format!("{unit}.done"))
}

/// Carries out a job and leaves its mark.
pub async fn carry_out(
    site: &Site,
    job: &JobFile,
    secrets: &dyn SecretSource,
) -> Result<(), WorkError> {
    // Boxed, because the caller's future would otherwise hold the state of every step.
    let outcome = Box::pin(perform(site, job, secrets)).await;
    // What a program that failed has written must survive a power cut, too: it may have rolled back.
    sync_kubernetes(site);
    outcome?;
    // Every plan stores something in its snapshot directory, even one without a snapshot step.
    keep::prune(site, &job.plan, snapshot::KEPT);
    atomic::replace(&mark_path(site, &job.unit), b"done\n", Access::of_mode(0o600))?;
    Ok(())
}

/// Syncs the files that other programs wrote: kubeadm syncs nothing, and a manifest that a power
/// cut left empty would look complete.
fn sync_kubernetes(site: &Site) {
    for directory in ["/etc/kubernetes", "/var/lib/kubelet"] {
        let synced = std::fs::File::open(site.path(directory))
            .and_then(|directory| Ok(rustix::fs::syncfs(&directory)?));
        if let Err(error) = synced {
            tracing::debug!(%error, directory, "directory not synced");
        }
    }
}

async fn perform(site: &Site, job: &JobFile, secrets: &dyn SecretSource) -> Result<(), WorkError> {
    match &job.command {
        Command::Step(step) => run_step(site, job, step, secrets).await,
        Command::Undo(undo) => roll_back(site, job, undo).await,
    }
}

async fn run_step(
    site: &Site,
    job: &JobFile,
    step: &HostStep,
    secrets: &dyn SecretSource,
) -> Result<(), WorkError> {
    let plan = &job.plan;
    match step {
        HostStep::Preflight { version } => preflight::check(site, version.as_ref()).await,
        HostStep::Stage { version, packages, images, bundle } => {
            if let Some(bundle) = bundle {
                bundle::stage(site, plan, bundle, Some(version)).await?;
            }
            let from = bundle::packages(site, plan, packages)?;
            let wants = kubernetes(&KUBERNETES, version, &from)?;
            manager(site, &from)?.fetch(&order(plan, &from, wants)).await?;
            kubelet_fetched::stage(site, plan, version, &from).await;
            match images {
                Some(images) => images::preload(site, Some(version), images).await,
                None => Ok(()),
            }
        }
        HostStep::ImagePreload { version, images, bundle } => {
            if let Some(bundle) = bundle {
                bundle::stage(site, plan, bundle, version.as_ref()).await?;
            }
            images::preload(site, version.as_ref(), images).await
        }
        HostStep::OsPackagesStage(args) => packages::os::stage(site, plan, args).await,
        HostStep::Snapshot {} => snapshot::take(site, plan).await,
        HostStep::OsPackagesInstall(args) => {
            packages::os::install(site, plan, args).await?;
            require_done(&packages::os::installed(site, plan).await?)?;
            boot::note_required(site, plan, args.reboot).await
        }
        HostStep::KubeadmInstall { version, packages }
        | HostStep::KubectlInstall { version, packages } => {
            install(site, plan, &kubernetes_packages(step, version, packages)?).await
        }
        HostStep::KubeletInstall { version, packages, kubelet } => {
            install(site, plan, &kubernetes_packages(step, version, packages)?).await?;
            kubelet::set_flags(site, plan, keep::KUBELET, kubelet)?;
            kubelet::use_local_endpoint(site, plan, version)?;
            // Checked here and not only before a restart: after a reboot it would be too late.
            kubelet_fetched::forget(site, plan);
            kubelet_probe::check(site).await
        }
        HostStep::ContainerRuntimeInstall { packages } => {
            install(site, plan, &PackageSet { from: packages, wants: extra_packages(packages)? })
                .await?;
            runtime::restart_if_replaced(site).await
        }
        HostStep::KubeadmUpgrade { role, version, kubeadm } => {
            let upgrade = kubeadm::Upgrade { role: *role, version, args: kubeadm };
            // Kept here for a rollback, because a plan may have no snapshot step.
            snapshot::keep_configuration(site, plan)?;
            kubeadm::upgrade(site, plan, &upgrade).await?;
            kubelet_fetched::check(site, plan).await
        }
        HostStep::Files(files) => {
            files::apply(site, plan, &job.step, files, &job.own, secrets).await
        }
        HostStep::KeysRevoke(keys) => files::revoke::apply(site, plan, &job.step, keys).await,
        HostStep::Ntp(ntp) => ntp::apply(site, plan, &job.step, ntp, Others::Kept).await,
        HostStep::NtpReplace(ntp) => ntp::apply(site, plan, &job.step, ntp, Others::Disabled).await,
        HostStep::UnitActions(units) => units::apply(site, units, units::SETTLE).await,
        HostStep::Commands(commands) => commands::run(site, plan, commands).await,
        HostStep::KubeletFlags(kubelet) => kubelet::set_flags(site, plan, &job.step, kubelet),
        HostStep::EtcdUpgrade(etcd) => {
            kubeadm::etcd::upgrade(site, plan, &job.step, etcd, kubeadm::etcd::RESTART).await
        }
        HostStep::CertificatesRenew(certificates) => {
            let now = refit_runtime::Clock::real().now();
            kubeadm::certificates::renew(site, plan, certificates, now).await
        }
        HostStep::OsImageStage { os_image, bundle } => {
            if let Some(bundle) = bundle.as_ref().filter(|_| bundle::has_os_image(os_image)) {
                bundle::stage(site, plan, bundle, None).await?;
            }
            let image = bundle::os_image(site, plan, os_image)?;
            OsImage::new(site, &TridentCli::new(site), plan, &image).stage().await
        }
        HostStep::OsImageFinalize { os_image } => {
            let image = bundle::os_image(site, plan, os_image)?;
            OsImage::new(site, &TridentCli::new(site), plan, &image).finalize().await
        }
        HostStep::OsImageCommit { os_image } => {
            OsImage::new(site, &TridentCli::new(site), plan, os_image).commit().await
        }
        HostStep::KubeletRestart {} => restart_kubelet(site).await,
        HostStep::Reboot {} => reboot::reboot(site, Patience::USUAL).await,
        HostStep::RebootIfRequired {} => {
            boot::reboot_if_required(site, plan, Patience::USUAL).await
        }
        HostStep::Verify { version } => {
            running::wait(site, version.as_ref(), running::VERIFY).await
        }
    }
}

async fn roll_back(site: &Site, job: &JobFile, undo: &Undo) -> Result<(), WorkError> {
    let plan = &job.plan;
    match undo {
        Undo::Packages { packages } => {
            let manager = manager(site, &PackageArgs::default())?;
            manager.restore(plan, packages).await?;
            if packages.contains_key("kubelet") {
                keep::put_back(site, plan, keep::KUBELET)?;
            }
            if packages.keys().any(|name| !KUBERNETES.contains(&name.as_str())) {
                runtime::restart_if_replaced(site).await?;
            }
            require_done(&packages::compare_restored(&manager.installed().await?, packages))
        }
        Undo::OsPackages => {
            packages::os::restore(site, plan).await?;
            require_done(&packages::os::is_restored(site, plan).await?)
        }
        Undo::Configuration => {
            snapshot::put_back(site, plan)?;
            kubeadm::credentials::restore(site, plan)?;
            kubeadm::credentials::forget(site, plan)
        }
        Undo::Files { step } => {
            let mut back = keep::put_back(site, plan, step)?;
            back.extend(keep::put_back(site, plan, keep::PACKAGES)?);
            site.log(&format!("restored {}", back.join(", ")));
            packages::release(site, plan).await?;
            ntp::put_back(site, plan, step).await
        }
        Undo::OsImage { os_image } => {
            OsImage::new(site, &TridentCli::new(site), plan, os_image).undo().await
        }
        Undo::KubeletRestart => restart_kubelet(site).await,
        Undo::Units(units) => units::put_back(site, units, units::SETTLE).await,
    }
}

/// The packages that a step installs, and their source.
pub(super) struct PackageSet<'a> {
    pub(super) from: &'a PackageArgs,
    pub(super) wants: Vec<Want>,
}

async fn install(site: &Site, plan: &str, wanted: &PackageSet<'_>) -> Result<(), WorkError> {
    let from = bundle::packages(site, plan, wanted.from)?;
    let manager = manager(site, &from)?;
    manager.install(&order(plan, &from, wanted.wants.clone())).await?;
    require_done(&packages::compare(&manager.installed().await?, &wanted.wants))
}

pub(super) fn kubernetes_packages<'a>(
    step: &HostStep,
    version: &KubernetesVersion,
    from: &'a PackageArgs,
) -> Result<PackageSet<'a>, WorkError> {
    Ok(PackageSet { from, wants: kubernetes(step.rules().installs, version, from)? })
}

fn kubernetes(
    names: &[&str],
    version: &KubernetesVersion,
    from: &PackageArgs,
) -> Result<Vec<Want>, WorkError> {
    let mut wants: Vec<Want> = names.iter().map(|name| Want::kubernetes(name, version)).collect();
    wants.extend(extra_packages(from)?);
    Ok(wants)
}

pub(super) fn extra_packages(from: &PackageArgs) -> Result<Vec<Want>, WorkError> {
    from.install.iter().map(Want::of).collect()
}

pub(super) fn manager<'a>(site: &'a Site, from: &PackageArgs) -> Result<Packages<'a>, WorkError> {
    Packages::of(site, from.driver)
}

fn order<'a>(plan: &'a str, from: &'a PackageArgs, wants: Vec<Want>) -> Order<'a> {
    Order { plan, from, wants }
}

fn require_done(evidence: &Evidence) -> Result<(), WorkError> {
    match evidence {
        Evidence::Done => Ok(()),
        Evidence::Missing { what } => Err(WorkError::retriable(format!(
            "the command succeeded, but {what}; find out which other program changes packages on the \
             host, such as configuration management"
        ))),
        Evidence::Refused { what, .. } => {
            Err(WorkError::retriable(format!("the command succeeded, but {what}")))
        }
    }
}

async fn restart_kubelet(site: &Site) -> Result<(), WorkError> {
    let systemctl = |arguments: &[&str]| site.call(Program::Systemctl, arguments.iter().copied());
    site.run(&systemctl(&["daemon-reload"])).await?;
    kubelet_probe::check(site).await?;
    site.run(&systemctl(&["restart", "kubelet.service"])).await?;
    running::wait(site, None, running::RESTART).await
}

#[cfg(test)]
#[path = "carry_out_tests.rs"]
mod tests;
