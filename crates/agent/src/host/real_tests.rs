use super::*;

fn version() -> KubernetesVersion {
    KubernetesVersion::parse("v1.35.0").unwrap()
}

fn lines(command: &Command) -> Vec<String> {
    let none = Path::new("/no/manifests");
    invocations(command, Path::new("/var/lib/refit"), none)
        .iter()
        .map(ToString::to_string)
        .collect()
}

#[test]
fn the_first_control_plane_applies_and_the_others_follow() {
    let upgrade = |role| {
        lines(&Command::KubeadmUpgrade {
            role,
            version: version(),
        })
    };
    assert_eq!(
        upgrade(Role::FirstControlPlane),
        ["/usr/bin/kubeadm upgrade apply v1.35.0 --yes"]
    );
    for role in [Role::ControlPlane, Role::Worker] {
        assert_eq!(upgrade(role), ["/usr/bin/kubeadm upgrade node"]);
    }
}

#[test]
fn packages_are_pinned_and_held_again() {
    let lines = lines(&Command::InstallKubelet { version: version() });
    assert_eq!(
        lines,
        [
            "/usr/bin/apt-get install --yes --allow-change-held-packages --allow-downgrades \
             --option DPkg::Lock::Timeout=300 --option Dpkg::Options::=--force-confold \
             kubelet=1.35.0-* kubectl=1.35.0-*",
            "/usr/bin/apt-mark hold kubelet kubectl",
        ]
    );
}

#[test]
fn staging_installs_nothing() {
    let lines = lines(&Command::FetchPackages { version: version() });
    assert!(lines[1].contains("--download-only"));
    assert!(lines[1].contains("kubeadm=1.35.0-* kubelet=1.35.0-* kubectl=1.35.0-*"));
}

#[test]
fn etcd_is_saved_only_where_it_runs() {
    assert!(
        !lines(&Command::Snapshot)
            .iter()
            .any(|l| l.contains("etcdctl"))
    );
    let manifests = tempfile::tempdir().unwrap();
    fs::write(manifests.path().join("etcd.yaml"), "x").unwrap();
    let calls = invocations(
        &Command::Snapshot,
        Path::new("/var/lib/refit"),
        manifests.path(),
    );
    let last = calls.last().unwrap().to_string();
    assert!(
        last.ends_with("snapshot save /var/lib/refit/snapshot/etcd.db"),
        "{last}"
    );
}

#[test]
fn a_unit_outlives_the_agent_and_leaves_a_mark() {
    let host = RealHost::new("/var/lib/refit");
    let unit = host.unit(&Job {
        unit: "refit-p-kubeadm-install-1".to_owned(),
        step: "kubeadm-install".to_owned(),
        command: Command::InstallKubeadm { version: version() },
    });
    let call = unit.invocation();
    assert_eq!(call.program, "/usr/bin/systemd-run");
    for expected in [
        "--unit=refit-p-kubeadm-install-1.service",
        "--property=RemainAfterExit=yes",
        "--property=TimeoutStartSec=1200",
        "--property=StandardOutput=append:/var/lib/refit/units/refit-p-kubeadm-install-1.log",
        "--property=ExecStartPost=/usr/bin/touch \
         /var/lib/refit/units/refit-p-kubeadm-install-1.done",
        "--setenv=NEEDRESTART_SUSPEND=1",
    ] {
        assert!(
            call.arguments.iter().any(|a| a == expected),
            "{expected}: {call}"
        );
    }
    let pre = "--property=ExecStartPre=/usr/bin/apt-get install ";
    assert!(call.arguments.iter().any(|a| a.starts_with(pre)), "{call}");
    let rest = call.arguments.iter().skip_while(|a| *a != "--").skip(1);
    let rest: Vec<&str> = rest.map(String::as_str).collect();
    assert_eq!(rest, ["/usr/bin/apt-mark", "hold", "kubeadm"]);
}

#[test]
fn no_argument_holds_what_systemd_would_read() {
    let commands = [
        Command::PreflightChecks,
        Command::FetchPackages { version: version() },
        Command::Snapshot,
        Command::InstallKubeadm { version: version() },
        Command::KubeadmUpgrade {
            role: Role::FirstControlPlane,
            version: version(),
        },
        Command::InstallKubelet { version: version() },
        Command::RestartKubelet,
        Command::Reboot,
        Command::VerifyVersions { version: None },
    ];
    for command in commands {
        let calls = invocations(&command, Path::new("/var/lib/refit"), Path::new("/"));
        assert!(!calls.is_empty());
        for argument in calls.iter().flat_map(|call| &call.arguments) {
            let harmless = !argument.contains([' ', '"', '\'', '$', '%', '\\', ';']);
            assert!(harmless, "{argument}");
        }
    }
}

#[test]
fn units_are_read_as_systemd_shows_them() {
    let show = |load, active, status| {
        parse_unit(&format!(
            "LoadState={load}\nActiveState={active}\nJob=0\nExecMainStatus={status}\n"
        ))
    };
    let queued = "LoadState=loaded\nActiveState=inactive\nJob=812\nExecMainStatus=0\n";
    assert_eq!(parse_unit(queued), UnitState::Running);
    let exited = |code| UnitState::Exited {
        code,
        output_tail: String::new(),
    };
    assert_eq!(show("not-found", "inactive", 0), UnitState::Unknown);
    assert_eq!(show("loaded", "inactive", 0), UnitState::Unknown);
    assert_eq!(show("loaded", "activating", 0), UnitState::Running);
    assert_eq!(show("loaded", "active", 0), exited(0));
    assert_eq!(show("loaded", "failed", 100), exited(100));
    assert_eq!(
        show("loaded", "failed", 0),
        exited(1),
        "a program before the last failed"
    );
    assert_eq!(parse_unit(""), UnitState::Unknown);
}

#[test]
fn answers_of_the_host_are_read() {
    assert_eq!(
        parse_kubelet_version("Kubernetes v1.35.0\n").unwrap(),
        "v1.35.0"
    );
    assert!(parse_kubelet_version("no kubelet").is_err());
    assert_eq!(parse_room("     Avail\n2147483648\n"), Some(2 << 30));
    assert_eq!(
        parse_os_image("ID=x\nPRETTY_NAME=\"Debian 13\"\n"),
        "Debian 13"
    );
    let packages = parse_packages(
        "kubeadm 1.35.0-1.1 installed\nkubelet:amd64 1.34.2-1.1 installed\n\
         kubectl 1.34.2-1.1 config-files\nvim 9 installed\n",
    );
    let packages: Vec<_> = packages.iter().map(|(n, v)| format!("{n} {v}")).collect();
    assert_eq!(packages, ["kubeadm 1.35.0-1.1", "kubelet 1.34.2-1.1"]);
}

#[test]
fn static_pods_of_another_version_are_named() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(static_pods_at(folder.path(), &version()), Evidence::Done);
    let manifest = folder.path().join("kube-scheduler.yaml");
    fs::write(
        &manifest,
        "    image: registry.k8s.io/kube-scheduler:v1.34.2\n",
    )
    .unwrap();
    let found = static_pods_at(folder.path(), &version());
    assert!(matches!(found, Evidence::Missing { what } if what.contains("kube-scheduler")));
    fs::write(
        &manifest,
        "    image: registry.k8s.io/kube-scheduler:v1.35.0\n",
    )
    .unwrap();
    assert_eq!(static_pods_at(folder.path(), &version()), Evidence::Done);
}
