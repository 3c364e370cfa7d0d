//! What is tested: the provider's kinds, and the machine that it updates.

use std::path::Path;

use anyhow::{Context as _, anyhow, bail};
use k8s_openapi::{
    api::rbac::v1::ClusterRole,
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api,
    api::{ApiResource, DynamicObject, PostParams},
    core::GroupVersionKind,
    discovery::{self, Scope},
};
use refit_cluster_api::kinds::{CORE_GROUP, Machine};
use refit_core::{
    change::{
        self,
        updaters::{accepted, hash_of_claimed},
        verify::{Verified, verified},
    },
    node::{ProviderOrder, provider_object},
};
use refit_kinds::{
    json, keys,
    refit::{
        ClaimId, Gate, Goal, MachineRef, NodeUpdate, NodeUpdateSpec, Origin, ProviderGoal,
        ProviderSpec, Role, Stage, Until, Updater, UpdaterTemplate,
    },
};
use refit_manifests::{LoadError, Manifest, typed};
use refit_predict::contract::{Definition, Look, Needed, NodeLook, Purpose, Verdict};
use serde_json::Value;

use super::{Test, preconditions, request::Retries};
use crate::{
    client::Cluster,
    plan::reader::{Reader, reason_of},
};

/// Label of every Machine of a control plane.
const CONTROL_PLANE: &str = "cluster.x-k8s.io/control-plane";
/// A uid that no Machine has.
const OTHER_UID: &str = "00000000-0000-4000-8000-000000000000";
/// What the objects are named after, without an Updater.
const NO_UPDATER: &str = "contract-test";

/// The objects of the file.
#[derive(Debug)]
pub(super) struct Input {
    template: Value,
    names: UpdaterTemplate,
    updater: Option<Updater>,
}

/// Reads the file with the template.
pub(super) fn load(file: &Path) -> anyhow::Result<Input> {
    let manifests = refit_manifests::load(&[file])?;
    let of_kind = |ending: fn(&str) -> bool| {
        manifests.iter().filter(move |manifest| ending(json::kind(&manifest.object)))
    };
    let templates: Vec<&Manifest> = of_kind(|kind| kind.ends_with("Template")).collect();
    let [template] = templates.as_slice() else {
        let found = templates.len();
        bail!(
            "{} has {found} objects whose kind ends in Template, want exactly one, such as \
             MemoryUpdateTemplate",
            file.display()
        );
    };
    let names = UpdaterTemplate {
        api_version: json::text(&template.object, "/apiVersion").to_owned(),
        kind: json::kind(&template.object).to_owned(),
        name: json::name(&template.object).to_owned(),
    };
    let mut updater = None;
    for manifest in of_kind(|kind| kind == "Updater") {
        LoadError::unless_empty(typed::<Updater>(manifest, ""))?;
        let read: Updater =
            serde_json::from_value(manifest.object.clone()).with_context(|| manifest.title())?;
        if let Err(why) = accepted(&read) {
            bail!("{}: {}: {why}", file.display(), manifest.title());
        }
        if read.spec.template.as_ref() != Some(&names) {
            let names = format!("{} {} {}", names.api_version, names.kind, names.name);
            bail!(
                "{}: {}: spec.template does not name the template of the file, {names}",
                file.display(),
                manifest.title()
            );
        }
        if updater.replace(read).is_some() {
            bail!("{} has more than one Updater, want one at most", file.display());
        }
    }
    Ok(Input { template: template.object.clone(), names, updater })
}

impl Input {
    /// The namespace of the machine, unless the command line has one. The template is not stored.
    pub(super) fn namespace(&self) -> &str {
        json::namespace(&self.template)
    }
}

/// A provider, and the machine that it updates.
pub(super) struct Subject {
    input: Input,
    /// How the API server serves the kind that is made.
    pub(super) made: ApiResource,
    template: ApiResource,
    scopes: Result<(), String>,
    pub(super) machine: Machine,
    goal: ProviderGoal,
}

