//! Reads the input of a plan from a live cluster, with as few requests as possible.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::bail;
use k8s_openapi::api::apps::v1::Deployment;
use kube::Api;
use refit_cluster_api::kinds::{
    Cluster as ClusterObject, KubeadmControlPlane, Machine, MachineDeployment, MachineDrainRule,
    MachineSet,
};
use refit_core::{change::OnUncovered, node::asks_for_namespaces};
use refit_kinds::{
    json::{kind, name, namespace, text},
    keys,
    refit::{HostSettings, NodeDisruptionPolicy, NodeUpdate, Owner, UpdateGroup, Updater},
    version::KubernetesVersion,
};
use refit_predict::{GroupRef, Input, Objects, Providers, Read, objects::apply};
use serde::Deserialize as _;
use serde_json::Value;

use super::{
    reader::{Found, Reader},
    workload,
};
use crate::{
    client::Cluster,
    reach::Surroundings,
    target::{Target, TargetKind},
};

/// Annotation where kubectl keeps the configuration that was applied last.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Sets the version in a group's spec.
fn ask_for(group: &mut Value, version: &str) {
    match Owner::of_kind(kind(group)) {
        Some(Owner::ControlPlane) => group["spec"]["version"] = version.into(),
        Some(Owner::Deployment | Owner::Set) | None => {
            group["spec"]["template"]["spec"]["version"] = version.into();
        }
    }
}

/// The change to plan.
pub(crate) enum Change<'a> {
    /// A new version of a target.
    Version(&'a Target, &'a KubernetesVersion),
    /// Objects to apply.
    Objects(&'a [Value]),
}

/// Reads all objects and computes their desired state after the change.
pub(crate) async fn gather(reader: &mut Reader, change: &Change<'_>) -> anyhow::Result<Input> {
    if let Change::Objects(objects) = change {
        reader.cluster.namespace = only_namespace(objects)?;
    }
    let mut current = owners(reader).await?;
    let (desired, targets) = match change {
        Change::Version(target, to) => set_version(reader, &current, target, &to.to_string())?,
        Change::Objects(objects) => {
            fetch_same(reader, &mut current, objects).await?;
            let (desired, targets) = applied(&current, objects);
            (desired, targets)
        }
    };
    let clusters = clusters_of(&desired, &targets);
    members(reader, &mut current, &clusters).await?;
    follow_templates(reader, &mut current, &desired, &targets).await?;
    let surroundings = Surroundings::read(&reader.cluster).await?;
    let space = reader.cluster.namespace.clone();
    let rules: Vec<MachineDrainRule> = current
        .of_kind("MachineDrainRule")
        .filter_map(|rule| MachineDrainRule::deserialize(rule).ok())
        .collect();
    let asks_for_namespaces = asks_for_namespaces(&rules);
    let mut hosts = BTreeMap::new();
    for cluster in &clusters {
        let read = match reader.workload(cluster).await {
            Ok(client) => workload::read(&client, asks_for_namespaces).await,
            Err(why) => Err(why),
        };
        hosts
            .insert((space.clone(), cluster.clone()), read.map_or_else(Read::Unknown, Read::Known));
    }
    let completed = completed(&desired, &current);
    Ok(Input {
        now: reader.cluster.clock.now(),
        current,
        desired: completed,
        targets,
        simulate: None,
        unread_kinds: reader.unread.clone(),
        extensions: surroundings.extensions,
        managers: surroundings.managers,
        namespaces: [(space, surroundings.namespace_labels)].into(),
        hosts,
        on_uncovered: default_policy(&reader.cluster).await,
        providers: Providers::Asked(BTreeMap::new()),
    })
}

