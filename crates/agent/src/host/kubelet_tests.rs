use std::fs;

use refit_kinds::refit::KubeletArg;

use super::*;

const FLAGS: &str = "KUBELET_KUBEADM_ARGS=\"--container-runtime-endpoint=unix:///run/containerd.sock \
    --pod-infra-container-image registry.k8s.io/pause:3.9 --node-labels=a=b\"\n";

struct World {
    _directory: tempfile::TempDir,
    site: Site,
}

impl World {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let site = Site::at(directory.path().join("root"), directory.path().join("state"));
        for path in ["/var/lib/kubelet", "/etc/default", MANIFESTS] {
            fs::create_dir_all(site.path(path)).unwrap();
        }
        fs::create_dir_all(site.state()).unwrap();
        Self { _directory: directory, site }
    }

    fn write(&self, path: &str, text: &str) {
        fs::write(self.site.path(path), text).unwrap();
    }
}

fn args(extra: &[(&str, &str)], remove: &[&str]) -> KubeletArgs {
    KubeletArgs {
        extra_args: extra
            .iter()
            .map(|(name, value)| KubeletArg {
                name: (*name).to_owned(),
                value: (*value).to_owned(),
            })
            .collect(),
        remove_args: remove.iter().map(|name| (*name).to_owned()).collect(),
    }
}

#[test]
fn flags_are_set_taken_away_and_put_back() {
    let world = World::new();
    world.write(FILES[0].0, FLAGS);
    world.write(FILES[1].0, "# mine\nKUBELET_EXTRA_ARGS=--pod-infra-container-image=x --v=2\n");
    let args = args(&[("node-labels", "c=d"), ("max-pods", "200")], &["pod-infra-container-image"]);
    assert!(!has_flags(&world.site, &args));
    set_flags(&world.site, "p", keep::KUBELET, &args).unwrap();
    assert!(has_flags(&world.site, &args));
    assert_eq!(
        world.site.read(FILES[0].0),
        "KUBELET_KUBEADM_ARGS=\"--container-runtime-endpoint=unix:///run/containerd.sock \
         --node-labels=c=d --max-pods=200\"\n"
    );
    assert_eq!(world.site.read(FILES[1].0), "# mine\nKUBELET_EXTRA_ARGS=\"--v=2\"\n");
    assert!(!world.site.path(FILES[2].0).exists());
    set_flags(&world.site, "p", keep::KUBELET, &args).unwrap();
    keep::put_back(&world.site, "p", keep::KUBELET).unwrap();
    assert_eq!(world.site.read(FILES[0].0), FLAGS);
}

#[test]
fn a_flag_value_that_systemd_would_interpret_is_refused() {
    let world = World::new();
    for bad in ["a b", "a\"", "$HOME", "a\n"] {
        assert!(
            set_flags(&world.site, "p", keep::KUBELET, &args(&[("v", bad)], &[])).is_err(),
            "{bad:?}"
        );
    }
    assert!(set_flags(&world.site, "p", keep::KUBELET, &args(&[], &["--v"])).is_err());
}

#[test]
fn a_control_plane_that_goes_to_31_speaks_to_its_own_api_server() {
    let world = World::new();
    let conf = "clusters:\n- cluster:\n    server: https://lb.example:6443\n  name: x\n";
    fs::create_dir_all(world.site.path("/etc/kubernetes")).unwrap();
    world.write(KUBELET_CONF, conf);
    let version = |text: &str| text.parse::<KubernetesVersion>().unwrap();
    use_local_endpoint(&world.site, "p", &version("v1.31.4")).unwrap();
    assert_eq!(world.site.read(KUBELET_CONF), conf, "a worker keeps its way");
    let manifest = format!("{MANIFESTS}/kube-apiserver.yaml");
    world.write(&manifest, "    - --advertise-address=10.0.0.7\n    - --secure-port=6443\n");
    use_local_endpoint(&world.site, "p", &version("v1.35.0")).unwrap();
    assert_eq!(world.site.read(KUBELET_CONF), conf, "kubeadm does it by itself");
    use_local_endpoint(&world.site, "p", &version("v1.31.4")).unwrap();
    assert!(world.site.read(KUBELET_CONF).contains("    server: https://10.0.0.7:6443\n"));
    keep::put_back(&world.site, "p", keep::KUBELET).unwrap();
    assert_eq!(world.site.read(KUBELET_CONF), conf);
}
