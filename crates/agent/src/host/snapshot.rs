//! Snapshot of a host before a plan: etcd, manifests, the kubelet's configuration, packages.
//!
//! A snapshot is stored in `snapshots/<plan>` of the agent's directory, readable by root only. It
//! is taken once per plan, so that a retry does not save what an earlier attempt has half changed.
//!
//! etcd is saved by its own program, because a copy of its files while they change is inconsistent:
//!
//! | the host has | etcd is saved by |
//! |---|---|
//! | no etcd manifest | not saved: a worker has no etcd, and an external etcd is saved by its owner |
//! | `etcdctl` | the host's `etcdctl` |
//! | `crictl` | the `etcdctl` of the running container |
//! | `ctr` | the `etcdctl` of the running container |
//! | none of them | not saved: the preflight fails before anything is staged |
//!
//! The first of them that finds etcd healthy is used. Its data, address and certificates are where the
//! manifest has them.

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
    kubeadm::{INSTANCE_CONFIG, KUBELET_CONFIG, KUBELET_FLAGS, MANIFESTS, manifest::LocalEtcd},
    packages::Packages,
    work::WorkError,
};

/// How many snapshots of other plans are kept.
pub(super) const KEPT: usize = 2;
/// Group of the files that `kubeadm upgrade` changes.
pub(super) const CONFIGURATION: &str = "configuration";
/// The files of this group that are not manifests.
pub(super) const CONFIGURATION_FILES: [&str; 3] = [KUBELET_CONFIG, KUBELET_FLAGS, INSTANCE_CONFIG];
/// Manifests that kubeadm writes. A manifest that does not exist yet is recorded as absent.
const MANIFEST_NAMES: [&str; 4] =
    ["etcd.yaml", "kube-apiserver.yaml", "kube-controller-manager.yaml", "kube-scheduler.yaml"];
/// Directory in etcd's data that every member has.
const MEMBER: &str = "member";
/// File that the etcd container writes, in the only directory that it shares with the host.
const IN_CONTAINER: &str = "refit-snapshot.db";
/// Magic number in the first page of a bbolt database, and its offset.
const BOLT_MAGIC: [u8; 4] = 0xED0C_DAED_u32.to_le_bytes();
const BOLT_MAGIC_AT: usize = 16;
/// Size of the sha256 of the content with which etcd ends a snapshot.
const SUM_BYTES: u64 = 32;

/// Where etcdctl is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// On the host.
    Host,
    /// In etcd's container, which crictl finds.
    Crictl,
    /// In etcd's container, which ctr finds.
    Ctr,
}

/// The places with the programs that they need, in the order in which they are tried.
const PLACES: [(Program, Place); 3] =
    [(Program::Etcdctl, Place::Host), (Program::Crictl, Place::Crictl), (Program::Ctr, Place::Ctr)];

/// A call of etcdctl that reaches the etcd of this host. It lacks only the subcommand.
#[derive(Debug)]
struct Etcdctl {
    call: Invocation,
    /// Whether it runs in etcd's container.
    inside: bool,
}

impl Etcdctl {
    /// Connects to etcd, and checks that it is healthy.
    async fn connect(
        site: &Site,
        program: Program,
        place: Place,
        etcd: &LocalEtcd,
    ) -> Result<Self, WorkError> {
        let inside = place != Place::Host;
        let mut arguments = match place {
            Place::Host => Vec::new(),
            Place::Crictl => vec!["exec".to_owned(), crictl_container(site).await?],
            Place::Ctr => {
                // A call that was cut off may have left its ID behind.
                let id = format!("--exec-id=refit-snapshot-{}", std::process::id());
                let exec = ["--namespace=k8s.io", "tasks", "exec", &id].map(str::to_owned);
                exec.into_iter().chain([ctr_container(site).await?]).collect()
            }
        };
        arguments.extend(inside.then(|| "etcdctl".to_owned()));
        arguments.extend(etcd.connection(inside));
        let call = site.call(program, arguments).with_environment("ETCDCTL_API", "3");
        let found = Self { call, inside };
        found.with(["endpoint", "health"]).output().await?;
        Ok(found)
    }

    fn with<const N: usize>(&self, subcommand: [&str; N]) -> Invocation {
        let mut call = self.call.clone();
        call.arguments.extend(subcommand.map(str::to_owned));
        call
    }
}

/// Checks before anything is staged that a snapshot can be taken, as far as that is possible without
/// taking one.
pub(super) async fn check(site: &Site, etcd: Option<&LocalEtcd>) -> Result<(), WorkError> {
    let Some(etcd) = etcd else {
        return Ok(());
    };
    let data = &etcd.data.host;
    if !site.path(data).join(MEMBER).is_dir() {
        return Err(WorkError::needs_person(format!(
            "cannot save etcd, which runs on this host: its data is not in {}, to which its manifest \
             {MANIFESTS}/etcd.yaml mounts {}; correct the manifest's --data-dir or its volumes",
            data.display(),
            etcd.data.inside.display()
        )));
    }
    connect(site, etcd).await.map(drop)
}

/// Checks that etcd is healthy.
///
/// # Errors
/// What each program that calls etcdctl reported.
pub(super) async fn check_health(site: &Site, etcd: &LocalEtcd) -> Result<(), String> {
    find_healthy(site, etcd).await.map(drop).map_err(|failures| failures.join("; "))
}

