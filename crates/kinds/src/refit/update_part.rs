//! The parts of an update: what each updater does in it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    CONFIGURATION, ConfigurationPart, Disruption, Gate, NodeUpdateSpec, NodeUpdateStatus,
    OsImageArgs, OsPackageArgs, StepState, UpdaterAction, UpdaterTemplate, host_step::one_member,
};
use crate::canonical::K8SD;

/// Name of the built-in updater that brings hosts to a Kubernetes version.
pub const KUBEADM: &str = "kubeadm";

/// What one updater does in an update.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UpdatePart {
    /// `kubeadm`, `kubeadm-config`, `k8sd`, or the name of an Updater.
    #[schemars(length(min = 1, max = 253), regex(pattern = "^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$"))]
    pub updater: String,
    /// What it does.
    pub action: UpdaterAction,
    /// How that disturbs the machine.
    #[serde(default)]
    pub disruption: Disruption,
    /// How long it may take, in seconds, until the update fails.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub timeout_seconds: Option<i32>,
    /// What the agent on the host does for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<HostPart>,
    /// The template of the provider that does it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<ProviderPart>,
}

/// What a provider does for an Updater.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProviderPart {
    /// The template that its object is made from.
    pub template: UpdaterTemplate,
    /// Whether it brings the machine to the Kubernetes version, instead of `kubeadm`.
    #[serde(default)]
    pub brings_version: bool,
}

/// What the agent on a host does for an Updater: exactly one member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = one_member)]
pub enum HostPart {
    /// Installs an OS image.
    OsImage(OsImageArgs),
    /// Installs packages of the operating system in place.
    OsPackages(OsPackageArgs),
    /// Applies what changes in the KubeadmConfig of the machine.
    Configuration(ConfigurationPart),
}

impl HostPart {
    /// The OS image that is installed.
    pub fn os_image(&self) -> Option<&OsImageArgs> {
        match self {
            Self::OsImage(image) => Some(image),
            Self::OsPackages(_) | Self::Configuration(_) => None,
        }
    }

    /// The packages of the operating system that are installed.
    pub fn os_packages(&self) -> Option<&OsPackageArgs> {
        match self {
            Self::OsPackages(packages) => Some(packages),
            Self::OsImage(_) | Self::Configuration(_) => None,
        }
    }

    /// What is applied of a KubeadmConfig.
    pub fn configuration(&self) -> Option<&ConfigurationPart> {
        match self {
            Self::Configuration(part) => Some(part),
            Self::OsImage(_) | Self::OsPackages(_) => None,
        }
    }
}

/// What an update does for a machine that stays at its version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Upkeep {
    /// It issues certificates.
    Certificates,
    /// It gives the host its changed HostSettings.
    HostSettings,
}

impl UpdatePart {
    /// The part of the host: the agent brings it to the Kubernetes version of the goal.
    pub fn kubeadm() -> Self {
        Self {
            updater: KUBEADM.to_owned(),
            action: UpdaterAction::Update,
            disruption: Disruption::Drain,
            timeout_seconds: None,
            host: None,
            template: None,
        }
    }

    /// The part of a control plane host whose certificates kubeadm renews: its static pods are restarted, and all other
    /// pods stay.
    pub fn renewal() -> Self {
        Self { disruption: Disruption::Restart, ..Self::kubeadm() }
    }

    /// The part of a host that gets what changes in its KubeadmConfig.
    pub fn configuration(part: ConfigurationPart, disruption: Disruption) -> Self {
        Self {
            updater: CONFIGURATION.to_owned(),
            disruption,
            host: Some(HostPart::Configuration(part)),
            ..Self::kubeadm()
        }
    }

    /// The part of a host that gets its changed HostSettings: how much that disturbs it follows from the steps alone.
    pub fn host_settings() -> Self {
        Self { disruption: Disruption::None, ..Self::kubeadm() }
    }

    /// The part of k8sd, which refreshes the snap of the node to the goal's option, or its certificates.
    pub fn k8sd(disruption: Disruption) -> Self {
        Self { updater: K8SD.to_owned(), disruption, ..Self::kubeadm() }
    }

