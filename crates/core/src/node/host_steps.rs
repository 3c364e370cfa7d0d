//! The steps of a host, cut by gates, and the point from which there is no way back.
//!
//! | gate | steps | taken back by |
//! |---|---|---|
//! | Stage | preflight, stage, image-preload, os-image-stage, snapshot | nothing: they change nothing that runs; sources of packages go back |
//! | Upgrade | kubeadm-install, kubeadm-upgrade, certificates-renew | packages, configuration |
//! | Disrupt | files, ntp, container-runtime-install, os-image-finalize, kubelet-flags or kubelet-install, kubelet-restart or reboot, os-image-commit, verify | files, packages, the A/B slot, a restart |
//!
//! Between Upgrade and Disrupt the controller empties the node. What the goal and the settings do not
//! ask for is not planned.
//!
//! The point of no return (`spec/node.md 2.9`):
//! - a control plane: `kubeadm-upgrade`. API objects, static pods and etcd are those of the new
//!   version; kubeadm puts manifests back by itself where a new static pod does not come up.
//! - a worker that reboots: `reboot`. Another boot would be needed to go back.
//! - another worker: none of its own steps. An old kubelet is legal below a newer control plane, so
//!   packages and configuration go back and the kubelet is restarted.

use refit_kinds::refit::{
    Gate, HostFacts, HostSettings, ImageArgs, KubeletArgs, PackageArgs, PlannedStep, Role,
    StepAction, StepType, StepUndo,
};

use super::steps::STEP_NODE_READY;

/// Id of a step on the host, as statuses and durations name it.
pub(super) fn step_id(step: StepType) -> &'static str {
    match step {
        StepType::Preflight => "preflight",
        StepType::Stage => "stage",
        StepType::ImagePreload => "image-preload",
        StepType::OsImageStage => "os-image-stage",
        StepType::Snapshot => "snapshot",
        StepType::KubeadmInstall => "kubeadm-install",
        StepType::KubeadmUpgrade => "kubeadm-upgrade",
        StepType::CertificatesRenew => "certificates-renew",
        StepType::Files => "files",
        StepType::Ntp => "ntp",
        StepType::ContainerRuntimeInstall => "container-runtime-install",
        StepType::OsImageFinalize => "os-image-finalize",
        StepType::KubeletFlags => "kubelet-flags",
        StepType::KubeletInstall => "kubelet-install",
        StepType::KubectlInstall => "kubectl-install",
        StepType::KubeletRestart => "kubelet-restart",
        StepType::Reboot => "reboot",
        StepType::OsImageCommit => "os-image-commit",
        StepType::Verify => "verify",
        StepType::Undo => "undo",
    }
}

/// When a host reboots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reboot {
    /// Where a step takes effect with a reboot only.
    #[default]
    IfNeeded,
    /// In every update, in place of the kubelet's restart.
    Always,
}

/// What a host is to become, and what it is now.
#[derive(Clone, Copy, Debug)]
pub struct HostWork<'a> {
    /// What the machine is to kubeadm.
    pub role: Role,
    /// Kubernetes version, `vX.Y.Z`.
    pub version: &'a str,
    /// When the host reboots.
    pub reboot: Reboot,
    /// What the hosts here need beside that.
    pub settings: &'a HostSettings,
    /// What the host reports; without a report nothing is known to differ.
    pub facts: Option<&'a HostFacts>,
}

