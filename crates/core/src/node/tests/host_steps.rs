//! Which steps are planned, and how they are rolled back.

use std::{collections::BTreeSet, sync::LazyLock};

use refit_kinds::{
    refit::{
        CertificateArgs, FileArgs, Gate, HostFacts, HostStep, ImageArgs, KubeletArgs, NtpArgs,
        OsImageArgs, PackageArgs, PackageVersion, Phase, PlanSettings, PlannedStep, Role,
        StepLimits, StepType, StepUndo,
    },
    version::KubernetesVersion,
};

use super::world::*;
use crate::{
    node::{HostWork, ImageVersion, STEP_NODE_READY, plan_steps},
    report::Refusal,
};

static NEW: LazyLock<KubernetesVersion> = LazyLock::new(|| GOAL.parse().unwrap());
const ROLES: [Role; 3] = [Role::FirstControlPlane, Role::ControlPlane, Role::Worker];

fn ids(steps: &[PlannedStep]) -> Vec<&str> {
    steps.iter().map(|step| step.id.as_str()).collect()
}

/// Settings that enable every optional step.
fn everything() -> PlanSettings {
    PlanSettings {
        packages: Some(PackageArgs {
            repository: "https://packages.example/v1.35/deb/".into(),
            ..PackageArgs::default()
        }),
        container_runtime: vec![PackageVersion {
            name: "containerd.io".into(),
            version: "2.1.4-1".into(),
        }],
        os_image: Some(OsImageArgs {
            name: "os-2".into(),
            url: "file:///images/os-2.cosi".into(),
            sha384: "ab".into(),
            ..OsImageArgs::default()
        }),
        images: Some(ImageArgs::default()),
        files: Some(FileArgs::default()),
        ntp: Some(NtpArgs::default()),
        ..PlanSettings::default()
    }
}

fn work<'a>(role: Role, settings: &'a PlanSettings, facts: Option<&'a HostFacts>) -> HostWork<'a> {
    HostWork { facts, ..HostWork::upgrade(role, &NEW, settings) }
}

#[test]
fn unrequested_steps_are_not_planned() {
    assert_eq!(
        ids(&plan_steps(Role::Worker, &GOAL.parse().unwrap())),
        [
            "preflight",
            "stage",
            "kubeadm-install",
            "kubeadm-upgrade",
            "kubelet-install",
            "kubelet-restart",
            "verify",
        ]
    );
    for step in plan_steps(Role::FirstControlPlane, &GOAL.parse().unwrap()) {
        let packages = step.step().unwrap().packages();
        assert!(packages.is_none_or(|more| *more == PackageArgs::default()), "{}", step.id);
        assert_eq!((step.timeout_seconds, step.max_attempts), (None, None));
    }
}

#[test]
fn steps_are_ordered_and_the_reboot_comes_last() {
    let settings = everything();
    let steps = work(Role::ControlPlane, &settings, None).steps();
    assert_eq!(
        ids(&steps),
        [
            "preflight",
            "stage",
            "image-preload",
            "os-image-stage",
            "snapshot",
            "kubeadm-install",
            "kubeadm-upgrade",
            "files",
            "ntp",
            "container-runtime-install",
            "os-image-finalize",
            "kubelet-install",
            "reboot",
            "os-image-commit",
            "verify",
        ]
    );
    assert!(steps.is_sorted_by_key(|step| step.gate));
    assert!(steps.is_sorted_by_key(refit_kinds::refit::PlannedStep::step_type));
    let unique: BTreeSet<_> = ids(&steps).into_iter().collect();
    assert_eq!(unique.len(), steps.len());
}

#[test]
fn disturbing_steps_follow_the_drain_with_one_restart() {
    let settings = everything();
    let none = PlanSettings::default();
    for role in ROLES {
        for settings in [&settings, &none] {
            let steps = work(role, settings, None).steps();
            let early = steps.iter().filter(|step| step.gate < Gate::Disrupt);
            assert!(early.clone().all(|step| !step.disruptive));
            let restarts = |step: &&PlannedStep| {
                matches!(step.step_type(), Some(StepType::KubeletRestart | StepType::Reboot))
            };
            assert_eq!(steps.iter().filter(restarts).count(), 1, "{role:?}");
        }
    }
}

#[test]
fn the_running_image_is_not_written_again() {
    let settings = everything();
    let facts = HostFacts { os_image: "os-2".into(), ..HostFacts::default() };
    let steps = work(Role::Worker, &settings, Some(&facts)).steps();
    let ids = ids(&steps);
    assert!(!ids.iter().any(|id| id.starts_with("os-image") || *id == "reboot"), "{ids:?}");
    assert!(ids.contains(&"kubelet-restart"));
}

