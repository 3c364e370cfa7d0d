//! The host as plain data: what is installed, what runs, what is in progress.
//!
//! Pure and serializable: a snapshot of the world stores it, and a restored state behaves the same.
//! Time advances through [`HostState::tick`].

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use refit_agent::host::{CONTROL_PLANE, Command, Evidence, Job, Undo, UnitState};
use refit_kinds::{
    refit::{HostFacts, HostStep, PackageDriver, Role},
    version::KubernetesVersion,
};
use serde::{Deserialize, Serialize};

use crate::{in_place::InPlace, trouble::Troubles};

/// The OS of a host, as it reports it, before an image was installed.
const ORIGINAL_OS: &str = "Debian GNU/Linux 13 (trixie), simulated";
/// How long a finished unit can still be queried.
const COLLECTED_AFTER: SignedDuration = SignedDuration::from_secs(10);
/// How long the kubelet takes after a boot.
const KUBELET_AFTER_BOOT: SignedDuration = SignedDuration::from_secs(4);
/// The installed packages.
pub(super) const PACKAGES: [&str; 3] = ["kubeadm", "kubectl", "kubelet"];
/// The static pods of a control plane host.
const STATIC_PODS: [&str; 4] =
    ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"];
const ETCD_IMAGE: &str = "registry.k8s.io/etcd:3.6.5-0";
const PACKAGE_REVISION: &str = "-1.1";

/// A simulated host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HostState {
    /// Name of the node.
    pub node: String,
    /// Whether the host runs the static pods of a control plane.
    pub control_plane: bool,
    /// The root directory: file content by path.
    pub root: BTreeMap<String, String>,
    /// Changes with each boot.
    pub boot_id: String,
    /// Number of boots.
    pub boots: u32,
    /// When the current reboot ends; `None` while the host is up.
    pub down_until: Option<Timestamp>,
    /// Version of the running kubelet, or of the last one that ran.
    pub kubelet_version: String,
    /// When the kubelet came up; in the future while it is down.
    pub kubelet_up_at: Timestamp,
    /// Started units, by name.
    pub units: BTreeMap<String, Unit>,
    /// How often each command that is not idempotent was started, by command name.
    pub runs: BTreeMap<String, u32>,
    /// Titles of the commands that have succeeded.
    #[serde(default)]
    pub succeeded: BTreeSet<String>,
    /// Those of them whose success the agent has recorded.
    #[serde(default)]
    pub recorded: BTreeSet<String>,
    /// Commands that were started again although their success was recorded, or is visible on the
    /// host: a journal prevents that.
    #[serde(default)]
    pub repeated: BTreeSet<String>,
    /// Steps that will fail, with the number of failures left.
    pub faults: BTreeMap<String, u32>,
    /// Other injected failures.
    #[serde(default)]
    pub troubles: Troubles,
    /// How many times faster than a real host this host works.
    #[serde(default = "unhurried")]
    pub hurry: u32,
    /// When the static pods run after a boot.
    #[serde(default)]
    pub static_pods_up_at: Option<Timestamp>,
    /// When the last refresh of the snap ended.
    #[serde(default)]
    pub snap_refreshed_at: Option<Timestamp>,
    /// When kubeadm's certificates expire, once they were renewed.
    #[serde(default)]
    pub certificates_end: Option<Timestamp>,
    /// What changes of its configuration did that no file shows.
    #[serde(default)]
    pub in_place: InPlace,
}

fn unhurried() -> u32 {
    1
}

/// A command that is running or has just finished.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Unit {
    /// Command, step and plan.
    #[serde(default)]
    pub title: String,
    /// Id of the step.
    pub step: String,
    /// The command that runs.
    pub command: Command,
    /// When it started.
    pub started: Timestamp,
    /// When it ends.
    pub ends: Timestamp,
    /// Whether it will fail.
    pub fails: bool,
    /// How long it may take; 0 in worlds saved before this field existed.
    #[serde(default)]
    pub timeout_seconds: u32,
    /// Exit code and output, once it has finished.
    pub exit: Option<(i32, String)>,
}

