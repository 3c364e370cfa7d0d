//! What a Machine and its objects are, and what their owner wants: read live, computed by the model of Cluster API.

use kube::ResourceExt as _;
use refit_cluster_api::{
    desired::{Pairs, Template, control_plane::ControlPlane, in_update, machine_set},
    kinds::{CONTRACT_VERSION, CORE_GROUP, ContractRef, Machine},
    kubeadm_config::{Entry, init_removal, prepare},
};
use refit_core::{
    change::{Level, Objects},
    task::specs::Specs,
};
use refit_kinds::{
    json::name,
    keys::{MANAGER_KUBEADM_CONTROL_PLANE, MANAGER_MACHINE_SET},
    refit::Owner,
};
use refit_runtime::{apply, foreign::ForeignObject};
use serde_json::{Value, json};

use super::look::Look;
use crate::{context::Context, groups::Group};

/// A member of a control plane, with its objects and its control plane.
pub(super) struct PlaneMember {
    pub(super) plane: Value,
    pub(super) machine: Value,
    /// `None` if it does not exist.
    pub(super) infrastructure: Option<Value>,
    /// `None` if it does not exist.
    pub(super) config: Option<Value>,
}

/// An intent for an object that exists.
pub(super) struct Intent {
    pub(super) object: ForeignObject,
    pub(super) body: Value,
}

/// A Machine before and after.
pub(super) struct Sides {
    /// What the verdict compares.
    pub(super) level: Level,
    pub(super) current: Objects,
    pub(super) wanted: Objects,
    /// The Machine and its objects, as they will be.
    pub(super) desired: Objects,
    /// The Machine, as it is now.
    pub(super) machine: Value,
    pub(super) writes: Writes,
}

impl Sides {
    /// The specs that Refit writes.
    pub(super) fn written(&self) -> Specs {
        let spec = |intent: &Intent| intent.body["spec"].clone();
        let Writes { machine, infrastructure, config, .. } = &self.writes;
        Specs {
            machine: spec(machine),
            bootstrap_config: config.as_ref().map(spec).unwrap_or_default(),
            infrastructure_machine: spec(infrastructure),
        }
    }

    /// The specs as the API server stores them, with its defaults.
    pub(super) fn stored(&self) -> Specs {
        let spec = |object: &Value| object["spec"].clone();
        Specs {
            machine: spec(&self.desired.owner),
            bootstrap_config: self.desired.bootstrap.as_ref().map(spec).unwrap_or_default(),
            infrastructure_machine: spec(&self.desired.infrastructure),
        }
    }
}

/// What makes the Machine what its owner wants, in order.
pub(super) struct Writes {
    /// Cluster API's field manager for these objects.
    pub(super) manager: &'static str,
    pub(super) infrastructure: Intent,
    pub(super) config: Option<Intent>,
    /// The patch of the config of the machine that initialised its cluster.
    pub(super) init_removal: Option<Value>,
    pub(super) machine: Intent,
    /// The MachineSet that the Machine is handed over to.
    pub(super) hand_over_to: Option<Value>,
}

/// An object of the namespace of a group, by its reference.
pub(super) fn referred(group: &Group, reference: &ContractRef) -> ForeignObject {
    ForeignObject {
        group: reference.api_group.clone(),
        version: None,
        kind: reference.kind.clone(),
        namespace: group.key.namespace.clone(),
        name: reference.name.clone(),
    }
}

/// An object of Cluster API's own kinds.
pub(super) fn of_cluster_api(
    group: &Group,
    api_group: &str,
    kind: &str,
    name: &str,
) -> ForeignObject {
    ForeignObject {
        group: api_group.to_owned(),
        version: Some(CONTRACT_VERSION.to_owned()),
        kind: kind.to_owned(),
        namespace: group.key.namespace.clone(),
        name: name.to_owned(),
    }
}

/// The owner of a group, whole.
pub(super) async fn owner(ctx: &Context, group: &Group) -> kube::Result<Value> {
    let owner = &group.spec.owner;
    let api_group =
        owner.api_version.split_once('/').map_or(CORE_GROUP, |(api_group, _)| api_group);
    let object = of_cluster_api(group, api_group, &owner.kind, &owner.name);
    ctx.foreign.read(&ctx.client, &object).await
}

async fn read(ctx: &Context, object: &ForeignObject) -> kube::Result<Value> {
    ctx.foreign.read(&ctx.client, object).await
}

fn machine_object(group: &Group, machine: &Machine) -> ForeignObject {
    of_cluster_api(group, CORE_GROUP, "Machine", &machine.name_any())
}

