//! Suggests commands to try in a running sandbox.

use std::path::Path;

use lab_world::world::World;
use refit_kinds::version::KubernetesVersion;
use serde_json::Value;

use super::quoted;

/// Suggests the next commands for this world.
pub(super) fn lines(world: &World, kubeconfig: &Path, speed: u32) -> Vec<String> {
    let mut lines = vec![
        String::new(),
        "Try next, in another terminal:".to_owned(),
        format!("  export KUBECONFIG={}", quoted(kubeconfig)),
    ];
    // Through cargo in a checkout, the program is not on the path.
    if let (Some(_), Ok(program)) = (std::env::var_os("CARGO"), std::env::current_exe()) {
        let directory = program.parent().unwrap_or(&program);
        lines.push(format!("  export PATH={}:$PATH", quoted(directory)));
    }
    lines.extend(["  kubectl get machines".to_owned()]);
    let machines = world.machines();
    for key in world.clusters() {
        let (namespace, cluster) = key.split_once('/').unwrap_or(("default", &key));
        lines.push(format!("  kubectl --context {cluster} get nodes"));
        if let Some(target) = target(machines.iter().map(|machine| &**machine), cluster) {
            let place =
                if namespace == "default" { String::new() } else { format!(" -n {namespace}") };
            lines.push(format!("  refit upgrade cluster/{cluster}{place} --to {target} --watch"));
        }
    }
    lines.push("  kubectl get machines -w".to_owned());
    lines.push(String::new());
    lines.push(format!(
        "Hosts work {speed} times as fast as real ones (--speed); everything else runs in real \
         time. Press Ctrl-C to stop."
    ));
    lines
}

/// Returns the version that a cluster can be upgraded to.
fn target<'a>(machines: impl Iterator<Item = &'a Value>, cluster: &str) -> Option<String> {
    let versions = machines.filter(|machine| machine["spec"]["clusterName"] == cluster).filter_map(
        |machine| {
            let version: KubernetesVersion = machine["spec"]["version"].as_str()?.parse().ok()?;
            Some(version)
        },
    );
    Some(versions.min()?.default_target().to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_oldest_machine_limits_the_target_version() {
        let machine = |cluster: &str, version: &str| json!({"spec": {"clusterName": cluster, "version": version}});
        let machines = [machine("a", "v1.35.0"), machine("a", "v1.34.2"), machine("b", "v1.30.1")];
        assert_eq!(target(machines.iter(), "a").as_deref(), Some("v1.35.0"));
        assert_eq!(target(machines.iter(), "b").as_deref(), Some("v1.31.0"));
        assert_eq!(target(machines.iter(), "c"), None);
    }
}