    /// Whether k8sd does it.
    pub fn is_of_k8sd(&self) -> bool {
        self.updater == K8SD
    }

    /// The part of a host that was brought to the Kubernetes version of the goal by hand: it is only verified.
    pub fn adopted() -> Self {
        Self { action: UpdaterAction::Leave, disruption: Disruption::None, ..Self::kubeadm() }
    }

    /// Whether it is the part of a host that is only verified.
    pub fn is_adopted(&self) -> bool {
        self.updater == KUBEADM && self.action == UpdaterAction::Leave
    }

    /// Whether it brings the machine to the Kubernetes version of the goal.
    pub fn brings_version(&self) -> bool {
        let by_provider = self.template.as_ref().is_some_and(|part| part.brings_version);
        self.updater == KUBEADM && !self.is_adopted() || by_provider
    }
}

impl NodeUpdateSpec {
    /// Whether the agent on the host works for this update.
    pub fn works_on_host(&self) -> bool {
        let is_of_host = |part: &UpdatePart| {
            part.updater == KUBEADM && !part.is_adopted() || part.host.is_some()
        };
        self.parts.as_ref().is_none_or(|parts| parts.iter().any(is_of_host))
    }

    /// How the update disturbs its machine, by its parts: as the one that disturbs it most. Without parts, kubeadm's is the
    /// only one. A provider works on a drained machine.
    ///
    /// The steps of a host may need more: its HostPlan has what counts.
    pub fn disruption(&self) -> Disruption {
        let Some(parts) = &self.parts else {
            let only = match self.upkeep() {
                Some(Upkeep::Certificates) => UpdatePart::renewal(),
                Some(Upkeep::HostSettings) => UpdatePart::host_settings(),
                None => UpdatePart::kubeadm(),
            };
            return only.disruption;
        };
        let made = parts.iter().filter(|part| part.action == UpdaterAction::Update);
        let least = |part: &UpdatePart| match part.template {
            Some(_) => Disruption::Drain,
            None => Disruption::None,
        };
        made.map(|part| part.disruption.max(least(part))).max().unwrap_or(Disruption::None)
    }

    /// Whether kubeadm brings the host to the Kubernetes version of the goal.
    pub fn upgrades_host(&self) -> bool {
        let is_of_kubeadm = |part: &UpdatePart| part.updater == KUBEADM && !part.is_adopted();
        !self.is_upkeep() && self.parts.as_ref().is_none_or(|parts| parts.iter().any(is_of_kubeadm))
    }

    /// Whether updaters take part that work through gates: the agent on the host, or providers.
    pub fn has_workers(&self) -> bool {
        self.works_on_host() || self.provider_parts().next().is_some()
    }

    /// Whether the update brings the machine to the Kubernetes version of its goal.
    pub fn brings_version(&self) -> bool {
        let brings =
            || self.parts.as_ref().is_none_or(|parts| parts.iter().any(UpdatePart::brings_version));
        !self.is_upkeep() && brings()
    }

    /// What the update does instead of bringing the machine to what its owner or an operator wants it to run; `None` if it
    /// does that.
    pub fn upkeep(&self) -> Option<Upkeep> {
        if self.goal.certificates.is_some() {
            Some(Upkeep::Certificates)
        } else {
            self.goal.host_settings.as_ref().map(|_| Upkeep::HostSettings)
        }
    }

    /// Whether the update brings the machine to nothing that its owner or an operator wants it to run: whether the machine is
    /// up to date does not depend on it.
    pub fn is_upkeep(&self) -> bool {
        self.upkeep().is_some()
    }

    /// Whether the update issues certificates, and brings the machine to nothing else.
    pub fn issues_certificates(&self) -> bool {
        self.upkeep() == Some(Upkeep::Certificates)
    }

    /// Whether the update gives the host its changed HostSettings, and brings the machine to nothing else.
    pub fn changes_settings(&self) -> bool {
        self.upkeep() == Some(Upkeep::HostSettings)
    }

    /// Whether kubeadm renews the certificates of the host, and nothing else is done there: its pods stay.
    pub fn renews_on_host(&self) -> bool {
        self.issues_certificates() && self.works_on_host()
    }

