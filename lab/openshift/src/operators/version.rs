//! The cluster-version operator.

use jiff::SignedDuration;
use refit_kinds::json::{text, time, whole_condition};
use semver::Version;
use serde_json::{Value, json};

use super::cluster_operators::{self, Waiting};
use crate::cluster::{
    Release,
    plan::{Condition, Plan, conditions, rfc3339},
    settings::Trouble,
    view::{Kind, View},
};

/// How long it takes until the updates of another channel are known.
const CHANNEL_SYNC: SignedDuration = SignedDuration::from_secs(90);
/// How long a degraded operator delays an update before the update counts as failing.
const DEGRADED_FAILS: SignedDuration = SignedDuration::from_mins(40);
/// The manifests of each operator in a release: only for the message.
const MANIFESTS: usize = 60;

pub(super) fn reconcile(plan: &mut Plan<'_>) {
    let view = plan.view;
    let Some(cluster) = view.cluster_version() else { return };
    let mut shown =
        vec![Condition::flag("Available", true, format!("Done applying {}", current(cluster)))];
    let graph = graph(plan, cluster, &mut shown);
    let mut history = cluster["status"]["history"].as_array().cloned().unwrap_or_default();
    let mut desired = cluster["status"]["desired"].clone();
    let now = rfc3339(view.now);
    let accepted = match requested(view, cluster) {
        Request::Unchanged => loaded(text(&desired, "/version"), text(&desired, "/image")),
        Request::Refused { reason, message } => {
            Condition::new("ReleaseAccepted", "False", reason, message)
        }
        Request::Release(release) => {
            if let Some(before) = history.first_mut().filter(|one| one["completionTime"].is_null())
            {
                before["completionTime"] = json!(now);
            }
            let entry = json!({
                "state": "Partial", "version": release.version, "image": release.image,
                "startedTime": now, "completionTime": null, "verified": true,
            });
            history.insert(0, entry);
            desired = json!({"version": release.version, "image": release.image});
            loaded(&release.version, &release.image)
        }
    };
    shown.push(accepted);
    if let Some(why) = view.settings.message(&Trouble::NotUpgradeable) {
        shown.push(Condition::flag("Upgradeable", false, why).because("OperatorNotUpgradeable"));
    }
    progress(plan, text(&desired, "/version"), &mut history, &mut shown);
    let status = json!({
        "desired": desired, "history": history,
        "availableUpdates": graph.available, "conditionalUpdates": graph.conditional,
        "conditions": conditions(cluster, &shown, view.now),
        "observedGeneration": cluster["metadata"]["generation"],
    });
    plan.status(Kind::ClusterVersion, cluster, &status);
}

fn loaded(version: &str, image: &str) -> Condition {
    let message = format!("Payload loaded version={version:?} image={image:?}");
    Condition::new("ReleaseAccepted", "True", "PayloadLoaded", message)
}

/// The version that was completed last.
fn current(cluster: &Value) -> &str {
    let history = cluster["status"]["history"].as_array();
    let mut completed = history.into_iter().flatten().filter(|one| one["state"] == "Completed");
    completed.next().map_or("", |one| text(one, "/version"))
}

/// The updates that the cluster-version operator shows.
struct Graph {
    available: Value,
    conditional: Vec<Value>,
}

/// Shows the updates of the channel: those of another channel are known after some time.
fn graph(plan: &mut Plan<'_>, cluster: &Value, shown: &mut Vec<Condition>) -> Graph {
    let view = plan.view;
    let channel = text(cluster, "/spec/channel");
    let source = format!("The updates of channel {channel:?}");
    let before = whole_condition(cluster, "RetrievedUpdates");
    let is_known = before.is_some_and(|one| one["message"] == *source);
    let since = before.and_then(|one| time(one, "/lastTransitionTime"));
    let is_waiting = before.is_some_and(|one| one["status"] == "Unknown");
    let none = Graph { available: Value::Null, conditional: Vec::new() };
    if let Some(why) = view.settings.message(&Trouble::GraphUnreachable) {
        shown.push(Condition::new("RetrievedUpdates", "False", "RemoteFailed", why));
        return none;
    }
    if !is_known || is_waiting && !plan.has_elapsed(since.unwrap_or(view.now), CHANNEL_SYNC) {
        shown.push(Condition::new("RetrievedUpdates", "Unknown", "Retrieving", source));
        return none;
    }
    shown.push(Condition::new("RetrievedUpdates", "True", "Retrieved", source));
    let (risky, recommended): (Vec<&Release>, Vec<&Release>) =
        offered(view, cluster).into_iter().partition(|release| release.risk.is_some());
    let one = |release: &Release| json!({"version": release.version, "image": release.image, "channels": release.channels});
    let conditional = risky.into_iter().map(|release| {
        let message = release.risk.as_deref().unwrap_or_default();
        json!({
            "release": one(release),
            "risks": [{"name": "KnownRisk", "message": message, "matchingRules": [{"type": "Always"}]}],
            "conditions": [{"type": "Recommended", "status": "False", "reason": "KnownRisk", "message": message}],
        })
    });
    let available = recommended.into_iter().map(one).collect();
    Graph { available, conditional: conditional.collect() }
}