pub(super) fn title(job: &Job) -> String {
    format!("{} of step {} of plan {}", job.command.name(), job.step, job.plan)
}

/// A change made by a tick. For logs only: the first caller to tick receives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A unit finished.
    Ended {
        /// Name of the unit.
        unit: String,
        /// Exit code of the unit.
        code: i32,
    },
    /// The host booted.
    Booted,
    /// A finished unit can no longer be queried.
    Collected {
        /// Name of the unit.
        unit: String,
    },
}

impl HostState {
    /// Creates a host that has run `version` (`vX.Y.Z`) since `now`.
    pub fn new(node: &str, control_plane: bool, version: &str, now: Timestamp) -> Self {
        let mut host = Self {
            node: node.to_owned(),
            control_plane,
            root: BTreeMap::new(),
            boot_id: boot_id(node, 1),
            boots: 1,
            down_until: None,
            kubelet_version: version.to_owned(),
            kubelet_up_at: now,
            units: BTreeMap::new(),
            runs: BTreeMap::new(),
            succeeded: BTreeSet::new(),
            recorded: BTreeSet::new(),
            repeated: BTreeSet::new(),
            faults: BTreeMap::new(),
            troubles: Troubles::default(),
            hurry: unhurried(),
            static_pods_up_at: None,
            snap_refreshed_at: None,
            certificates_end: None,
            in_place: InPlace::default(),
        };
        let bare = version.trim_start_matches('v');
        for package in PACKAGES {
            host.install(package, bare);
        }
        host.configure(version);
        if control_plane {
            let etcd = manifest("etcd", ETCD_IMAGE);
            host.root.insert(manifest_path("etcd"), etcd);
        }
        host
    }

    /// Brings the host to a version by other means than an agent, as if another operating system image had been booted.
    pub fn upgrade(&mut self, version: &str, now: Timestamp) {
        let upgraded = Self::new(&self.node, self.control_plane, version, now);
        self.root.extend(upgraded.root);
        self.kubelet_version = upgraded.kubelet_version;
        self.kubelet_up_at = now;
    }

    /// Whether the host is up.
    pub fn is_up(&self, now: Timestamp) -> bool {
        self.down_until.is_none_or(|until| until <= now)
    }

    /// Whether the kubelet is up.
    pub fn kubelet_up(&self, now: Timestamp) -> bool {
        self.is_up(now) && self.kubelet_up_at <= now
    }

    /// Version of an installed package, `vX.Y.Z`.
    pub fn installed(&self, package: &str) -> Option<KubernetesVersion> {
        let version = self.root.get(&package_path(package))?;
        KubernetesVersion::of_package(version).ok()
    }

    /// Version of an installed package as the package manager reports it; empty if it is not
    /// installed.
    pub(super) fn package(&self, name: &str) -> &str {
        self.root.get(&package_path(name)).map_or("", String::as_str)
    }

    /// Image of a static pod, according to its manifest.
    pub fn static_pod_image(&self, component: &str) -> Option<String> {
        let manifest = self.root.get(&manifest_path(component))?;
        let line = manifest.lines().find_map(|l| l.trim().strip_prefix("image: "))?;
        Some(line.to_owned())
    }

    /// Version of a static pod, according to its manifest.
    pub fn static_pod_version(&self, component: &str) -> Option<String> {
        let image = self.static_pod_image(component)?;
        image.rsplit_once(':').map(|(_, tag)| tag.to_owned())
    }

    /// The version of a package or static pod that differs from the kubelet's; `None` if the host
    /// runs one version as a whole.
    pub fn other_version(&self) -> Option<String> {
        let packages = PACKAGES.into_iter().filter_map(|name| self.installed(name));
        let packages = packages.map(|version| version.to_string());
        let pods = CONTROL_PLANE.into_iter().filter_map(|name| self.static_pod_version(name));
        // Image tags have no `+`.
        let tag = |version: &str| version.replace('+', "_");
        packages.chain(pods).find(|version| tag(version) != tag(&self.kubelet_version))
    }

