//! Rows of the notifications.

use jiff::{SignedDuration, Timestamp};
use refit_openshift::{
    Compat,
    notify::{
        Delivery, Event, LogEvent, Notice, NotifyError, OcmState, PolicyEvent, PolicyStateWrite,
        Posting, Receiver, Sent, deliveries, failure_gauge, is_delayed, is_needless, is_posted,
        log_line, note_posting, note_sent, policy, policy_write, posting, sent, service_log,
    },
    provider::{LogEntry, OcmClient, PolicyState, UpgradePolicy},
    upgrade_config::{UpgradeCondition, UpgradeHistory},
};
use serde_json::{Value, json};
use strum::VariantArray as _;

use crate::Row;

pub(crate) const ROWS: &[Row] = &[
    Row {
        number: 84,
        name: "a notification is sent once per object, event and version",
        test: a_notification_is_sent_once,
    },
    Row {
        number: 84,
        name: "an entry of the service log is looked up before it is posted again",
        test: an_entry_is_posted_once,
    },
    Row {
        number: 85,
        name: "each event sets its state in OCM, if it may follow the present one",
        test: events_set_the_state_that_may_follow,
    },
    Row {
        number: 86,
        name: "which event has set `delayed` is read from its text",
        test: the_text_of_a_delay_is_read,
    },
    Row {
        number: 87,
        name: "the texts are the original ones",
        test: the_texts_are_the_original_ones,
    },
    Row {
        number: 87,
        name: "a delay and a failure are explained by the newest step that is not done",
        test: the_newest_step_that_is_not_done_explains,
    },
    Row {
        number: 88,
        name: "only events of the service log are posted there, if the gate is on",
        test: only_log_events_are_posted,
    },
    Row { number: 89, name: "without a matching policy, it is an error", test: the_policy_matches },
    Row {
        number: 90,
        name: "without OCM, notifications are logged",
        test: without_ocm_it_is_logged,
    },
    Row {
        number: 91,
        name: "the failure gauge is set by a failure and cleared by a success",
        test: the_failure_gauge_follows,
    },
];

const POLICY: Event = Event::Policy(PolicyEvent::Delayed);
const LOG: Event = Event::Log(LogEvent::WorkersFinished);

fn now() -> Timestamp {
    "2026-08-14T12:00:00Z".parse().unwrap()
}

fn events() -> Vec<Event> {
    let policy = PolicyEvent::VARIANTS.iter().copied().map(Event::Policy);
    policy.chain(LogEvent::VARIANTS.iter().copied().map(Event::Log)).collect()
}

fn state(value: &str, description: &str) -> PolicyState {
    PolicyState { value: value.to_owned(), description: description.to_owned() }
}

fn history(conditions: &[(&str, &str, &str)]) -> UpgradeHistory {
    let conditions = conditions.iter().map(|(type_, status, message)| UpgradeCondition {
        type_: (*type_).to_owned(),
        status: (*status).to_owned(),
        message: (*message).to_owned(),
        ..UpgradeCondition::default()
    });
    UpgradeHistory { conditions: conditions.collect(), ..UpgradeHistory::default() }
}

fn a_notification_is_sent_once() {
    let names: Vec<String> = events().iter().map(Event::to_string).collect();
    assert_eq!(
        names,
        [
            "StateStarted",
            "StateDelayed",
            "StateScaleSkipped",
            "StateSkipped",
            "StateFailed",
            "StateCompleted",
            "StateControlPlaneStartedSL",
            "StateControlPlaneFinishedSL",
            "StateWorkerPlaneFinishedSL",
            "StateHealthCheckSL",
            "StatePreHealthCheckSL",
        ]
    );
    let step = history(&[("ControlPlaneUpgraded", "False", "")]);
    for event in events() {
        // In the original, the operator's own metric in Prometheus answers.
        let mut history = step.clone();
        note_sent(Compat::Strict, &mut history, event, "text", now());
        assert_eq!(history, step);
        let query = format!(
            "upgradeoperator_upgrade_notification{{upgradeconfig_name=\"managed-upgrade-config\",event=\"{event}\",\
             version=\"4.16.3\"}}"
        );
        let strict = sent(Compat::Strict, event, "4.16.3", Some(&history));
        assert_eq!(strict, Sent::AskPrometheus(query));
        // Repaired (M5), the history of the version does.
        assert_eq!(sent(Compat::Repaired, event, "4.16.3", None), Sent::No);
        assert_eq!(sent(Compat::Repaired, event, "4.16.3", Some(&history)), Sent::No);
        note_sent(Compat::Repaired, &mut history, event, "text", now());
        assert_eq!(sent(Compat::Repaired, event, "4.16.3", Some(&history)), Sent::Yes);
        assert_eq!(history.conditions[0], step.conditions[0], "the latest step stays the first");
        let condition = json!(history.conditions[1]);
        let time = "2026-08-14T12:00:00Z";
        let wanted = json!({
            "type": event.to_string(), "status": "True", "reason": format!("{event} done"),
            "message": "text", "lastProbeTime": time, "lastTransitionTime": time,
            "startTime": time, "completeTime": time,
        });
        assert_eq!(condition, wanted);
        let others = events().into_iter().filter(|other| *other != event);
        for other in others {
            assert_eq!(sent(Compat::Repaired, other, "4.16.3", Some(&history)), Sent::No);
        }
    }
}

