//! What operators do, as lines of a scenario script.

use refit_kinds::keys;

use super::{
    fault::Setting,
    shape::{CLUSTER, DEPLOYMENT, Shape},
};
use crate::random::Random;

/// Changes a field, and changes it back some minutes later.
pub(super) fn passing(random: &mut Random, field: &str, value: &str, back: &str) -> Vec<String> {
    let time = random.between(1, 15);
    vec![format!("change {field} {value}"), format!("at {time}m change {field} {back}")]
}

/// The whole cluster by its field, or one object by the annotation.
pub(super) fn pause(random: &mut Random, setting: &Setting<'_>) -> Vec<String> {
    if random.chance(1, 2) {
        return passing(random, &format!("cluster/{CLUSTER} spec.paused"), "true", "-");
    }
    let owner = setting.shape.owner(random);
    let machine = format!("machine/{}", setting.machine);
    let object = random.pick(&[format!("cluster/{CLUSTER}"), owner, machine]).clone();
    passing(random, &format!("{object} metadata.annotations.\"{}\"", keys::PAUSED), "\"\"", "-")
}

pub(super) fn cordon(random: &mut Random, machine: &str) -> Vec<String> {
    passing(random, &format!("{CLUSTER}:node/{machine} spec.unschedulable"), "true", "-")
}

/// The budget of the application allows no eviction, or a second budget is in its way.
pub(super) fn budget(random: &mut Random) -> Vec<String> {
    if random.chance(1, 3) {
        let time = random.between(1, 15);
        let second = format!(
            "apply to {CLUSTER} <<END\n{{apiVersion: policy/v1, kind: PodDisruptionBudget, \
             metadata: {{name: second, namespace: default}}, \
             spec: {{maxUnavailable: 1, selector: {{matchLabels: {{app: web}}}}}}}}\nEND"
        );
        let delete = format!("at {time}m delete {CLUSTER}:poddisruptionbudget/second");
        return vec![second, delete];
    }
    let field = format!("{CLUSTER}:poddisruptionbudget/web spec.maxUnavailable");
    passing(random, &field, "0", "2")
}

/// Two HostSettings apply to an owner, or one of the objects has the annotation that is not honoured.
pub(super) fn settings(random: &mut Random, shape: &Shape) -> Vec<String> {
    if random.chance(1, 2) {
        let (owner, key) = (shape.owner(random), keys::HOST_SETTINGS);
        return passing(random, &format!("{owner} metadata.annotations.\"{key}\""), "[", "-");
    }
    let settings = |name: &str, applies_to: &str| {
        format!(
            "apply <<END\n{{apiVersion: refit.dev/v1alpha1, kind: HostSettings, \
             metadata: {{name: {name}, namespace: default}}, \
             spec: {{appliesTo: {applies_to}, settings: {{}}}}}}\nEND"
        )
    };
    let selections = ["{all: {}}".to_owned(), format!("{{clusters: [{CLUSTER}]}}")];
    let applies_to = random.pick(&selections);
    let time = random.between(1, 15);
    vec![
        settings("one", applies_to),
        settings("other", applies_to),
        format!("at {time}m delete hostsettings/{}", random.pick(&["one", "other"])),
    ]
}

/// HostSettings of an owner appear, and change some minutes later: time servers, a file, flags of the kubelet, or packages of
/// the operating system.
pub(super) fn changed_settings(random: &mut Random, shape: &Shape) -> Vec<String> {
    let owner = shape.owner(random);
    let (kind, name) = match owner.strip_prefix("md/") {
        Some(name) => ("MachineDeployment", name),
        None => (shape.control_plane_kind(), CLUSTER),
    };
    let asked = [
        "ntp: {enabled: true, servers: [a.ntp.example]}",
        "files: {files: [{path: /etc/motd, content: hello}]}",
        "kubelet: {extraArgs: [{name: v, value: '4'}]}",
        "ntp: {enabled: true, servers: [b.ntp.example]}, kubelet: {extraArgs: [{name: v, value: '6'}]}",
        "osPackages: {install: [{name: vim, version: '*'}]}",
        // A kernel: the host must boot.
        "osPackages: {security: true, install: [{name: linux-image-amd64, version: '6.12.*'}]}",
    ];
    let settings = |asked: &str| {
        format!(
            "apply <<END\n{{apiVersion: refit.dev/v1alpha1, kind: HostSettings, \
             metadata: {{name: own, namespace: default}}, \
             spec: {{appliesTo: {{owners: [{{kind: {kind}, name: {name}}}]}}, settings: {{{asked}}}}}}}\nEND"
        )
    };
    let object = if random.chance(1, 2) { owner.clone() } else { format!("cluster/{CLUSTER}") };
    let policy = format!("{object} metadata.annotations.\"{}\"", keys::HOST_SETTINGS_CHANGES);
    vec![
        settings(random.pick::<&str>(&asked)),
        format!("change {policy} Start"),
        format!("wait {}s", random.between(1, 900)),
        settings(random.pick::<&str>(&asked)),
    ]
}

