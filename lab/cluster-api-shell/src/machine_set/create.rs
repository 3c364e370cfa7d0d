//! Creates a Machine with its provider objects.

use std::{collections::BTreeSet, sync::Arc};

use kube::{ResourceExt as _, discovery::ApiResource};
use refit_cluster_api::{
    desired::{
        Pairs,
        machine_set::{labels, new_machine},
        made_of, owner,
    },
    kinds::{ContractRef, MachineSet},
};
use refit_kinds::keys::MANAGER_MACHINE_SET;
use serde_json::json;

use crate::{
    context::{Context, namespace_of},
    error::Error,
    live::Live,
    names, templates,
};

/// Creates the next Machine of a MachineSet: bootstrap config, infrastructure machine, Machine.
/// After a crash in between, the next call uses the same names.
pub(super) async fn machine(context: &Arc<Context>, set: &Live<MachineSet>) -> Result<(), Error> {
    let namespace = namespace_of(set);
    let machines = context.machines.list_in(&namespace);
    let taken: BTreeSet<String> = machines.iter().map(|machine| machine.name_any()).collect();
    let name = names::next(&set.name_any(), set.uid_text(), &taken);
    let spec = &set.spec.template.spec;
    let bootstrap = match &spec.bootstrap.config_ref {
        Some(template) => Some(clone(context, set, template, &name).await?),
        None => None,
    };
    let infrastructure = clone(context, set, &spec.infrastructure_ref, &name).await?;
    let intent = new_machine(set.json(), &name, &infrastructure, bootstrap.as_ref());
    context.apply(&context.machines, MANAGER_MACHINE_SET, None, intent).await?;
    tracing::info!(machine = name, set = set.name_any(), "created Machine");
    Ok(())
}

/// Creates an object from a template. The MachineSet owns it until its Machine exists.
async fn clone(
    context: &Arc<Context>,
    set: &Live<MachineSet>,
    template: &ContractRef,
    name: &str,
) -> Result<ContractRef, Error> {
    let namespace = namespace_of(set);
    let reference = made_of(template, name);
    let (cache, existing) = context.provided(&namespace, &reference).await?;
    let template = templates::fetch(context, &namespace, template).await?;
    let mut intent = template.instance(&namespace, name, &labels(set.json()), &Pairs::new());
    let resource = ApiResource::erase::<MachineSet>(&());
    let owner = owner(&resource, &set.name_any(), set.uid_text(), false);
    intent["metadata"]["ownerReferences"] = json!([owner]);
    context.apply(&cache, MANAGER_MACHINE_SET, existing.as_deref(), intent).await?;
    Ok(reference)
}
