//! Builds packages, images and layers for hosts of a real cluster.
//!
//! The programs come from one directory per version (`REFIT_K8S_BIN`). Hosts get them as packages
//! from the tests' own repository; the control plane gets them as images from the tests' own
//! registry.

use std::{
    collections::BTreeMap,
    env,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context as _, bail, ensure};
use refit_kinds::version::KubernetesVersion;

use crate::{
    isolation::Isolation,
    net,
    overlay::Overlay,
    packages::Repository,
    registry::{self, Registry},
};

/// Environment variable with the directory of the programs.
pub const PROGRAMS_DIRECTORY: &str = "REFIT_K8S_BIN";
/// Programs in the directory of each version.
const PROGRAMS: [&str; 6] = [
    "kubeadm",
    "kubectl",
    "kubelet",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
];
/// Programs that hosts get as packages.
const PACKAGED: [&str; 3] = ["kubeadm", "kubectl", "kubelet"];
/// Tag of etcd's image, by which kubeadm chooses flags. The program itself is Debian's.
pub const ETCD_TAG: &str = "3.5.16-0";
/// Another tag of the same image, by which kubeadm takes it for a newer etcd.
pub const NEXT_ETCD_TAG: &str = "3.5.17-0";
const KUBELET_UNIT: &str = "\
[Unit]
Description=kubelet: The Kubernetes Node Agent
Wants=containerd.service
After=containerd.service kernel-settings.service

[Service]
EnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env
ExecStart=/usr/bin/kubelet --bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf \
--kubeconfig=/etc/kubernetes/kubelet.conf --config=/var/lib/kubelet/config.yaml $KUBELET_KUBEADM_ARGS
Restart=always
RestartSec=5

