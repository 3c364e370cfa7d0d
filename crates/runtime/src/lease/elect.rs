//! Leader election: acquires, renews and releases the Lease.

use std::{convert::Infallible, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
};
use kube::{
    Api, Client, ResourceExt as _,
    api::{ObjectMeta, PostParams},
};
use serde_json::json;
use tokio::time::Instant;

use super::{Leadership, LeaseSettings};
use crate::{Clock, apply, clock::instant};

/// How often a release is attempted against a renewal that is still in flight.
const RELEASE_ATTEMPTS: usize = 3;

/// Why the Lease could not be released.
#[derive(Debug, thiserror::Error)]
#[error("cannot release Lease {namespace}/{name}: {source}; it will expire")]
pub struct LeaseError {
    namespace: String,
    name: String,
    source: Box<kube::Error>,
}

/// Another replica's Lease as last read, and since when by this replica's clock.
#[derive(Clone, Debug)]
struct ObservedLease {
    holder: String,
    renewed: Option<Timestamp>,
    version: String,
    since: Instant,
}

/// What a replica knows of the Lease between two attempts.
#[derive(Debug, Default)]
struct Memory {
    another: Option<ObservedLease>,
    /// This replica's own last write: the next renewal needs no read, because it names the
    /// resourceVersion, and is rejected if the Lease was written since.
    own: Option<Lease>,
}

/// The next action on the Lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// The Lease does not exist.
    Create,
    /// This replica holds it.
    Renew,
    /// It is free or expired.
    Take,
    /// Another replica holds it.
    Wait,
}

/// Runs the election until dropped: acquires the Lease whenever it is free, and keeps it. Dropping
/// the future stops the renewals.
pub async fn elect(
    client: Client,
    clock: Clock,
    settings: &LeaseSettings,
    leadership: &Leadership,
) -> Infallible {
    let api: Api<Lease> = Api::namespaced(client, &settings.namespace);
    let mut memory = Memory::default();
    let mut led = false;
    loop {
        if let Err(error) = attempt(&api, clock, settings, leadership, &mut memory).await {
            tracing::warn!(lease = settings.name, %error, "cannot read or renew the Lease");
        }
        let leads = leadership.is_held();
        if leads != led {
            led = leads;
            tracing::info!(
                lease = settings.name,
                identity = settings.identity,
                leads,
                "leadership changed"
            );
        }
        tokio::time::sleep(settings.retry_period).await;
    }
}

