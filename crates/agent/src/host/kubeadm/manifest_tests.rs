use refit_kinds::refit::FailureKind;

use super::*;

/// A manifest in the form in which kubeadm writes it.
fn manifest(flags: &[&str], mounts: &[(&str, &str)]) -> String {
    use std::fmt::Write as _;
    let mut text = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: etcd\nspec:\n  containers:\n  \
                    - command:\n    - etcd\n"
        .to_owned();
    for flag in flags {
        writeln!(text, "    - {flag}").unwrap();
    }
    text.push_str(
        "    image: registry.k8s.io/etcd:3.6.5-0\n    name: etcd\n    resources:\n      \
         requests:\n        cpu: 1\n    volumeMounts:\n",
    );
    for (at, (inside, _)) in mounts.iter().enumerate() {
        writeln!(text, "    - mountPath: {inside}\n      name: v{at}").unwrap();
    }
    text.push_str("  volumes:\n");
    for (at, (_, host)) in mounts.iter().enumerate() {
        writeln!(text, "  - hostPath:\n      path: {host}\n      type: X\n    name: v{at}")
            .unwrap();
    }
    text
}

const KUBEADM: [&str; 5] = [
    "--cert-file=/etc/kubernetes/pki/etcd/server.crt",
    "--data-dir=/var/lib/etcd",
    "--key-file=/etc/kubernetes/pki/etcd/server.key",
    "--listen-client-urls=https://127.0.0.1:2379,https://10.0.0.7:2379",
    "--trusted-ca-file=/etc/kubernetes/pki/etcd/ca.crt",
];
const MOUNTS: [(&str, &str); 2] =
    [("/var/lib/etcd", "/var/lib/etcd"), ("/etc/kubernetes/pki/etcd", "/etc/kubernetes/pki/etcd")];

fn same(path: &str) -> Mounted {
    Mounted { inside: path.into(), host: path.into() }
}

fn kubeadm() -> LocalEtcd {
    LocalEtcd {
        data: same("/var/lib/etcd"),
        endpoint: "https://127.0.0.1:2379".to_owned(),
        ca: same("/etc/kubernetes/pki/etcd/ca.crt"),
        certificate: same("/etc/kubernetes/pki/etcd/healthcheck-client.crt"),
        key: same("/etc/kubernetes/pki/etcd/healthcheck-client.key"),
    }
}

#[test]
fn the_layout_of_etcd_is_read_from_its_manifest() {
    let parse = |flags: &[&str], mounts: &[(&str, &str)]| {
        LocalEtcd::parse(&manifest(flags, mounts), |_| true).unwrap()
    };
    assert_eq!(parse(&KUBEADM, &MOUNTS), kubeadm());
    assert_eq!(parse(&[], &[]), kubeadm(), "kubeadm's defaults");
    // CAPZ.
    let disk = "/var/lib/etcddisk/etcd";
    let capz = parse(&["--data-dir=/var/lib/etcddisk/etcd"], &[(disk, disk)]);
    assert_eq!(capz.data, same(disk));
    // Another path on the host, and both forms of a flag.
    let disk = [("/data", "/mnt/etcd/"), ("/data/etcd", "/mnt/inner")];
    let other =
        parse(&["--data-dir", "/data/etcd/v3", "-listen-client-urls=https://[::1]:2379"], &disk);
    let inside = PathBuf::from("/data/etcd/v3");
    assert_eq!(other.data, Mounted { inside, host: "/mnt/inner/v3".into() });
    assert_eq!(other.connection(false)[0], "--endpoints=https://[::1]:2379");
    // Another certificatesDir.
    let pki = [("/pki/etcd", "/opt/pki/etcd")];
    let other = parse(&["--trusted-ca-file=/pki/etcd/ca.crt"], &pki);
    assert_eq!(
        other.connection(false)[1..],
        [
            "--cacert=/opt/pki/etcd/ca.crt",
            "--cert=/opt/pki/etcd/healthcheck-client.crt",
            "--key=/opt/pki/etcd/healthcheck-client.key"
        ]
    );
    assert_eq!(other.connection(true)[1], "--cacert=/pki/etcd/ca.crt");
}

