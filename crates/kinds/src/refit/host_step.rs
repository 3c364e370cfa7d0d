//! The steps of a host: a union of typed members, because no shell text comes from the API, and one
//! table that says what holds for each.
//!
//! A [`HostStep`] is the same value everywhere: in the API, in the agent's journal, and as the command
//! that is carried out. A plan leaves no choice to its execution: what is installed, from where, what
//! is preloaded and which files are written stands in the plan. What a step does not need is left out,
//! so a plan that only changes the Kubernetes version stays short.

use std::{borrow::Cow, collections::BTreeMap};

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};
use strum::{EnumDiscriminants, IntoStaticStr, VariantArray};

use super::{
    BundleRef, CertificateArgs, FileArgs, Gate, ImageArgs, KubeadmArgs, KubeletArgs, NtpArgs,
    OsImageArgs, PackageArgs, PackageVersion, Role,
};
use crate::version::KubernetesVersion;

/// One step that a host is to take.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlannedStep {
    /// Unique in the plan, such as `kubeadm-upgrade`.
    #[schemars(length(max = 63))]
    pub id: String,
    /// The gate that must be open.
    pub gate: Gate,
    /// What is done.
    pub action: PlannedAction,
    /// Whether pods on the node may notice.
    pub disruptive: bool,
    /// How long one try may take, in seconds; by default as long as the agent gives such a step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 86400))]
    pub timeout_seconds: Option<i32>,
    /// How often it is tried, the first try included; by default as often as the agent tries such a
    /// step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 20))]
    pub max_attempts: Option<i32>,
    /// How it is rolled back if the plan fails or is aborted before its point of no return; without
    /// it there is nothing to roll back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undo: Option<StepUndo>,
}

impl PlannedStep {
    /// A step as the table has it: its own id, gate and undo, and no limits of its own.
    pub fn new(step: HostStep) -> Self {
        let rules = step.rules();
        Self {
            id: StepType::from(&step).id().to_owned(),
            gate: rules.gate,
            action: PlannedAction::Known(step),
            disruptive: rules.disruptive,
            timeout_seconds: None,
            max_attempts: None,
            undo: rules.undo,
        }
    }

    /// What is done, if this program knows it.
    pub fn step(&self) -> Option<&HostStep> {
        match &self.action {
            PlannedAction::Known(step) => Some(step),
            PlannedAction::Unknown(_) => None,
        }
    }

    /// The type of what is done, if this program knows it.
    pub fn step_type(&self) -> Option<StepType> {
        self.step().map(StepType::from)
    }
}

/// What a planned step does.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "nearly every one is known, and there are few")]
pub enum PlannedAction {
    /// A step that this program can carry out.
    Known(HostStep),
    /// A step that it cannot: of a newer program, or with arguments that are not what it takes.
    Unknown(UnknownStep),
}

/// A step that cannot be carried out. A plan with one is readable all the same: the agent refuses it
/// by name before it begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownStep {
    /// The action as it was read.
    value: Value,
    /// Why it cannot be carried out.
    error: StepError,
}

/// Why an action cannot be carried out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StepError {
    /// Its member is not one of [`HostStep`].
    #[error("this program does not know the step {member:?}: install a newer one")]
    Member {
        /// Name of the member.
        member: String,
    },
    /// Its member is known, and its arguments are not what that takes.
    #[error("{member}: {why}")]
    Arguments {
        /// Name of the member.
        member: String,
        /// What is wrong with them.
        why: String,
    },
    /// It is not an object with exactly one member.
    #[error("an action has exactly one member, such as kubeadmUpgrade; this one has {0}")]
    NotOne(usize),
    /// It has no member: none was written, or the API server did not keep it.
    #[error(
        "the action is empty: the HostPlan's CRD does not know its member, or the plan is from \
         before the CRD; let the controller make a new plan"
    )]
    Empty,
}

impl UnknownStep {
    /// Why it cannot be carried out.
    pub fn error(&self) -> &StepError {
        &self.error
    }
}

