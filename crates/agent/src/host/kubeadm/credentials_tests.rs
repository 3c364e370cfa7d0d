use std::fs;

use rcgen::{CertificateParams, KeyPair, SignatureAlgorithm};
use refit_kinds::refit::FailureKind;

use super::*;
use crate::host::{files::atomic::Access, kubeadm::MANIFESTS, scripted::ScriptedHost};

/// A certificate and its key, another one in each call.
fn renewed_with(algorithm: &'static SignatureAlgorithm) -> [Vec<u8>; 2] {
    let key = KeyPair::generate_for(algorithm).unwrap();
    let certificate = CertificateParams::new(Vec::new()).unwrap().self_signed(&key).unwrap();
    [certificate.pem(), key.serialize_pem()].map(String::into_bytes)
}

fn renewed() -> [Vec<u8>; 2] {
    renewed_with(&rcgen::PKCS_ECDSA_P256_SHA256)
}

fn kubeconfig(user: &str) -> Vec<u8> {
    format!("apiVersion: v1\nkind: Config\nusers:\n- name: {user}\n").into_bytes()
}

fn saved(content: &[u8]) -> Before {
    Before::File(Saved { content: content.to_vec(), access: Access::of_mode(0o600) })
}

fn files(contents: &[Vec<u8>; 2]) -> Vec<Option<Vec<u8>>> {
    contents.iter().cloned().map(Some).collect()
}

#[test]
fn a_damaged_certificate_or_key_is_restored_with_the_other() {
    use Verdict::{Leave, Lost, Restore};
    let pair = Credential::Pair(["a.crt".to_owned(), "a.key".to_owned()]);
    let ([old_cert, old_key], [cert, key]) = (renewed(), renewed());
    let old = [saved(&old_cert), saved(&old_key)];
    let unknown = [Before::Unknown, Before::Unknown];
    let absent = [Before::Absent, Before::Absent];
    let broken = [saved(&old_cert), saved(b"")];
    let foreign = [saved(&old_cert), Before::Absent];
    let other = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n".to_vec();
    let truncated = cert[..cert.len() - 30].to_vec();
    let odd = [cert.clone(), key.clone()].map(|text| [text, b"# until 2027".to_vec()].concat());
    let cases = [
        (files(&[old_cert.clone(), old_key.clone()]), &old, Leave),
        (files(&[cert.clone(), key.clone()]), &old, Leave),
        (files(&[cert.clone(), key.clone()]), &unknown, Leave),
        (files(&[vec![], vec![]]), &old, Restore),
        (files(&[vec![0; 1123], key.clone()]), &old, Restore),
        (files(&[cert.clone(), vec![]]), &old, Restore),
        (files(&[truncated, key.clone()]), &old, Restore),
        // kubeadm writes in place: another program has removed it.
        (vec![Some(cert.clone()), None], &old, Leave),
        // The power was cut between the two renewals.
        (files(&[old_cert.clone(), key.clone()]), &old, Restore),
        (files(&[cert.clone(), old_key]), &old, Restore),
        // What this program cannot judge stays.
        (files(&odd), &[saved(&odd[0]), saved(&odd[1])], Leave),
        (files(&[other.clone(), key.clone()]), &[saved(&other), saved(&key)], Leave),
        (files(&[vec![], vec![]]), &unknown, Lost),
        (files(&[vec![], vec![]]), &broken, Lost),
        (files(&[cert, key]), &broken, Leave),
        (files(&[vec![], vec![]]), &absent, Restore),
        (vec![None, None], &absent, Leave),
        (vec![None, None], &unknown, Leave),
        (vec![Some(old_cert), None], &foreign, Leave),
    ];
    for (index, (now, before, verdict)) in cases.into_iter().enumerate() {
        assert_eq!(pair.decide(&now, before), verdict, "case {index}");
    }
}

