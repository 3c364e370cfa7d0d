//! The steps of a host, divided by gates, and the point of no return.
//!
//! | gate | steps | rolled back by |
//! |---|---|---|
//! | Stage | preflight, stage, image-preload, os-packages-stage, os-image-stage, snapshot | nothing: they change nothing that runs; package sources are restored |
//! | Upgrade | os-packages-install, kubeadm-install, kubeadm-upgrade, etcd-upgrade, certificates-renew | packages, configuration |
//! | Disrupt | files, keys-revoke, ntp, ntp-replace, unit-actions, container-runtime-install, commands, os-image-finalize, kubelet-flags or kubelet-install, kubelet-restart or reboot, reboot-if-required, os-image-commit, verify | files, packages, the A/B slot, a restart |
//!
//! Between Upgrade and Disrupt the controller drains the node, if the update disturbs it that much. Steps that the goal and
//! the settings do not require are not planned: without a version no package is, nor kubeadm.
//!
//! The point of no return (`docs/facts/kubeadm.md#rolling-back`):
//! - a control plane: `kubeadm-upgrade`. API objects, static pods and etcd have the new version;
//!   kubeadm itself restores manifests if a new static pod does not start.
//! - etcd without a version: `etcd-upgrade`. The new etcd may have changed its data.
//! - certificates without a version: `certificates-renew`. kubeadm replaces them.
//! - commands of a KubeadmConfig: `commands`. What they do is not known.
//! - another host that reboots, or may: `reboot` or `reboot-if-required`. Rolling back would require another reboot.
//! - any other: none of its steps. An older kubelet is supported with a newer control plane,
//!   so packages and configuration are rolled back and the kubelet is restarted.

use refit_kinds::{
    refit::{
        CertificateArgs, EtcdArgs, HostFacts, HostStep, ImageArgs, KubeletArgs, OsImageArgs,
        OsPackageArgs, PackageArgs, PlanSettings, PlannedStep, RebootChoice, Role, StepType,
    },
    version::KubernetesVersion,
};

use super::configuration;
use crate::{change::PlannedConfiguration, node::steps::STEP_NODE_READY};

/// When a host reboots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reboot {
    /// Only if a step takes effect only after a reboot.
    #[default]
    IfNeeded,
    /// In every update, instead of a kubelet restart.
    Always,
}

/// The target state of a host, and its current state.
#[derive(Clone, Debug)]
pub struct HostWork<'a> {
    /// Role of the machine for kubeadm.
    pub role: Role,
    /// The Kubernetes version of the goal, if it has one.
    pub version: Option<&'a KubernetesVersion>,
    /// Whether kubeadm brings the host to that version; otherwise the host has it already.
    pub upgrades: bool,
    /// On a control plane, kubeadm's certificates are renewed if one of them expires within this many days.
    pub renew_within_days: Option<i32>,
    /// When the host reboots.
    pub reboot: Reboot,
    /// Other settings of the hosts; `os_image`, `os_packages` and `certificates` are those of the fields here.
    pub settings: &'a PlanSettings,
    /// Whether the host gets the files, time servers, kubelet flags and packages of the container runtime of the settings.
    pub applies_settings: bool,
    /// The OS image, from the settings or from an Updater.
    pub os_image: Option<&'a OsImageArgs>,
    /// The packages of the operating system, from the settings or from an Updater.
    pub os_packages: Option<OsPackageArgs>,
    /// What it gets of the KubeadmConfig of its machine.
    pub configuration: Option<PlannedConfiguration>,
    /// Facts reported by the host; without a report no difference is known.
    pub facts: Option<&'a HostFacts>,
}

