//! A provider that brings machines to versions (`docs/contract/`): it stands for the tool of a vendor that upgrades
//! nodes without Refit's agent. On simulated hosts it runs the commands that the agent would run.
//!
//! Its kinds are VersionUpdateTemplate and VersionUpdate of `versions.example/v1`; a script brings their
//! definitions.

use std::{sync::Arc, time::Duration};

use futures::StreamExt as _;
use jiff::Timestamp;
use kube::{
    Api, Client, Resource as _, ResourceExt as _,
    api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams},
    runtime::{Controller, controller::Action, watcher},
};
use lab_simhost::SimHost;
use refit_agent::host::{Evidence, Host as _, HostError, Job, Since, UnitState};
use refit_cluster_api::kinds::Machine;
use refit_kinds::{
    refit::{
        Gate, HostStep, KubeadmArgs, KubeletArgs, PackageArgs, ProviderProgress, ProviderSpec,
        ProviderStatus, Role, Stage,
    },
    version::KubernetesVersion,
};
use serde_json::{Value, json};

/// When to look again at what is under way, and after an error.
const AGAIN: Duration = Duration::from_secs(5);

/// Finds a host by its key, `namespace/cluster/node`.
type HostOf = Arc<dyn Fn(&str) -> Option<SimHost> + Send + Sync>;

struct Provider {
    client: Client,
    host_of: HostOf,
}

