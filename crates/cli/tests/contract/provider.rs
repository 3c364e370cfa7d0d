//! A provider that breaks one clause of the contract, or none.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use kube::{
    Api, Client, ResourceExt as _,
    api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams},
    core::GroupVersionKind,
};
use refit_kinds::{
    json,
    refit::{Gate, ProviderProgress, ProviderStatus, Stage},
};
use refit_predict::contract::Clause;
use refit_runtime::clock::instant;
use serde_json::{Value, json};
use tokio::time::Instant;

/// How often it looks at its objects.
const POLL: Duration = Duration::from_millis(20);
/// How long a step takes for a provider that is to be stopped meanwhile.
const SLOW: Duration = Duration::from_millis(600);
/// The memory that the machine had before.
pub(super) const BEFORE: &str = "1024";
/// Where the machine shows its memory.
pub(super) const HAS: &str = "memory.example/has";
const FINALIZER: &str = "memory.example/held";

/// The provider.
pub(super) struct Provider {
    client: Client,
    breaks: Option<Clause>,
    /// Exists once the provider was restarted.
    restarted: PathBuf,
    first_seen: BTreeMap<String, Instant>,
    polls: i32,
}

/// One of its objects.
struct Update {
    object: Value,
    status: ProviderStatus,
    gate: Gate,
    stage: Stage,
    generation: i64,
}

impl Update {
    fn read(object: &DynamicObject) -> Self {
        let object = serde_json::to_value(object).unwrap();
        let parsed = |pointer: &str| object.pointer(pointer).cloned().unwrap_or(Value::Null);
        let mut status = parsed("/status");
        if let Some(status) = status.as_object_mut() {
            status.remove("leftBehind");
        }
        Self {
            status: serde_json::from_value(status).unwrap_or_default(),
            gate: serde_json::from_value(parsed("/spec/gate")).unwrap(),
            stage: serde_json::from_value(parsed("/spec/stage")).unwrap(),
            generation: parsed("/metadata/generation").as_i64().unwrap(),
            object,
        }
    }
}

impl Provider {
    pub(super) fn new(client: Client, breaks: Option<Clause>, restarted: PathBuf) -> Self {
        Self { client, breaks, restarted, first_seen: BTreeMap::new(), polls: 0 }
    }

    fn breaks(&self, clause: Clause) -> bool {
        self.breaks == Some(clause)
    }

    fn api(&self, group: &str, version: &str, kind: &str) -> Api<DynamicObject> {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        Api::namespaced_with(self.client.clone(), "default", &resource)
    }

    /// Works until the future is dropped.
    pub(super) async fn run(mut self) {
        let updates = self.api("memory.example", "v1", "MemoryUpdate");
        loop {
            tokio::time::sleep(POLL).await;
            self.polls += 1;
            let Ok(found) = updates.list(&ListParams::default()).await else { continue };
            for object in found {
                self.reconcile(&updates, &object).await;
            }
        }
    }

    async fn reconcile(&mut self, updates: &Api<DynamicObject>, object: &DynamicObject) {
        let name = object.name_any();
        self.first_seen.entry(name.clone()).or_insert_with(instant);
        let update = Update::read(object);
        let merge = PatchParams::default();
        if self.breaks(Clause::Deleted) && object.finalizers().is_empty() {
            let body = json!({"metadata": {"finalizers": [FINALIZER]}});
            let _ = updates.patch(&name, &merge, &Patch::Merge(body)).await;
            return;
        }
        if json::is_deleting(&update.object) {
            let held = update.stage == Stage::Ongoing && update.status.passed == Gate::Upgrade;
            if !object.finalizers().is_empty() && !held {
                let body = json!({"metadata": {"finalizers": null}});
                let _ = updates.patch(&name, &merge, &Patch::Merge(body)).await;
            }
            return;
        }
        if self.breaks(Clause::OrdersKept)
            && json::annotation(&update.object, "refit.dev/updater") != Some("x")
        {
            let body = json!({"metadata": {"annotations": {"refit.dev/updater": "x"}}});
            let _ = updates.patch(&name, &merge, &Patch::Merge(body)).await;
        }
        let Some(next) = self.next(&update).await else { return };
        if next != json!(update.status) {
            let mut body = json!({"failureReason": null, "failureMessage": null});
            body.as_object_mut().unwrap().extend(next.as_object().unwrap().clone());
            let body = Patch::Merge(json!({"status": body}));
            let _ = updates.patch_status(&name, &merge, &body).await;
        }
    }