/// Returns the namespace of the objects; it must be the same for all.
fn only_namespace(objects: &[Value]) -> anyhow::Result<String> {
    let namespaced = objects.iter().filter(|object| kind(object) != "Updater");
    let all: BTreeSet<&str> = namespaced.map(namespace).collect();
    match all.iter().collect::<Vec<_>>()[..] {
        [one] => Ok((*one).to_owned()),
        [] => bail!("the files contain no objects"),
        _ => bail!(
            "the files contain objects of several namespaces ({}); plan one namespace at a time",
            all.iter().copied().collect::<Vec<_>>().join(", ")
        ),
    }
}

/// Reads Clusters and groups of the namespace.
async fn owners(reader: &Reader) -> anyhow::Result<Objects> {
    let mut all = Objects::new();
    all.extend(reader.all::<ClusterObject>("").await?);
    all.extend(reader.all::<KubeadmControlPlane>("").await?);
    all.extend(reader.all::<MachineDeployment>("").await?);
    all.extend(reader.all::<MachineSet>("").await?);
    Ok(all)
}

/// Sets the version of a target in the objects. Returns the objects and the affected groups.
fn set_version(
    reader: &Reader,
    current: &Objects,
    target: &Target,
    to: &str,
) -> anyhow::Result<(Objects, Vec<GroupRef>)> {
    if target.kind == TargetKind::Machine {
        bail!("{target} gets its version from its owner; plan kcp/NAME, md/NAME or cluster/NAME");
    }
    let space = reader.cluster.namespace.as_str();
    let Some(own) = current.get(target.kind.kind(), space, &target.name) else {
        return Err(target.missing(&reader.cluster));
    };
    let mut desired = current.clone();
    let mut groups = Vec::new();
    match target.kind {
        TargetKind::Cluster => {
            if own.pointer("/spec/topology").is_some_and(Value::is_object) {
                let mut cluster = own.clone();
                cluster["spec"]["topology"]["version"] = to.into();
                desired.insert(cluster);
            }
            let plane =
                (text(own, "/spec/controlPlaneRef/kind"), text(own, "/spec/controlPlaneRef/name"));
            groups.extend(current.get(plane.0, space, plane.1).map(GroupRef::of));
            let workers = current
                .of_kind("MachineDeployment")
                .filter(|object| text(object, "/spec/clusterName") == target.name);
            groups.extend(workers.map(GroupRef::of));
        }
        TargetKind::ControlPlane | TargetKind::MachineDeployment | TargetKind::MachineSet => {
            groups.push(GroupRef::of(own));
        }
        // Refused earlier.
        TargetKind::Machine => {}
    }
    for group in &groups {
        let Some(object) = desired.get(&group.kind, &group.namespace, &group.name) else {
            continue;
        };
        let mut object = object.clone();
        ask_for(&mut object, to);
        desired.insert(object);
    }
    Ok((desired, groups))
}

/// Reads the live objects of the same names.
async fn fetch_same(
    reader: &mut Reader,
    current: &mut Objects,
    objects: &[Value],
) -> anyhow::Result<()> {
    for object in objects {
        if current.get(kind(object), namespace(object), name(object)).is_some() {
            continue;
        }
        let version = text(object, "/apiVersion");
        let Some((group, _)) = version.split_once('/') else {
            continue;
        };
        let found = reader.follow(group, kind(object), name(object)).await?;
        current.extend(found);
    }
    Ok(())
}

/// Computes the objects after applying `objects`, and the affected groups.
pub(crate) fn applied(current: &Objects, objects: &[Value]) -> (Objects, Vec<GroupRef>) {
    let mut desired = current.clone();
    let mut targets = Vec::new();
    for object in objects {
        let live = current.get(kind(object), namespace(object), name(object));
        let next = live.map_or_else(
            || object.clone(),
            |live| apply(live, last_applied(live).as_ref(), object),
        );
        if Owner::of_kind(kind(object)).is_some() || is_foreign_group(object) {
            targets.push(GroupRef::of(&next));
        }
        desired.insert(next);
    }
    carry_topology(&mut desired, current, objects, &mut targets);
    (desired, targets)
}

