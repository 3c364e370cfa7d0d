//! Another image for an etcd that is a static pod of kubeadm (`docs/facts/kubeadm.md#image-of-etcd`).
//!
//! Only the image in the manifest changes, and the image is pulled before. The kubelet then replaces the container. If etcd
//! does not run with the new image in time, its previous manifest is restored.

use std::time::Duration;

use refit_kinds::refit::{EtcdArgs, ImageArgs};
use serde_json::{Value, json};

use super::{MANIFESTS, manifest::LocalEtcd};
use crate::host::{
    Evidence, Program, Site,
    files::{
        atomic::{self, Access},
        keep::{self, Before, Saved},
    },
    images,
    running::Patience,
    snapshot,
    work::WorkError,
};

/// Name of etcd's container, and of its image in a repository.
const ETCD: &str = "etcd";
/// How long etcd may take to run with another image: the same as in kubeadm.
pub(crate) const RESTART: Patience =
    Patience { limit: Duration::from_mins(5), pause: Duration::from_secs(1) };

fn path() -> String {
    format!("{MANIFESTS}/etcd.yaml")
}

/// The manifest of etcd on this host.
struct Manifest {
    text: String,
    access: Access,
    image: String,
}

impl Manifest {
    fn of(site: &Site) -> Result<Self, WorkError> {
        let path = path();
        let found = match LocalEtcd::of(site)? {
            Some(_) => atomic::read(&site.path(&path))?,
            None => None,
        };
        let Some((text, file)) = found else {
            return Err(WorkError::permanent(format!(
                "etcd is not a static pod of this host, because {path} does not exist: upgrade it where it runs, and \
                 remove the step from the plan"
            )));
        };
        let text = String::from_utf8_lossy(&text).into_owned();
        let image = image_of_etcd(&text).ok_or_else(|| {
            WorkError::needs_person(format!(
                "{path} has no container {ETCD} with an image; restore it, for example from \
                 /etc/kubernetes/tmp/kubeadm-backup-manifests-*"
            ))
        })?;
        Ok(Self { access: Access::of(&file), text, image })
    }
}

/// Sets the image, and waits until etcd runs with it.
pub(crate) async fn upgrade(
    site: &Site,
    plan: &str,
    step: &str,
    args: &EtcdArgs,
    patience: Patience,
) -> Result<(), WorkError> {
    let manifest = Manifest::of(site)?;
    let image = wanted(args, &manifest.image);
    refuse_older(&image, &manifest.image)?;
    if !site.has(Program::Crictl) {
        return Err(WorkError::needs_person(
            "crictl is not installed, so the agent cannot find out which image etcd runs; install cri-tools",
        ));
    }
    let pull = ImageArgs { names: vec![image.clone()], ..ImageArgs::default() };
    images::preload(site, None, &pull).await?;
    if manifest.image != image {
        let text = with_image(&manifest.text, &image).ok_or_else(|| {
            WorkError::needs_person(format!("{} is not the manifest of a pod; restore it", path()))
        })?;
        keep::keep(site, plan, step, &path())?;
        atomic::replace(&site.path(path()), text.as_bytes(), manifest.access)?;
        site.log(&format!("replaced the image of etcd, {}, by {image}", manifest.image));
    }
    match wait(site, &image, patience).await {
        Ok(()) => Ok(()),
        Err(why) => Err(give_up(site, plan, step, &image, &why, patience).await),
    }
}

/// Restores the previous manifest. The error describes how etcd runs then.
async fn give_up(
    site: &Site,
    plan: &str,
    step: &str,
    image: &str,
    why: &str,
    patience: Patience,
) -> WorkError {
    let state = match keep::before(site, plan, step, &path()) {
        Ok(Before::File(saved)) => match restore(site, &saved, patience).await {
            Ok(previous) => format!("its manifest is restored, and it runs with {previous} again"),
            Err(error) => format!(
                "its manifest is restored, but it does not run ({error}): a newer etcd may have changed its data, so restore \
                 the snapshot of the plan if it does not recover"
            ),
        },
        Ok(Before::Absent | Before::Unknown) => "its manifest had the image before".to_owned(),
        Err(error) => format!("its manifest cannot be restored: {error}"),
    };
    WorkError::needs_person(format!(
        "etcd does not run with the image {image} {} s after its manifest had it: {why}; {state}; see the logs of its \
         container with `crictl logs`, and `journalctl -u kubelet`",
        patience.limit.as_secs()
    ))
}

/// Restores a manifest, waits until etcd runs with its image, and returns the image.
async fn restore(site: &Site, saved: &Saved, patience: Patience) -> Result<String, String> {
    let file = site.path(path());
    atomic::replace(&file, &saved.content, saved.access).map_err(|error| error.message)?;
    let previous = image_of_etcd(&String::from_utf8_lossy(&saved.content));
    let previous = previous.ok_or("the previous manifest has no image")?;
    wait(site, &previous, patience).await?;
    Ok(previous)
}

