//! Whether Cluster API calls Refit for a group. It is asked before a task changes the version in an owner's spec:
//! otherwise Cluster API would replace the Machines.

use k8s_openapi::api::{apps::v1::Deployment, core::v1::Namespace};
use kube::{Api, ResourceExt as _, api::ListParams};
use refit_cluster_api::kinds::{CORE_GROUP, ExtensionConfig};
use refit_core::task::{Paused, Refused};
use refit_kinds::{json::annotations, refit::Via};
use refit_predict::{
    Extension, Manager, Reach, Read, Unreached,
    managers::{PROVIDER_LABEL, Provider},
    reach,
};

use super::objects;
use crate::{context::Context, groups::Group};

/// Why a new version in the owner's spec would not be brought to the Machines in place, if no task pauses the owner; `None`
/// if it would. Read live.
pub(super) async fn refusal(ctx: &Context, group: &Group) -> anyhow::Result<Option<Refused>> {
    Ok(unreached(ctx, group, true).await?.map(Into::into))
}

/// Who brings a new version in the owner's spec to the Machines in place, or why that is left to a person. Read live.
pub(crate) async fn via(ctx: &Context, group: &Group) -> anyhow::Result<Result<Via, Refused>> {
    Ok(match unreached(ctx, group, false).await? {
        None => Ok(Via::Spec),
        Some(NotReached::Not(why)) if why.is_for_task() => Ok(Via::Machines),
        Some(why) => Err(why.into()),
    })
}

/// Why Cluster API does not call Refit for a group.
enum NotReached {
    /// It cannot be known, for this reason.
    Unknown(String),
    /// It does not.
    Not(Unreached),
}

impl From<NotReached> for Refused {
    fn from(why: NotReached) -> Self {
        let (reason, message) = match why {
            NotReached::Unknown(message) => ("GatesUnknown", message),
            NotReached::Not(why) => {
                let consequence =
                    if why.replaces() { ". Cluster API would replace the Machines" } else { "" };
                ("HooksNotCalled", format!("{why}{consequence}"))
            }
        };
        Self { reason, message, is_final: true, is_to_be_replaced: false }
    }
}

async fn unreached(
    ctx: &Context,
    group: &Group,
    takes_over: bool,
) -> anyhow::Result<Option<NotReached>> {
    let cluster = objects::of_cluster_api(group, CORE_GROUP, "Cluster", &group.spec.cluster_name);
    let extensions: Api<ExtensionConfig> = Api::all(ctx.client.clone());
    let deployments: Api<Deployment> = Api::all(ctx.client.clone());
    let namespaces: Api<Namespace> = Api::all(ctx.client.clone());
    let of_providers = ListParams::default().labels(PROVIDER_LABEL);
    let all = ListParams::default();
    let cluster = ctx.foreign.read(&ctx.client, &cluster);
    let (owner, cluster, extensions, managers, namespace) = futures::try_join!(
        objects::owner(ctx, group),
        cluster,
        extensions.list(&all),
        deployments.list(&of_providers),
        namespaces.get(&group.key.namespace),
    )?;
    let managers: Vec<Manager> = managers.iter().filter_map(Manager::of).collect();
    let needed = Provider::ALL.into_iter().filter(|provider| match provider {
        Provider::Core => true,
        Provider::KubeadmControlPlane => group.spec.control_plane,
    });
    let unknown = needed
        .map(Provider::label)
        .find(|label| !managers.iter().any(|manager| manager.provider.label() == *label));
    if let Some(label) = unknown {
        let message = format!(
            "no Deployment with the label {PROVIDER_LABEL}={label} shows whether Cluster API has its feature gates on. \
             A task with via Machines needs none"
        );
        return Ok(Some(NotReached::Unknown(message)));
    }
    let mut facts = Reach::of(
        &owner,
        Some(&cluster),
        Read::Known(extensions.iter().map(Extension::of).collect()),
        Read::Known(namespace.labels().clone()),
        Read::Known(managers),
    );
    let name = format!("{} {}", group.spec.owner.kind, group.spec.owner.name);
    let by_task = Paused::of(&annotations(&owner)).task().is_some();
    if takes_over && by_task && facts.paused == Some(name) {
        facts.paused = None;
    }
    Ok(reach(&facts).err().map(NotReached::Not))
}
