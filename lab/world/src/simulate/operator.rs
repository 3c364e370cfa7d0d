//! What operators do, as lines of a scenario script.

use refit_kinds::keys;

use super::{
    fault::{FaultKind, Setting},
    shape::{CLUSTER, DEPLOYMENT},
};
use crate::random::Random;

/// The script of something that an operator does.
pub(super) fn script(
    kind: FaultKind,
    random: &mut Random,
    setting: &mut Setting<'_>,
) -> Vec<String> {
    match kind {
        FaultKind::Abort
        | FaultKind::GiveUp
        | FaultKind::Cancel
        | FaultKind::Forgo
        | FaultKind::Flip
        | FaultKind::Default
        | FaultKind::ByHand
        | FaultKind::Upgrade => of_updates(kind, random, setting),
        _ => of_clusters(kind, random, setting),
    }
}

fn of_clusters(kind: FaultKind, random: &mut Random, setting: &Setting<'_>) -> Vec<String> {
    let machine = &setting.machine;
    let time = random.between(1, 15);
    // Changes a field, and changes it back later.
    let passing = |field: &str, value: &str, back: &str| {
        vec![format!("change {field} {value}"), format!("at {time}m change {field} {back}")]
    };
    match kind {
        FaultKind::Cordon => {
            passing(&format!("{CLUSTER}:node/{machine} spec.unschedulable"), "true", "-")
        }
        FaultKind::StuckPod => stuck_pod(random, machine),
        FaultKind::Volume => volume(random, machine),
        FaultKind::Budget => {
            passing(&format!("{CLUSTER}:poddisruptionbudget/web spec.maxUnavailable"), "0", "2")
        }
        FaultKind::Settings => {
            let owners = setting.shape.owners();
            let owner = random.pick(&owners);
            let key = keys::HOST_SETTINGS;
            passing(&format!("{owner} metadata.annotations.\"{key}\""), "[", "-")
        }
        FaultKind::Scale => {
            let count = setting.shape.workers;
            let other = if random.chance(1, 2) { count + 1 } else { count.max(2) - 1 };
            let field = format!("md/{DEPLOYMENT} spec.replicas");
            passing(&field, &other.to_string(), &count.to_string())
        }
        FaultKind::DeleteMachine => vec![format!("delete machine/{machine}")],
        FaultKind::DeleteUpdate => vec![format!("delete {}", update(random, setting))],
        FaultKind::Remediate => {
            vec![format!("change {} \"\"", annotation(machine, keys::REMEDIATE_MACHINE))]
        }
        _ => passing(&format!("cluster/{CLUSTER} spec.paused"), "true", "-"),
    }
}

fn of_updates(kind: FaultKind, random: &mut Random, setting: &mut Setting<'_>) -> Vec<String> {
    let machine = setting.machine.clone();
    match kind {
        FaultKind::Abort => {
            let update = update(random, setting);
            let retry = annotation(&machine, keys::RETRY);
            let name = update.trim_start_matches("nodeupdate/");
            vec![
                format!("change {update} spec.stage Abort"),
                format!("at {}m change {retry} {name}", random.between(1, 15)),
            ]
        }
        FaultKind::GiveUp => {
            let mut lines = vec![format!("change {} spec.stage Abort", update(random, setting))];
            std::mem::swap(&mut setting.version.now, &mut setting.version.previous);
            lines.push(format!("wait {}s", random.between(1, 20)));
            lines.extend(setting.shape.request(&setting.version.now));
            lines
        }
        FaultKind::Cancel => vec![cancel(&machine)],
        FaultKind::Forgo => {
            let mut lines = vec![
                format!("break host {machine} step preflight times 50"),
                format!("wait {}m", random.between(5, 25)),
                cancel(&machine),
                format!("mend host {machine}"),
                "wait 20m".to_owned(),
            ];
            setting.version.advance(true);
            lines.extend(setting.shape.request(&setting.version.now));
            lines
        }
        FaultKind::Flip => flip(random, setting),
        FaultKind::ByHand => {
            let workers: Vec<String> = setting.shape.worker_names().collect();
            let phase = random.pick(&["Upgrading", "Draining", "Disrupting", "Verifying"]);
            vec![
                format!("wait md/{DEPLOYMENT} phase={phase} 30m"),
                format!("update {} to {}", random.pick(&workers), setting.version.now),
            ]
        }
        FaultKind::Default => {
            let mut lines = Vec::new();
            if random.chance(2, 3) {
                lines.push(format!("wait cluster/{CLUSTER} updated 1h"));
            }
            lines.extend(setting.shape.new_default());
            lines.push("wait 1m".to_owned());
            setting.version.advance(false);
            lines.extend(setting.shape.request(&setting.version.now));
            lines
        }
        _ => {
            setting.version.advance(random.chance(1, 2));
            setting.shape.request(&setting.version.now)
        }
    }
}

fn annotation(machine: &str, key: &str) -> String {
    format!("machine/{machine} metadata.annotations.\"{key}\"")
}

/// A NodeUpdate of the machine: one for each upgrade so far.
fn update(random: &mut Random, setting: &Setting<'_>) -> String {
    let ordinal = random.between(1, setting.version.upgrades.max(1));
    format!("nodeupdate/{}-{ordinal}", setting.machine)
}

/// Removes the annotation by which Cluster API remembers that it updates a Machine.
fn cancel(machine: &str) -> String {
    format!("change {} -", annotation(machine, keys::UPDATE_IN_PROGRESS))
}

fn flip(random: &mut Random, setting: &Setting<'_>) -> Vec<String> {
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
/// or is deleted.
fn stuck_pod(random: &mut Random, machine: &str) -> Vec<String> {
    let owned = "ownerReferences: [{apiVersion: apps/v1, kind: ReplicaSet, name: web, uid: w, \
                 controller: true}]";
    let label = |value: &str| format!("{owned}, labels: {{cluster.x-k8s.io/drain: {value}}}");
    let bare = || ("labels: {}".to_owned(), "");
    let (metadata, spec) = match random.between(0, 5) {
        0 => (owned.to_owned(), "volumes: [{name: v, emptyDir: {}}], "),
        1 => (label("wait-completed"), ""),
        2 => (label("sometimes"), ""),
        _ => bare(),
    };
    let pod = format!(
        "apply to {CLUSTER} <<END\n{{apiVersion: v1, kind: Pod, \
         metadata: {{name: once, namespace: default, {metadata}}}, \
         spec: {{{spec}nodeName: {machine}, containers: [{{name: c, image: x}}]}}}}\nEND"
    );
    let time = random.between(1, 15);
    let delete = format!("delete {CLUSTER}:pod/once");
    let answer = match random.between(0, 2) {
        choice if choice > 0 && (metadata, spec) == bare() => format!(
            "change {} {}",
            annotation(machine, keys::DRAIN_UNREPLICATED),
            if choice == 1 { "Leave" } else { "Evict" }
        ),
        _ => delete,
    };
    vec![pod, format!("at {time}m {answer}")]
}

/// A volume that is attached to a node, and detached later.
fn volume(random: &mut Random, machine: &str) -> Vec<String> {
    let attachment = format!(
        "apply to {CLUSTER} <<END\n{{apiVersion: storage.k8s.io/v1, kind: VolumeAttachment, \
         metadata: {{name: disk-1}}, spec: {{attacher: csi.example.com, nodeName: {machine}, \
         source: {{persistentVolumeName: disk-1}}}}}}\nEND"
    );
    let time = random.between(1, 15);
    vec![attachment, format!("at {time}m delete {CLUSTER}:volumeattachment/disk-1")]
}