impl PlannedAction {
    /// Reads an action; what cannot be carried out is kept as it is.
    fn read(value: Map<String, Value>) -> Self {
        let value = modernised(value);
        let read = serde_json::from_value::<HostStep>(Value::Object(value.clone()));
        let error = match read.map_err(|error| error.to_string()).map(|step| (step.lacks(), step)) {
            Ok((None, step)) => return Self::Known(step),
            Ok((Some(lacks), _)) => StepError::of(&value, lacks.to_owned()),
            Err(error) => StepError::of(&value, error),
        };
        Self::Unknown(UnknownStep { value: Value::Object(value), error })
    }
}

impl StepError {
    fn of(value: &Map<String, Value>, why: String) -> Self {
        if value.is_empty() {
            return Self::Empty;
        }
        let mut members = value.keys();
        let (Some(member), None) = (members.next(), members.next()) else {
            return Self::NotOne(value.len());
        };
        let member = member.clone();
        if StepType::VARIANTS.iter().any(|known| known.member() == member) {
            Self::Arguments { member, why }
        } else {
            Self::Member { member }
        }
    }
}

/// The union of an action as plans and journals had it before the union: a `type`, and beside it the
/// arguments of all types.
fn modernised(mut value: Map<String, Value>) -> Map<String, Value> {
    let Some(Value::String(type_)) = value.get("type").cloned() else {
        return value;
    };
    value.remove("type");
    // What were arguments of one type alone are its member's own fields now.
    let own = match type_.as_str() {
        "Files" => Some("files"),
        "Ntp" => Some("ntp"),
        "CertificatesRenew" => Some("certificates"),
        "KubeletFlags" => Some("kubelet"),
        _ => None,
    };
    let arguments = match own {
        Some(own) => value.remove(own).unwrap_or_default(),
        None => Value::Object(value),
    };
    Map::from_iter([(lower_first(&type_), arguments)])
}

/// `KubeadmUpgrade` as a field name.
fn lower_first(name: &str) -> String {
    let mut characters = name.chars();
    let first = characters.next().map(|first| first.to_ascii_lowercase());
    first.into_iter().chain(characters).collect()
}

impl<'de> Deserialize<'de> for PlannedAction {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Map::deserialize(deserializer).map(Self::read)
    }
}

impl Serialize for PlannedAction {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Known(step) => step.serialize(serializer),
            Self::Unknown(unknown) => unknown.value.serialize(serializer),
        }
    }
}

impl JsonSchema for PlannedAction {
    fn schema_name() -> Cow<'static, str> {
        HostStep::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        HostStep::json_schema(generator)
    }
}

