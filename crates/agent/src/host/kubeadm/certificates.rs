//! Renewal of kubeadm's certificates outside of an upgrade.
//!
//! `kubeadm upgrade` renews the certificates, which is not enough for clusters that are upgraded
//! less than once a year. `kubeadm certs renew` leaves the static pods with the old certificates
//! until each pod is restarted (`docs/facts/kubeadm.md#certificates`). The static pods of other tools keep the old ones
//! after an upgrade, too. A changed annotation in the manifest makes the kubelet restart a static pod. The manifest is
//! replaced atomically, so a power cut does not leave a host without its API server.
//!
//! Certificates of an authority whose key is not on the host are renewed by their owner.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use refit_kinds::refit::{CertificateArgs, RENEW_ALWAYS_DAYS};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use x509_parser::pem::Pem;

use super::{
    credentials::{self, Credential},
    manifest,
    readers::{self, StaticPod},
    run, running, sync,
};
use crate::host::{
    Program, Site,
    files::atomic::{self, Access},
    site::plain,
    work::WorkError,
};

const KUBERNETES: &str = "/etc/kubernetes";
/// Start of the names of files in kubeadm's `certificatesDir`; the others are in `/etc/kubernetes`.
const PKI: &str = "pki/";
/// Certificates and kubeconfigs that kubeadm renews, and the key of the authority that signs them.
const RENEWED: [(&str, &str); 11] = [
    ("pki/apiserver.crt", "pki/ca.key"),
    ("pki/apiserver-kubelet-client.crt", "pki/ca.key"),
    ("pki/apiserver-etcd-client.crt", "pki/etcd/ca.key"),
    ("pki/front-proxy-client.crt", "pki/front-proxy-ca.key"),
    ("pki/etcd/server.crt", "pki/etcd/ca.key"),
    ("pki/etcd/peer.crt", "pki/etcd/ca.key"),
    ("pki/etcd/healthcheck-client.crt", "pki/etcd/ca.key"),
    ("admin.conf", "pki/ca.key"),
    ("super-admin.conf", "pki/ca.key"),
    ("controller-manager.conf", "pki/ca.key"),
    ("scheduler.conf", "pki/ca.key"),
];
/// Certificates of authorities, which kubeadm never renews.
const AUTHORITIES: [&str; 3] = ["pki/ca.crt", "pki/etcd/ca.crt", "pki/front-proxy-ca.crt"];
/// What the file of a plan holds once its certificates are renewed: only static pods remain to be restarted.
const RENEWED_MARK: &[u8] = b"renewed\n";
/// The annotation whose change restarts a static pod.
const ANNOTATION: &str = "refit.dev/certificates";
/// How long a static pod may take to restart: the same as in kubeadm.
const RESTART: Duration = Duration::from_mins(5);
const POLL: Duration = Duration::from_secs(1);

/// The certificates of a host.
#[derive(Clone, Debug)]
struct Certificates<'a> {
    site: &'a Site,
    /// kubeadm's `certificatesDir`.
    pki: PathBuf,
}

/// Renews the certificates of a control plane if one of them expires soon, and restarts the static
/// pods that read them.
pub(crate) async fn renew(
    site: &Site,
    plan: &str,
    args: &CertificateArgs,
    now: Timestamp,
) -> Result<(), WorkError> {
    let certificates = Certificates::of(site);
    credentials::keep(site, plan)?;
    credentials::restore(site, plan)?;
    let before = certificates.found()?;
    if before.is_empty() && args.renew_within_days == RENEW_ALWAYS_DAYS {
        return Err(WorkError::needs_person(format!(
            "kubeadm renews no certificate on this host, because the keys of its authorities are not in {}; renew the \
             certificates where those keys are",
            certificates.pki.display()
        )));
    }
    // What an interrupted attempt has written is durable before its copies go.
    sync::all(site).await;
    // An interrupted attempt may have renewed the certificates without restarting all pods.
    let begun = site.snapshot(plan).join("certificates");
    let is_renewed = atomic::read(&begun)?.is_some_and(|(mark, _)| mark == RENEWED_MARK);
    // Another renewal would restart the pods that an interrupted attempt has restarted.
    let soon = if is_renewed { Vec::new() } else { within(&before, args, now) };
    match soon.first() {
        Some((name, ends)) => {
            let path = certificates.on_host(name);
            site.log(&format!("{} expires {ends}, renewing the certificates", path.display()));
        }
        None if begun.exists() => site.log("continuing an interrupted renewal of the certificates"),
        None => {
            site.log("no certificate expires soon");
            return credentials::forget(site, plan);
        }
    }
    if !soon.is_empty() {
        atomic::replace(&begun, b"begun\n", Access::of_mode(0o600))?;
        certificates.renew_all(&soon).await?;
        // After a power cut, copies must not take the place of what is marked as renewed.
        sync::all(site).await;
        atomic::replace(&begun, RENEWED_MARK, Access::of_mode(0o600))?;
    }
    let sum = certificates.fingerprint();
    let others = readers::of_others(site, &certificates.renewed());
    for pod in readers::of_kubeadm(site).chain(others) {
        restart(site, &pod, &sum, RESTART).await?;
    }
    credentials::forget(site, plan)
}

