//! What a host was like before a plan: etcd, manifests, the kubelet's configuration, packages.
//!
//! It lies in `snapshots/<plan>` of the agent's folder, closed to others. Taken once per plan: a
//! later try does not save what an earlier one has half changed.
//!
//! etcd is saved by its own program, because a copy of files that change is no snapshot:
//!
//! | the host has | etcd is saved by |
//! |---|---|
//! | no manifest of etcd | nobody here: its owner saves an external one, a worker has none |
//! | `etcdctl` | that |
//! | `crictl` | the `etcdctl` of the running container |
//! | `ctr` | the same |
//! | none of them | nobody: the preflight says so before anything is staged |

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Read as _},
    path::{Path, PathBuf},
};

use refit_kinds::refit::PackageDriver;
use sha2::{Digest as _, Sha256};

use super::{
    Invocation, Program, Site,
    files::{
        atomic::{self, Access},
        keep,
    },
    kubeadm::{Etcd, INSTANCE_CONFIG, KUBELET_CONFIG, MANIFESTS},
    packages::Packages,
    work::WorkError,
};

/// How many snapshots of other plans stay.
pub(super) const KEPT: usize = 2;
/// Group of the files that `kubeadm upgrade` changes.
pub(super) const CONFIGURATION: &str = "configuration";
/// Those that are not manifests.
const CONFIGURATION_FILES: [&str; 3] =
    [KUBELET_CONFIG, "/var/lib/kubelet/kubeadm-flags.env", INSTANCE_CONFIG];
/// Manifests that kubeadm writes: one that is not there yet is kept as missing.
const MANIFEST_NAMES: [&str; 4] =
    ["etcd.yaml", "kube-apiserver.yaml", "kube-controller-manager.yaml", "kube-scheduler.yaml"];
const PKI: &str = "/etc/kubernetes/pki/etcd";
const DATA: &str = "/var/lib/etcd";
/// Where the container of etcd writes it: the one folder that it shares with the host.
const IN_CONTAINER: &str = "refit-snapshot.db";
/// What bbolt writes into its first page, and where.
const BOLT_MAGIC: [u8; 4] = 0xED0C_DAED_u32.to_le_bytes();
const BOLT_MAGIC_AT: usize = 16;
/// etcd ends a snapshot with the sha256 of what comes before.
const SUM_BYTES: u64 = 32;

/// Who saves etcd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Etcdctl,
    Crictl,
    Ctr,
}

/// Whether a snapshot can be taken; said before anything is staged.
pub(super) fn check(site: &Site) -> Result<(), WorkError> {
    if Etcd::of(site) == Etcd::Elsewhere {
        return Ok(());
    }
    way(site).map(|_| ())
}

fn way(site: &Site) -> Result<Way, WorkError> {
    let ways = [
        (Program::Etcdctl, Way::Etcdctl),
        (Program::Crictl, Way::Crictl),
        (Program::Ctr, Way::Ctr),
    ];
    let found = ways.into_iter().find(|(program, _)| site.has(*program));
    found.map(|(_, way)| way).ok_or_else(|| {
        WorkError::needs_person(
            "etcd runs here and cannot be saved: the host has neither etcdctl nor crictl nor ctr; \
             install cri-tools or etcd-client",
        )
    })
}

/// Takes the snapshot of a plan.
pub(super) async fn take(site: &Site, plan: &str) -> Result<(), WorkError> {
    let packages = Packages::of(site, PackageDriver::Auto)?.installed().await?;
    save(site, plan, &packages).await
}

async fn save(
    site: &Site,
    plan: &str,
    packages: &BTreeMap<String, String>,
) -> Result<(), WorkError> {
    let folder = make_folder(site, plan)?;
    keep_configuration(site, plan)?;
    let list = folder.join("packages.json");
    if !list.exists() {
        let text = serde_json::to_vec_pretty(packages).expect("plain data can be written as JSON");
        atomic::replace(&list, &text, Access::of_mode(0o600))?;
    }
    if Etcd::of(site) != Etcd::Elsewhere {
        save_etcd(site, &folder).await?;
    }
    Ok(())
}

/// Keeps the files that `kubeadm upgrade` changes, once per plan.
pub(super) fn keep_configuration(site: &Site, plan: &str) -> Result<(), WorkError> {
    make_folder(site, plan)?;
    // On a worker nobody writes manifests, and those of other people are not ours to take away.
    let control_plane = site.path(MANIFESTS).join("kube-apiserver.yaml").exists();
    let manifests = MANIFEST_NAMES
        .into_iter()
        .filter(|_| control_plane)
        .map(|name| format!("{MANIFESTS}/{name}"));
    let all = CONFIGURATION_FILES.into_iter().map(str::to_owned).chain(manifests);
    for path in all {
        keep::keep(site, plan, CONFIGURATION, &path)?;
    }
    Ok(())
}

/// Puts back what [`keep_configuration`] kept.
pub(super) fn put_back(site: &Site, plan: &str) -> Result<(), WorkError> {
    for path in keep::put_back(site, plan, CONFIGURATION)? {
        site.say(&format!("{path} is as it was"));
    }
    Ok(())
}

/// The folder of a plan's snapshot. Only what is made here is closed: it is ours alone.
fn make_folder(site: &Site, plan: &str) -> Result<PathBuf, WorkError> {
    use std::os::unix::fs::DirBuilderExt as _;
    let folder = site.snapshot(plan);
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder);
    made.map_err(|error| WorkError::file(&folder, &error))?;
    Ok(folder)
}

