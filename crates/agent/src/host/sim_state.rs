//! A simulated host as plain state: what is installed, what runs, what is under way.
//!
//! Pure and serialisable: a snapshot of the world keeps it, and the same state goes on in the same
//! way. Time passes by [`HostState::tick`].

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use refit_api::refit::{HostFacts, Role};
use serde::{Deserialize, Serialize};

use super::{
    CONTROL_PLANE, Command, Evidence, Job, KubernetesVersion, Since, UnitState,
    sim_trouble::Troubles,
};

/// How long an ended unit can still be asked about.
const COLLECTED_AFTER: SignedDuration = SignedDuration::from_secs(10);
/// How long the kubelet takes after a boot.
const KUBELET_AFTER_BOOT: SignedDuration = SignedDuration::from_secs(4);
/// The packages that a host has.
const PACKAGES: [&str; 3] = ["kubeadm", "kubectl", "kubelet"];
const ETCD_IMAGE: &str = "registry.k8s.io/etcd:3.6.5-0";
const PACKAGE_REVISION: &str = "-1.1";

/// A simulated host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HostState {
    /// Name of the node.
    pub node: String,
    /// Whether static pods of a control plane run here.
    pub control_plane: bool,
    /// Its root folder: content by path.
    pub root: BTreeMap<String, String>,
    /// Changes with each boot.
    pub boot_id: String,
    /// How often it booted.
    pub boots: u32,
    /// Until when it is down in a reboot.
    pub down_until: Option<Timestamp>,
    /// Version of the kubelet that runs, or ran last.
    pub kubelet_version: String,
    /// Since when the kubelet is up; in the future while it is down.
    pub kubelet_up_at: Timestamp,
    /// What was started, by unit name.
    pub units: BTreeMap<String, Unit>,
    /// How often each command that is not idempotent was started, by name.
    pub runs: BTreeMap<String, u32>,
    /// Which steps are to fail, and how often still.
    pub faults: BTreeMap<String, u32>,
    /// What else is wrong with it.
    #[serde(default)]
    pub troubles: Troubles,
    /// How many times faster than a real host it works.
    #[serde(default = "unhurried")]
    pub hurry: u32,
    /// From when on the static pods run, after a boot.
    #[serde(default)]
    pub static_pods_up_at: Option<Timestamp>,
}

fn unhurried() -> u32 {
    1
}

/// A command under way or just ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Unit {
    /// Id of the step.
    pub step: String,
    /// What runs.
    pub command: Command,
    /// When it started.
    pub started: Timestamp,
    /// When it ends.
    pub ends: Timestamp,
    /// Whether it is to fail.
    pub fails: bool,
    /// How it ended: exit code and output.
    pub exit: Option<(i32, String)>,
}

/// What a tick did; for logs, because whoever ticks first gets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A unit ended.
    Ended {
        /// Its name.
        unit: String,
        /// Its exit code.
        code: i32,
    },
    /// The host booted.
    Booted,
    /// An ended unit cannot be asked about any more.
    Collected {
        /// Its name.
        unit: String,
    },
}

impl HostState {
    /// A host that has run `version` (`vX.Y.Z`) since `now`.
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
            faults: BTreeMap::new(),
            troubles: Troubles::default(),
            hurry: unhurried(),
            static_pods_up_at: None,
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

    /// Whether the host runs.
    pub fn is_up(&self, now: Timestamp) -> bool {
        self.down_until.is_none_or(|until| until <= now)
    }

    /// Whether the kubelet runs.
    pub fn kubelet_up(&self, now: Timestamp) -> bool {
        self.is_up(now) && self.kubelet_up_at <= now
    }

    /// Version of an installed package, `vX.Y.Z`.
    pub fn installed(&self, package: &str) -> Option<KubernetesVersion> {
        let version = self.root.get(&package_path(package))?;
        KubernetesVersion::of_package(version).ok()
    }

    /// Image of a static pod, as its manifest has it.
    pub fn static_pod_image(&self, component: &str) -> Option<String> {
        let manifest = self.root.get(&manifest_path(component))?;
        let line = manifest
            .lines()
            .find_map(|l| l.trim().strip_prefix("image: "))?;
        Some(line.to_owned())
    }

    /// Version of a static pod, as its manifest has it.
    pub fn static_pod_version(&self, component: &str) -> Option<String> {
        let image = self.static_pod_image(component)?;
        image.rsplit_once(':').map(|(_, tag)| tag.to_owned())
    }

    /// What the agent reports of the host.
    pub fn facts(&self) -> HostFacts {
        let packages = PACKAGES
            .into_iter()
            .filter_map(|name| Some((name.to_owned(), self.root.get(&package_path(name))?.clone())))
            .collect();
        HostFacts {
            kubelet_version: self.kubelet_version.clone(),
            boot_id: self.boot_id.clone(),
            os_image: "Debian GNU/Linux 13 (trixie), simulated".to_owned(),
            packages,
        }
    }

