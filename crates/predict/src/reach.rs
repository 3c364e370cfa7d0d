//! Whether Cluster API calls Refit's hooks for a group of machines.
//!
//! If it does not, a new version replaces machines instead of updating them, so users must know
//! before they set one.

use std::collections::BTreeMap;

use kube::core::{Expression, Selector, SelectorExt as _};
use refit_cluster_api::{
    IntOrPercent,
    kinds::ExtensionConfig,
    rollout::{Strategy, predict},
};
use refit_kinds::{
    conditions,
    json::{annotations, kind, name, namespace, text},
    keys,
    refit::Owner,
};
use serde_json::Value;

use super::{
    managers::{Manager, Provider, first_version},
    unreached::Unreached,
};

/// Name of Refit's ExtensionConfig.
pub const EXTENSION: &str = "refit";
/// The hooks that Refit must serve.
pub(crate) const HOOKS: [&str; 3] = ["CanUpdateMachine", "CanUpdateMachineSet", "UpdateMachine"];

/// Data that was read, or the reason why it could not be.
#[derive(Clone, Debug, PartialEq)]
pub enum Read<T> {
    /// The data.
    Known(T),
    /// Why the data could not be read, as a sentence without a full stop.
    Unknown(String),
}

/// Identifies a group of machines.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GroupRef {
    /// `KubeadmControlPlane`, `MachineDeployment`, `MachineSet`, or a kind that Refit does not
    /// serve.
    pub kind: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl GroupRef {
    /// The type of the group's owner; `None` for a kind that Refit does not serve.
    pub fn owner(&self) -> Option<Owner> {
        Owner::of_kind(&self.kind)
    }
}

impl std::fmt::Display for GroupRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}/{}", self.kind, self.namespace, self.name)
    }
}

/// How a group rolls out a change: some strategies never call a hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shape {
    /// A control plane.
    ControlPlane {
        /// `spec.replicas`.
        replicas: i64,
        /// `spec.rollout.strategy.rollingUpdate.maxSurge`, default 1.
        max_surge: i64,
    },
    /// A MachineDeployment.
    Deployment {
        /// `spec.replicas`.
        replicas: i64,
        /// `spec.rollout.strategy`.
        strategy: Strategy,
    },
    /// A MachineSet that no MachineDeployment owns.
    LoneSet,
    /// A kind that Refit does not evaluate.
    Unknown,
}

/// The fields of an ExtensionConfig that decide which hooks are called.
#[derive(Clone, Debug, PartialEq)]
pub struct Extension {
    /// Its name.
    pub name: String,
    /// Selects the namespaces for which its hooks are called; absent selects none. An error if the
    /// selector is invalid.
    pub selector: Result<Option<Selector>, String>,
    /// Hooks that Cluster API discovered.
    pub hooks: Vec<String>,
    /// `True`, `False` or `Unknown`, with the message; `None` before the first discovery.
    pub discovered: Option<(String, String)>,
    /// Whether the condition is about the current generation of the ExtensionConfig.
    pub current: bool,
    /// Whether the CA bundle is set.
    pub has_ca_bundle: bool,
    /// Whether annotation `cluster.x-k8s.io/paused` is set.
    pub paused: bool,
}

impl Extension {
    /// An extension that serves all of Refit's hooks in every namespace: for predictions without a
    /// cluster.
    pub fn assumed() -> Self {
        Self {
            name: EXTENSION.to_owned(),
            selector: Ok(Some(Selector::default())),
            hooks: HOOKS.map(str::to_owned).to_vec(),
            discovered: Some(("True".to_owned(), String::new())),
            current: true,
            has_ca_bundle: true,
            paused: false,
        }
    }

    /// Whether its hooks are called for objects in a namespace with these labels.
    fn selects(&self, labels: &BTreeMap<String, String>) -> bool {
        matches!(&self.selector, Ok(Some(selector)) if selector.matches(labels))
    }

