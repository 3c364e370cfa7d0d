use std::fs;

use refit_kinds::refit::FailureKind;

use super::*;

struct World {
    _directory: tempfile::TempDir,
    site: Site,
}

fn version(text: &str) -> KubernetesVersion {
    text.parse::<KubernetesVersion>().unwrap()
}

impl World {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let site = Site::at(directory.path().join("root"), directory.path().join("state"));
        fs::create_dir_all(site.path(MANIFESTS)).unwrap();
        fs::create_dir_all(site.state()).unwrap();
        Self { _directory: directory, site }
    }

    fn etcd(&self, members: &str) {
        let path = self.site.path(format!("{MANIFESTS}/etcd.yaml"));
        fs::write(path, format!("    - etcd\n    - --initial-cluster={members}\n")).unwrap();
    }

    fn call(&self, role: Role, at: &str, args: &KubeadmArgs) -> Result<String, WorkError> {
        let version = version(at);
        let upgrade = Upgrade { role, version: &version, args };
        let call = prepare(&self.site, &upgrade)?.to_string();
        Ok(call.split_once("kubeadm ").unwrap().1.to_owned())
    }

    fn configuration(&self) -> serde_json::Value {
        let text = fs::read(self.site.state().join("kubeadm-upgrade.yaml")).unwrap();
        serde_json::from_slice(&text).unwrap()
    }
}

#[test]
fn the_first_control_plane_applies_and_the_others_follow() {
    let world = World::new();
    world.etcd("a=https://1:2380,b=https://2:2380");
    let none = KubeadmArgs::default();
    let call = |role| world.call(role, "v1.35.0", &none).unwrap();
    assert_eq!(call(Role::FirstControlPlane), "upgrade apply v1.35.0 --yes");
    assert_eq!(call(Role::ControlPlane), "upgrade node");
    assert_eq!(call(Role::Worker), "upgrade node");
}

#[test]
fn an_external_etcd_is_left_to_its_owner() {
    let world = World::new();
    let none = KubeadmArgs::default();
    let call = |role| world.call(role, "v1.35.0", &none).unwrap();
    let first = call(Role::FirstControlPlane);
    assert_eq!(first, "upgrade apply v1.35.0 --yes --etcd-upgrade=false");
    assert_eq!(call(Role::Worker), "upgrade node");
}

#[test]
fn a_single_etcd_member_gets_more_time() {
    let world = World::new();
    world.etcd("a=https://1:2380");
    let none = KubeadmArgs::default();
    let call = world.call(Role::FirstControlPlane, "v1.35.0", &none).unwrap();
    assert!(call.starts_with("upgrade apply v1.35.0 --yes --config="), "{call}");
    let found = world.configuration();
    assert_eq!(found["kind"], "UpgradeConfiguration");
    assert_eq!(found["timeouts"]["upgradeManifests"], "900s");
    // In older versions the file is a ClusterConfiguration, which would change the cluster.
    let old = world.call(Role::FirstControlPlane, "v1.30.4", &none).unwrap();
    assert_eq!(old, "upgrade apply v1.30.4 --yes");
}

#[test]
fn the_configured_arguments_reach_kubeadm() {
    let world = World::new();
    world.etcd("a=1,b=2");
    fs::create_dir_all(world.site.path("/etc/kubernetes/patches")).unwrap();
    let args = KubeadmArgs {
        skip_phases: vec!["addon/coredns".to_owned(), "addon/kube-proxy".to_owned()],
        ignore_preflight_errors: vec!["CoreDNSUnsupportedPlugins".to_owned()],
        patches: "/etc/kubernetes/patches".to_owned(),
        certificate_renewal: Some(false),
        etcd_upgrade: None,
        manifest_timeout_seconds: None,
    };
    assert_eq!(
        world.call(Role::FirstControlPlane, "v1.35.0", &args).unwrap(),
        "upgrade apply v1.35.0 --yes --certificate-renewal=false \
         --ignore-preflight-errors=CoreDNSUnsupportedPlugins --patches=/etc/kubernetes/patches \
         --skip-phases=addon/coredns,addon/kube-proxy"
    );
    let timed = KubeadmArgs { manifest_timeout_seconds: Some(600), ..args };
    world.call(Role::ControlPlane, "v1.35.0", &timed).unwrap();
    let found = world.configuration();
    assert_eq!(found["node"]["skipPhases"][1], "addon/kube-proxy");
    assert_eq!(found["node"]["patches"]["directory"], "/etc/kubernetes/patches");
    assert_eq!(found["node"]["certificateRenewal"], false);
    assert_eq!(found["timeouts"]["upgradeManifests"], "600s");
}

