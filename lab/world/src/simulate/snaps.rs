//! Runs in which k8sd refreshes the snaps of machines whose owners are annotated: what happens to k8sd, what operators do,
//! and how their end is judged.

use refit_kinds::{
    canonical::{CANONICAL, Keys, REFIT},
    json::{annotation, name, namespace, text},
    keys,
    refit::GoalOption,
};
use serde_json::Value;

use super::{cause::owner_name, fault::Setting, shape::Shape, tasks};
use crate::{
    random::Random,
    script::{
        look::{owners, owns},
        session::Session,
    },
    world::lock,
};

/// The option that stands for a version. A patch release is a branch of the channel of its minor version.
pub(super) fn option(version: &str) -> String {
    let (minor, patch) = version.trim_start_matches('v').rsplit_once('.').unwrap_or_default();
    let branch = if patch == "0" { String::new() } else { format!("/fix-{patch}") };
    format!("channel={minor}-classic/stable{branch}")
}

/// The line that sets the request of an owner.
fn ask(keys: Keys, owner: &str, option: &str) -> String {
    format!("change {owner} metadata.annotations.\"{}\" {option}", keys.upgrade_to)
}

/// The lines that request a version for all machines.
pub(super) fn request(keys: Keys, shape: &Shape, version: &str) -> Vec<String> {
    shape.owners().iter().map(|owner| ask(keys, owner, &option(version))).collect()
}

/// Refreshes of a machine fail in one way or another.
pub(super) fn fails(random: &mut Random, machine: &str) -> Vec<String> {
    let how = random.pick(&["fails", "undone", "hold", "lost", "rejected"]);
    let times = random.between(1, 4);
    let mut lines = vec![format!("break k8sd {machine} {how} times {times}")];
    if random.chance(1, 4) {
        lines.push(format!("at {}s break k8sd {machine} forgets", random.between(10, 300)));
    }
    lines
}

/// k8sd of a machine does not answer for some minutes.
pub(super) fn off(random: &mut Random, machine: &str) -> Vec<String> {
    vec![format!("break k8sd {machine} off for {}m", random.between(1, 20))]
}

/// An operator withdraws the request of an owner, and repeats it later.
pub(super) fn withdraw(random: &mut Random, setting: &Setting<'_>, keys: Keys) -> Vec<String> {
    let owner = setting.shape.owner(random);
    let again = ask(keys, &owner, &option(&setting.version.now));
    vec![ask(keys, &owner, "-"), format!("at {}m {again}", random.between(1, 15))]
}

/// An operator requests new certificates for a node.
pub(super) fn certificates(machine: &str) -> String {
    let key = REFIT.certificates.refresh;
    format!("change machine/{machine} metadata.annotations.\"{key}\" 1y")
}

/// Whether new certificates are requested for a machine, and were not issued.
pub(super) fn lacks_certificates(machine: &Value) -> bool {
    annotation(machine, REFIT.certificates.refresh).is_some()
}

/// Whether an owner requests what a machine cannot install: an older minor version of k8sd, or one after the next.
pub(super) fn is_out_of_reach(session: &Session, machine: &Value) -> bool {
    let minor = |option: &str| {
        let minor = option.parse::<GoalOption>().ok()?.minor_version()?;
        Some(minor.minor())
    };
    let Some((installed, requested)) = options(session, machine) else { return false };
    let (installed, requested) =
        (installed.as_deref().and_then(minor), requested.as_deref().and_then(minor));
    installed.zip(requested).is_some_and(|(from, to)| to < from || to > from + 1)
}

/// Whether the task for what the owner of a machine has reached has left machines out, because an operator skips them.
pub(super) fn is_skipped(session: &Session, machine: &Value) -> bool {
    let Some((installed, Some(reached))) = options(session, machine) else { return false };
    let all = session.world.upgrade_tasks();
    let mut tasks = tasks::of_owner(&all, owner_name(machine));
    installed.as_ref() != Some(&reached)
        && tasks.any(|task| {
            annotation(task, keys::REQUESTED) == Some(reached.as_str())
                && task["status"]["counts"]["excepted"].as_i64() > Some(0)
        })
}

/// Whether the snap of a machine is what its owner requests; `None` for a machine without k8sd.
pub(super) fn is_refreshed(session: &Session, machine: &Value) -> Option<bool> {
    let (installed, requested) = options(session, machine)?;
    // What was taken up is shown when it is withdrawn or reached; it must not be lost.
    let all = session.world.upgrade_tasks();
    let was_never_requested = || tasks::of_owner(&all, owner_name(machine)).next().is_none();
    Some(match requested {
        Some(requested) => installed == Some(requested),
        None => was_never_requested(),
    })
}

/// What the snap of a machine has installed, and what its owner requests or has reached.
fn options(session: &Session, machine: &Value) -> Option<(Option<String>, Option<String>)> {
    let cluster = text(machine, "/spec/clusterName");
    let key = format!("{}/{cluster}/{}", namespace(machine), name(machine));
    let installed = lock(&session.world.inner.hosts).get(&key)?.k8sd.as_ref()?.installed();
    let owners = owners(&session.world);
    let owner = owners.iter().find(|owner| owns(owner, machine))?;
    let requested = [CANONICAL, REFIT].into_iter().find_map(|keys| {
        annotation(owner, keys.upgrade_to).or_else(|| annotation(owner, keys.release))
    });
    Some((installed, requested.map(str::to_owned)))
}
