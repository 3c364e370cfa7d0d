//! The files of `deploy/`.

use std::fmt;

use serde_json::Value;

/// Default image of the manifests.
pub const IMAGE: &str = "refit:0.1.0";
/// Default number of controller replicas.
pub const REPLICAS: u32 = 2;

/// A part of an installation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// The namespace `refit-system` of the management cluster.
    Namespace,
    /// The CustomResourceDefinitions.
    Crds,
    /// ServiceAccount, roles and bindings, and the policies: one restricts agents to their own
    /// HostPlan, one refuses what would replace Machines.
    Rbac,
    /// The controller: Deployment, Services, PodDisruptionBudget, NetworkPolicy.
    Controller,
    /// The ExtensionConfig, which makes Cluster API call Refit.
    Extension,
    /// The agents of a workload cluster: its namespace, the policy that restricts agents to their
    /// own HostPlan, and the DaemonSet that installs them.
    Agent,
}

impl Part {
    /// The parts for a management cluster, in the order in which they are applied.
    pub const MANAGEMENT: [Self; 5] =
        [Self::Namespace, Self::Crds, Self::Rbac, Self::Controller, Self::Extension];
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Namespace => "namespace",
            Self::Crds => "crds",
            Self::Rbac => "rbac",
            Self::Controller => "controller",
            Self::Extension => "extension",
            Self::Agent => "agent",
        })
    }
}

/// Settings of the operator for an installation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choices {
    /// The image with both programs.
    pub image: String,
    /// Number of controller replicas.
    pub replicas: u32,
    /// The namespaces in which the controller may read the kubeconfigs of workload clusters; all if
    /// empty.
    pub kubeconfigs_in: Vec<String>,
}

impl Default for Choices {
    fn default() -> Self {
        Self { image: IMAGE.to_owned(), replicas: REPLICAS, kubeconfigs_in: Vec::new() }
    }
}

/// One file of `deploy/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// Path of the file below `deploy/`.
    pub path: &'static str,
    /// The part that the file belongs to.
    pub part: Part,
    /// Text of the file, with the operator's settings.
    pub text: String,
}

macro_rules! files {
    ($($part:ident $path:literal),* $(,)?) => {
        &[$((Part::$part, $path, include_str!(concat!("../../../deploy/", $path)))),*]
    };
}

/// Every object of `deploy/`, in the order in which it is applied.
const FILES: &[(Part, &str, &str)] = files![
    Namespace "namespace.yaml",
    Crds "crds/refit.dev_clusterupgradeplans.yaml",
    Crds "crds/refit.dev_clusterupgrades.yaml",
    Crds "crds/refit.dev_hostplans.yaml",
    Crds "crds/refit.dev_hostsettings.yaml",
    Crds "crds/refit.dev_nodedisruptionpolicies.yaml",
    Crds "crds/refit.dev_nodeupdates.yaml",
    Crds "crds/refit.dev_replacementholds.yaml",
    Crds "crds/refit.dev_updategroups.yaml",
    Crds "crds/refit.dev_updaters.yaml",
    Crds "crds/refit.dev_upgradetasks.yaml",
    Rbac "rbac/service_account.yaml",
    Rbac "rbac/controller_role.yaml",
    Rbac "rbac/controller_role_binding.yaml",
    Rbac "rbac/kubeconfigs_role.yaml",
    Rbac "rbac/kubeconfigs_role_binding.yaml",
    Rbac "rbac/system_role.yaml",
    Rbac "rbac/system_role_binding.yaml",
    Rbac "admission/agent_policy.yaml",
    Rbac "admission/agent_policy_binding.yaml",
    Rbac "holds/policy.yaml",
    Rbac "holds/policy_binding.yaml",
    Rbac "holds/machine_set_policy.yaml",
    Rbac "holds/machine_set_policy_binding.yaml",
    Controller "controller/webhook_service.yaml",
    Controller "controller/metrics_service.yaml",
    Controller "controller/network_policy.yaml",
    Controller "controller/pod_disruption_budget.yaml",
    Controller "controller/deployment.yaml",
    Extension "controller/extension_config.yaml",
    Agent "agent/namespace.yaml",
    Agent "admission/agent_policy.yaml",
    Agent "admission/agent_policy_binding.yaml",
    Agent "agent/daemon_set.yaml",
];

/// The binding that lets the controller read the kubeconfigs of workload clusters.
const KUBECONFIGS: &str = "rbac/kubeconfigs_role_binding.yaml";

