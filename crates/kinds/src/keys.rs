//! Annotations, labels, finalizers and field managers, each in one place.

/// The Machine, its infrastructure machine and its bootstrap config are being updated in place.
pub const UPDATE_IN_PROGRESS: &str =
    "in-place-updates.internal.cluster.x-k8s.io/update-in-progress";
/// A Machine was moved to a new MachineSet and its MachineDeployment has not acknowledged it yet.
pub const PENDING_ACKNOWLEDGE_MOVE: &str =
    "in-place-updates.internal.cluster.x-k8s.io/pending-acknowledge-move";
/// The hooks that Cluster API still has to call for a Machine: a sorted, comma-separated set.
pub const PENDING_HOOKS: &str = "runtime.cluster.x-k8s.io/pending-hooks";
/// The one hook name that [`PENDING_HOOKS`] carries for an in-place update.
pub const UPDATE_MACHINE_HOOK: &str = "UpdateMachine";
/// An old MachineSet moves its Machines to the MachineSet of this name.
pub const MOVE_MACHINES: &str =
    "in-place-updates.internal.cluster.x-k8s.io/move-machines-to-machineset";
/// A new MachineSet accepts Machines from these MachineSets: sorted, comma-separated.
pub const RECEIVE_MACHINES: &str =
    "in-place-updates.internal.cluster.x-k8s.io/receive-machines-from-machinesets";
/// Moved Machines that the MachineDeployment has acknowledged: sorted, comma-separated.
pub const ACKNOWLEDGED_MOVE: &str = "in-place-updates.internal.cluster.x-k8s.io/acknowledged-move";
/// `"true"` stops a MachineSet from creating Machines.
pub const DISABLE_MACHINE_CREATE: &str = "cluster.x-k8s.io/disable-machine-create";
/// Marks the Machine to delete first when its owner scales down.
pub const DELETE_MACHINE: &str = "cluster.x-k8s.io/delete-machine";
/// Asks a MachineHealthCheck to remediate this Machine.
pub const REMEDIATE_MACHINE: &str = "cluster.x-k8s.io/remediate-machine";
/// A MachineHealthCheck ignores this Machine.
pub const SKIP_REMEDIATION: &str = "cluster.x-k8s.io/skip-remediation";
/// Cluster API's controllers do not reconcile this object.
pub const PAUSED: &str = "cluster.x-k8s.io/paused";
/// Name of the template that an infrastructure machine or bootstrap config was cloned from.
pub const CLONED_FROM_NAME: &str = "cluster.x-k8s.io/cloned-from-name";
/// `Kind.group` of the template that an object was cloned from.
pub const CLONED_FROM_GROUPKIND: &str = "cluster.x-k8s.io/cloned-from-groupkind";
/// Rollout revision of a MachineSet.
pub const REVISION: &str = "machinedeployment.clusters.x-k8s.io/revision";
/// `spec.replicas` of the MachineDeployment at the last write of a MachineSet.
pub const DESIRED_REPLICAS: &str = "machinedeployment.clusters.x-k8s.io/desired-replicas";
/// Replicas plus surge of the MachineDeployment at the last write of a MachineSet.
pub const MAX_REPLICAS: &str = "machinedeployment.clusters.x-k8s.io/max-replicas";
/// On an ExtensionConfig: `<namespace>/<secret>` of the Secret whose `ca.crt` is its CA bundle.
pub const INJECT_CA_FROM_SECRET: &str = "runtime.cluster.x-k8s.io/inject-ca-from-secret";