impl Subject {
    /// Reads what the API server has of the file's kinds, and the machine.
    pub(super) async fn read(
        reader: &mut Reader,
        input: Input,
        args: &Test,
    ) -> anyhow::Result<Self> {
        let (template, template_scope) =
            served(&reader.cluster, &input.names, &input.names.kind).await?;
        let (made, made_scope) =
            served(&reader.cluster, &input.names, input.names.made_kind()).await?;
        let cluster_scoped = [(&template.kind, template_scope), (&made.kind, made_scope)];
        let cluster_scoped = cluster_scoped.into_iter().find(|(_, scope)| *scope == Scope::Cluster);
        let scopes = match cluster_scoped {
            Some((kind, _)) => Err(format!(
                "objects of {kind} have no namespace: set spec.scope of its \
                 definition to Namespaced"
            )),
            None => Ok(()),
        };
        let machine = preconditions::idle_machine(reader, &args.machine).await?;
        let mut subject =
            Self { input, made, template, scopes, machine, goal: ProviderGoal::default() };
        subject.goal = subject.find_goal(reader, args).await?;
        Ok(subject)
    }

    /// What Refit would ask the provider for.
    async fn find_goal(&self, reader: &mut Reader, args: &Test) -> anyhow::Result<ProviderGoal> {
        let brings_version = match self.updater_part() {
            Some(part) => part.brings_version(),
            None => args.to.is_some(),
        };
        if let (false, Some(to)) = (brings_version, &args.to) {
            bail!(
                "--to {to} is for a provider that brings machines to versions; the Updater does not \
                 claim /spec/version of Machine"
            );
        }
        let is_control_plane = self
            .machine
            .metadata
            .labels
            .as_ref()
            .is_some_and(|all| all.contains_key(CONTROL_PLANE));
        let by_label = if is_control_plane { Role::ControlPlane } else { Role::Worker };
        let of_machine = || {
            let stated = self.machine.spec.version.to_string();
            stated.parse().map_err(|error| {
                anyhow!("spec.version of Machine {}: {error}; set --to", args.machine)
            })
        };
        let version = match &args.to {
            Some(version) => Some(version.clone()),
            None if brings_version => Some(of_machine()?),
            None => None,
        };
        let objects = self.objects(reader).await?;
        let objects: Vec<&Value> = objects.iter().collect();
        let hash = self.input.updater.as_ref();
        let hash = hash.and_then(|updater| hash_of_claimed(updater, &objects)).unwrap_or_default();
        Ok(ProviderGoal {
            kubernetes_version: version,
            role: brings_version.then(|| args.role.map_or(by_label, Role::from)),
            option: None,
            hash,
        })
    }

    fn updater_part(&self) -> Option<refit_kinds::refit::UpdatePart> {
        match accepted(self.input.updater.as_ref()?).ok()? {
            change::Updater::Added(added) => Some(added.part),
            change::Updater::Kubeadm | change::Updater::Configuration(_) => None,
        }
    }

    /// The Machine, its infrastructure machine and its bootstrap config, as they are now.
    async fn objects(&self, reader: &mut Reader) -> anyhow::Result<[Value; 3]> {
        let name = self.machine.metadata.name.as_deref().unwrap_or_default();
        let found = reader.follow(CORE_GROUP, "Machine", name).await?;
        let machine = found.with_context(|| format!("Machine {name} is gone"))?;
        let mut named = async |reference: &str| {
            let text = |member: &str| json::text(&machine, &format!("{reference}/{member}"));
            let found = reader.follow(text("apiGroup"), text("kind"), text("name")).await?;
            anyhow::Ok(found.unwrap_or_default())
        };
        let infrastructure = named("/spec/infrastructureRef").await?;
        let bootstrap = named("/spec/bootstrap/configRef").await?;
        Ok([machine, infrastructure, bootstrap])
    }

