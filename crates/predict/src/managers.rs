//! Cluster API's own Deployments: their versions and feature gates.

use std::{collections::BTreeMap, path::Path};

use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Container, PodSpec, VolumeMount},
};
use refit_kinds::{hooks::CLIENT_FLAGS, version::KubernetesVersion};

/// Label of everything that belongs to a provider of Cluster API.
pub const PROVIDER_LABEL: &str = "cluster.x-k8s.io/provider";
/// The feature gate without which Cluster API ignores ExtensionConfigs.
pub const RUNTIME_SDK: &str = "RuntimeSDK";
/// The feature gate without which Cluster API replaces machines without calling a hook.
pub const IN_PLACE_UPDATES: &str = "InPlaceUpdates";

/// A provider of Cluster API whose manager takes part in in-place updates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Provider {
    /// Manages MachineDeployments, MachineSets, Machines and ExtensionConfigs.
    Core,
    /// Manages KubeadmControlPlanes.
    KubeadmControlPlane,
}

impl Provider {
    /// Both providers, in the order in which an installation starts them.
    pub const ALL: [Self; 2] = [Self::Core, Self::KubeadmControlPlane];

    /// Value of [`PROVIDER_LABEL`] on its Deployment.
    pub fn label(self) -> &'static str {
        match self {
            Self::Core => "cluster-api",
            Self::KubeadmControlPlane => "control-plane-kubeadm",
        }
    }

    /// The feature gates that it requires; only the core provider serves ExtensionConfigs
    /// (`docs/facts/machine.md#feature-gates`).
    pub fn gates(self) -> &'static [&'static str] {
        match self {
            Self::Core => &[RUNTIME_SDK, IN_PLACE_UPDATES],
            Self::KubeadmControlPlane => &[IN_PLACE_UPDATES],
        }
    }
}

/// A manager as its Deployment describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manager {
    /// Its provider.
    pub provider: Provider,
    /// `namespace/name` of the Deployment.
    pub deployment: String,
    /// Version of Cluster API, from the image's tag; `None` if the tag is not a version.
    pub version: Option<KubernetesVersion>,
    /// The image, as written in the Deployment.
    pub image: String,
    /// Feature gates set in the arguments.
    pub gates: BTreeMap<String, bool>,
    /// The flags of [`CLIENT_FLAGS`] that are not in the arguments.
    pub missing_flags: Vec<&'static str>,
    /// The user of its requests: its ServiceAccount.
    pub user: String,
    /// Where the certificate that its flag names comes from; `None` if not from a Secret's volume.
    pub client_secret: Option<ClientSecret>,
}

/// A key of a Secret in a manager's namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClientSecret {
    /// Name of the Secret.
    pub name: String,
    /// The key of the certificate.
    pub key: String,
}

/// The first minor version of Cluster API that has in-place updates.
pub fn first_version() -> KubernetesVersion {
    KubernetesVersion::new(1, 12, 0)
}

impl Manager {
    /// Managers that meet all requirements: for predictions without a cluster.
    pub fn assumed() -> Vec<Self> {
        let gates =
            |provider: Provider| provider.gates().iter().map(|gate| ((*gate).to_owned(), true));
        Provider::ALL
            .into_iter()
            .map(|provider| Self {
                provider,
                deployment: provider.label().to_owned(),
                version: Some(first_version()),
                image: String::new(),
                gates: gates(provider).collect(),
                missing_flags: Vec::new(),
                user: String::new(),
                client_secret: None,
            })
            .collect()
    }

    /// Reads the manager from its Deployment; `None` for other providers and Deployments.
    pub fn of(deployment: &Deployment) -> Option<Self> {
        let label = deployment.metadata.labels.as_ref()?.get(PROVIDER_LABEL)?;
        let provider = *Provider::ALL.iter().find(|p| p.label() == label)?;
        let pod = deployment.spec.as_ref()?.template.spec.as_ref()?;
        let container = pod
            .containers
            .iter()
            .find(|container| container.name == "manager")
            .or(pod.containers.first())?;
        let image = container.image.clone().unwrap_or_default();
        let metadata = &deployment.metadata;
        let namespace = metadata.namespace.as_deref().unwrap_or_default();
        let account = pod.service_account_name.as_deref().unwrap_or("default");
        Some(Self {
            provider,
            deployment: format!("{namespace}/{}", metadata.name.as_deref().unwrap_or_default()),
            version: tag(&image).and_then(|tag| tag.parse().ok()),
            image,
            gates: gates(container.args.iter().flatten().map(String::as_str)),
            missing_flags: missing_flags(container.args.as_deref().unwrap_or_default()),
            user: format!("system:serviceaccount:{namespace}:{account}"),
            client_secret: client_secret(pod, container),
        })
    }

