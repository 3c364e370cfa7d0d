//! The current and the desired objects of a machine or MachineSet: the two sides that Cluster API
//! would send to the hooks (`docs/facts/control-plane.md#canupdatemachine` and
//! `docs/facts/machine-deployment.md#canupdatemachineset`).

use refit_cluster_api::{
    desired::{
        Template,
        control_plane::ControlPlane,
        machine_deployment::{Step, machine_set},
    },
    kubeadm_config::{self, Entry},
    rollout::difference::Difference,
};
use refit_core::change::Objects as Side;
use refit_kinds::{
    json::{annotations, name, namespace, text},
    keys,
};
use serde_json::{Value, json};

use super::{input::Input, objects::apply};

/// Current and desired objects, or why they cannot be compared.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Sides {
    /// Both sides.
    Known(Box<(Side, Side)>),
    /// The machine does not record its template, so Cluster API calls no hook.
    NotCloned,
    /// A template that the group references does not exist: `Kind/name`.
    Missing(String),
}

/// A control plane Machine compared with its control plane.
pub(super) struct MachineSides {
    /// How the machine differs from the control plane's spec.
    pub(super) differences: Vec<Difference>,
    /// Both sides.
    pub(super) sides: Sides,
}

impl MachineSides {
    /// Whether the machine matches the control plane's spec, apart from its age.
    pub(super) fn is_up_to_date(&self) -> bool {
        self.differences.iter().all(Difference::is_by_date)
    }
}

/// The sides of a control plane Machine. Parts that could not be read are derived from their
/// templates.
pub(super) fn of_machine(
    input: &Input,
    now: &Value,
    wanted: &Value,
    machine: &Value,
) -> MachineSides {
    let plane = control_plane_of(wanted, machine);
    let infrastructure = infrastructure(input, control_plane_of(now, machine), machine);
    let config = config(input, control_plane_of(now, machine), machine);
    let differences =
        Difference::all(plane, machine, infrastructure.as_ref(), config.as_ref(), input.now);
    let sides = match (infrastructure, config) {
        (Some(found), Some(config)) if annotations(&found).contains_key(keys::CLONED_FROM_NAME) => {
            let owner = (machine.clone(), apply(machine, None, &plane.updated_machine(machine)));
            let mut current = config["spec"].clone();
            let mut joining = kubeadm_config::desired_spec(wanted, Entry::Join);
            kubeadm_config::prepare(&mut joining, &mut current, Entry::Join);
            let bootstrap = (with_spec(&config, current), with_spec(&config, joining));
            both(input, &found, plane, owner, bootstrap)
        }
        _ => Sides::NotCloned,
    };
    MachineSides { differences, sides }
}

/// A control plane in the form that the model of Cluster API takes.
fn control_plane_of<'a>(control_plane: &'a Value, machine: &'a Value) -> ControlPlane<'a> {
    ControlPlane { object: control_plane, cluster: text(machine, "/spec/clusterName") }
}

fn both(
    input: &Input,
    found: &Value,
    plane: ControlPlane<'_>,
    owner: (Value, Value),
    bootstrap: (Value, Value),
) -> Sides {
    let reference = plane.infrastructure_template();
    let (kind, space) = (&*reference.kind, namespace(found));
    let Some(wanted) = input.desired.get(kind, space, &reference.name) else {
        return Sides::Missing(format!("{kind}/{}", reference.name));
    };
    let instance = |template: &Value| {
        let template = Template { reference: reference.clone(), json: template.clone() };
        plane.infrastructure(&template, name(found), false)["spec"].take()
    };
    let made_of = annotations(found);
    let last = made_of.get(keys::CLONED_FROM_NAME).and_then(|name| {
        let kind = format!("{}Template", text(found, "/kind"));
        input.current.get(&kind, space, name)
    });
    let empty = json!({});
    let live = found.get("spec").unwrap_or(&empty);
    let next = apply(live, last.map(instance).as_ref(), &instance(wanted));
    Sides::Known(Box::new((
        Side { owner: owner.0, infrastructure: found.clone(), bootstrap: Some(bootstrap.0) },
        Side {
            owner: owner.1,
            infrastructure: with_spec(found, next),
            bootstrap: Some(bootstrap.1),
        },
    )))
}

/// The infrastructure machine, or its template's result if it could not be read.
fn infrastructure(input: &Input, now: ControlPlane<'_>, machine: &Value) -> Option<Value> {
    let reference = machine.pointer("/spec/infrastructureRef")?;
    let (kind, wanted_name) = (text(reference, "/kind"), text(reference, "/name"));
    let space = namespace(machine);
    if let Some(found) = input.current.get(kind, space, wanted_name) {
        return Some(found.clone());
    }
    if !input.unread_kinds.contains(kind) {
        return None;
    }
    let reference = now.infrastructure_template();
    let json = input.current.get(&reference.kind, space, &reference.name)?.clone();
    let api_version = json["apiVersion"].clone();
    let mut made = now.infrastructure(&Template { reference, json }, wanted_name, false);
    made["apiVersion"] = api_version;
    made["kind"] = json!(kind);
    Some(made)
}

/// The KubeadmConfig, or what the control plane would create if it could not be read.
fn config(input: &Input, now: ControlPlane<'_>, machine: &Value) -> Option<Value> {
    let reference = machine.pointer("/spec/bootstrap/configRef")?;
    let (kind, wanted_name) = (text(reference, "/kind"), text(reference, "/name"));
    if let Some(found) = input.current.get(kind, namespace(machine), wanted_name) {
        return Some(found.clone());
    }
    input.unread_kinds.contains(kind).then(|| {
        let mut made = now.bootstrap(wanted_name, Entry::Join, false);
        made["kind"] = json!(kind);
        made
    })
}

/// The sides of an old MachineSet compared with its MachineDeployment.
pub(super) fn of_set(input: &Input, set: &Value, wanted: &Value) -> Sides {
    let parts = |owner: &Value, objects: &super::objects::Objects| -> Result<Side, String> {
        let spec = owner.pointer("/spec/template/spec").unwrap_or(&Value::Null);
        let find = |reference: &Value| {
            let (kind, name) = (text(reference, "/kind"), text(reference, "/name"));
            objects
                .get(kind, namespace(owner), name)
                .cloned()
                .ok_or_else(|| format!("{kind}/{name}"))
        };
        let bootstrap = spec.pointer("/bootstrap/configRef");
        Ok(Side {
            owner: json!({
                "kind": "MachineSet",
                "metadata": {"name": name(owner), "namespace": namespace(owner)},
                "spec": {"template": {"spec": spec}},
            }),
            infrastructure: find(&spec["infrastructureRef"])?,
            bootstrap: bootstrap.map(find).transpose()?,
        })
    };
    let new = machine_set(wanted, None, name(wanted), Step::default(), "");
    match (parts(set, &input.current), parts(&new, &input.desired)) {
        (Ok(current), Ok(desired)) => Sides::Known(Box::new((current, desired))),
        (Err(missing), _) | (_, Err(missing)) => Sides::Missing(missing),
    }
}

fn with_spec(object: &Value, spec: Value) -> Value {
    let mut object = object.clone();
    object["spec"] = spec;
    object
}