/// What a host can be told to do: exactly one member. The members are in the order in which a plan has
/// them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema, EnumDiscriminants)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
#[schemars(transform = one_member)]
#[strum_discriminants(
    name(StepType),
    doc = "The type of a step, as agents report which they know.",
    derive(PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema, IntoStaticStr, VariantArray),
    strum(serialize_all = "kebab-case")
)]
pub enum HostStep {
    /// Checks whether the host can be updated at all.
    Preflight {
        /// The Kubernetes version that the host is to be updated to, if it is.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        version: Option<KubernetesVersion>,
    },
    /// Downloads packages without installing them, and container images.
    Stage {
        /// Version of the packages of Kubernetes.
        version: KubernetesVersion,
        /// Where packages come from, and which beside those of Kubernetes.
        #[serde(default, skip_serializing_if = "is_default")]
        packages: PackageArgs,
        /// Container images to have before anything is disturbed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        images: Option<ImageArgs>,
        /// The bundle that packages and images come from, also for the steps that install.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        bundle: Option<BundleRef>,
    },
    /// Pulls container images, or imports them from a bundle.
    ImagePreload {
        /// Version of Kubernetes, for kubeadm's own images.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        version: Option<KubernetesVersion>,
        /// Which images.
        images: ImageArgs,
        /// The bundle that they come from.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        bundle: Option<BundleRef>,
    },
    /// Writes an OS image to the volumes that do not run; nothing boots it yet.
    OsImageStage {
        /// Which image.
        os_image: OsImageArgs,
        /// The bundle that it comes from, where its URL is `bundle:///os/NAME`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        bundle: Option<BundleRef>,
    },
    /// Saves etcd, static pod manifests and the kubelet's configuration.
    Snapshot {},
    /// Installs the kubeadm package.
    KubeadmInstall {
        /// Version of the package.
        version: KubernetesVersion,
        /// Where packages come from, and which beside it.
        #[serde(default, skip_serializing_if = "is_default")]
        packages: PackageArgs,
    },
    /// Runs `kubeadm upgrade apply` on the first control plane, else `kubeadm upgrade node`.
    KubeadmUpgrade {
        /// The version to upgrade to.
        version: KubernetesVersion,
        /// Role of the machine.
        role: Role,
        /// How kubeadm is run.
        #[serde(default, skip_serializing_if = "is_default")]
        kubeadm: KubeadmArgs,
    },
    /// Renews kubeadm's certificates that end soon, and restarts the static pods that use them.
    CertificatesRenew(CertificateArgs),
    /// Writes files and makes users; never a file that was not saved first.
    Files(FileArgs),
    /// Sets the time servers of the host.
    Ntp(NtpArgs),
    /// Installs the packages of the container runtime, and restarts it where they changed it.
    #[schemars(extend("x-kubernetes-validations" = [{
        "rule": "!has(self.containerRuntimeInstall) || (has(self.containerRuntimeInstall.packages.install) && size(self.containerRuntimeInstall.packages.install) > 0)",
        "message": "containerRuntimeInstall needs its packages in packages.install",
    }]))]
    ContainerRuntimeInstall {
        /// Which packages, and where they come from.
        packages: PackageArgs,
    },
    /// Makes the staged OS image the one of the next boot. Never reboots by itself.
    OsImageFinalize {
        /// Which image.
        os_image: OsImageArgs,
    },
    /// Sets the flags of a kubelet that no package brings.
    KubeletFlags(KubeletArgs),
    /// Installs the kubelet and kubectl packages, and sets the kubelet's flags.
    KubeletInstall {
        /// Version of the packages.
        version: KubernetesVersion,
        /// Where packages come from, and which beside them.
        #[serde(default, skip_serializing_if = "is_default")]
        packages: PackageArgs,
        /// Flags of the kubelet.
        #[serde(default, skip_serializing_if = "is_default")]
        kubelet: KubeletArgs,
    },
    /// Installs the kubectl package alone.
    KubectlInstall {
        /// Version of the package.
        version: KubernetesVersion,
        /// Where packages come from, and which beside it.
        #[serde(default, skip_serializing_if = "is_default")]
        packages: PackageArgs,
    },
    /// Restarts the kubelet.
    KubeletRestart {},
    /// Reboots the host; always the last step but for the checks.
    Reboot {},
    /// After the boot: keeps the OS image that runs.
    OsImageCommit {
        /// Which image.
        os_image: OsImageArgs,
    },
    /// Checks on the host that the new versions run.
    Verify {
        /// What must run; without it, the kubelet that is installed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        version: Option<KubernetesVersion>,
    },
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// A schema of an externally tagged enum as Kubernetes writes unions: an object with exactly one of
/// the members. An older schema prunes a newer member: `minProperties` then reports it in one line,
/// where `oneOf` would list every member.
fn one_member(schema: &mut Schema) {
    let Some(Value::Array(variants)) = schema.remove("oneOf") else {
        return;
    };
    let (mut members, mut rules) = (Map::new(), Vec::new());
    for mut variant in variants {
        let description = variant.get("description").cloned();
        if let Some(Value::Array(own)) = variant.get_mut("x-kubernetes-validations") {
            rules.append(own);
        }
        let Some(Value::Object(own)) = variant.get_mut("properties") else { continue };
        for (name, mut member) in std::mem::take(own) {
            if let (Some(member), Some(description)) = (member.as_object_mut(), &description) {
                member.insert("description".to_owned(), description.clone());
            }
            members.insert(name, member);
        }
    }
    schema.insert("type".to_owned(), "object".into());
    schema.insert("minProperties".to_owned(), 1.into());
    schema.insert("maxProperties".to_owned(), 1.into());
    schema.insert("properties".to_owned(), Value::Object(members));
    if !rules.is_empty() {
        schema.insert("x-kubernetes-validations".to_owned(), Value::Array(rules));
    }
}