/// The first way to call etcdctl that finds etcd healthy, or why each of them does not.
async fn find_healthy(site: &Site, etcd: &LocalEtcd) -> Result<Etcdctl, Vec<String>> {
    let mut failures = Vec::new();
    for (program, place) in PLACES.into_iter().filter(|(program, _)| site.has(*program)) {
        match Etcdctl::connect(site, program, place, etcd).await {
            Ok(found) => return Ok(found),
            Err(error) => failures.push(error.message),
        }
    }
    Err(failures)
}

async fn connect(site: &Site, etcd: &LocalEtcd) -> Result<Etcdctl, WorkError> {
    let failures = match find_healthy(site, etcd).await {
        Ok(found) => return Ok(found),
        Err(failures) => failures,
    };
    if failures.is_empty() {
        return Err(WorkError::needs_person(
            "cannot save etcd, which runs on this host: neither etcdctl nor crictl nor ctr is \
             installed; install cri-tools or etcd-client",
        ));
    }
    Err(WorkError::retriable(format!(
        "cannot save etcd, which runs on this host: {}; check that its member is healthy, and that \
         {MANIFESTS}/etcd.yaml names its address and its certificates",
        failures.join("; ")
    )))
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
    let directory = make_directory(site, plan)?;
    keep_configuration(site, plan)?;
    let list = directory.join("packages.json");
    if !list.exists() {
        let text = serde_json::to_vec_pretty(packages).expect("plain data serialises to JSON");
        atomic::replace(&list, &text, Access::of_mode(0o600))?;
    }
    match LocalEtcd::of(site)? {
        Some(etcd) => save_etcd(site, &etcd, &directory).await,
        None => Ok(()),
    }
}

/// Saves the files that `kubeadm upgrade` changes, once per plan.
pub(super) fn keep_configuration(site: &Site, plan: &str) -> Result<(), WorkError> {
    make_directory(site, plan)?;
    // kubeadm writes no manifests on a worker, and static pods of the administrator must stay.
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

/// Restores the files that [`keep_configuration`] saved.
pub(super) fn put_back(site: &Site, plan: &str) -> Result<(), WorkError> {
    for path in keep::put_back(site, plan, CONFIGURATION)? {
        site.log(&format!("restored {path}"));
    }
    Ok(())
}

/// Creates the directory of a plan's snapshot, readable by root only. Existing directories keep
/// their permissions.
pub(super) fn make_directory(site: &Site, plan: &str) -> Result<PathBuf, WorkError> {
    use std::os::unix::fs::DirBuilderExt as _;
    let directory = site.snapshot(plan);
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory);
    made.map_err(|error| WorkError::file(&directory, &error))?;
    Ok(directory)
}

async fn save_etcd(site: &Site, etcd: &LocalEtcd, directory: &Path) -> Result<(), WorkError> {
    let target = directory.join("etcd.db");
    if is_snapshot(&target).unwrap_or(false) {
        site.log("the snapshot of etcd already exists");
        return Ok(());
    }
    let new = directory.join("etcd.db.new");
    let etcdctl = connect(site, etcd).await?;
    let save = |path: &Path| etcdctl.with(["snapshot", "save", &path.display().to_string()]);
    if etcdctl.inside {
        let written = site.path(etcd.data.host.join(IN_CONTAINER));
        let call = save(&etcd.data.inside.join(IN_CONTAINER));
        from_container(site, &call, &written, &new).await?;
    } else {
        site.run(&save(&new)).await?;
    }
    let sound = is_snapshot(&new).map_err(|error| WorkError::file(&new, &error))?;
    if !sound {
        return Err(WorkError::retriable(format!(
            "incomplete etcd snapshot {}: its checksum does not match",
            new.display()
        )));
    }
    rename_durably(&new, &target).map_err(|error| WorkError::file(&target, &error))
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
    id.filter(plain)
        .map(str::to_owned)
        .ok_or_else(|| WorkError::retriable("etcd's container is not running"))
}

/// Has the container write into etcd's directory, and copies the result out. The file is removed
/// even if this fails: it is as large as etcd's data, and on the disk of etcd.
async fn from_container(
    site: &Site,
    call: &Invocation,
    written: &Path,
    target: &Path,
) -> Result<(), WorkError> {
    let outcome = site.run(call).await.map_err(WorkError::from);
    // Copied and not renamed, because the target is often on another file system.
    let copied = outcome.and_then(|_| {
        fs::copy(written, target).map(drop).map_err(|error| WorkError::file(target, &error))
    });
    // etcdctl uses this name until the snapshot is complete.
    let part = written.with_file_name(format!("{IN_CONTAINER}.part"));
    let gone = atomic::remove(written).and(atomic::remove(&part));
    copied.and(gone)
}

/// Whether a file is a complete etcd snapshot, by the magic number of its database and its
/// checksum.
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

/// Renames a file to its final name, durably.
fn rename_durably(new: &Path, target: &Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(new, fs::Permissions::from_mode(0o600))?;
    File::open(new)?.sync_all()?;
    fs::rename(new, target)?;
    match target.parent() {
        Some(directory) => File::open(directory)?.sync_all(),
        None => Ok(()),
    }
}

#[cfg(test)]
#[path = "snapshot_tests.rs"]
mod tests;