impl HostWork<'_> {
    /// The steps that bring the host there, in the order of `spec/node.md 2.6`: everything that
    /// disturbs nothing, then kubeadm, then, on an empty node, the rest. A reboot takes the place of
    /// the kubelet's restart, and comes after everything else.
    ///
    /// Every step is safe to repeat, so the plan does not depend on how far an earlier one came.
    pub fn steps(&self) -> Vec<PlannedStep> {
        let point = self.point_of_no_return();
        let mut steps: Vec<PlannedStep> =
            self.types().into_iter().map(|step| self.planned(step)).collect();
        // What cannot be taken back has no undo, however its kind is taken back elsewhere.
        let first = steps.iter().position(|step| step.id == point);
        for step in steps.iter_mut().skip(first.unwrap_or(usize::MAX)) {
            step.undo = None;
        }
        steps
    }

    /// Id of the first step that cannot be taken back: before it a failure or an abort undoes what
    /// the host did.
    pub fn point_of_no_return(&self) -> &'static str {
        match self.role {
            Role::FirstControlPlane | Role::ControlPlane => step_id(StepType::KubeadmUpgrade),
            Role::Worker if self.reboots() => step_id(StepType::Reboot),
            Role::Worker => STEP_NODE_READY,
        }
    }

    fn types(&self) -> Vec<StepType> {
        let settings = self.settings;
        let image = self.changes_os_image();
        let own_kubelet = image && settings.os_image.as_ref().is_some_and(|i| i.brings_kubelet);
        let files = settings.files.is_some();
        let control_plane = self.role != Role::Worker;
        let flags = |args: &KubeletArgs| *args != KubeletArgs::default();
        let candidates = [
            (StepType::Preflight, true),
            (StepType::Stage, true),
            (StepType::ImagePreload, settings.images.is_some()),
            (StepType::OsImageStage, image),
            (StepType::Snapshot, control_plane || files || settings.ntp.is_some()),
            (StepType::KubeadmInstall, true),
            (StepType::KubeadmUpgrade, true),
            (StepType::CertificatesRenew, control_plane && settings.certificates.is_some()),
            (StepType::Files, files),
            (StepType::Ntp, settings.ntp.is_some()),
            (StepType::ContainerRuntimeInstall, !settings.container_runtime.is_empty()),
            (StepType::OsImageFinalize, image),
            // No package sets them then, and its kubelet reads them at its first start.
            (StepType::KubeletFlags, own_kubelet && settings.kubelet.as_ref().is_some_and(flags)),
            (StepType::KubeletInstall, !own_kubelet),
            (StepType::KubeletRestart, !self.reboots()),
            (StepType::Reboot, self.reboots()),
            (StepType::OsImageCommit, image),
            (StepType::Verify, true),
        ];
        let wanted = candidates.into_iter().filter(|(_, wanted)| *wanted);
        wanted.map(|(step, _)| step).collect()
    }

    /// Whether an image is to be written that the host does not run yet.
    fn changes_os_image(&self) -> bool {
        let image = self.settings.os_image.as_ref();
        image.is_some_and(|image| self.facts.is_none_or(|facts| facts.os_image != image.name))
    }

    fn reboots(&self) -> bool {
        match self.reboot {
            Reboot::IfNeeded => self.changes_os_image(),
            Reboot::Always => true,
        }
    }

    fn planned(&self, type_: StepType) -> PlannedStep {
        let id = step_id(type_);
        let limits = self.settings.limits.get(id).copied().unwrap_or_default();
        PlannedStep {
            id: id.to_owned(),
            gate: gate(type_),
            action: self.action(type_),
            disruptive: is_disruptive(type_),
            timeout_seconds: limits.timeout_seconds,
            max_attempts: limits.max_attempts,
            undo: self.undo(type_),
        }
    }

    /// How a step is taken back; `None` for one that changes nothing that runs or will run.
    fn undo(&self, type_: StepType) -> Option<StepUndo> {
        match type_ {
            StepType::KubeadmInstall
            | StepType::KubeletInstall
            | StepType::KubectlInstall
            | StepType::ContainerRuntimeInstall => Some(StepUndo::Packages),
            StepType::KubeadmUpgrade => Some(StepUndo::Configuration),
            StepType::Files | StepType::Ntp | StepType::KubeletFlags => Some(StepUndo::Files),
            // The host's sources of packages are those of another minor version then.
            StepType::Stage => {
                let packages = self.settings.packages.as_ref();
                let moves = packages.is_some_and(|packages| !packages.repository.is_empty());
                moves.then_some(StepUndo::Files)
            }
            StepType::OsImageFinalize => Some(StepUndo::OsImage),
            StepType::KubeletRestart => Some(StepUndo::KubeletRestart),
            StepType::Preflight
            | StepType::ImagePreload
            | StepType::OsImageStage
            | StepType::Snapshot
            | StepType::CertificatesRenew
            | StepType::Reboot
            | StepType::OsImageCommit
            | StepType::Verify
            | StepType::Undo => None,
        }
    }

    fn action(&self, type_: StepType) -> StepAction {
        let settings = self.settings;
        let mut action = StepAction::new(type_);
        if wants_version(type_) {
            self.version.clone_into(&mut action.version);
        }
        match type_ {
            StepType::Snapshot => action.role = Some(self.role),
            StepType::Preflight | StepType::KubeadmUpgrade => {
                action.role = Some(self.role);
                action.kubeadm.clone_from(&settings.kubeadm);
            }
            StepType::Stage => {
                action.packages = self.all_packages();
                action.images = self.staged_images();
                action.bundle.clone_from(&settings.bundle);
            }
            StepType::ImagePreload => {
                action.images.clone_from(&settings.images);
                action.bundle.clone_from(&settings.bundle);
            }
            StepType::KubeadmInstall | StepType::KubectlInstall => {
                action.packages.clone_from(&settings.packages);
            }
            StepType::KubeletInstall => {
                action.packages.clone_from(&settings.packages);
                action.kubelet.clone_from(&settings.kubelet);
            }
            StepType::KubeletFlags => action.kubelet.clone_from(&settings.kubelet),
            StepType::CertificatesRenew => action.certificates.clone_from(&settings.certificates),
            StepType::ContainerRuntimeInstall => action.packages = self.all_packages(),
            StepType::OsImageStage | StepType::OsImageFinalize | StepType::OsImageCommit => {
                action.os_image.clone_from(&settings.os_image);
                if type_ == StepType::OsImageStage {
                    action.bundle.clone_from(&settings.bundle);
                }
            }
            StepType::Files => action.files.clone_from(&settings.files),
            StepType::Ntp => action.ntp.clone_from(&settings.ntp),
            StepType::KubeletRestart | StepType::Reboot | StepType::Verify | StepType::Undo => {}
        }
        action
    }

    /// Where packages come from, with those of the runtime.
    fn all_packages(&self) -> Option<PackageArgs> {
        let settings = self.settings;
        if settings.packages.is_none() && settings.container_runtime.is_empty() {
            return None;
        }
        let mut packages = settings.packages.clone().unwrap_or_default();
        packages.install.extend_from_slice(&settings.container_runtime);
        Some(packages)
    }

    /// kubeadm's own images are there before its upgrade stops anything (`spec/node.md 2.6`). Those
    /// of a control plane are fetched by default, as far as that can be done from here.
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

