//! How commands change a simulated host, and how the change is detected.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use refit_agent::host::{CONTROL_PLANE, Command, Evidence, Job, Since, Undo};
use refit_kinds::{
    refit::{HostStep, KubeletArgs, OsImageArgs, PlannedFile, Role},
    version::KubernetesVersion,
};

use crate::state::{
    HostState, KUBELET_CONFIG, PACKAGES, SAVED_CONFIG, kubelet_config, package_path, title,
};

/// sha384 of the OS image that is staged but will not boot.
const OS_STAGED: &str = "/os/staged";
/// sha384 of the OS image that boots next.
const OS_NEXT: &str = "/os/next";
/// sha384 of the running OS image; absent while the host runs its original image.
const OS_RUNNING: &str = "/os/running";
/// sha384 of the previous OS image.
const OS_BEFORE: &str = "/os/before";
/// Stands for the host's original image.
const OS_FIRST: &str = "first";
/// The kubelet flags.
const KUBELET_FLAGS: &str = "/var/lib/kubelet/kubeadm-flags.env";
/// How long certificates of kubeadm are valid.
const CERTIFICATES_LAST: SignedDuration = SignedDuration::from_hours(365 * 24);
/// How long static pods are down when they are restarted.
const STATIC_PODS_RESTART: SignedDuration = SignedDuration::from_secs(15);
/// Stands for kubeadm's certificates: present once they are renewed.
const CERTIFICATES: &str = "/etc/kubernetes/pki";
const TIME_SERVERS: &str = "/etc/time-servers";
/// Start of the paths of fetched packages.
const FETCHED: &str = "/var/cache/refit/";
/// Copies of files from before a step changed them.
const KEPT: &str = "/var/lib/refit/kept";

/// Where a host keeps the name of an OS image.
fn os_name_path(sha384: &str) -> String {
    format!("/os/names/{sha384}")
}

impl HostState {
    /// Removes the packages that plans have fetched.
    pub(super) fn remove_fetched(&mut self) {
        self.root.retain(|path, _| !path.starts_with(FETCHED));
    }

    /// Whether packages that a plan has fetched are on the host.
    pub fn has_fetched(&self) -> bool {
        self.root.keys().any(|path| path.starts_with(FETCHED))
    }