fn an_entry_is_posted_once() {
    let event = LogEvent::WorkersFinished;
    let step = history(&[("PostUpgradeTasksCompleted", "False", "why")]);
    let of = |compat, history, commenced| posting(compat, (event, "text"), history, commenced);
    assert_eq!(of(Compat::Strict, Some(&step), Some(now())), Posting::Post);
    assert_eq!(of(Compat::Repaired, None, None), Posting::NoteAndPost);
    assert_eq!(of(Compat::Repaired, Some(&step), None), Posting::NoteAndPost);
    // The object may be another one than that of which it was posted, or have been the original's.
    let Posting::LookUp(wanted) = of(Compat::Repaired, Some(&step), Some(now())) else {
        panic!("it is not looked up");
    };
    assert_eq!((&*wanted.message, wanted.start_time.as_ref().unwrap().0), ("text", now()));

    let mut history = step.clone();
    note_posting(&mut history, event, "text", now());
    assert_eq!(history.conditions[0], step.conditions[0], "the latest step stays the first");
    let noted = history.conditions[1].clone();
    // A False one would explain a delay or a failure.
    assert_eq!((&*noted.type_, &*noted.status), ("StateWorkerPlaneFinishedSL", "Unknown"));
    assert_eq!(noted.complete_time, None);
    let later = now() + SignedDuration::from_mins(1);
    note_posting(&mut history, event, "text", later);
    assert_eq!(history.conditions[1], noted, "nothing is written for the same note");
    let repaired = |history: &UpgradeHistory| {
        sent(Compat::Repaired, Event::Log(event), "4.16.3", Some(history))
    };
    assert_eq!(repaired(&history), Sent::No);
    for commenced in [None, Some(later)] {
        let found = of(Compat::Repaired, Some(&history), commenced);
        assert_eq!(found, Posting::LookUp(Box::new(noted.clone())));
    }

    let entry = |description: &str, minutes: i64| LogEntry {
        description: description.to_owned(),
        created_at: Some(now() + SignedDuration::from_mins(minutes)),
    };
    for (entries, wanted) in [
        (vec![], false),
        (vec![entry("text", 0)], true),
        (vec![entry("other", 0), entry("text", -4)], true),
        (vec![entry("other", 0)], false),
        // Of an earlier upgrade to the same version.
        (vec![entry("text", -6)], false),
        (vec![LogEntry { created_at: None, ..entry("text", 0) }], true),
    ] {
        assert_eq!(is_posted(&noted, &entries), wanted, "{entries:?}");
    }
    // Health is described by what is wrong now.
    note_posting(&mut history, event, "another text", later);
    assert_eq!(history.conditions[1].message, "another text");
    note_sent(Compat::Repaired, &mut history, Event::Log(event), "another text", later);
    assert_eq!((history.conditions.len(), repaired(&history)), (2, Sent::Yes));
}

