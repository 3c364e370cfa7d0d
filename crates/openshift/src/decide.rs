//! What is next for an UpgradeConfig (`docs/facts/openshift-upgrades.md#phases`).

use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use refit_core::managed::steps::{ERROR, Progress, Worked, work};

use crate::{
    Compat,
    cluster_version::{semver, upgrade_at},
    config::Platform,
    health::Looked,
    history::{Trouble, decode, encode, show, show_trouble},
    metrics::{Reset, Series},
    notify::Notice,
    pools::note_worker_times,
    steps::{
        Fact, Gauge, Known, Write, failure, gauges, names::FAILED, of, of_health, pre_health,
        reached, sent,
    },
    upgrade_config::{Phase, UpgradeHistory},
    validation::{Validating, Validity, validate},
};

/// How many whole minutes before its time an upgrade is checked when it is requested.
const CHECKED_AHEAD: i64 = 120;
/// How soon an upgrade is due that is looked at exactly then.
const SOON: SignedDuration = SignedDuration::from_mins(5);
/// The next look at an upgrade that is under way.
const AGAIN: SignedDuration = SignedDuration::from_mins(1);
/// Condition of a request that cannot be carried out (M13).
pub const VALID: &str = "UpgradeConfigValid";
const NOT_VALID: &str = "UpgradeConfigValid not done";
const NOT_FAILED: &str = "FailedUpgrade not done";
/// The alerts that page people about an upgrade.
const PAGING: &str = "UpgradeConfigValidationFailedSRE|UpgradeClusterCheckFailedSRE|\
                      UpgradeControlPlaneUpgradeTimeoutSRE|UpgradeNodeUpgradeTimeoutSRE|UpgradeNodeDrainFailedSRE";

/// What a look has found. As long as it has writes, they are made, and it is decided again.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// The entry of the upgrade, to be stored once there are no writes. It belongs to the object that was read: the write of
    /// the status has its uid and resourceVersion.
    pub entry: UpgradeHistory,
    /// What is to be read or written.
    pub writes: Vec<Write>,
    /// The metrics, once there are no writes, without those of [`crate::metrics::milestones`].
    pub gauges: Vec<Gauge>,
    /// When the next look is due, apart from changes and the look at all objects every five minutes.
    pub again: Option<SignedDuration>,
    /// An error: the next look is due after a back-off.
    pub error: Option<String>,
    /// What it waits for, for the log: the conditions of the original do not have it.
    pub waits: Option<String>,
}

/// Decides what is next.
pub fn decide(platform: Platform, known: &Known<'_>) -> Decision {
    match known.entry.phase {
        Phase::New => requested(known),
        Phase::Pending | Phase::Upgrading if failure_due(platform, known) => fail(known),
        Phase::Pending => pending(known),
        Phase::Upgrading => upgrade(platform, known),
        Phase::Upgraded => upgraded(known),
        Phase::Failed => Decision::of(known),
    }
}

impl Decision {
    /// Nothing.
    fn of(known: &Known<'_>) -> Self {
        Self {
            entry: known.entry.clone(),
            writes: Vec::new(),
            gauges: sent(known),
            again: None,
            error: None,
            waits: None,
        }
    }

    fn in_phase(mut self, phase: Phase) -> Self {
        self.entry.phase = phase;
        self
    }

    fn asks(known: &Known<'_>, writes: Vec<Write>) -> Self {
        Self { writes, ..Self::of(known) }
    }

    fn read(known: &Known<'_>, fact: Fact) -> Self {
        Self::asks(known, vec![Write::Read(fact)])
    }
}

/// A new request: what would keep it from beginning is reported ahead of its time, and keeps nothing waiting.
fn requested(known: &Known<'_>) -> Decision {
    let is_checked = match known.compat {
        Compat::Repaired => true,
        Compat::Strict => known.config.gates.pre_health_check,
    };
    let at = upgrade_at(&known.upgrade.spec).ok();
    let is_ahead = at.is_some_and(|at| at.duration_since(known.now).as_mins() > CHECKED_AHEAD);
    let mut next = Decision::of(known).in_phase(Phase::Pending);
    next.again = Some(AGAIN);
    if !is_checked || !is_ahead {
        return next;
    }
    let looked: Looked = match pre_health(known) {
        Ok(looked) => looked,
        Err(Progress::NotYet { writes, .. }) => return Decision::asks(known, writes),
        Err(Progress::Done | Progress::Unneeded | Progress::Error { .. }) => return next,
    };
    if let Some(notice) = &looked.notice {
        let notice = Notice::PreHealthCheckFailed { failures: &notice.failures };
        if let Err(Progress::NotYet { writes, .. }) = known.notified(notice) {
            return Decision::asks(known, writes);
        }
    }
    next.gauges.extend(of_health(known, Phase::New, &looked));
    next
}

