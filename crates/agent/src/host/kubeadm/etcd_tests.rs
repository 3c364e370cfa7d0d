use std::{fs, os::unix::fs::PermissionsExt as _};

use refit_kinds::refit::FailureKind;

use super::*;
use crate::host::scripted::ScriptedHost;

const OLD: &str = "registry.k8s.io/etcd:3.5.21-0";
const NEW: &str = "registry.k8s.io/etcd:3.6.5-0";
const PODS: &str = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: etcd\n  # note\nspec:\n  initContainers:\n  - image: \
                    registry.k8s.io/etcd:3.5.21-0\n    name: defrag\n  containers:\n  - command:\n    - etcd\n    image: \
                    registry.k8s.io/etcd:3.5.21-0 # by kubeadm\n    name: etcd\n";
const QUICK: Patience =
    Patience { limit: Duration::from_secs(1), pause: Duration::from_millis(10) };

/// A host whose kubelet runs etcd at once with the image of its manifest, if its name is in the file `runnable`.
fn host(runnable: &[&str]) -> ScriptedHost {
    let mut host = ScriptedHost::with_directories(&[MANIFESTS, "/var/lib/etcd/member"]);
    host.write(&path(), PODS);
    fs::set_permissions(host.site.path(path()), fs::Permissions::from_mode(0o600)).unwrap();
    let directory = host.directory.path();
    fs::write(directory.join("runnable"), runnable.join("\n")).unwrap();
    let at = directory.display();
    let manifest = host.site.path(path()).display().to_string();
    let crictl = format!(
        "case $1 in \
         inspecti) test -e {at}/pulled;; \
         pull) echo \"$2\" > {at}/pulled;; \
         ps) for last; do :; done; case $last in *:*) grep -qx \"$last\" {at}/runnable && \
         grep -q \"image: $last .*kubeadm\" {manifest} && echo abc; exit 0;; *) echo abc;; esac;; \
         exec) exit 0;; esac"
    );
    host.script(Program::Crictl, &crictl);
    host.without(Program::Etcdctl);
    host.without(Program::Ctr);
    host
}

fn args(repository: &str, tag: &str) -> EtcdArgs {
    EtcdArgs { image_repository: repository.to_owned(), image_tag: tag.to_owned() }
}

async fn upgraded(host: &ScriptedHost, args: &EtcdArgs) -> Result<(), WorkError> {
    upgrade(&host.site, "p", "etcd-upgrade", args, QUICK).await
}

#[tokio::test]
async fn etcd_gets_its_image_and_only_its_image_changes() {
    let host = host(&[OLD, NEW]);
    let wanted = args("", "3.6.5-0");
    assert!(matches!(check(&host.site, &wanted), Evidence::Missing { .. }));
    for _ in 0..2 {
        upgraded(&host, &wanted).await.unwrap();
        let found = host.site.read(&path());
        let (first, rest) = PODS.split_once("name: defrag").unwrap();
        assert_eq!(found, format!("{first}name: defrag{}", rest.replace(OLD, NEW)));
        assert_eq!(check(&host.site, &wanted), Evidence::Done);
    }
    let mode = fs::metadata(host.site.path(path())).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(host.log().matches("replaced the image").count(), 1, "{}", host.log());
    let pulled = fs::read_to_string(host.directory.path().join("pulled")).unwrap();
    assert_eq!(pulled, format!("{NEW}\n"));
}

#[tokio::test]
async fn an_etcd_that_does_not_start_gets_its_previous_manifest_back() {
    for (runnable, state) in
        [(&[OLD][..], "it runs with registry.k8s.io/etcd:3.5.21-0 again"), (&[], "does not run")]
    {
        let host = host(runnable);
        let error = upgraded(&host, &args("", "3.6.5-0")).await.unwrap_err();
        assert_eq!(error.kind, FailureKind::NeedsPerson);
        assert!(error.message.contains(NEW) && error.message.contains(state), "{error}");
        assert_eq!(host.site.read(&path()), PODS);
    }
    // An attempt after an interruption finds the new image in the manifest, and restores the one before the plan.
    let host = host(&[OLD]);
    keep::keep(&host.site, "p", "etcd-upgrade", &path()).unwrap();
    host.write(&path(), with_image(PODS, NEW).unwrap());
    upgraded(&host, &args("", "3.6.5-0")).await.unwrap_err();
    assert_eq!(host.site.read(&path()), PODS);
}

