use refit_kinds::refit::{Gate, PackageVersion, StepAction};

use super::*;

fn step(type_: StepType, version: &str, role: Option<Role>) -> PlannedStep {
    PlannedStep {
        id: "s".to_owned(),
        gate: Gate::Stage,
        action: StepAction {
            type_,
            version: version.to_owned(),
            role,
            packages: Some(PackageArgs {
                install: vec![PackageVersion::default()],
                ..PackageArgs::default()
            }),
            os_image: Some(OsImageArgs::default()),
            images: Some(ImageArgs::default()),
            files: Some(FileArgs::default()),
            ntp: Some(NtpArgs::default()),
            kubelet: Some(KubeletArgs::default()),
            certificates: Some(CertificateArgs { renew_within_days: 60 }),
            ..StepAction::default()
        },
        ..PlannedStep::default()
    }
}

#[test]
fn only_real_versions_reach_a_command_line() {
    for good in ["v1.35.0", "v1.35.0-rc.1", "v1.35.12+build.5"] {
        assert_eq!(KubernetesVersion::parse(good).unwrap().as_str(), good);
    }
    for bad in [
        "",
        "1.35.0",
        "v1.35",
        "v1.35.0 ; reboot",
        "v1.35.x",
        "v1.35.0-$(x)",
        "v1.35.0\n",
        "v1..0",
        "v1.2.3.4",
        "latest",
    ] {
        assert!(KubernetesVersion::parse(bad).is_err(), "{bad:?}");
    }
}

#[test]
fn a_package_revision_is_not_part_of_the_version() {
    let version = KubernetesVersion::parse("v1.35.0").unwrap();
    assert!(version.is_of_package("1.35.0-1.1"));
    assert!(version.is_of_package("1.35.0"));
    assert!(!version.is_of_package("1.35.1-1.1"));
    assert!(!version.is_of_package("garbage"));
}

#[test]
fn every_known_step_type_becomes_a_command() {
    for type_ in CAPABILITIES {
        let step = step(type_, "v1.35.0", Some(Role::Worker));
        assert!(Command::of(&step).is_ok(), "{type_:?}");
    }
}

#[test]
fn an_upgrade_without_role_or_version_is_refused() {
    let no_role = Command::of(&step(StepType::KubeadmUpgrade, "v1.35.0", None));
    assert!(matches!(no_role, Err(InvalidStep::Role { .. })));
    let no_version = Command::of(&step(StepType::KubeadmUpgrade, "", Some(Role::Worker)));
    assert!(matches!(no_version, Err(InvalidStep::Version { .. })));
}

#[test]
fn upgrade_restart_and_reboot_are_not_idempotent() {
    let names: Vec<_> = CAPABILITIES
        .into_iter()
        .filter_map(|t| Command::of(&step(t, "v1.35.0", Some(Role::Worker))).ok())
        .filter(|c| !c.idempotent())
        .map(|c| c.name())
        .collect();
    assert_eq!(names, ["kubeadm-upgrade", "kubelet-restart", "reboot"]);
}

#[test]
fn a_step_without_its_arguments_is_refused() {
    for type_ in [
        StepType::ImagePreload,
        StepType::Files,
        StepType::Ntp,
        StepType::KubeletFlags,
        StepType::CertificatesRenew,
        StepType::ContainerRuntimeInstall,
        StepType::OsImageStage,
        StepType::OsImageFinalize,
        StepType::OsImageCommit,
        StepType::Undo,
    ] {
        let mut bare = step(type_, "v1.35.0", None);
        bare.action = StepAction { type_, ..StepAction::default() };
        let refused = Command::of(&bare);
        assert!(matches!(refused, Err(InvalidStep::Arguments { .. })), "{type_:?}");
    }
}

#[test]
fn every_undo_becomes_a_command() {
    for what in [
        StepUndo::Packages,
        StepUndo::Configuration,
        StepUndo::Files,
        StepUndo::OsImage,
        StepUndo::KubeletRestart,
    ] {
        let mut undo = step(StepType::Undo, "", None);
        undo.action.undo =
            Some(UndoArgs { what, step: "files".to_owned(), packages: BTreeMap::new() });
        assert!(Command::of(&undo).is_ok(), "{what:?}");
    }
}

#[test]
fn a_command_of_before_its_arguments_is_still_read() {
    let old = r#"{"type":"installKubelet","version":"v1.35.0"}"#;
    let command: Command = serde_json::from_str(old).unwrap();
    assert_eq!(command.name(), "kubelet-install");
    let old = r#"{"type":"preflightChecks"}"#;
    let command: Command = serde_json::from_str(old).unwrap();
    assert_eq!(command, Command::PreflightChecks { version: None });
}

#[test]
fn versions_are_compared_by_their_numbers() {
    let version = |text| KubernetesVersion::parse(text).unwrap();
    assert_eq!(version("v1.35.12-rc.1").minor(), 35);
    assert!(version("v1.9.0").numbers() < version("v1.10.0").numbers());
    assert_eq!(version("v1.35.12-rc.1").numbers(), [1, 35, 12]);
}