    /// Whether the update only verifies that the machine was brought to the version by hand.
    pub fn adopts(&self) -> bool {
        self.parts.iter().flatten().any(UpdatePart::is_adopted)
    }

    /// Whether the versions that a node runs show that its machine has reached the goal, by whatever means: not
    /// if an OS image, packages of the operating system or the work of a provider is part of it.
    pub fn can_be_adopted(&self) -> bool {
        self.goal.kubernetes_version.is_some()
            && self.host_parts().next().is_none()
            && self.provider_parts().next().is_none()
    }

    /// Whether the machine has the Kubernetes version of the goal after the update.
    pub fn ends_at_version(&self) -> bool {
        self.brings_version() || self.adopts()
    }

    /// What providers are to do in this update, in order.
    pub fn provider_parts(&self) -> impl Iterator<Item = &UpdatePart> {
        self.updater_parts().filter(|part| part.template.is_some())
    }

    /// What Updaters are to do in this update, in order.
    pub fn updater_parts(&self) -> impl Iterator<Item = &UpdatePart> {
        self.parts.iter().flatten().filter(|part| part.updater != KUBEADM)
    }

    /// What of the KubeadmConfig of its machine the update applies.
    pub fn configuration(&self) -> Option<&ConfigurationPart> {
        self.host_parts().find_map(|(_, host)| host.configuration())
    }

    /// What the agent on the host does for Updaters.
    pub fn host_parts(&self) -> impl Iterator<Item = (&UpdatePart, &HostPart)> {
        self.updater_parts().filter_map(|part| Some((part, part.host.as_ref()?)))
    }

    /// What the update brings the machine to, for a message.
    pub fn target(&self) -> String {
        match &self.goal.kubernetes_version {
            Some(version) if self.ends_at_version() => version.to_string(),
            Some(_) | None => match &self.goal.option {
                Some(option) => option.to_string(),
                None => match self.upkeep() {
                    Some(Upkeep::Certificates) => "new certificates".to_owned(),
                    Some(Upkeep::HostSettings) => "its HostSettings".to_owned(),
                    None => "its desired state".to_owned(),
                },
            },
        }
    }

    /// What the machine has reached by the update, as a sentence without a full stop.
    pub fn reached(&self) -> String {
        match &self.goal.kubernetes_version {
            Some(version) if self.ends_at_version() => format!("the machine runs {version}"),
            Some(_) | None => match &self.goal.option {
                Some(option) => format!("the machine has {option}"),
                None => match self.goal.certificates.map(|certificates| certificates.within_days) {
                    Some(Some(days)) => format!(
                        "none of the certificates that kubeadm renews expires within {days} days"
                    ),
                    Some(None) => "the machine has new certificates".to_owned(),
                    None if self.changes_settings() => {
                        "the machine has its HostSettings".to_owned()
                    }
                    None => "the machine has its desired state".to_owned(),
                },
            },
        }
    }
}

/// What an Updater has done in an update.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PartStatus {
    /// Name of the Updater.
    pub updater: String,
    /// Its state.
    pub state: PartState,
    /// When its server last answered that it can be called. Only asked before the machine takes a slot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answered_at: Option<Time>,
    /// How far its provider may go.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gate: Option<Gate>,
    /// Since when.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gate_at: Option<Time>,
    /// Since when its provider is to stop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aborted_at: Option<Time>,
    /// Since when its provider has been too late.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub late_at: Option<Time>,
    /// How often it was called without success since its last progress.
    #[serde(default)]
    pub failures: i32,
    /// When it is called next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_call_at: Option<Time>,
    /// When it was first called.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Time>,
    /// sha256 of the values that it was last called with.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub hash: String,
    /// Boot id of the node when it began, or when the last gate of its provider opened.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub boot_id: String,
    /// What it reports, or what failed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// For `k8sd`: the refresh of the node's snap, or of its certificates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refresh: Option<K8sdRefresh>,
}

impl PartStatus {
    /// Whether an attempt of k8sd has failed and the next one has not begun.
    pub fn is_to_be_repeated(&self) -> bool {
        self.state == PartState::Pending && self.refresh.is_some()
    }
}