#[test]
fn an_image_that_brings_the_kubelet_needs_no_package_of_it_and_loses_no_flag() {
    let mut settings = everything();
    settings.os_image.as_mut().unwrap().brings_kubelet = true;
    let steps = work(Role::Worker, &settings, None).steps();
    assert!(!ids(&steps).contains(&"kubelet-install"));
    assert!(!ids(&steps).contains(&"kubelet-flags"), "none is asked for");
    let flags = KubeletArgs {
        remove_args: vec!["pod-infra-container-image".into()],
        ..KubeletArgs::default()
    };
    settings.kubelet = Some(flags.clone());
    let steps = work(Role::Worker, &settings, None).steps();
    let at = |id: &str| steps.iter().position(|step| step.id == id).unwrap();
    let step = &steps[at("kubelet-flags")];
    assert!(at("kubelet-flags") < at("reboot"));
    assert_eq!(step.step(), Some(&HostStep::KubeletFlags(flags)));
    assert_eq!(step.undo, Some(StepUndo::Files));
    // If a package installs the kubelet, its own step sets the flags.
    settings.os_image = None;
    let steps = work(Role::Worker, &settings, None).steps();
    assert!(!ids(&steps).contains(&"kubelet-flags"));
}

#[test]
fn certificates_are_renewed_on_control_planes_on_request() {
    let certificates = CertificateArgs { renew_within_days: 60 };
    let settings =
        PlanSettings { certificates: Some(certificates.clone()), ..PlanSettings::default() };
    for role in ROLES {
        let steps = work(role, &settings, None).steps();
        let step = steps.iter().find(|step| step.id == "certificates-renew");
        assert_eq!(step.is_some(), role != Role::Worker, "{role:?}");
        assert!(step.is_none_or(|step| step.gate == Gate::Upgrade
            && step.step() == Some(&HostStep::CertificatesRenew(certificates.clone()))));
        assert!(steps.is_sorted_by_key(refit_kinds::refit::PlannedStep::step_type));
    }
    let none = PlanSettings::default();
    let steps = work(Role::ControlPlane, &none, None).steps();
    assert!(!ids(&steps).contains(&"certificates-renew"));
}

/// How certificates are renewed without an upgrade: a NodeUpdate to the running version.
#[test]
fn certificates_can_be_renewed_without_an_upgrade() {
    let mut one = One::control_plane();
    for node in &mut one.nodes {
        node.kubelet_version = GOAL.into();
    }
    for pod in one.static_pods.iter_mut().filter(|p| p.component != "etcd") {
        pod.version = ImageVersion::of_tag(GOAL);
    }
    one.settings.certificates = Some(CertificateArgs { renew_within_days: 60 });
    let status = one.plan.as_mut().unwrap().status.as_mut().unwrap();
    status.capabilities.push(StepType::CertificatesRenew);
    let mut one = one.disrupted();
    one.settle_with_static_pods();
    assert_eq!(one.phase(), Phase::Succeeded, "{:?}", one.blocked_by());
    let status = one.status();
    let names: Vec<_> = status.steps.iter().map(|step| step.name.as_str()).collect();
    assert!(names.contains(&"certificates-renew"), "{names:?}");
}

/// The contract with the agent: before the point of no return every step that changes the host has
/// an undo, and from that point on none has.
#[test]
fn only_steps_before_the_point_of_no_return_have_an_undo() {
    let settings = everything();
    let none = PlanSettings::default();
    let changes_nothing = [
        StepType::Preflight,
        StepType::ImagePreload,
        StepType::OsImageStage,
        StepType::Snapshot,
        StepType::Verify,
    ];
    for role in ROLES {
        for settings in [&settings, &none] {
            let work = work(role, settings, None);
            let (steps, point) = (work.steps(), work.point_of_no_return());
            let at = steps.iter().position(|step| step.id == point);
            let (before, after) = steps.split_at(at.unwrap_or(steps.len()));
            for step in before {
                let moves_sources = settings.packages.is_some();
                let type_ = step.step_type().unwrap();
                let still = changes_nothing.contains(&type_)
                    || (type_ == StepType::Stage && !moves_sources);
                assert_eq!(step.undo.is_none(), still, "{role:?} {}", step.id);
            }
            assert!(after.iter().all(|step| step.undo.is_none()), "{role:?}");
        }
    }
}

#[test]
fn each_role_has_its_point_of_no_return() {
    let (all, none) = (everything(), PlanSettings::default());
    for (role, settings, point) in [
        (Role::FirstControlPlane, &none, "kubeadm-upgrade"),
        (Role::ControlPlane, &all, "kubeadm-upgrade"),
        (Role::Worker, &all, "reboot"),
        (Role::Worker, &none, STEP_NODE_READY),
    ] {
        assert_eq!(work(role, settings, None).point_of_no_return(), point);
    }
    let undo = |id: &str| {
        let steps = plan_steps(Role::Worker, &GOAL.parse().unwrap());
        steps.into_iter().find(|step| step.id == id).unwrap().undo
    };
    assert_eq!(undo("kubeadm-upgrade"), Some(StepUndo::Configuration));
    assert_eq!(undo("kubelet-install"), Some(StepUndo::Packages));
    assert_eq!(undo("kubelet-restart"), Some(StepUndo::KubeletRestart));
}

