//! Which values of a machine's objects are secrets.

use serde_json::Value;

use super::{
    objects::Part,
    path::{Path, Segment},
};

/// Whether a value must be hidden: path lines appear in conditions, events and logs, and bootstrap
/// configs contain file contents and tokens (`docs/facts/hooks.md#secrets-in-requests`).
pub(super) fn is_secret(part: Part, path: &Path, value: &Value) -> bool {
    let compound = value.is_object() || value.is_array();
    let named = path.segments().iter().any(|segment| match segment {
        Segment::Key(key) => is_secret_name(key) || (part == Part::Bootstrap && key == "content"),
        Segment::Index(_) => false,
    });
    // Users, files and commands of a bootstrap config may contain secrets.
    named || holds_secret(value) || (part == Part::Bootstrap && (compound || is_free_text(path)))
}

/// Whether any nested member has the name of a secret: an added or removed object is shown as a
/// whole.
pub(super) fn holds_secret(value: &Value) -> bool {
    match value {
        Value::Object(members) => {
            members.iter().any(|(key, member)| is_secret_name(key) || holds_secret(member))
        }
        Value::Array(items) => items.iter().any(holds_secret),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

fn is_secret_name(key: &str) -> bool {
    let key = key.to_lowercase();
    [
        "token",
        "passw",
        "secret",
        "credential",
        "privatekey",
        "apikey",
        "certificatekey",
        "kubeconfig",
        "userdata",
    ]
    .iter()
    .any(|word| key.contains(word))
}

fn is_free_text(path: &Path) -> bool {
    const FREE: [&str; 8] = [
        "bootCommands",
        "discovery",
        "extraEnvs",
        "files",
        "ignition",
        "postKubeadmCommands",
        "preKubeadmCommands",
        "users",
    ];
    path.segments()
        .iter()
        .any(|segment| matches!(segment, Segment::Key(key) if FREE.contains(&key.as_str())))
}

/// The token by which machines join, and the copy of a whole object that kubectl keeps in an annotation.
const HIDDEN: [&str; 2] = ["discovery", "kubectl.kubernetes.io/last-applied-configuration"];

/// A bootstrap config as another program may read it: without the token by which machines join, without
/// values whose names say that they are secret, and, unless `with_contents`, without contents of files.
pub fn without_secrets(config: &Value, with_contents: bool) -> Value {
    match config {
        Value::Object(members) => members
            .iter()
            .filter(|(key, _)| !HIDDEN.contains(&key.as_str()) && !is_secret_name(key))
            .filter(|(key, _)| with_contents || *key != "content")
            .map(|(key, value)| (key.clone(), without_secrets(value, with_contents)))
            .collect(),
        Value::Array(items) => {
            items.iter().map(|item| without_secrets(item, with_contents)).collect()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => config.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_bootstrap_config_for_others_has_no_secrets() {
        let config = json!({"spec": {
            "joinConfiguration": {"discovery": {"bootstrapToken": {"token": "a.b"}}, "nodeRegistration": {}},
            "files": [{"path": "/etc/x", "content": "hunter2", "owner": "root"}],
            "users": [{"name": "u", "passwd": "hunter2"}],
        }});
        let plain = json!({"spec": {
            "joinConfiguration": {"nodeRegistration": {}},
            "files": [{"path": "/etc/x", "owner": "root"}],
            "users": [{"name": "u"}],
        }});
        assert_eq!(without_secrets(&config, false), plain);
        let with_contents = without_secrets(&config, true).to_string();
        assert_eq!(with_contents.matches("hunter2").count(), 1, "{with_contents}");
        assert!(!with_contents.contains("a.b"));
    }
}