pub(super) fn scale(random: &mut Random, shape: &Shape) -> Vec<String> {
    if shape.workers == 0 || random.chance(1, 3) {
        // Odd numbers only: etcd is stacked.
        let count = shape.control_plane;
        let field = format!("{} spec.replicas", shape.control_plane_owner());
        return passing(random, &field, &(count + 2).to_string(), &count.to_string());
    }
    let count = shape.workers;
    let other = if random.chance(1, 2) { count + 1 } else { count.max(2) - 1 };
    let field = format!("md/{DEPLOYMENT} spec.replicas");
    passing(random, &field, &other.to_string(), &count.to_string())
}

pub(super) fn remediate(machine: &str) -> Vec<String> {
    vec![format!("change {} \"\"", annotation(machine, keys::REMEDIATE_MACHINE))]
}

pub(super) fn abort(random: &mut Random, setting: &Setting<'_>) -> Vec<String> {
    let update = update(random, setting);
    let retry = annotation(&setting.machine, keys::RETRY);
    let name = update.trim_start_matches("nodeupdate/");
    vec![
        format!("change {update} spec.stage Abort"),
        format!("at {}m change {retry} {name}", random.between(1, 15)),
    ]
}

pub(super) fn give_up(random: &mut Random, setting: &mut Setting<'_>) -> Vec<String> {
    let mut lines = vec![format!("change {} spec.stage Abort", update(random, setting))];
    std::mem::swap(&mut setting.version.now, &mut setting.version.previous);
    lines.push(format!("wait {}s", random.between(1, 20)));
    lines.extend(setting.shape.request(&setting.version.now));
    lines
}

/// Requests the next minor version, or the next patch release.
pub(super) fn upgrade(setting: &mut Setting<'_>, minor: bool) -> Vec<String> {
    setting.version.advance(minor);
    setting.shape.request(&setting.version.now)
}

pub(super) fn forgo(random: &mut Random, setting: &mut Setting<'_>) -> Vec<String> {
    let machine = &setting.machine;
    let mut lines = vec![
        format!("break host {machine} step preflight times 50"),
        format!("wait {}m", random.between(5, 25)),
        cancel(machine),
        format!("mend host {machine}"),
        "wait 20m".to_owned(),
    ];
    lines.extend(upgrade(setting, true));
    lines
}

pub(super) fn by_hand(random: &mut Random, setting: &Setting<'_>) -> Vec<String> {
    let workers: Vec<String> = setting.shape.worker_names().collect();
    let version = &setting.version.now;
    let update = format!("update {} to {version}", random.pick(&workers));
    let update = match random.between(0, 2) {
        0 => return vec![update],
        1 => update,
        _ => format!("update $machine to {version}"),
    };
    let phase = random.pick(&["Upgrading", "Draining", "Disrupting", "Verifying"]);
    vec![format!("wait md/{DEPLOYMENT} phase={phase} 30m"), update]
}

/// An update that goes only so far, and some minutes later may go on.
pub(super) fn hold(random: &mut Random, setting: &Setting<'_>) -> Vec<String> {
    let (machine, version) = (&setting.machine, &setting.version.now);
    let until = random.pick(&["Stage", "Upgrade"]);
    let time = random.between(1, 15);
    // One of these is the new NodeUpdate; which one depends on what the machine was asked for before.
    let ordinals = 1..=setting.version.upgrades + 3;
    [format!("update {machine} to {version} until {until}")]
        .into_iter()
        .chain(ordinals.map(|ordinal| {
            format!("at {time}m change nodeupdate/{machine}-{ordinal} spec.until Disrupt")
        }))
        .collect()
}

