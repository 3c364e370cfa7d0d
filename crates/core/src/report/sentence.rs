//! The words of refusals.

use refit_kinds::version::StatedVersion;

use super::Refusal;
use crate::gates::ClosedGate;

impl Refusal {
    /// What blocks and what ends the wait.
    pub fn sentence(&self) -> String {
        match self {
            Self::SlotBusy { machine } => {
                format!(
                    "waiting for {machine}: as many machines of the group are unavailable as \
                     allowed"
                )
            }
            Self::ApprovalRequired { owner, number, target, begun } => {
                let machines = if *begun == 1 { "machine has" } else { "machines have" };
                format!(
                    "waiting for the approval of rollout {number} to {target}, of which {begun} {machines} \
                     begun: refit approve {owner}"
                )
            }
            Self::RolloutStopped { owner, target, machines, cause } => {
                let cause = cause.as_ref().map(|cause| format!(" with {cause}"));
                format!(
                    "the rollout to {target} has stopped: {} failed{}. Retry them, or go on without \
                     them: refit resume {owner}",
                    machines.join(", "),
                    cause.unwrap_or_default()
                )
            }
            Self::Held { machine, reason } => format!(
                "Machine {machine} is held ({reason}): to let it begin, refit release {machine}"
            ),
            Self::Skipped { machine, reason } => format!(
                "Machine {machine} is skipped in this rollout ({reason}): to update it after all, \
                 refit release {machine}"
            ),
            Self::Soaking { until } => format!(
                "waiting until {until}: the machine that was updated last has not been back long enough"
            ),
            Self::WindowClosed { opens, closes: None, needs } => format!(
                "waiting for the maintenance window that opens at {opens} (the update takes {needs})"
            ),
            Self::WindowClosed { opens, closes: Some(closes), needs } => format!(
                "waiting for the maintenance window that opens at {opens}: the present one closes at {closes}, too soon \
                 for an update that takes {needs}"
            ),
            Self::NoWindow { owner, why } => {
                format!("{why}: edit spec.pacing.windows of the UpdateGroup of {owner}")
            }
            Self::GateClosed { closed, .. } => ClosedGate::sentence(closed),
            Self::OutOfTurn { machine } => {
                format!("waiting for {machine}, which comes first by the pacing of the group")
            }
            Self::GroupUnavailable { available, needed, lacks_machines } => {
                let missing =
                    if *lacks_machines { "; Cluster API has to create a missing one" } else { "" };
                format!(
                    "waiting until {needed} other machines of the group are available, now \
                     {available} are{missing}"
                )
            }
            Self::ControlPlaneUnhealthy { member, why } => {
                format!("waiting until control plane member {member} is healthy: {why}")
            }
            Self::EtcdQuorum { members } => format!(
                "waiting for another number of etcd members than {members}: without this one etcd would \
                 have no quorum; scale the control plane to an odd number of machines"
            ),
            Self::ControlPlaneBehind { version: StatedVersion::Absent, goal } => format!(
                "waiting until the version of the control plane is known: a kubelet of {goal} must \
                 not be newer than its API server"
            ),
            Self::ControlPlaneBehind { goal, .. } => format!(
                "waiting for the control plane: a kubelet of {goal} would be newer than its API \
                 server"
            ),
            Self::NoFreshReport { node } => format!(
                "waiting for a report of the agent on node {node}: check that refit-agent runs \
                 there"
            ),
            Self::UpdaterUnusable { updater, why } => {
                format!("waiting until Updater {updater} can be used: {why}")
            }
            Self::UpdaterFails { updater, message } => {
                format!(
                    "Updater {updater} fails and is tried again: {}",
                    message.trim_end_matches('.')
                )
            }
            Self::UpdaterNotVerified { updater, why } => format!(
                "waiting until the machine shows what Updater {updater} reports as done: {why}"
            ),
            Self::OsImageConflict { sources } => format!(
                "waiting until one of {sources} installs the OS image, and not both: remove it from \
                 one of them, and retry the update"
            ),
            Self::OsPackagesConflict { sources } => format!(
                "waiting until only one of {sources} changes the operating system of the host: remove what the \
                 other one installs, and retry the update"
            ),
            Self::ConfigurationChanged { object, why } => format!(
                "waiting for the next request: {object} has changed since this update was made: {why}"
            ),
            Self::ConfigurationConflict { what } => format!(
                "waiting until only one of KubeadmConfig and HostSettings sets {what}: remove it from the HostSettings"
            ),
            Self::HostUnreadable { node, why } => format!(
                "waiting until the agent on node {node} can read the state of its host: {why}"
            ),
            Self::AgentTooOld { node, step } => format!(
                "waiting for a newer agent on node {node}: this version does not support step \
                 {step:?}"
            ),
            Self::HostSettingsAnnotation { object } => format!(
                "waiting until annotation refit.dev/host-settings of {object} is removed: it is \
                 not honoured; put its settings into a HostSettings"
            ),
            Self::HostSettingsUnreadable { name, why } => format!(
                "waiting until HostSettings {name} can be read: {why}; until then it is unknown \
                 to which owners it applies"
            ),
            Self::HostSettingsConflict { names: [one, other], owner, by } => format!(
                "waiting until one HostSettings applies to {owner}: both {one} and {other} select \
                 {}; delete one of them, or change its spec.appliesTo",
                by.phrase()
            ),
            Self::DisruptionPolicyUnreadable { name, why } => format!(
                "waiting until NodeDisruptionPolicy {name} can be read: {why}; until then it is \
                 unknown to which owners it applies"
            ),
            Self::DisruptionPolicyConflict { names: [one, other], owner, by } => format!(
                "waiting until one NodeDisruptionPolicy applies to {owner}: both {one} and {other} \
                 select {}; delete one of them, or change its spec.appliesTo",
                by.phrase()
            ),
            Self::PodDisruptionBudget { budget, pod } if budget.is_empty() => {
                format!("waiting to evict pod {pod}: its PodDisruptionBudget does not allow it now")
            }
            Self::PodDisruptionBudget { budget, pod } => format!(
                "waiting to evict pod {pod}: PodDisruptionBudget {budget} does not allow it now"
            ),
            Self::EvictionRefused { pod, message } => {
                format!("waiting to evict pod {pod}: the API server rejects it: {message}")
            }
            Self::ApiUnreachable { cluster } => {
                format!("waiting for the API server of cluster {cluster}: it is unreachable")
            }
            Self::ClusterTooLarge { cluster, what } => {
                format!("cluster {cluster} is not watched: {what}, which is more than Refit reads")
            }
            Self::NodeNotReady { node } => format!("waiting until node {node} is Ready"),
            Self::NodePressure { node, what } => {
                format!("waiting until node {node} has no pressure: {what}")
            }
            Self::NodeCordoned { node } => format!(
                "waiting until node {node} is uncordoned, which an administrator or another program \
                 has cordoned: kubectl uncordon {node}"
            ),
            Self::CertificateExpires { node, certificate, until } => format!(
                "waiting until certificate {certificate} on node {node} is renewed: it is valid \
                 until {until}, and the update does not renew it"
            ),
            Self::VersionsNotComparable { node, kubelet, component, tag } => format!(
                "waiting until the versions on node {node} can be compared: its kubelet reports {kubelet}, and the image \
                 of its {component} has the tag {tag}, so an update could not be verified. Install a kubelet that reports \
                 the version of the images, or update the machine without Refit"
            ),
            Self::NodeNotVerified { node, why } => format!("waiting for node {node}: {why}"),
            Self::NoNode { machine } => format!("waiting until Machine {machine} has a Node"),
            Self::OlderUpdateUnfinished { node_update } => {
                format!("waiting until the older NodeUpdate {node_update} has finished")
            }
            Self::OlderPlanRunning { node, node_update } => format!(
                "waiting until node {node} has finished the plan of {}",
                if node_update.is_empty() { "another NodeUpdate" } else { node_update }
            ),
            Self::MachineDeleting { machine } => {
                format!("Machine {machine} is being deleted: waiting until its host has stopped")
            }
            Self::RoomForOthers { machine } => format!(
                "waiting until Machine {machine}, which is being deleted, is gone: its pods have no \
                 other node"
            ),
            Self::Paused { object } => format!("waiting until {object} is no longer paused"),
            Self::WouldBeReplaced { machine, owner } => format!(
                "waiting until Cluster API requests the update of Machine {machine}, which is outdated and not \
                 marked: it would replace the machine as soon as a component restarts. To update it by hand, pause \
                 {owner}, or set its spec to what the machine has"
            ),
            Self::UntilReached { node_update, hold } => {
                let (until, why) = hold.words();
                format!("waiting until spec.until of NodeUpdate {node_update} is {until}: {why}")
            }
            Self::NoGroup { machine } => format!(
                "Machine {machine} belongs to no known control plane, MachineDeployment or \
                 MachineSet, so its limit of unavailable machines is unknown"
            ),
            Self::GroupNotReady => "waiting for the UpdateGroup of the machine".to_owned(),
            Self::ApiRefused { what, message } => {
                format!(
                    "waiting for {what}, which the API server rejects: {}",
                    message.trim_end_matches('.')
                )
            }
            Self::ApiErrors { what, message } => {
                format!(
                    "trying {what} again, which fails at the API server: {}",
                    message.trim_end_matches('.')
                )
            }
            Self::Drain(drain) => drain.sentence(),
        }
    }
}