/// The releases that the cluster may be updated to, the newest first.
fn offered<'a>(view: &'a View, cluster: &Value) -> Vec<&'a Release> {
    let parse = |version: &str| Version::parse(version).ok();
    let now = parse(view.target());
    let channel = text(cluster, "/spec/channel");
    let mut found: Vec<&Release> = view
        .settings
        .releases
        .iter()
        .filter(|release| release.channels.iter().any(|one| one == channel))
        .filter(|release| parse(&release.version) > now)
        .filter(|release| !view.settings.has(&Trouble::VersionWithdrawn(&release.version)))
        .collect();
    found.sort_by_key(|release| std::cmp::Reverse(parse(&release.version)));
    found
}

/// What `spec.desiredUpdate` asks for.
enum Request<'a> {
    Unchanged,
    Release(&'a Release),
    Refused { reason: &'static str, message: String },
}

fn requested<'a>(view: &'a View, cluster: &'a Value) -> Request<'a> {
    let wanted =
        (text(cluster, "/spec/desiredUpdate/version"), text(cluster, "/spec/desiredUpdate/image"));
    let shown = (text(cluster, "/status/desired/version"), text(cluster, "/status/desired/image"));
    let refused = |reason, message: String| Request::Refused { reason, message };
    let release = match wanted {
        ("", "") => return Request::Unchanged,
        (_, image) if !image.is_empty() && image == shown.1 => return Request::Unchanged,
        (version, "") if version == shown.0 => return Request::Unchanged,
        (version, "") => {
            let is_shown = |list: &str, of: &str| {
                let list = cluster["status"][list].as_array();
                list.into_iter().flatten().any(|one| text(one, of) == version)
            };
            let is_offered = is_shown("availableUpdates", "/version")
                || is_shown("conditionalUpdates", "/release/version");
            let Some(release) = view.release(version).filter(|_| is_offered) else {
                let why =
                    format!("The update cannot be verified: version {version} is not offered");
                return refused("RetrievePayload", why);
            };
            release
        }
        (_, image) => {
            let Some(release) = view.settings.releases.iter().find(|one| one.image == image) else {
                let why = format!("Retrieving payload failed: image {image} is not found");
                return refused("RetrievePayload", why);
            };
            release
        }
    };
    if let Some(why) = view.settings.message(&Trouble::UpdatesRefused) {
        return refused("VerifyPayloadVersion", why.to_owned());
    }
    let minor = |version: &str| Version::parse(version).map(|one| (one.major, one.minor)).ok();
    match view.settings.message(&Trouble::NotUpgradeable) {
        Some(why) if minor(&release.version) > minor(shown.0) => {
            let version = &release.version;
            refused(
                "PreconditionChecks",
                format!("Preconditions failed for version {version}: {why}"),
            )
        }
        Some(_) | None => Request::Release(release),
    }
}

/// Completes the newest entry of the history once all operators have its version, and shows how far it is.
fn progress(plan: &mut Plan<'_>, target: &str, history: &mut [Value], shown: &mut Vec<Condition>) {
    let now = rfc3339(plan.view.now);
    let waiting = cluster_operators::waiting(plan.view, target);
    let Some(waiting) = waiting.filter(|_| history.first().is_some_and(is_partial)) else {
        if let Some(entry) = history.first_mut().filter(|one| is_partial(one)) {
            entry["state"] = json!("Completed");
            entry["completionTime"] = json!(now);
        }
        let version = format!("Cluster version is {target}");
        shown.push(Condition::flag("Progressing", false, version));
        shown.push(Condition::flag("Failing", false, ""));
        return;
    };
    let name = waiting.name;
    let total = plan.view.list(Kind::ClusterOperator).len() * MANIFESTS;
    let done = waiting.done * MANIFESTS;
    let percent = done * 100 / total.max(1);
    let failure = failure(plan, &waiting);
    let (reason, message) = if let Some((reason, why)) = failure {
        shown.push(Condition::flag("Failing", true, &*why).because(reason));
        (reason, format!("Unable to apply {target}: {why}"))
    } else {
        shown.push(Condition::flag("Failing", false, ""));
        let applied = format!("{done} of {total} done ({percent}% complete)");
        let message = format!("Working towards {target}: {applied}, waiting on {name}");
        ("ClusterOperatorUpdating", message)
    };
    shown.push(Condition::flag("Progressing", true, message).because(reason));
}

fn is_partial(entry: &Value) -> bool {
    entry["state"] == "Partial"
}

/// Why an update fails: an operator that is not available fails it at once, a degraded one after some time.
fn failure(plan: &mut Plan<'_>, waiting: &Waiting<'_>) -> Option<(&'static str, String)> {
    let (name, settings) = (waiting.name, &plan.view.settings);
    if let Some(why) = settings.message(&Trouble::UpdateFails) {
        return Some(("UpdatePayloadFailed", why.to_owned()));
    }
    if settings.has(&Trouble::Unavailable(name)) {
        let why = format!("Cluster operator {name} is not available");
        return Some(("ClusterOperatorNotAvailable", why));
    }
    let is_degraded = settings.has(&Trouble::Degraded(name));
    let since = waiting.since.filter(|_| is_degraded)?;
    plan.has_elapsed(since, DEGRADED_FAILS)
        .then(|| ("ClusterOperatorDegraded", format!("Cluster operator {name} is degraded")))
}