async fn save_etcd(site: &Site, folder: &Path) -> Result<(), WorkError> {
    let target = folder.join("etcd.db");
    if is_snapshot(&target).unwrap_or(false) {
        site.say("etcd is saved already");
        return Ok(());
    }
    let new = folder.join("etcd.db.new");
    match way(site)? {
        Way::Etcdctl => {
            let mut call = site.call(Program::Etcdctl, etcdctl(&new.display().to_string()));
            call.environment.push(("ETCDCTL_API".to_owned(), "3".to_owned()));
            site.run(&call).await?;
        }
        Way::Crictl => {
            let mut arguments = vec!["exec".to_owned(), crictl_container(site).await?];
            arguments.push("etcdctl".to_owned());
            arguments.extend(etcdctl(&format!("{DATA}/{IN_CONTAINER}")));
            from_container(site, &site.call(Program::Crictl, arguments), &new).await?;
        }
        Way::Ctr => {
            let id = ctr_container(site).await?;
            let exec = ["--namespace=k8s.io", "tasks", "exec", "--exec-id=refit-snapshot"];
            let mut arguments: Vec<String> = exec.map(str::to_owned).to_vec();
            arguments.extend([id, "etcdctl".to_owned()]);
            arguments.extend(etcdctl(&format!("{DATA}/{IN_CONTAINER}")));
            from_container(site, &site.call(Program::Ctr, arguments), &new).await?;
        }
    }
    let sound = is_snapshot(&new).map_err(|error| WorkError::file(&new, &error))?;
    if !sound {
        return Err(WorkError::retriable(format!(
            "{} is no whole snapshot of etcd: its checksum does not match",
            new.display()
        )));
    }
    settle(&new, &target).map_err(|error| WorkError::file(&target, &error))
}

fn etcdctl(target: &str) -> Vec<String> {
    vec![
        "--endpoints=https://127.0.0.1:2379".to_owned(),
        format!("--cacert={PKI}/ca.crt"),
        format!("--cert={PKI}/healthcheck-client.crt"),
        format!("--key={PKI}/healthcheck-client.key"),
        "snapshot".to_owned(),
        "save".to_owned(),
        target.to_owned(),
    ]
}

async fn crictl_container(site: &Site) -> Result<String, WorkError> {
    let question = ["ps", "--quiet", "--state=Running", "--name=^etcd$"];
    first_id(&site.ask(Program::Crictl, question).await?)
}

async fn ctr_container(site: &Site) -> Result<String, WorkError> {
    let filter = "labels.\"io.kubernetes.container.name\"==etcd";
    let question = ["--namespace=k8s.io", "containers", "list", "--quiet", filter];
    let known = site.ask(Program::Ctr, question).await?;
    let tasks = ["--namespace=k8s.io", "tasks", "list"];
    let tasks = site.ask(Program::Ctr, tasks).await?;
    let runs = |id: &&str| {
        tasks.lines().any(|line| {
            let mut words = line.split_whitespace();
            words.next() == Some(*id) && words.any(|word| word == "RUNNING")
        })
    };
    first_id(known.lines().map(str::trim).find(runs).unwrap_or_default())
}

fn first_id(answer: &str) -> Result<String, WorkError> {
    let id = answer.lines().map(str::trim).find(|line| !line.is_empty());
    let plain = |id: &&str| id.bytes().all(|byte| byte.is_ascii_alphanumeric());
    id.filter(plain).map(str::to_owned).ok_or_else(|| {
        WorkError::retriable("etcd cannot be saved: its container does not run at the moment")
    })
}

/// Has the container write into etcd's folder, and takes out what it wrote. Nothing stays there,
/// whatever becomes of it: it is as large as etcd, and on etcd's own disk.
async fn from_container(site: &Site, call: &Invocation, target: &Path) -> Result<(), WorkError> {
    let written = site.path(DATA).join(IN_CONTAINER);
    let said = site.run(call).await.map_err(WorkError::from);
    // Often another file system, so it is copied.
    let copied = said.and_then(|_| {
        fs::copy(&written, target).map(drop).map_err(|error| WorkError::file(target, &error))
    });
    // Under the second name as long as it is not whole.
    let part = written.with_file_name(format!("{IN_CONTAINER}.part"));
    let gone = atomic::remove(&written).and(atomic::remove(&part));
    copied.and(gone)
}

/// Whether a file is a whole snapshot of etcd, by the magic of its database and its checksum.
fn is_snapshot(path: &Path) -> io::Result<bool> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    let Some(content) = file.metadata()?.len().checked_sub(SUM_BYTES) else {
        return Ok(false);
    };
    let mut hash = Sha256::new();
    let mut head = Vec::new();
    let mut left = content;
    let mut chunk = vec![0; 1 << 20];
    while left > 0 {
        let want = usize::try_from(left).unwrap_or(usize::MAX).min(chunk.len());
        let part = &mut chunk[..want];
        file.read_exact(part)?;
        if head.is_empty() {
            head = part.to_vec();
        }
        hash.update(&*part);
        left -= want as u64;
    }
    let mut sum = Vec::new();
    file.read_to_end(&mut sum)?;
    let magic = head.get(BOLT_MAGIC_AT..BOLT_MAGIC_AT + BOLT_MAGIC.len());
    Ok(magic == Some(&BOLT_MAGIC) && hash.finalize().as_slice() == sum)
}

/// Makes a file durable under its final name.
fn settle(new: &Path, target: &Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(new, fs::Permissions::from_mode(0o600))?;
    File::open(new)?.sync_all()?;
    fs::rename(new, target)?;
    match target.parent() {
        Some(folder) => File::open(folder)?.sync_all(),
        None => Ok(()),
    }
}

#[cfg(test)]
#[path = "snapshot_tests.rs"]
mod tests;
