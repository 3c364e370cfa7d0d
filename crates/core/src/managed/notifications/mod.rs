//! What people are notified of, for each platform and for fleets.
//!
//! The status is the outbox: the write that shows a point of an upgrade adds its notification, so none is lost and none is
//! added twice. It is delivered later, by a worker of its own.
//!
//! | module | decides |
//! |---|---|
//! | this one | which notifications a change of an upgrade or of a plan adds, and for which receivers |
//! | [`mod@delivery`] | which one is delivered next, what an answer means, when it is tried again |
//! | [`messages`] | what a receiver gets |

pub mod delivery;
pub mod messages;

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use refit_kinds::{
    conditions,
    refit::{
        CapacityState, ClusterUpgradePlanStatus, Delivery, DeliveryState, MAX_NOTIFICATION_MESSAGE,
        MAX_PLAN_NOTIFICATIONS, MAX_UPGRADE_NOTIFICATIONS, PlanEvent, PlanNotification, PlanPhase,
        Receiver, UpgradeEvent, UpgradeNotification, UpgradePhase, UpgradeRecord, WaveStatus,
    },
};

use strum::VariantArray as _;

use super::{
    engine::{Ready, is_cancelling},
    fleet::plan_of,
};
use crate::task::status::READY;

/// How long after its time an upgrade that has not commenced counts as delayed.
pub const DELAYED_AFTER: SignedDuration = SignedDuration::from_mins(30);

/// The receivers that are configured.
pub type Receivers = BTreeSet<Receiver>;

/// The steps of a platform by which the notifications follow an upgrade.
#[derive(Clone, Copy, Debug)]
pub struct Milestones {
    /// The step after which the upgrade is finished: what it changes begins with the control plane.
    pub commenced: &'static str,
    /// The step that upgrades the control plane.
    pub control_plane: &'static str,
    /// The step that upgrades the workers.
    pub workers: &'static str,
}

/// What the notifications of an upgrade are decided on, apart from its record.
#[derive(Clone, Debug)]
pub struct Shown<'a> {
    /// The record before, unless the upgrade begins with this look.
    pub before: Option<&'a UpgradeRecord>,
    /// When the upgrade is to begin.
    pub begins_at: Timestamp,
    /// What the object shows.
    pub ready: &'a Ready,
    /// The reason and the message of a check that fails now.
    pub unhealthy: Option<(&'a str, &'a str)>,
    /// The receivers that are configured.
    pub receivers: &'a Receivers,
    /// The steps of the platform.
    pub milestones: &'a Milestones,
    /// The time of the look.
    pub now: Timestamp,
}

/// Adds the notifications of what an upgrade has reached with a look.
pub fn note(record: &mut UpgradeRecord, shown: &Shown<'_>) {
    record
        .notifications
        .retain(|known| !known.earlier || is_awaited(&known.deliveries, shown.receivers));
    let awaits_time = record.phase == UpgradePhase::Pending && shown.now < shown.begins_at;
    let scheduled = scheduled(record, shown);
    if awaits_time && !of_request(record).any(|known| known.message == scheduled) {
        // It was put off: what was sent before was for another time.
        set_aside(&mut record.notifications);
        add(record, shown, UpgradeEvent::Scheduled, (&shown.ready.reason, scheduled));
    }
    let version = record.version.clone();
    let has_commenced = is_done(record, shown.milestones.commenced);
    let awaits_start = !record.phase.has_ended() && !has_commenced && !is_cancelling(record);
    if let Some((reason, why)) = shown.unhealthy.filter(|_| awaits_start) {
        let message = format!("The upgrade to {version} cannot begin at present: {}", ended(why));
        add(record, shown, UpgradeEvent::HealthCheckFailed, (reason, message));
    }
    for event in TRANSITIONS {
        let has_reached = |record: &UpgradeRecord| is_reached(record, event, shown.milestones);
        if has_reached(record) && !shown.before.is_some_and(has_reached) {
            let what = transition(record, event, shown);
            add(record, shown, event, (&shown.ready.reason, what));
        }
    }
    let is_late = delayed_at(shown.begins_at).is_some_and(|late| late <= shown.now);
    // Its task may have been deleted since.
    let was_commenced = |known: &UpgradeRecord| {
        let later = [shown.milestones.control_plane, shown.milestones.workers];
        known.conditions.iter().any(|step| later.contains(&&*step.type_))
    };
    if awaits_start && is_late && !was_commenced(record) {
        let (from, why) = (shown.begins_at, ended(&shown.ready.message));
        let message = format!("The upgrade to {version} was to begin at {from}, and waits: {why}");
        add(record, shown, UpgradeEvent::Delayed, (&shown.ready.reason, message));
    }
}

/// When an upgrade counts as delayed.
pub fn delayed_at(begins_at: Timestamp) -> Option<Timestamp> {
    begins_at.checked_add(DELAYED_AFTER).ok()
}