    /// Whether a feature gate is on. All gates that Refit checks are alpha and off by default.
    pub fn gate(&self, name: &str) -> bool {
        let all_alpha = || self.gates.get("AllAlpha").copied().unwrap_or(false);
        self.gates.get(name).copied().unwrap_or_else(all_alpha)
    }
}

/// The tag of an image reference, without the digest.
fn tag(image: &str) -> Option<&str> {
    let image = image.split('@').next()?;
    let name = image.rsplit('/').next()?;
    name.split_once(':').map(|(_, tag)| tag)
}

/// The flags of a client certificate that the arguments lack.
fn missing_flags(args: &[String]) -> Vec<&'static str> {
    CLIENT_FLAGS.into_iter().filter(|flag| value(args, flag).is_none()).collect()
}

/// The key of the Secret in whose volume the certificate's file is.
fn client_secret(pod: &PodSpec, container: &Container) -> Option<ClientSecret> {
    let file = Path::new(value(container.args.as_deref()?, CLIENT_FLAGS[0])?);
    let contains = |mount: &&VolumeMount| file.starts_with(&mount.mount_path);
    let mounts = container.volume_mounts.iter().flatten().filter(contains);
    let mount = mounts.max_by_key(|mount| mount.mount_path.len())?;
    let path = file.strip_prefix(&mount.mount_path).ok()?.to_str()?;
    let volume = pod.volumes.iter().flatten().find(|volume| volume.name == mount.name)?;
    let secret = volume.secret.as_ref()?;
    let key = match &secret.items {
        Some(items) => items.iter().find(|item| item.path == path)?.key.clone(),
        None => path.to_owned(),
    };
    Some(ClientSecret { name: secret.secret_name.clone()?, key })
}

/// The value of a flag, in one or two arguments; the last one counts.
fn value<'a>(args: &'a [String], flag: &str) -> Option<&'a str> {
    let mut args = args.iter().map(String::as_str);
    let mut found = None;
    while let Some(arg) = args.next() {
        let (name, value) = arg.split_once('=').map_or((arg, None), |(name, v)| (name, Some(v)));
        if name.trim_start_matches('-') == flag.trim_start_matches('-') {
            found = value.or_else(|| args.next());
        }
    }
    found
}