#[test]
fn flags_of_etcd_are_also_read_from_args() {
    let text =
        "spec: {containers: [{name: other}, {name: etcd, args: [--data-dir, /a, --data-dir=/b]}]}";
    let etcd = LocalEtcd::parse(text, |_| true).unwrap();
    assert_eq!(etcd.data, same("/b"), "the last one counts");
}

#[test]
fn the_server_certificate_stands_in_for_a_missing_client_certificate() {
    let etcd = LocalEtcd::parse(&manifest(&KUBEADM, &MOUNTS), |_| false).unwrap();
    assert_eq!(etcd.certificate, same("/etc/kubernetes/pki/etcd/server.crt"));
    assert_eq!(etcd.key, same("/etc/kubernetes/pki/etcd/server.key"));
    let etcd = LocalEtcd::parse(&manifest(&[], &[]), |_| false).unwrap();
    assert_eq!(etcd, kubeadm(), "without a server certificate, the error names the client's");
}

#[test]
fn a_loopback_address_of_etcd_is_preferred() {
    for (urls, expected) in [
        ("", "https://127.0.0.1:2379"),
        ("https://10.0.0.7:2379,https://127.0.0.1:2379", "https://127.0.0.1:2379"),
        ("https://[fd00::7]:2379,https://[::1]:2379", "https://[::1]:2379"),
        ("https://[fd00::7]:2379", "https://[fd00::7]:2379"),
        ("https://0.0.0.0:2379", "https://127.0.0.1:2379"),
        ("https://10.0.0.7:4001, https://[::]:4001/", "https://[::1]:4001"),
        ("http://localhost:2379", "http://localhost:2379"),
        ("https://etcd.example:2379", "https://etcd.example:2379"),
    ] {
        assert_eq!(endpoint(urls), expected, "{urls}");
    }
}

#[test]
fn an_etcd_without_tls_gets_no_certificates() {
    let flags = ["--listen-client-urls=http://127.0.0.1:2379"];
    let etcd = LocalEtcd::parse(&manifest(&flags, &[]), |_| true).unwrap();
    assert_eq!(etcd.connection(true), ["--endpoints=http://127.0.0.1:2379"]);
}

#[test]
fn only_a_host_without_a_manifest_has_no_etcd() {
    let directory = tempfile::tempdir().unwrap();
    let site = Site::at(directory.path(), directory.path().join("state"));
    assert_eq!(LocalEtcd::of(&site).unwrap(), None);
    fs::create_dir_all(site.path(MANIFESTS)).unwrap();
    let path = site.path(MANIFESTS).join("etcd.yaml");
    for broken in ["", "\0\0\0\0", "kind: Pod\n", "spec: {containers: []}", "a: [b"] {
        fs::write(&path, broken).unwrap();
        let error = LocalEtcd::of(&site).unwrap_err();
        assert_eq!(error.kind, FailureKind::NeedsPerson, "{broken:?}");
        assert!(error.message.contains("manifests/etcd.yaml is not a pod"), "{error}");
    }
    fs::write(&path, manifest(&KUBEADM, &MOUNTS)).unwrap();
    assert!(LocalEtcd::of(&site).unwrap().is_some());
}

#[test]
fn the_directory_of_certificates_is_read_from_the_api_servers_manifest() {
    let directory = tempfile::tempdir().unwrap();
    let site = Site::at(directory.path(), directory.path().join("state"));
    assert_eq!(certificates_directory(&site), Path::new(CERTIFICATES));
    fs::create_dir_all(site.path(MANIFESTS)).unwrap();
    for (manifest, found) in [
        ("", CERTIFICATES),
        ("spec: {containers: [{command: [kube-apiserver]}]}", CERTIFICATES),
        ("spec: {containers: [{command: [x, --client-ca-file=/opt/pki/ca.crt]}]}", "/opt/pki"),
    ] {
        fs::write(site.path(MANIFESTS).join("kube-apiserver.yaml"), manifest).unwrap();
        assert_eq!(certificates_directory(&site), Path::new(found), "{manifest}");
    }
}
