//! Carrying out a command on a real host: what runs inside its unit.
//!
//! Each command looks first what is there, does what is missing, and looks again, so that a second
//! run after a kill or a power cut goes on where the first one ended.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use refit_kinds::refit::{KubeletArgs, PackageArgs};
use serde::{Deserialize, Serialize};

use super::{
    Command, Evidence, HostError, Job, KubernetesVersion, Program, Site, bundle,
    files::{
        self,
        atomic::{self, Access},
        keep,
        secret::SecretSource,
    },
    images,
    kubeadm::{self, preflight},
    kubelet, ntp,
    packages::{self, KUBERNETES, Order, Packages, Want},
    runtime, snapshot,
    trident::{OsImage, TridentCli},
    work::WorkError,
};

/// A job, as it is handed to the unit that does it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobFile {
    /// The plan.
    pub plan: String,
    /// Name of the unit.
    pub unit: String,
    /// Id of the step.
    pub step: String,
    /// What to do.
    pub command: Command,
    /// The agent's own folder.
    pub state: PathBuf,
    /// Who the host is where its secrets are: a kubeconfig.
    #[serde(default)]
    pub kubeconfig: PathBuf,
    /// The namespace of its secrets.
    #[serde(default)]
    pub namespace: String,
}

impl JobFile {
    /// Reads a file.
    pub fn load(path: &Path) -> Result<Self, WorkError> {
        let text = fs::read(path).map_err(|error| WorkError::file(path, &error))?;
        serde_json::from_slice(&text)
            .map_err(|error| WorkError::retriable(format!("{} is no job: {error}", path.display())))
    }

    /// Writes it; whoever reads it later finds all of it or nothing.
    pub fn save(&self, path: &Path) -> Result<(), WorkError> {
        let text = serde_json::to_vec(self).expect("plain data can be written as JSON");
        atomic::replace(path, &text, Access::of_mode(0o600)).map(|_| ())
    }
}

/// Where a unit leaves word that it ended well: it outlives a boot, which the unit does not.
pub(crate) fn mark_path(site: &Site, unit: &str) -> PathBuf {
    site.units().join(format!("{unit}.done"))
}

/// Does a job to its end, and leaves its mark.
pub async fn carry_out(
    site: &Site,
    job: &JobFile,
    secrets: &dyn SecretSource,
) -> Result<(), WorkError> {
    // Boxed: whoever awaits it holds every step's work otherwise.
    Box::pin(perform(site, job, secrets)).await?;
    settle(site);
    // Whatever the plan, each keeps something: workers without a snapshot step, too.
    keep::prune(site, &job.plan, snapshot::KEPT);
    atomic::replace(&mark_path(site, &job.unit), b"done\n", Access::of_mode(0o600))?;
    Ok(())
}

/// Makes durable what others wrote: kubeadm syncs nothing, and a manifest that a power cut left empty
/// would be taken for one that is done.
fn settle(site: &Site) {
    for folder in ["/etc/kubernetes", "/var/lib/kubelet"] {
        let synced = std::fs::File::open(site.path(folder))
            .and_then(|folder| Ok(rustix::fs::syncfs(&folder)?));
        if let Err(error) = synced {
            tracing::debug!(%error, folder, "not synced");
        }
    }
}