    /// Checks whether the work of a job's command is done.
    pub fn look(&self, job: &Job, since: &Since) -> Evidence {
        match &job.command {
            Command::Step(
                HostStep::Preflight { .. }
                | HostStep::Stage { .. }
                | HostStep::OsPackagesStage(_)
                | HostStep::Snapshot {},
            ) => Evidence::Done,
            Command::Step(HostStep::OsPackagesInstall(_)) => self.os_packages_installed(),
            Command::Undo(Undo::OsPackages) => self.os_packages_restored(),
            Command::Step(HostStep::RebootIfRequired {}) => {
                let is_done = self.boot_id != since.boot_id || self.succeeded.contains(&title(job));
                Evidence::from_check(is_done, || "the host has not rebooted".to_owned())
            }
            Command::Step(HostStep::KubeadmInstall { version, .. }) => {
                self.has_package("kubeadm", version)
            }
            Command::Step(HostStep::KubeletInstall { version, .. }) => {
                self.has_package("kubelet", version)
            }
            Command::Step(HostStep::KubectlInstall { version, .. }) => {
                self.has_package("kubectl", version)
            }
            Command::Step(HostStep::ContainerRuntimeInstall { packages }) => {
                let other = packages.install.iter().find(|p| self.package(&p.name) != p.version);
                Evidence::from_check(other.is_none(), || {
                    let name = other.map_or("", |package| package.name.as_str());
                    format!("package {name} is not at the planned version")
                })
            }
            Command::Step(HostStep::ImagePreload { images, .. }) => {
                let other = images.names.iter().find(|name| !self.has(&image_path(name)));
                Evidence::from_check(other.is_none(), || {
                    format!("image {} is missing", other.map_or("", |name| name))
                })
            }
            Command::Step(HostStep::Files(files)) => {
                let other = files
                    .files
                    .iter()
                    .find(|file| self.root.get(&file.path) != Some(&content(file)));
                Evidence::from_check(other.is_none(), || {
                    let path = other.map_or("", |file| file.path.as_str());
                    format!("{path} does not match the plan")
                })
            }
            Command::Undo(Undo::Files { step }) => {
                let kept = self.kept(step);
                let other = kept.iter().find(|(path, was)| self.root.get(*path) != was.as_ref());
                Evidence::from_check(other.is_none(), || {
                    let path = other.map_or("", |(path, _)| path.as_str());
                    format!("{path} is not restored")
                })
            }
            Command::Step(HostStep::Ntp(ntp) | HostStep::NtpReplace(ntp)) => Evidence::from_check(
                self.root.get(TIME_SERVERS) == Some(&ntp.servers.join(" ")),
                || format!("{TIME_SERVERS} does not contain the planned servers"),
            ),
            Command::Step(HostStep::KubeletFlags(kubelet)) => {
                Evidence::from_check(self.root.get(KUBELET_FLAGS) == Some(&flags(kubelet)), || {
                    format!("{KUBELET_FLAGS} does not contain the planned flags")
                })
            }
            Command::Step(HostStep::EtcdUpgrade(etcd)) => self.has_etcd(etcd),
            Command::Step(HostStep::KeysRevoke(keys)) => self.has_revoked(keys),
            Command::Step(HostStep::UnitActions(_) | HostStep::Commands(_))
            | Command::Undo(Undo::Units(_)) => {
                Evidence::from_check(self.succeeded.contains(&title(job)), || {
                    format!("{} did not run to completion", job.command.name())
                })
            }
            Command::Step(HostStep::CertificatesRenew(_)) => {
                Evidence::from_check(self.succeeded.contains(&title(job)), || {
                    "the certificates are not renewed".to_owned()
                })
            }
            Command::Step(HostStep::OsImageStage { os_image, .. }) => Evidence::from_check(
                [OS_STAGED, OS_NEXT, OS_RUNNING].iter().any(|at| self.is_at(at, os_image)),
                || "the image is not staged".to_owned(),
            ),
            Command::Step(HostStep::OsImageFinalize { os_image }) => Evidence::from_check(
                [OS_NEXT, OS_RUNNING].iter().any(|at| self.is_at(at, os_image)),
                || "the image is not set for the next boot".to_owned(),
            ),
            Command::Step(HostStep::OsImageCommit { os_image }) => {
                Evidence::from_check(self.is_at(OS_RUNNING, os_image), || {
                    "the image is not running".to_owned()
                })
            }
            Command::Undo(Undo::OsImage { os_image }) => {
                let before = self.root.get(OS_BEFORE);
                let left = self.is_at(OS_NEXT, os_image)
                    || (self.is_at(OS_RUNNING, os_image)
                        && before.is_some()
                        && self.root.get(OS_NEXT) != before);
                Evidence::from_check(!left, || {
                    "the image is still set for the next boot".to_owned()
                })
            }
            Command::Step(HostStep::KubeadmUpgrade { version, .. }) => Evidence::from_check(
                self.root.get(KUBELET_CONFIG) == Some(&kubelet_config(&version.to_string())),
                || format!("{KUBELET_CONFIG} does not match {version}"),
            ),
            Command::Step(HostStep::KubeletRestart {}) | Command::Undo(Undo::KubeletRestart) => {
                Evidence::from_check(self.succeeded.contains(&title(job)), || {
                    "the kubelet has not restarted".to_owned()
                })
            }
            Command::Step(HostStep::Reboot {}) => {
                Evidence::from_check(self.boot_id != since.boot_id, || {
                    "the host has not rebooted".to_owned()
                })
            }
            Command::Step(HostStep::Verify { version }) => match self.verify(version.as_ref()) {
                Ok(()) => Evidence::Done,
                Err(what) => Evidence::Missing { what },
            },
            Command::Undo(Undo::Packages { packages }) => {
                let other =
                    packages.iter().find(|(name, version)| self.package(name) != version.as_str());
                Evidence::from_check(other.is_none(), || {
                    let name = other.map_or("", |(name, _)| name.as_str());
                    format!("package {name} is not at its previous version")
                })
            }
            Command::Undo(Undo::Configuration) => {
                let saved = self.saved_config();
                let back = saved.is_none() || self.root.get(KUBELET_CONFIG) == saved.as_ref();
                Evidence::from_check(back, || format!("{KUBELET_CONFIG} is not restored"))
            }
        }
    }

