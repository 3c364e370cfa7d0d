//! Adding and removing control plane machines.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use kube::{ResourceExt as _, discovery::ApiResource};
use refit_cluster_api::{
    desired::{
        control_plane::{REMEDIATION_FOR, bootstrap_reference},
        made_of, owner,
    },
    kinds::KubeadmControlPlane,
    kubeadm_config::Entry,
    rollout::{self, control_plane::ScaleDownReason},
};
use refit_kinds::keys::MANAGER_KUBEADM_CONTROL_PLANE;
use refit_runtime::ObjectKey;
use serde_json::json;

use super::{Plane, remediate};
use crate::{context::Context, error::Error, names, templates};

/// Creates the next machine: infrastructure machine, KubeadmConfig, Machine. The first machine
/// initialises the cluster. After a crash in between, the next call uses the same names.
pub(super) async fn up(context: &Arc<Context>, plane: &Plane) -> Result<(), Error> {
    let machines = context.machines.list_in(&plane.namespace);
    let taken: BTreeSet<String> = machines.iter().map(|machine| machine.name_any()).collect();
    let object = &plane.object;
    let name = names::next(&object.name_any(), object.uid_text(), &taken);
    let present = plane.machines(context);
    let entry = if present.is_empty() { Entry::Init } else { Entry::Join };
    let resource = ApiResource::erase::<KubeadmControlPlane>(&());
    let owner = owner(&resource, &object.name_any(), object.uid_text(), false);
    let manager = MANAGER_KUBEADM_CONTROL_PLANE;

    let template = plane.desired().infrastructure_template();
    let infrastructure = made_of(&template, &name);
    let (cache, live) = context.provided(&plane.namespace, &infrastructure).await?;
    let template = templates::fetch(context, &plane.namespace, &template).await?;
    let mut intent = plane.desired().infrastructure(&template, &name, false);
    intent["metadata"]["ownerReferences"] = json!([owner]);
    context.apply(&cache, manager, live.as_deref(), intent).await?;

    let bootstrap = bootstrap_reference(&name);
    let (cache, live) = context.provided(&plane.namespace, &bootstrap).await?;
    let mut intent = plane.desired().bootstrap(&name, entry, false);
    intent["metadata"]["ownerReferences"] = json!([owner]);
    context.apply(&cache, manager, live.as_deref(), intent).await?;

    let domain = emptiest_failure_domain(context, plane);
    let mut intent = plane.desired().new_machine(&name, &infrastructure, domain.as_deref());
    // A remediation has one successor; its annotation on the control plane may last for one more
    // reconcile.
    let is_successor = |noted: &&String| {
        let mut machines = present.iter();
        !machines.any(|machine| machine.annotations().get(REMEDIATION_FOR) == Some(*noted))
    };
    if let Some(noted) = remediate::noted(plane).filter(is_successor) {
        intent["metadata"]["annotations"][REMEDIATION_FOR] = json!(noted);
    }
    tracing::info!(machine = name, ?entry, "creating control plane Machine");
    context.apply(&context.machines, manager, None, intent).await?;
    Ok(())
}

/// The available failure domain with the fewest machines; the first by name among equals.
fn emptiest_failure_domain(context: &Context, plane: &Plane) -> Option<String> {
    let domains = rollout::failure_domains(plane.cluster.json());
    let mut used: BTreeMap<String, usize> = domains.into_iter().map(|name| (name, 0)).collect();
    for machine in plane.machines(context) {
        let domain = machine.spec.failure_domain.as_ref();
        if let Some(count) = domain.and_then(|domain| used.get_mut(domain)) {
            *count += 1;
        }
    }
    used.into_iter().min_by_key(|(_, count)| *count).map(|(name, _)| name)
}

/// Deletes a machine.
pub(super) async fn down(
    context: &Arc<Context>,
    plane: &Plane,
    name: &str,
    reason: ScaleDownReason,
) -> Result<(), Error> {
    let key = ObjectKey::new(&plane.namespace, name);
    let Some(machine) = context.machines.get(&key) else {
        return Ok(());
    };
    tracing::info!(machine = name, ?reason, "deleting control plane Machine");
    context.delete(&context.machines, &machine).await
}
