use std::collections::BTreeSet;

use schemars::SchemaGenerator;
use serde_json::json;

use super::*;
use crate::refit::{UnitAction, UnitVerb};

#[test]
fn the_schema_wants_exactly_one_object() {
    let schema = HostStep::json_schema(&mut SchemaGenerator::default());
    let members = schema.get("properties").and_then(Value::as_object).unwrap();
    let names: BTreeSet<_> = StepType::VARIANTS.iter().map(|type_| type_.member()).collect();
    assert_eq!(members.keys().cloned().collect::<BTreeSet<_>>(), names);
    assert!(members.values().all(|member| member["description"].is_string()));
    assert_eq!(schema.get("minProperties"), Some(&json!(1)));
    assert_eq!(schema.get("maxProperties"), Some(&json!(1)));
    assert!(schema.get("oneOf").is_none());
}

#[test]
fn the_table_agrees_with_itself() {
    for type_ in StepType::VARIANTS {
        let rules = type_.rules();
        assert!(rules.gate > Gate::Closed, "{type_:?}");
        assert!(rules.disruptive <= (rules.gate == Gate::Disrupt), "{type_:?}");
        let disturbs = rules.least_disruption > Disruption::None;
        assert!(!disturbs || rules.gate >= Gate::Upgrade, "{type_:?}: a slot is claimed before");
        let drains = rules.least_disruption >= Disruption::Drain;
        assert!(!drains || rules.gate == Gate::Disrupt, "{type_:?}: pods have left by then");
        assert!(rules.attempts > 0 && rules.timeout_seconds >= 300, "{type_:?}");
        assert_eq!(type_.id().replace('-', ""), type_.member().to_lowercase());
    }
}

#[test]
fn a_step_states_how_much_its_update_disturbs_at_least() {
    use Disruption::{Drain, Reboot, Restart};
    let wanted = |type_| match type_ {
        StepType::OsPackagesInstall
        | StepType::KubeadmUpgrade
        | StepType::EtcdUpgrade
        | StepType::CertificatesRenew
        | StepType::KubeletRestart => Restart,
        StepType::ContainerRuntimeInstall | StepType::KubeletInstall => Drain,
        StepType::OsImageFinalize | StepType::Reboot => Reboot,
        StepType::Preflight
        | StepType::Stage
        | StepType::ImagePreload
        | StepType::OsPackagesStage
        | StepType::RebootIfRequired
        | StepType::OsImageStage
        | StepType::Snapshot
        | StepType::KubeadmInstall
        | StepType::Files
        | StepType::KeysRevoke
        | StepType::Ntp
        | StepType::NtpReplace
        | StepType::UnitActions
        | StepType::Commands
        | StepType::KubeletFlags
        | StepType::KubectlInstall
        | StepType::OsImageCommit
        | StepType::Verify => Disruption::None,
    };
    for type_ in StepType::VARIANTS {
        assert_eq!(type_.rules().least_disruption, wanted(*type_), "{type_:?}");
    }
    assert_eq!(HostStep::Reboot {}.least_disruption(), Reboot);
}

#[test]
fn only_units_that_are_restarted_disturb_a_machine() {
    let action = |verb| UnitAction { unit: "containerd.service".to_owned(), verb };
    let (reload, restart) = (action(UnitVerb::Reload), action(UnitVerb::Restart));
    for (units, wanted) in [
        (vec![], Disruption::None),
        (vec![reload.clone()], Disruption::None),
        (vec![reload, restart], Disruption::Restart),
    ] {
        let step = HostStep::UnitActions(UnitArgs { units });
        assert_eq!(step.least_disruption(), wanted, "{step:?}");
    }
}

#[test]
fn files_change_before_what_reads_them_and_commands_run_before_the_kubelet_changes() {
    let order = [
        StepType::KubeadmUpgrade,
        StepType::EtcdUpgrade,
        StepType::Files,
        StepType::KeysRevoke,
        StepType::NtpReplace,
        StepType::UnitActions,
        StepType::ContainerRuntimeInstall,
        StepType::Commands,
        StepType::OsImageFinalize,
        StepType::KubeletFlags,
    ];
    assert!(order.is_sorted());
}

#[test]
fn the_timeout_of_kubeadm_grows_with_its_wait_for_static_pods() {
    for (role, manifest_timeout_seconds, seconds) in [
        (Role::Worker, Some(3600), 3600),
        (Role::FirstControlPlane, None, 4 * 900 + 1800),
        (Role::ControlPlane, None, 4 * 900 + 1800),
        (Role::ControlPlane, Some(30), 3600),
        (Role::FirstControlPlane, Some(3600), 4 * 3600 + 1800),
        (Role::FirstControlPlane, Some(-1), 3600),
        (Role::FirstControlPlane, Some(i32::MAX), u32::MAX),
    ] {
        let kubeadm = KubeadmArgs { manifest_timeout_seconds, ..KubeadmArgs::default() };
        let version = "v1.35.0".parse().unwrap();
        let step = HostStep::KubeadmUpgrade { role, version, kubeadm };
        assert_eq!(step.rules().timeout_seconds, seconds, "{role:?} {manifest_timeout_seconds:?}");
    }
}