#[test]
fn certificates_of_the_usual_kinds_fit_their_keys_only() {
    let pair = Credential::Pair([String::new(), String::new()]);
    for algorithm in
        [&rcgen::PKCS_ECDSA_P256_SHA256, &rcgen::PKCS_ECDSA_P384_SHA384, &rcgen::PKCS_ED25519]
    {
        let ([cert, key], [_, other]) = (renewed_with(algorithm), renewed_with(algorithm));
        assert!(pair.fits(&[&cert, &key]), "{algorithm:?}");
        assert!(!pair.fits(&[&cert, &other]), "{algorithm:?}");
    }
}

#[test]
fn a_damaged_kubeconfig_is_restored() {
    use Verdict::{Leave, Lost, Restore};
    let credential = Credential::Kubeconfig(["admin.conf".to_owned()]);
    let (old, new) = (kubeconfig("old"), kubeconfig("new"));
    let truncated = new[..new.len() - 1].to_vec();
    for (now, before, verdict) in [
        (Some(new), saved(&old), Leave),
        (Some(vec![]), saved(&old), Restore),
        (Some(truncated), saved(&old), Restore),
        (Some(b"users: []".to_vec()), saved(b"users: []"), Leave),
        (None, saved(&old), Leave),
        (Some(vec![]), Before::Absent, Restore),
        (Some(vec![]), Before::Unknown, Lost),
        (None, Before::Absent, Leave),
    ] {
        assert_eq!(credential.decide(&[now], &[before]), verdict);
    }
}

/// A control plane with one certificate and one kubeconfig.
fn control_plane() -> (ScriptedHost, [Vec<u8>; 2]) {
    let host = ScriptedHost::with_directories(&[MANIFESTS, "/etc/kubernetes/pki"]);
    let pair = renewed();
    let [cert, key] = &pair;
    host.write("/etc/kubernetes/pki/ca.key", "key");
    host.write("/etc/kubernetes/pki/apiserver.crt", cert);
    host.write("/etc/kubernetes/pki/apiserver.key", key);
    host.write("/etc/kubernetes/scheduler.conf", kubeconfig("old"));
    (host, pair)
}

#[test]
fn credentials_that_a_power_cut_left_empty_are_restored_until_kubeadm_has_run() {
    let (host, [cert, key]) = control_plane();
    let read = |path: &str| fs::read(host.site.path(path)).unwrap();
    keep(&host.site, "p").unwrap();
    assert!(!restore(&host.site, "p").unwrap(), "nothing is damaged");
    host.write("/etc/kubernetes/pki/apiserver.crt", "");
    host.write("/etc/kubernetes/pki/apiserver.key", "");
    host.write("/etc/kubernetes/scheduler.conf", "");
    // The next attempt keeps no damaged files.
    keep(&host.site, "p").unwrap();
    assert!(restore(&host.site, "p").unwrap());
    assert_eq!(read("/etc/kubernetes/pki/apiserver.crt"), cert);
    assert_eq!(read("/etc/kubernetes/pki/apiserver.key"), key);
    assert_eq!(read("/etc/kubernetes/scheduler.conf"), kubeconfig("old"));
    forget(&host.site, "p").unwrap();
    assert!(!keep::directory(&host.site, "p", GROUP).exists(), "no copy of a key stays");
    forget(&host.site, "p").unwrap();
    // A link of an administrator.
    let target = host.site.path("/etc/kubernetes/pki/scheduler-2.conf");
    fs::rename(host.site.path("/etc/kubernetes/scheduler.conf"), &target).unwrap();
    std::os::unix::fs::symlink(&target, host.site.path("/etc/kubernetes/scheduler.conf")).unwrap();
    keep(&host.site, "p").unwrap();
    fs::write(&target, "").unwrap();
    assert!(restore(&host.site, "p").unwrap());
    assert_eq!(fs::read(&target).unwrap(), kubeconfig("old"));
    forget(&host.site, "p").unwrap();
    host.write("/etc/kubernetes/scheduler.conf", "");
    let error = restore(&host.site, "p").unwrap_err();
    assert_eq!(error.kind, FailureKind::NeedsPerson);
    assert!(error.message.contains("scheduler-2.conf is empty"), "{error}");
}