    /// Renews the certificates if a command has kubeadm do so. Static pods that a command restarts are back a little later.
    pub(super) fn renew_certificates(&mut self, command: &Command, at: Timestamp) {
        let Command::Step(step) = command else { return };
        let renews = matches!(step, HostStep::CertificatesRenew(_));
        if self.control_plane && (renews || matches!(step, HostStep::KubeadmUpgrade { .. })) {
            self.certificates_end = Some(at + CERTIFICATES_LAST);
        }
        if renews || matches!(step, HostStep::EtcdUpgrade(_)) {
            let back = at + STATIC_PODS_RESTART;
            self.static_pods_up_at = self.static_pods_up_at.max(Some(back));
        }
    }

    pub(super) fn carry_out(&mut self, step: &str, command: &Command) -> Result<String, String> {
        if let Some(full) = self.troubles.no_space(command) {
            return Err(full);
        }
        match command {
            Command::Step(HostStep::Preflight { .. }) => Ok("the host can be updated".to_owned()),
            Command::Step(HostStep::Stage { version, .. }) => {
                self.root.insert(format!("{FETCHED}{version}"), PACKAGES.join(" "));
                Ok(format!("{} fetched", PACKAGES.join(", ")))
            }
            Command::Step(HostStep::OsPackagesStage(args)) => Ok(self.stage_os_packages(args)),
            Command::Step(HostStep::OsPackagesInstall(_)) => Ok(self.install_os_packages()),
            Command::Undo(Undo::OsPackages) => Ok(self.restore_os_packages()),
            Command::Step(HostStep::RebootIfRequired {}) if self.boot_required().is_none() => {
                Ok("the packages need no boot".to_owned())
            }
            Command::Step(HostStep::Snapshot {}) => {
                let manifests: Vec<String> =
                    CONTROL_PLANE.into_iter().filter_map(|c| self.static_pod_image(c)).collect();
                self.root.insert("/var/lib/refit/snapshot".to_owned(), manifests.join("\n"));
                Ok("snapshot saved".to_owned())
            }
            Command::Step(HostStep::KubeadmInstall { version, .. }) => {
                self.install("kubeadm", &version.bare());
                Ok(format!("kubeadm {version} installed"))
            }
            Command::Step(HostStep::KubeadmUpgrade { role, version, .. }) => {
                self.kubeadm_upgrade(*role, version)
            }
            Command::Step(HostStep::KubeletInstall { version, .. }) => {
                self.install("kubelet", &version.bare());
                self.install("kubectl", &version.bare());
                Ok(format!("kubelet {version} installed"))
            }
            Command::Step(HostStep::KubectlInstall { version, .. }) => {
                self.install("kubectl", &version.bare());
                Ok(format!("kubectl {version} installed"))
            }
            Command::Step(HostStep::ContainerRuntimeInstall { packages }) => {
                for package in &packages.install {
                    let path = package_path(&package.name);
                    self.root.insert(path, package.version.clone());
                }
                Ok("container runtime installed".to_owned())
            }
            Command::Step(HostStep::ImagePreload { images, .. }) => {
                for name in &images.names {
                    self.root.insert(image_path(name), name.clone());
                }
                Ok(format!("{} images preloaded", images.names.len()))
            }
            Command::Step(HostStep::Files(files)) => {
                for file in &files.files {
                    self.keep(step, &file.path);
                    self.root.insert(file.path.clone(), content(file));
                }
                for user in &files.users {
                    self.add_keys(step, user);
                }
                Ok(format!("{} files written", files.files.len()))
            }
            Command::Undo(Undo::Files { step }) => {
                for (path, was) in self.kept(step) {
                    match was {
                        Some(was) => self.root.insert(path, was),
                        None => self.root.remove(&path),
                    };
                }
                Ok("files restored".to_owned())
            }
            Command::Step(HostStep::EtcdUpgrade(etcd)) => self.upgrade_etcd(etcd),
            Command::Step(HostStep::KeysRevoke(keys)) => Ok(self.revoke_keys(step, keys)),
            Command::Step(HostStep::UnitActions(units)) | Command::Undo(Undo::Units(units)) => {
                Ok(self.act_on_units(units))
            }
            Command::Step(HostStep::Commands(args)) => {
                self.in_place.commands.extend_from_slice(&args.commands);
                Ok(format!("{} commands run", args.commands.len()))
            }
            Command::Step(HostStep::Ntp(ntp) | HostStep::NtpReplace(ntp)) => {
                self.keep(step, TIME_SERVERS);
                self.root.insert(TIME_SERVERS.to_owned(), ntp.servers.join(" "));
                Ok("time servers set".to_owned())
            }
            Command::Step(HostStep::KubeletFlags(kubelet)) => {
                self.keep(step, KUBELET_FLAGS);
                self.root.insert(KUBELET_FLAGS.to_owned(), flags(kubelet));
                Ok("kubelet flags set".to_owned())
            }
            Command::Step(HostStep::CertificatesRenew(_)) => {
                self.root.insert(CERTIFICATES.to_owned(), "renewed".to_owned());
                Ok("certificates renewed".to_owned())
            }
            Command::Step(HostStep::OsImageStage { os_image, .. }) => {
                if !self.is_at(OS_RUNNING, os_image) && !self.is_at(OS_NEXT, os_image) {
                    self.root.insert(OS_STAGED.to_owned(), os_image.sha384.clone());
                }
                Ok("staged".to_owned())
            }
            Command::Step(HostStep::OsImageFinalize { os_image }) => self.finalize(os_image),
            Command::Step(HostStep::OsImageCommit { os_image }) => {
                if !self.is_at(OS_RUNNING, os_image) {
                    return Err("the host runs another image".to_owned());
                }
                Ok("committed".to_owned())
            }
            Command::Undo(Undo::OsImage { os_image }) => {
                self.forget(os_image);
                Ok("the image is no longer set for the next boot".to_owned())
            }
            Command::Step(HostStep::KubeletRestart {}) | Command::Undo(Undo::KubeletRestart) => {
                self.start_kubelet();
                Ok(String::new())
            }
            // Only a reboot that was made to fail gets here: all others end in a boot.
            Command::Step(HostStep::Reboot {} | HostStep::RebootIfRequired {}) => {
                Err("the host did not shut down".to_owned())
            }
            Command::Step(HostStep::Verify { version }) => {
                self.verify(version.as_ref())?;
                Ok(format!("kubelet {} is running", self.kubelet_version))
            }
            Command::Undo(Undo::Packages { packages }) => {
                for (name, version) in packages {
                    if version.is_empty() {
                        self.root.remove(&package_path(name));
                    } else {
                        self.root.insert(package_path(name), version.clone());
                    }
                }
                Ok("packages restored".to_owned())
            }
            Command::Undo(Undo::Configuration) => {
                if let Some(saved) = self.saved_config() {
                    self.root.insert(KUBELET_CONFIG.to_owned(), saved);
                }
                Ok("configuration restored".to_owned())
            }
        }
    }