/// How the work of a step is rolled back. Each may be done twice, and on a host on which the step did
/// nothing.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub enum StepUndo {
    /// The packages of the step go back to the versions from before the plan.
    Packages,
    /// Static pod manifests and the kubelet's configuration go back to those of the plan's snapshot.
    Configuration,
    /// The files of the step go back to what was saved, and those that were not there are removed.
    Files,
    /// The next boot is of the OS image that runs now; after a boot, of the previous one.
    OsImage,
    /// The kubelet is restarted, once everything else is back.
    KubeletRestart,
}

/// What proves that the work of a step is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepEvidence {
    /// The mark that its command leaves when it succeeds.
    Mark,
    /// What the host shows.
    Host,
    /// Both: the host shows only part of the work.
    Both,
}

/// What holds for every step of one type: one row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepRules {
    /// The gate that must be open.
    pub gate: Gate,
    /// Whether pods on the node may notice.
    pub disruptive: bool,
    /// How it is rolled back; `None` for one that changes nothing that runs or will run, or that
    /// cannot be.
    pub undo: Option<StepUndo>,
    /// How long one try may take before it counts as hung, in seconds.
    pub timeout_seconds: u32,
    /// How often it is tried, the first try included.
    pub attempts: i32,
    /// Whether a second run does no harm. One that is not idempotent is never run again after a
    /// restart of the agent without looking at the host first.
    pub idempotent: bool,
    /// What proves that it is done.
    pub evidence: StepEvidence,
    /// Packages of Kubernetes that it installs, at its version.
    pub installs: &'static [&'static str],
}

/// Two failures in a row are often a lock or a mirror; three are not.
pub const USUAL_ATTEMPTS: i32 = 3;
/// Nothing is disturbed during a download, and a connection that was down is often back after two
/// minutes.
const DOWNLOAD_ATTEMPTS: i32 = 7;
/// How long a host may take from the reboot command to its next boot, in seconds.
const REBOOT_SECONDS: u32 = 900;