fn events_set_the_state_that_may_follow() {
    use PolicyEvent::{Completed, Delayed, Failed, ScaleSkipped, Skipped, Started};
    let states = [
        (Started, "started"),
        (Delayed, "delayed"),
        (ScaleSkipped, "delayed"),
        (Skipped, "delayed"),
        (Failed, "failed"),
        (Completed, "completed"),
    ];
    for (event, state) in states {
        assert_eq!(event.ocm_state().to_string(), state);
    }
    let delay = Notice::Delayed.text("4.16.3", None);
    let scale = Notice::ScaleSkipped.text("4.16.3", None);
    let skip = Notice::Skipped.text("4.16.3", None);
    let scale_skipped = &[ScaleSkipped, Delayed, Failed, Skipped, Completed][1..];
    // The state, its text, and what may follow.
    let table: [(&str, &str, &[PolicyEvent]); 9] = [
        ("pending", "", &[]),
        ("cancelled", "", &[]),
        ("scheduled", "", &[Started]),
        ("started", "", &[ScaleSkipped, Delayed, Completed, Failed]),
        ("delayed", &scale, scale_skipped),
        ("delayed", &delay, &[Completed, Failed, Skipped]),
        ("delayed", &skip, &[Completed, Failed]),
        ("completed", "", &[]),
        ("failed", "", &[]),
    ];
    for known in OcmState::VARIANTS {
        assert!(table.iter().any(|(value, ..)| *value == known.to_string()), "{known}");
    }
    for (value, description, successors) in table {
        for event in events() {
            let present = state(value, description);
            let write = policy_write(Compat::Repaired, &present, event, "text".to_owned()).unwrap();
            let wanted = match event {
                Event::Policy(event) if successors.contains(&event) => Some(PolicyStateWrite {
                    value: event.ocm_state(),
                    description: "text".to_owned(),
                }),
                Event::Policy(_) | Event::Log(_) => None,
            };
            assert_eq!(write, wanted, "{event} in {value} {description}");
        }
    }
    let write = PolicyStateWrite { value: OcmState::Delayed, description: "text".to_owned() };
    let body = json!({"kind": "UpgradePolicyState", "value": "delayed", "description": "text"});
    assert_eq!(json!(write), body);
}

fn the_text_of_a_delay_is_read() {
    use PolicyEvent::{Delayed, ScaleSkipped, Skipped};
    let stuck = history(&[("ComputeCapacityReserved", "False", "")]);
    let drain = Notice::NodeDrainDelayed.text("4.16.3", None);
    let cases = [
        (Notice::Delayed.text("4.16.3", None), Delayed, Delayed),
        (Notice::Delayed.text("4.16.3", Some(&stuck)), Delayed, Delayed),
        (Notice::Skipped.text("4.16.3", None), Skipped, Skipped),
        (drain, Skipped, Skipped),
        (String::new(), Skipped, Skipped),
        // The original does not recognise its own text, and may not send a delay after it.
        (Notice::ScaleSkipped.text("4.16.3", None), Skipped, ScaleSkipped),
    ];
    for (text, strict, repaired) in cases {
        let present = state("delayed", &text);
        for (compat, event) in [(Compat::Strict, strict), (Compat::Repaired, repaired)] {
            assert_eq!(present.successors(compat), Ok(event.successors()), "{compat}: {text}");
        }
    }
    for value in ["", "Started", "unknown"] {
        let error = state(value, "").successors(Compat::Strict);
        assert_eq!(error, Err(NotifyError::UnknownState { value: value.to_owned() }));
    }
}

fn the_texts_are_the_original_ones() {
    let texts = [
        (Notice::Started, "Cluster is currently being upgraded to version 4.16.3"),
        (
            Notice::NodeDrainDelayed,
            "Node drain grace period might be impacting cluster upgrade. Please refer to the article for further details https://access.redhat.com/solutions/7075425",
        ),
        (
            Notice::ScaleSkipped,
            "Cluster upgrade to version 4.16.3 has skipped Scale-Up additional Worker Node step for compute capacity reservation. This is an informational notification and no action is required by you",
        ),
        (
            Notice::Skipped,
            "Cluster upgrade to version 4.16.3 has experienced an issue during capacity reservation efforts. This could be caused by cloud service provider quota limitations or temporary connectivity issues to/from the new worker node. The upgrade will continue without extra compute. This is an informational notification and no action is required by you",
        ),
        (Notice::Completed, "Cluster has been successfully upgraded to version 4.16.3"),
        (
            Notice::ControlPlaneStarted,
            "Cluster upgrade to version 4.16.3 is starting with control and worker plane upgrade. This is an informational notification and no action is required",
        ),
        (
            Notice::ControlPlaneFinished,
            "Cluster upgrade to version 4.16.3 has finished control plane upgrade. This is an informational notification and no action is required",
        ),
        (
            Notice::WorkersFinished,
            "Cluster upgrade to version 4.16.3 has finished worker plane upgrade. This is an informational notification and no action is required.",
        ),
        (
            Notice::HealthCheckFailed { failures: "CriticalAlertsHealthcheckFailed" },
            "Cluster upgrade to version 4.16.3 may experience a delay as following healthcheck(s): CriticalAlertsHealthcheckFailed are failing for the cluster which could impact the upgrade's operation.",
        ),
        (
            Notice::PreHealthCheckFailed { failures: "CriticalAlertsHealthcheckFailed" },
            "Cluster upgrade to version 4.16.3 has been scheduled for more than 2 hours, cluster pre-upgrade health check has identified the following points which may impact the upgrade process: CriticalAlertsHealthcheckFailed. Please take actions to review and fix the issues before the upgrade begins to have seamless upgrade experience",
        ),
    ];
    for (notice, text) in texts {
        assert_eq!(notice.text("4.16.3", None), text);
    }
    assert_eq!(Notice::Delayed.event(), Notice::NodeDrainDelayed.event());
}

