//! The machines that a demo or sandbox runs: objects and groups, the target version, and the
//! expected effect of each group's strategy.

use anyhow::{Context as _, bail};
use lab_world::manifests;
use refit_cluster_api::rollout::{Strategy, predict};
use refit_kinds::{
    json::{kind, name, text},
    refit::Owner,
    version::{Hop, KubernetesVersion},
};
use refit_manifests::{LoadError, Manifest};
use serde_json::{Value, json};

use super::report::GroupRule;

/// The manifests that the demo runs without `--manifests`.
const EXAMPLE: (&str, &str) =
    ("examples/cluster.yaml", include_str!("../../../../examples/cluster.yaml"));

/// Smallest control plane for which Cluster API accepts maxSurge 0
/// (`docs/facts/control-plane.md#admission`).
const LEAST_WITHOUT_SURGE: i64 = 3;

/// One group of machines of the demo.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    /// Name of the group and the effect of its strategy.
    pub(crate) rule: GroupRule,
    /// Number of machines.
    pub(crate) replicas: i64,
    /// Version of the machines.
    pub(crate) version: KubernetesVersion,
    /// Whether it is a control plane.
    pub(crate) control_plane: bool,
}

impl Group {
    /// Returns the fields that would make Cluster API keep every machine, as text.
    pub(crate) fn fields_to_set(&self) -> Vec<String> {
        let group = &self.rule.group;
        let surge = format!("{group}: spec.rollout.strategy.rollingUpdate.maxSurge: 0");
        if !self.control_plane {
            let unavailable = "spec.rollout.strategy.rollingUpdate.maxUnavailable: 1";
            return vec![surge, format!("{group}: {unavailable}")];
        }
        if self.replicas < LEAST_WITHOUT_SURGE {
            let replicas = format!("{group}: spec.replicas: {LEAST_WITHOUT_SURGE}");
            return vec![format!("{replicas} (with fewer, Cluster API rejects maxSurge 0)"), surge];
        }
        vec![surge]
    }
}

/// The fleet as known before the first write.
#[derive(Debug)]
pub(crate) struct Fleet {
    /// The objects, in file order.
    pub(crate) objects: Vec<Value>,
    /// `Kind/name` of the objects that no controller acts on.
    pub(crate) kept: Vec<String>,
    /// The groups, control planes first.
    pub(crate) groups: Vec<Group>,
    /// Version to upgrade to.
    pub(crate) target: KubernetesVersion,
}

impl Fleet {
    /// Reports whether `--no-surge` asks for a setting that Cluster API refuses.
    pub(crate) fn forbids_too_much(&self) -> bool {
        let small = |group: &Group| group.control_plane && group.replicas < LEAST_WITHOUT_SURGE;
        self.groups.iter().any(small)
    }

    /// Returns the number of machines.
    pub(crate) fn machines(&self) -> i64 {
        self.groups.iter().map(|group| group.replicas).sum()
    }
}

/// Reads the manifests, or the built-in example.
pub(crate) fn read(files: &[std::path::PathBuf]) -> Result<Vec<Manifest>, LoadError> {
    if files.is_empty() {
        manifests::parse([(EXAMPLE.0, EXAMPLE.1.as_bytes())])
    } else {
        manifests::load(files)
    }
}

/// Computes what the run will do.
pub(crate) fn make(
    loaded: Vec<Manifest>,
    no_surge: bool,
    to: Option<&str>,
) -> anyhow::Result<Fleet> {
    if !no_surge {
        refuse_on_delete(&loaded)?;
    }
    let kept =
        loaded.iter().filter(|m| !manifests::is_acted_on(&m.object)).map(Manifest::title).collect();
    let mut objects: Vec<Value> = loaded.into_iter().map(|m| m.object).collect();
    if no_surge {
        manifests::forbid_surge(&mut objects);
    }
    let mut groups = Vec::new();
    for object in &objects {
        groups.extend(group(object)?);
    }
    groups.sort_by_key(|group| !group.control_plane);
    let target = target(&groups, to)?;
    for group in groups.iter_mut().filter(|g| g.version == target) {
        group.rule.replaces = 0;
    }
    Ok(Fleet { objects, kept, groups, target })
}

/// With `OnDelete` Cluster API waits until an operator deletes machines, and never updates in
/// place.
fn refuse_on_delete(loaded: &[Manifest]) -> Result<(), LoadError> {
    let pointer = "/spec/rollout/strategy/type";
    let waits = |manifest: &&Manifest| {
        kind(&manifest.object) == "MachineDeployment"
            && text(&manifest.object, pointer) == "OnDelete"
            && manifest.object.pointer("/spec/replicas") != Some(&json!(0))
    };
    let problems: Vec<_> = loaded
        .iter()
        .filter(waits)
        .map(|manifest| {
            let want = "RollingUpdate (or --no-surge): with OnDelete, Cluster API waits until \
                machines are deleted and never updates in place";
            manifest.problem(pointer, format!("{:?}", "OnDelete"), want)
        })
        .collect();
    if problems.is_empty() {
        return Ok(());
    }
    Err(LoadError::Invalid(problems))
}