impl StepType {
    /// Id of the step in plans of the controller, such as `kubeadm-upgrade`: statuses, durations and
    /// limits name it so.
    pub fn id(self) -> &'static str {
        self.into()
    }

    /// Name of its member in an action, such as `kubeadmUpgrade`.
    pub fn member(self) -> String {
        lower_first(&format!("{self:?}"))
    }

    /// The table: what holds for every step of this type.
    ///
    /// kubeadm waits 5 minutes for each of four static pods, and etcd's is the slow one
    /// (`spec/node.md 2.4`); a download over a slow connection takes as long. The health checks of a
    /// new OS image run in its commit, and none has a timeout of its own.
    #[expect(clippy::match_same_arms, reason = "each step has its row")]
    pub const fn rules(self) -> StepRules {
        use Gate::{Disrupt, Stage, Upgrade};
        use StepEvidence::{Both, Host, Mark};
        use StepUndo as Undo;
        const QUICK: u32 = 300;
        const SAVE: u32 = 900;
        const INSTALL: u32 = 1200;
        const LONG: u32 = 3600;
        const TRIES: i32 = USUAL_ATTEMPTS;
        const ONCE: bool = false;
        const AGAIN: bool = true;
        const NONE: &[&str] = &[];
        const KUBEADM: &[&str] = &["kubeadm"];
        const KUBELET: &[&str] = &["kubelet", "kubectl"];
        const KUBECTL: &[&str] = &["kubectl"];
        // Rows of the table are lines.
        #[rustfmt::skip]
        let (gate, disruptive, undo, timeout_seconds, attempts, idempotent, evidence, installs) = match self {
            Self::Preflight => (Stage, false, None, QUICK, TRIES, AGAIN, Mark, NONE),
            Self::Stage => (Stage, false, Some(Undo::Files), LONG, DOWNLOAD_ATTEMPTS, AGAIN, Mark, NONE),
            Self::ImagePreload => (Stage, false, None, LONG, DOWNLOAD_ATTEMPTS, AGAIN, Mark, NONE),
            Self::OsImageStage => (Stage, false, None, LONG, DOWNLOAD_ATTEMPTS, AGAIN, Host, NONE),
            Self::Snapshot => (Stage, false, None, SAVE, TRIES, AGAIN, Mark, NONE),
            Self::KubeadmInstall => (Upgrade, false, Some(Undo::Packages), INSTALL, TRIES, AGAIN, Both, KUBEADM),
            Self::KubeadmUpgrade => (Upgrade, false, Some(Undo::Configuration), LONG, TRIES, ONCE, Both, NONE),
            // Each of four static pods may take its time to come back.
            Self::CertificatesRenew => (Upgrade, false, None, INSTALL, TRIES, AGAIN, Mark, NONE),
            Self::Files => (Disrupt, true, Some(Undo::Files), QUICK, TRIES, AGAIN, Both, NONE),
            Self::Ntp => (Disrupt, false, Some(Undo::Files), QUICK, TRIES, AGAIN, Both, NONE),
            Self::ContainerRuntimeInstall => (Disrupt, true, Some(Undo::Packages), INSTALL, TRIES, AGAIN, Both, NONE),
            Self::OsImageFinalize => (Disrupt, false, Some(Undo::OsImage), SAVE, TRIES, AGAIN, Host, NONE),
            Self::KubeletFlags => (Disrupt, false, Some(Undo::Files), QUICK, TRIES, AGAIN, Both, NONE),
            Self::KubeletInstall => (Disrupt, true, Some(Undo::Packages), INSTALL, TRIES, AGAIN, Both, KUBELET),
            Self::KubectlInstall => (Disrupt, false, Some(Undo::Packages), INSTALL, TRIES, AGAIN, Both, KUBECTL),
            Self::KubeletRestart => (Disrupt, true, Some(Undo::KubeletRestart), QUICK, TRIES, ONCE, Mark, NONE),
            Self::Reboot => (Disrupt, true, None, REBOOT_SECONDS, TRIES, ONCE, Host, NONE),
            Self::OsImageCommit => (Disrupt, false, None, INSTALL, TRIES, AGAIN, Host, NONE),
            Self::Verify => (Disrupt, false, None, QUICK, TRIES, AGAIN, Host, NONE),
        };
        StepRules {
            gate,
            disruptive,
            undo,
            timeout_seconds,
            attempts,
            idempotent,
            evidence,
            installs,
        }
    }
}

impl HostStep {
    /// What holds for every step of this type.
    pub fn rules(&self) -> StepRules {
        StepType::from(self).rules()
    }