    /// Reads the relevant fields of an ExtensionConfig.
    pub fn of(config: &ExtensionConfig) -> Self {
        let status = config.status.clone().unwrap_or_default();
        let condition = conditions::get(&status.conditions, "Discovered");
        let bundle = config.spec.client_config.ca_bundle.as_deref();
        let annotations = config.metadata.annotations.as_ref();
        Self {
            name: config.metadata.name.clone().unwrap_or_default(),
            selector: config
                .spec
                .namespace_selector
                .clone()
                .map(Selector::try_from)
                .transpose()
                .map_err(|error| error.to_string()),
            hooks: status
                .handlers
                .iter()
                .map(|handler| handler.request_hook.hook.clone())
                .collect(),
            discovered: condition.map(|c| (c.status.clone(), c.message.clone())),
            current: condition.is_some_and(|condition| {
                // An older writer may omit the generation; the condition then counts as current.
                condition
                    .observed_generation
                    .is_none_or(|seen| Some(seen) == config.metadata.generation)
            }),
            has_ca_bundle: bundle.is_some_and(|bundle| !bundle.is_empty()),
            paused: annotations.is_some_and(|all| all.contains_key(keys::PAUSED)),
        }
    }
}

/// Everything that decides whether Refit's hooks are called for a group.
#[derive(Clone, Debug, PartialEq)]
pub struct Reach {
    /// The group.
    pub group: GroupRef,
    /// Its rollout strategy.
    pub shape: Shape,
    /// Kind and name of the paused object: the Cluster or the group itself.
    pub paused: Option<String>,
    /// Kind and name of the object with `refit.dev/in-place: Disabled`: the group or its Cluster.
    pub disabled: Option<String>,
    /// Kind of the bootstrap config, if known.
    pub bootstrap_kind: Option<String>,
    /// All ExtensionConfigs.
    pub extensions: Read<Vec<Extension>>,
    /// Labels of the group's namespace.
    pub namespace_labels: Read<BTreeMap<String, String>>,
    /// Cluster API's managers; empty if their Deployments were not found.
    pub managers: Read<Vec<Manager>>,
}

impl Reach {
    /// Collects the facts of a group from its desired owner, its Cluster and related objects.
    pub fn of(
        owner: &Value,
        cluster: Option<&Value>,
        extensions: Read<Vec<Extension>>,
        namespace_labels: Read<BTreeMap<String, String>>,
        managers: Read<Vec<Manager>>,
    ) -> Self {
        let title = |object: &Value| format!("{} {}", kind(object), name(object));
        let of_owner = annotations(owner);
        let disabled = match of_owner.get(keys::IN_PLACE) {
            Some(value) => (value == "Disabled").then(|| title(owner)),
            None => cluster
                .filter(|cluster| {
                    annotations(cluster).get(keys::IN_PLACE).map(String::as_str) == Some("Disabled")
                })
                .map(title),
        };
        // Refit lets Cluster API go on with what it has paused itself, as soon as nothing would be replaced unexpectedly.
        let is_held = of_owner.get(keys::PAUSED).is_some_and(|value| value == keys::HELD);
        let paused = cluster
            .filter(|cluster| is_paused(cluster))
            .or(Some(owner).filter(|owner| is_paused(owner) && !is_held))
            .map(title);
        let config = text(owner, "/spec/template/spec/bootstrap/configRef/kind");
        Self {
            group: GroupRef::of(owner),
            shape: Shape::of(owner),
            paused,
            disabled,
            bootstrap_kind: (!config.is_empty()).then(|| config.to_owned()),
            extensions,
            namespace_labels,
            managers,
        }
    }
}

/// Whether Cluster API leaves a Cluster or an owner alone.
pub(super) fn is_paused(object: &Value) -> bool {
    object.pointer("/spec/paused") == Some(&Value::Bool(true))
        || annotations(object).contains_key(keys::PAUSED)
}

impl GroupRef {
    /// Identifies an object.
    pub fn of(object: &Value) -> Self {
        Self {
            kind: kind(object).to_owned(),
            namespace: namespace(object).to_owned(),
            name: name(object).to_owned(),
        }
    }
}

impl Shape {
    /// Reads the rollout strategy of a group, with Cluster API's defaults.
    pub fn of(owner: &Value) -> Self {
        let replicas = owner.pointer("/spec/replicas").and_then(Value::as_i64).unwrap_or(1);
        // A value that Cluster API's webhooks would reject counts as not set.
        let default = || Strategy::rolling_update(IntOrPercent::Int(1), IntOrPercent::Int(0));
        let strategy = Strategy::of(owner).unwrap_or_else(|_| default());
        match Owner::of_kind(kind(owner)) {
            Some(Owner::ControlPlane) => {
                Self::ControlPlane { replicas, max_surge: strategy.fenceposts(replicas).surge }
            }
            Some(Owner::Deployment) => Self::Deployment { replicas, strategy },
            Some(Owner::Set) => Self::LoneSet,
            None => Self::Unknown,
        }
    }
}

