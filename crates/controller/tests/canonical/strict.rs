//! What `--canonical-compat=strict` changes.

use k8s_openapi::api::core::v1::Event;
use kube::{Api, ResourceExt as _, api::ListParams};
use lab_simhost::k8sd::{ChangeEnd, RefreshScript};
use refit_core::annotation::Compat;
use refit_kinds::canonical::CANONICAL;

use super::{
    MACHINE, fails,
    lab::{CHANNEL, Lab, WORKERS},
    pass,
};

#[tokio::test(start_paused = true)]
async fn row_04_an_invalid_option_reaches_no_k8sd_and_writes_neither_status_nor_event() {
    let lab = Lab::in_mode(Compat::Strict).await;
    for option in ["version=1.35", "channel", "localPath=/a=b", "channel="] {
        for machine in [MACHINE, WORKERS[1]] {
            lab.ask(machine, option).await;
        }
        lab.annotate_owner("md", CANONICAL.upgrade_to, Some(option)).await;
        pass(60).await;
        assert_eq!(lab.shown(MACHINE).await, [format!("to={option}")]);
        assert_eq!(lab.shown_by("md").await, [format!("to={option}")]);
    }
    assert_eq!((lab.events(MACHINE).await.len(), lab.events("md").await.len()), (0, 0));
    assert_eq!((lab.received(MACHINE).len(), lab.updates().await.len()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn row_08_traces_of_the_last_upgrade_are_removed_before_the_request() {
    let lab = Lab::in_mode(Compat::Strict).await;
    let change_id = CANONICAL.change_id.unwrap();
    let old = [
        (CANONICAL.status, "done"),
        (CANONICAL.release, "revision=1"),
        (change_id, "7"),
        (CANONICAL.last_failed_attempt_at, "Wed, 30 Oct 2024 09:47:37 +0100"),
    ];
    for (key, value) in old {
        lab.annotate(MACHINE, key, Some(value)).await;
    }
    lab.k8sd(MACHINE).set_token("another");
    lab.ask(MACHINE, CHANNEL).await;
    lab.refreshed(MACHINE, 1).await;
    let kept = "last-failed-attempt-at=Wed, 30 Oct 2024 09:47:37 +0100".to_owned();
    assert_eq!(lab.shown(MACHINE).await, [kept, format!("to={CHANNEL}")]);
}

#[tokio::test(start_paused = true)]
async fn row_12_row_13_the_end_of_an_attempt_is_shown_in_two_steps() {
    let lab = Lab::in_mode(Compat::Strict).await;
    lab.script(MACHINE, [fails("no space left")]);
    let seen = lab.follow(MACHINE).await;
    lab.ask(MACHINE, CHANNEL).await;
    lab.until(MACHINE, &format!("release={CHANNEL}")).await;
    let seen = seen.lock().unwrap().clone();
    let steps = |keys: &[&str]| {
        seen.iter().any(|shown| {
            let names: Vec<&str> =
                shown.iter().map(|one| one.split_once('=').map_or("", |(key, _)| key)).collect();
            names == keys
        })
    };
    assert!(steps(&["change-id", "last-failed-attempt-at", "status", "to"]), "{seen:#?}");
    assert!(steps(&["last-failed-attempt-at", "to"]), "{seen:#?}");
    let done = |shown: &&Vec<String>| shown.contains(&"status=done".to_owned());
    let first = seen.iter().find(done).unwrap();
    assert!(first.iter().any(|one| one.starts_with("change-id=")), "{first:?}");
    assert!(first.contains(&format!("to={CHANNEL}")), "{first:?}");
    assert_eq!(seen.last().unwrap(), &[format!("release={CHANNEL}"), "status=done".to_owned()]);
}

#[tokio::test(start_paused = true)]
async fn row_13_a_failed_attempt_is_repeated_at_once_each_time() {
    let lab = Lab::in_mode(Compat::Strict).await;
    let attempt =
        RefreshScript { end: ChangeEnd::Error("no".to_owned()), ..RefreshScript::default() };
    lab.script(MACHINE, (0..10).map(|_| attempt.clone()));
    lab.ask(MACHINE, CHANNEL).await;
    lab.refreshed(MACHINE, 1).await;
    pass(10 * 75).await;
    assert!(lab.refreshes(MACHINE).len() >= 10, "{}", lab.refreshes(MACHINE).len());
}

#[tokio::test(start_paused = true)]
async fn row_15_row_16_a_change_id_without_a_valid_status_has_failed() {
    for (status, why) in [
        (None, "missing in-place upgrade status"),
        (Some("running"), "invalid in-place upgrade status"),
    ] {
        let lab = Lab::in_mode(Compat::Strict).await;
        lab.annotate(MACHINE, CANONICAL.change_id.unwrap(), Some("7")).await;
        lab.annotate(MACHINE, CANONICAL.status, status).await;
        lab.ask(MACHINE, CHANNEL).await;
        lab.until(MACHINE, "status=done").await;
        let events = lab.events(MACHINE).await;
        let failed = format!(
            "Warning InPlaceUpgradeFailed: Failed to perform in place upgrade with {CHANNEL}: {why}"
        );
        assert_eq!(events.iter().filter(|event| **event == failed).count(), 1, "{events:?}");
        assert_eq!(lab.refreshes(MACHINE).len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn row_18_a_request_that_is_removed_leaves_its_status() {
    let lab = Lab::in_mode(Compat::Strict).await;
    lab.script(MACHINE, (0..20).map(|_| fails("no")));
    lab.ask(MACHINE, CHANNEL).await;
    lab.refreshed(MACHINE, 2).await;
    lab.until(MACHINE, "status=in-progress").await;
    lab.annotate(MACHINE, CANONICAL.upgrade_to, None).await;
    lab.annotate(MACHINE, CANONICAL.change_id.unwrap(), None).await;
    pass(600).await;
    let attempts = lab.refreshes(MACHINE).len();
    pass(600).await;
    assert_eq!(lab.refreshes(MACHINE).len(), attempts);
    let shown = lab.shown(MACHINE).await;
    assert!(shown.contains(&"status=in-progress".to_owned()), "{shown:?}");
    assert!(!lab.events(MACHINE).await.iter().any(|event| event.contains("Cancelled")));
}

#[tokio::test(start_paused = true)]
async fn row_31_row_33_events_of_an_owner_are_repeated() {
    let lab = Lab::in_mode(Compat::Strict).await;
    let api: Api<Event> = Api::default_namespaced(lab.site.client());
    let count = async |reason: &str| {
        let events = api.list(&ListParams::default()).await.unwrap().items.into_iter();
        let about = events.filter(|event| event.involved_object.name.as_deref() == Some("md"));
        about.filter(|event| event.reason.as_deref() == Some(reason)).count()
    };
    for machine in WORKERS {
        lab.script(machine, [fails("no space left")]);
    }
    lab.annotate_owner("md", CANONICAL.upgrade_to, Some(CHANNEL)).await;
    lab.until_owner("md", "status=done").await;
    let failed = count("InPlaceUpgradeFailed").await;
    assert!(failed >= 3 * 2, "repeated while a Machine has failed: {failed}");
    let done = count("InPlaceUpgradeDone").await;
    pass(1900).await;
    let more = count("InPlaceUpgradeDone").await;
    assert!(more >= done + 3, "every 10 min: {done}, {more}");
    assert_eq!(lab.tasks().await[0].name_any().split('-').next(), Some("annotated"));
}