    /// What it does not say and has to.
    fn lacks(&self) -> Option<&'static str> {
        if let Self::ContainerRuntimeInstall { packages } = self
            && packages.install.is_empty()
        {
            return Some("packages.install names no package");
        }
        if let Self::CertificatesRenew(certificates) = self
            && certificates.renew_within_days < 1
        {
            return Some("renewWithinDays is less than 1");
        }
        None
    }

    /// Where its packages come from, and which it installs beside those of Kubernetes.
    pub fn packages(&self) -> Option<&PackageArgs> {
        match self {
            Self::Stage { packages, .. }
            | Self::KubeadmInstall { packages, .. }
            | Self::ContainerRuntimeInstall { packages }
            | Self::KubeletInstall { packages, .. }
            | Self::KubectlInstall { packages, .. } => Some(packages),
            Self::Preflight { .. }
            | Self::ImagePreload { .. }
            | Self::OsImageStage { .. }
            | Self::Snapshot {}
            | Self::KubeadmUpgrade { .. }
            | Self::CertificatesRenew(_)
            | Self::Files(_)
            | Self::Ntp(_)
            | Self::OsImageFinalize { .. }
            | Self::KubeletFlags(_)
            | Self::KubeletRestart {}
            | Self::Reboot {}
            | Self::OsImageCommit { .. }
            | Self::Verify { .. } => None,
        }
    }

    /// The Kubernetes version that it is about.
    pub fn version(&self) -> Option<&KubernetesVersion> {
        match self {
            Self::Stage { version, .. }
            | Self::KubeadmInstall { version, .. }
            | Self::KubeadmUpgrade { version, .. }
            | Self::KubeletInstall { version, .. }
            | Self::KubectlInstall { version, .. } => Some(version),
            Self::Preflight { version }
            | Self::ImagePreload { version, .. }
            | Self::Verify { version } => version.as_ref(),
            Self::OsImageStage { .. }
            | Self::Snapshot {}
            | Self::CertificatesRenew(_)
            | Self::Files(_)
            | Self::Ntp(_)
            | Self::ContainerRuntimeInstall { .. }
            | Self::OsImageFinalize { .. }
            | Self::KubeletFlags(_)
            | Self::KubeletRestart {}
            | Self::Reboot {}
            | Self::OsImageCommit { .. } => None,
        }
    }
}

/// What the hosts of a Machine's group or cluster need beside a Kubernetes version. It is read from
/// the annotation `refit.dev/host-settings`, as JSON, when a plan is made; what it leaves out is not
/// planned.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HostSettings {
    /// Where packages come from.
    #[serde(default)]
    pub packages: Option<PackageArgs>,
    /// How kubeadm is run.
    #[serde(default)]
    pub kubeadm: Option<KubeadmArgs>,
    /// Arguments of the kubelet.
    #[serde(default)]
    pub kubelet: Option<KubeletArgs>,
    /// When certificates of a control plane are renewed apart from an upgrade; without it never.
    #[serde(default)]
    pub certificates: Option<CertificateArgs>,
    /// Packages of the container runtime, such as `containerd.io`; empty: it stays as it is.
    #[serde(default)]
    pub container_runtime: Vec<PackageVersion>,
    /// The OS image; without it the OS stays as it is.
    #[serde(default)]
    pub os_image: Option<OsImageArgs>,
    /// Container images to have before a node is emptied, beside kubeadm's own.
    #[serde(default)]
    pub images: Option<ImageArgs>,
    /// Files and users.
    #[serde(default)]
    pub files: Option<FileArgs>,
    /// Time synchronisation.
    #[serde(default)]
    pub ntp: Option<NtpArgs>,
    /// The bundle that packages and images come from.
    #[serde(default)]
    pub bundle: Option<BundleRef>,
    /// Time and tries of single steps, by id.
    #[serde(default)]
    pub limits: BTreeMap<String, StepLimits>,
}

/// Time and tries of one step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StepLimits {
    /// How long one try may take, in seconds.
    #[serde(default)]
    pub timeout_seconds: Option<i32>,
    /// How often it is tried, the first try included.
    #[serde(default)]
    pub max_attempts: Option<i32>,
}