impl<'a> HostWork<'a> {
    /// The upgrade of a host to a version, with these settings and nothing else.
    pub fn upgrade(role: Role, version: &'a KubernetesVersion, settings: &'a PlanSettings) -> Self {
        let certificates = settings.certificates.as_ref();
        Self {
            role,
            version: Some(version),
            upgrades: true,
            renew_within_days: certificates.map(|certificates| certificates.renew_within_days),
            reboot: Reboot::IfNeeded,
            settings,
            applies_settings: true,
            os_image: settings.os_image.as_ref(),
            os_packages: settings
                .os_packages
                .as_ref()
                .map(|packages| keeping_runtime(packages, settings)),
            configuration: None,
            facts: None,
        }
    }

    /// The steps that bring the host to the target, in the order of
    /// `docs/facts/hosts.md#order-of-steps`: first everything that does not disturb, then kubeadm,
    /// then the remaining steps on a drained node. A reboot replaces the kubelet restart and comes
    /// after everything else.
    ///
    /// Every step is safe to repeat, so the plan does not depend on the progress of an earlier
    /// plan.
    pub fn steps(&self) -> Vec<PlannedStep> {
        let point = self.point_of_no_return();
        let wanted = [self.prepares(), self.upgrades(), self.disturbs()].into_iter().flatten();
        let mut steps: Vec<PlannedStep> = wanted.map(|step| self.planned(step)).collect();
        // From the point of no return on, no step has an undo, whatever its type.
        let first = steps.iter().position(|step| step.id == point);
        for step in steps.iter_mut().skip(first.unwrap_or(usize::MAX)) {
            step.undo = None;
        }
        steps
    }

