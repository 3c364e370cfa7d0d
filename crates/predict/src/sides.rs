//! What a machine or a MachineSet is made of, and what it is to be made of: the two sides that
//! Cluster API would send to the hooks (`spec/capi.md 2.4, 3.4`).

use refit_cluster_api::kubeadm_config::{self, Entry};
use refit_core::change::Objects as Side;
use refit_kinds::{
    json::{annotations, name, namespace, text},
    keys,
};
use serde_json::{Value, json};

use super::{input::Input, objects::apply};

/// Current and desired, or why they cannot be compared.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Sides {
    /// Both sides.
    Known(Box<(Side, Side)>),
    /// The machine does not say what it was made of, so that Cluster API asks nobody.
    NotCloned,
    /// A template that the group refers to is not there: `Kind/name`.
    Missing(String),
}

/// A control plane Machine against its control plane.
pub(super) struct MachineSides {
    /// Whether the machine is what the control plane wants.
    pub(super) up_to_date: bool,
    /// Both sides.
    pub(super) sides: Sides,
}

/// The sides of a control plane Machine. Parts that could not be read are taken from their
/// templates.
pub(super) fn of_machine(
    input: &Input,
    now: &Value,
    wanted: &Value,
    machine: &Value,
) -> MachineSides {
    let (from, to) = (text(machine, "/spec/version"), text(wanted, "/spec/version"));
    let template = infrastructure_ref(wanted, "/spec/machineTemplate/spec");
    let infrastructure = infrastructure(input, now, machine);
    let config = config(input, now, machine);
    let same_config =
        config.as_ref().is_none_or(|config| kubeadm_config::is_up_to_date(&config["spec"], wanted));
    let same_template = infrastructure.as_ref().is_none_or(|found| {
        let made_of = annotations(found);
        match (made_of.get(keys::CLONED_FROM_NAME), made_of.get(keys::CLONED_FROM_GROUPKIND)) {
            (Some(name), Some(kind)) => {
                *name == text(template, "/name")
                    && *kind
                        == format!("{}.{}", text(template, "/kind"), text(template, "/apiGroup"))
            }
            _ => true,
        }
    });
    let up_to_date = from == to && same_template && same_config;
    let sides = match (infrastructure, config) {
        (Some(found), Some(config)) if annotations(&found).contains_key(keys::CLONED_FROM_NAME) => {
            let mut desired = machine.clone();
            desired["spec"]["version"] = text(wanted, "/spec/version").into();
            let mut current = config["spec"].clone();
            let mut joining = kubeadm_config::desired_spec(wanted, Entry::Join);
            kubeadm_config::prepare(&mut joining, &mut current, Entry::Join);
            let bootstrap = (with_spec(&config, current), with_spec(&config, joining));
            both(input, &found, template, (machine.clone(), desired), bootstrap)
        }
        _ => Sides::NotCloned,
    };
    MachineSides { up_to_date, sides }
}

fn both(
    input: &Input,
    found: &Value,
    template: &Value,
    owner: (Value, Value),
    bootstrap: (Value, Value),
) -> Sides {
    let space = namespace(found);
    let template = || {
        let title = format!("{}/{}", text(template, "/kind"), text(template, "/name"));
        let known = input.desired.get(text(template, "/kind"), space, text(template, "/name"));
        known.ok_or(title)
    };
    let template = match template() {
        Ok(template) => template,
        Err(title) => return Sides::Missing(title),
    };
    let made_of = annotations(found);
    let last = made_of.get(keys::CLONED_FROM_NAME).and_then(|name| {
        let kind = format!("{}Template", text(found, "/kind"));
        input.current.get(&kind, space, name)
    });
    let empty = json!({});
    let spec = |template: &Value| template.pointer("/spec/template/spec").cloned();
    let wanted = spec(template).unwrap_or_else(|| empty.clone());
    let live = found.get("spec").unwrap_or(&empty);
    let next = apply(live, last.and_then(spec).as_ref(), &wanted);
    Sides::Known(Box::new((
        Side { owner: owner.0, infrastructure: found.clone(), bootstrap: Some(bootstrap.0) },
        Side {
            owner: owner.1,
            infrastructure: with_spec(found, next),
            bootstrap: Some(bootstrap.1),
        },
    )))
}

/// The infrastructure machine, or what its template makes where it cannot be read.
fn infrastructure(input: &Input, now: &Value, machine: &Value) -> Option<Value> {
    let reference = machine.pointer("/spec/infrastructureRef")?;
    let (kind, of) = (text(reference, "/kind"), text(reference, "/name"));
    let space = namespace(machine);
    if let Some(found) = input.current.get(kind, space, of) {
        return Some(found.clone());
    }
    if !input.unread_kinds.contains(kind) {
        return None;
    }
    let template = infrastructure_ref(now, "/spec/machineTemplate/spec");
    let (template_kind, template_name) = (text(template, "/kind"), text(template, "/name"));
    let made_of = input.current.get(template_kind, space, template_name)?;
    Some(json!({
        "apiVersion": made_of["apiVersion"],
        "kind": kind,
        "metadata": {"name": of, "namespace": space, "annotations": {
            keys::CLONED_FROM_NAME: template_name,
            keys::CLONED_FROM_GROUPKIND: format!("{template_kind}.{}", text(template, "/apiGroup")),
        }},
        "spec": made_of.pointer("/spec/template/spec").cloned().unwrap_or_else(|| json!({})),
    }))
}

/// The KubeadmConfig, or what the control plane makes where it cannot be read.
fn config(input: &Input, now: &Value, machine: &Value) -> Option<Value> {
    let reference = machine.pointer("/spec/bootstrap/configRef")?;
    let (kind, of) = (text(reference, "/kind"), text(reference, "/name"));
    let space = namespace(machine);
    if let Some(found) = input.current.get(kind, space, of) {
        return Some(found.clone());
    }
    input.unread_kinds.contains(kind).then(|| {
        json!({
            "kind": kind,
            "metadata": {"name": of, "namespace": space},
            "spec": kubeadm_config::desired_spec(now, Entry::Join),
        })
    })
}

/// The sides of an old MachineSet against what its MachineDeployment wants.
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
    match (parts(set, &input.current), parts(wanted, &input.desired)) {
        (Ok(current), Ok(desired)) => Sides::Known(Box::new((current, desired))),
        (Err(missing), _) | (_, Err(missing)) => Sides::Missing(missing),
    }
}

fn infrastructure_ref<'a>(owner: &'a Value, at: &str) -> &'a Value {
    owner.pointer(&format!("{at}/infrastructureRef")).unwrap_or(&Value::Null)
}

fn with_spec(object: &Value, spec: Value) -> Value {
    let mut object = object.clone();
    object["spec"] = spec;
    object
}
