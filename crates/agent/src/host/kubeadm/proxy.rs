//! The proxies of a control plane.
//!
//! kubeadm writes each variable of its own environment whose name ends with `_proxy` into the manifests, and writes the
//! manifests again at each upgrade (`docs/facts/kubeadm.md#proxies`). A unit of the agent does not have the environment in
//! which an administrator ran `kubeadm init`, so kubeadm gets the proxies of the present manifests: a control plane keeps
//! those that it has, and gets no others.

use serde_json::Value;

use super::MANIFESTS;
use crate::host::{CONTROL_PLANE, Site};

/// The proxy variables in the first manifest that has any.
pub(super) fn of_manifests(site: &Site) -> Vec<(String, String)> {
    let manifests = CONTROL_PLANE.iter().map(|name| site.read(&format!("{MANIFESTS}/{name}.yaml")));
    manifests.map(|text| variables(&text)).find(|found| !found.is_empty()).unwrap_or_default()
}

/// The proxy variables of the containers of a pod, by the rule of kubeadm (`GetProxyEnvVars`).
fn variables(manifest: &str) -> Vec<(String, String)> {
    let pod: Value = serde_saphyr::from_str(manifest).unwrap_or_default();
    let list = |value: &Value, name: &str| value[name].as_array().cloned().unwrap_or_default();
    let containers = list(&pod["spec"], "containers").into_iter();
    containers
        .flat_map(|container| list(&container, "env"))
        .filter_map(|variable| {
            let (name, value) = (variable["name"].as_str()?, variable["value"].as_str()?);
            let is_proxy = is_variable(name) && !value.is_empty();
            is_proxy.then(|| (name.to_owned(), value.to_owned()))
        })
        .collect()
}

/// Whether an environment variable is one of proxies, by the rule of kubeadm.
pub(super) fn is_variable(name: &str) -> bool {
    name.to_ascii_lowercase().ends_with("_proxy")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proxies_are_read_from_the_environment_of_containers() {
        let pod = |env: &str| format!("kind: Pod\nspec:\n  containers:\n  - image: x\n{env}");
        let found = |env: &str| variables(&pod(env));
        let pairs = [("HTTPS_PROXY", "http://me:secret@p:3128"), ("no_proxy", "10.0.0.0/8,.svc")];
        let expected = pairs.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let env = "    env:\n    - name: HTTPS_PROXY\n      value: http://me:secret@p:3128\n    - name: GOGC\n      \
                   value: \"80\"\n    - name: no_proxy\n      value: 10.0.0.0/8,.svc\n    - name: EMPTY_PROXY\n      \
                   value: \"\"\n    - name: NODE_PROXY\n      valueFrom:\n        fieldRef:\n          fieldPath: \
                   spec.nodeName\n";
        assert_eq!(found(env), expected);
        for text in [pod("").as_str(), "no pod", ""] {
            assert!(variables(text).is_empty(), "{text}");
        }
    }
}