    /// Id of the first step that cannot be rolled back. Before it, a failure or an abort rolls back
    /// the host's changes.
    pub fn point_of_no_return(&self) -> &'static str {
        if self.upgrades && self.is_member() {
            StepType::KubeadmUpgrade.id()
        } else if self.etcd().is_some() {
            StepType::EtcdUpgrade.id()
        } else if self.renewal().is_some() {
            StepType::CertificatesRenew.id()
        } else if self.configured(|configuration| configuration.commands.clone()).is_some() {
            StepType::Commands.id()
        } else if self.reboots() {
            StepType::Reboot.id()
        } else if self.may_boot() {
            StepType::RebootIfRequired.id()
        } else {
            STEP_NODE_READY
        }
    }

    fn is_member(&self) -> bool {
        self.role != Role::Worker
    }

    /// One of the things that the host gets of the KubeadmConfig.
    fn configured<T>(&self, of: impl Fn(&PlannedConfiguration) -> Option<T>) -> Option<T> {
        self.configuration.as_ref().and_then(of)
    }

    /// The image of etcd, which only a member of a control plane runs.
    fn etcd(&self) -> Option<EtcdArgs> {
        self.configured(|configuration| configuration.etcd.clone()).filter(|_| self.is_member())
    }

    /// The version to which kubeadm brings the host.
    fn upgraded_to(&self) -> Option<KubernetesVersion> {
        self.version.filter(|_| self.upgrades).cloned()
    }

    fn renewal(&self) -> Option<CertificateArgs> {
        let days = self.renew_within_days.filter(|_| self.is_member())?;
        Some(CertificateArgs { renew_within_days: days })
    }

    /// The image that the host does not run yet.
    pub(super) fn new_image(&self) -> Option<OsImageArgs> {
        self.os_image.filter(|_| self.changes_os_image()).cloned()
    }

    /// The version of the kubelet's package; none is installed if the kubelet stays, or is in the image.
    fn kubelet_package(&self) -> Option<KubernetesVersion> {
        let in_image = self.new_image().is_some_and(|image| image.brings_kubelet);
        self.upgraded_to().filter(|_| !in_image)
    }

    /// The flags that no package of the kubelet sets; the kubelet reads them when it starts next.
    fn flags(&self) -> Option<KubeletArgs> {
        let flags = self.all_flags();
        (self.kubelet_package().is_none() && flags != KubeletArgs::default()).then_some(flags)
    }

    fn all_flags(&self) -> KubeletArgs {
        let settings = Some(self.settings).filter(|_| self.applies_settings);
        configuration::flags(settings, self.configuration.as_ref())
    }

    fn packages(&self) -> PackageArgs {
        self.settings.packages.clone().unwrap_or_default()
    }

    /// What the host does before anything is disturbed. An optional step follows the condition that requires it.
    fn prepares(&self) -> Vec<HostStep> {
        let settings = self.settings;
        let bundle = || settings.bundle.clone();
        let version = self.upgraded_to();
        let writes = settings.files.is_some() || settings.ntp.is_some();
        let saves = self.upgrades && self.is_member()
            || self.applies_settings && writes
            || self.etcd().is_some();
        let stage = version.clone().map(|version| HostStep::Stage {
            version,
            packages: self.all_packages(),
            images: self.staged_images(),
            bundle: bundle(),
        });
        let images = settings.images.clone().filter(|_| version.is_some());
        let steps = [
            Some(HostStep::Preflight { version: version.clone() }),
            stage,
            images.map(|images| HostStep::ImagePreload { version, images, bundle: bundle() }),
            self.os_packages().map(HostStep::OsPackagesStage),
            self.new_image().map(|os_image| HostStep::OsImageStage { os_image, bundle: bundle() }),
            saves.then_some(HostStep::Snapshot {}),
        ];
        steps.into_iter().flatten().collect()
    }

    /// What kubeadm does while the kubelet and all other pods run.
    fn upgrades(&self) -> Vec<HostStep> {
        let version = self.upgraded_to();
        let steps = [
            // First, because a control plane rolls nothing back once kubeadm has upgraded it.
            self.os_packages().map(HostStep::OsPackagesInstall),
            version
                .clone()
                .map(|version| HostStep::KubeadmInstall { version, packages: self.packages() }),
            version.map(|version| HostStep::KubeadmUpgrade {
                version,
                role: self.role,
                kubeadm: self.settings.kubeadm.clone().unwrap_or_default(),
            }),
            self.etcd().map(HostStep::EtcdUpgrade),
            self.renewal().map(HostStep::CertificatesRenew),
        ];
        steps.into_iter().flatten().collect()
    }

    /// What follows where the node is drained if the update drains it.
    fn disturbs(&self) -> Vec<HostStep> {
        let settings = self.settings;
        let image = self.new_image();
        let in_image = image.as_ref().is_some_and(|image| image.brings_kubelet);
        let runtime = self.applies_settings && !settings.container_runtime.is_empty();
        let last = if self.reboots() {
            Some(HostStep::Reboot {})
        } else {
            self.restarts_kubelet().then_some(HostStep::KubeletRestart {})
        };
        let applied = self.applies_settings;
        let steps = [
            configuration::files(
                settings.files.as_ref().filter(|_| applied),
                self.configuration.as_ref(),
            )
            .map(|files| HostStep::Files(files.into_owned())),
            self.configured(|configuration| configuration.keys.clone()).map(HostStep::KeysRevoke),
            settings.ntp.clone().filter(|_| applied).map(HostStep::Ntp),
            self.configured(|configuration| configuration.ntp.clone()).map(HostStep::NtpReplace),
            self.configured(|configuration| configuration.units.clone()).map(HostStep::UnitActions),
            runtime.then(|| HostStep::ContainerRuntimeInstall { packages: self.all_packages() }),
            self.configured(|configuration| configuration.commands.clone()).map(HostStep::Commands),
            image.clone().map(|os_image| HostStep::OsImageFinalize { os_image }),
            self.flags().map(HostStep::KubeletFlags),
            self.kubelet_package().map(|version| HostStep::KubeletInstall {
                version,
                packages: self.packages(),
                kubelet: self.all_flags(),
            }),
            last,
            self.may_boot().then_some(HostStep::RebootIfRequired {}),
            image.map(|os_image| HostStep::OsImageCommit { os_image }),
            // A kubelet that nothing here replaces is checked as it is.
            Some(HostStep::Verify {
                version: self.version.filter(|_| self.upgrades || in_image).cloned(),
            }),
        ];
        steps.into_iter().flatten().collect()
    }

    /// Whether the host must get an image that it does not run yet.
    fn changes_os_image(&self) -> bool {
        self.os_image
            .is_some_and(|image| self.facts.is_none_or(|facts| facts.os_image != image.name))
    }

    /// Whether something takes effect only when the kubelet starts again.
    fn restarts_kubelet(&self) -> bool {
        let for_file = self.configuration.as_ref().is_some_and(|one| one.restarts_kubelet);
        self.upgrades || self.flags().is_some() || for_file
    }

    /// The packages of the operating system; none for a host that gets another image, which has its own.
    fn os_packages(&self) -> Option<OsPackageArgs> {
        self.os_packages.clone().filter(|_| !self.changes_os_image())
    }

    /// Whether the host boots if its packages require it, after everything else. A kubelet that was restarted before is known
    /// to run, or is rolled back.
    fn may_boot(&self) -> bool {
        let reboot = self.os_packages().map(|packages| packages.reboot);
        reboot == Some(RebootChoice::IfRequired) && !self.reboots()
    }

    fn reboots(&self) -> bool {
        let instead = self.reboot == Reboot::Always && self.restarts_kubelet();
        let for_file = self.configuration.as_ref().is_some_and(|one| one.reboots);
        self.changes_os_image() || instead || for_file
    }

    /// A step with the limits and the undo that apply here.
    fn planned(&self, step: HostStep) -> PlannedStep {
        let planned = limited(step, self.settings);
        // Only a new package source, that of another minor version, is rolled back.
        let stays = planned.step_type() == Some(StepType::Stage) && !self.moves_sources();
        PlannedStep { undo: planned.undo.filter(|_| !stays), ..planned }
    }

    fn moves_sources(&self) -> bool {
        let packages = self.settings.packages.as_ref();
        packages.is_some_and(|packages| !packages.repository.is_empty())
    }

    /// Package sources and packages, including those of the container runtime.
    fn all_packages(&self) -> PackageArgs {
        let mut packages = self.packages();
        packages.install.extend_from_slice(&self.settings.container_runtime);
        packages
    }

    /// kubeadm's own images are pulled before its upgrade stops anything
    /// (`docs/facts/hosts.md#order-of-steps`). For a control plane they are pulled by default, if
    /// the host can reach them.
    fn staged_images(&self) -> Option<ImageArgs> {
        let asked = self.settings.images.as_ref();
        if asked.is_none() && !self.is_member() {
            return None;
        }
        Some(ImageArgs {
            kubeadm: true,
            optional: asked.is_none(),
            repository: asked.map_or_else(String::new, |images| images.repository.clone()),
            ..ImageArgs::default()
        })
    }
}

/// The same packages of the operating system, while those of the container runtime keep their versions: another step changes
/// them.
pub(super) fn keeping_runtime(packages: &OsPackageArgs, settings: &PlanSettings) -> OsPackageArgs {
    let runtime = settings.container_runtime.iter().map(|package| &package.name);
    let kept = runtime.filter(|name| !packages.keeps(name)).cloned();
    let exclude = packages.exclude.iter().cloned().chain(kept).collect();
    OsPackageArgs { exclude, ..packages.clone() }
}

/// A step with the limits of the settings.
fn limited(step: HostStep, settings: &PlanSettings) -> PlannedStep {
    let planned = PlannedStep::new(step);
    let limits = settings.limits.get(&planned.id).copied().unwrap_or_default();
    PlannedStep {
        timeout_seconds: limits.timeout_seconds,
        max_attempts: limits.max_attempts,
        ..planned
    }
}

/// The steps of an update that changes only the Kubernetes version, for use without a host report.
pub fn plan_steps(role: Role, goal: &KubernetesVersion) -> Vec<PlannedStep> {
    HostWork::upgrade(role, goal, &PlanSettings::default()).steps()
}