[Install]
WantedBy=multi-user.target
";
/// Files that stand in for kernel settings. The kernel belongs to the machine and its settings are
/// read-only here; a kubelet that finds other values would exit. The control groups are the host's
/// own from their root down; they only have to be mounted writable.
const KERNEL_SETTINGS: &str = "\
#!/bin/sh
set -e
mkdir -p /run/kernel-settings
for setting in vm/overcommit_memory=1 kernel/panic=10 kernel/panic_on_oops=1; do
  file=/run/kernel-settings/$(basename ${setting%=*})
  echo ${setting#*=} > $file
  mount --bind $file /proc/sys/${setting%=*}
done
echo 1 > /proc/sys/net/ipv4/ip_forward
for hierarchy in /sys/fs/cgroup/*/; do
  mount -o remount,rw,nosuid,nodev,noexec $hierarchy || mount -o remount,bind,rw $hierarchy
done
";
const KERNEL_SETTINGS_UNIT: &str = "\
[Unit]
Description=Kernel settings that the kubelet requires

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/local/sbin/kernel-settings
";

/// One version of Kubernetes.
#[derive(Clone, Debug)]
pub struct Programs {
    /// `vX.Y.Z`.
    pub version: String,
    /// The directory with the programs.
    pub directory: PathBuf,
}

/// Returns the two versions of `REFIT_K8S_BIN`, the lower first.
pub fn programs() -> anyhow::Result<[Programs; 2]> {
    let how = "`cargo xtask hosts build` creates such directories and prints their parent";
    let Some(directory) = env::var_os(PROGRAMS_DIRECTORY).map(PathBuf::from) else {
        bail!(
            "{PROGRAMS_DIRECTORY} is not set: set it to a directory with two subdirectories named \
             after their version, such as v1.34.10 and v1.35.8, each with {}; {how}",
            PROGRAMS.join(", ")
        );
    };
    let shown = directory.display();
    let entries = std::fs::read_dir(&directory);
    let entries =
        entries.with_context(|| format!("failed to read {PROGRAMS_DIRECTORY}={shown}"))?;
    let mut found = BTreeMap::new();
    for entry in entries {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if let (Ok(version), true) = (name.parse::<KubernetesVersion>(), path.is_dir()) {
            found.insert(version, path);
        }
    }
    let all: Vec<Programs> = found
        .into_iter()
        .map(|(version, directory)| Programs { version: version.to_string(), directory })
        .collect();
    let [from, to] = <[Programs; 2]>::try_from(all).map_err(|all| {
        let names: Vec<&str> = all.iter().map(|one| one.version.as_str()).collect();
        anyhow::anyhow!(
            "{PROGRAMS_DIRECTORY}={shown} contains {} directories named after a version ({}) instead \
             of two; {how}",
            names.len(),
            names.join(", ")
        )
    })?;
    for one in [&from, &to] {
        let missing: Vec<&str> =
            PROGRAMS.into_iter().filter(|program| !one.directory.join(program).is_file()).collect();
        ensure!(
            missing.is_empty(),
            "{} lacks {}; {how}",
            one.directory.display(),
            missing.join(", ")
        );
    }
    Ok([from, to])
}

/// The builds that all hosts of a test share.
#[derive(Debug)]
pub struct KubernetesBuild {
    /// The versions, the lower first.
    pub versions: [Programs; 2],
    pub(crate) layers: Vec<PathBuf>,
    repository: Repository,
    registry: Arc<Registry>,
}

impl KubernetesBuild {
    /// Builds packages, images and the layers of hosts.
    pub async fn new(isolation: &Isolation, agent: &Path) -> anyhow::Result<Self> {
        let versions = programs()?;
        let mut repository = Repository::new(&isolation.directory)?;
        for one in &versions {
            for name in PACKAGED {
                let bytes = std::fs::read(one.directory.join(name))?;
                let files = BTreeMap::from([(format!("usr/bin/{name}"), bytes)]);
                let unit = (name == "kubelet").then_some(KUBELET_UNIT);
                repository.add(name, &package_version(&one.version), files, unit).await?;
            }
        }
        let images: Vec<(String, PathBuf)> =
            versions.iter().map(|one| (one.version.clone(), one.directory.clone())).collect();
        let registry = Registry::of(&images, &isolation.base, &[ETCD_TAG, NEXT_ETCD_TAG]).await?;
        let layers = layers(isolation, &repository, &versions[0].version, agent).await?;
        Ok(Self { versions, layers, repository, registry: Arc::new(registry) })
    }

    /// Serves packages and images until the runtime ends.
    pub async fn serve(&self) -> anyhow::Result<()> {
        self.repository.serve().await?;
        self.registry.serve().await
    }
}

/// Returns the package version of a Kubernetes version, such as `1.34.10-1.1` for `v1.34.10`.
pub fn package_version(version: &str) -> String {
    format!("{}-1.1", version.trim_start_matches('v'))
}

async fn layers(
    isolation: &Isolation,
    repository: &Repository,
    version: &str,
    agent: &Path,
) -> anyhow::Result<Vec<PathBuf>> {
    let overlay = Overlay::begin(isolation).await?;
    for name in PACKAGED {
        let file = format!("{name}_{}_amd64.deb", package_version(version));
        let inside = overlay.root().join(&file);
        std::fs::copy(repository.directory().join(&file), &inside)?;
        overlay.chroot(["dpkg", "--install", &format!("/{file}")]).await?;
        std::fs::remove_file(&inside)?;
    }
    overlay.chroot(["apt-mark", "hold", "kubeadm", "kubectl", "kubelet"]).await?;
    overlay.write("etc/containerd/config.toml", &containerd_config())?;
    let mirror = format!(
        "server = \"http://{at}\"\n[host.\"http://{at}\"]\ncapabilities = [\"pull\", \"resolve\"]\n",
        at = format_args!("{}:{}", net::SWITCH, registry::PORT)
    );
    overlay.write("etc/containerd/certs.d/registry.k8s.io/hosts.toml", &mirror)?;
    overlay.write("etc/resolv.conf", "nameserver 127.0.0.1\n")?;
    overlay.script("usr/local/sbin/kernel-settings", KERNEL_SETTINGS.as_bytes())?;
    overlay.write("etc/systemd/system/kernel-settings.service", KERNEL_SETTINGS_UNIT)?;
    overlay.enable("kernel-settings.service")?;
    let unit = include_str!("../../../deploy/agent/refit-agent.service");
    overlay.agent(agent, unit).await?;
    overlay.finish().await
}

fn containerd_config() -> String {
    let cri = "plugins.\"io.containerd.grpc.v1.cri\"";
    format!(
        "version = 2\n[{cri}]\nsandbox_image = \"registry.k8s.io/pause:3.10.1\"\n\
         restrict_oom_score_adj = true\n[{cri}.cni]\nbin_dir = \"/usr/lib/cni\"\n\
         conf_dir = \"/etc/cni/net.d\"\n[{cri}.registry]\nconfig_path = \
         \"/etc/containerd/certs.d\"\n[{cri}.containerd.runtimes.runc]\nruntime_type = \
         \"io.containerd.runc.v2\"\n[{cri}.containerd.runtimes.runc.options]\nSystemdCgroup = false\n"
    )
}