#[tokio::test]
async fn an_image_that_cannot_be_pulled_changes_nothing() {
    let mut host = host(&[OLD, NEW]);
    host.script(Program::Crictl, "exit 1");
    upgraded(&host, &args("", "3.6.5-0")).await.unwrap_err();
    assert_eq!(host.site.read(&path()), PODS);
}

#[tokio::test]
async fn an_older_etcd_and_an_etcd_elsewhere_are_refused() {
    let host = host(&[OLD]);
    for tag in ["3.4.13-0", "v2.3.8"] {
        let error = upgraded(&host, &args("r.example", tag)).await.unwrap_err();
        assert_eq!(error.kind, FailureKind::Final);
        assert!(error.message.ends_with("choose a tag of 3.5 or newer"), "{error}");
    }
    assert_eq!(host.site.read(&path()), PODS);
    fs::remove_file(host.site.path(path())).unwrap();
    let error = upgraded(&host, &args("", "3.6.5-0")).await.unwrap_err();
    assert_eq!(error.kind, FailureKind::Final);
    assert!(error.message.contains("upgrade it where it runs"), "{error}");
    assert!(matches!(check(&host.site, &args("", "3.6.5-0")), Evidence::Missing { .. }));
}

#[tokio::test]
async fn a_host_without_crictl_and_a_pod_without_etcd_need_an_operator() {
    let mut host = host(&[NEW]);
    host.write(&path(), PODS.replace("name: etcd\n", "name: other\n"));
    let error = upgraded(&host, &args("", "3.6.5-0")).await.unwrap_err();
    assert!(error.message.contains("has no container etcd"), "{error}");
    host.write(&path(), PODS);
    host.without(Program::Crictl);
    let error = upgraded(&host, &args("", "3.6.5-0")).await.unwrap_err();
    assert!(error.message.contains("install cri-tools"), "{error}");
    assert_eq!(host.site.read(&path()), PODS);
}

#[test]
fn images_are_named_as_kubeadm_names_them() {
    for (repository, found, expected) in [
        ("", OLD, "registry.k8s.io/etcd:1"),
        ("", "r.example:5000/mine@sha256:00", "r.example:5000/mine:1"),
        ("", "r.example:5000/etcd:3@sha256:00", "r.example:5000/etcd:1"),
        ("r.example:5000/k8s", OLD, "r.example:5000/k8s/etcd:1"),
    ] {
        assert_eq!(wanted(&args(repository, "1"), found), expected);
    }
}

#[test]
fn tags_without_a_version_are_not_compared() {
    for (wanted, found, is_refused) in [
        ("e:3.6.5-0", "e:3.5.21-0", false),
        ("e:3.5.1", "e:3.5.21-0", false),
        ("e:v3.4.0", "e:3.5.21-0", true),
        ("e:custom", "e:3.5.21-0", false),
        ("e:3.4.0", "e:custom", false),
        ("e:3.4.0", "e@sha256:00", false),
    ] {
        assert_eq!(refuse_older(wanted, found).is_err(), is_refused, "{wanted} {found}");
    }
}

#[test]
fn a_manifest_in_another_form_than_kubeadms_gets_the_image() {
    let text = format!(
        r#"{{"kind": "Pod", "spec": {{"containers": [{{"name": "a", "image": "{OLD}"}}, {{"name": "etcd", "image": "{OLD}"}}]}}}}"#
    );
    let pod: Value = serde_saphyr::from_str(&with_image(&text, NEW).unwrap()).unwrap();
    assert_eq!((image_in(&pod, 0), image_in(&pod, 1)), (Some(OLD), Some(NEW)));
    assert_eq!(with_image("kind: Pod\n", NEW), None);
}