/// A machine is held, or skipped, and later released.
pub(super) fn except(random: &mut Random, machine: &str) -> Vec<String> {
    let key = *random.pick(&[keys::HOLD, keys::SKIP]);
    passing(random, &annotation(machine, key), "busy", "-")
}

/// A group gets a pacing, whether it exists or not. Sometimes its rollout is approved, or a
/// machine fails.
pub(super) fn pace(random: &mut Random, shape: &Shape) -> Vec<String> {
    let owner = shape.owner(random);
    let is_control_plane = !owner.starts_with("md/");
    let (group, kind) = if is_control_plane {
        ("controlplane", shape.control_plane_kind())
    } else {
        ("cluster", "MachineDeployment")
    };
    let name = owner.rsplit('/').next().unwrap_or_default();
    let object = format!("{}-{name}", kind.to_lowercase());
    let order = *random.pick(&["Oldest", "Newest", "Name"]);
    let which = random.between(0, 5);
    let pacing = match which {
        0 => "paused: true".to_owned(),
        1 => format!("pauseAfter: {}", random.between(0, 1)),
        2 => format!("soakSeconds: {}, order: {order}", random.between(1, 900)),
        3 => "stopAfterFailures: 1".to_owned(),
        4 => format!("windows: {{{}}}", windows(random)),
        _ => format!(
            "maxUnavailable: 1, order: {order}, gates: [{{name: alerts, alerts: {{}}}}, \
             {{name: cluster, checks: [Nodes, Etcd]}}]"
        ),
    };
    let paced = format!(
        "apply <<END\n{{apiVersion: refit.dev/v1alpha1, kind: UpdateGroup, \
         metadata: {{name: {object}, namespace: default}}, \
         spec: {{clusterName: {CLUSTER}, controlPlane: {is_control_plane}, \
         owner: {{apiVersion: {group}.cluster.x-k8s.io/v1beta2, kind: {kind}, name: {name}}}, \
         pacing: {{{pacing}}}}}}}\nEND"
    );
    let field = format!("change updategroup/{object} spec.pacing");
    let time = random.between(1, 30);
    let mut lines = vec![paced];
    if random.chance(1, 2) {
        let rollout = random.between(1, 2);
        lines.push(format!("at {}s {field}.approve {rollout}", random.between(1, 60 * time)));
    }
    if which == 3 {
        let machine = random.pick(&shape.machines()).clone();
        lines.push(format!("break host {machine} step kubeadm-upgrade times 9"));
    }
    if which > 4 {
        lines.push(format!("break alert Simulated for {}m", time.div_ceil(2)));
    }
    lines.push(format!("at {time}m {field} -"));
    lines
}

/// A maintenance window of each hour or so, in which updates may fit.
fn windows(random: &mut Random) -> String {
    let every = random.between(1, 3);
    let first = random.between(0, 59);
    let lasts = random.between(5, 60 * every);
    let days = "[Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday]";
    let opens = (0..24).step_by(usize::try_from(every).unwrap_or(1)).map(|hour| {
        format!(
            "{{days: {days}, start: \"{hour:02}:{first:02}\", durationMinutes: {lasts}, timeZone: UTC}}"
        )
    });
    let weekly: Vec<String> = opens.collect();
    format!("weekly: [{}], estimateSeconds: {}", weekly.join(", "), 60 * random.between(1, 20))
}

/// A provider starts to default a field.
pub(super) fn new_default(random: &mut Random, setting: &mut Setting<'_>) -> Vec<String> {
    let mut lines = Vec::new();
    if random.chance(2, 3) {
        lines.push(format!("wait cluster/{CLUSTER} updated 1h"));
    }
    lines.extend(setting.shape.new_default());
    lines.push("wait 1m".to_owned());
    lines.extend(upgrade(setting, false));
    lines
}

fn annotation(machine: &str, key: &str) -> String {
    format!("machine/{machine} metadata.annotations.\"{key}\"")
}