/// The feature gates in the arguments: `--feature-gates=A=true,B=false`, in one or two arguments;
/// the last value of a gate wins.
fn gates<'a>(args: impl Iterator<Item = &'a str>) -> BTreeMap<String, bool> {
    let mut found = BTreeMap::new();
    let mut args = args.peekable();
    while let Some(arg) = args.next() {
        let Some(rest) =
            arg.strip_prefix("--feature-gates").or_else(|| arg.strip_prefix("-feature-gates"))
        else {
            continue;
        };
        let list = match rest.strip_prefix('=') {
            Some(list) => list,
            None if rest.is_empty() => args.next().unwrap_or_default(),
            None => continue,
        };
        for (gate, value) in list.split(',').filter_map(|pair| pair.split_once('=')) {
            let on = matches!(value.trim(), "true" | "True" | "TRUE" | "t" | "T" | "1");
            found.insert(gate.trim().to_owned(), on);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn deployment(label: &str, image: &str, args: &[&str]) -> Deployment {
        serde_json::from_value(json!({
            "metadata": {"name": "m", "namespace": "n", "labels": {PROVIDER_LABEL: label}},
            "spec": {"selector": {}, "template": {"spec": {"containers": [
                {"name": "kube-rbac-proxy", "image": "p:v0.1.0"},
                {"name": "manager", "image": image, "args": args},
            ]}}},
        }))
        .unwrap()
    }

    #[test]
    fn version_and_gates_are_read_from_the_manager_container() {
        let manager = Manager::of(&deployment(
            "cluster-api",
            "registry.k8s.io:5000/cluster-api/cluster-api-controller:v1.12.3@sha256:00",
            &["--leader-elect", "--feature-gates=RuntimeSDK=true,InPlaceUpdates=false"],
        ))
        .unwrap();
        assert_eq!(manager.deployment, "n/m");
        assert_eq!(manager.user, "system:serviceaccount:n:default");
        assert_eq!(manager.version.as_ref().unwrap().to_string(), "v1.12.3");
        assert!(manager.gate(RUNTIME_SDK));
        assert!(!manager.gate(IN_PLACE_UPDATES));
        assert!(!manager.gate("ClusterTopology"));
    }

    #[test]
    fn gates_in_a_separate_argument_and_all_alpha_count() {
        let table: [(&[&str], bool); 6] = [
            (&["--feature-gates", "InPlaceUpdates=true"], true),
            (&["--feature-gates=AllAlpha=true"], true),
            (&["--feature-gates=AllAlpha=true,InPlaceUpdates=false"], false),
            (
                &["--feature-gates=InPlaceUpdates=true", "--feature-gates=InPlaceUpdates=false"],
                false,
            ),
            (&["--feature-gates-of-others=InPlaceUpdates=true"], false),
            (&["--feature-gates"], false),
        ];
        for (args, on) in table {
            let manager = Manager::of(&deployment("control-plane-kubeadm", "a/b", args)).unwrap();
            assert_eq!(manager.gate(IN_PLACE_UPDATES), on, "{args:?}");
            assert_eq!(manager.version, None);
        }
    }

    #[test]
    fn missing_client_flags_are_named() {
        let [cert, key] = CLIENT_FLAGS;
        let table = [
            (vec![], vec![cert, key]),
            (vec![format!("{cert}=/a"), format!("{key}=/b")], vec![]),
            (vec![cert.to_owned(), "/a".to_owned()], vec![key]),
            (vec![format!("{cert}-other=/a")], vec![cert, key]),
        ];
        for (args, wanted) in table {
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            let manager = Manager::of(&deployment("cluster-api", "a/b", &args)).unwrap();
            assert_eq!(manager.missing_flags, wanted, "{args:?}");
        }
    }

    #[test]
    fn the_secret_with_the_certificate_is_that_of_the_volume_with_its_file() {
        let secret_of = |path: &str, items: serde_json::Value| {
            let args = [format!("{}={path}", CLIENT_FLAGS[0])];
            let args = args.each_ref().map(String::as_str);
            let mut found = deployment("cluster-api", "a/b", &args);
            let pod = found.spec.as_mut().unwrap().template.spec.as_mut().unwrap();
            let mounts = json!([
                {"name": "tmp", "mountPath": "/etc"}, {"name": "client", "mountPath": "/etc/client"},
            ]);
            pod.containers[1].volume_mounts = serde_json::from_value(mounts).unwrap();
            let volumes = json!([
                {"name": "tmp", "emptyDir": {}},
                {"name": "client", "secret": {"secretName": "mine", "items": items}},
            ]);
            pod.volumes = serde_json::from_value(volumes).unwrap();
            let secret = Manager::of(&found).unwrap().client_secret;
            secret.map(|ClientSecret { name, key }| format!("{name} {key}"))
        };
        let none = json!(null);
        assert_eq!(secret_of("/etc/client/a.crt", none.clone()).unwrap(), "mine a.crt");
        assert_eq!(secret_of("/etc/client-2/a.crt", none.clone()), None);
        assert_eq!(secret_of("/var/a.crt", none), None);
        let items = json!([{"key": "tls.crt", "path": "a.crt"}]);
        assert_eq!(secret_of("/etc/client/a.crt", items.clone()).unwrap(), "mine tls.crt");
        assert_eq!(secret_of("/etc/client/b.crt", items), None);
    }

    #[test]
    fn other_providers_are_ignored() {
        assert_eq!(Manager::of(&deployment("bootstrap-kubeadm", "a:v1.12.0", &[])), None);
        assert_eq!(Manager::of(&Deployment::default()), None);
    }
}