/// The controller's rights in a workload cluster, as a ClusterRole. It is not applied: Cluster
/// API's kubeconfig Secret is an administrator's.
pub const WORKLOAD_ROLE: &str = include_str!("../../../deploy/agent/workload_role.yaml");

/// A shell script that gives Cluster API's managers the client certificate for the hooks. It is
/// printed and never run: the managers are not Refit's.
pub const MANAGERS: &str = include_str!("../../../deploy/managers/client_certificate.sh");

const KUBEADM_CONFIG: &str = include_str!("../../../deploy/agent/kubeadm_config.yaml");
/// Placeholder URL in the file of `deploy/`; the operator supplies the real one.
const EXAMPLE_URL: &str = "https://packages.example/refit-agent";
const EXAMPLE_SHA256: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// Why a KubeadmConfig for the agent cannot be generated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProgramSourceError {
    /// The URL has characters that are not safe in a shell script.
    #[error("invalid URL of the agent {0:?}, expected one like {EXAMPLE_URL}")]
    Url(String),
    /// The checksum is not valid.
    #[error("invalid sha256 of the agent {0:?}, expected the 64 hex digits that sha256sum prints")]
    Sha256(String),
}

/// `files` and `preKubeadmCommands` of a KubeadmConfig that installs the agent at a host's first
/// boot.
pub fn kubeadm_config(url: &str, sha256: &str) -> Result<String, ProgramSourceError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._~:/?@&+,;=%-".contains(c);
    let web = url.starts_with("https://") || url.starts_with("http://");
    if !web || !url.chars().all(plain) {
        return Err(ProgramSourceError::Url(url.to_owned()));
    }
    if sha256.len() != EXAMPLE_SHA256.len() || !sha256.chars().all(|c| c.is_ascii_hexdigit()) {
        return Err(ProgramSourceError::Sha256(sha256.to_owned()));
    }
    Ok(KUBEADM_CONFIG
        .replace(EXAMPLE_URL, url)
        .replace(EXAMPLE_SHA256, &sha256.to_ascii_lowercase()))
}

/// The files of some parts, in the order in which they are applied.
pub fn manifests(parts: &[Part], choices: &Choices) -> Vec<Manifest> {
    FILES
        .iter()
        .filter(|(part, ..)| parts.contains(part))
        .flat_map(|(part, path, text)| {
            let texts = match *path {
                KUBECONFIGS if !choices.kubeconfigs_in.is_empty() => {
                    choices.kubeconfigs_in.iter().map(|space| bound_in(text, space)).collect()
                }
                _ => vec![chosen(text, choices)],
            };
            texts.into_iter().map(|text| Manifest { path, part: *part, text })
        })
        .collect()
}

/// A ClusterRoleBinding as a RoleBinding in a namespace.
fn bound_in(text: &str, namespace: &str) -> String {
    text.replacen("kind: ClusterRoleBinding\n", "kind: RoleBinding\n", 1).replacen(
        "\nmetadata:\n",
        &format!("\nmetadata:\n  namespace: {namespace}\n"),
        1,
    )
}

fn chosen(text: &str, choices: &Choices) -> String {
    let mut lines: Vec<String> = Vec::new();
    for line in text.lines() {
        let (indent, rest) = line.split_at(line.len() - line.trim_start().len());
        lines.push(match rest {
            rest if rest == format!("image: {IMAGE}") => {
                format!("{indent}image: {}", choices.image)
            }
            rest if rest == format!("replicas: {REPLICAS}") => {
                format!("{indent}replicas: {}", choices.replicas)
            }
            _ => line.to_owned(),
        });
    }
    lines.push(String::new());
    lines.join("\n")
}

