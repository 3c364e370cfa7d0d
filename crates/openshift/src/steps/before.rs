//! The steps until the upgrade is requested of the ClusterVersion: most are done from then on.

use jiff::SignedDuration;
use refit_core::managed::steps::Progress;

use super::{
    Known, Write,
    flow::{Made, flow},
    names::COMMENCED,
};
use crate::{
    Compat,
    cluster_version::{self, Commence, check_upgradeable},
    config::Platform,
    dependencies::{step_error, to_request},
    health::{Looked, Verdict, before_upgrade},
    maintenance::ControlPlane,
    manager,
    notify::{Notice, is_delayed},
    scaler::{ScaleUp, ScaleUpState, scale_down, scale_up},
    upgrade_config::Phase,
};

/// How long the cluster-version operator has time to offer the versions of a new channel.
const OFFERED_WITHIN: SignedDuration = SignedDuration::from_mins(5);

pub(super) fn started(known: &Known<'_>) -> Made {
    flow(|| {
        if !known.has_commenced()? {
            known.notified(Notice::Started)?;
        }
        Ok(Progress::Done)
    })
}

pub(super) fn delayed(known: &Known<'_>) -> Made {
    flow(|| {
        let started = known.entry.start_time.as_ref().map(|time| time.0);
        let trigger = known.config.window.delay_trigger.unwrap_or_default();
        if !known.has_commenced()? && is_delayed(started, trigger, known.now) {
            known.notified(Notice::Delayed)?;
        }
        Ok(Progress::Done)
    })
}

pub(super) fn upgradable(known: &Known<'_>) -> Made {
    flow(|| {
        if known.has_commenced()? {
            return Ok(Progress::Done);
        }
        match check_upgradeable(known.cluster, &known.upgrade.spec) {
            Ok(()) => Ok(Progress::Done),
            Err(error) => Ok(Progress::error(match known.compat {
                Compat::Repaired => format!("{error}{}", tried_until(known)),
                Compat::Strict => error.to_string(),
            })),
        }
    })
}

/// Until when the upgrade is tried to be begun, as the end of a sentence.
fn tried_until(known: &Known<'_>) -> String {
    let at = cluster_version::upgrade_at(&known.upgrade.spec).ok();
    let end = at.zip(known.config.window.timeout).and_then(|(at, time)| at.checked_add(time).ok());
    let end = end.map_or_else(|| "that has changed".to_owned(), |end| end.to_string());
    format!("{}{end}", cluster_version::TRIED_AGAIN)
}

/// What the health checks before the upgrade find.
pub(super) fn health(known: &Known<'_>, phase: Phase) -> Result<Looked, Made> {
    let extended = known.extended()?;
    Ok(before_upgrade(known.essential()?, extended, phase, known.compat))
}

pub(super) fn healthy(known: &Known<'_>) -> Made {
    flow(|| {
        if known.has_commenced()? {
            return Ok(Progress::Done);
        }
        let looked = health(known, Phase::Upgrading)?;
        if let Some(notice) = &looked.notice {
            known.notified(Notice::HealthCheckFailed { failures: &notice.failures })?;
        }
        Ok(of_verdict(looked.verdict))
    })
}

pub(super) fn of_verdict(verdict: Verdict) -> Made {
    match verdict {
        Verdict::Passed => Progress::Done,
        Verdict::Waits(why) => Progress::waits(why),
        Verdict::Error(why) => Progress::error(why),
    }
}

pub(super) fn dependencies(known: &Known<'_>) -> Made {
    flow(|| {
        let urls = to_request(&known.config.dependencies.urls, known.has_commenced()?);
        if urls.is_empty() {
            return Ok(Progress::Done);
        }
        let error = step_error(known.unavailable(urls)?, known.compat);
        Ok(error.map_or(Progress::Done, Progress::error))
    })
}

/// How extra nodes are added, before the upgrade has commenced or after that.
pub(super) fn scaled(known: &Known<'_>, has_commenced: bool) -> Result<ScaleUp, Made> {
    if !known.is_reserved() || has_commenced {
        return Ok(ScaleUp { create: Vec::new(), state: ScaleUpState::Unneeded });
    }
    let seen = known.machines()?.seen();
    let scaled = scale_up((true, false), seen, &known.config.scale, known.now, known.compat);
    scaled.map_err(|error| Progress::error(error.to_string()))
}

