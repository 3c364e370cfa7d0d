use std::{fs, os::unix::fs::PermissionsExt as _};

use refit_kinds::refit::{KubeadmArgs, Role};

use super::*;
use crate::host::{
    kubeadm::{MANIFESTS, Upgrade},
    site::Tool,
};

const API_SERVER: &str = "apiVersion: v1\nkind: Pod\nmetadata:\n  annotations:\n    \
    kubeadm.kubernetes.io/kube-apiserver.advertise-address.endpoint: 10.0.0.7:6443\n  labels:\n    \
    component: kube-apiserver\n  name: kube-apiserver\nspec:\n  containers: []\n";
const SCHEDULER: &str = "apiVersion: v1\nkind: Pod\nmetadata:\n  labels:\n    component: x\n  name: \
    kube-scheduler\nspec:\n  containers: []\n";

fn now() -> Timestamp {
    "2026-06-01T00:00:00Z".parse().unwrap()
}

/// A certificate that expires in `days`.
fn pem(days: i64) -> String {
    let mut params = rcgen::CertificateParams::new(vec!["kubernetes".to_owned()]).unwrap();
    let ends = now() + SignedDuration::from_hours(days * 24);
    let date = ends.to_zoned(jiff::tz::TimeZone::UTC).date();
    let (year, month, day) = (
        i32::from(date.year()),
        u8::try_from(date.month()).unwrap(),
        u8::try_from(date.day()).unwrap(),
    );
    params.not_after = rcgen::date_time_ymd(year, month, day);
    let key = rcgen::KeyPair::generate().unwrap();
    params.self_signed(&key).unwrap().pem()
}

fn path(site: &Site, name: &str) -> PathBuf {
    Certificates::of(site).path(name)
}

fn kubeconfig(days: i64) -> String {
    let data = STANDARD.encode(pem(days));
    format!("kind: Config\nusers:\n- name: admin\n  user:\n    client-certificate-data: {data}\n")
}

