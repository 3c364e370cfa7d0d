//! Writes orders into the objects of providers.

use std::sync::Arc;

use kube::{ResourceExt as _, api::DynamicObject};
use refit_core::{
    node::{ProviderOrder, Providers, provider_object},
    report::Refusal,
};
use refit_kinds::{
    keys,
    refit::{NodeUpdate, PlanId, ProviderObject, ProviderSpec, UpdaterTemplate},
};
use refit_runtime::{apply, foreign::ForeignObject};
use serde_json::{Value, json};

use super::record::ProviderRecord;
use crate::{context::Context, groups::controller_of};

/// What became of an order.
pub(crate) enum Ordered {
    /// It is written.
    Written,
    /// It cannot be written, because of an object that an operator has to delete.
    InTheWay(Refusal),
}

/// Writes an order into the object of a provider; the first order makes the object.
pub(crate) async fn order(
    ctx: &Context,
    update: &NodeUpdate,
    known: &Providers,
    order: &ProviderOrder,
) -> kube::Result<Ordered> {
    let mut parts = update.spec.provider_parts();
    let part =
        parts.find(|part| part.updater == order.updater).and_then(|part| part.template.as_ref());
    let Some(template) = part.map(|part| &part.template) else {
        return Ok(Ordered::Written);
    };
    let plan_id = PlanId::of(&update.metadata);
    let own = match known {
        Providers::Known(objects) => objects
            .iter()
            .find(|object| object.updater == order.updater && object.plan_id == plan_id),
        Providers::NotSynced | Providers::Unusable(_) => return Ok(Ordered::Written),
    };
    if let Some(own) = own {
        let mut body = spec_patch(own, &order.spec);
        if order.returned_claim != own.returned_claim {
            let claim = json!(order.returned_claim).to_string();
            body["metadata"]["annotations"] = json!({ keys::RETURNED_CLAIM: claim });
        }
        return patch(ctx, update, template, &own.name, &body).await.map(|()| Ordered::Written);
    }
    let found = ctx.foreign.read(&ctx.client, &template_of(update, template)).await?;
    let made = provider_object(update, template, &found, order);
    let made: DynamicObject = serde_json::from_value(made).map_err(kube::Error::SerdeError)?;
    let api = ctx.foreign.api(&ctx.client, &foreign(update, template, "")).await?;
    let (found, _) = apply::create_or_get(&api, &made).await?;
    let owner = controller_of(found.owner_references()).map(|owner| owner.uid.clone());
    if owner != update.metadata.uid {
        let why = format!(
            "object {} has the name of the one that this update needs, and does not belong to it: delete it \
             unless its own NodeUpdate is under way",
            found.name_any()
        );
        let updater = order.updater.clone();
        return Ok(Ordered::InTheWay(Refusal::UpdaterUnusable { updater, why }));
    }
    remember(ctx, template, found);
    Ok(Ordered::Written)
}

/// Writes the spec of a provider's object of another NodeUpdate of the same Machine.
pub(crate) async fn order_older(
    ctx: &Context,
    look: (&NodeUpdate, &[Arc<NodeUpdate>]),
    known: &Providers,
    name: &str,
    spec: &ProviderSpec,
) -> kube::Result<Ordered> {
    let (update, siblings) = look;
    let Providers::Known(objects) = known else {
        return Ok(Ordered::Written);
    };
    let Some(object) = objects.iter().find(|object| object.name == name) else {
        return Ok(Ordered::Written);
    };
    // Its own NodeUpdate comes first: another one may name another kind for the same Updater.
    let own = |update: &&NodeUpdate| PlanId::of(&update.metadata) == object.plan_id;
    let older = siblings.iter().map(AsRef::as_ref);
    let updates = older.clone().filter(own).chain([update]).chain(older);
    let mut parts = updates.flat_map(|update| update.spec.provider_parts());
    let part = parts.find(|part| part.updater == object.updater);
    let Some(part) = part.and_then(|part| part.template.as_ref()) else {
        let why = format!(
            "object {name} is for the same Machine, has not ended, and belongs to no known NodeUpdate: delete it"
        );
        let updater = object.updater.clone();
        return Ok(Ordered::InTheWay(Refusal::UpdaterUnusable { updater, why }));
    };
    let body = spec_patch(object, spec);
    patch(ctx, update, &part.template, name, &body).await.map(|()| Ordered::Written)
}

/// The change of an object's spec, only if the object is still as it was read.
fn spec_patch(object: &ProviderObject, spec: &ProviderSpec) -> Value {
    json!({
        "metadata": { "resourceVersion": object.resource_version },
        "spec": { "stage": spec.stage, "gate": spec.gate },
    })
}

async fn patch(
    ctx: &Context,
    update: &NodeUpdate,
    template: &UpdaterTemplate,
    name: &str,
    body: &Value,
) -> kube::Result<()> {
    let api = ctx.foreign.api(&ctx.client, &foreign(update, template, name)).await?;
    let written = apply::merge(&api, name, body).await?;
    remember(ctx, template, written);
    Ok(())
}

/// Keeps what was written in the cache, before the watch delivers it.
fn remember(ctx: &Context, template: &UpdaterTemplate, written: DynamicObject) {
    let read = serde_json::to_value(written).and_then(serde_json::from_value::<ProviderRecord>);
    if let Ok(record) = read {
        ctx.providers.of(template).store.insert(record);
    }
}

fn foreign(update: &NodeUpdate, template: &UpdaterTemplate, name: &str) -> ForeignObject {
    let (group, version) =
        template.api_version.split_once('/').unwrap_or(("", &template.api_version));
    ForeignObject {
        group: group.to_owned(),
        version: Some(version.to_owned()),
        kind: template.made_kind().to_owned(),
        namespace: update.metadata.namespace.clone().unwrap_or_default(),
        name: name.to_owned(),
    }
}

/// The template of a provider, as an object.
pub(crate) fn template_of(update: &NodeUpdate, template: &UpdaterTemplate) -> ForeignObject {
    ForeignObject { kind: template.kind.clone(), ..foreign(update, template, &template.name) }
}