/// Why it does not get on.
#[derive(Debug, thiserror::Error)]
enum Trouble {
    #[error(transparent)]
    Api(#[from] kube::Error),
    #[error(transparent)]
    Host(#[from] HostError),
    #[error("step {step} failed: {output}")]
    Step { step: &'static str, output: String },
    #[error("{0}")]
    NotThere(String),
}

/// Runs the provider until the future is dropped.
pub(crate) async fn run(client: Client, host_of: HostOf) {
    let kind =
        ApiResource::from_gvk(&GroupVersionKind::gvk("versions.example", "v1", "VersionUpdate"));
    let updates: Api<DynamicObject> = Api::all_with(client.clone(), &kind);
    let provider = Arc::new(Provider { client, host_of });
    let on_error =
        |_: Arc<DynamicObject>, _: &kube::Error, _: Arc<Provider>| Action::requeue(AGAIN);
    let controller = Controller::new_with(updates, watcher::Config::default(), kind.clone());
    let reconcile = move |update, provider| reconcile(update, provider, kind.clone());
    controller.run(reconcile, on_error, provider).for_each(|_| async {}).await;
}

/// Does the next step of one update, and reports where it is.
async fn reconcile(
    update: Arc<DynamicObject>,
    provider: Arc<Provider>,
    kind: ApiResource,
) -> Result<Action, kube::Error> {
    let read = |field: &str| update.data.get(field).cloned().unwrap_or(Value::Null);
    let Ok(spec) = serde_json::from_value::<ProviderSpec>(read("spec")) else {
        return Ok(Action::await_change());
    };
    let before: ProviderStatus = serde_json::from_value(read("status")).unwrap_or_default();
    let mut status = ProviderStatus {
        observed_generation: update.metadata.generation,
        failure_reason: String::new(),
        failure_message: String::new(),
        retriable: false,
        ..before.clone()
    };
    let (message, action) = match provider.step(&update, &spec, &mut status).await {
        Ok(None) => (String::new(), Action::await_change()),
        Ok(Some(step)) => (step.to_owned(), Action::requeue(AGAIN)),
        Err(trouble) => {
            status = ProviderStatus {
                failure_reason: "NotDone".to_owned(),
                failure_message: trouble.to_string(),
                retriable: true,
                ..status
            };
            (String::new(), Action::requeue(AGAIN))
        }
    };
    let percent = if status.ready { 100 } else { 0 };
    status.progress = Some(ProviderProgress { percent, message });
    if status != before {
        let namespace = update.namespace().unwrap_or_default();
        let api: Api<DynamicObject> =
            Api::namespaced_with(provider.client.clone(), &namespace, &kind);
        let mut body = json!({ "failureReason": null, "failureMessage": null });
        if let (Some(body), Value::Object(status)) = (body.as_object_mut(), json!(status)) {
            body.extend(status);
        }
        let body = Patch::Merge(json!({ "status": body }));
        api.patch_status(&update.name_any(), &PatchParams::default(), &body).await?;
    }
    Ok(action)
}

impl Provider {
    /// Goes on as far as the gate allows. Returns the step that is under way.
    async fn step(
        &self,
        update: &DynamicObject,
        spec: &ProviderSpec,
        status: &mut ProviderStatus,
    ) -> Result<Option<&'static str>, Trouble> {
        if status.ready {
            return Ok(None);
        }
        if spec.stage == Stage::Abort && !status.past_no_return {
            if status.passed >= Gate::Stage && spec.gate >= Gate::Upgrade {
                status.left_behind = vec!["kubeadm may have the new version".to_owned()];
            }
            status.ready = true;
            return Ok(None);
        }
        if spec.gate <= status.passed {
            return Ok(None);
        }
        let (Some(version), Some(role)) = (&spec.goal.kubernetes_version, spec.goal.role) else {
            return Err(Trouble::NotThere("the goal has no version, or no role".to_owned()));
        };
        // kubeadm changes a control plane for good, and only the last step a worker.
        let is_last = spec.gate == Gate::Disrupt || role != Role::Worker;
        if spec.gate >= Gate::Upgrade && is_last && !status.past_no_return {
            status.past_no_return = true;
            return Ok(Some("the first change that stays"));
        }
        let host = self.host(update, spec).await?;
        let boot_id = host.facts().await.boot_id;
        let since = Since { at: Timestamp::UNIX_EPOCH, boot_id };
        let plan = update.uid().unwrap_or_default();
        let gates = [Gate::Stage, Gate::Upgrade, Gate::Disrupt];
        for gate in gates.into_iter().filter(|gate| *gate <= spec.gate && *gate > status.passed) {
            for (step, command) in steps(gate, version, role) {
                let job = Job::new(plan.as_str(), &format!("{plan}-{step}"), step, command);
                if !is_done(&host, &job, &since, step).await? {
                    return Ok(Some(step));
                }
            }
        }
        status.passed = spec.gate;
        status.ready = spec.gate == Gate::Disrupt;
        Ok(None)
    }

    /// The host of the Machine, which must be the one that the update is for.
    async fn host(&self, update: &DynamicObject, spec: &ProviderSpec) -> Result<SimHost, Trouble> {
        let namespace = update.namespace().unwrap_or_default();
        let machines: Api<Machine> = Api::namespaced(self.client.clone(), &namespace);
        let found = machines.get_opt(&spec.machine_ref.name).await?;
        let is_own =
            |machine: &Machine| machine.meta().uid.as_deref() == Some(&*spec.machine_ref.uid);
        let machine = found.filter(is_own).ok_or_else(|| {
            Trouble::NotThere(format!("Machine {} is gone", spec.machine_ref.name))
        })?;
        let key = format!("{namespace}/{}/{}", machine.spec.cluster_name, spec.node_name);
        (self.host_of)(&key).ok_or_else(|| Trouble::NotThere(format!("host {key} is gone")))
    }
}

/// Whether a step is done; otherwise it is started, unless it runs.
async fn is_done(
    host: &SimHost,
    job: &Job,
    since: &Since,
    step: &'static str,
) -> Result<bool, Trouble> {
    // Staged packages are not visible on a host.
    let shows = step != "stage" && host.look(job, since).await? == Evidence::Done;
    match host.poll(&job.unit).await? {
        UnitState::Running => Ok(false),
        UnitState::Exited { code: 0, .. } => Ok(true),
        UnitState::Exited { output_tail, .. } => Err(Trouble::Step { step, output: output_tail }),
        UnitState::Unknown if shows => Ok(true),
        UnitState::Unknown => {
            host.start(job).await?;
            Ok(false)
        }
    }
}

/// What is done up to a gate.
fn steps(gate: Gate, version: &KubernetesVersion, role: Role) -> Vec<(&'static str, HostStep)> {
    let version = || version.clone();
    let packages = PackageArgs::default;
    match gate {
        Gate::Closed => Vec::new(),
        Gate::Stage => {
            let stage = HostStep::Stage {
                version: version(),
                packages: packages(),
                images: None,
                bundle: None,
            };
            vec![("stage", stage)]
        }
        Gate::Upgrade => {
            let install = HostStep::KubeadmInstall { version: version(), packages: packages() };
            let kubeadm = HostStep::KubeadmUpgrade {
                version: version(),
                role,
                kubeadm: KubeadmArgs::default(),
            };
            vec![("kubeadm-install", install), ("kubeadm-upgrade", kubeadm)]
        }
        Gate::Disrupt => {
            let kubelet = HostStep::KubeletInstall {
                version: version(),
                packages: packages(),
                kubelet: KubeletArgs::default(),
            };
            vec![("kubelet-install", kubelet), ("kubelet-restart", HostStep::KubeletRestart {})]
        }
    }
}