    /// The facts that the agent reports about the host.
    pub fn facts(&self) -> HostFacts {
        let packages = PACKAGES
            .into_iter()
            .filter_map(|name| Some((name.to_owned(), self.root.get(&package_path(name))?.clone())))
            .collect();
        HostFacts {
            kubelet_version: self.kubelet_version.parse().ok(),
            boot_id: self.boot_id.clone(),
            os_image: self.os_name().unwrap_or(ORIGINAL_OS).to_owned(),
            packages,
            static_pods: self.static_pods(),
            package_driver: Some(PackageDriver::Apt),
            certificates: BTreeMap::new(),
            certificates_end: self.certificates_end.map(Time),
            reboot_required: self.boot_required().map(str::to_owned),
            unread: Vec::new(),
        }
    }

    /// Images of the static pods, by component.
    pub fn static_pods(&self) -> BTreeMap<String, String> {
        if !self.control_plane {
            return BTreeMap::new();
        }
        let image = |name: &str| Some((name.to_owned(), self.static_pod_image(name)?));
        STATIC_PODS.into_iter().filter_map(image).collect()
    }

    /// Whether [`HostState::start`] would start the unit: not if a unit of that name exists.
    pub fn would_start(&self, job: &Job) -> bool {
        !self.units.contains_key(&job.unit)
    }

    /// Starts a unit.
    pub fn start(&mut self, job: &Job, now: Timestamp) {
        if !self.would_start(job) {
            return;
        }
        if !job.command.rules().idempotent {
            *self.runs.entry(job.command.name().to_owned()).or_default() += 1;
        }
        let hangs = self.troubles.take_hang(&job.step);
        let fails = self.take_fault(&job.step) || hangs;
        let boots = self.boots_for(&job.command);
        let as_if = if boots { HostStep::Reboot {}.into() } else { job.command.clone() };
        let usual = self.takes(duration(&self.node, &as_if));
        let ends = now + self.troubles.stretched(&job.step, job.timeout_seconds, usual, hangs);
        match job.command {
            Command::Step(HostStep::KubeadmUpgrade { .. }) => self.save_config(&job.plan),
            Command::Step(HostStep::KubeletRestart {}) | Command::Undo(Undo::KubeletRestart)
                if !fails =>
            {
                self.kubelet_up_at = ends;
            }
            _ if boots && !fails => {
                self.down_until = Some(ends);
                self.kubelet_up_at = ends + self.takes(KUBELET_AFTER_BOOT);
                self.static_pods_start();
            }
            _ => {}
        }
        let unit = Unit {
            title: title(job),
            step: job.step.clone(),
            command: job.command.clone(),
            started: now,
            ends,
            fails,
            timeout_seconds: job.timeout_seconds,
            exit: None,
        };
        // An agent that was away for longer than systemd keeps an ended unit repeats what is idempotent.
        let known = if job.command.rules().idempotent { &self.recorded } else { &self.succeeded };
        if known.contains(&unit.title) {
            self.repeated.insert(unit.title.clone());
        }
        self.units.insert(job.unit.clone(), unit);
    }

    /// State of a unit, as of the last tick.
    pub fn poll(&self, unit: &str) -> UnitState {
        match self.units.get(unit) {
            None => UnitState::Unknown,
            Some(Unit { exit: None, .. }) => UnitState::Running,
            Some(Unit { exit: Some((code, output)), .. }) => {
                UnitState::Exited { code: *code, output_tail: output.clone() }
            }
        }
    }

    /// Whether a command of this step runs.
    pub fn runs_step(&self, step: &str) -> bool {
        self.units.values().any(|unit| unit.step == step && unit.exit.is_none())
    }

