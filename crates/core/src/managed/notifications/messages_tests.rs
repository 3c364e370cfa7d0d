use refit_kinds::refit::DeliveryState;

use super::*;

fn notification(event: &str, time: &str, message: &str) -> Value {
    json!({
        "event": event, "time": time, "phase": "Upgrading", "reason": "StepInProgress",
        "message": message, "generation": 4,
        "deliveries": [{"receiver": "CloudEvents"}, {"receiver": "Slack", "state": "Sent"}],
    })
}

fn upgrade(by: &str) -> ClusterUpgrade {
    let record = |version: &str, notifications: Value| {
        json!({
            "version": version, "precedingVersion": "v1.34.2", "phase": "Completed",
            "requestedTime": "2026-12-05T21:00:00Z", "requestedBy": by,
            "notifications": notifications,
        })
    };
    let started =
        notification("Started", "2026-12-05T22:00:00Z", "The upgrade to v1.36.1 has started.");
    let done = notification("Completed", "2026-12-05T22:00:00Z", "Text with <tags> & more.");
    let early = notification("Failed", "2026-12-04T22:00:00Z", "It has failed.");
    let history = [record("v1.36.1", json!([started, done])), record("v1.35.0", json!([early]))];
    serde_json::from_value(json!({
        "apiVersion": "refit.dev/v1alpha1",
        "kind": "ClusterUpgrade",
        "metadata": {"name": "edge-1", "namespace": "edge", "uid": "u1"},
        "spec": {"version": "v1.36.1"},
        "status": {"history": history},
    }))
    .unwrap()
}

fn plan() -> ClusterUpgradePlan {
    let mut one = notification("WaveStarted", "2026-12-05T22:00:00Z", "Wave canary has begun.");
    one["number"] = json!(7);
    one["version"] = json!("v1.36.1");
    one["wave"] = json!("canary");
    one["phase"] = json!("Progressing");
    serde_json::from_value(json!({
        "apiVersion": "refit.dev/v1alpha1",
        "kind": "ClusterUpgradePlan",
        "metadata": {"name": "spring", "uid": "u2"},
        "spec": {"version": "v1.36.1"},
        "status": {"notifications": [one]},
    }))
    .unwrap()
}

#[test]
fn an_upgrade_is_a_cloud_event_with_an_id_that_stays() {
    let upgrade = upgrade("ClusterUpgradePlan spring");
    assert_eq!(
        upgrade.entries()[1].cloud_event(),
        json!({
            "specversion": "1.0",
            "id": "u1/v1.36.1/Started/4",
            "source": "/apis/refit.dev/v1alpha1/namespaces/edge/clusterupgrades/edge-1",
            "type": "dev.refit.clusterupgrade.started",
            "subject": "edge-1",
            "time": "2026-12-05T22:00:00Z",
            "datacontenttype": "application/json",
            "data": {
                "namespace": "edge",
                "cluster": "edge-1",
                "version": "v1.36.1",
                "precedingVersion": "v1.34.2",
                "phase": "Upgrading",
                "reason": "StepInProgress",
                "message": "The upgrade to v1.36.1 has started.",
                "requestedBy": "ClusterUpgradePlan spring",
                "plan": "spring",
            },
        })
    );
}

#[test]
fn a_plan_is_a_cloud_event_of_its_own() {
    assert_eq!(
        plan().entries()[0].cloud_event(),
        json!({
            "specversion": "1.0",
            "id": "u2/v1.36.1/WaveStarted/4/7",
            "source": "/apis/refit.dev/v1alpha1/clusterupgradeplans/spring",
            "type": "dev.refit.clusterupgradeplan.wavestarted",
            "subject": "spring",
            "time": "2026-12-05T22:00:00Z",
            "datacontenttype": "application/json",
            "data": {
                "plan": "spring",
                "version": "v1.36.1",
                "wave": "canary",
                "phase": "Progressing",
                "reason": "StepInProgress",
                "message": "Wave canary has begun.",
            },
        })
    );
}

#[test]
fn slack_gets_one_line_in_which_nothing_is_markup_of_others() {
    let upgrade = upgrade("jane");
    let texts: Vec<Value> = upgrade.entries().iter().map(Entry::slack_message).collect();
    assert_eq!(
        texts[1],
        json!({"text": "*Started* edge/edge-1 (from v1.34.2): The upgrade to v1.36.1 has started."})
    );
    assert_eq!(
        texts[2],
        json!({"text": "*Completed* edge/edge-1 (from v1.34.2): Text with &lt;tags&gt; &amp; more."})
    );
    let plan = plan().entries()[0].slack_message();
    let wanted = "*WaveStarted* plan spring, Clusters to v1.36.1: Wave canary has begun.";
    assert_eq!(plan, json!({ "text": wanted }));
}

#[test]
fn a_delivery_is_found_by_the_id_of_its_notification() {
    let mut upgrade = upgrade("jane");
    let order: Vec<_> = upgrade.entries().iter().map(Entry::event).collect();
    assert_eq!(order, ["Failed", "Started", "Completed"], "the oldest first");
    let waiting = |of: &ClusterUpgrade| {
        [Receiver::CloudEvents, Receiver::Slack].map(|receiver| of.waiting(receiver))
    };
    assert_eq!(waiting(&upgrade), [3, 0]);
    let deliveries = upgrade.deliveries_mut("u1/v1.36.1/Started/4").unwrap();
    deliveries[0].state = DeliveryState::Sent;
    assert_eq!(waiting(&upgrade), [2, 0]);
    assert!(upgrade.deliveries_mut("u1/v1.36.1/Started/5").is_none(), "of another request");
    let mut plan = plan();
    assert!(plan.deliveries_mut("u2/v1.36.1/WaveStarted/4/7").is_some());
}