    /// The next status; `None` if nothing is to be written.
    async fn next(&mut self, update: &Update) -> Option<Value> {
        let before = &update.status;
        let mut next = ProviderStatus {
            observed_generation: Some(update.generation),
            failure_reason: String::new(),
            failure_message: String::new(),
            retriable: false,
            ..before.clone()
        };
        if self.breaks(Clause::ObservesGenerations) && update.stage == Stage::Abort {
            next.observed_generation = before.observed_generation;
        }
        let has_failed = !before.failure_reason.is_empty() && !before.retriable;
        if has_failed && update.stage == Stage::Ongoing {
            if !self.breaks(Clause::FailureFinal) {
                return None;
            }
            next.passed = update.gate;
            return Some(json!(next));
        }
        if before.ready && self.breaks(Clause::StatusForm) && update.stage == Stage::Ongoing {
            let mut written = json!(before);
            written["leftBehind"] = json!("nothing");
            let is_written = update.object.pointer("/status/leftBehind").is_some();
            return (!is_written).then_some(written);
        }
        if before.ready {
            if self.breaks(Clause::ReadyStays) && update.stage == Stage::Ongoing {
                // Once: from then on it only waits.
                if before.progress.is_some() {
                    return None;
                }
                next.ready = false;
                next.progress = Some(ProviderProgress { percent: 99, message: "again".into() });
            }
            if !(self.breaks(Clause::ReadyLast) && before.passed < Gate::Disrupt) {
                return Some(json!(next));
            }
        }
        if update.stage == Stage::Abort && !before.past_no_return {
            self.abort(update, &mut next, has_failed).await;
        } else if before.passed < update.gate
            && !(before.progress.is_some()
                && before.past_no_return
                && self.breaks(Clause::ReadyStays))
        {
            self.pass(update, &mut next).await;
        } else if self.breaks(Clause::Quiet) {
            let message = format!("waiting, {}", self.polls);
            next.progress = Some(ProviderProgress { percent: 0, message });
        }
        Some(json!(next))
    }

    async fn abort(&self, update: &Update, next: &mut ProviderStatus, has_failed: bool) {
        let passed = update.status.passed;
        let ignores = self.breaks(Clause::AbortAtStage) && passed < Gate::Upgrade && !has_failed
            || self.breaks(Clause::AbortAtUpgrade) && passed == Gate::Upgrade;
        if ignores {
            return;
        }
        if self.breaks(Clause::AbortHolds) {
            next.passed = update.gate;
        }
        if self.breaks(Clause::PassedStays) {
            next.passed = Gate::Closed;
        }
        if !self.breaks(Clause::Undone) && !has_failed {
            self.set_memory(BEFORE).await;
        }
        next.ready = true;
    }

    /// Does one thing that the open gate allows.
    async fn pass(&self, update: &Update, next: &mut ProviderStatus) {
        let machine = self.machine(update).await;
        let Some(machine) = machine else {
            let reason =
                if self.breaks(Clause::FailureForm) { "machine gone" } else { "MachineGone" };
            next.failure_reason = reason.into();
            next.failure_message = "the Machine is gone".into();
            return;
        };
        let gate = update.gate;
        let wanted = machine.pointer("/spec/memory").unwrap().to_string();
        let age = self.first_seen[json::name(&update.object)].elapsed();
        let stuck = self.breaks(Clause::PassesStage)
            || self.breaks(Clause::PassesUpgrade) && gate == Gate::Upgrade
            || self.breaks(Clause::Restarted) && gate == Gate::Disrupt && self.restarted.exists()
            || self.breaks(Clause::AbortHolds) && age < SLOW;
        if stuck {
            return;
        }
        if self.breaks(Clause::Undisturbed) || self.breaks(Clause::Undone) && gate == Gate::Upgrade
        {
            self.set_memory(&wanted).await;
        }
        if self.breaks(Clause::ReadyLast) {
            next.ready = true;
        }
        if self.breaks(Clause::Progress) {
            next.progress = Some(ProviderProgress { percent: 150, message: String::new() });
        }
        if gate == Gate::Disrupt {
            if self.breaks(Clause::Repeated) && json::annotation(&machine, HAS) == Some(&wanted) {
                next.failure_reason = "NothingToDo".into();
                next.failure_message = "the machine has it".into();
                return;
            }
            next.past_no_return = true;
            if !update.status.past_no_return && !self.breaks(Clause::NoReturnFirst) {
                return;
            }
            if !self.breaks(Clause::Verified) {
                self.set_memory(&wanted).await;
            }
            next.ready = !self.breaks(Clause::PassesDisrupt);
        }
        next.passed = gate;
        if self.breaks(Clause::ClosedGates) && gate == Gate::Stage {
            next.passed = Gate::Upgrade;
        }
    }

    /// The infrastructure machine of the Machine; `None` if another one has its name.
    async fn machine(&self, update: &Update) -> Option<Value> {
        let name = json::text(&update.object, "/spec/machineRef/name");
        let machines = self.api("cluster.x-k8s.io", "v1beta2", "Machine");
        let machine = answered(|| machines.get(name)).await;
        let uid = json::text(&update.object, "/spec/machineRef/uid");
        if machine.uid().as_deref() != Some(uid) && !self.breaks(Clause::OtherMachine) {
            return None;
        }
        let infrastructure = self.infrastructure();
        let found = answered(|| infrastructure.get(name)).await;
        Some(serde_json::to_value(found).unwrap())
    }

    fn infrastructure(&self) -> Api<DynamicObject> {
        self.api("infrastructure.cluster.x-k8s.io", "v1beta2", "VirtualMachine")
    }

    async fn set_memory(&self, memory: &str) {
        let body = Patch::Merge(json!({"metadata": {"annotations": {HAS: memory}}}));
        let (infrastructure, merge) = (self.infrastructure(), PatchParams::default());
        answered(|| infrastructure.patch("m-1", &merge, &body)).await;
    }
}

/// The answer of the API server, which a test may take away meanwhile.
async fn answered<T, F: Future<Output = kube::Result<T>>>(request: impl Fn() -> F) -> T {
    loop {
        match request().await {
            Ok(answer) => return answer,
            Err(kube::Error::Api(status)) if status.code == 503 => tokio::time::sleep(POLL).await,
            Err(error) => panic!("{error}"),
        }
    }
}