    fn kubeadm_upgrade(
        &mut self,
        role: Role,
        version: &KubernetesVersion,
    ) -> Result<String, String> {
        let installed = self.installed("kubeadm");
        if installed.as_ref() != Some(version) {
            let found = installed.map_or_else(|| "missing".to_owned(), |v| v.to_string());
            return Err(format!("kubeadm is {found}, expected {version}"));
        }
        if (role == Role::Worker) == self.control_plane {
            return Err(format!("this host is not a {role:?}"));
        }
        self.configure(&version.to_string());
        Ok(format!("[upgrade] SUCCESS! {version}"))
    }

    /// Saves the kubelet configuration as it was before a plan, once per plan.
    pub(super) fn save_config(&mut self, plan: &str) {
        let head = format!("# before plan {plan}\n");
        let saved = self.root.get(SAVED_CONFIG);
        if saved.is_none_or(|saved| !saved.starts_with(&head)) {
            let config = self.root.get(KUBELET_CONFIG).cloned().unwrap_or_default();
            self.root.insert(SAVED_CONFIG.to_owned(), head + &config);
        }
    }

    fn saved_config(&self) -> Option<String> {
        let saved = self.root.get(SAVED_CONFIG)?;
        saved.split_once('\n').map(|(_, config)| config.to_owned())
    }