/// A NodeUpdate of the machine: one for each upgrade so far.
pub(super) fn update(random: &mut Random, setting: &Setting<'_>) -> String {
    let ordinal = random.between(1, setting.version.upgrades.max(1));
    format!("nodeupdate/{}-{ordinal}", setting.machine)
}

/// Someone deletes a NodeUpdate, or the UpdateGroup of an owner.
pub(super) fn delete_update(random: &mut Random, setting: &Setting<'_>) -> Vec<String> {
    if random.chance(2, 3) {
        return vec![format!("delete {}", update(random, setting))];
    }
    let owner = setting.shape.owner(random);
    let kind = if owner.starts_with("md/") { "machinedeployment" } else { "kubeadmcontrolplane" };
    let name = owner.rsplit('/').next().unwrap_or_default();
    let wait = format!("wait {owner} phase={} 4m", random.pick(&["Staging", "Waiting"]));
    vec![wait, format!("delete updategroup/{kind}-{name}")]
}

/// Removes the annotation by which Cluster API remembers that it updates a Machine.
pub(super) fn cancel(machine: &str) -> String {
    format!("change {} -", annotation(machine, keys::UPDATE_IN_PROGRESS))
}

pub(super) fn flip(random: &mut Random, setting: &Setting<'_>) -> Vec<String> {
    let back = &setting.version.now;
    if random.chance(1, 2) {
        let target = format!("change md/{DEPLOYMENT} spec.template.spec.version");
        let (other, seconds) = (&setting.version.previous, random.between(1, 90));
        return vec![format!("{target} {other}"), format!("at {seconds}s {target} {back}")];
    }
    let mut other = setting.version.clone();
    other.advance(false);
    vec![
        format!("wait md/{DEPLOYMENT} phase=Staging 10m"),
        format!("change machine/$machine spec.version {}", other.now),
        format!("at {}s change machine/$machine spec.version {back}", random.between(1, 10)),
    ]
}

/// A pod that a drain does not evict by itself, and the operator's answer: it may be evicted, stays,
/// or is deleted. The pod has no owner: the cluster would delete one whose owner does not exist.
pub(super) fn stuck_pod(random: &mut Random, machine: &str) -> Vec<String> {
    let set = |key, value: &str| format!("change {} {value}", annotation(machine, key));
    let (labels, spec, key) = match random.between(0, 5) {
        0 => ("", "volumes: [{name: v, emptyDir: {}}], ", Some(keys::DRAIN_LOCAL_STORAGE)),
        1 => ("cluster.x-k8s.io/drain: wait-completed", "", None),
        2 => ("cluster.x-k8s.io/drain: sometimes", "", None),
        _ => ("", "", Some(keys::DRAIN_UNREPLICATED)),
    };
    let mut lines = Vec::new();
    if key == Some(keys::DRAIN_LOCAL_STORAGE) {
        lines.push(set(keys::DRAIN_LOCAL_STORAGE, "Wait"));
        lines.push(set(keys::DRAIN_UNREPLICATED, "Evict"));
    }
    lines.push(format!(
        "apply to {CLUSTER} <<END\n{{apiVersion: v1, kind: Pod, \
         metadata: {{name: once, namespace: default, labels: {{{labels}}}}}, \
         spec: {{{spec}nodeName: {machine}, containers: [{{name: c, image: x}}]}}}}\nEND"
    ));
    let time = random.between(1, 15);
    let answer = match (key, random.between(0, 2)) {
        (Some(key), 1) => set(key, "Leave"),
        (Some(key), 2) => set(key, "Evict"),
        _ => format!("delete {CLUSTER}:pod/once"),
    };
    lines.push(format!("at {time}m {answer}"));
    lines
}

/// A volume that is attached to a node, and detached later.
pub(super) fn volume(random: &mut Random, machine: &str) -> Vec<String> {
    let attachment = format!(
        "apply to {CLUSTER} <<END\n{{apiVersion: storage.k8s.io/v1, kind: VolumeAttachment, \
         metadata: {{name: disk-1}}, spec: {{attacher: csi.example.com, nodeName: {machine}, \
         source: {{persistentVolumeName: disk-1}}}}}}\nEND"
    );
    let time = random.between(1, 15);
    vec![attachment, format!("at {time}m delete {CLUSTER}:volumeattachment/disk-1")]
}
