//! Requests the NodeUpdate that an annotation of a control plane Machine asks for: kubeadm is to renew its certificates.

use kube::ResourceExt as _;
use refit_cluster_api::kinds::Machine;
use refit_core::{
    annotation::{self, RenewalSeen},
    node::newest,
};
use refit_kinds::{
    keys,
    refit::{MachineUid, UpdatePart},
};
use refit_runtime::{ObjectKey, queue::Action};

use super::{
    is_requested_by,
    machine::{Asked, carry_out, has_k8sd},
};
use crate::{context::Context, groups::node_updates_of_machine, host_plan::node_name};

/// Whether a Machine has the annotation.
pub(super) fn concerns(machine: &Machine) -> bool {
    machine.annotations().contains_key(keys::RENEW_CERTIFICATES)
}

/// Requests what the annotation of a Machine asks for, and removes it.
pub(super) async fn reconcile(ctx: &Context, machine: &Machine) -> anyhow::Result<Action> {
    let Some(text) = machine.annotations().get(keys::RENEW_CERTIFICATES) else {
        return Ok(Action::Done);
    };
    let updates = node_updates_of_machine(&ctx.stores, &ObjectKey::of(machine));
    let own = updates
        .iter()
        .map(AsRef::as_ref)
        .filter(|update| is_requested_by(*update, keys::RENEW_CERTIFICATES));
    let decided = annotation::renewal(&RenewalSeen {
        annotations: machine.annotations(),
        update: newest(own, &MachineUid::of(&machine.metadata)),
        has_k8sd: has_k8sd(machine),
        has_node: node_name(machine).is_some(),
        is_deleting: machine.metadata.deletion_timestamp.is_some(),
    });
    let by = Asked { key: keys::RENEW_CERTIFICATES, text: Some(text), part: UpdatePart::renewal() };
    carry_out(ctx, machine, decided, by).await
}