/// Whether Cluster API calls Refit's hooks for the group. Unreadable facts about Cluster API's
/// managers do not count as a failure: see [`notes`].
pub fn reach(facts: &Reach) -> Result<(), Unreached> {
    served(facts)?;
    asked(facts)?;
    let known = |why: &String| Unreached::NotKnown { group: facts.group.clone(), why: why.clone() };
    let extensions = match &facts.extensions {
        Read::Known(extensions) => extensions,
        Read::Unknown(why) => return Err(known(why)),
    };
    let refit = extensions
        .iter()
        .find(|extension| extension.name == EXTENSION)
        .ok_or(Unreached::NotInstalled)?;
    if let Read::Known(managers) = &facts.managers {
        managers_do(managers, &facts.group)?;
    }
    discovered(refit)?;
    let invalid = |error: &String| Unreached::InvalidSelector { error: error.clone() };
    let selector = refit.selector.as_ref().map_err(invalid)?.as_ref();
    let labels = match &facts.namespace_labels {
        Read::Known(labels) => labels,
        Read::Unknown(_) if selector.is_some_and(Selector::selects_all) => &BTreeMap::new(),
        Read::Unknown(why) => return Err(known(why)),
    };
    selected(selector, labels, &facts.group.namespace)?;
    alone(refit, extensions, labels, &facts.group.namespace)
}

/// Facts that [`reach`] could not check, as sentences for the user.
pub fn notes(facts: &Reach) -> Vec<String> {
    let unknown = |why: &str| {
        format!(
            "{why}: only ExtensionConfig refit shows that Cluster API is v1.12 or newer and has \
             the feature gates RuntimeSDK and InPlaceUpdates"
        )
    };
    match &facts.managers {
        Read::Unknown(why) => vec![unknown(why)],
        Read::Known(managers) if managers.is_empty() => {
            vec![unknown(
                "no Deployment of Cluster API with the label cluster.x-k8s.io/provider found",
            )]
        }
        Read::Known(managers) => managers
            .iter()
            .filter(|manager| manager.version.is_none())
            .map(|manager| {
                format!(
                    "the version of {} is unknown: its image is {:?}",
                    manager.deployment, manager.image
                )
            })
            .collect(),
    }
}

/// Whether the kind has hooks, and neither a pause nor an annotation disables them.
fn served(facts: &Reach) -> Result<(), Unreached> {
    let group = || facts.group.clone();
    match facts.group.owner() {
        Some(Owner::ControlPlane | Owner::Deployment) => {}
        Some(Owner::Set) => return Err(Unreached::LoneSet { group: group() }),
        None => return Err(Unreached::Kind { group: group() }),
    }
    let kind = facts.bootstrap_kind.as_deref().unwrap_or("KubeadmConfig");
    if !matches!(kind, "KubeadmConfig" | "KubeadmConfigTemplate") {
        return Err(Unreached::Bootstrap { group: group(), kind: kind.to_owned() });
    }
    if let Some(object) = &facts.disabled {
        return Err(Unreached::Disabled { group: group(), object: object.clone() });
    }
    if let Some(object) = &facts.paused {
        return Err(Unreached::Paused { group: group(), object: object.clone() });
    }
    Ok(())
}