#[test]
fn a_control_plane_keeps_the_proxies_of_its_manifests() {
    let world = World::new();
    let manifest = |name: &str, env: &str| {
        let text = format!("spec:\n  containers:\n  - image: x\n    env: [{env}]\n");
        fs::write(world.site.path(format!("{MANIFESTS}/{name}.yaml")), text).unwrap();
    };
    let version = version("v1.35.0");
    let proxies = |role| {
        let upgrade = Upgrade { role, version: &version, args: &KubeadmArgs::default() };
        let call = prepare(&world.site, &upgrade).unwrap();
        assert!(!call.to_string().contains("proxy"), "{call}");
        let environment = call.environment.into_iter();
        environment.filter(|(name, _)| name.to_lowercase().ends_with("_proxy")).collect::<Vec<_>>()
    };
    manifest("kube-scheduler", "{name: NO_PROXY, value: third}");
    manifest("kube-controller-manager", "{name: NO_PROXY, value: second}");
    manifest("kube-apiserver", "");
    let pair = |value: &str| [("NO_PROXY".to_owned(), value.to_owned())];
    assert_eq!(proxies(Role::ControlPlane), pair("second"));
    manifest("kube-apiserver", "{name: NO_PROXY, value: first}");
    assert_eq!(proxies(Role::FirstControlPlane), pair("first"));
    assert!(proxies(Role::Worker).is_empty());
}

#[test]
fn phases_that_a_version_does_not_know_are_not_passed() {
    let world = World::new();
    let args =
        KubeadmArgs { skip_phases: vec!["addon/coredns".to_owned()], ..KubeadmArgs::default() };
    let error = world.call(Role::FirstControlPlane, "v1.31.4", &args).unwrap_err();
    assert!(error.message.contains("v1.32 and newer can"), "{error}");
    assert_eq!(world.call(Role::Worker, "v1.30.4", &args).unwrap(), "upgrade node");
}

#[test]
fn patches_that_are_not_there_stop_the_upgrade() {
    let world = World::new();
    let args =
        KubeadmArgs { patches: "/etc/kubernetes/patches".to_owned(), ..KubeadmArgs::default() };
    let error = world.call(Role::Worker, "v1.35.0", &args).unwrap_err();
    assert_eq!(error.kind, FailureKind::NeedsPerson);
}

#[test]
fn only_names_reach_the_command_line() {
    let world = World::new();
    for bad in ["", "a b", "--force", "a,b", "$(x)"] {
        let args =
            KubeadmArgs { ignore_preflight_errors: vec![bad.to_owned()], ..KubeadmArgs::default() };
        assert!(world.call(Role::Worker, "v1.35.0", &args).is_err(), "{bad:?}");
    }
}

#[test]
fn failures_are_classified() {
    let failed = |tail: &str| {
        explain(&ProgramError::Failed {
            command: "kubeadm upgrade".to_owned(),
            code: Some(1),
            tail: tail.to_owned(),
        })
    };
    let checks = failed(
        "[preflight] Some fatal errors occurred:\n\t[ERROR CoreDNSUnsupportedPlugins]: x\n\t[ERROR \
         ControlPlaneNodesReady]: y",
    );
    assert_eq!(checks.kind, FailureKind::NeedsPerson);
    assert!(checks.message.contains("CoreDNSUnsupportedPlugins, ControlPlaneNodesReady"));
    let passing = failed("\t[ERROR CreateJob]: Job \"upgrade-health-check\" did not complete");
    assert_eq!(passing.kind, FailureKind::Retriable);
    let policy = failed(
        "[upgrade/version] FATAL: the --version argument is invalid due to these \
                         fatal errors:\n\n\t- Specified version to upgrade to \"v1.36.0\" is too high",
    );
    assert_eq!(policy.kind, FailureKind::Final);
    let hash = failed("static Pod hash for component etcd on Node cp-1 did not change after 5m0s");
    assert_eq!(hash.kind, FailureKind::Retriable);
}

#[test]
fn static_pods_of_another_version_are_named() {
    let world = World::new();
    let manifests = world.site.path(MANIFESTS);
    assert_eq!(static_pods_at(&manifests, &version("v1.35.0")), Evidence::Done);
    let manifest = manifests.join("kube-scheduler.yaml");
    fs::write(&manifest, "    image: registry.k8s.io/kube-scheduler:v1.34.2\n").unwrap();
    let found = static_pods_at(&manifests, &version("v1.35.0"));
    assert!(matches!(found, Evidence::Missing { what } if what.contains("kube-scheduler")));
    fs::write(&manifest, "  - image: registry.k8s.io/kube-scheduler:v1.35.0\n").unwrap();
    assert_eq!(static_pods_at(&manifests, &version("v1.35.0")), Evidence::Done);
}

#[test]
fn a_failure_of_kubeadm_names_its_proxies_and_not_their_passwords() {
    let fails = |environment: &[(String, String)]| {
        through_proxies(WorkError::retriable("no route"), environment).message
    };
    assert_eq!(fails(&[]), "no route");
    let proxy = ("HTTPS_PROXY".to_owned(), "http://me:secret@p:3128".to_owned());
    let path = ("PATH".to_owned(), "/usr/bin".to_owned());
    assert_eq!(fails(std::slice::from_ref(&path)), "no route");
    let message = fails(&[path, proxy]);
    assert!(message.contains("kubeadm used HTTPS_PROXY of"), "{message}");
    assert!(!message.contains("secret"), "{message}");
}
