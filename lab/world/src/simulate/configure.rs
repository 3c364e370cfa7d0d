//! Operators who change KubeadmConfigs, and whether the hosts have what they last asked for.

use std::sync::Arc;

use refit_core::change::hash_of_configuration;
use refit_kinds::{
    json::{name, namespace, text},
    refit::CONFIGURATION,
};
use serde_json::Value;

use super::{
    fault::Setting,
    shape::{CLUSTER, DEPLOYMENT},
};
use crate::{random::Random, script::session::Session, world::lock};

/// The file that changes.
const FILE: &str = "/etc/configured";

/// A file of all machines of an owner changes, and sometimes a flag of their kubelets, which a later change removes.
pub(super) fn change(random: &mut Random, setting: &Setting<'_>) -> Vec<String> {
    let number = random.between(1, 1000);
    let file = format!(r#""files": [{{"path": "{FILE}", "content": "{number}"}}]"#);
    let flag = format!(
        r#", "joinConfiguration": {{"nodeRegistration": {{"kubeletExtraArgs": [{{"name": "max-pods", "value": "{number}"}}]}}}}"#
    );
    let flag = if random.chance(1, 2) { &flag } else { "" };
    let spec = format!("{{{file}{flag}}}");
    if setting.shape.workers == 0 || random.chance(1, 2) {
        return vec![format!("change kcp/{CLUSTER} spec.kubeadmConfigSpec '{spec}'")];
    }
    let template = format!(
        "apply <<END\n{{apiVersion: bootstrap.cluster.x-k8s.io/v1beta2, kind: KubeadmConfigTemplate, \
         metadata: {{name: config-{number}, namespace: default}}, spec: {{template: {{spec: {spec}}}}}}}\nEND"
    );
    let reference = format!(
        "change md/{DEPLOYMENT} spec.template.spec.bootstrap.configRef.name config-{number}"
    );
    vec![template, reference]
}

/// What the file of a machine's host has, if that is not what its KubeadmConfig asks for. A machine that was created with
/// the file has none in a simulation: its host is made without it.
pub(super) fn forgotten(session: &Session, machine: &Value) -> Option<String> {
    let wanted = wanted(session, machine)?;
    let hosts = lock(&session.world.inner.hosts);
    let cluster = text(machine, "/spec/clusterName");
    let host = hosts.get(&format!("{}/{cluster}/{}", namespace(machine), name(machine)))?;
    let found = lock(&host.state).root.get(FILE).cloned();
    drop(hosts);
    let was_applied = session.world.node_updates().iter().any(|update| {
        text(update, "/spec/machineRef/uid") == text(machine, "/metadata/uid")
            && writes_file(update)
    });
    let is_as_wanted = match &found {
        Some(found) => *found == wanted,
        None => !was_applied,
    };
    (!is_as_wanted).then(|| {
        let found = found.unwrap_or_else(|| "nothing".to_owned());
        format!("the host of {} has {found} in {FILE}, not {wanted}", name(machine))
    })
}

/// Whether a NodeUpdate is to write the file.
fn writes_file(update: &Value) -> bool {
    let parts = update["spec"]["parts"].as_array().into_iter().flatten();
    parts.filter(|part| text(part, "/updater") == CONFIGURATION).any(|part| {
        let mut files = part["host"]["configuration"]["files"].as_array().into_iter().flatten();
        files.any(|file| file == FILE)
    })
}

/// Whether the KubeadmConfig of a machine asks for something else than its NodeUpdate was made for.
pub(super) fn has_changed(session: &Session, update: &Value, machine: &Value) -> bool {
    let mut goals = update["spec"]["goal"]["parts"].as_array().into_iter().flatten();
    let goal = goals.find(|part| text(part, "/updater") == CONFIGURATION);
    let found = config_of(session, machine).map(|config| hash_of_configuration(&config["spec"]));
    goal.is_some_and(|goal| found.as_deref() != Some(text(goal, "/hash")))
}

fn config_of(session: &Session, machine: &Value) -> Option<Arc<Value>> {
    let reference = &machine["spec"]["bootstrap"]["configRef"];
    let mirror = &session.world.inner.management_mirror;
    let place = mirror.place(text(reference, "/apiGroup"), text(reference, "/kind"))?;
    mirror.get(&place.id, namespace(machine), text(reference, "/name"))
}

/// The content of the file in the KubeadmConfig of a machine.
fn wanted(session: &Session, machine: &Value) -> Option<String> {
    let config = config_of(session, machine)?;
    let mut files = config["spec"]["files"].as_array().into_iter().flatten();
    let file = files.find(|file| text(file, "/path") == FILE)?;
    Some(text(file, "/content").to_owned())
}