/// A request that waits for its time.
fn pending(known: &Known<'_>) -> Decision {
    let found = validate(&Validating {
        spec: &known.upgrade.spec,
        cluster: known.cluster,
        compat: known.compat,
        asks_cincinnati: known.asks_cincinnati,
        architecture: known.architecture,
        release: known.facts.release.as_ref(),
        offered: known.facts.offered.as_ref(),
    });
    let mut next = Decision::of(known);
    // A failure that could not be carried out is not due any more.
    show(&mut next.entry, FAILED, None, known.now);
    let failed = Gauge::Set(Series::ValidationFailed, 1);
    match found {
        Validity::AskRelease(image) => Decision::read(known, Fact::Release(image)),
        Validity::AskGraph(request) => Decision::read(known, Fact::Graph(request)),
        Validity::SetVersion(version) => match known.made(Write::SetVersion(version)) {
            Err(Progress::NotYet { writes, .. }) => Decision::asks(known, writes),
            Err(Progress::Error { why, .. }) => Decision { error: Some(why), ..next },
            Ok(()) | Err(Progress::Done | Progress::Unneeded) => {
                Decision { again: Some(SignedDuration::ZERO), ..next }
            }
        },
        Validity::Invalid(why) => {
            show_invalid(known, &mut next.entry, Some(&why));
            next.gauges.push(failed);
            // What is offered changes without a change of the request.
            next.again = match known.compat {
                Compat::Repaired => Some(AGAIN),
                Compat::Strict => None,
            };
            next
        }
        Validity::Error(why) => {
            show_invalid(known, &mut next.entry, Some(&why));
            next.gauges.push(failed);
            Decision { error: Some(why), ..next }
        }
        Validity::Valid => {
            show_invalid(known, &mut next.entry, None);
            next.gauges.push(Gauge::Set(Series::ValidationFailed, 0));
            due(known, next)
        }
    }
}

/// Shows why a request cannot be carried out (M13).
fn show_invalid(known: &Known<'_>, entry: &mut UpgradeHistory, why: Option<&str>) {
    let shown = why.map(|why| ("False", NOT_VALID, why));
    match known.compat {
        Compat::Strict => {}
        Compat::Repaired => show(entry, VALID, shown, known.now),
    }
}

/// A valid request: begins at its time, if the provider still wants it.
fn due(known: &Known<'_>, mut next: Decision) -> Decision {
    let Ok(at) = upgrade_at(&known.upgrade.spec) else { return next };
    let left = at.duration_since(known.now);
    if !left.is_negative() {
        next.again = (left < SOON).then_some(left);
        return next;
    }
    if let (Some(refreshed), Compat::Repaired) = (&known.facts.refreshed, known.compat) {
        let why = refreshed.as_ref().err().map(String::as_str);
        show_trouble(&mut next.entry, Trouble::SyncFailed, why, known.now);
    }
    match &known.facts.refreshed {
        None => Decision::read(known, Fact::Refresh),
        Some(Err(why)) => Decision { error: Some(why.clone()), ..next },
        Some(Ok(false)) => next.in_phase(Phase::New),
        Some(Ok(true)) => {
            next.entry.start_time = Some(Time(known.now));
            // The status is written before the first step.
            next.again = Some(SignedDuration::ZERO);
            next.in_phase(Phase::Upgrading)
        }
    }
}

/// Works through the steps.
fn upgrade(platform: Platform, known: &Known<'_>) -> Decision {
    let steps = of(platform);
    let names: Vec<&str> = steps.iter().map(|step| step.name).collect();
    let mut conditions = decode(known.entry, &names, known.now);
    let worked = work(&steps, known, &mut conditions, known.now);
    let mut next = Decision::of(known);
    let entry = &mut next.entry;
    let reached = reached(platform, known);
    encode(entry, (&names, &reached), &conditions, (known.now, known.compat));
    note_worker_times(entry, known.pools, known.now, known.compat);
    // A failure that could not be carried out is not due any more.
    show(entry, FAILED, None, known.now);
    match worked {
        Worked::At { writes, .. } if !writes.is_empty() => return Decision::asks(known, writes),
        Worked::At { reason, message, .. } => {
            if reason == ERROR {
                next.error = Some(message);
            } else {
                (next.again, next.waits) = (Some(AGAIN), Some(message));
            }
        }
        Worked::Complete => {
            (entry.phase, entry.complete_time) = (Phase::Upgraded, Some(Time(known.now)));
            next.again = Some(AGAIN);
        }
    }
    next.gauges = gauges(platform, known);
    next
}