    /// Whether [`HostState::start`] would start something: not if a unit of that name is there.
    pub fn would_start(&self, job: &Job) -> bool {
        !self.units.contains_key(&job.unit)
    }

    /// Starts a unit.
    pub fn start(&mut self, job: &Job, now: Timestamp) {
        if !self.would_start(job) {
            return;
        }
        if !job.command.idempotent() {
            *self.runs.entry(job.command.name().to_owned()).or_default() += 1;
        }
        let hangs = self.troubles.take_hang(&job.step);
        let fails = self.take_fault(&job.step) || hangs;
        let usual = self.takes(duration(&self.node, &job.command));
        let ends = now
            + self
                .troubles
                .stretched(&job.step, &job.command, usual, hangs);
        match job.command {
            Command::RestartKubelet if !fails => self.kubelet_up_at = ends,
            Command::Reboot if !fails => {
                self.down_until = Some(ends);
                self.kubelet_up_at = ends + self.takes(KUBELET_AFTER_BOOT);
                self.static_pods_start();
            }
            _ => {}
        }
        let unit = Unit {
            step: job.step.clone(),
            command: job.command.clone(),
            started: now,
            ends,
            fails,
            exit: None,
        };
        self.units.insert(job.unit.clone(), unit);
    }

    /// How far a unit is, as of the last tick.
    pub fn poll(&self, unit: &str) -> UnitState {
        match self.units.get(unit) {
            None => UnitState::Unknown,
            Some(Unit { exit: None, .. }) => UnitState::Running,
            Some(Unit {
                exit: Some((code, output)),
                ..
            }) => UnitState::Exited {
                code: *code,
                output_tail: output.clone(),
            },
        }
    }

    /// Looks whether the work of a command is done.
    pub fn look(&self, command: &Command, since: &Since) -> Evidence {
        match command {
            Command::PreflightChecks | Command::FetchPackages { .. } | Command::Snapshot => {
                Evidence::Done
            }
            Command::InstallKubeadm { version } => self.has_package("kubeadm", version),
            Command::InstallKubelet { version } => self.has_package("kubelet", version),
            Command::KubeadmUpgrade { version, .. } => Evidence::from_check(
                self.root.get(KUBELET_CONFIG) == Some(&kubelet_config(version.as_str())),
                || format!("{KUBELET_CONFIG} is not that of {version}"),
            ),
            Command::RestartKubelet => Evidence::from_check(self.kubelet_up_at > since.at, || {
                "the kubelet has not started again".to_owned()
            }),
            Command::Reboot => Evidence::from_check(self.boot_id != since.boot_id, || {
                "the host has not booted again".to_owned()
            }),
            Command::VerifyVersions { version } => match self.verify(version.as_ref()) {
                Ok(()) => Evidence::Done,
                Err(what) => Evidence::Missing { what },
            },
        }
    }

    /// Lets everything happen that is due, in order of time.
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

    /// When something happens next that the world outside can see.
    pub fn next_due(&self, now: Timestamp) -> Option<Timestamp> {
        let kubelet = Some(self.kubelet_up_at).filter(|at| *at > now);
        let event = self.next_event().map(|(at, _)| at);
        kubelet.into_iter().chain(event).min()
    }

    fn next_event(&self) -> Option<(Timestamp, Event)> {
        // A reboot kills what runs, so nothing else can be due before it.
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
        self.units.clear();
        self.boots += 1;
        self.boot_id = boot_id(&self.node, self.boots);
        self.start_kubelet();
        Change::Booted
    }

    fn end(&mut self, name: String) -> Change {
        let Some(unit) = self.units.get(&name).cloned() else {
            return Change::Collected { unit: name };
        };
        let exit = if unit.fails {
            let seconds = unit.ends.duration_since(unit.started).as_secs();
            let timeout = unit.command.timeout_seconds();
            if seconds >= i64::from(timeout) {
                (1, format!("ended after {timeout} seconds: it hung"))
            } else {
                (1, format!("{}: simulated failure", unit.step))
            }
        } else {
            match self.carry_out(&unit.command) {
                Ok(output) => (0, output),
                Err(output) => (1, output),
            }
        };
        let code = exit.0;
        if let Some(unit) = self.units.get_mut(&name) {
            unit.exit = Some(exit);
        }
        Change::Ended { unit: name, code }
    }

