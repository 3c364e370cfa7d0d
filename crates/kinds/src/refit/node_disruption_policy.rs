//! NodeDisruptionPolicy: what a change of a file, a unit or a user needs to take effect on a host.

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{AppliesTo, change_args::UNIT_PATTERN, host_step::one_member};

/// The longest path of a [`FilePolicy`].
pub const MAX_POLICY_PATH: usize = 1024;
/// An absolute path without empty components. `*` is only at its end, after at least one character
/// of a name: all files of a directory have its path with a `/`.
const PATH: &str = r"^/([^/*]+/)*([^/*]+\*?)?$";
/// Names of units whose files can be changed, templates among them.
const CHANGED_UNIT: &str = r"^[A-Za-z0-9:_.\\@-]+\.[a-z]+$";
/// The longest name of a unit (systemd's `UNIT_NAME_MAX`, which counts the end of the string).
const MAX_UNIT: usize = 255;
/// CEL rule of an object with `actions`, and its message.
const NONE_STANDS_ALONE: (&str, &str) = (
    "size(self.actions) == 1 || !self.actions.exists(action, has(action.none))",
    "none stands alone in actions",
);

/// What changes on the hosts of some owners in one namespace need to take effect, where the
/// defaults by path do not suit. It changes no host by itself: it decides what follows a change.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[kube(
    group = "refit.dev",
    version = "v1alpha1",
    kind = "NodeDisruptionPolicy",
    doc = "What a change of a file, a unit or a user needs to take effect on the hosts of some owners.",
    plural = "nodedisruptionpolicies",
    shortname = "ndp",
    category = "refit",
    namespaced,
    derive = "PartialEq",
    printcolumn(name = "Owners", type_ = "string", json_path = ".spec.appliesTo.owners[*].name"),
    printcolumn(name = "Clusters", type_ = "string", json_path = ".spec.appliesTo.clusters[*]"),
    printcolumn(name = "All", type_ = "string", json_path = ".spec.appliesTo.all"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(validation = (
    "has(self.files) && size(self.files) > 0 || has(self.units) && size(self.units) > 0 || has(self.users)",
    "a policy needs files, units or users"
))]
pub struct NodeDisruptionPolicySpec {
    /// The owners whose hosts have this policy. If several objects apply to an owner, the most
    /// specific one is used as a whole: one that names the owner before one that names its Cluster,
    /// and that before one for all. Two of the same kind hold every new update of the owner.
    pub applies_to: AppliesTo,
    /// What changed files need. The entry with the longest path that matches decides, before any
    /// of `units` and before the defaults.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["path"]))]
    pub files: Vec<FilePolicy>,
    /// What changed files and drop-ins of units need.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub units: Vec<UnitPolicy>,
    /// What changed users need [default: nothing].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub users: Option<UserPolicy>,
}

/// What a change of some files needs.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(validation = (
    r"!self.path.matches('/[.][.]?(/|$)')",
    "path has no component . or .."
))]
#[x_kube(validation = NONE_STANDS_ALONE)]
pub struct FilePolicy {
    /// An absolute path: of one file; with `/` at its end, of every file below this directory; with
    /// `*` at its end, of every file whose path begins with what precedes it.
    #[schemars(length(min = 1, max = MAX_POLICY_PATH), regex(pattern = PATH))]
    pub path: String,
    /// What a change needs: all of it.
    #[schemars(length(min = 1, max = 16))]
    pub actions: Vec<NodeAction>,
}

/// What a change of a unit needs.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(validation = NONE_STANDS_ALONE)]
pub struct UnitPolicy {
    /// The unit whose file or drop-in is changed, such as `containerd.service`, or a template, such
    /// as `getty@.service`.
    #[schemars(length(max = MAX_UNIT), regex(pattern = CHANGED_UNIT))]
    pub name: String,
    /// What a change needs: all of it.
    #[schemars(length(min = 1, max = 16))]
    pub actions: Vec<NodeAction>,
}

/// What a change of users needs.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(validation = NONE_STANDS_ALONE)]
pub struct UserPolicy {
    /// What a change needs: all of it.
    #[schemars(length(min = 1, max = 16))]
    pub actions: Vec<NodeAction>,
}

/// One thing that a change needs to take effect: exactly one member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = one_member)]
pub enum NodeAction {
    /// Nothing.
    None {},
    /// This unit reloads its configuration. It takes no slot of the group.
    Reload(#[schemars(length(max = MAX_UNIT), regex(pattern = UNIT_PATTERN))] String),
    /// This unit is restarted. It takes a slot of the group, and pods stay.
    Restart(#[schemars(length(max = MAX_UNIT), regex(pattern = UNIT_PATTERN))] String),
    /// The kubelet is restarted. It takes a slot of the group, and pods stay.
    RestartKubelet {},
    /// The node is drained before the change.
    Drain {},
    /// The node is drained, and its machine reboots after the change.
    Reboot {},
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(files: &Value) -> Result<NodeDisruptionPolicySpec, String> {
        let spec = json!({"appliesTo": {"all": {}}, "files": files});
        serde_json::from_value(spec).map_err(|error| error.to_string())
    }

    #[test]
    fn a_policy_is_read_and_written_in_the_same_form() {
        let spec = json!({
            "appliesTo": {"clusters": ["edge-1"]},
            "files": [
                {"path": "/etc/app/", "actions": [{"reload": "app.service"}]},
                {"path": "/etc/db*", "actions": [{"drain": {}}, {"restart": "db.service"}]},
                {"path": "/etc/motd", "actions": [{"none": {}}]},
            ],
            "units": [{"name": "kubelet.service", "actions": [{"restartKubelet": {}}]}],
            "users": {"actions": [{"reboot": {}}]},
        });
        let read: NodeDisruptionPolicySpec = serde_json::from_value(spec.clone()).unwrap();
        assert_eq!(
            read.files[1].actions,
            [NodeAction::Drain {}, NodeAction::Restart("db.service".into())]
        );
        assert_eq!(serde_json::to_value(&read).unwrap(), spec);
    }

    #[test]
    fn an_invalid_entry_is_named_in_the_error() {
        for (files, wrong) in [
            (json!([{"path": "/etc/x"}]), "actions"),
            (json!([{"path": "/etc/x", "actions": [{"restart": {}}]}]), "expected a string"),
            (json!([{"path": "/etc/x", "actions": [{"stop": "x.service"}]}]), "stop"),
            (json!([{"path": "/etc/x", "action": [{"none": {}}]}]), "action"),
            (json!([{"path": "/etc/x", "actions": [{"none": {}, "drain": {}}]}]), "map"),
        ] {
            let error = read(&files).unwrap_err();
            assert!(error.contains(wrong), "{error}");
        }
    }
}