/// Restarts the static pods of other tools that read certificates which are no longer those of the fingerprint `before`.
/// kubeadm's own were restarted by the upgrade.
pub(super) async fn restart_other_readers(site: &Site, before: &str) -> Result<(), WorkError> {
    let certificates = Certificates::of(site);
    let now = certificates.fingerprint();
    if now == before {
        return Ok(());
    }
    for pod in readers::of_others(site, &certificates.renewed()) {
        restart(site, &pod, &now, RESTART).await?;
    }
    Ok(())
}

/// The certificates that expire within the number of days in the plan, the earliest first.
fn within(
    found: &BTreeMap<&'static str, Timestamp>,
    args: &CertificateArgs,
    now: Timestamp,
) -> Vec<(&'static str, Timestamp)> {
    let days = i64::from(args.renew_within_days.max(0));
    let limit = now.saturating_add(SignedDuration::from_hours(days * 24));
    let limit = limit.unwrap_or(Timestamp::MAX);
    let all = found.iter().map(|(name, ends)| (*name, *ends));
    let mut soon: Vec<_> = all.filter(|(_, ends)| *ends <= limit).collect();
    soon.sort_by_key(|(_, ends)| *ends);
    soon
}

/// Expiry of each certificate on this host that `kubeadm upgrade` does not renew, by its absolute path. One that cannot
/// be read is left out.
pub(crate) fn not_renewed(site: &Site) -> BTreeMap<String, Time> {
    let certificates = Certificates::of(site);
    let of_others = RENEWED.into_iter().filter(|(_, key)| !certificates.path(key).exists());
    let names = AUTHORITIES.into_iter().chain(of_others.map(|(name, _)| name));
    let end = |name| Some(Time(certificates.end_of(name).ok()??));
    let shown = |name| certificates.on_host(name).display().to_string();
    names.filter_map(|name| Some((shown(name), end(name)?))).collect()
}

/// When the first of the certificates expires that kubeadm renews on this host; `None` if it has no such certificate,
/// or one cannot be read. It renews kubeconfigs together with them, and these contain keys, so they are not read.
pub(crate) fn earliest_end(site: &Site) -> Option<Time> {
    let certificates = Certificates::of(site);
    let names = certificates.of_kubeadm().filter(|name| name.starts_with(PKI));
    let ends = names.map(|name| certificates.end_of(name)).collect::<Result<Vec<_>, _>>().ok()?;
    ends.into_iter().flatten().min().map(Time)
}

/// What kubeadm renews on this host.
pub(super) fn credentials(site: &Site) -> Vec<Credential> {
    let certificates = Certificates::of(site);
    let path = |path: &Path| {
        let path = path.display().to_string();
        site.resolved(&path).unwrap_or(path)
    };
    let all = certificates.renewed().into_iter().map(|file| match file.extension() {
        Some(extension) if extension == "crt" => {
            Credential::Pair([path(&file), path(&file.with_extension("key"))])
        }
        Some(_) | None => Credential::Kubeconfig([path(&file)]),
    });
    all.collect()
}

/// A fingerprint of the current certificates. They are public.
pub(super) fn fingerprint(site: &Site) -> String {
    Certificates::of(site).fingerprint()
}

impl<'a> Certificates<'a> {
    fn of(site: &'a Site) -> Self {
        Self { site, pki: manifest::certificates_directory(site) }
    }

    /// Absolute path of a file on the host.
    fn on_host(&self, name: &str) -> PathBuf {
        match name.strip_prefix(PKI) {
            Some(rest) => self.pki.join(rest),
            None => Path::new(KUBERNETES).join(name),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.site.path(self.on_host(name))
    }

    /// Those that kubeadm renews on this host.
    fn of_kubeadm(&self) -> impl Iterator<Item = &'static str> {
        let of_host = RENEWED.into_iter().filter(|(_, key)| self.path(key).exists());
        of_host.map(|(name, _)| name)
    }