/// Label with the owning Cluster's name.
pub const CLUSTER_NAME: &str = "cluster.x-k8s.io/cluster-name";
/// Label with the owning MachineDeployment's name.
pub const DEPLOYMENT_NAME: &str = "cluster.x-k8s.io/deployment-name";
/// Label of what a Cluster's topology owns.
pub const TOPOLOGY_OWNED: &str = "topology.cluster.x-k8s.io/owned";
/// Label with the name of a MachineDeployment in its Cluster's topology.
pub const TOPOLOGY_DEPLOYMENT_NAME: &str = "topology.cluster.x-k8s.io/deployment-name";
/// How many MachineDeployments a topology upgrades at a time.
pub const UPGRADE_CONCURRENCY: &str = "topology.cluster.x-k8s.io/upgrade-concurrency";
/// Label with the owning MachineSet's name.
pub const SET_NAME: &str = "cluster.x-k8s.io/set-name";
/// Label that marks a control plane Machine.
pub const CONTROL_PLANE: &str = "cluster.x-k8s.io/control-plane";
/// Label with the name of the control plane object of a Machine.
pub const CONTROL_PLANE_NAME: &str = "cluster.x-k8s.io/control-plane-name";
/// Label that distinguishes the MachineSets of one MachineDeployment.
pub const MACHINE_TEMPLATE_HASH: &str = "machine-template-hash";
/// Contract label of a provider's CRD (`docs/facts/machine.md#contract-labels`).
pub const CONTRACT_V1BETA2: &str = "cluster.x-k8s.io/v1beta2";
/// Finalizer of a Machine.
pub const MACHINE_FINALIZER: &str = "machine.cluster.x-k8s.io";
/// Prefix of the annotations that pause the deletion of a Machine before its drain.
pub const PRE_DRAIN_HOOK_PREFIX: &str = "pre-drain.delete.hook.machine.cluster.x-k8s.io";
/// Prefix of the annotations that pause the deletion of a Machine before it is terminated.
pub const PRE_TERMINATE_HOOK_PREFIX: &str = "pre-terminate.delete.hook.machine.cluster.x-k8s.io";

/// Field manager of Cluster API's MachineDeployment controller.
pub const MANAGER_MACHINE_DEPLOYMENT: &str = "capi-machinedeployment";
/// Field manager of Cluster API's MachineSet controller.
pub const MANAGER_MACHINE_SET: &str = "capi-machineset";
/// Field manager of Cluster API's KubeadmControlPlane controller.
pub const MANAGER_KUBEADM_CONTROL_PLANE: &str = "capi-kubeadmcontrolplane";
/// Field manager of Cluster API's merge patches.
pub const MANAGER_PATCHES: &str = "manager";
/// Refit's field manager.
pub const MANAGER: &str = "refit";