/// The steps of an update that changes the Kubernetes version only, for whoever has no host to ask.
pub fn plan_steps(role: Role, goal: &str) -> Vec<PlannedStep> {
    let work = HostWork {
        role,
        version: goal,
        reboot: Reboot::IfNeeded,
        settings: &HostSettings::default(),
        facts: None,
    };
    work.steps()
}

fn gate(type_: StepType) -> Gate {
    match type_ {
        StepType::Preflight
        | StepType::Stage
        | StepType::ImagePreload
        | StepType::OsImageStage
        | StepType::Snapshot => Gate::Stage,
        StepType::KubeadmInstall | StepType::KubeadmUpgrade | StepType::CertificatesRenew => {
            Gate::Upgrade
        }
        StepType::Files
        | StepType::Ntp
        | StepType::ContainerRuntimeInstall
        | StepType::OsImageFinalize
        | StepType::KubeletFlags
        | StepType::KubeletInstall
        | StepType::KubectlInstall
        | StepType::KubeletRestart
        | StepType::Reboot
        | StepType::OsImageCommit
        | StepType::Verify
        | StepType::Undo => Gate::Disrupt,
    }
}

fn is_disruptive(type_: StepType) -> bool {
    matches!(
        type_,
        StepType::Files
            | StepType::ContainerRuntimeInstall
            | StepType::KubeletInstall
            | StepType::KubeletRestart
            | StepType::Reboot
    )
}

fn wants_version(type_: StepType) -> bool {
    matches!(
        type_,
        StepType::Preflight
            | StepType::Stage
            | StepType::ImagePreload
            | StepType::KubeadmInstall
            | StepType::KubeadmUpgrade
            | StepType::KubeletInstall
            | StepType::KubectlInstall
            | StepType::Verify
    )
}