fn group(object: &Value) -> anyhow::Result<Option<Group>> {
    let kind = kind(object);
    let name = group_name(text(object, "/metadata/namespace"), &format!("{kind}/{}", name(object)));
    let replicas = object.pointer("/spec/replicas").and_then(Value::as_i64).unwrap_or(1);
    let Some(owner @ (Owner::ControlPlane | Owner::Deployment)) = Owner::of_kind(kind) else {
        return Ok(None);
    };
    let (version, control_plane) = (owner.version_path(), owner == Owner::ControlPlane);
    let strategy = Strategy::of(object).with_context(|| name.clone())?;
    let prediction = if control_plane {
        predict::control_plane(replicas, strategy.fenceposts(replicas).surge)
    } else {
        predict::machine_deployment(replicas, &strategy)
    };
    let max_surge = match &strategy {
        Strategy::RollingUpdate { max_surge, .. } => max_surge.to_string(),
        Strategy::OnDelete => String::new(),
    };
    Ok(Some(Group {
        rule: GroupRule { group: name.clone(), replaces: prediction.replaced, max_surge },
        replicas,
        version: text(object, version).parse().with_context(|| name)?,
        control_plane,
    }))
}

/// Returns the unique display name of a group: `Kind/name`, plus the namespace unless it is
/// `default`.
pub(crate) fn group_name(namespace: &str, owner: &str) -> String {
    match namespace {
        "" | "default" => owner.to_owned(),
        namespace => format!("{owner} in {namespace}"),
    }
}

/// Returns the target version, if every group can reach it in one step.
fn target(groups: &[Group], to: Option<&str>) -> anyhow::Result<KubernetesVersion> {
    let Some(lowest) = groups.iter().map(|group| &group.version).min() else {
        bail!(
            "the manifests contain neither a KubeadmControlPlane nor a MachineDeployment, so \
             there is nothing to upgrade"
        );
    };
    let target = match to {
        Some(text) => text.parse().context("--to")?,
        None => lowest.default_target(),
    };
    let what = if to.is_some() { "--to" } else { "the default target" };
    let mut work = false;
    for group in groups {
        let version = &group.version;
        let fault = match version.hop_to(&target) {
            Hop::Patch | Hop::Minor => {
                work = true;
                continue;
            }
            // A group that runs the version already, as after half an upgrade, is left alone.
            Hop::Same => continue,
            Hop::TooFar { .. } => {
                format!(
                    "kubeadm does not skip minor versions: upgrade to {} first",
                    version.next_minor_zero()
                )
            }
            Hop::Downgrade => "kubeadm does not downgrade".to_owned(),
            Hop::OtherMajor => "that is another major version".to_owned(),
        };
        bail!("{what} {target}: {} runs {version}: {fault}", group.rule.group);
    }
    if !work {
        bail!("{what} {target}: every group already runs it");
    }
    Ok(target)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example(no_surge: bool, to: Option<&str>) -> anyhow::Result<Fleet> {
        make(read(&[]).unwrap(), no_surge, to)
    }

    #[test]
    fn the_example_keeps_every_machine() {
        let fleet = example(false, None).unwrap();
        assert_eq!(fleet.machines(), 8);
        assert_eq!(fleet.target.to_string(), "v1.35.0");
        assert!(fleet.groups.iter().all(|group| group.rule.replaces == 0));
        assert!(fleet.groups[0].control_plane);
    }

    #[test]
    fn default_strategies_replace_one_machine_per_group() {
        let kcp = json!({ "kind": "KubeadmControlPlane", "metadata": { "name": "a" },
            "spec": { "replicas": 3, "version": "v1.34.2" } });
        let md = json!({ "kind": "MachineDeployment", "metadata": { "name": "b" },
            "spec": { "replicas": 5, "template": { "spec": { "version": "v1.34.2" } } } });
        for object in [kcp, md] {
            let group = group(&object).unwrap().unwrap();
            assert_eq!((group.rule.replaces, group.rule.max_surge.as_str()), (1, "1"));
        }
    }

    #[test]
    fn an_unreachable_target_is_refused_with_a_remedy() {
        let error = |to| example(false, Some(to)).unwrap_err().to_string();
        assert!(error("v1.36.0").contains("upgrade to v1.35.0 first"));
        assert!(error("v1.33.0").contains("does not downgrade"));
        assert!(error("v1.34.2").contains("every group already runs it"));
        assert!(format!("{:#}", example(false, Some("1.35")).unwrap_err()).contains("vX.Y.Z"));
    }

    #[test]
    fn a_group_at_the_target_is_left_alone() {
        let text = EXAMPLE.1.replacen("version: v1.34.2", "version: v1.35.0", 1);
        let loaded = manifests::parse([("half.yaml", text.as_bytes())]).unwrap();
        let fleet = make(loaded, false, None).unwrap();
        assert_eq!(fleet.target.to_string(), "v1.35.0");
        assert_eq!(fleet.groups[0].version, fleet.target);
        assert_ne!(fleet.groups[1].version, fleet.target);
    }

    #[test]
    fn an_on_delete_strategy_is_refused_with_its_position() {
        let second = EXAMPLE.1.rfind("type: RollingUpdate").unwrap();
        let (head, tail) = EXAMPLE.1.split_at(second);
        let text = head.to_owned() + &tail.replacen("RollingUpdate", "OnDelete", 1);
        let load = || manifests::parse([("waits.yaml", text.as_bytes())]).unwrap();
        let refused = make(load(), false, None).unwrap_err();
        let Some(LoadError::Invalid(problems)) = refused.downcast_ref() else {
            panic!("{refused}");
        };
        let line = head.lines().count();
        let where_it_stands = format!("waits.yaml:{line}: MachineDeployment/");
        assert!(problems[0].to_string().starts_with(&where_it_stands), "{}", problems[0]);
        assert!(make(load(), true, None).is_ok());
    }
}