/// How long an agent may be silent during an update before its host counts as lost, or `Never`.
pub const HOST_LOST_AFTER: &str = "refit.dev/host-lost-after";
/// Whether HostSettings that change start updates by themselves: `Start` or `Wait`.
pub const HOST_SETTINGS_CHANGES: &str = "refit.dev/host-settings-changes";
/// How to handle a change that no updater covers: `Preserve` or `Replace`.
pub const ON_UNCOVERED: &str = "refit.dev/on-uncovered";
/// On an owner or Cluster: `Disabled` leaves its rollout to Cluster API. As a label of a Namespace:
/// [`OPTED_IN`] lets Refit act there.
pub const IN_PLACE: &str = "refit.dev/in-place";
/// Value of the label [`IN_PLACE`] of a Namespace that opted in.
pub const OPTED_IN: &str = "enabled";
/// Label of a Namespace: [`OPTED_IN`] lets the API server refuse what would replace Machines there.
pub const HOLD_REPLACEMENTS: &str = "refit.dev/hold-replacements";
/// Annotation of a control plane or Cluster: whether the only Machine of a control plane is updated in place, which Cluster
/// API never does by itself. On an UpgradeTask that was requested so: hash of what the control plane requests.
pub const SINGLE_REPLICA: &str = "refit.dev/single-replica";
/// Value of [`PAUSED`] on a control plane that Refit has paused because Cluster API would replace its only Machine.
pub const HELD: &str = "refit.dev/held";
/// Finalizer of the ReplacementHold of a Namespace with [`HOLD_REPLACEMENTS`], until it has no Machines: without the object,
/// the API server lets no user delete them.
pub const HOLD_FINALIZER: &str = "refit.dev/replacement-hold";
/// Name of the Secret with the client certificate that Cluster API's managers present to the hooks.
pub const HOOK_CLIENT: &str = "refit-hook-client";
/// Requests one more attempt after the named NodeUpdate failed permanently.
pub const RETRY: &str = "refit.dev/retry";
/// On an owner: `"true"` lets no further machine of its group begin, as with `spec.pacing.paused` of its UpdateGroup.
pub const GROUP_PAUSED: &str = "refit.dev/paused";
/// On an owner: the rollout that may go on, as with `spec.pacing.approve`.
pub const APPROVE: &str = "refit.dev/approve";
/// On an owner: only failures after this time count, as with `spec.pacing.failuresSince`.
pub const FAILURES_SINCE: &str = "refit.dev/failures-since";
/// On a Machine: the NodeUpdate that is to stop, as with its `spec.stage` `Abort`.
pub const ABORT: &str = "refit.dev/abort";
/// On a control plane Machine: kubeadm is to renew its certificates, a [`crate::refit::RenewalRequest`]. It is removed once
/// the NodeUpdate for it exists.
pub const RENEW_CERTIFICATES: &str = "refit.dev/renew-certificates";
/// On a Machine: the NodeUpdate whose goal it was brought to by hand. The next NodeUpdate only verifies that.
pub const ADOPT: &str = "refit.dev/adopt";
/// On a Machine: why it is held. Its next update does not begin until the annotation is removed.
pub const HOLD: &str = "refit.dev/hold";
/// On a Machine: why it is skipped. Its update does not begin, until after the rollout of [`SKIP_ROLLOUT`] if
/// that is set.
pub const SKIP: &str = "refit.dev/skip";
/// On a Machine with [`SKIP`]: the last rollout in which it is skipped, by number.
pub const SKIP_ROLLOUT: &str = "refit.dev/skip-rollout";
/// Label of a Machine that a Cluster has only while it is upgraded, and of a MachineDeployment with only such Machines.
/// Annotation of another MachineDeployment: how many of its replicas are such Machines. Finalizer of a ClusterUpgrade whose
/// Cluster has some.
pub const EXTRA_CAPACITY: &str = "refit.dev/extra-capacity";
/// On a NodeUpdate: the annotation of its Machine that requested it, or the HostSettings whose change has started it, such as
/// `HostSettings web`.
pub const REQUESTED_BY: &str = "refit.dev/requested-by";
/// Annotation of an UpgradeTask or NodeUpdate that annotations have requested: their request, such as `version=v1.35.0`.
pub const REQUESTED: &str = "refit.dev/requested";
/// On an aborted NodeUpdate: Refit stopped it because the goal of its Machine changed. Without it, an
/// operator did, and only an operator lets the Machine continue.
pub const GOAL_CHANGED: &str = "refit.dev/goal-changed";
/// On a Machine: the NodeUpdate whose request Refit withdrew so that Cluster API can create a Machine that
/// the group lacks. While it is there, the update is requested again once none is missing.
pub const WITHDRAWN_FOR_MEMBER: &str = "refit.dev/withdrawn-for-member";
/// On a Machine: names of the Updaters that have left some of its fields as they are, with commas.
pub const LEFT: &str = "refit.dev/left";
/// On a Machine, a NodeUpdate, or a paused owner: the UpgradeTask that works on it. Also the value of [`PAUSED`] on an owner
/// that the task has paused.
pub const TASK: &str = "refit.dev/task";
/// Label of a ClusterUpgrade: the name of the ClusterUpgradePlan that has requested it.
pub const PLAN: &str = "refit.dev/plan";
/// On a ClusterUpgrade of a plan: the number of its wave, from 0.
pub const WAVE: &str = "refit.dev/wave";
/// Finalizer of an UpgradeTask: a deleted one is aborted first.
pub const TASK_FINALIZER: &str = "refit.dev/upgrade-task";
/// On a provider's object: the Updater with the template that it was made from.
pub const UPDATER: &str = "refit.dev/updater";
/// On the CustomResourceDefinition of a provider's kind: its API versions that follow the contract, joined by
/// `_`.
pub const CONTRACT: &str = "refit.dev/v1alpha1";
/// On a provider's object: the number of the claim of a slot that was returned unused, for which no gate opens
/// any more.
pub const RETURNED_CLAIM: &str = "refit.dev/returned-claim";
/// Label of a ClusterRole whose rules the controller gets, `"true"` (`deploy/providers`).
pub const AGGREGATE_TO_CONTROLLER: &str = "refit.dev/aggregate-to-controller";
/// `Disabled` turns off the guard against remediation of a Machine during its update.
pub const REMEDIATION_GUARD: &str = "refit.dev/remediation-guard";
/// On a Machine: the annotations of the remediation guard that Refit set, comma-separated.
pub const GUARDED_BY_US: &str = "refit.dev/guarded";
/// On a Node: the NodeUpdate that cordoned it.
pub const CORDONED_BY: &str = "refit.dev/cordoned-by";
/// On a Node: the NodeUpdate that took it out of its load balancers with
/// [`EXCLUDE_FROM_LOAD_BALANCERS`].
pub const EXCLUDED_BY: &str = "refit.dev/excluded-by";
/// Label on a Node, with any value: cloud providers leave it out of external load balancers.
pub const EXCLUDE_FROM_LOAD_BALANCERS: &str =
    "node.kubernetes.io/exclude-from-external-load-balancers";