async fn attempt(
    api: &Api<Lease>,
    clock: Clock,
    settings: &LeaseSettings,
    leadership: &Leadership,
    memory: &mut Memory,
) -> kube::Result<()> {
    let known = match memory.own.take() {
        Some(own) => Some(own),
        None => api.get_opt(&settings.name).await?,
    };
    let next = next(known.as_ref(), settings, &mut memory.another, instant());
    if next == Next::Wait {
        leadership.taken_by_another();
        return Ok(());
    }
    // Taken before the request is sent: no replica can have seen the renewal earlier.
    let (sent, sent_at) = (instant(), clock.now());
    let spec = wanted(known.as_ref(), settings, sent_at, next);
    let written = match known {
        None => {
            let lease = Lease {
                metadata: ObjectMeta { name: Some(settings.name.clone()), ..ObjectMeta::default() },
                spec: Some(spec),
            };
            api.create(&PostParams::default(), &lease).await
        }
        Some(known) => {
            let body = json!({
                "metadata": { "resourceVersion": known.resource_version() },
                "spec": spec,
            });
            apply::merge(api, &settings.name, &body).await
        }
    };
    match written {
        Ok(own) => {
            leadership.renewed(sent, sent_at, settings);
            memory.own = Some(own);
            Ok(())
        }
        // Another replica was faster: the next attempt reads which.
        Err(error) if apply::is_conflict(&error) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Decides the next action, and records another replica's Lease in `seen`.
fn next(
    lease: Option<&Lease>,
    settings: &LeaseSettings,
    seen: &mut Option<ObservedLease>,
    now: Instant,
) -> Next {
    let Some(lease) = lease else {
        *seen = None;
        return Next::Create;
    };
    let spec = lease.spec.clone().unwrap_or_default();
    let holder = spec.holder_identity.clone().unwrap_or_default();
    if holder == settings.identity {
        *seen = None;
        return Next::Renew;
    }
    if holder.is_empty() {
        return Next::Take;
    }
    let renewed = spec.renew_time.as_ref().map(|time| time.0);
    let version = lease.resource_version().unwrap_or_default();
    let same = seen
        .as_ref()
        .filter(|seen| seen.holder == holder && seen.renewed == renewed && seen.version == version);
    let Some(same) = same else {
        *seen = Some(ObservedLease { holder, renewed, version, since: now });
        return Next::Wait;
    };
    // The holder's own duration counts, but at least the configured one.
    let seconds = spec.lease_duration_seconds.unwrap_or_default();
    let holder_duration = Duration::from_secs(u64::try_from(seconds).unwrap_or_default());
    let over = now.saturating_duration_since(same.since) >= holder_duration.max(settings.duration);
    if over { Next::Take } else { Next::Wait }
}

fn wanted(
    known: Option<&Lease>,
    settings: &LeaseSettings,
    now: Timestamp,
    next: Next,
) -> LeaseSpec {
    let before = known.and_then(|lease| lease.spec.clone()).unwrap_or_default();
    let transitions = before.lease_transitions.unwrap_or_default();
    let (acquired, transitions) = match next {
        Next::Renew => (before.acquire_time, transitions),
        Next::Take => (Some(MicroTime(now)), transitions.saturating_add(1)),
        Next::Create | Next::Wait => (Some(MicroTime(now)), 0),
    };
    LeaseSpec {
        holder_identity: Some(settings.identity.clone()),
        lease_duration_seconds: Some(whole_seconds(settings.duration)),
        renew_time: Some(MicroTime(now)),
        acquire_time: acquired,
        lease_transitions: Some(transitions),
        ..LeaseSpec::default()
    }
}

/// Seconds, rounded up: no replica may see a shorter duration than the holder uses.
fn whole_seconds(duration: Duration) -> i32 {
    let up = u64::from(duration.subsec_nanos() > 0);
    i32::try_from(duration.as_secs().saturating_add(up)).unwrap_or(i32::MAX)
}

/// Releases the Lease if this replica holds it, so that another replica takes over at once; returns
/// whether it held it. Call it only after [`Leadership::resign`] and [`Leadership::idle`]: from
/// here on another replica writes.
pub async fn release(
    client: Client,
    clock: Clock,
    settings: &LeaseSettings,
) -> Result<bool, LeaseError> {
    let api: Api<Lease> = Api::namespaced(client, &settings.namespace);
    let failed = |source| LeaseError {
        namespace: settings.namespace.clone(),
        name: settings.name.clone(),
        source: Box::new(source),
    };
    for attempt in 1..=RELEASE_ATTEMPTS {
        let lease = api.get_opt(&settings.name).await.map_err(failed)?;
        let own_lease = lease.filter(|lease| {
            let holder = lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_ref());
            holder == Some(&settings.identity)
        });
        let Some(own_lease) = own_lease else {
            return Ok(false);
        };
        let body = json!({
            "metadata": { "resourceVersion": own_lease.resource_version() },
            "spec": {
                "holderIdentity": "",
                "leaseDurationSeconds": 1,
                "renewTime": MicroTime(clock.now()),
            },
        });
        match apply::merge(&api, &settings.name, &body).await {
            Ok(_) => return Ok(true),
            Err(error) if apply::is_conflict(&error) && attempt < RELEASE_ATTEMPTS => {}
            Err(error) => return Err(failed(error)),
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(identity: &str) -> LeaseSettings {
        LeaseSettings::new("refit-system", "refit-controller", identity)
    }

    fn lease(holder: &str, version: u32) -> Lease {
        let settings = settings(holder);
        let at = Timestamp::from_second(0).unwrap();
        let mut lease =
            Lease { spec: Some(wanted(None, &settings, at, Next::Create)), ..Lease::default() };
        lease.metadata.resource_version = Some(version.to_string());
        lease
    }

    #[tokio::test(start_paused = true)]
    async fn another_holder_keeps_its_duration_by_the_local_clock() {
        let (me, mut seen) = (settings("b"), None);
        let mut look = |lease: &Lease| next(Some(lease), &me, &mut seen, instant());
        // Its renewTime is long past by this replica's clock, which must not matter.
        assert_eq!(look(&lease("a", 1)), Next::Wait);
        tokio::time::sleep(Duration::from_secs(14)).await;
        assert_eq!(look(&lease("a", 1)), Next::Wait);
        assert_eq!(look(&lease("a", 2)), Next::Wait, "it was renewed");
        tokio::time::sleep(Duration::from_secs(14)).await;
        assert_eq!(look(&lease("a", 2)), Next::Wait);
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(look(&lease("a", 2)), Next::Take);
    }

    #[tokio::test(start_paused = true)]
    async fn a_holder_that_asked_for_longer_gets_longer() {
        let (me, mut seen) = (settings("b"), None);
        let mut long = lease("a", 1);
        long.spec.as_mut().unwrap().lease_duration_seconds = Some(60);
        assert_eq!(next(Some(&long), &me, &mut seen, instant()), Next::Wait);
        tokio::time::sleep(Duration::from_secs(59)).await;
        assert_eq!(next(Some(&long), &me, &mut seen, instant()), Next::Wait);
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(next(Some(&long), &me, &mut seen, instant()), Next::Take);
    }

    #[tokio::test(start_paused = true)]
    async fn a_released_lease_is_free_at_once() {
        let (me, mut seen) = (settings("b"), None);
        let free = lease("", 7);
        assert_eq!(next(Some(&free), &me, &mut seen, instant()), Next::Take);
        assert_eq!(next(None, &me, &mut seen, instant()), Next::Create);
        assert_eq!(next(Some(&lease("b", 8)), &me, &mut seen, instant()), Next::Renew);
    }

    #[test]
    fn a_takeover_counts_as_a_transition_and_a_renewal_does_not() {
        let now = Timestamp::from_second(100).unwrap();
        let old = lease("a", 1);
        let taken = wanted(Some(&old), &settings("b"), now, Next::Take);
        assert_eq!(taken.lease_transitions, Some(1));
        assert_eq!(taken.acquire_time, Some(MicroTime(now)));
        let renewed = wanted(Some(&old), &settings("a"), now, Next::Renew);
        assert_eq!(renewed.lease_transitions, Some(0));
        assert_ne!(renewed.acquire_time, Some(MicroTime(now)));
        assert_eq!(renewed.renew_time, Some(MicroTime(now)));
    }

    #[test]
    fn durations_are_rounded_up_to_whole_seconds() {
        assert_eq!(whole_seconds(Duration::from_millis(15_001)), 16);
        assert_eq!(whole_seconds(Duration::from_secs(15)), 15);
    }
}