/// The refresh of a node's snap or certificates, which is tried until it succeeds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct K8sdRefresh {
    /// The change that snapd works on; absent until k8sd has accepted the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change_id: Option<String>,
    /// When the present attempt began, or the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub began_at: Option<Time>,
    /// Since when nothing usable is answered about the change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub silent_since: Option<Time>,
    /// How many attempts have failed.
    #[serde(default)]
    pub failed_attempts: i32,
    /// When an attempt failed last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_failed_at: Option<Time>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub last_failure: String,
    /// When the new certificates expire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificates_expire_at: Option<Time>,
}

/// State of an Updater in an update.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PartState {
    /// It has not been called.
    #[default]
    Pending,
    /// Its provider works, and can still be asked to stop.
    Ongoing,
    /// It was called and has not ended.
    Running,
    /// It reports that it is done, and the objects do not show it yet.
    Verifying,
    /// It is done, and the objects show it.
    Done,
    /// It reports that it is done; nothing checks that.
    Unverified,
    /// Nothing is done: the machine keeps its old values.
    Left,
}

impl PartState {
    /// Whether the Updater may have changed the machine.
    pub fn has_begun(self) -> bool {
        match self {
            Self::Pending | Self::Ongoing | Self::Left => false,
            Self::Running | Self::Verifying | Self::Done | Self::Unverified => true,
        }
    }

    /// Whether nothing more is to be done.
    pub fn has_ended(self) -> bool {
        match self {
            Self::Pending | Self::Ongoing | Self::Running | Self::Verifying => false,
            Self::Done | Self::Unverified | Self::Left => true,
        }
    }

    /// The same as the state of a step.
    pub fn as_step(self) -> StepState {
        match self {
            Self::Pending => StepState::Pending,
            Self::Ongoing | Self::Running | Self::Verifying => StepState::Running,
            Self::Done | Self::Unverified => StepState::Done,
            Self::Left => StepState::Skipped,
        }
    }
}

impl NodeUpdateStatus {
    /// What an Updater has done.
    pub fn part(&self, updater: &str) -> PartStatus {
        let known = self.parts.iter().find(|part| part.updater == updater).cloned();
        known.unwrap_or_else(|| PartStatus { updater: updater.to_owned(), ..PartStatus::default() })
    }