/// On a Machine: its node is deleted without a drain.
pub const EXCLUDE_NODE_DRAINING: &str = "machine.cluster.x-k8s.io/exclude-node-draining";
/// On a Machine: its node is deleted without waiting for volumes to be detached.
pub const EXCLUDE_WAIT_FOR_NODE_VOLUME_DETACH: &str =
    "machine.cluster.x-k8s.io/exclude-wait-for-node-volume-detach";
/// Label on a pod: `skip` leaves the pod on the node; `wait-completed` (Cluster API writes
/// `WaitCompleted`) waits until the pod has completed.
pub const POD_DRAIN: &str = "cluster.x-k8s.io/drain";
/// Held the settings that are now in a [`crate::refit::HostSettings`]. It is not honoured: the right
/// to annotate an object must not be root on its hosts. An update waits until it is removed.
pub const HOST_SETTINGS: &str = "refit.dev/host-settings";
/// On a Machine, its owner or its Cluster: whether its node is drained before its snap is refreshed, `true` or `false`.
pub const DRAIN: &str = "refit.dev/drain";
/// How a drain handles pods that no controller would recreate: `Wait`, `Evict` or `Leave`.
pub const DRAIN_UNREPLICATED: &str = "refit.dev/drain-unreplicated";
/// How a drain handles pods that have an `emptyDir`: `Evict`, `Wait` or `Leave`.
pub const DRAIN_LOCAL_STORAGE: &str = "refit.dev/drain-local-storage";
/// How long an evicted pod may take to terminate, instead of its own grace period.
pub const DRAIN_GRACE_PERIOD: &str = "refit.dev/drain-grace-period";
/// How long a drain may take before a warning event is emitted, or `Never`.
pub const DRAIN_NOTIFY_AFTER: &str = "refit.dev/drain-notify-after";
/// How long a pod's eviction may be refused before the pod is deleted despite its budget, or
/// `Never`.
pub const DRAIN_DELETE_AFTER: &str = "refit.dev/drain-delete-after";
/// How long a pod may stay before it is deleted without a grace period, or `Never`.
pub const DRAIN_FORCE_AFTER: &str = "refit.dev/drain-force-after";
/// How long load balancers get to stop using a node before its pods are evicted; `0s` leaves load
/// balancers unchanged.
pub const DRAIN_LOAD_BALANCER_WAIT: &str = "refit.dev/drain-load-balancer-wait";
/// Refit's pre-drain hook on a Machine that is being updated.
pub const PRE_DRAIN_HOOK: &str = "pre-drain.delete.hook.machine.cluster.x-k8s.io/refit";
/// Label on Refit's objects: the name of the Machine that they refer to.
pub const MACHINE_NAME: &str = "refit.dev/machine";
/// `"true"` on a Deployment that only describes Cluster API's manager where Refit simulates it.
pub const STAND_IN: &str = "refit.dev/stand-in";
/// On a HostPlan: the controller's signature, if plans are signed.
pub const PLAN_SIGNATURE: &str = "refit.dev/plan-signature";
/// Namespace of HostPlans in a workload cluster.
pub const HOST_PLAN_NAMESPACE: &str = "refit-system";
/// Declares that the commands of a KubeadmConfig are safe to run again on a host in use, by how they disturb it: `None`,
/// `Restart`, `Drain` or `Reboot`. On an owner or its Cluster.
pub const RERUN_COMMANDS: &str = "refit.dev/rerun-commands";
/// sha256 of values of Secrets that files of a KubeadmConfig have as content: `NAME/KEY=SHA256`, separated by commas. On an
/// owner or its Cluster.
pub const SECRET_SHA256: &str = "refit.dev/secret-sha256";