fn the_newest_step_that_is_not_done_explains() {
    let delayed =
        |why: &str| format!("Cluster upgrade to version 4.16.3 is experiencing a delay {why}");
    let failed = |why: &str| {
        format!(
            "Cluster upgrade to version 4.16.3 was cancelled {why}. Automated upgrades will be retried on their next scheduling cycle. If you have manually scheduled an upgrade instead, it must now be rescheduled"
        )
    };
    let plain_delay = delayed(
        "whilst it performs necessary pre-upgrade procedures. The upgrade will continue to retry. This is an informational notification and no action is required",
    );
    let plain_failure = failed("as the cluster did not pass its pre-upgrade verification checks");
    let cases = [
        (
            "ClusterHealthyBeforeUpgrade",
            delayed(
                "as health alerts are firing in the cluster which could impact the upgrade's operation. The upgrade will continue to retry. This is an informational notification and no action is required by you",
            ),
            failed(
                "during the Pre-Health Check step. Health alerts are firing in the cluster which could impact the upgrade's operation, so the upgrade did not proceed",
            ),
        ),
        (
            "ExternalDependenciesAvailable",
            delayed(
                "as an external dependency of the upgrade is currently unavailable. The upgrade will continue to retry. This is an informational notification and no action is required by you",
            ),
            failed(
                "during the External Dependency Availability Check step. A required external dependency of the upgrade was unavailable, so the upgrade did not proceed",
            ),
        ),
        (
            "ComputeCapacityReserved",
            delayed(
                "attempting to scale up an additional worker node. The upgrade will continue to retry. This is an informational notification and no action is required by you",
            ),
            failed(
                "during the Scale-Up Worker Node step. A temporary additional worker node was unable to be created to temporarily house workloads, so the upgrade did not proceed",
            ),
        ),
        ("IsClusterUpgradable", plain_delay.clone(), "its message".to_owned()),
        ("UpgradeCommenced", plain_delay.clone(), plain_failure.clone()),
    ];
    for (step, delay, failure) in cases {
        let history = history(&[
            ("StateDelayed", "True", ""),
            ("FailedUpgrade", "False", "the failure cannot be reported"),
            (step, "False", "its message"),
            ("ClusterHealthyBeforeUpgrade", "False", "an older one"),
            ("StartedNotificationSent", "True", ""),
        ]);
        assert_eq!(Notice::Delayed.text("4.16.3", Some(&history)), delay, "{step}");
        assert_eq!(Notice::Failed.text("4.16.3", Some(&history)), failure, "{step}");
    }
    let done = history(&[("ClusterHealthyBeforeUpgrade", "True", "")]);
    for history in [None, Some(&history(&[])), Some(&done)] {
        assert_eq!(Notice::Delayed.text("4.16.3", history), plain_delay);
        assert_eq!(Notice::Failed.text("4.16.3", history), plain_failure);
    }
    let delay = |started: &str, trigger| {
        let started = started.parse().ok();
        is_delayed(started, SignedDuration::from_mins(trigger), now())
    };
    assert!(delay("2026-08-14T11:29:59Z", 30));
    assert!(!delay("2026-08-14T11:30:00Z", 30));
    assert!(!delay("2026-08-14T11:29:59Z", 0));
    assert!(!delay("not started", 30));
}