    /// What the API server has about the kinds.
    pub(super) async fn definition(&self, cluster: &Cluster) -> anyhow::Result<Definition> {
        let name = format!("{}.{}", self.made.plural, self.made.group);
        let definitions: Api<CustomResourceDefinition> = Api::all(cluster.client.clone());
        let made = definitions.get(&name).await.map_err(|error| reason_of(&error));
        let made =
            made.and_then(|crd| serde_json::to_value(crd).map_err(|error| error.to_string()));
        let selector = format!("{}=true", keys::AGGREGATE_TO_CONTROLLER);
        let roles: Api<ClusterRole> = Api::all(cluster.client.clone());
        let roles = cluster.list(&roles, &selector).await.map_err(|error| format!("{error:#}"));
        let roles = roles.map(|roles| roles.iter().map(|role| serde_json::json!(role)).collect());
        Ok(Definition {
            made,
            group: self.made.group.clone(),
            version: self.made.version.clone(),
            scopes: self.scopes.clone(),
            template: self.admit_template(cluster).await?,
            needed: [
                Needed { resource: self.template.plural.clone(), verbs: &["get"] },
                Needed {
                    resource: self.made.plural.clone(),
                    verbs: &["get", "list", "watch", "create", "patch"],
                },
            ],
            roles,
        })
    }

    /// Whether the API server admits the template. Nothing is stored.
    async fn admit_template(&self, cluster: &Cluster) -> anyhow::Result<Verdict> {
        if self.scopes.is_err() {
            return Ok(Verdict::NotTested("it has no namespace".to_owned()));
        }
        let api: Api<DynamicObject> =
            Api::namespaced_with(cluster.client.clone(), &cluster.namespace, &self.template);
        let mut object: DynamicObject = serde_json::from_value(self.input.template.clone())?;
        // A stored template has its name; another one is admitted as it would be.
        object.metadata.name = None;
        object.metadata.generate_name = Some("contract-test-".to_owned());
        object.metadata.namespace = Some(cluster.namespace.clone());
        let params = PostParams { dry_run: true, ..PostParams::default() };
        match api.create(&params, &object).await {
            Ok(_) => Ok(Verdict::Kept),
            Err(kube::Error::Api(status)) => Ok(match status.code {
                400 | 422 => Verdict::Broken(status.message),
                // Also a webhook that refuses it, or that does not support dry runs.
                _ => Verdict::NotTested(status.message),
            }),
            Err(error) => Err(anyhow!("cannot reach {}: {error}", cluster.url)),
        }
    }

    /// The object of a run, with the first gate open.
    pub(super) fn first_object(&self, purpose: Purpose) -> anyhow::Result<DynamicObject> {
        let metadata = &self.machine.metadata;
        let name = metadata.name.clone().unwrap_or_default();
        let uid = match purpose {
            Purpose::OtherMachine => OTHER_UID.into(),
            Purpose::AbortAtStage
            | Purpose::AbortAtUpgrade
            | Purpose::Delete
            | Purpose::Update
            | Purpose::Repeat => refit_kinds::refit::MachineUid::of(metadata),
        };
        let machine_ref = MachineRef { name: name.clone(), uid };
        let node = self.machine.status.as_ref().and_then(|status| status.node_ref.as_ref());
        let order = ProviderOrder {
            updater: self.updater_name(),
            returned_claim: ClaimId::default(),
            spec: ProviderSpec {
                machine_ref: machine_ref.clone(),
                node_name: node.map(|node| node.name.as_str().into()).unwrap_or_default(),
                goal: self.goal.clone(),
                stage: Stage::Ongoing,
                gate: Gate::Stage,
            },
        };
        let update = NodeUpdate::new(
            &format!("contract-test-{name}-{purpose}"),
            NodeUpdateSpec {
                stage: Stage::Ongoing,
                until: Until::Disrupt,
                machine_ref,
                origin: Origin::Task,
                goal: Goal::default(),
                goal_hash: String::new(),
                parts: None,
                bundle: None,
            },
        );
        let made = provider_object(&update, &self.input.names, &self.input.template, &order);
        let mut made: DynamicObject = serde_json::from_value(made)?;
        // No NodeUpdate asks for it, so none deletes it.
        made.metadata.owner_references = None;
        made.metadata.namespace.clone_from(&metadata.namespace);
        Ok(made)
    }