    /// Notes the success of a unit: the agent has recorded its result. Units disappear by
    /// themselves here, because an agent must not rely on finding one.
    pub fn release(&mut self, unit: &str) {
        let unit = self.units.get(unit);
        let succeeded = unit.filter(|unit| matches!(unit.exit, Some((0, _))));
        self.recorded.extend(succeeded.map(|unit| unit.title.clone()));
    }

    /// Applies everything that is due, in order of time.
    pub fn tick(&mut self, now: Timestamp) -> Vec<Change> {
        let mut changes = Vec::new();
        while let Some((due, event)) = self.next_event()
            && due <= now
        {
            changes.push(match event {
                Event::Boot => self.boot(),
                Event::End(unit) => self.end(unit),
                Event::Collect(unit) => {
                    self.units.remove(&unit);
                    Change::Collected { unit }
                }
            });
        }
        changes
    }

    /// The next time at which something changes that is visible from outside.
    pub fn next_due(&self, now: Timestamp) -> Option<Timestamp> {
        let kubelet = Some(self.kubelet_up_at).filter(|at| *at > now);
        let event = self.next_event().map(|(at, _)| at);
        kubelet.into_iter().chain(event).min()
    }

    fn next_event(&self) -> Option<(Timestamp, Event)> {
        // A reboot kills all units, so nothing else can be due before it.
        if let Some(until) = self.down_until {
            return Some((until, Event::Boot));
        }
        self.units
            .iter()
            .map(|(name, unit)| match unit.exit {
                None => (unit.ends, Event::End(name.clone())),
                Some(_) => (unit.ends + COLLECTED_AFTER, Event::Collect(name.clone())),
            })
            .min()
    }

    fn boot(&mut self) -> Change {
        self.down_until = None;
        for unit in std::mem::take(&mut self.units).into_values() {
            if self.boots_for(&unit.command) && !unit.fails {
                self.succeeded.insert(unit.title);
            }
        }
        self.boots += 1;
        self.boot_id = boot_id(&self.node, self.boots);
        self.boot_os();
        self.boot_packages();
        self.start_kubelet();
        Change::Booted
    }

    fn end(&mut self, name: String) -> Change {
        let Some(unit) = self.units.get(&name).cloned() else {
            return Change::Collected { unit: name };
        };
        let exit = if unit.fails {
            let seconds = unit.ends.duration_since(unit.started).as_secs();
            let timeout = unit.timeout_seconds;
            if timeout > 0 && seconds >= i64::from(timeout) {
                (1, format!("timed out after {timeout} seconds"))
            } else {
                (1, format!("{}: simulated failure", unit.step))
            }
        } else {
            match self.carry_out(&unit.step, &unit.command) {
                Ok(output) => (0, output),
                Err(output) => (1, output),
            }
        };
        let code = exit.0;
        if code == 0 {
            self.succeeded.insert(unit.title);
            self.renew_certificates(&unit.command, unit.ends);
        }
        if let Some(unit) = self.units.get_mut(&name) {
            unit.exit = Some(exit);
        }
        Change::Ended { unit: name, code }
    }

    pub(super) fn start_kubelet(&mut self) {
        if let Some(version) = self.installed("kubelet") {
            self.kubelet_version = version.to_string();
        }
    }

    pub(super) fn has_package(&self, package: &str, version: &KubernetesVersion) -> Evidence {
        Evidence::from_check(self.installed(package).as_ref() == Some(version), || {
            format!("package {package} is not at version {version}")
        })
    }

    pub(super) fn install(&mut self, package: &str, bare_version: &str) {
        self.root.insert(package_path(package), format!("{bare_version}{PACKAGE_REVISION}"));
    }