/// Reports whether the kind owns machines but is not supported by Refit.
fn is_foreign_group(object: &Value) -> bool {
    kind(object) == "MachinePool"
        || (text(object, "/apiVersion").starts_with("controlplane.")
            && kind(object) != "KubeadmControlPlane")
}

fn last_applied(live: &Value) -> Option<Value> {
    let annotations = live.pointer("/metadata/annotations")?;
    serde_json::from_str(annotations.get(LAST_APPLIED)?.as_str()?).ok()
}

/// Copies the version of a changed topology to the groups of its Cluster.
fn carry_topology(
    desired: &mut Objects,
    current: &Objects,
    objects: &[Value],
    targets: &mut Vec<GroupRef>,
) {
    for cluster in objects.iter().filter(|object| kind(object) == "Cluster") {
        let version = text(cluster, "/spec/topology/version");
        if version.is_empty() {
            continue;
        }
        let mut groups: Vec<Value> = current
            .of_kind("MachineDeployment")
            .filter(|group| text(group, "/spec/clusterName") == name(cluster))
            .cloned()
            .collect();
        let space = namespace(cluster);
        let live = current.get("Cluster", space, name(cluster));
        let plane = live.map(|live| text(live, "/spec/controlPlaneRef/name"));
        groups.extend(
            plane.and_then(|plane| current.get("KubeadmControlPlane", space, plane).cloned()),
        );
        for mut group in groups {
            targets.push(GroupRef::of(&group));
            ask_for(&mut group, version);
            desired.insert(group);
        }
    }
    targets.sort();
    targets.dedup();
}

/// Returns the names of the Clusters of the groups.
fn clusters_of(desired: &Objects, targets: &[GroupRef]) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for target in targets {
        let Some(object) = desired.get(&target.kind, &target.namespace, &target.name) else {
            continue;
        };
        let by_field = text(object, "/spec/clusterName");
        let by_label = object
            .pointer("/metadata/labels")
            .and_then(|labels| labels.get(keys::CLUSTER_NAME)?.as_str());
        let refers = || {
            desired
                .of_kind("Cluster")
                .find(|cluster| {
                    text(cluster, "/spec/controlPlaneRef/kind") == target.kind
                        && text(cluster, "/spec/controlPlaneRef/name") == target.name
                })
                .map(name)
        };
        let cluster = Some(by_field).filter(|name| !name.is_empty()).or(by_label).or_else(refers);
        found.extend(cluster.map(str::to_owned));
    }
    found
}

/// Reads the Machines of the Clusters, the objects that they refer to, and Refit's objects about
/// them.
async fn members(
    reader: &mut Reader,
    current: &mut Objects,
    clusters: &BTreeSet<String>,
) -> anyhow::Result<()> {
    let selector = match clusters.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => String::new(),
        [one] => format!("{}={one}", keys::CLUSTER_NAME),
        ref many => format!("{} in ({})", keys::CLUSTER_NAME, many.join(",")),
    };
    let machines = reader.all::<Machine>(&selector).await?;
    let mut parts = BTreeSet::new();
    for machine in &machines {
        let is_plane = machine
            .pointer("/metadata/labels")
            .is_some_and(|labels| labels.get(keys::CONTROL_PLANE).is_some());
        if is_plane {
            for pointer in ["/spec/infrastructureRef", "/spec/bootstrap/configRef"] {
                let at = |key: &str| text(machine, &format!("{pointer}/{key}")).to_owned();
                parts.insert((at("apiGroup"), at("kind")));
            }
        }
    }
    current.extend(machines);
    for (group, kind) in parts.into_iter().filter(|(group, _)| !group.is_empty()) {
        let objects = reader.list_kind(&group, &kind, &selector).await?;
        current.extend(objects);
    }
    for found in [reader.list::<NodeUpdate>("").await?, reader.list::<UpdateGroup>("").await?] {
        match found {
            Found::Read(objects) => current.extend(objects),
            Found::Absent | Found::Forbidden => {}
        }
    }
    match reader.list::<MachineDrainRule>("").await? {
        Found::Read(objects) => current.extend(objects),
        Found::Absent | Found::Forbidden => {}
    }
    for (kind, found) in [
        ("NodeDisruptionPolicy", reader.list::<NodeDisruptionPolicy>("").await?),
        ("HostSettings", reader.list::<HostSettings>("").await?),
        ("Updater", reader.cluster_scoped::<Updater>().await?),
    ] {
        match found {
            Found::Read(objects) => current.extend(objects),
            Found::Absent => {}
            Found::Forbidden => {
                reader.unread.insert(kind.to_owned());
            }
        }
    }
    Ok(())
}