    fn updater_name(&self) -> String {
        let name = self.input.updater.as_ref().and_then(|updater| updater.metadata.name.clone());
        name.unwrap_or_else(|| NO_UPDATER.to_owned())
    }

    /// How long a step may take, if the Updater limits it, in seconds.
    pub(super) fn timeout_seconds(&self) -> Option<u64> {
        u64::try_from(self.input.updater.as_ref()?.spec.timeout_seconds).ok()
    }

    /// The version that the node must have at the end.
    pub(super) fn version(&self) -> Option<String> {
        self.goal.kubernetes_version.as_ref().map(ToString::to_string)
    }

    /// The machine as it is now. With `retries`, the Node is one that can be read.
    pub(super) async fn look(
        &self,
        reader: &mut Reader,
        retries: Option<Retries>,
    ) -> anyhow::Result<Look> {
        let [machine, infrastructure, _] = self.objects(reader).await?;
        let node = self.node(reader, retries).await;
        let expressions = self.input.updater.as_ref().map(|updater| updater.spec.verify.as_slice());
        let expressions = expressions.filter(|all| !all.is_empty());
        let part = |pointer: &str| infrastructure.pointer(pointer).cloned().unwrap_or(Value::Null);
        let shown = serde_json::json!({
            "spec": part("/spec"),
            "annotations": part("/metadata/annotations"),
            "labels": part("/metadata/labels"),
        });
        let seen = Verified {
            machine,
            infrastructure_machine: infrastructure,
            node: node.clone().unwrap_or(Value::Null),
        };
        Ok(Look {
            verified: expressions.map(|expressions| verified(expressions, &seen)),
            node: node.map(|node| NodeLook {
                kubelet_version: json::text(&node, "/status/nodeInfo/kubeletVersion").to_owned(),
                boot_id: json::text(&node, "/status/nodeInfo/bootID").to_owned(),
                unschedulable: json::flag(&node, "/spec/unschedulable"),
                ready: json::is_true(&node, "Ready"),
            }),
            infrastructure: shown,
        })
    }

    /// The machine's Node, or why it cannot be read.
    async fn node(&self, reader: &Reader, retries: Option<Retries>) -> Result<Value, String> {
        let node = self.machine.status.as_ref().and_then(|status| status.node_ref.as_ref());
        let node = node.ok_or("the Machine has no Node")?;
        let client = reader.workload(&self.machine.spec.cluster_name).await?;
        let client = retries.map_or(client.clone(), |retries| retries.client(&client));
        let nodes: Api<k8s_openapi::api::core::v1::Node> = Api::all(client);
        let found = nodes.get(&node.name).await.map_err(|error| reason_of(&error))?;
        serde_json::to_value(found).map_err(|error| error.to_string())
    }
}

async fn served(
    cluster: &Cluster,
    names: &UpdaterTemplate,
    kind: &str,
) -> anyhow::Result<(ApiResource, Scope)> {
    let api_version = &names.api_version;
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let kind = GroupVersionKind::gvk(group, version, kind);
    match discovery::pinned_kind(&cluster.client, &kind).await {
        Ok((resource, capabilities)) => Ok((resource, capabilities.scope)),
        Err(kube::Error::Api(status)) if status.code != 404 => {
            Err(anyhow!("cannot look up {api_version} at {}: {}", cluster.url, status.message))
        }
        Err(kube::Error::Api(_) | kube::Error::Discovery(_)) => bail!(
            "{} does not serve kind {} of {api_version}: apply the provider's \
             CustomResourceDefinitions first",
            cluster.url,
            kind.kind
        ),
        Err(error) => Err(anyhow!("cannot reach {}: {error}", cluster.url)),
    }
}