/// Whether the group's strategy calls a hook for any of its machines
/// (`docs/facts/control-plane.md#rollout` and
/// `docs/facts/machine-deployment.md#surge-and-in-place-updates`).
fn asked(facts: &Reach) -> Result<(), Unreached> {
    let only_surge = |replicas: i64, max_surge: String, remedy| Unreached::OnlySurge {
        group: facts.group.clone(),
        replicas,
        max_surge,
        remedy,
    };
    match &facts.shape {
        Shape::Unknown => Ok(()),
        Shape::LoneSet => Err(Unreached::LoneSet { group: facts.group.clone() }),
        Shape::ControlPlane { replicas, max_surge } => {
            if *replicas < 1 || predict::control_plane(*replicas, *max_surge).kept > 0 {
                return Ok(());
            }
            let remedy = "annotate it or its Cluster with refit.dev/single-replica=InPlace: Cluster API itself never \
                updates the only machine of a control plane in place";
            Err(only_surge(*replicas, max_surge.to_string(), remedy))
        }
        Shape::Deployment { strategy: Strategy::OnDelete, .. } => {
            Err(Unreached::OnDelete { group: facts.group.clone() })
        }
        Shape::Deployment {
            replicas,
            strategy: strategy @ Strategy::RollingUpdate { max_surge, .. },
        } => {
            if *replicas < 1 || predict::machine_deployment(*replicas, strategy).kept > 0 {
                return Ok(());
            }
            let remedy =
                "set spec.rollout.strategy.rollingUpdate to maxSurge 0 and maxUnavailable 1";
            Err(only_surge(*replicas, max_surge.to_string(), remedy))
        }
    }
}

/// Whether the group's managers are new enough and have their feature gates on.
fn managers_do(managers: &[Manager], group: &GroupRef) -> Result<(), Unreached> {
    let needed = |manager: &&Manager| {
        manager.provider == Provider::Core || group.owner() == Some(Owner::ControlPlane)
    };
    for manager in managers.iter().filter(needed) {
        if let Some(version) = &manager.version
            && version.minor_below(&first_version())
        {
            return Err(Unreached::TooOld {
                deployment: manager.deployment.clone(),
                version: version.clone(),
            });
        }
        for gate in manager.provider.gates() {
            if !manager.gate(gate) {
                return Err(Unreached::GateOff { deployment: manager.deployment.clone(), gate });
            }
        }
    }
    Ok(())
}

/// Whether Cluster API has discovered Refit's hooks.
fn discovered(refit: &Extension) -> Result<(), Unreached> {
    if refit.paused {
        return Err(Unreached::ExtensionPaused);
    }
    match &refit.discovered {
        None => return Err(Unreached::NotDiscoveredYet),
        Some((status, message)) if status != "True" => {
            return Err(Unreached::DiscoveryFailed { message: message.clone() });
        }
        Some(_) if !refit.current => return Err(Unreached::NotDiscoveredYet),
        Some(_) => {}
    }
    if let Some(hook) = HOOKS.iter().find(|hook| !refit.hooks.iter().any(|known| known == *hook)) {
        return Err(Unreached::HookMissing { hook });
    }
    if !refit.has_ca_bundle {
        return Err(Unreached::NoCaBundle);
    }
    Ok(())
}

fn selected(
    selector: Option<&Selector>,
    labels: &BTreeMap<String, String>,
    namespace: &str,
) -> Result<(), Unreached> {
    if selector.is_some_and(|selector| selector.matches(labels)) {
        return Ok(());
    }
    let equal =
        |wanted: Expression| matches!(wanted, Expression::Equal(..)).then(|| wanted.to_string());
    let pairs: Option<Vec<String>> =
        selector.and_then(|selector| selector.clone().into_iter().map(equal).collect());
    Err(Unreached::NotSelected {
        namespace: namespace.to_owned(),
        selector: selector
            .map_or_else(|| "none, which matches no namespace".to_owned(), Selector::to_string),
        remedy: match pairs {
            Some(pairs) => {
                format!("opt it in with: kubectl label namespace {namespace} {}", pairs.join(" "))
            }
            None => "change the namespace's labels or the selector".to_owned(),
        },
    })
}

/// Whether no other extension serves one of Refit's hooks in this namespace.
fn alone(
    refit: &Extension,
    all: &[Extension],
    labels: &BTreeMap<String, String>,
    namespace: &str,
) -> Result<(), Unreached> {
    for other in all.iter().filter(|other| other.name != refit.name) {
        if !other.selects(labels) {
            continue;
        }
        if let Some(hook) = other.hooks.iter().find(|h| HOOKS.contains(&h.as_str())) {
            return Err(Unreached::Shared {
                other: other.name.clone(),
                hook: hook.clone(),
                namespace: namespace.to_owned(),
            });
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "reach_tests.rs"]
mod tests;