    pub(super) fn configure(&mut self, version: &str) {
        if self.control_plane {
            for component in CONTROL_PLANE {
                let image = format!("registry.k8s.io/{component}:{}", version.replace('+', "_"));
                self.root.insert(manifest_path(component), manifest(component, &image));
            }
        }
        self.root.insert(KUBELET_CONFIG.to_owned(), kubelet_config(version));
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Boot,
    End(String),
    Collect(String),
}

pub(super) const KUBELET_CONFIG: &str = "/var/lib/kubelet/config.yaml";
/// The kubelet configuration as it was before kubeadm ran.
pub(super) const SAVED_CONFIG: &str = "/var/lib/refit/kubelet-config.yaml";

pub(super) fn kubelet_config(version: &str) -> String {
    format!("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n# {version}\n")
}

pub(super) fn package_path(package: &str) -> String {
    format!("/packages/{package}")
}

pub(super) fn manifest_path(component: &str) -> String {
    format!("/etc/kubernetes/manifests/{component}.yaml")
}

pub(super) fn manifest(component: &str, image: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {component}\n  namespace: kube-system\n\
         spec:\n  containers:\n  - name: {component}\n    image: {image}\n"
    )
}

/// 64-bit FNV-1a: the same on every machine and in every release.
fn fnv(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

fn boot_id(node: &str, boots: u32) -> String {
    let a = fnv(&format!("{node} boot {boots}"));
    let b = fnv(&format!("boot {boots} of {node}"));
    format!(
        "{:08x}-{:04x}-4{:03x}-8{:03x}-{:012x}",
        a >> 32,
        (a >> 16) & 0xffff,
        a & 0xfff,
        (b >> 48) & 0xfff,
        b & 0xffff_ffff_ffff
    )
}

/// How long a command takes on a node: always the same on one node, different between nodes.
pub fn duration(node: &str, command: &Command) -> SignedDuration {
    let (least, spread) = match command {
        Command::Step(HostStep::Preflight { .. }) => (4, 3),
        Command::Step(
            HostStep::Stage { .. } | HostStep::ImagePreload { .. } | HostStep::OsPackagesStage(_),
        ) => (20, 11),
        Command::Step(HostStep::Snapshot {} | HostStep::KubeadmInstall { .. }) => (7, 3),
        Command::Step(HostStep::OsImageStage { .. }) => (60, 20),
        Command::Step(
            HostStep::OsImageFinalize { .. }
            | HostStep::OsImageCommit { .. }
            | HostStep::UnitActions(_)
            | HostStep::Commands(_),
        )
        | Command::Undo(Undo::OsImage { .. } | Undo::Units(_)) => (6, 3),
        Command::Step(HostStep::KubeadmUpgrade { role: Role::FirstControlPlane, .. }) => (48, 6),
        Command::Step(HostStep::KubeadmUpgrade { .. }) => (30, 16),
        Command::Step(
            HostStep::KubeletInstall { .. }
            | HostStep::KubectlInstall { .. }
            | HostStep::ContainerRuntimeInstall { .. }
            | HostStep::OsPackagesInstall(_),
        )
        | Command::Undo(Undo::Packages { .. } | Undo::OsPackages) => (9, 3),
        Command::Step(HostStep::CertificatesRenew(_) | HostStep::EtcdUpgrade(_)) => (40, 10),
        Command::Step(HostStep::KubeletRestart {}) | Command::Undo(Undo::KubeletRestart) => (5, 3),
        Command::Step(HostStep::Reboot {}) => (55, 11),
        Command::Step(
            HostStep::Verify { .. }
            | HostStep::RebootIfRequired {}
            | HostStep::Files(_)
            | HostStep::KeysRevoke(_)
            | HostStep::Ntp(_)
            | HostStep::NtpReplace(_)
            | HostStep::KubeletFlags(_),
        )
        | Command::Undo(Undo::Files { .. } | Undo::Configuration) => (3, 1),
    };
    let extra = fnv(&format!("{node}/{}", command.name())) % spread;
    SignedDuration::from_secs(least + i64::try_from(extra).unwrap_or_default())
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