/// Whether the manifest has the image.
pub(crate) fn check(site: &Site, args: &EtcdArgs) -> Evidence {
    let found = image_of_etcd(&site.read(&path()));
    let has_it = found.as_ref().is_some_and(|found| wanted(args, found) == *found);
    Evidence::from_check(has_it, || {
        format!("{} does not have the planned image, but {:?}", path(), found.unwrap_or_default())
    })
}

/// Waits until a container of etcd runs with the image, and etcd is healthy.
async fn wait(site: &Site, image: &str, patience: Patience) -> Result<(), String> {
    let mut lack = String::new();
    let healthy = async {
        while let Err(why) = runs(site, image).await {
            lack = why;
            tokio::time::sleep(patience.pause).await;
        }
    };
    let healthy = tokio::time::timeout(patience.limit, healthy).await;
    healthy.map_err(|_| lack)
}

async fn runs(site: &Site, image: &str) -> Result<(), String> {
    let query = ["ps", "--quiet", "--state=Running", "--name=^etcd$", "--image", image];
    let ids = site.ask(Program::Crictl, query).await.map_err(|error| error.to_string())?;
    if ids.trim().is_empty() {
        return Err("no container of etcd runs with it".to_owned());
    }
    match LocalEtcd::of(site).map_err(|error| error.message)? {
        Some(etcd) => snapshot::check_health(site, &etcd).await,
        None => Err(format!("{} does not exist any more", path())),
    }
}

/// The image that the step asks for. kubeadm builds the name in the same way.
fn wanted(args: &EtcdArgs, found: &str) -> String {
    let name = match &*args.image_repository {
        "" => split(found).0.to_owned(),
        repository => format!("{repository}/{ETCD}"),
    };
    format!("{name}:{}", args.image_tag)
}

/// Name and tag of an image; the tag is empty if the image has none.
fn split(image: &str) -> (&str, &str) {
    let image = image.split_once('@').map_or(image, |(image, _)| image);
    match image.rsplit_once(':') {
        Some((name, tag)) if !tag.contains('/') => (name, tag),
        Some(_) | None => (image, ""),
    }
}

/// An older minor version of etcd cannot read the data of a newer one.
fn refuse_older(wanted: &str, found: &str) -> Result<(), WorkError> {
    let minor = |image: &str| {
        let (_, tag) = split(image);
        let mut numbers = tag.trim_start_matches('v').split('.').map(str::parse::<u64>);
        Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
    };
    match (minor(wanted), minor(found)) {
        (Some(new), Some(old)) if new < old => Err(WorkError::permanent(format!(
            "etcd runs with {found}, and cannot be downgraded to {wanted}: choose a tag of {}.{} or newer",
            old.0, old.1
        ))),
        _ => Ok(()),
    }
}

fn container(pod: &Value) -> Option<usize> {
    let containers = pod["spec"]["containers"].as_array()?;
    containers.iter().position(|container| container["name"] == ETCD)
}

fn image_in(pod: &Value, at: usize) -> Option<&str> {
    pod["spec"]["containers"][at]["image"].as_str()
}

/// The image of etcd's container in a manifest.
fn image_of_etcd(text: &str) -> Option<String> {
    let pod: Value = serde_saphyr::from_str(text).ok()?;
    Some(image_in(&pod, container(&pod)?)?.to_owned())
}

/// The manifest with another image for etcd's container, and all other lines as they are; `None` if it is not a manifest
/// with that container.
fn with_image(text: &str, image: &str) -> Option<String> {
    let mut pod: Value = serde_saphyr::from_str(text).ok()?;
    let at = container(&pod)?;
    let old = image_in(&pod, at)?.to_owned();
    pod["spec"]["containers"][at]["image"] = json!(image);
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let with_line = |at: usize, line: String| {
        let (before, after) = (lines[..at].concat(), lines[at + 1..].concat());
        [before, line, after].concat()
    };
    let changed = lines.iter().enumerate().filter_map(|(at, line)| {
        let value = line.trim().trim_start_matches("- ").strip_prefix("image:")?;
        value.contains(&old).then(|| with_line(at, line.replacen(&old, image, 1)))
    });
    let is_same = |new: &String| serde_saphyr::from_str(new).is_ok_and(|new: Value| new == pod);
    let kept = changed.into_iter().find(is_same);
    // In another format than kubeadm's. Its comments are lost.
    Some(kept.unwrap_or_else(|| format!("{pod:#}\n")))
}

#[cfg(test)]
#[path = "etcd_tests.rs"]
mod tests;