/// The objects of some files.
pub fn objects(manifests: &[Manifest]) -> Vec<Value> {
    manifests
        .iter()
        .map(|manifest| {
            serde_saphyr::from_str(&manifest.text).expect("a test reads every file of deploy/")
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs, path::PathBuf};

    use refit_kinds::{hooks, json, keys};

    use super::*;

    fn deploy() -> PathBuf {
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../deploy")
    }

    fn all() -> Vec<Manifest> {
        let mut parts = Part::MANAGEMENT.to_vec();
        parts.push(Part::Agent);
        manifests(&parts, &Choices::default())
    }

    fn yaml_of(path: &str) -> Value {
        let text = fs::read_to_string(deploy().join(path)).unwrap();
        serde_saphyr::from_str(&text).unwrap()
    }

    /// The files that a kustomization includes.
    fn kustomized(directory: &str) -> BTreeSet<String> {
        let join = |name: &str| {
            if let Some(sibling) = name.strip_prefix("../") {
                sibling.to_owned()
            } else if directory.is_empty() {
                name.to_owned()
            } else {
                format!("{directory}/{name}")
            }
        };
        let kustomization = yaml_of(&join("kustomization.yaml"));
        let resources = kustomization["resources"].as_array().unwrap();
        resources
            .iter()
            .map(|resource| join(resource.as_str().unwrap()))
            .flat_map(|path| {
                if deploy().join(&path).is_dir() {
                    kustomized(&path)
                } else {
                    BTreeSet::from([path])
                }
            })
            .collect()
    }

    #[test]
    fn kustomize_and_install_apply_the_same_files() {
        let paths = |agent: bool| -> BTreeSet<String> {
            all()
                .iter()
                .filter(|manifest| (manifest.part == Part::Agent) == agent)
                .map(|manifest| manifest.path.to_owned())
                .collect()
        };
        assert_eq!(paths(false), kustomized(""));
        assert_eq!(paths(true), kustomized("agent"));
    }

    #[test]
    fn files_are_printed_unchanged_by_default() {
        for manifest in all() {
            let file = fs::read_to_string(deploy().join(manifest.path)).unwrap();
            assert_eq!(manifest.text, file, "{}", manifest.path);
        }
    }

    #[test]
    fn every_object_of_an_installation_is_listed_here() {
        let names: Vec<String> = objects(&all())
            .iter()
            .map(|object| format!("{} {}", json::kind(object), json::name(object)))
            .collect();
        assert_eq!(
            names,
            [
                "Namespace refit-system",
                "CustomResourceDefinition clusterupgradeplans.refit.dev",
                "CustomResourceDefinition clusterupgrades.refit.dev",
                "CustomResourceDefinition hostplans.refit.dev",
                "CustomResourceDefinition hostsettings.refit.dev",
                "CustomResourceDefinition nodedisruptionpolicies.refit.dev",
                "CustomResourceDefinition nodeupdates.refit.dev",
                "CustomResourceDefinition replacementholds.refit.dev",
                "CustomResourceDefinition updategroups.refit.dev",
                "CustomResourceDefinition updaters.refit.dev",
                "CustomResourceDefinition upgradetasks.refit.dev",
                "ServiceAccount refit-controller",
                "ClusterRole refit-controller",
                "ClusterRoleBinding refit-controller",
                "ClusterRole refit-kubeconfigs",
                "ClusterRoleBinding refit-kubeconfigs",
                "Role refit-controller",
                "RoleBinding refit-controller",
                "ValidatingAdmissionPolicy refit-agents",
                "ValidatingAdmissionPolicyBinding refit-agents",
                "ValidatingAdmissionPolicy refit-replacement-holds",
                "ValidatingAdmissionPolicyBinding remove-the-label-hold-replacements-of-the-namespace",
                "ValidatingAdmissionPolicy refit-replacement-holds-machine-sets",
                "ValidatingAdmissionPolicyBinding refit-replacement-holds-machine-sets",
                "Service refit-webhook",
                "Service refit-metrics",
                "NetworkPolicy refit-controller",
                "PodDisruptionBudget refit-controller",
                "Deployment refit-controller",
                "ExtensionConfig refit",
                "Namespace refit-system",
                "ValidatingAdmissionPolicy refit-agents",
                "ValidatingAdmissionPolicyBinding refit-agents",
                "DaemonSet refit-agent",
            ]
        );
        let role: Value = serde_saphyr::from_str(WORKLOAD_ROLE).unwrap();
        assert_eq!(role["kind"], "ClusterRole");
    }

    #[test]
    fn the_managers_get_a_copy_without_the_authority_and_both_flags() {
        let quoted = |name: &str| {
            let rest = MANAGERS.split_once(&format!("{name}='")).unwrap().1;
            rest.split_once('\'').unwrap().0
        };
        let patch: Value = serde_json::from_str(quoted("volume")).unwrap();
        let pod = &patch["spec"]["template"]["spec"];
        assert_eq!(pod["volumes"][0]["secret"]["secretName"], keys::HOOK_CLIENT);
        let mount = pod["containers"][0]["volumeMounts"][0]["mountPath"].as_str().unwrap();
        assert!(MANAGERS.contains(&format!("\nmount={mount}\n")), "{mount}");
        for (flag, file) in hooks::CLIENT_FLAGS.iter().zip(["tls.crt", "tls.key"]) {
            assert!(MANAGERS.contains(&format!("{flag}=$mount/{file}")), "{flag}");
        }
        let copy = quoted("template");
        assert!(copy.contains(&format!("name: {}\n", keys::HOOK_CLIENT)), "{copy}");
        let copied: Vec<&str> =
            copy.split("{{").skip(1).filter_map(|part| part.split("}}").next()).collect();
        assert_eq!(copied, [r#"index .data "tls.crt""#, r#"index .data "tls.key""#]);
    }

    #[test]
    fn image_and_replicas_are_set_by_the_operator() {
        let image = "registry.example/refit@sha256:0".to_owned();
        let choices = Choices { image, replicas: 3, ..Choices::default() };
        for part in [Part::Controller, Part::Agent] {
            let texts: String = manifests(&[part], &choices)
                .iter()
                .map(|manifest| manifest.text.as_str())
                .collect();
            assert!(texts.contains("image: registry.example/refit@sha256:0\n"));
            assert!(!texts.contains(IMAGE));
            assert_eq!(texts.contains("replicas: 3\n"), part == Part::Controller);
        }
    }

    #[test]
    fn kubeconfigs_may_be_read_in_the_chosen_namespaces_only() {
        let kubeconfigs_in = vec!["edge".to_owned(), "fleet".to_owned()];
        let choices = Choices { kubeconfigs_in, ..Choices::default() };
        let objects = objects(&manifests(&[Part::Rbac], &choices));
        let bindings: Vec<(&str, &str)> = objects
            .iter()
            .filter(|object| object["roleRef"]["name"] == "refit-kubeconfigs")
            .map(|object| (json::kind(object), json::namespace(object)))
            .collect();
        assert_eq!(bindings, [("RoleBinding", "edge"), ("RoleBinding", "fleet")]);
    }

    #[test]
    fn a_kubeadm_config_installs_only_the_named_program() {
        let sha = "aB".repeat(32);
        let text = kubeadm_config("https://mirror.example/refit?v=1&x=2", &sha).unwrap();
        let config: Value = serde_saphyr::from_str(&text).unwrap();
        let script = config["files"][0]["content"].as_str().unwrap();
        assert!(script.contains("url='https://mirror.example/refit?v=1&x=2'\n"));
        assert!(script.contains(&format!("sha256='{}'\n", "ab".repeat(32))));
        assert!(!script.contains("packages.example"));
        let path = config["files"][0]["path"].as_str().unwrap();
        let command = config["preKubeadmCommands"][0].as_str().unwrap();
        assert!(command.starts_with(path), "{command}");
        for bad in ["refit-agent", "https://a'; reboot '", "https://a b", "file:///x"] {
            assert!(kubeadm_config(bad, &sha).is_err(), "{bad}");
        }
        assert!(kubeadm_config(EXAMPLE_URL, "abc").is_err());
    }

    #[test]
    fn the_agents_pod_only_installs_and_has_no_rights_in_the_api() {
        let objects = objects(&manifests(&[Part::Agent], &Choices::default()));
        let set = objects.iter().find(|object| object["kind"] == "DaemonSet");
        let pod = &set.unwrap()["spec"]["template"]["spec"];
        assert_eq!(pod["automountServiceAccountToken"], false);
        assert!(pod["serviceAccountName"].is_null() && pod["hostNetwork"].is_null());
        assert_eq!(pod["containers"][0]["args"][0], "install");
        assert!(pod["containers"][0]["ports"].is_null());
    }

    #[test]
    fn the_pod_of_the_controller_is_restricted() {
        let objects = objects(&manifests(&[Part::Controller], &Choices::default()));
        let pod = objects
            .iter()
            .find(|object| object["kind"] == "Deployment")
            .map(|object| object["spec"]["template"]["spec"].clone())
            .unwrap();
        assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
        assert_eq!(pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
        let container = &pod["containers"][0]["securityContext"];
        assert_eq!(container["allowPrivilegeEscalation"], false);
        assert_eq!(container["readOnlyRootFilesystem"], true);
        assert_eq!(container["capabilities"]["drop"][0], "ALL");
    }
}