    fn carry_out(&mut self, command: &Command) -> Result<String, String> {
        if let Some(full) = self.troubles.no_space(command) {
            return Err(full);
        }
        match command {
            Command::PreflightChecks => Ok("the host can be updated".to_owned()),
            Command::FetchPackages { version } => {
                self.root
                    .insert(format!("/var/cache/refit/{version}"), PACKAGES.join(" "));
                Ok(format!("{} fetched", PACKAGES.join(", ")))
            }
            Command::Snapshot => {
                let manifests: Vec<String> = CONTROL_PLANE
                    .into_iter()
                    .filter_map(|c| self.static_pod_image(c))
                    .collect();
                self.root
                    .insert("/var/lib/refit/snapshot".to_owned(), manifests.join("\n"));
                Ok("snapshot saved".to_owned())
            }
            Command::InstallKubeadm { version } => {
                self.install("kubeadm", version.bare());
                Ok(format!("kubeadm {version} installed"))
            }
            Command::KubeadmUpgrade { role, version } => self.kubeadm_upgrade(*role, version),
            Command::InstallKubelet { version } => {
                self.install("kubelet", version.bare());
                self.install("kubectl", version.bare());
                Ok(format!("kubelet {version} installed"))
            }
            Command::RestartKubelet => {
                self.start_kubelet();
                Ok(String::new())
            }
            // Only one that was made to fail gets here: the others end in a boot.
            Command::Reboot => Err("the host did not go down".to_owned()),
            Command::VerifyVersions { version } => {
                self.verify(version.as_ref())?;
                Ok(format!("kubelet {} runs", self.kubelet_version))
            }
        }
    }

    fn kubeadm_upgrade(
        &mut self,
        role: Role,
        version: &KubernetesVersion,
    ) -> Result<String, String> {
        let installed = self.installed("kubeadm");
        if installed.as_ref() != Some(version) {
            let found = installed.map_or_else(|| "missing".to_owned(), |v| v.to_string());
            return Err(format!("kubeadm is {found}, {version} is needed"));
        }
        if (role == Role::Worker) == self.control_plane {
            return Err(format!("this host is not a {role:?}"));
        }
        self.configure(version.as_str());
        Ok(format!("[upgrade] SUCCESS! {version}"))
    }

    fn verify(&self, version: Option<&KubernetesVersion>) -> Result<(), String> {
        let running = &self.kubelet_version;
        let installed = self.installed("kubelet").ok_or("no kubelet is installed")?;
        let wanted = version.unwrap_or(&installed);
        if running != wanted.as_str() {
            return Err(format!("the kubelet runs {running}, {wanted} is needed"));
        }
        if version.is_some() && self.control_plane {
            for component in CONTROL_PLANE {
                let found = self.static_pod_version(component).unwrap_or_default();
                if found != wanted.as_str() {
                    return Err(format!("{component} is {found}, {wanted} is needed"));
                }
            }
        }
        Ok(())
    }

    fn start_kubelet(&mut self) {
        if let Some(version) = self.installed("kubelet") {
            self.kubelet_version = version.to_string();
        }
    }

    fn has_package(&self, package: &str, version: &KubernetesVersion) -> Evidence {
        Evidence::from_check(self.installed(package).as_ref() == Some(version), || {
            format!("package {package} is not {version}")
        })
    }

    fn install(&mut self, package: &str, bare_version: &str) {
        self.root.insert(
            package_path(package),
            format!("{bare_version}{PACKAGE_REVISION}"),
        );
    }

    fn configure(&mut self, version: &str) {
        if self.control_plane {
            for component in CONTROL_PLANE {
                let image = format!("registry.k8s.io/{component}:{version}");
                self.root
                    .insert(manifest_path(component), manifest(component, &image));
            }
        }
        self.root
            .insert(KUBELET_CONFIG.to_owned(), kubelet_config(version));
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Boot,
    End(String),
    Collect(String),
}

const KUBELET_CONFIG: &str = "/var/lib/kubelet/config.yaml";

fn kubelet_config(version: &str) -> String {
    format!("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n# {version}\n")
}

fn package_path(package: &str) -> String {
    format!("/packages/{package}")
}

fn manifest_path(component: &str) -> String {
    format!("/etc/kubernetes/manifests/{component}.yaml")
}

fn manifest(component: &str, image: &str) -> String {
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

/// How long a command takes on a node: the same each time, different from node to node.
pub fn duration(node: &str, command: &Command) -> SignedDuration {
    let (least, spread) = match command {
        Command::PreflightChecks => (4, 3),
        Command::FetchPackages { .. } => (20, 11),
        Command::Snapshot | Command::InstallKubeadm { .. } => (7, 3),
        Command::KubeadmUpgrade {
            role: Role::FirstControlPlane,
            ..
        } => (48, 6),
        Command::KubeadmUpgrade { .. } => (30, 16),
        Command::InstallKubelet { .. } => (9, 3),
        Command::RestartKubelet => (5, 3),
        Command::Reboot => (55, 11),
        Command::VerifyVersions { .. } => (3, 1),
    };
    let extra = fnv(&format!("{node}/{}", command.name())) % spread;
    SignedDuration::from_secs(least + i64::try_from(extra).unwrap_or_default())
}

#[cfg(test)]
#[path = "sim_tests.rs"]
mod tests;