    fn verify(&self, version: Option<&KubernetesVersion>) -> Result<(), String> {
        let running = &self.kubelet_version;
        let installed = self.installed("kubelet").ok_or("no kubelet is installed")?;
        let wanted = version.unwrap_or(&installed);
        if *running != wanted.to_string() {
            return Err(format!("the kubelet runs {running}, expected {wanted}"));
        }
        if version.is_some() && self.control_plane {
            for component in CONTROL_PLANE {
                let found = self.static_pod_version(component).unwrap_or_default();
                if found != wanted.image_tag() {
                    return Err(format!("{component} is {found}, expected {wanted}"));
                }
            }
        }
        Ok(())
    }

    /// Makes the OS image that was finalized the running one, as a boot does.
    pub(super) fn boot_os(&mut self) {
        if let Some(next) = self.root.remove(OS_NEXT) {
            let before = self.root.remove(OS_RUNNING).unwrap_or_else(|| OS_FIRST.to_owned());
            self.root.insert(OS_BEFORE.to_owned(), before);
            if next != OS_FIRST {
                self.root.insert(OS_RUNNING.to_owned(), next);
            }
        }
    }

    /// sha384 of the running OS image; `None` while the host runs its original image.
    pub fn os_image(&self) -> Option<&str> {
        self.root.get(OS_RUNNING).map(String::as_str)
    }

    /// Name of the running OS image; `None` while the host runs its original image.
    pub(crate) fn os_name(&self) -> Option<&str> {
        self.root.get(&os_name_path(self.os_image()?)).map(String::as_str)
    }

    fn finalize(&mut self, image: &OsImageArgs) -> Result<String, String> {
        self.root.insert(os_name_path(&image.sha384), image.name.clone());
        if self.is_at(OS_STAGED, image) {
            self.root.remove(OS_STAGED);
            self.root.insert(OS_NEXT.to_owned(), image.sha384.clone());
        }
        if self.is_at(OS_NEXT, image) || self.is_at(OS_RUNNING, image) {
            Ok("finalized".to_owned())
        } else {
            Err("the image is not staged".to_owned())
        }
    }

    fn forget(&mut self, image: &OsImageArgs) {
        for at in [OS_STAGED, OS_NEXT] {
            if self.is_at(at, image) {
                self.root.remove(at);
            }
        }
        if self.is_at(OS_RUNNING, image)
            && let Some(before) = self.root.get(OS_BEFORE).cloned()
        {
            self.root.insert(OS_NEXT.to_owned(), before);
        }
    }

    fn is_at(&self, place: &str, image: &OsImageArgs) -> bool {
        self.root.get(place) == Some(&image.sha384)
    }

    fn has(&self, path: &str) -> bool {
        self.root.contains_key(path)
    }

    /// Saves the content of a path before a step changes it, once.
    pub(super) fn keep(&mut self, step: &str, path: &str) {
        let kept = format!("{KEPT}/{step}{path}");
        if !self.has(&kept) {
            let was = self.root.get(path).map_or_else(String::new, |was| format!("+{was}"));
            self.root.insert(kept, was);
        }
    }

    /// The files saved by a step, by path.
    fn kept(&self, step: &str) -> BTreeMap<String, Option<String>> {
        let start = format!("{KEPT}/{step}/");
        self.root
            .iter()
            .filter_map(|(at, was)| {
                let path = at.strip_prefix(&start)?;
                Some((format!("/{path}"), was.strip_prefix('+').map(str::to_owned)))
            })
            .collect()
    }
}

fn image_path(name: &str) -> String {
    format!("/images/{name}")
}

fn flags(args: &KubeletArgs) -> String {
    let set = args.extra_args.iter().map(|arg| format!("--{}={}", arg.name, arg.value));
    set.collect::<Vec<_>>().join(" ")
}

/// The content of a file; for a Secret reference, the name of the Secret and its key.
fn content(file: &PlannedFile) -> String {
    match &file.content_from {
        Some(key) => format!("secret {}/{}", key.name, key.key),
        None => file.content.clone(),
    }
}

#[cfg(test)]
#[path = "work_tests.rs"]
mod tests;