/// Whether an upgrade that has not commenced has failed. It counts from `upgradeAt`, also if it never began; in the original from when
/// its steps began (M8). ARO has no such rule.
fn failure_due(platform: Platform, known: &Known<'_>) -> bool {
    let is_osd = match platform {
        Platform::Osd => true,
        Platform::Aro => false,
    };
    let began = known.entry.start_time.as_ref().map(|time| time.0);
    let from = match known.compat {
        Compat::Repaired => upgrade_at(&known.upgrade.spec).ok().or(began),
        Compat::Strict => began,
    };
    let is_over =
        |timeout: SignedDuration| from.is_some_and(|from| known.now.duration_since(from) > timeout);
    let is_commenced = match (known.has_commenced(), known.compat) {
        (Ok(is_commenced), _) => is_commenced,
        // What requests nothing cannot commence. One that is under way waits until its spec is corrected.
        (Err(_), compat) => compat == Compat::Strict || known.entry.phase == Phase::Upgrading,
    };
    let timeout = known.config.window.timeout;
    is_osd && !is_commenced && timeout.is_some_and(is_over)
}

/// Ends an upgrade that did not begin in time. What cannot be done keeps it waiting.
fn fail(known: &Known<'_>) -> Decision {
    let mut next = Decision::of(known);
    match failure(known) {
        Progress::NotYet { writes, .. } => return Decision::asks(known, writes),
        Progress::Error { why, .. } => {
            // The original hides why.
            let error = match known.compat {
                Compat::Repaired => {
                    let shown = ("False", NOT_FAILED, &*why);
                    show(&mut next.entry, FAILED, Some(shown), known.now);
                    Some(why)
                }
                Compat::Strict => None,
            };
            return Decision { again: Some(AGAIN), error, ..next };
        }
        Progress::Done | Progress::Unneeded => {}
    }
    match known.compat {
        Compat::Strict => {}
        Compat::Repaired => {
            let shown = ("True", "Upgrade failed", "FailedUpgrade notification sent");
            show(&mut next.entry, FAILED, Some(shown), known.now);
        }
    }
    next.gauges.push(Gauge::Set(Series::WindowBreached, 1));
    next.gauges.push(Gauge::Reset(Reset::UpgradeFailed));
    next.in_phase(Phase::Failed)
}

/// Publishes whether an upgrade has paged people.
fn upgraded(known: &Known<'_>) -> Decision {
    let mut next = Decision::of(known);
    let UpgradeHistory { start_time, complete_time, version, preceding_version, .. } = known.entry;
    let (Some(start), Some(end)) = (start_time, complete_time) else { return next };
    let Some(alerts) = &known.facts.paging_alerts else {
        let (ran, since) = (end.0.duration_since(start.0), known.now.duration_since(end.0));
        let query = format!(
            "sum by (alertname)(max_over_time(ALERTS{{alertstate=\"firing\",severity=\"critical\",\
             alertname=~\"{PAGING}\"}}[{}s] offset {}s))",
            ran.as_secs().max(1),
            since.as_secs().max(0)
        );
        return Decision::read(known, Fact::PagingAlerts { query });
    };
    match alerts {
        Ok(alerts) => {
            let series = Series::UpgradeResult {
                preceding_version: preceding_version.clone(),
                stream: stream(preceding_version, version).to_owned(),
                version: version.clone(),
                alerts: alerts.join(","),
            };
            next.gauges.push(Gauge::Set(series, alerts.is_empty().into()));
            next
        }
        Err(why) => Decision { error: Some(why.clone()), ..next },
    }
}

/// Whether an upgrade was to another minor version (`y`) or not (`z`).
fn stream(from: &str, to: &str) -> &'static str {
    match (semver(from), semver(to)) {
        (Ok(from), Ok(to)) if from.minor == to.minor => "z",
        (Ok(_), Ok(_)) => "y",
        (Ok(_) | Err(_), _) => "unknown",
    }
}