/// Reads every template that a group, one of its MachineSets or one of its machines references.
async fn follow_templates(
    reader: &mut Reader,
    current: &mut Objects,
    desired: &Objects,
    targets: &[GroupRef],
) -> anyhow::Result<()> {
    let mut wanted: BTreeSet<(String, String, String)> = BTreeSet::new();
    let mut groups = BTreeMap::new();
    for objects in [&*current, desired] {
        for object in objects.iter() {
            let is_target = targets.contains(&GroupRef::of(object));
            if is_target || kind(object) == "MachineSet" {
                references(object, &mut wanted);
            }
        }
    }
    for (group, kind, _) in &wanted {
        groups.insert(kind.clone(), group.clone());
    }
    for object in current.iter() {
        let Some(annotations) = object.pointer("/metadata/annotations") else {
            continue;
        };
        let text = |key: &str| annotations.get(key).and_then(Value::as_str);
        let (Some(of), Some(kind)) =
            (text(keys::CLONED_FROM_NAME), text(keys::CLONED_FROM_GROUPKIND))
        else {
            continue;
        };
        if let Some((kind, group)) = kind.split_once('.')
            && groups.contains_key(kind)
        {
            wanted.insert((group.to_owned(), kind.to_owned(), of.to_owned()));
        }
    }
    for (group, kind, name) in wanted {
        if current.get(&kind, &reader.cluster.namespace, &name).is_some() {
            continue;
        }
        let found = reader.follow(&group, &kind, &name).await?;
        current.extend(found);
    }
    Ok(())
}

fn references(object: &Value, wanted: &mut BTreeSet<(String, String, String)>) {
    for pointer in [
        "/spec/machineTemplate/spec/infrastructureRef",
        "/spec/template/spec/infrastructureRef",
        "/spec/template/spec/bootstrap/configRef",
    ] {
        let at = |key: &str| text(object, &format!("{pointer}/{key}")).to_owned();
        if !at("name").is_empty() {
            wanted.insert((at("apiGroup"), at("kind"), at("name")));
        }
    }
}

/// Adds the objects that the change does not touch to the desired objects.
fn completed(desired: &Objects, current: &Objects) -> Objects {
    let mut all = current.clone();
    all.extend(desired.iter().cloned());
    all
}

/// Returns the controller's default policy for groups where neither owner nor Cluster sets one,
/// from its Deployment.
pub(crate) async fn default_policy(cluster: &Cluster) -> OnUncovered {
    let api: Api<Deployment> = Api::namespaced(cluster.client.clone(), "refit-system");
    let Ok(Some(deployment)) = api.get_opt("refit-controller").await else {
        return OnUncovered::default();
    };
    let containers = deployment
        .spec
        .and_then(|spec| spec.template.spec)
        .map(|pod| pod.containers)
        .unwrap_or_default();
    let args: Vec<String> =
        containers.into_iter().flat_map(|container| container.args.unwrap_or_default()).collect();
    let pairs = args.iter().zip(args.iter().skip(1).map(Some).chain([None]));
    let replace = pairs
        .filter_map(|(arg, next)| {
            let rest = arg.strip_prefix("--default-on-uncovered")?;
            rest.strip_prefix('=').or(next.map(String::as_str))
        })
        .any(|value| value == "Replace");
    if replace { OnUncovered::Replace } else { OnUncovered::Preserve }
}
