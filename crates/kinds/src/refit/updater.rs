//! Updater: a way of updating machines in place that an operator adds.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector};
use kube::{CustomResource, KubeSchema};
use schemars::{JsonSchema, Schema};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{Owner, RebootChoice, host_step::one_member};

/// A way of updating machines in place, in addition to those that are built in: which changes it
/// claims, and what it does about them. The permission to write this kind decides which changes Cluster
/// API makes in place instead of replacing machines, in every namespace that opted in.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "refit.dev",
    version = "v1alpha1",
    kind = "Updater",
    doc = "A way of updating machines in place: which changes it claims, and what it does about them.",
    plural = "updaters",
    category = "refit",
    status = "UpdaterStatus",
    derive = "PartialEq",
    printcolumn(name = "Order", type_ = "integer", json_path = ".spec.order"),
    printcolumn(name = "Action", type_ = "string", json_path = ".spec.action"),
    printcolumn(name = "Kind", type_ = "string", json_path = ".spec.claims[0].kind"),
    printcolumn(name = "Disruption", type_ = "string", json_path = ".spec.disruption"),
    printcolumn(
        name = "Accepted",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Accepted\")].status"
    ),
    printcolumn(
        name = "Message",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Accepted\")].message",
        priority = 1
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[x_kube(validation = (
    "self.action == 'Leave' ? !has(self.hook) && !has(self.host) && !has(self.template) && !has(self.verify) && !has(self.disruption) : [has(self.hook), has(self.host), has(self.template)].filter(x, x).size() == 1 && has(self.disruption)",
    "action Update needs disruption and exactly one of hook, host and template; action Leave has none of hook, host, template, disruption and verify"
))]
#[x_kube(validation = (
    "!has(self.host) || !has(self.host.osImage) || self.disruption == 'Reboot' && !has(self.verify)",
    "host.osImage reboots the machine, and its agent verifies it: disruption is Reboot, and verify is empty"
))]
#[x_kube(validation = (
    "!has(self.host) || !has(self.host.osPackages) || self.disruption != 'None' && !has(self.verify)",
    "host.osPackages may restart services of the machine, and its agent verifies it: disruption is Restart, Drain or Reboot, and verify is empty"
))]
#[x_kube(validation = (
    "!has(self.template) || self.disruption == 'Drain' || self.disruption == 'Reboot'",
    "a provider works on a drained machine: with template, disruption is Drain or Reboot"
))]
#[x_kube(validation = (
    "self.action != 'Leave' || self.claims.all(c, c.kind != 'Machine')",
    "action Leave cannot claim fields of Machine: its version and failure domain must be true"
))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct UpdaterSpec {
    /// Lower first, then by name. Built-in updaters come before all others.
    #[serde(default = "default_order")]
    #[schemars(range(min = 0, max = 1000))]
    pub order: i32,
    /// The machines that it is for; absent: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<UpdaterSelector>,
    /// The changes that it claims.
    #[schemars(length(min = 1, max = 16))]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["group", "kind"]))]
    pub claims: Vec<ObjectClaim>,
    /// What it does about them.
    pub action: UpdaterAction,
    /// How the update disturbs the machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disruption: Option<Disruption>,
    /// The server that makes the changes. It speaks Cluster API's hooks for in-place updates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hook: Option<UpdaterHook>,
    /// Steps of the agent on the host that make the changes. Who may write an Updater with `host` is root
    /// on the hosts that it is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<UpdaterHost>,
    /// The template of a provider, which makes the changes: Refit makes an object from it for each update of a
    /// machine (docs/contract/).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<UpdaterTemplate>,
    /// CEL expressions that are true once a machine has the changes: over `machine`,
    /// `infrastructureMachine` and `node`. Cluster API writes the desired spec before the update, so only
    /// a status proves anything. Without an expression the result is shown as unverified.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(min = 1, max = 1024)))]
    pub verify: Vec<String>,
    /// How long the change of one machine may take, in seconds, until its update fails.
    #[serde(default = "default_timeout")]
    #[schemars(range(min = 10, max = 604_800))]
    pub timeout_seconds: i32,
}

fn default_timeout() -> i32 {
    3600
}

/// How an update disturbs a machine, in order.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub enum Disruption {
    /// Not at all: it takes no slot of the group.
    None,
    /// What runs on the machine may be interrupted for a moment: it takes a slot, and pods stay.
    Restart,
    /// Pods must leave first.
    #[default]
    Drain,
    /// The machine reboots: pods must leave first.
    Reboot,
}

impl Disruption {
    /// Whether it takes a slot of the group: at least what runs on the machine is interrupted.
    pub fn takes_slot(self) -> bool {
        self > Self::None
    }

    /// Whether pods must leave first.
    pub fn drains(self) -> bool {
        self >= Self::Drain
    }

    /// Whether it is what counts where none is stated.
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
    pub(super) fn is_drain(&self) -> bool {
        *self == Self::Drain
    }
}

/// Steps of the agent on the host, with arguments from claimed fields: exactly one member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = one_way)]
pub enum UpdaterHost {
    /// Installs an OS image.
    OsImage(OsImageFrom),
    /// Installs packages of the operating system in place.
    OsPackages(OsPackagesFrom),
}

