//! The provider of memory, misbehaving: it takes the place of `examples/provider` for some time, and changes no
//! machine.

use std::time::Duration;

use kube::{
    Api, Client, ResourceExt as _,
    api::{ListParams, Patch, PatchParams},
};
use memory_provider::MemoryUpdate;
use refit_kinds::refit::{Gate, ProviderProgress, ProviderStatus};
use refit_runtime::Clock;
use serde_json::json;
use strum::{Display, EnumString};

/// How often it looks at its objects.
const LOOK: Duration = Duration::from_secs(5);
/// How long it reports the same, in seconds.
const SAME_SECONDS: i64 = 30;

/// How a provider misbehaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Display, EnumString)]
#[strum(serialize_all = "kebab-case")]
pub(crate) enum Misbehaviour {
    /// It reports each gate as passed, and the machine as ready, although nothing has changed.
    Ready,
    /// It reports gates as passed that are not open yet.
    Passes,
    /// It withdraws what it has reported, and reports it again.
    Flips,
    /// It notes its orders, and does not get on.
    Slow,
}

impl Misbehaviour {
    /// What a provider does that misbehaves in this way, for the output of a script.
    pub(crate) fn sentence(self) -> &'static str {
        match self {
            Self::Ready => "reports ready and changes nothing",
            Self::Passes => "reports gates as passed that are closed",
            Self::Flips => "withdraws what it has reported",
            Self::Slow => "does not get on",
        }
    }

    /// What it reports about an object at this second.
    fn status(self, update: &MemoryUpdate, second: i64) -> ProviderStatus {
        let before = update.status.clone().unwrap_or_default();
        let gate = update.spec.contract.gate;
        let observed_generation = update.metadata.generation;
        let done = ProviderStatus {
            observed_generation,
            passed: gate,
            ready: gate == Gate::Disrupt,
            ..ProviderStatus::default()
        };
        match self {
            Self::Ready => done,
            Self::Passes => ProviderStatus { passed: Gate::Disrupt, ready: true, ..done },
            Self::Flips if second / SAME_SECONDS % 2 == 0 => done,
            Self::Flips => ProviderStatus { observed_generation, ..ProviderStatus::default() },
            Self::Slow => ProviderStatus {
                observed_generation,
                progress: Some(ProviderProgress {
                    message: "still at work".to_owned(),
                    percent: 1,
                }),
                ..before
            },
        }
    }
}

/// Reports about all objects until the future is dropped.
pub(crate) async fn run(client: Client, clock: Clock, how: Misbehaviour) {
    let all: Api<MemoryUpdate> = Api::all(client.clone());
    loop {
        let updates = all.list(&ListParams::default()).await.map(|list| list.items);
        for update in updates.unwrap_or_default() {
            let status = how.status(&update, clock.now().as_second());
            if update.status.as_ref() == Some(&status) {
                continue;
            }
            let namespace = update.namespace().unwrap_or_default();
            let api: Api<MemoryUpdate> = Api::namespaced(client.clone(), &namespace);
            let mut body = json!({ "failureReason": null, "failureMessage": null });
            if let (Some(body), serde_json::Value::Object(status)) =
                (body.as_object_mut(), json!(status))
            {
                body.extend(status);
            }
            let body = Patch::Merge(json!({ "status": body }));
            if let Err(error) =
                api.patch_status(&update.name_any(), &PatchParams::default(), &body).await
            {
                tracing::debug!("failed to write a status, trying again: {error}");
            }
        }
        tokio::time::sleep(LOOK).await;
    }
}
