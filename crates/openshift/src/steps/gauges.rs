//! The metrics that the steps of a look set.

use std::iter;

use refit_core::managed::steps::Progress;

use super::{
    COMMENCED, CONTROL_PLANE, HEALTHY_AFTER, HEALTHY_BEFORE, Known, REMOVED, RESERVED, WORKERS,
    Write, after, before, of,
};
use crate::{
    Compat,
    cluster_version::{current, is_completed},
    config::Platform,
    health::{Looked, Verdict, after_upgrade},
    metrics::{Reset, Series},
    notify::failure_gauge,
    scaler::ScaleUpState,
    upgrade_config::Phase,
};

/// A change of the metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Gauge {
    /// A series has this value.
    Set(Series, i64),
    /// Series are removed.
    Reset(Reset),
}

/// The names of the steps that a look comes to, in their order. The last one is not done, unless all are.
pub fn reached(platform: Platform, known: &Known<'_>) -> Vec<&'static str> {
    let mut names = Vec::new();
    for step in of(platform) {
        names.push(step.name);
        match (step.progress)(known) {
            Progress::Done | Progress::Unneeded => {}
            Progress::NotYet { .. } | Progress::Error { .. } => break,
        }
    }
    names
}

/// The metrics of a look that has made all its writes.
pub fn gauges(platform: Platform, known: &Known<'_>) -> Vec<Gauge> {
    let reached = reached(platform, known);
    let of_steps = reached.iter().flat_map(|name| of_step(name, known));
    sent(known).into_iter().chain(of_steps).collect()
}

/// Whether the notifications of a look were sent. In the original, one that failed stays at 1 if it is not tried again.
pub(crate) fn sent(known: &Known<'_>) -> Vec<Gauge> {
    let mut all = match known.compat {
        Compat::Repaired => vec![Gauge::Reset(Reset::Looked)],
        Compat::Strict => Vec::new(),
    };
    for (write, outcome) in &known.tried {
        let Write::Notify(notification) = write else { continue };
        let event = notification.event;
        let failed = failure_gauge(event, outcome.is_ok());
        all.extend(failed.map(|value| Gauge::Set(Series::NotificationFailed { event }, value)));
        if outcome.is_ok() {
            let version = known.version().to_owned();
            all.push(Gauge::Set(Series::Notification { event, version }, 1));
        }
    }
    all
}

/// What a health check shows of its reasons.
pub(crate) fn of_health(known: &Known<'_>, phase: Phase, looked: &Looked) -> Vec<Gauge> {
    let version = current(known.cluster).ok().map(str::to_owned);
    let series =
        |reason| Series::HealthcheckFailed { state: phase, version: version.clone(), reason };
    let set = looked.gauges.iter();
    set.map(|(reason, fails)| Gauge::Set(series(*reason), (*fails).into())).collect()
}

fn of_step(name: &str, known: &Known<'_>) -> Vec<Gauge> {
    let version = || known.version().to_owned();
    match name {
        HEALTHY_BEFORE if !known.was_commenced => {
            let looked = before::health(known, Phase::Upgrading);
            looked.map_or_else(|_| Vec::new(), |looked| of_health(known, Phase::Upgrading, &looked))
        }
        RESERVED => match before::scaled(known, known.was_commenced).map(|scaled| scaled.state) {
            Ok(ScaleUpState::TimedOut(_)) => vec![Gauge::Set(Series::ScalingFailed, 1)],
            Ok(ScaleUpState::Ready) => vec![Gauge::Set(Series::ScalingFailed, 0)],
            Ok(ScaleUpState::Unneeded | ScaleUpState::Skipped | ScaleUpState::Waits(_))
            | Err(_) => Vec::new(),
        },
        COMMENCED => vec![Gauge::Set(Series::WindowBreached, 0)],
        CONTROL_PLANE => {
            let series = Series::ControlPlaneTimeout { version: version() };
            let is_done = is_completed(known.cluster, known.version(), known.compat);
            match (is_done, after::is_late(known)) {
                (true, _) => vec![Gauge::Set(series, 0)],
                (false, Ok(true)) => vec![Gauge::Set(series, 1)],
                (false, Ok(false) | Err(_)) => Vec::new(),
            }
        }
        WORKERS => {
            let Ok(count) = after::count(known) else { return Vec::new() };
            let is_late = count.is_upgrading()
                && known.silences().is_ok_and(|silences| !silences.is_active());
            let late = Gauge::Set(Series::WorkerTimeout { version: version() }, is_late.into());
            // Those of extra nodes are set again by their step. In the original, that of a node that is gone stays.
            let is_over = known.compat == Compat::Repaired && !count.is_upgrading();
            let over = is_over.then_some(Gauge::Reset(Reset::DrainsOver));
            iter::once(late).chain(over).collect()
        }
        REMOVED if known.is_reserved() => {
            if after::removed(known) == Progress::Done {
                return vec![Gauge::Reset(Reset::DrainsOver)];
            }
            let failed = known.facts.failed_drains.iter().cloned();
            failed.map(|node| Gauge::Set(Series::NodeDrainTimeout { node }, 1)).collect()
        }
        HEALTHY_AFTER => {
            let Ok(essential) = known.essential() else { return Vec::new() };
            let looked = after_upgrade(essential, known.compat);
            let mut all = of_health(known, Phase::Upgrading, &looked);
            if looked.verdict == Verdict::Passed {
                all.push(Gauge::Reset(Reset::DrainsOver));
            }
            all
        }
        _ => Vec::new(),
    }
}