    /// Paths of the certificates and kubeconfigs that kubeadm renews on this host.
    fn renewed(&self) -> Vec<PathBuf> {
        self.of_kubeadm().map(|name| self.on_host(name)).collect()
    }

    /// Expiry of each certificate that kubeadm can renew on this host.
    fn found(&self) -> Result<BTreeMap<&'static str, Timestamp>, WorkError> {
        let mut all = BTreeMap::new();
        for name in self.of_kubeadm() {
            if let Some(end) = self.end_of(name)? {
                all.insert(name, end);
            }
        }
        Ok(all)
    }

    /// Has kubeadm renew all, and checks those that are to be renewed. New ones may expire earlier than the old ones, if
    /// kubeadm's configuration gives them a shorter life.
    async fn renew_all(&self, due: &[(&'static str, Timestamp)]) -> Result<(), WorkError> {
        run(self.site, &self.site.call(Program::Kubeadm, ["certs", "renew", "all"])).await?;
        let after = self.found()?;
        let is_old = |name: &str, ends: &Timestamp| after.get(name).is_none_or(|now| now == ends);
        match due.iter().find(|(name, ends)| is_old(name, ends)) {
            Some((name, _)) => Err(WorkError::retriable(format!(
                "kubeadm renewed its certificates, but {} expires when it did before; check it with `kubeadm certs \
                 check-expiration`",
                self.on_host(name).display()
            ))),
            None => Ok(()),
        }
    }

    /// The certificate in a file; in a kubeconfig, the certificate of its user.
    fn certificate(&self, name: &str) -> Result<Option<Vec<u8>>, WorkError> {
        let Some((text, _)) = atomic::read(&self.path(name))? else {
            return Ok(None);
        };
        if name.starts_with(PKI) {
            return Ok(Some(text));
        }
        let text = String::from_utf8_lossy(&text);
        let mut lines = text.lines();
        let data = lines.find_map(|line| line.trim().strip_prefix("client-certificate-data:"));
        let Some(data) = data else { return Ok(None) };
        let decoded = STANDARD.decode(data.trim().trim_matches('"'));
        decoded.map(Some).map_err(|_| self.unreadable(name))
    }

    /// Expiry of a certificate; `None` if the host does not have it.
    fn end_of(&self, name: &str) -> Result<Option<Timestamp>, WorkError> {
        let end = |pem: Vec<u8>| end_of(&pem).ok_or_else(|| self.unreadable(name));
        self.certificate(name)?.map(end).transpose()
    }

    fn unreadable(&self, name: &str) -> WorkError {
        WorkError::needs_person(format!(
            "{} contains no readable certificate; repair it, or recreate it with kubeadm",
            self.on_host(name).display()
        ))
    }

    fn fingerprint(&self) -> String {
        use std::fmt::Write as _;
        let mut hash = Sha256::new();
        for (name, _) in RENEWED {
            hash.update(self.certificate(name).ok().flatten().unwrap_or_default());
        }
        let mut hex = String::new();
        for byte in hash.finalize().iter().take(8) {
            let _ = write!(hex, "{byte:02x}");
        }
        hex
    }
}

/// Expiry of the first certificate in a file: it is the host's own, others belong to authorities.
fn end_of(pem: &[u8]) -> Option<Timestamp> {
    let pem = Pem::iter_from_buffer(pem).next()?.ok()?;
    let certificate = pem.parse_x509().ok()?;
    Timestamp::from_second(certificate.validity().not_after.timestamp()).ok()
}

/// Makes the kubelet restart a static pod, and waits for the restart if the runtime can be queried.
async fn restart(
    site: &Site,
    pod: &StaticPod,
    sum: &str,
    patience: Duration,
) -> Result<(), WorkError> {
    let (path, name) = (&pod.manifest, &pod.container);
    let Some((text, file)) = atomic::read(path)? else {
        return Ok(());
    };
    let text = String::from_utf8_lossy(&text);
    let changed = annotated(&text, sum).ok_or_else(|| {
        WorkError::needs_person(format!(
            "{} is not the manifest of a pod, so {name} still uses its old certificates; restart it",
            path.display()
        ))
    })?;
    let ids = async || running(site, name).await.unwrap_or_default();
    let access = Access::of(&file);
    // An attempt that was interrupted, or waited in vain, has changed the manifest: the next one waits for the same.
    let record = site.state().join(format!("restarting-{}", plain(name)));
    let before = match awaited(&record, sum)? {
        Some(before) => before,
        None if atomic::is(path, changed.as_bytes(), access) => return Ok(()),
        None => {
            let before = ids().await;
            let text = format!("{sum}\n{before}");
            atomic::replace(&record, text.as_bytes(), Access::of_mode(0o600))?;
            before
        }
    };
    if atomic::replace(path, changed.as_bytes(), access)? {
        site.log(&format!("restarting {name}"));
    }
    if !site.has(Program::Crictl) || before.is_empty() {
        return atomic::remove(&record);
    }
    let started = async {
        loop {
            tokio::time::sleep(POLL).await;
            let now = ids().await;
            if !now.is_empty() && now != before {
                return;
            }
        }
    };
    let outcome = tokio::time::timeout(patience, started).await;
    outcome.map_err(|_| {
        WorkError::retriable(format!(
            "{name} did not restart within {} s after the renewal of its certificates; see `crictl logs` of \
             its container and `journalctl -u kubelet` on the host",
            patience.as_secs()
        ))
    })?;
    atomic::remove(&record)
}

/// The containers that a restart with this fingerprint replaces, if it has begun.
fn awaited(record: &Path, sum: &str) -> Result<Option<String>, WorkError> {
    let found = atomic::read(record)?;
    let text = found.map(|(text, _)| String::from_utf8_lossy(&text).into_owned());
    Ok(text
        .as_deref()
        .and_then(|text| text.strip_prefix(sum)?.strip_prefix('\n'))
        .map(str::to_owned))
}

/// The content that a file is to have, with the annotation that made its static pod restart if `found`, the manifest at
/// its place, has it: without the annotation, the pod would be restarted for nothing, and again after the next renewal.
pub(in crate::host) fn keeping_annotation(found: &[u8], wanted: Vec<u8>) -> Vec<u8> {
    let pod = |text: &[u8]| serde_saphyr::from_str::<Value>(std::str::from_utf8(text).ok()?).ok();
    let value = |pod: Value| Some(pod["metadata"]["annotations"][ANNOTATION].as_str()?.to_owned());
    let kept = || {
        let kept = pod(found).and_then(value)?;
        // The plan may set the annotation itself.
        let text = std::str::from_utf8(&wanted).ok().filter(|text| !text.contains(ANNOTATION))?;
        annotated(text, &kept)
    };
    kept().map_or(wanted, String::into_bytes)
}

/// The manifest with Refit's annotation set to this value; `None` if it is not a manifest.
fn annotated(text: &str, value: &str) -> Option<String> {
    let pod = annotated_pod(text, value)?;
    let is_same = |new: &String| serde_saphyr::from_str(new).is_ok_and(|new: Value| new == pod);
    let kept = annotated_lines(text, value).filter(is_same);
    // Its comments are lost.
    Some(kept.unwrap_or_else(|| format!("{pod:#}\n")))
}

fn annotated_pod(text: &str, value: &str) -> Option<Value> {
    let mut pod: Value = serde_saphyr::from_str(text).ok()?;
    let metadata = pod.get_mut("metadata")?.as_object_mut()?;
    let annotations = metadata.entry("annotations").or_insert(Value::Null);
    if annotations.is_null() {
        *annotations = json!({});
    }
    annotations.as_object_mut()?.insert(ANNOTATION.to_owned(), json!(value));
    Some(pod)
}

/// As [`annotated`], for a manifest in kubeadm's format: each other line stays as it is.
fn annotated_lines(text: &str, value: &str) -> Option<String> {
    const LIST: &str = "  annotations:";
    let annotation = format!("    {ANNOTATION}: \"{value}\"");
    let known = format!("{ANNOTATION}:");
    let mut lines = text.lines().filter(|line| !line.trim_start().starts_with(&known));
    let mut out: Vec<&str> = Vec::new();
    loop {
        let line = lines.next()?;
        out.push(line);
        if line == "metadata:" {
            break;
        }
    }
    let rest: Vec<&str> = lines.collect();
    let inside = rest.iter().take_while(|line| line.starts_with(' '));
    // An empty list may be written as `annotations: {}`.
    let has_list = inside.into_iter().any(|line| line.starts_with(LIST));
    if !has_list {
        out.extend([LIST, &annotation]);
    }
    let mut looking = has_list;
    for line in rest {
        if looking && line.starts_with(LIST) {
            out.extend([LIST, &annotation]);
            looking = false;
        } else {
            out.push(line);
        }
    }
    Some(out.join("\n") + "\n")
}

#[cfg(test)]
#[path = "certificates_tests.rs"]
mod tests;