/// Drops what was delivered from the record of an earlier version, and what has no receiver any more.
pub fn keep_waiting(record: &mut UpgradeRecord, receivers: &Receivers) {
    record.notifications.retain(|known| is_awaited(&known.deliveries, receivers));
}

/// Keeps what was not delivered yet, apart from what follows: an upgrade begins again, or was put off.
pub(super) fn set_aside(notifications: &mut Vec<UpgradeNotification>) {
    notifications.retain(|known| known.deliveries.iter().any(is_waiting));
    for known in notifications.iter_mut() {
        known.earlier = true;
    }
    let room = MAX_UPGRADE_NOTIFICATIONS - UpgradeEvent::VARIANTS.len();
    let surplus = notifications.len().saturating_sub(room);
    notifications.drain(..surplus);
}

/// The notifications of the present request.
fn of_request(record: &UpgradeRecord) -> impl Iterator<Item = &UpgradeNotification> {
    record.notifications.iter().filter(|known| !known.earlier)
}

/// Whether a receiver that is configured waits for one of the deliveries.
fn is_awaited(deliveries: &[Delivery], receivers: &Receivers) -> bool {
    deliveries.iter().any(|one| is_waiting(one) && receivers.contains(&one.receiver))
}

/// Whether a delivery is to be made.
pub fn is_waiting(delivery: &Delivery) -> bool {
    match delivery.state {
        DeliveryState::Waiting => true,
        DeliveryState::Sent | DeliveryState::Failed => false,
    }
}

/// What is reached once, in this order.
const TRANSITIONS: [UpgradeEvent; 7] = [
    UpgradeEvent::Started,
    UpgradeEvent::CapacitySkipped,
    UpgradeEvent::ControlPlaneStarted,
    UpgradeEvent::ControlPlaneFinished,
    UpgradeEvent::WorkersFinished,
    UpgradeEvent::Completed,
    UpgradeEvent::Failed,
];

fn is_reached(record: &UpgradeRecord, event: UpgradeEvent, milestones: &Milestones) -> bool {
    match event {
        // What holds at a look, and not from then on.
        UpgradeEvent::Scheduled | UpgradeEvent::HealthCheckFailed | UpgradeEvent::Delayed => false,
        UpgradeEvent::Started => record.start_time.is_some(),
        UpgradeEvent::CapacitySkipped => record.extra_capacity == Some(CapacityState::Skipped),
        UpgradeEvent::ControlPlaneStarted => is_done(record, milestones.commenced),
        UpgradeEvent::ControlPlaneFinished => is_done(record, milestones.control_plane),
        UpgradeEvent::WorkersFinished => is_done(record, milestones.workers),
        UpgradeEvent::Completed => record.phase == UpgradePhase::Completed,
        UpgradeEvent::Failed => record.phase == UpgradePhase::Failed,
    }
}

fn transition(record: &UpgradeRecord, event: UpgradeEvent, shown: &Shown<'_>) -> String {
    let version = &record.version;
    match event {
        UpgradeEvent::Started => format!("The upgrade to {version} has started."),
        UpgradeEvent::ControlPlaneStarted => {
            format!("The upgrade of the control plane to {version} has started.")
        }
        UpgradeEvent::ControlPlaneFinished => {
            format!("The control plane is upgraded to {version}.")
        }
        UpgradeEvent::WorkersFinished => format!("The workers are upgraded to {version}."),
        UpgradeEvent::Failed => {
            format!("The upgrade to {version} has failed: {}", ended(&record.message))
        }
        UpgradeEvent::CapacitySkipped
        | UpgradeEvent::Completed
        | UpgradeEvent::Scheduled
        | UpgradeEvent::HealthCheckFailed
        | UpgradeEvent::Delayed => sentence(&shown.ready.message),
    }
}

fn scheduled(record: &UpgradeRecord, shown: &Shown<'_>) -> String {
    format!("The upgrade to {} begins at {}.", record.version, shown.begins_at)
}

fn is_done(record: &UpgradeRecord, step: &str) -> bool {
    record.conditions.iter().any(|known| known.type_ == step && known.status == "True")
}

/// Adds a notification, unless it was added before or has no receiver.
fn add(
    record: &mut UpgradeRecord,
    shown: &Shown<'_>,
    event: UpgradeEvent,
    (reason, message): (&str, String),
) {
    let by_plan = record.requested_by.as_deref().and_then(plan_of).is_some();
    let gets_it = |receiver: &Receiver| match receiver {
        Receiver::CloudEvents => true,
        // A fleet has thousands of Clusters: the plan has notifications of its own.
        Receiver::Slack => !by_plan || event == UpgradeEvent::Failed,
    };
    let receivers = shown.receivers.iter().copied().filter(gets_it);
    let deliveries: Vec<Delivery> = receivers.map(Delivery::to).collect();
    let is_known = of_request(record).any(|known| known.event == event);
    if deliveries.is_empty() || is_known {
        return;
    }
    // They are the key of the list.
    let key = (event, record.generation);
    record.notifications.retain(|known| (known.event, known.generation) != key);
    record.notifications.push(UpgradeNotification {
        event,
        time: Time(shown.now),
        phase: record.phase,
        reason: reason.to_owned(),
        message: bounded(&message, MAX_NOTIFICATION_MESSAGE),
        generation: record.generation,
        earlier: false,
        deliveries,
    });
}