/// The kernel does not execute a file that is open for writing. A child that another test has forked meanwhile
/// holds it open until it executes a program of its own.
async fn until_it_runs(program: &std::path::Path) {
    let is_busy = |error: std::io::Error| error.kind() == std::io::ErrorKind::ExecutableFileBusy;
    while std::process::Command::new(program).output().is_err_and(is_busy) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

struct World {
    directory: tempfile::TempDir,
    site: Site,
}

impl World {
    /// A control plane whose certificates expire in `days`. The script `kubeadm` creates
    /// certificates that expire in a year.
    fn new(days: i64, kubeadm: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let site = Site::at(directory.path().join("root"), directory.path().join("state"));
        for path in [MANIFESTS, "/etc/kubernetes/pki/etcd"] {
            fs::create_dir_all(site.path(path)).unwrap();
        }
        fs::create_dir_all(site.state()).unwrap();
        for (name, text) in [("kube-apiserver", API_SERVER), ("kube-scheduler", SCHEDULER)] {
            let manifest = site.path(format!("{MANIFESTS}/{name}.yaml"));
            fs::write(&manifest, text).unwrap();
            fs::set_permissions(&manifest, fs::Permissions::from_mode(0o600)).unwrap();
        }
        fs::write(path(&site, "pki/ca.key"), "key").unwrap();
        fs::write(path(&site, "pki/apiserver.crt"), pem(365)).unwrap();
        fs::write(path(&site, "admin.conf"), kubeconfig(days)).unwrap();
        // Its authority has no key on this host, so kubeadm does not renew it.
        fs::write(path(&site, "pki/front-proxy-client.crt"), pem(1)).unwrap();
        let new = directory.path().join("new.conf");
        fs::write(&new, kubeconfig(366)).unwrap();
        let program = directory.path().join("kubeadm");
        let (new, conf) = (new.display(), path(&site, "admin.conf"));
        let renew = format!("cp {new} {}", conf.display());
        let script = format!("#!/bin/sh\n{}\n", kubeadm.replace("RENEW", &renew));
        fs::write(&program, script).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let tool = |path: String| Tool { path, ..Tool::default() };
        let site = site
            .with_tool(Program::Kubeadm, tool(program.display().to_string()))
            .with_tool(Program::Crictl, tool("/no/such/program".to_owned()));
        Self { directory, site }
    }

    async fn renew(&self, plan: &str) -> Result<(), WorkError> {
        self.renew_within(plan, 30).await
    }

    async fn renew_within(&self, plan: &str, renew_within_days: i32) -> Result<(), WorkError> {
        renew(&self.site, plan, &CertificateArgs { renew_within_days }, now()).await
    }

    fn manifest(&self, name: &str) -> String {
        self.site.read(&format!("{MANIFESTS}/{name}.yaml"))
    }

    fn calls(&self) -> usize {
        let log = fs::read_to_string(self.site.state().join("host.log")).unwrap_or_default();
        log.matches("kubeadm certs renew all").count()
    }
}

#[tokio::test]
async fn certificates_that_end_soon_are_renewed_and_read_by_the_static_pods() {
    let world = World::new(10, "RENEW");
    world.renew("p").await.unwrap();
    assert_eq!(world.calls(), 1);
    for name in ["kube-apiserver", "kube-scheduler"] {
        let text = world.manifest(name);
        assert_eq!(text.matches(ANNOTATION).count(), 1, "{text}");
        let file = world.site.path(format!("{MANIFESTS}/{name}.yaml"));
        assert_eq!(fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600);
    }
    // For the next plan no certificate expires soon.
    let before = world.manifest("kube-apiserver");
    world.renew("q").await.unwrap();
    assert_eq!((world.calls(), world.manifest("kube-apiserver")), (1, before));
}

#[tokio::test]
async fn certificates_that_do_not_expire_soon_are_kept() {
    let world = World::new(31, "exit 1");
    world.renew("p").await.unwrap();
    assert_eq!(world.calls(), 0);
    assert_eq!(world.manifest("kube-apiserver"), API_SERVER);
}

#[tokio::test]
async fn a_try_that_was_interrupted_after_the_renewal_restarts_the_pods() {
    let world = World::new(10, "RENEW; exit 1");
    world.renew("p").await.unwrap_err();
    assert_eq!(world.manifest("kube-apiserver"), API_SERVER);
    // The certificates are renewed, but the pods still have the old ones.
    fs::write(world.directory.path().join("kubeadm"), "#!/bin/sh\n").unwrap();
    world.renew("p").await.unwrap();
    assert!(world.manifest("kube-apiserver").contains(ANNOTATION));
}

#[tokio::test]
async fn certificates_are_renewed_once_in_a_plan_that_renews_them_whenever_they_expire() {
    let world = World::new(364, "RENEW");
    fs::remove_file(path(&world.site, "pki/apiserver.crt")).unwrap();
    let scheduler = world.site.path(format!("{MANIFESTS}/kube-scheduler.yaml"));
    fs::write(&scheduler, "- not a pod\n").unwrap();
    let error = world.renew_within("p", RENEW_ALWAYS_DAYS).await.unwrap_err();
    assert!(error.message.contains("is not the manifest of a pod"), "{error}");
    let restarted = world.manifest("kube-apiserver");
    assert!(restarted.contains(ANNOTATION));
    fs::write(&scheduler, SCHEDULER).unwrap();
    world.renew_within("p", RENEW_ALWAYS_DAYS).await.unwrap();
    assert!(world.manifest("kube-scheduler").contains(ANNOTATION));
    assert_eq!((world.calls(), world.manifest("kube-apiserver")), (1, restarted));
}

#[tokio::test]
async fn certificates_that_were_made_for_longer_are_renewed_on_request() {
    let world = World::new(3650, "RENEW");
    fs::remove_file(path(&world.site, "pki/apiserver.crt")).unwrap();
    world.renew_within("p", RENEW_ALWAYS_DAYS).await.unwrap();
    assert!(world.manifest("kube-apiserver").contains(ANNOTATION));
    let end = Certificates::of(&world.site).end_of("admin.conf").unwrap().unwrap();
    assert!(end < now() + SignedDuration::from_hours(400 * 24), "{end}");
}

#[tokio::test]
async fn a_host_without_the_keys_of_its_authorities_cannot_renew_on_request() {
    let world = World::new(10, "exit 1");
    fs::remove_file(path(&world.site, "pki/ca.key")).unwrap();
    let error = world.renew_within("p", RENEW_ALWAYS_DAYS).await.unwrap_err();
    assert!(error.message.contains("the keys of its authorities are not in"), "{error}");
    world.renew("p").await.unwrap();
    assert_eq!(world.calls(), 0);
}

#[tokio::test]
async fn a_renewal_that_renews_nothing_fails() {
    let world = World::new(10, "true");
    let error = world.renew("p").await.unwrap_err();
    assert!(error.message.contains("admin.conf expires when it did before"), "{error}");
    assert_eq!(world.manifest("kube-apiserver"), API_SERVER);
}

#[tokio::test]
async fn a_worker_has_no_certificates_to_renew() {
    let directory = tempfile::tempdir().unwrap();
    let site = Site::at(directory.path().join("root"), directory.path().join("state"));
    fs::create_dir_all(site.state()).unwrap();
    let args = CertificateArgs { renew_within_days: 30 };
    renew(&site, "p", &args, now()).await.unwrap();
}

#[tokio::test]
async fn a_static_pod_that_does_not_restart_is_reported() {
    let world = World::new(10, "RENEW");
    let crictl = world.directory.path().join("crictl");
    fs::write(&crictl, "#!/bin/sh\necho abc123\n").unwrap();
    fs::set_permissions(&crictl, fs::Permissions::from_mode(0o755)).unwrap();
    until_it_runs(&crictl).await;
    let tool = Tool { path: crictl.display().to_string(), ..Tool::default() };
    let site = world.site.clone().with_tool(Program::Crictl, tool);
    let wait = async |sum, seconds| {
        let patience = Duration::from_secs(seconds);
        let pod = readers::of_kubeadm(&site).find(|pod| pod.container == "kube-apiserver");
        restart(&site, &pod.unwrap(), sum, patience).await
    };
    // The manifest is changed by the first attempt only, and the second one waits as well.
    for _ in 0..2 {
        let error = wait("s", 2).await.unwrap_err();
        assert!(error.message.contains("did not restart within"), "{error}");
    }
    let error = wait("s", 2).await.unwrap_err();
    assert!(error.message.contains("`journalctl -u kubelet`"), "{error}");
    // A different container ID each time.
    fs::write(&crictl, "#!/bin/sh\necho $$\n").unwrap();
    until_it_runs(&crictl).await;
    wait("t", 60).await.unwrap();
}

#[test]
fn annotating_a_manifest_keeps_everything_else() {
    for text in [API_SERVER, SCHEDULER] {
        let first = annotated(text, "a").unwrap();
        let second = annotated(&first, "b").unwrap();
        assert_eq!(first.matches("  annotations:\n").count(), 1, "{first}");
        assert!(second.contains("\n    refit.dev/certificates: \"b\"\n"), "{second}");
        assert_eq!(first.replace("\"a\"", "\"b\""), second);
        for line in text.lines() {
            assert!(second.lines().any(|found| found == line), "{line} is lost");
        }
    }
    assert_eq!(annotated("kind: Pod\n", "a"), None);
}

#[test]
fn a_manifest_in_another_form_than_kubeadms_is_annotated() {
    for text in [
        r#"{"kind": "Pod", "metadata": {"name": "x"}, "spec": {"hostNetwork": true}}"#,
        "kind: Pod\nmetadata: {name: x, annotations: {a: b}}\nspec: {hostNetwork: true}\n",
        "kind: Pod\nmetadata:\n    name: x\n    annotations:\nspec:\n    hostNetwork: true\n",
    ] {
        let pod: Value = serde_saphyr::from_str(&annotated(text, "s").unwrap()).unwrap();
        assert_eq!(pod["metadata"]["annotations"][ANNOTATION], "s", "{text}");
        assert_eq!(
            (&pod["metadata"]["name"], &pod["spec"]["hostNetwork"]),
            (&json!("x"), &json!(true))
        );
    }
}

/// Manifests of kube-vip and of a pod that reads no certificates.
fn with_other_tools(site: &Site) {
    for (name, volume) in [("kube-vip", "/etc/kubernetes/admin.conf"), ("haproxy", "/etc/haproxy")]
    {
        let text = format!(
            "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\nspec:\n  containers:\n  - name: {name}\n  \
             volumes:\n  - hostPath:\n      path: {volume}\n    name: kubeconfig\n"
        );
        fs::write(site.path(format!("{MANIFESTS}/{name}.yaml")), text).unwrap();
    }
}

#[tokio::test]
async fn static_pods_of_other_tools_that_read_renewed_certificates_are_restarted() {
    let world = World::new(10, "RENEW");
    with_other_tools(&world.site);
    world.renew("p").await.unwrap();
    assert!(world.manifest("kube-vip").contains(ANNOTATION));
    assert!(!world.manifest("haproxy").contains(ANNOTATION));
}

#[tokio::test]
async fn an_upgrade_that_renews_certificates_restarts_only_the_static_pods_of_other_tools() {
    let version = "v1.35.0".parse().unwrap();
    let args = KubeadmArgs::default();
    let upgrade = Upgrade { role: Role::FirstControlPlane, version: &version, args: &args };
    for (script, restarted) in [("RENEW", true), ("true", false)] {
        let world = World::new(10, script);
        with_other_tools(&world.site);
        for name in ["kube-apiserver", "kube-controller-manager", "kube-scheduler"] {
            let text = SCHEDULER.replace("containers: []", "containers: [{image: x}]");
            fs::write(world.site.path(format!("{MANIFESTS}/{name}.yaml")), text).unwrap();
        }
        super::super::upgrade(&world.site, "p", &upgrade).await.unwrap();
        assert_eq!(world.manifest("kube-vip").contains(ANNOTATION), restarted, "{script}");
        for name in ["haproxy", "kube-scheduler"] {
            assert!(!world.manifest(name).contains(ANNOTATION), "{name}");
        }
    }
}

#[tokio::test]
async fn kubeadm_runs_again_only_with_the_credentials_that_a_power_cut_damaged_restored() {
    let version = "v1.35.0".parse().unwrap();
    let args = KubeadmArgs::default();
    let upgrade = Upgrade { role: Role::ControlPlane, version: &version, args: &args };
    for is_upgrade in [true, false] {
        let world = World::new(10, "RENEW");
        for name in ["kube-apiserver", "kube-controller-manager", "kube-scheduler"] {
            let text = SCHEDULER.replace("containers: []", "containers: [{image: x}]");
            fs::write(world.site.path(format!("{MANIFESTS}/{name}.yaml")), text).unwrap();
        }
        let run = async || {
            if is_upgrade {
                super::super::upgrade(&world.site, "p", &upgrade).await
            } else {
                world.renew("p").await
            }
        };
        let kubeconfig = path(&world.site, "admin.conf");
        let kubeadm = world.directory.path().join("kubeadm");
        let renews = fs::read_to_string(&kubeadm).unwrap();
        fs::write(&kubeadm, format!("#!/bin/sh\n: > {}\nexit 1\n", kubeconfig.display())).unwrap();
        run().await.unwrap_err();
        assert_eq!(fs::read(&kubeconfig).unwrap(), b"");
        let checks = format!("#!/bin/sh\n[ -s {} ] || exit 3\n{renews}", kubeconfig.display());
        fs::write(&kubeadm, checks).unwrap();
        run().await.unwrap();
        let kept = world.site.snapshot("p").join("files/credentials");
        assert!(!kept.exists(), "copies of keys go once kubeadm has ended");
    }
}

#[test]
fn the_agent_reports_when_certificates_expire_that_kubeadm_does_not_renew() {
    let world = World::new(90, "RENEW");
    let site = &world.site;
    let front = "/etc/kubernetes/pki/front-proxy-client.crt";
    let authority = "/etc/kubernetes/pki/ca.crt";
    assert_eq!(not_renewed(site).into_keys().collect::<Vec<_>>(), [front]);
    fs::write(site.path(authority), pem(3650)).unwrap();
    fs::write(site.path("/etc/kubernetes/pki/etcd/ca.crt"), "rubbish").unwrap();
    let ends = |days: i64| Time(now() + SignedDuration::from_hours(days * 24));
    let expected = [(authority, ends(3650)), (front, ends(1))];
    let expected = expected.map(|(name, ends)| (name.to_owned(), ends));
    assert_eq!(not_renewed(site), BTreeMap::from(expected));
    // A worker has only the certificate of its authority.
    fs::remove_file(site.path(front)).unwrap();
    assert_eq!(not_renewed(site).into_keys().collect::<Vec<_>>(), [authority]);
}

#[test]
fn the_agent_reports_when_the_first_of_kubeadms_certificates_expires() {
    let world = World::new(10, "RENEW");
    let site = &world.site;
    let ends = |days: i64| Some(Time(now() + SignedDuration::from_hours(days * 24)));
    // Neither kubeconfigs count, nor what kubeadm does not renew here.
    assert_eq!(earliest_end(site), ends(365));
    fs::write(path(site, "pki/apiserver-kubelet-client.crt"), pem(200)).unwrap();
    assert_eq!(earliest_end(site), ends(200));
    fs::write(path(site, "pki/apiserver.crt"), "rubbish").unwrap();
    assert_eq!(earliest_end(site), None);
    fs::remove_file(path(site, "pki/ca.key")).unwrap();
    assert_eq!(earliest_end(site), None, "of an authority elsewhere");
}

#[tokio::test]
async fn certificates_in_another_directory_are_reported_with_their_paths_there() {
    let world = World::new(90, "RENEW");
    let site = &world.site;
    let directory = site.path("/srv/pki");
    fs::create_dir_all(&directory).unwrap();
    fs::write(directory.join("ca.crt"), pem(3650)).unwrap();
    fs::write(directory.join("ca.key"), "key").unwrap();
    fs::write(directory.join("apiserver.crt"), "rubbish").unwrap();
    let manifest = "spec: {containers: [{name: kube-apiserver, command: [kube-apiserver, \
        --client-ca-file=/srv/pki/ca.crt]}]}";
    fs::write(site.path(format!("{MANIFESTS}/kube-apiserver.yaml")), manifest).unwrap();
    assert_eq!(not_renewed(site).into_keys().collect::<Vec<_>>(), ["/srv/pki/ca.crt"]);
    let error = world.renew("p").await.unwrap_err();
    assert!(error.message.starts_with("/srv/pki/apiserver.crt contains no readable"), "{error}");
}