async fn perform(site: &Site, job: &JobFile, secrets: &dyn SecretSource) -> Result<(), WorkError> {
    let plan = &job.plan;
    match &job.command {
        Command::PreflightChecks { version } => preflight::check(site, version.as_ref()).await,
        Command::FetchPackages { version, packages, images, bundle } => {
            if let Some(bundle) = bundle {
                bundle::stage(site, plan, bundle, Some(version)).await?;
            }
            let from = bundle::packages(site, plan, packages)?;
            let wants = kubernetes(&KUBERNETES, version, &from)?;
            manager(site, &from)?.fetch(&order(plan, &from, wants)).await?;
            match images {
                Some(images) => images::preload(site, Some(version), images).await,
                None => Ok(()),
            }
        }
        Command::Snapshot => snapshot::take(site, plan).await,
        Command::InstallKubeadm { .. }
        | Command::InstallKubectl { .. }
        | Command::InstallKubelet { .. }
        | Command::InstallContainerRuntime { .. } => install(site, job).await,
        Command::KubeadmUpgrade { role, version, kubeadm } => {
            let upgrade = kubeadm::Upgrade { role: *role, version, args: kubeadm };
            // The way back from a failed try is made here, too, for plans without a snapshot step.
            snapshot::keep_configuration(site, plan)?;
            kubeadm::upgrade(site, &upgrade).await
        }
        Command::PreloadImages { version, images, bundle } => {
            if let Some(bundle) = bundle {
                bundle::stage(site, plan, bundle, version.as_ref()).await?;
            }
            images::preload(site, version.as_ref(), images).await
        }
        Command::WriteFiles { files } => files::apply(site, plan, &job.step, files, secrets).await,
        Command::SetTimeServers { ntp } => ntp::apply(site, plan, &job.step, ntp).await,
        Command::SetKubeletFlags { kubelet } => kubelet::set_flags(site, plan, &job.step, kubelet),
        Command::RenewCertificates { certificates } => {
            let now = refit_runtime::Clock::real().now();
            kubeadm::certificates::renew(site, plan, certificates, now).await
        }
        Command::StageOsImage { image, bundle } => {
            if let Some(bundle) = bundle.as_ref().filter(|_| bundle::has_os_image(image)) {
                bundle::stage(site, plan, bundle, None).await?;
            }
            let image = bundle::os_image(site, plan, image)?;
            OsImage::new(site, &TridentCli::new(site), plan, &image).stage().await
        }
        Command::FinalizeOsImage { image } => {
            let image = bundle::os_image(site, plan, image)?;
            OsImage::new(site, &TridentCli::new(site), plan, &image).finalize().await
        }
        Command::CommitOsImage { image } => {
            OsImage::new(site, &TridentCli::new(site), plan, image).commit().await
        }
        Command::RestoreOsImage { image } => {
            OsImage::new(site, &TridentCli::new(site), plan, image).undo().await
        }
        Command::RestartKubelet => restart_kubelet(site).await,
        Command::Reboot => {
            site.run(&site.call(Program::Systemctl, ["reboot"])).await?;
            Ok(())
        }
        Command::VerifyVersions { .. } => {
            let call = site.call(Program::Systemctl, ["is-active", "kubelet.service"]);
            site.run(&call).await?;
            Ok(())
        }
        Command::RestorePackages { packages } => {
            let manager = manager(site, &PackageArgs::default())?;
            manager.restore(plan, packages).await?;
            if packages.contains_key("kubelet") {
                keep::put_back(site, plan, keep::KUBELET)?;
            }
            if packages.keys().any(|name| !KUBERNETES.contains(&name.as_str())) {
                runtime::restart_if_replaced(site).await?;
            }
            demand(&packages::compare_restored(&manager.installed().await?, packages))
        }
        Command::RestoreConfiguration => snapshot::put_back(site, plan),
        Command::RestoreFiles { step } => {
            let mut back = keep::put_back(site, plan, step)?;
            back.extend(keep::put_back(site, plan, keep::PACKAGES)?);
            site.say(&format!("put back: {}", back.join(", ")));
            ntp::put_back(site, plan, step).await
        }
    }
}

async fn install(site: &Site, job: &JobFile) -> Result<(), WorkError> {
    let plan = &job.plan;
    let (from, wants) = wanted(&job.command)?;
    let from = bundle::packages(site, plan, from)?;
    let manager = manager(site, &from)?;
    manager.install(&order(plan, &from, wants.clone())).await?;
    demand(&packages::compare(&manager.installed().await?, &wants))?;
    match &job.command {
        Command::InstallKubelet { version, kubelet, .. } => {
            kubelet::set_flags(site, plan, keep::KUBELET, kubelet)?;
            kubelet::use_local_endpoint(site, plan, version)?;
            // Here, and not only before a restart: after a reboot it would be too late.
            kubelet::check_flags(site).await
        }
        Command::InstallContainerRuntime { .. } => runtime::restart_if_replaced(site).await,
        _ => Ok(()),
    }
}

/// What an installing command wants, and from where.
pub(crate) fn wanted(command: &Command) -> Result<(&PackageArgs, Vec<Want>), WorkError> {
    Ok(match command {
        Command::InstallKubeadm { version, packages } => {
            (packages, kubernetes(&["kubeadm"], version, packages)?)
        }
        Command::InstallKubelet { version, packages, .. } => {
            (packages, kubernetes(&["kubelet", "kubectl"], version, packages)?)
        }
        Command::InstallKubectl { version, packages } => {
            (packages, kubernetes(&["kubectl"], version, packages)?)
        }
        Command::InstallContainerRuntime { packages } => (packages, others(packages)?),
        other => {
            let message = format!("{} installs no packages", other.name());
            return Err(WorkError::last(message));
        }
    })
}

