use std::fs;

use refit_kinds::refit::KubeletArg;

use super::*;
use crate::host::scripted::ScriptedHost;

const FLAGS: &str = "KUBELET_KUBEADM_ARGS=\"--container-runtime-endpoint=unix:///run/containerd.sock \
    --pod-infra-container-image registry.k8s.io/pause:3.9 --node-labels=a=b\"\n";

fn host() -> ScriptedHost {
    ScriptedHost::with_directories(&["/var/lib/kubelet", "/etc/default", MANIFESTS])
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
    let host = host();
    host.write(FILES[0].0, FLAGS);
    host.write(FILES[1].0, "# mine\nKUBELET_EXTRA_ARGS=--pod-infra-container-image=x --v=2\n");
    let args = args(&[("node-labels", "c=d"), ("max-pods", "200")], &["pod-infra-container-image"]);
    assert!(!has_flags(&host.site, &args));
    set_flags(&host.site, "p", keep::KUBELET, &args).unwrap();
    assert!(has_flags(&host.site, &args));
    assert_eq!(
        host.site.read(FILES[0].0),
        "KUBELET_KUBEADM_ARGS=\"--container-runtime-endpoint=unix:///run/containerd.sock \
         --node-labels=c=d --max-pods=200\"\n"
    );
    assert_eq!(host.site.read(FILES[1].0), "# mine\nKUBELET_EXTRA_ARGS=\"--v=2\"\n");
    assert!(!host.site.path(FILES[2].0).exists());
    set_flags(&host.site, "p", keep::KUBELET, &args).unwrap();
    keep::put_back(&host.site, "p", keep::KUBELET).unwrap();
    assert_eq!(host.site.read(FILES[0].0), FLAGS);
}

#[test]
fn a_flag_value_that_systemd_would_interpret_is_refused() {
    let host = host();
    for bad in ["a b", "a\"", "$HOME", "a\n"] {
        assert!(
            set_flags(&host.site, "p", keep::KUBELET, &args(&[("v", bad)], &[])).is_err(),
            "{bad:?}"
        );
    }
    assert!(set_flags(&host.site, "p", keep::KUBELET, &args(&[], &["--v"])).is_err());
}

#[test]
fn a_control_plane_that_goes_to_31_speaks_to_its_own_api_server() {
    let host = host();
    let conf = "clusters:\n- cluster:\n    server: https://lb.example:6443\n  name: x\n";
    fs::create_dir_all(host.site.path("/etc/kubernetes")).unwrap();
    host.write(KUBELET_CONF, conf);
    let version = |text: &str| text.parse::<KubernetesVersion>().unwrap();
    use_local_endpoint(&host.site, "p", &version("v1.31.4")).unwrap();
    assert_eq!(host.site.read(KUBELET_CONF), conf, "a worker keeps its way");
    let manifest = format!("{MANIFESTS}/kube-apiserver.yaml");
    host.write(&manifest, "    - --advertise-address=10.0.0.7\n    - --secure-port=6443\n");
    use_local_endpoint(&host.site, "p", &version("v1.35.0")).unwrap();
    assert_eq!(host.site.read(KUBELET_CONF), conf, "kubeadm does it by itself");
    use_local_endpoint(&host.site, "p", &version("v1.31.4")).unwrap();
    assert!(host.site.read(KUBELET_CONF).contains("    server: https://10.0.0.7:6443\n"));
    keep::put_back(&host.site, "p", keep::KUBELET).unwrap();
    assert_eq!(host.site.read(KUBELET_CONF), conf);
}
