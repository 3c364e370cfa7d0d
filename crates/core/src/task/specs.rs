//! Whether the specs of an ExternalUpgrade request are those that its Machines would get.

use std::collections::BTreeSet;

use refit_cluster_api::kubeadm_config::normalised;
use refit_kinds::version::StatedVersion;
use serde_json::Value;

/// How many paths are named.
const NAMED: usize = 20;
/// What identifies one Machine in its spec, and is not the same in all of them.
const OF_ONE_MACHINE: [&str; 5] = [
    "machine.providerID",
    "machine.failureDomain",
    "machine.bootstrap.dataSecretName",
    "machine.bootstrap.configRef.name",
    "machine.infrastructureRef.name",
];

/// The specs of a Machine and its objects.
#[derive(Clone, Debug, PartialEq)]
pub struct Specs {
    /// `spec` of the Machine.
    pub machine: Value,
    /// `spec` of its bootstrap config; null without one.
    pub bootstrap_config: Value,
    /// `spec` of its infrastructure machine.
    pub infrastructure_machine: Value,
}

impl Specs {
    /// The specs by their names in a request; what Cluster API itself rewrites in bootstrap configs is left out.
    fn parts(&self) -> [(&'static str, Value); 3] {
        let version = StatedVersion::from(self.machine["version"].as_str().unwrap_or_default());
        [
            ("machine", self.machine.clone()),
            ("bootstrapConfig", normalised(&self.bootstrap_config, version.version())),
            ("infrastructureMachine", self.infrastructure_machine.clone()),
        ]
    }
}

/// The paths at which the requested specs differ from those that Refit would write, at most 20. `stored` are these as
/// the API server would store them: a request may contain its defaults. Values are not part of it: a bootstrap config
/// may contain secrets.
pub fn differences(requested: &Specs, written: &Specs, stored: &Specs) -> Vec<String> {
    let mut found = BTreeSet::new();
    let parts = requested.parts().into_iter().zip(written.parts()).zip(stored.parts());
    for (((part, requested), (_, written)), (_, stored)) in parts {
        walk(part, (Some(&requested), Some(&written), Some(&stored)), &mut found);
    }
    found.into_iter().take(NAMED).collect()
}

type Sides<'a> = (Option<&'a Value>, Option<&'a Value>, Option<&'a Value>);

fn walk(path: &str, (requested, written, stored): Sides<'_>, found: &mut BTreeSet<String>) {
    if OF_ONE_MACHINE.contains(&path) || requested == written {
        return;
    }
    let empty = serde_json::Map::new();
    let members = |side: Option<&Value>| match side {
        Some(Value::Object(members)) => Some(members.clone()),
        None | Some(Value::Null) => Some(empty.clone()),
        Some(Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_)) => None,
    };
    if let (Some(a), Some(b)) = (members(requested), members(written)) {
        let keys: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
        for key in keys {
            let of_stored = stored.and_then(|stored| stored.get(key));
            walk(&format!("{path}.{key}"), (a.get(key), b.get(key), of_stored), found);
        }
        return;
    }
    // Refit does not write it, and the API server's default is the same.
    let is_default = written.is_none() && requested == stored;
    if !is_default {
        found.insert(path.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn specs() -> Specs {
        Specs {
            machine: json!({
                "version": "v1.35.0", "clusterName": "edge-1",
                "infrastructureRef": {"kind": "SandboxMachine", "name": "a-1"},
            }),
            bootstrap_config: json!({"files": [{"path": "/etc/a", "content": "secret"}]}),
            infrastructure_machine: json!({"cpus": 4}),
        }
    }

    /// The differences after a change of the requested specs.
    fn after(change: impl FnOnce(&mut Specs)) -> Vec<String> {
        let (mut requested, written) = (specs(), specs());
        let mut stored = specs();
        stored.infrastructure_machine["memoryMiB"] = json!(8192);
        change(&mut requested);
        differences(&requested, &written, &stored)
    }

    #[test]
    fn requested_specs_are_those_that_refit_writes() {
        assert_eq!(after(|_| {}), [""; 0]);
        assert_eq!(after(|specs| specs.machine["version"] = json!("v1.36.0")), ["machine.version"]);
        let lacks = after(|specs| specs.infrastructure_machine = json!({}));
        assert_eq!(lacks, ["infrastructureMachine.cpus"]);
        let more = after(|specs| specs.infrastructure_machine["gpus"] = json!(1));
        assert_eq!(more, ["infrastructureMachine.gpus"]);
        let file = after(|specs| specs.bootstrap_config["files"][0]["content"] = json!("other"));
        assert_eq!(file, ["bootstrapConfig.files"]);
    }

    #[test]
    fn a_request_may_contain_defaults_and_the_names_of_one_machine() {
        assert_eq!(after(|specs| specs.infrastructure_machine["memoryMiB"] = json!(8192)), [""; 0]);
        let other = after(|specs| {
            specs.machine["infrastructureRef"]["name"] = json!("a-template");
            specs.machine["providerID"] = json!("x://1");
            specs.machine["bootstrap"] = json!({"configRef": {"name": "b"}, "dataSecretName": "c"});
        });
        assert_eq!(other, [""; 0]);
    }

    #[test]
    fn twenty_paths_are_named() {
        let many = after(|specs| {
            for at in 0..50 {
                specs.machine[format!("field-{at:02}")] = json!(at);
            }
        });
        assert_eq!((many.len(), &*many[0]), (20, "machine.field-00"));
    }
}