fn kubernetes(
    names: &[&str],
    version: &KubernetesVersion,
    from: &PackageArgs,
) -> Result<Vec<Want>, WorkError> {
    let mut wants: Vec<Want> = names.iter().map(|name| Want::kubernetes(name, version)).collect();
    wants.extend(others(from)?);
    Ok(wants)
}

fn others(from: &PackageArgs) -> Result<Vec<Want>, WorkError> {
    from.install.iter().map(Want::of).collect()
}

fn manager<'a>(site: &'a Site, from: &PackageArgs) -> Result<Packages<'a>, WorkError> {
    Packages::of(site, from.driver)
}

fn order<'a>(plan: &'a str, from: &'a PackageArgs, wants: Vec<Want>) -> Order<'a> {
    Order { plan, from, wants }
}

fn demand(evidence: &Evidence) -> Result<(), WorkError> {
    match evidence {
        Evidence::Done => Ok(()),
        Evidence::Missing { what } | Evidence::Refused { what, .. } => {
            Err(WorkError::retriable(format!("it ended well, but {what}")))
        }
    }
}

async fn restart_kubelet(site: &Site) -> Result<(), WorkError> {
    kubelet::check_flags(site).await?;
    for arguments in [
        ["daemon-reload"].as_slice(),
        &["restart", "kubelet.service"],
        &["is-active", "kubelet.service"],
    ] {
        site.run(&site.call(Program::Systemctl, arguments.iter().copied())).await?;
    }
    Ok(())
}

/// Looks at the host itself whether the work of a command is done. Commands whose work shows only
/// in their mark are not asked here.
pub(crate) async fn look(site: &Site, job: &Job) -> Result<Option<Evidence>, HostError> {
    if job.command.shows_in_part() && !mark_path(site, &job.unit).exists() {
        let what = format!("{} has not run to its end", job.command.name());
        return Ok(Some(Evidence::Missing { what }));
    }
    let trident = TridentCli::new(site);
    let os = |image| OsImage::new(site, &trident, &job.plan, image);
    let found = match &job.command {
        command @ (Command::InstallKubeadm { .. }
        | Command::InstallKubectl { .. }
        | Command::InstallKubelet { .. }
        | Command::InstallContainerRuntime { .. }) => installed(site, command).await,
        Command::RestorePackages { packages } => restored(site, packages).await,
        Command::WriteFiles { files } => Ok(files::check(site, files)),
        Command::SetTimeServers { ntp } => Ok(ntp::check(site, ntp)),
        Command::SetKubeletFlags { kubelet } => Ok(flags_set(site, kubelet)),
        Command::RestoreFiles { step } => keep::is_back(site, &job.plan, step).map(|other| {
            let path = other.clone().unwrap_or_default();
            Evidence::from_check(other.is_none(), || format!("{path} is not as it was before"))
        }),
        Command::StageOsImage { image, .. } => os(image).is_staged().await,
        Command::FinalizeOsImage { image } => os(image).is_finalized().await,
        Command::CommitOsImage { image } => os(image).is_committed().await,
        Command::RestoreOsImage { image } => os(image).is_undone().await,
        Command::PreflightChecks { .. }
        | Command::FetchPackages { .. }
        | Command::PreloadImages { .. }
        | Command::Snapshot
        | Command::KubeadmUpgrade { .. }
        | Command::RenewCertificates { .. }
        | Command::RestartKubelet
        | Command::Reboot
        | Command::VerifyVersions { .. }
        | Command::RestoreConfiguration => return Ok(None),
    };
    Ok(Some(found.unwrap_or_else(|error| Evidence::Missing { what: error.message })))
}

async fn installed(site: &Site, command: &Command) -> Result<Evidence, WorkError> {
    let (from, wants) = wanted(command)?;
    let found = manager(site, from)?.check(&wants).await?;
    match command {
        Command::InstallKubelet { kubelet, .. } if found == Evidence::Done => {
            Ok(flags_set(site, kubelet))
        }
        _ => Ok(found),
    }
}

fn flags_set(site: &Site, kubelet: &KubeletArgs) -> Evidence {
    Evidence::from_check(kubelet::has_flags(site, kubelet), || {
        "the kubelet's flags are not as planned".to_owned()
    })
}

async fn restored(site: &Site, packages: &BTreeMap<String, String>) -> Result<Evidence, WorkError> {
    let manager = manager(site, &PackageArgs::default())?;
    Ok(packages::compare_restored(&manager.installed().await?, packages))
}

#[cfg(test)]
#[path = "carry_out_tests.rs"]
mod tests;