/// Shows the members of [`UpdaterHost`] as an object, whose rule has a message that names them.
fn one_way(schema: &mut Schema) {
    one_member(schema);
    schema.remove("minProperties");
    schema.remove("maxProperties");
    let rule = json!([{
        "rule": "has(self.osImage) != has(self.osPackages)",
        "message": "host has exactly one of osImage and osPackages",
    }]);
    schema.insert("x-kubernetes-validations".to_owned(), rule);
}

/// Where the arguments of an OS image are in a machine's objects. Every claimed path is one of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OsImageFrom {
    /// Path of the image's URL, such as `/spec/image/url`.
    #[schemars(length(max = 512), regex(pattern = "^/spec/"))]
    pub url_from: String,
    /// Path of the sha384 of the image's metadata.
    #[schemars(length(max = 512), regex(pattern = "^/spec/"))]
    pub checksum_from: String,
    /// Path of the name that the host reports once the image runs; absent: the file name in the URL,
    /// without its extension.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512), regex(pattern = "^/spec/"))]
    pub name_from: Option<String>,
    /// The image contains the kubelet of the Kubernetes version: no kubelet package is installed.
    #[serde(default)]
    pub brings_kubelet: bool,
}

/// Where packages of the operating system are in a machine's objects. The claims are exactly these paths, that of a list or an
/// object with `/**`: a field that is absent asks for nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "has(self.installFrom) || has(self.securityFrom)",
    "message": "osPackages asks for nothing: set installFrom, securityFrom or both",
}]))]
pub struct OsPackagesFrom {
    /// Path of the packages to install, such as `/spec/osPackages`: a list of objects with `name` and `version`, or an object
    /// with a version for each name. Versions are as in HostSettings: `6.12.*` is the newest one with that prefix.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512), regex(pattern = r"^/spec/[^*\[\]]+$"))]
    pub install_from: Option<String>,
    /// Path of a text or number that asks for all security updates, such as `/spec/patchLevel` with a date. Each update of the
    /// claimed fields installs those that the package sources of the host have then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512), regex(pattern = r"^/spec/[^*\[\]]+$"))]
    pub security_from: Option<String>,
    /// Further packages that keep their versions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128), inner(length(max = 128)))]
    pub exclude: Vec<String>,
    /// Whether the host boots if that is required afterwards.
    #[serde(default)]
    pub reboot: RebootChoice,
}

/// A server that speaks Cluster API's hooks for in-place updates.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct UpdaterHook {
    /// Where it serves: `https://host[:port][/base]`.
    #[schemars(length(max = 512), regex(pattern = "^https://[^/?#@]+(/[^?#@]*)?$"))]
    pub url: String,
    /// The authorities of its certificate: PEM, as base64.
    #[schemars(length(min = 1, max = 65_536))]
    pub ca_bundle: String,
}

/// The template of a provider, in the namespace of the machine. Its kind ends in `Template`; the kind without
/// that ending is the one that Refit makes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct UpdaterTemplate {
    /// API group and version, such as `update.example.com/v1`.
    #[schemars(length(max = 253), regex(pattern = "^[a-z0-9.-]+/v[a-z0-9]+$"))]
    pub api_version: String,
    /// Its kind, such as `FirmwareUpdateTemplate`.
    #[schemars(length(max = 63), regex(pattern = "^[A-Z][A-Za-z0-9]*Template$"))]
    pub kind: String,
    /// Its name.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

impl UpdaterTemplate {
    /// The kind that is made from it.
    pub fn made_kind(&self) -> &str {
        self.kind.strip_suffix("Template").unwrap_or(&self.kind)
    }
}

fn default_order() -> i32 {
    100
}

/// The machines that an Updater is for: those that match every member.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct UpdaterSelector {
    /// Labels of the machine's Cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_selector: Option<LabelSelector>,
    /// Kinds of the machine's owner; empty: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 3))]
    pub group_kinds: Vec<Owner>,
    /// Kinds of the infrastructure machine, such as `Metal3Machine`; empty: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub infrastructure_kinds: Vec<String>,
}

/// The changes that an Updater claims in one kind of object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ObjectClaim {
    /// API group of the machine's own object, such as `infrastructure.cluster.x-k8s.io`.
    #[schemars(length(min = 1, max = 253))]
    pub group: String,
    /// Its kind, such as `Metal3Machine`. The template that makes it counts as well.
    #[schemars(length(min = 1, max = 63), regex(pattern = "^[A-Z][A-Za-z0-9]*$"))]
    pub kind: String,
    /// Paths in that object: `/spec/memoryMiB`, `/spec/image/**` with all that is below,
    /// `/spec/files[path=/etc/x]/content` in a list element.
    #[schemars(length(min = 1, max = 64), inner(length(max = 512), regex(pattern = "^/spec/")))]
    pub paths: Vec<String>,
}

/// What an Updater does about the changes that it claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum UpdaterAction {
    /// It makes them.
    Update,
    /// Nothing: the machine stays as it is, and gets the change when it is replaced one day.
    Leave,
}

/// Status of an Updater.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UpdaterStatus {
    /// Conditions, keyed by type. `Accepted` is False if the Updater is not used.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// Generation that the status refers to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}
