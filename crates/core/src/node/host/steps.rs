//! The steps of a host, divided by gates, and the point of no return.
//!
//! | gate | steps | rolled back by |
//! |---|---|---|
//! | Stage | preflight, stage, image-preload, os-image-stage, snapshot | nothing: they change nothing that runs; package sources are restored |
//! | Upgrade | kubeadm-install, kubeadm-upgrade, certificates-renew | packages, configuration |
//! | Disrupt | files, ntp, container-runtime-install, os-image-finalize, kubelet-flags or kubelet-install, kubelet-restart or reboot, os-image-commit, verify | files, packages, the A/B slot, a restart |
//!
//! Between Upgrade and Disrupt the controller drains the node. Steps that the goal and the settings
//! do not require are not planned.
//!
//! The point of no return (`docs/facts/kubeadm.md#rolling-back`):
//! - a control plane: `kubeadm-upgrade`. API objects, static pods and etcd have the new version;
//!   kubeadm itself restores manifests if a new static pod does not start.
//! - a worker that reboots: `reboot`. Rolling back would require another reboot.
//! - another worker: none of its steps. An older kubelet is supported with a newer control plane,
//!   so packages and configuration are rolled back and the kubelet is restarted.

use refit_kinds::{
    refit::{
        HostFacts, HostStep, ImageArgs, KubeletArgs, OsImageArgs, PackageArgs, PlanSettings,
        PlannedStep, Role, StepType,
    },
    version::KubernetesVersion,
};

use crate::node::steps::STEP_NODE_READY;

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
#[derive(Clone, Copy, Debug)]
pub struct HostWork<'a> {
    /// Role of the machine for kubeadm.
    pub role: Role,
    /// The Kubernetes version.
    pub version: &'a KubernetesVersion,
    /// When the host reboots.
    pub reboot: Reboot,
    /// Other settings of the hosts; `os_image` is that of the field below.
    pub settings: &'a PlanSettings,
    /// The OS image, from the settings or from an Updater.
    pub os_image: Option<&'a OsImageArgs>,
    /// Facts reported by the host; without a report no difference is known.
    pub facts: Option<&'a HostFacts>,
}

impl HostWork<'_> {
    /// The steps that bring the host to the target, in the order of
    /// `docs/facts/hosts.md#order-of-steps`: first everything that does not disturb, then kubeadm,
    /// then the remaining steps on a drained node. A reboot replaces the kubelet restart and comes
    /// after everything else.
    ///
    /// Every step is safe to repeat, so the plan does not depend on the progress of an earlier
    /// plan.
    pub fn steps(&self) -> Vec<PlannedStep> {
        let point = self.point_of_no_return();
        let mut steps: Vec<PlannedStep> =
            self.wanted().into_iter().map(|step| self.planned(step)).collect();
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
        match self.role {
            Role::FirstControlPlane | Role::ControlPlane => StepType::KubeadmUpgrade.id(),
            Role::Worker if self.reboots() => StepType::Reboot.id(),
            Role::Worker => STEP_NODE_READY,
        }
    }

    /// The steps of the host. An optional step follows the condition that requires it.
    fn wanted(&self) -> Vec<HostStep> {
        let settings = self.settings;
        let version = || self.version.clone();
        let packages = || settings.packages.clone().unwrap_or_default();
        let bundle = || settings.bundle.clone();
        let image = self.os_image.filter(|_| self.changes_os_image());
        let os_image = || image.cloned();
        let own_kubelet = image.is_some_and(|image| image.brings_kubelet);
        let control_plane = self.role != Role::Worker;
        let saves = control_plane || settings.files.is_some() || settings.ntp.is_some();
        let flags = settings.kubelet.clone().filter(|flags| *flags != KubeletArgs::default());
        let runtime = !settings.container_runtime.is_empty();
        let steps = [
            Some(HostStep::Preflight { version: Some(version()) }),
            Some(HostStep::Stage {
                version: version(),
                packages: self.all_packages(),
                images: self.staged_images(),
                bundle: bundle(),
            }),
            settings.images.clone().map(|images| HostStep::ImagePreload {
                version: Some(version()),
                images,
                bundle: bundle(),
            }),
            os_image().map(|os_image| HostStep::OsImageStage { os_image, bundle: bundle() }),
            saves.then_some(HostStep::Snapshot {}),
            Some(HostStep::KubeadmInstall { version: version(), packages: packages() }),
            Some(HostStep::KubeadmUpgrade {
                version: version(),
                role: self.role,
                kubeadm: settings.kubeadm.clone().unwrap_or_default(),
            }),
            settings
                .certificates
                .clone()
                .filter(|_| control_plane)
                .map(HostStep::CertificatesRenew),
            settings.files.clone().map(HostStep::Files),
            settings.ntp.clone().map(HostStep::Ntp),
            runtime.then(|| HostStep::ContainerRuntimeInstall { packages: self.all_packages() }),
            os_image().map(|os_image| HostStep::OsImageFinalize { os_image }),
            // No package sets the flags in this case; the kubelet reads them at its first start.
            flags.filter(|_| own_kubelet).map(HostStep::KubeletFlags),
            (!own_kubelet).then(|| HostStep::KubeletInstall {
                version: version(),
                packages: packages(),
                kubelet: settings.kubelet.clone().unwrap_or_default(),
            }),
            Some(if self.reboots() { HostStep::Reboot {} } else { HostStep::KubeletRestart {} }),
            os_image().map(|os_image| HostStep::OsImageCommit { os_image }),
            Some(HostStep::Verify { version: Some(version()) }),
        ];
        steps.into_iter().flatten().collect()
    }

    /// Whether the host must get an image that it does not run yet.
    fn changes_os_image(&self) -> bool {
        self.os_image
            .is_some_and(|image| self.facts.is_none_or(|facts| facts.os_image != image.name))
    }

    fn reboots(&self) -> bool {
        match self.reboot {
            Reboot::IfNeeded => self.changes_os_image(),
            Reboot::Always => true,
        }
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
        let mut packages = self.settings.packages.clone().unwrap_or_default();
        packages.install.extend_from_slice(&self.settings.container_runtime);
        packages
    }

    /// kubeadm's own images are pulled before its upgrade stops anything
    /// (`docs/facts/hosts.md#order-of-steps`). For a control plane they are pulled by default, if
    /// the host can reach them.
    fn staged_images(&self) -> Option<ImageArgs> {
        let asked = self.settings.images.as_ref();
        if asked.is_none() && self.role == Role::Worker {
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

/// A step with the limits of the settings.
pub(in crate::node) fn limited(step: HostStep, settings: &PlanSettings) -> PlannedStep {
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
    let work = HostWork {
        role,
        version: goal,
        reboot: Reboot::IfNeeded,
        settings: &PlanSettings::default(),
        os_image: None,
        facts: None,
    };
    work.steps()
}