    /// Whether an Updater may have changed the machine. It cannot be undone.
    pub fn has_updater_begun(&self) -> bool {
        self.parts.iter().any(|part| part.state.has_begun())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::refit::{Goal, GoalCertificates, MachineRef, Origin, Stage, Until};

    fn spec(goal: Goal, parts: Option<Vec<UpdatePart>>) -> NodeUpdateSpec {
        NodeUpdateSpec {
            stage: Stage::Ongoing,
            until: Until::Disrupt,
            machine_ref: MachineRef { name: "m-0".into(), uid: "uid-m-0".into() },
            origin: Origin::Hook,
            goal_hash: goal.hash(),
            goal,
            parts,
            bundle: None,
        }
    }

    fn added(disruption: Disruption) -> UpdatePart {
        UpdatePart { updater: "memory".into(), disruption, ..UpdatePart::kubeadm() }
    }

    fn provided(disruption: Disruption) -> UpdatePart {
        let template = UpdaterTemplate {
            api_version: "update.example/v1".into(),
            kind: "ThingUpdateTemplate".into(),
            name: "thing".into(),
        };
        let template = Some(ProviderPart { template, brings_version: true });
        UpdatePart { template, ..added(disruption) }
    }

    fn image() -> UpdatePart {
        let host = Some(HostPart::OsImage(OsImageArgs::default()));
        UpdatePart { host, ..added(Disruption::Reboot) }
    }

    fn packages(disruption: Disruption) -> UpdatePart {
        let host = Some(HostPart::OsPackages(OsPackageArgs::default()));
        UpdatePart { host, ..added(disruption) }
    }

    #[test]
    fn an_update_disturbs_as_much_as_its_part_that_disturbs_most() {
        use Disruption::{Drain, None as Still, Reboot, Restart};
        let version = || Goal::of_version("v1.35.0".parse().unwrap());
        let certificates =
            || Goal { certificates: Some(GoalCertificates::default()), ..Goal::default() };
        let settings = || Goal { host_settings: Some("5e".into()), ..Goal::default() };
        let left = UpdatePart { action: UpdaterAction::Leave, ..added(Drain) };
        for (goal, parts, wanted) in [
            (version(), None, Drain),
            (certificates(), None, Restart),
            (version(), Some(vec![]), Still),
            (version(), Some(vec![UpdatePart::kubeadm()]), Drain),
            (certificates(), Some(vec![UpdatePart::renewal()]), Restart),
            // Their steps say how much they disturb.
            (settings(), None, Still),
            (settings(), Some(vec![UpdatePart::host_settings()]), Still),
            (settings(), Some(vec![UpdatePart::kubeadm()]), Drain),
            (version(), Some(vec![UpdatePart::adopted()]), Still),
            (version(), Some(vec![left.clone()]), Still),
            (version(), Some(vec![left, added(Restart)]), Restart),
            (version(), Some(vec![added(Still)]), Still),
            (version(), Some(vec![UpdatePart::kubeadm(), added(Still)]), Drain),
            (version(), Some(vec![UpdatePart::kubeadm(), image()]), Reboot),
            (version(), Some(vec![added(Still), image()]), Reboot),
            (version(), Some(vec![packages(Restart)]), Restart),
            (version(), Some(vec![UpdatePart::kubeadm(), packages(Restart)]), Drain),
            (version(), Some(vec![UpdatePart::k8sd(Restart)]), Restart),
            // A provider works on a drained machine.
            (version(), Some(vec![provided(Still)]), Drain),
            (version(), Some(vec![provided(Reboot)]), Reboot),
        ] {
            let spec = spec(goal, parts);
            assert_eq!(spec.disruption(), wanted, "{:?} {:?}", spec.goal, spec.parts);
        }
    }

    #[test]
    fn a_part_without_a_disruption_drains() {
        let old = serde_json::json!({"updater": "memory", "action": "Update"});
        let part: UpdatePart = serde_json::from_value(old).unwrap();
        assert_eq!(part.disruption, Disruption::Drain);
        assert!(part.disruption.takes_slot() && part.disruption.drains());
        assert!(Disruption::Restart.takes_slot() && !Disruption::Restart.drains());
        assert!(!Disruption::None.takes_slot() && Disruption::Reboot.drains());
    }

    #[test]
    fn only_kubeadm_brings_a_host_to_a_version() {
        let goal = Goal::of_version("v1.35.0".parse().unwrap());
        for (parts, upgrades, brings) in [
            (None, true, true),
            (Some(vec![UpdatePart::kubeadm(), image()]), true, true),
            (Some(vec![image()]), false, false),
            (Some(vec![packages(Disruption::Restart)]), false, false),
            (Some(vec![provided(Disruption::Drain), image()]), false, true),
            (Some(vec![UpdatePart::adopted()]), false, false),
        ] {
            let spec = spec(goal.clone(), parts);
            assert_eq!(spec.upgrades_host(), upgrades, "{:?}", spec.parts);
            assert_eq!(spec.brings_version(), brings, "{:?}", spec.parts);
        }
        let renewal = Goal { certificates: Some(GoalCertificates::default()), ..goal };
        assert!(!spec(renewal, None).upgrades_host());
    }

    #[test]
    fn changed_settings_are_applied_on_the_host_and_bring_it_to_no_version() {
        for parts in [None, Some(vec![UpdatePart::host_settings()])] {
            let goal = Goal { host_settings: Some("5e".into()), ..Goal::default() };
            let spec = spec(goal, parts);
            assert!(spec.works_on_host() && spec.changes_settings() && spec.is_upkeep());
            assert!(!spec.upgrades_host() && !spec.brings_version() && !spec.ends_at_version());
            assert!(!spec.issues_certificates() && !spec.renews_on_host());
            assert_eq!(spec.target(), "its HostSettings");
            assert_eq!(spec.reached(), "the machine has its HostSettings");
        }
    }
}