/// Adds the notifications of what a plan has reached with a look.
pub fn note_plan(
    before: &ClusterUpgradePlanStatus,
    next: &mut ClusterUpgradePlanStatus,
    receivers: &Receivers,
    now: Timestamp,
) {
    next.notifications.clone_from(&before.notifications);
    let Some(version) = next.version.clone().filter(|_| !receivers.is_empty()) else { return };
    let is_same = before.version == next.version;
    let (reason, message) = conditions::get(&next.conditions, READY)
        .map(|ready| (ready.reason.clone(), sentence(&ready.message)))
        .unwrap_or_default();
    let reason_before = conditions::get(&before.conditions, READY).map(|ready| &*ready.reason);
    let mut found = Vec::new();
    for (at, wave) in next.waves.iter().enumerate() {
        let known = before.waves.get(at).filter(|_| is_same);
        // Of those with its name: the last wave is added again for Clusters that were created meanwhile.
        let namesakes = next.waves.iter().take(at + 1).filter(|other| other.name == wave.name);
        let name = (&*wave.name, namesakes.count());
        if known.is_none() {
            found.push((PlanEvent::WaveStarted, name, began(wave)));
        }
        if wave.ended.is_some() && known.is_none_or(|known| known.ended.is_none()) {
            found.push((PlanEvent::WaveCompleted, name, came_to_an_end(wave)));
        }
    }
    let was_in = |phase: PlanPhase| is_same && before.phase == phase;
    match next.phase {
        PlanPhase::Pending | PlanPhase::Progressing => {}
        PlanPhase::Stopped => {
            if !was_in(PlanPhase::Stopped) || reason_before != Some(&*reason) {
                found.push((PlanEvent::Stopped, ("", 0), message));
            }
        }
        PlanPhase::Completed => {
            if !was_in(PlanPhase::Completed) {
                found.push((PlanEvent::Completed, ("", 0), message));
            }
        }
    }
    for (event, (wave, nth), message) in found {
        // A Cluster that goes on again reopens its wave.
        let same = next
            .notifications
            .iter()
            .filter(|known| (known.event, &*known.wave, &known.version) == (event, wave, &version));
        let is_known = !wave.is_empty() && same.count() >= nth;
        if is_known {
            continue;
        }
        let last = next.notifications.last().map_or(0, |known| known.number);
        next.notifications.push(PlanNotification {
            number: last.saturating_add(1),
            event,
            version: version.clone(),
            wave: wave.to_owned(),
            time: Time(now),
            phase: next.phase,
            reason: reason.clone(),
            message: bounded(&message, MAX_NOTIFICATION_MESSAGE),
            generation: next.observed_generation.unwrap_or_default(),
            deliveries: receivers.iter().copied().map(Delivery::to).collect(),
        });
    }
    drop_surplus(&mut next.notifications, receivers);
}

/// Drops the oldest notifications of a plan that has too many, first of those that are not to be delivered any more.
fn drop_surplus(notifications: &mut Vec<PlanNotification>, receivers: &Receivers) {
    let mut surplus = notifications.len().saturating_sub(MAX_PLAN_NOTIFICATIONS);
    for keeps_awaited in [true, false] {
        notifications.retain(|one| {
            let is_kept = surplus == 0 || keeps_awaited && is_awaited(&one.deliveries, receivers);
            surplus -= usize::from(!is_kept);
            is_kept
        });
    }
}

fn clusters(count: i32) -> String {
    if count == 1 { "1 Cluster".to_owned() } else { format!("{count} Clusters") }
}

fn began(wave: &WaveStatus) -> String {
    format!("Wave {} with {} has begun.", wave.name, clusters(wave.size))
}

fn came_to_an_end(wave: &WaveStatus) -> String {
    let (done, failed) = (wave.counts.completed, wave.counts.failed);
    let size = clusters(wave.size);
    format!("Wave {} has ended: of {size}, {done} upgraded and {failed} failed.", wave.name)
}

/// A message of a condition, which begins in lower case, as a sentence.
fn sentence(message: &str) -> String {
    let message = ended(message);
    let mut rest = message.chars();
    rest.next().map(|first| first.to_uppercase().chain(rest).collect()).unwrap_or_default()
}

/// A message with its full stop.
fn ended(message: &str) -> String {
    format!("{}.", message.trim_end_matches('.'))
}

/// The beginning of a text.
pub(super) fn bounded(text: &str, characters: usize) -> String {
    if text.chars().count() <= characters {
        return text.to_owned();
    }
    let kept: String = text.chars().take(characters.saturating_sub(3)).collect();
    format!("{kept}...")
}

#[cfg(test)]
mod tests;