pub(super) fn reserved(known: &Known<'_>) -> Made {
    flow(|| {
        let ScaleUp { create, state } = scaled(known, known.has_commenced()?)?;
        let create = create.into_iter().map(|set| Write::CreateMachineSet(Box::new(set)));
        known.all_made(create.collect())?;
        match state {
            ScaleUpState::Unneeded | ScaleUpState::Ready => {}
            ScaleUpState::Waits(why) => return Ok(Progress::waits(why)),
            ScaleUpState::TimedOut(_) => known.notified(Notice::Skipped)?,
            // That it cannot be sent keeps nothing waiting.
            ScaleUpState::Skipped => match known.notified(Notice::ScaleSkipped) {
                Ok(()) | Err(Progress::Error { .. }) => {}
                Err(not_done) => return Ok(not_done),
            },
        }
        Ok(Progress::Done)
    })
}

pub(super) fn silenced(known: &Known<'_>) -> Made {
    flow(|| {
        let version = known.version();
        let began = cluster_version::began(known.cluster, version, known.compat);
        let state = if cluster_version::is_completed(known.cluster, version, known.compat) {
            ControlPlane::Done
        } else if known.has_commenced()? {
            ControlPlane::Works { since: began.unwrap_or(known.now) }
        } else {
            ControlPlane::Ahead
        };
        let config = known.config;
        let due = known.silences()?.control_plane(
            state,
            config.control_plane_time,
            &config.control_plane_criticals,
        );
        known.silenced(due)?;
        Ok(Progress::Done)
    })
}

pub(super) fn commenced(known: &Known<'_>) -> Made {
    flow(|| {
        if known.has_commenced()? {
            return Ok(Progress::Done);
        }
        known.notified(Notice::ControlPlaneStarted)?;
        let desired = &known.upgrade.spec.desired;
        match cluster_version::commence(known.cluster, desired) {
            Ok(Commence::Done) => Ok(Progress::Done),
            Ok(Commence::Patch(patch) | Commence::Channel(patch)) => {
                known.made(Write::Request(patch))?;
                Ok(Progress::waits("the ClusterVersion does not show the request yet"))
            }
            Ok(Commence::NotOffered) => Ok(not_offered(known)),
            Err(error) => Ok(Progress::error(error.to_string())),
        }
    })
}

/// A version that is not offered. The cluster-version operator needs some time for a new channel; later, the condition shows why.
fn not_offered(known: &Known<'_>) -> Progress<Write> {
    let version = known.version();
    let why = format!("the cluster-version operator does not offer version {version} yet");
    let since = known.entry.condition(COMMENCED).and_then(|shown| shown.start_time.as_ref());
    let is_late = since.is_some_and(|since| known.now.duration_since(since.0) > OFFERED_WITHIN);
    match (known.compat, is_late) {
        (Compat::Strict, _) | (Compat::Repaired, false) => Progress::waits(why),
        (Compat::Repaired, true) => match Platform::of(&known.upgrade.spec.type_) {
            Platform::Osd => Progress::error(format!("{why}{}", tried_until(known))),
            Platform::Aro => Progress::error(why),
        },
    }
}

/// Cleans up after an upgrade that did not begin in time, and reports that.
pub(crate) fn failure(known: &Known<'_>) -> Made {
    flow(|| {
        // What never began has added nothing, and one that it has replaced may be under way.
        let is_cleaned_up = known.entry.phase == Phase::Upgrading
            && match known.compat {
                Compat::Repaired => {
                    !manager::is_under_way(known.cluster, known.pools, known.compat)
                }
                Compat::Strict => true,
            };
        if is_cleaned_up {
            let machines = known.machines()?;
            if let Some(down) = scale_down(true, &machines.sets, &machines.machines) {
                known.all_made(down.delete.into_iter().map(Write::DeleteMachineSet).collect())?;
            }
        }
        match known.compat {
            // OCM accepts the failure only of what has started.
            Compat::Repaired => known.notified(Notice::Started)?,
            Compat::Strict => {}
        }
        known.notified(Notice::Failed)?;
        match known.compat {
            Compat::Repaired if is_cleaned_up => {
                known.silenced(known.silences()?.after_failure())?;
            }
            // They end by themselves.
            Compat::Repaired | Compat::Strict => {}
        }
        Ok(Progress::Done)
    })
}