/// Reads an object that may not exist.
async fn find(ctx: &Context, object: &ForeignObject) -> kube::Result<Option<Value>> {
    match read(ctx, object).await {
        Ok(found) => Ok(Some(found)),
        Err(error) if apply::is_not_found(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Reads a member of a control plane.
pub(super) async fn member(
    ctx: &Context,
    group: &Group,
    machine: &Machine,
) -> kube::Result<PlaneMember> {
    let object = machine_object(group, machine);
    let config = machine.spec.bootstrap.config_ref.as_ref();
    let infrastructure_object = referred(group, &machine.spec.infrastructure_ref);
    let (plane, machine, infrastructure) = futures::try_join!(
        owner(ctx, group),
        read(ctx, &object),
        find(ctx, &infrastructure_object)
    )?;
    let config = match config {
        Some(reference) => find(ctx, &referred(group, reference)).await?,
        None => None,
    };
    Ok(PlaneMember { plane, machine, infrastructure, config })
}

/// The objects of a Machine, or the error that names the one that does not exist.
async fn all_that_is_referred_to(
    ctx: &Context,
    group: &Group,
    machine: &Machine,
    infrastructure: Option<Value>,
    config: Option<Value>,
) -> kube::Result<(Value, Option<Value>)> {
    let infrastructure = match infrastructure {
        Some(found) => found,
        None => read(ctx, &referred(group, &machine.spec.infrastructure_ref)).await?,
    };
    let config = match (config, &machine.spec.bootstrap.config_ref) {
        (None, Some(reference)) => Some(read(ctx, &referred(group, reference)).await?),
        (config, _) => config,
    };
    Ok((infrastructure, config))
}

async fn template(ctx: &Context, group: &Group, reference: &ContractRef) -> kube::Result<Template> {
    let json = read(ctx, &referred(group, reference)).await?;
    Ok(Template { reference: reference.clone(), json })
}

/// Both sides of a Machine.
pub(super) async fn sides(ctx: &Context, look: &Look, machine: &Machine) -> anyhow::Result<Sides> {
    match look.group.spec.owner.owner() {
        Owner::ControlPlane => of_control_plane(ctx, look, machine).await,
        Owner::Deployment | Owner::Set => of_set(ctx, look, machine).await,
    }
}

async fn of_control_plane(ctx: &Context, look: &Look, machine: &Machine) -> anyhow::Result<Sides> {
    let group = &look.group;
    let PlaneMember { plane, machine: live, infrastructure, config } =
        member(ctx, group, machine).await?;
    let (infrastructure, config) =
        all_that_is_referred_to(ctx, group, machine, infrastructure, config).await?;
    let wants = ControlPlane { object: &plane, cluster: &group.spec.cluster_name };
    let template = template(ctx, group, &wants.infrastructure_template()).await?;
    let manager = MANAGER_KUBEADM_CONTROL_PLANE;
    let intent = wants.infrastructure(&template, name(&infrastructure), false);
    let new_infrastructure = intent_for(&infrastructure, intent);
    let new_machine = intent_for(&live, wants.updated_machine(&live));
    let new_config = config
        .as_ref()
        .map(|config| intent_for(config, wants.bootstrap(name(config), Entry::Join, false)));
    let stored = stored(ctx, manager, &bare(&new_infrastructure)).await?;
    let (mut from, mut to) = (config.clone(), config.clone());
    if let (Some(from), Some(to), Some(intent)) = (&mut from, &mut to, &new_config) {
        to["spec"] = intent.body["spec"].clone();
        let (mut wanted, mut current) = (to["spec"].take(), from["spec"].take());
        prepare(&mut wanted, &mut current, Entry::Join);
        (to["spec"], from["spec"]) = (wanted, current);
    }
    let current =
        Objects { owner: live.clone(), infrastructure: infrastructure.clone(), bootstrap: from };
    let desired =
        Objects { owner: merged(&live, &new_machine.body), infrastructure: stored, bootstrap: to };
    let init_removal = config.as_ref().and_then(init_removal);
    Ok(Sides {
        level: Level::Machine,
        current,
        wanted: desired.clone(),
        desired,
        machine: live,
        writes: Writes {
            manager,
            infrastructure: bare(&new_infrastructure),
            config: new_config.as_ref().map(bare),
            init_removal,
            machine: new_machine,
            hand_over_to: None,
        },
    })
}

async fn of_set(ctx: &Context, look: &Look, machine: &Machine) -> anyhow::Result<Sides> {
    let group = &look.group;
    let from = look.set_of(machine).map(|set| set.name_any()).unwrap_or_default();
    let set = |name: &str| of_cluster_api(group, CORE_GROUP, Owner::Set.kind(), name);
    let (from_object, machine_object) = (set(&from), machine_object(group, machine));
    let to_object = look.current_set.as_deref().map(set);
    let to_set = async {
        match &to_object {
            Some(object) => read(ctx, object).await,
            // Before Refit makes the MachineSet, the MachineDeployment has its template.
            None => owner(ctx, group).await,
        }
    };
    let (from_set, to_set, live) =
        futures::try_join!(read(ctx, &from_object), to_set, read(ctx, &machine_object))?;
    let infrastructure_object = referred(group, &machine.spec.infrastructure_ref);
    let infrastructure = read(ctx, &infrastructure_object).await?;
    let config = match &machine.spec.bootstrap.config_ref {
        Some(reference) => Some(read(ctx, &referred(group, reference)).await?),
        None => None,
    };
    let (from_templates, to_templates) =
        (templates(ctx, group, &from_set).await?, templates(ctx, group, &to_set).await?);
    let labels = machine_set::labels(&to_set);
    let instance = |template: &Template, object: &Value| {
        let body = template.instance(&group.key.namespace, name(object), &labels, &Pairs::new());
        intent_for(object, body)
    };
    let new_infrastructure = instance(&to_templates.0, &infrastructure);
    let new_config = config
        .as_ref()
        .zip(to_templates.1.as_ref())
        .map(|(config, template)| instance(template, config));
    let new_machine = intent_for(&live, machine_set::moved_machine(&to_set, &live));
    let manager = MANAGER_MACHINE_SET;
    let stored = stored(ctx, manager, &bare(&new_infrastructure)).await?;
    let desired = Objects {
        owner: merged(&live, &new_machine.body),
        infrastructure: stored,
        bootstrap: new_config
            .as_ref()
            .zip(config.as_ref())
            .map(|(intent, config)| merged(config, &intent.body))
            .or(config),
    };
    let of_set = |set: &Value, (infrastructure, config): (Template, Option<Template>)| Objects {
        owner: set.clone(),
        infrastructure: infrastructure.json,
        bootstrap: config.map(|config| config.json),
    };
    Ok(Sides {
        level: Level::MachineSet,
        current: of_set(&from_set, from_templates),
        wanted: of_set(&to_set, to_templates),
        desired,
        machine: live,
        writes: Writes {
            manager,
            infrastructure: bare(&new_infrastructure),
            config: new_config.as_ref().map(bare),
            init_removal: None,
            machine: new_machine,
            hand_over_to: look.current_set.as_ref().filter(|to| **to != from).map(|_| to_set),
        },
    })
}

/// The templates of a MachineSet.
async fn templates(
    ctx: &Context,
    group: &Group,
    set: &Value,
) -> anyhow::Result<(Template, Option<Template>)> {
    let spec = &set["spec"]["template"]["spec"];
    let infrastructure: ContractRef = serde_json::from_value(spec["infrastructureRef"].clone())?;
    let config: Option<ContractRef> =
        serde_json::from_value(spec["bootstrap"]["configRef"].clone())?;
    let infrastructure = template(ctx, group, &infrastructure).await?;
    let config = match &config {
        Some(reference) => Some(template(ctx, group, reference).await?),
        None => None,
    };
    Ok((infrastructure, config))
}

/// An intent for an object as it is stored: with its uid, so that one that is gone is not created again.
fn intent_for(live: &Value, mut body: Value) -> Intent {
    body["apiVersion"] = live["apiVersion"].clone();
    body["kind"] = live["kind"].clone();
    body["metadata"]["uid"] = live["metadata"]["uid"].clone();
    Intent { object: ForeignObject::stored(live), body }
}

/// An intent for a Machine's object in an update in place.
fn bare(intent: &Intent) -> Intent {
    Intent { object: intent.object.clone(), body: in_update(intent.body.clone()) }
}

/// The object that the API server would store for an intent, with its defaults.
async fn stored(ctx: &Context, manager: &str, intent: &Intent) -> kube::Result<Value> {
    ctx.foreign.apply_dry(&ctx.client, &intent.object, manager, &intent.body).await
}

/// An object with the spec of an intent.
fn merged(live: &Value, intent: &Value) -> Value {
    let mut merged = live.clone();
    let (Some(into), Some(from)) = (merged["spec"].as_object_mut(), intent["spec"].as_object())
    else {
        merged["spec"] = json!(intent["spec"]);
        return merged;
    };
    into.extend(from.clone());
    merged
}