#[test]
fn step_limits_reach_the_plan() {
    let mut settings = PlanSettings::default();
    let limits = StepLimits { timeout_seconds: Some(7200), max_attempts: Some(9) };
    settings.limits.insert("stage".into(), limits);
    for step in work(Role::Worker, &settings, None).steps() {
        let expected = if step.id == "stage" { limits } else { StepLimits::default() };
        let found =
            StepLimits { timeout_seconds: step.timeout_seconds, max_attempts: step.max_attempts };
        assert_eq!(found, expected, "{}", step.id);
    }
}

#[test]
fn a_host_plan_names_its_point_of_no_return() {
    let mut one = One::worker();
    one.settle();
    let spec = &one.plan.as_ref().unwrap().spec;
    assert_eq!(spec.point_of_no_return, STEP_NODE_READY);
    let mut first = One::control_plane();
    first.settle();
    let spec = &first.plan.as_ref().unwrap().spec;
    assert_eq!(spec.point_of_no_return, "kubeadm-upgrade");
}

#[test]
fn unreadable_settings_hold_updates_that_have_not_begun() {
    let mut one = One::worker();
    one.settings_refused = Some(Refusal::HostSettingsUnreadable {
        name: "edge".into(),
        why: "unknown field `ntpp`".into(),
    });
    one.settle();
    assert_eq!(one.blocked_by(), ["HostSettingsUnreadable"]);
    assert_eq!(one.gate(), Gate::Closed);
    one.settings_refused = None;
    one.settings = everything();
    one.settle();
    assert_eq!(one.phase(), Phase::Pending, "{:?}", one.blocked_by());
    assert_eq!(one.blocked_by(), ["AgentTooOld"], "this agent knows no OS images");
}

#[test]
fn an_unexpected_os_image_is_detected() {
    let mut one = One::worker();
    one.settings = everything();
    let status = one.plan.as_mut().unwrap().status.as_mut().unwrap();
    status.capabilities.extend([
        StepType::ImagePreload,
        StepType::Files,
        StepType::Ntp,
        StepType::ContainerRuntimeInstall,
        StepType::OsImageStage,
        StepType::OsImageFinalize,
        StepType::OsImageCommit,
    ]);
    one = one.disrupted();
    let facts = |one: &mut One, image: &str| {
        let status = one.plan.as_mut().unwrap().status.as_mut().unwrap();
        status.facts.os_image = image.into();
    };
    facts(&mut one, "os-1");
    one.settle();
    assert_eq!(one.blocked_by(), ["NodeNotVerified"]);
    facts(&mut one, "os-2");
    one.settle();
    assert_eq!(one.phase(), Phase::Succeeded);
}

#[test]
fn a_failure_reports_the_host_state_and_the_remedy() {
    use refit_kinds::refit::{FailureKind, StepState};
    for (left, failure, undone, ending) in [
        (vec![], FailureKind::Retriable, true, "; the host has rolled back"),
        (
            vec!["Step kubeadm-install is done, and stays so.".to_owned()],
            FailureKind::NeedsPerson,
            true,
            "; Step kubeadm-install is done, and stays so; manual intervention is required",
        ),
        (vec![], FailureKind::Final, false, "; another attempt cannot succeed"),
    ] {
        let mut one = One::worker().upgraded();
        one.host_fails("kubelet-install");
        let status = one.plan.as_mut().unwrap().status.as_mut().unwrap();
        status.left_behind = left;
        for step in &mut status.steps {
            match step.id.as_str() {
                "kubelet-install" => step.failure = Some(failure),
                "kubeadm-install" if undone => step.state = StepState::Undone,
                _ => {}
            }
        }
        one.settle();
        let status = one.update.status.as_ref().unwrap();
        assert_eq!(status.phase, Phase::Failed);
        assert!(status.failure_message.ends_with(ending), "{}", status.failure_message);
    }
}

#[test]
fn control_plane_images_are_staged_before_kubeadm_runs() {
    let staged = |role, settings: &PlanSettings| {
        let steps = work(role, settings, None).steps();
        steps.iter().find_map(|step| match step.step() {
            Some(HostStep::Stage { images, .. }) => {
                Some(images.as_ref().map(|images| (images.kubeadm, images.optional)))
            }
            _ => None,
        })
    };
    let none = PlanSettings::default();
    assert_eq!(staged(Role::FirstControlPlane, &none), Some(Some((true, true))));
    assert_eq!(staged(Role::Worker, &none), Some(None));
    assert_eq!(staged(Role::Worker, &everything()), Some(Some((true, false))));
}