fn only_log_events_are_posted() {
    let ocm = |service_log| Receiver::Ocm { service_log };
    let post = Delivery::ServiceLog(LogEvent::WorkersFinished);
    let cases = [
        (true, POLICY, &[Delivery::PolicyState][..], &[Delivery::PolicyState][..]),
        (false, POLICY, &[Delivery::PolicyState], &[Delivery::PolicyState]),
        // The original also looks for a policy, and fails without one.
        (true, LOG, &[post, Delivery::PolicyState], &[post]),
        (false, LOG, &[Delivery::PolicyState], &[]),
    ];
    for (service_log, event, strict, repaired) in cases {
        assert_eq!(deliveries(Compat::Strict, ocm(service_log), event), strict);
        assert_eq!(deliveries(Compat::Repaired, ocm(service_log), event), repaired);
    }
    let article = json!(["https://access.redhat.com/solutions/7081505"]);
    let entries = [
        (
            LogEvent::ControlPlaneStarted,
            "Cluster is starting with control and worker plane upgrade",
            Value::Null,
        ),
        (LogEvent::ControlPlaneFinished, "Cluster has finished control plane upgrade", Value::Null),
        (LogEvent::WorkersFinished, "Cluster has finished with worker plane upgrade", Value::Null),
        (
            LogEvent::HealthCheckFailed,
            "Cluster has encountered healthcheck failure during upgrade",
            article.clone(),
        ),
        (
            LogEvent::PreHealthCheckFailed,
            "Cluster has encountered pre-upgrade healthcheck failure",
            article,
        ),
    ];
    for (event, summary, references) in entries {
        let mut wanted = json!({
            "kind": "LogEntry", "cluster_id": "1a2b", "severity": "Info", "internal_only": false,
            "service_name": "RedHat Managed Upgrade Notifications", "log_type": "Cluster Updates",
            "summary": summary, "description": "text",
        });
        assert_eq!(service_log(event, "text", "1a2b", OcmClient::Agent), wanted);
        if !references.is_null() {
            wanted["doc_references"] = references;
        }
        assert_eq!(service_log(event, "text", "1a2b", OcmClient::Api), wanted);
    }
}

fn the_policy_matches() {
    let one = |id: &str, version: &str, upgrade_at: &str| UpgradePolicy {
        id: id.to_owned(),
        version: version.to_owned(),
        next_run: Some(upgrade_at.parse().unwrap()),
        capacity_reservation: None,
    };
    let policies = [
        one("a", "4.16.3", "2026-08-14T12:00:00Z"),
        one("b", "4.16.3", "2026-08-15T12:00:00Z"),
        one("c", "4.17.0", "2026-08-14T12:00:00Z"),
    ];
    let found = policy(&policies, "4.16.3", "2026-08-14T12:00:00Z").unwrap();
    assert_eq!(found.id, "a");
    for (policies, version, time) in [
        (&policies[..], "4.17.0", "2026-08-15T12:00:00Z"),
        (&policies[..], "4.16.3", "2026-08-14T12:00:00+00:00"),
        (&[], "4.16.3", "2026-08-14T12:00:00Z"),
    ] {
        let error = policy(policies, version, time).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "no policy matches the current UpgradeConfig: OCM has no upgrade policy of version \"{version}\" at \
                 \"{time}\", create one in OCM"
            )
        );
        // An upgrade under way is finished without its policy (M17).
        assert!(is_needless(Compat::Repaired, &error, true));
        assert!(!is_needless(Compat::Repaired, &error, false), "it can still be cancelled");
        assert!(!is_needless(Compat::Strict, &error, true));
    }
    let unknown = NotifyError::UnknownState { value: "odd".to_owned() };
    assert!(!is_needless(Compat::Repaired, &unknown, true));
}

fn without_ocm_it_is_logged() {
    for compat in Compat::VARIANTS {
        for event in events() {
            assert_eq!(deliveries(*compat, Receiver::Log, event), [Delivery::Log]);
        }
    }
    let line = log_line(POLICY, "why");
    assert_eq!(line, "Upgrade-State: StateDelayed Description: why");
}

fn the_failure_gauge_follows() {
    for event in events() {
        let (failed, succeeded) = match event {
            Event::Log(LogEvent::HealthCheckFailed | LogEvent::PreHealthCheckFailed) => {
                (None, None)
            }
            Event::Policy(_) | Event::Log(_) => (Some(1), Some(0)),
        };
        assert_eq!(failure_gauge(event, false), failed, "{event}");
        assert_eq!(failure_gauge(event, true), succeeded, "{event}");
    }
}