impl HostSettings {
    /// Reads the annotation. A field that nobody knows is refused, wherever it stands: a plan that
    /// leaves out what somebody asked for would be worse than none.
    ///
    /// ```
    /// use refit_kinds::refit::HostSettings;
    /// let settings = HostSettings::parse(r#"{"kubeadm": {"skipPhases": ["addon/coredns"]}}"#).unwrap();
    /// assert_eq!(settings.kubeadm.unwrap().skip_phases, ["addon/coredns"]);
    /// let error = HostSettings::parse(r#"{"kubeadm": {"skipPhase": ["addon/coredns"]}}"#).unwrap_err();
    /// assert_eq!(error, "kubeadm.skipPhase is not known");
    /// ```
    pub fn parse(text: &str) -> Result<Self, String> {
        let input: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let settings: Self =
            serde_json::from_value(input.clone()).map_err(|error| error.to_string())?;
        let known = serde_json::to_value(&settings).map_err(|error| error.to_string())?;
        match unknown_field(&input, &known, "") {
            Some(field) => Err(format!("{field} is not known")),
            None => Ok(settings),
        }
    }
}

/// The first field of `input` that reading it has lost. What is empty may be left out.
fn unknown_field(input: &Value, known: &Value, path: &str) -> Option<String> {
    match (input, known) {
        (Value::Object(input), Value::Object(known)) => input.iter().find_map(|(name, value)| {
            let path = match path {
                "" => name.clone(),
                path => format!("{path}.{name}"),
            };
            match known.get(name) {
                Some(known) => unknown_field(value, known, &path),
                None => (!is_empty(value)).then_some(path),
            }
        }),
        (Value::Array(input), Value::Array(known)) => {
            let mut both = input.iter().zip(known).enumerate();
            both.find_map(|(at, (input, known))| {
                unknown_field(input, known, &format!("{path}[{at}]"))
            })
        }
        _ => None,
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::*;

    #[test]
    fn settings_are_read_whole_or_not_at_all() {
        let text = r#"{
            "packages": {"driver": "Apt", "repository": "https://p.example/", "install": []},
            "containerRuntime": [{"name": "containerd.io", "version": "2.1.4-1"}],
            "osImage": {"name": "os-2", "url": "file:///os-2.cosi", "sha384": "ab"},
            "files": {"files": [{"path": "/etc/x", "encoding": "base64", "content": "eA==", "append": false}]},
            "ntp": {"enabled": false},
            "limits": {"stage": {"timeoutSeconds": 7200}}
        }"#;
        let settings = HostSettings::parse(text).unwrap();
        assert_eq!(settings.container_runtime[0].version, "2.1.4-1");
        assert_eq!(settings.limits["stage"].timeout_seconds, Some(7200));
        assert_eq!(HostSettings::parse("{}"), Ok(HostSettings::default()));
    }

    #[test]
    fn what_is_not_understood_is_named() {
        for (text, wrong) in [
            (r#"{"ntpp": {}}"#, "ntpp"),
            (
                r#"{"files": {"files": [{"path": "/x", "mode": "0600"}]}}"#,
                "files.files[0].mode is not known",
            ),
            (r#"{"limits": {"stage": {"timeout": 5}}}"#, "timeout"),
            (r#"{"packages": {"driver": "Yum"}}"#, "Yum"),
            ("[", "EOF"),
        ] {
            let error = HostSettings::parse(text).unwrap_err();
            assert!(error.contains(wrong), "{error}");
        }
    }

    fn read(action: Value) -> PlannedAction {
        serde_json::from_value(action).unwrap()
    }

    #[test]
    fn a_step_is_a_union_with_one_member() {
        let action = json!({"kubeadmUpgrade": {"version": "v1.35.0", "role": "Worker"}});
        let step = HostStep::KubeadmUpgrade {
            version: KubernetesVersion::new(1, 35, 0),
            role: Role::Worker,
            kubeadm: KubeadmArgs::default(),
        };
        assert_eq!(read(action.clone()), PlannedAction::Known(step.clone()));
        assert_eq!(serde_json::to_value(&step).unwrap(), action);
        assert_eq!(serde_json::to_value(HostStep::Reboot {}).unwrap(), json!({"reboot": {}}));
    }

    #[test]
    fn a_step_that_is_not_known_is_kept_and_says_why() {
        for (action, why) in [
            (
                json!({"firmwareUpdate": {"version": "2"}}),
                "this program does not know the step \"firmwareUpdate\": install a newer one",
            ),
            (
                json!({"kubeadmUpgrade": {"version": "v1.35.0"}}),
                "kubeadmUpgrade: missing field `role`",
            ),
            (
                json!({"verify": {"version": "1.35"}}),
                "verify: \"1.35\" is not a Kubernetes version: it does not start with v; want vX.Y.Z",
            ),
            (
                json!({"certificatesRenew": {"renewWithinDays": 0}}),
                "certificatesRenew: renewWithinDays is less than 1",
            ),
            (
                json!({"containerRuntimeInstall": {"packages": {"driver": "Apt"}}}),
                "containerRuntimeInstall: packages.install names no package",
            ),
            (
                json!({}),
                "the action is empty: the HostPlan's CRD does not know its member, or the plan is \
                 from before the CRD; let the controller make a new plan",
            ),
            (
                json!({"reboot": {}, "verify": {}}),
                "an action has exactly one member, such as kubeadmUpgrade; this one has 2",
            ),
        ] {
            let PlannedAction::Unknown(unknown) = read(action.clone()) else {
                panic!("{action} is known");
            };
            assert_eq!(unknown.error().to_string(), why);
            assert_eq!(serde_json::to_value(PlannedAction::Unknown(unknown)).unwrap(), action);
        }
    }

    #[test]
    fn an_action_from_before_the_union_is_read() {
        let certificates = json!({"renewWithinDays": 60});
        for (old, new) in [
            (json!({"type": "Snapshot", "role": "Worker"}), json!({"snapshot": {}})),
            (
                json!({"type": "Stage", "version": "v1.35.0", "packages": {"driver": "Apt"}}),
                json!({"stage": {"version": "v1.35.0", "packages": {"driver": "Apt"}}}),
            ),
            (
                json!({"type": "OsImageCommit", "osImage": {"name": "os-2", "url": "u", "sha384": "ab"}}),
                json!({"osImageCommit": {"osImage": {
                    "name": "os-2", "url": "u", "sha384": "ab", "bringsKubelet": false,
                }}}),
            ),
            (
                json!({"type": "CertificatesRenew", "certificates": certificates}),
                json!({"certificatesRenew": certificates}),
            ),
            (json!({"type": "Ntp", "ntp": {"enabled": true}}), json!({"ntp": {"enabled": true}})),
        ] {
            assert_eq!(serde_json::to_value(read(old)).unwrap(), new);
        }
    }

    #[test]
    fn an_old_action_without_its_arguments_does_nothing() {
        for type_ in ["Files", "Ntp", "KubeletFlags", "CertificatesRenew", "Stage"] {
            let action = read(json!({"type": type_}));
            assert!(matches!(action, PlannedAction::Unknown(_)), "{action:?}");
        }
    }

    #[test]
    fn the_schema_wants_exactly_one_object() {
        let schema = HostStep::json_schema(&mut SchemaGenerator::default());
        let members = schema.get("properties").and_then(Value::as_object).unwrap();
        let names: BTreeSet<_> = StepType::VARIANTS.iter().map(|type_| type_.member()).collect();
        assert_eq!(members.keys().cloned().collect::<BTreeSet<_>>(), names);
        assert!(members.values().all(|member| member["description"].is_string()));
        assert_eq!(schema.get("minProperties"), Some(&json!(1)));
        assert_eq!(schema.get("maxProperties"), Some(&json!(1)));
        assert!(schema.get("oneOf").is_none());
    }

    #[test]
    fn the_table_agrees_with_itself() {
        for type_ in StepType::VARIANTS {
            let rules = type_.rules();
            assert!(rules.gate > Gate::Closed, "{type_:?}");
            assert!(rules.disruptive <= (rules.gate == Gate::Disrupt), "{type_:?}");
            assert!(rules.attempts > 0 && rules.timeout_seconds >= 300, "{type_:?}");
            assert_eq!(type_.id().replace('-', ""), type_.member().to_lowercase());
        }
    }
}
