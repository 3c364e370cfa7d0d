//! The annotations of Machines.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams},
};
use lab_simhost::k8sd::{
    ChangeEnd, REFRESH, REFRESH_STATUS, Reach, RefreshReply, RefreshScript, Restart,
};
use refit_cluster_api::kinds::Cluster;
use refit_controller::Canonical;
use refit_core::annotation::Compat;
use refit_kinds::{
    canonical::{CANONICAL, K8SD, REFIT},
    refit::Phase,
};
use serde_json::json;

use super::{
    MACHINE, fails,
    lab::{CHANNEL, CONTROL_PLANE, Lab, TOKEN, WORKERS},
    pass,
};

async fn row_01_a_request_for_a_channel_issues_exactly_one_refresh(compat: Compat) {
    let lab = Lab::in_mode(compat).await;
    lab.ask(MACHINE, CHANNEL).await;
    lab.until(MACHINE, "status=done").await;
    pass(600).await;
    let body = json!({"channel": "1.34-classic/stable", "revision": "", "localPath": ""});
    assert_eq!(lab.refreshes(MACHINE), [body]);
    assert_eq!(lab.k8sd(MACHINE).installed().as_deref(), Some(CHANNEL));
}

async fn row_02_row_03_revisions_and_files_are_passed_on(compat: Compat) {
    let lab = Lab::in_mode(compat).await;
    for (option, key, value) in
        [("revision=3502", "revision", "3502"), ("localPath=/k8s.snap", "localPath", "/k8s.snap")]
    {
        lab.ask(MACHINE, option).await;
        lab.until(MACHINE, &format!("release={option}")).await;
        let mut body = json!({"channel": "", "revision": "", "localPath": ""});
        body[key] = value.into();
        assert_eq!(lab.refreshes(MACHINE).last(), Some(&body));
    }
}

#[tokio::test(start_paused = true)]
async fn row_04_an_invalid_option_reaches_no_k8sd_and_is_shown_as_failed() {
    let lab = Lab::new().await;
    for option in ["version=1.35", "channel", "localPath=/a=b", "channel="] {
        lab.ask(MACHINE, option).await;
        lab.until(MACHINE, "status=failed").await;
        pass(60).await;
        let events = lab.events(MACHINE).await;
        let of_option = |event: &&String| event.contains(&format!("with {option}: "));
        assert_eq!(events.iter().filter(of_option).count(), 1, "{events:?}");
    }
    assert_eq!((lab.k8sd(MACHINE).count(REFRESH), lab.updates().await.len()), (0, 0));
}

async fn row_05_a_machine_without_a_request_is_left_alone(compat: Compat) {
    let lab = Lab::in_mode(compat).await;
    lab.annotate(MACHINE, CANONICAL.status, Some("in-progress")).await;
    lab.annotate(MACHINE, CANONICAL.change_id.unwrap(), Some("7")).await;
    pass(600).await;
    assert_eq!(lab.shown(MACHINE).await, ["change-id=7", "status=in-progress"]);
    assert_eq!(lab.received(MACHINE).len(), 0);
}

async fn row_06_without_a_token_nothing_is_sent_and_the_reason_is_shown(compat: Compat) {
    let lab = Lab::in_mode(compat).await;
    let secrets: Api<Secret> = Api::default_namespaced(lab.site.client());
    secrets.delete("edge-1-token", &DeleteParams::default()).await.unwrap();
    lab.ask(MACHINE, CHANNEL).await;
    pass(120).await;
    assert_eq!(lab.shown(MACHINE).await, [format!("to={CHANNEL}")]);
    assert_eq!(lab.received(MACHINE).len(), 0);
    let message = lab.updates().await[0].status.clone().unwrap().message;
    assert!(message.contains("edge-1-token"), "{message}");
    let tokens = json!({"node-token-w-1": "x"});
    let body = json!({"metadata": {"name": "edge-1-token"}, "stringData": tokens});
    let _: Secret = crate::common::objects::made(&lab.site.client(), body).await;
    pass(600).await;
    let message = lab.updates().await[0].status.clone().unwrap().message;
    assert!(message.contains("node-token for machine \"w-0\" not found"), "{message}");
    let body = json!({"stringData": {"node-token-w-0": TOKEN, "value": "x"}});
    secrets.patch("edge-1-token", &PatchParams::default(), &Patch::Merge(&body)).await.unwrap();
    pass(610).await;
    assert!(lab.k8sd(MACHINE).count(REFRESH) > 0, "what is missing is looked for again");
}

async fn row_07_row_21_row_22_calls_carry_the_token_and_errors_are_shown_in_k8sds_words(
    compat: Compat,
) {
    let lab = Lab::in_mode(compat).await;
    lab.k8sd(MACHINE).set_token("another");
    lab.ask(MACHINE, CHANNEL).await;
    pass(60).await;
    let message = lab.updates().await[0].status.clone().unwrap().message;
    assert!(message.contains("status code: 401 (invalid token)"), "{message}");
    lab.k8sd(MACHINE).set_token(TOKEN);
    lab.until(MACHINE, "status=done").await;
    let received = lab.received(MACHINE);
    assert!(received.iter().all(|one| [REFRESH, REFRESH_STATUS].contains(&&*one.path)));
    assert!(received.iter().any(|one| one.path == REFRESH_STATUS && one.status == 200));
}

async fn row_09_row_11_row_12_a_change_is_followed_to_its_end(compat: Compat) {
    let lab = Lab::in_mode(compat).await;
    lab.ask(MACHINE, CHANNEL).await;
    lab.until(MACHINE, "status=in-progress").await;
    let shown = lab.shown(MACHINE).await;
    assert!(shown[0].starts_with("change-id=") && shown.len() == 3, "{shown:?}");
    lab.until(MACHINE, "status=done").await;
    let polls = lab.k8sd(MACHINE).count(REFRESH_STATUS);
    assert!((12..=14).contains(&polls), "one look in 5 s for a minute: {polls}");
    assert_eq!(lab.shown(MACHINE).await, [format!("release={CHANNEL}"), "status=done".into()]);
    assert_eq!(
        lab.events(MACHINE).await,
        [
            format!(
                "Normal InPlaceUpgradeDone: Successfully performed in place upgrade with {CHANNEL}"
            ),
            format!("Normal InPlaceUpgradeInProgress: Performing in place upgrade with {CHANNEL}"),
        ]
    );
}

async fn row_10_a_request_that_k8sd_rejects_is_repeated_without_status_or_event(compat: Compat) {
    let lab = Lab::in_mode(compat).await;
    let reply = RefreshReply::Fails("cannot refresh".to_owned());
    let rejects = RefreshScript { reply, ..RefreshScript::default() };
    lab.script(MACHINE, [rejects.clone(), rejects.clone(), rejects]);
    lab.ask(MACHINE, CHANNEL).await;
    for times in 1..=3 {
        lab.refreshed(MACHINE, times).await;
        assert_eq!(lab.shown(MACHINE).await, [format!("to={CHANNEL}")]);
    }
    assert_eq!(lab.events(MACHINE).await.len(), 0);
    lab.until(MACHINE, "status=done").await;
}

#[tokio::test(start_paused = true)]
async fn row_13_row_19_a_failed_attempt_is_shown_and_repeated() {
    let lab = Lab::new().await;
    lab.script(MACHINE, [fails("no space left"), fails("no space left")]);
    lab.ask(MACHINE, CHANNEL).await;
    lab.until(MACHINE, "status=failed").await;
    let shown = lab.shown(MACHINE).await;
    assert!(shown[0].starts_with("last-failed-attempt-at=Thu, 01 Jan 2026 "), "{shown:?}");
    assert!(shown[0].ends_with(" +0000") && shown.len() == 3, "{shown:?}");
    lab.until(MACHINE, "status=in-progress").await;
    assert!(lab.shown(MACHINE).await.iter().any(|one| one.starts_with("last-failed")));
    lab.until(MACHINE, "status=done").await;
    assert_eq!(lab.shown(MACHINE).await, [format!("release={CHANNEL}"), "status=done".into()]);
    assert_eq!(lab.refreshes(MACHINE).len(), 3);
    let events = lab.events(MACHINE).await;
    let failed = format!("with {CHANNEL}: no space left");
    assert_eq!(events.iter().filter(|event| event.ends_with(&failed)).count(), 2, "{events:?}");
}

async fn row_19_a_success_removes_the_time_of_the_last_failure(compat: Compat) {
    let lab = Lab::in_mode(compat).await;
    lab.script(MACHINE, [fails("no space left")]);
    lab.ask(MACHINE, CHANNEL).await;
    lab.refreshed(MACHINE, 2).await;
    let is_failure = |one: &String| one.starts_with("last-failed-attempt-at=");
    assert!(lab.shown(MACHINE).await.iter().any(is_failure));
    lab.until(MACHINE, &format!("release={CHANNEL}")).await;
    assert_eq!(lab.shown(MACHINE).await, [format!("release={CHANNEL}"), "status=done".into()]);
}

async fn row_14_a_change_that_ends_in_another_way_has_failed(compat: Compat) {
    let lab = Lab::in_mode(compat).await;
    lab.script(MACHINE, [RefreshScript { end: ChangeEnd::Undone, ..RefreshScript::default() }]);
    lab.ask(MACHINE, CHANNEL).await;
    lab.until(MACHINE, "status=done").await;
    let events = lab.events(MACHINE).await;
    assert!(events.iter().any(|event| event.contains("invalid refresh status")), "{events:?}");
    assert_eq!(lab.refreshes(MACHINE).len(), 2);
}

async fn row_17_k8sd_may_be_away_while_it_is_refreshed(compat: Compat) {
    let lab = Lab::in_mode(compat).await;
    for reach in [Reach::Refused, Reach::HangsUp] {
        let (after, lasts) = (Duration::from_secs(10), Duration::from_secs(40));
        let restart = Some(Restart { after, lasts, reach, replaces_certificate: false });
        lab.script(MACHINE, [RefreshScript { restart, ..RefreshScript::default() }]);
        let option = format!("revision={reach:?}");
        lab.ask(MACHINE, &option).await;
        lab.until(MACHINE, "status=in-progress").await;
        pass(30).await;
        assert!(lab.shown(MACHINE).await.contains(&"status=in-progress".to_owned()));
        lab.until(MACHINE, &format!("release={option}")).await;
    }
    assert_eq!(lab.refreshes(MACHINE).len(), 2);
}

#[tokio::test(start_paused = true)]
async fn row_18_removing_the_request_ends_the_attempts() {
    let lab = Lab::new().await;
    lab.script(MACHINE, (0..20).map(|_| fails("no")));
    lab.ask(MACHINE, CHANNEL).await;
    lab.refreshed(MACHINE, 5).await;
    lab.annotate(MACHINE, CANONICAL.upgrade_to, None).await;
    pass(300).await;
    let attempts = lab.refreshes(MACHINE).len();
    pass(3600).await;
    assert_eq!(lab.refreshes(MACHINE).len(), attempts);
    assert_eq!(lab.shown(MACHINE).await, [""; 0]);
    assert!(lab.events(MACHINE).await.iter().any(|event| event.contains("Cancelled")));
    assert_eq!(lab.phase("w-0-1").await, Phase::Stopped);
}

async fn row_18_a_request_that_never_reached_k8sd_can_be_cancelled(compat: Compat) {
    let lab = Lab::in_mode(compat).await;
    lab.k8sd(MACHINE).set_token("another");
    lab.ask(MACHINE, CHANNEL).await;
    lab.refreshed(MACHINE, 3).await;
    lab.annotate(MACHINE, CANONICAL.upgrade_to, None).await;
    pass(1200).await;
    assert_eq!(lab.phase("w-0-1").await, Phase::Stopped);
}

async fn row_18_a_request_without_an_answer_is_followed_to_its_end(compat: Compat) {
    let lab = Lab::in_mode(compat).await;
    let reply = RefreshReply::Lost;
    lab.script(MACHINE, [RefreshScript { reply, ..RefreshScript::default() }]);
    lab.ask(MACHINE, CHANNEL).await;
    lab.until(MACHINE, "status=done").await;
    assert_eq!(lab.k8sd(MACHINE).changes(), 1, "it is not begun twice at a time");
}

async fn row_20_the_same_option_is_installed_again_on_request(compat: Compat) {
    let lab = Lab::in_mode(compat).await;
    for times in 1..=3 {
        lab.ask(MACHINE, CHANNEL).await;
        pass(300).await;
        assert_eq!(lab.refreshes(MACHINE).len(), times);
    }
}

async fn row_23_row_24_k8sd_is_reached_by_the_proxy_of_the_node(compat: Compat) {
    let lab = Lab::in_mode(compat).await;
    let pods: Api<Pod> = Api::namespaced(lab.site.workload_client(), "kube-system");
    pods.delete("k8sd-proxy-w-0", &DeleteParams::default().grace_period(0)).await.unwrap();
    lab.ask(MACHINE, CHANNEL).await;
    pass(60).await;
    let message = lab.updates().await[0].status.clone().unwrap().message;
    assert!(message.contains("missing k8sd proxy pod for node w-0"), "{message}");
    let others: usize = WORKERS[1..].iter().map(|name| lab.received(name).len()).sum();
    assert_eq!(others, 0, "no other node is asked");
}

async fn row_57_row_58_other_annotations_and_the_version_stay(compat: Compat) {
    let lab = Lab::in_mode(compat).await;
    lab.annotate(MACHINE, "example.com/mine", Some("kept")).await;
    lab.ask(MACHINE, CHANNEL).await;
    lab.until(MACHINE, "status=done").await;
    let machine = lab.read(MACHINE).await;
    assert_eq!(machine.annotations()["example.com/mine"], "kept");
    assert_eq!(machine.spec.version, "v1.34.2".into());
}

async fn row_59_a_control_plane_and_a_worker_are_upgraded_and_no_other_machine(compat: Compat) {
    let lab = Lab::in_mode(compat).await;
    for machine in [CONTROL_PLANE, MACHINE] {
        lab.ask(machine, CHANNEL).await;
        lab.until(machine, "status=done").await;
    }
    for other in &WORKERS[1..] {
        assert_eq!(lab.shown(other).await, [""; 0]);
        assert_eq!(lab.received(other).len(), 0);
    }
}

async fn row_60_an_edited_request_corrupts_no_release_and_is_not_lost(compat: Compat) {
    let lab = Lab::in_mode(compat).await;
    lab.ask(MACHINE, "revision=1").await;
    lab.until(MACHINE, "status=in-progress").await;
    lab.ask(MACHINE, "revision=2").await;
    lab.until(MACHINE, "release=revision=2").await;
    let installed: Vec<_> =
        lab.refreshes(MACHINE).into_iter().map(|body| body["revision"].clone()).collect();
    assert_eq!(installed, ["1", "2"]);
    let done = |revision| {
        format!(
            "Normal InPlaceUpgradeDone: Successfully performed in place upgrade with revision={revision}"
        )
    };
    let events = lab.events(MACHINE).await;
    assert!(events.contains(&done(1)) && events.contains(&done(2)), "{events:?}");
}

async fn row_60_machines_of_a_group_follow_one_another(compat: Compat) {
    let lab = Lab::in_mode(compat).await;
    for machine in WORKERS {
        lab.ask(machine, CHANNEL).await;
    }
    for _ in 0..600 {
        let busy = WORKERS.iter().filter(|name| lab.k8sd(name).is_busy()).count();
        assert!(busy <= 1, "{busy} machines at once");
        pass(1).await;
    }
    assert!(WORKERS.iter().all(|name| lab.k8sd(name).installed().is_some()));
}

async fn row_60_a_paused_cluster_waits(compat: Compat) {
    let lab = Lab::in_mode(compat).await;
    let clusters: Api<Cluster> = Api::default_namespaced(lab.site.client());
    let paused = async |paused: bool| {
        let body = json!({"spec": {"paused": paused}});
        clusters.patch("edge-1", &PatchParams::default(), &Patch::Merge(&body)).await.unwrap();
    };
    paused(true).await;
    lab.ask(MACHINE, CHANNEL).await;
    pass(600).await;
    assert_eq!(lab.received(MACHINE).len(), 0);
    paused(false).await;
    lab.until(MACHINE, "status=done").await;
}

async fn row_60_nothing_to_refresh_and_forgotten_changes_come_to_an_end(compat: Compat) {
    let lab = Lab::in_mode(compat).await;
    let reply = RefreshReply::NothingToDo;
    lab.script(MACHINE, [RefreshScript { reply, ..RefreshScript::default() }]);
    lab.ask(MACHINE, "revision=1").await;
    lab.until(MACHINE, "release=revision=1").await;
    lab.ask(MACHINE, "revision=2").await;
    lab.until(MACHINE, "status=in-progress").await;
    lab.k8sd(MACHINE).forget_changes();
    lab.until(MACHINE, "release=revision=2").await;
    assert_eq!(lab.refreshes(MACHINE).len(), 3, "the forgotten change counts as lost");
}

async fn row_25_a_call_without_an_answer_ends_after_a_minute(compat: Compat) {
    let lab = Lab::in_mode(compat).await;
    let message = async || {
        let status = lab.updates().await[0].status.clone().unwrap_or_default();
        status.part(K8SD).message
    };
    lab.k8sd(MACHINE).set_reach(Reach::Silent);
    lab.ask(MACHINE, CHANNEL).await;
    pass(55).await;
    assert_eq!(message().await, "");
    pass(20).await;
    assert!(message().await.contains("within 60 s"), "{}", message().await);
    lab.k8sd(MACHINE).set_reach(Reach::Up);
    lab.until(MACHINE, "status=done").await;
}

async fn row_51_a_request_goes_before_the_release(compat: Compat) {
    let lab = Lab::in_mode(compat).await;
    for machine in [MACHINE, WORKERS[0]] {
        lab.annotate(machine, CANONICAL.release, Some("revision=1")).await;
    }
    lab.ask(MACHINE, "revision=2").await;
    lab.until(MACHINE, "release=revision=2").await;
    lab.annotate_owner("md", CANONICAL.release, Some("revision=1")).await;
    lab.annotate_owner("md", CANONICAL.upgrade_to, Some("revision=3")).await;
    lab.until_owner("md", "release=revision=3").await;
    lab.until(WORKERS[0], "release=revision=3").await;
}

async fn row_60_another_certificate_gets_no_token(compat: Compat) {
    let lab = Lab::in_mode(compat).await;
    lab.ask(MACHINE, "revision=1").await;
    lab.until(MACHINE, "release=revision=1").await;
    lab.k8sd(MACHINE).replace_certificate().unwrap();
    let received = lab.received(MACHINE).len();
    lab.ask(MACHINE, "revision=2").await;
    pass(900).await;
    assert_eq!(lab.received(MACHINE).len(), received);
    let updates = lab.updates().await;
    let message = &updates.last().unwrap().status.as_ref().unwrap().message;
    assert!(message.contains("edge-1-k8sd-certificates"), "{message}");
    let secrets: Api<Secret> = Api::default_namespaced(lab.site.client());
    secrets.delete("edge-1-k8sd-certificates", &DeleteParams::default()).await.unwrap();
    lab.until(MACHINE, "release=revision=2").await;
}

#[tokio::test(start_paused = true)]
async fn row_08_traces_of_the_last_upgrade_stay_until_k8sd_has_accepted_the_request() {
    let lab = Lab::new().await;
    let old = [
        (CANONICAL.status, "done"),
        (CANONICAL.release, "revision=1"),
        (CANONICAL.change_id.unwrap(), "7"),
    ];
    for (key, value) in old {
        lab.annotate(MACHINE, key, Some(value)).await;
    }
    lab.k8sd(MACHINE).set_token("another");
    lab.ask(MACHINE, CHANNEL).await;
    lab.refreshed(MACHINE, 2).await;
    assert!(lab.shown(MACHINE).await.contains(&"release=revision=1".to_owned()));
    lab.k8sd(MACHINE).set_token(TOKEN);
    lab.until(MACHINE, "status=in-progress").await;
    let shown = lab.shown(MACHINE).await;
    assert!(!shown.iter().any(|one| one.contains("release") || one == "change-id=7"), "{shown:?}");
    lab.until(MACHINE, &format!("release={CHANNEL}")).await;
}

#[tokio::test(start_paused = true)]
async fn row_15_row_16_a_change_id_without_a_valid_status_is_replaced() {
    for status in [None, Some("running")] {
        let lab = Lab::new().await;
        lab.annotate(MACHINE, CANONICAL.change_id.unwrap(), Some("7")).await;
        lab.annotate(MACHINE, CANONICAL.status, status).await;
        lab.ask(MACHINE, CHANNEL).await;
        lab.until(MACHINE, "status=done").await;
        let failed = lab.events_of(MACHINE, "InPlaceUpgradeFailed").await;
        assert_eq!((failed, lab.refreshes(MACHINE).len()), (Vec::new(), 1), "{status:?}");
        assert_eq!(lab.shown(MACHINE).await, [format!("release={CHANNEL}"), "status=done".into()]);
    }
}

#[tokio::test(start_paused = true)]
async fn machines_are_left_to_canonicals_controllers_unless_these_are_absent() {
    for canonical in [Canonical::Off, Canonical::On] {
        let lab = Lab::with(canonical).await;
        lab.ask(MACHINE, CHANNEL).await;
        pass(600).await;
        assert_eq!(lab.received(MACHINE).len(), 0);
        assert_eq!(lab.shown(MACHINE).await, [format!("to={CHANNEL}")]);
        // Refit's own prefix works next to them.
        lab.annotate(WORKERS[1], REFIT.upgrade_to, Some(CHANNEL)).await;
        pass(600).await;
        let machine = lab.read(WORKERS[1]).await;
        assert_eq!(machine.annotations()[REFIT.status], "done");
        assert_eq!(machine.annotations()[REFIT.release], CHANNEL);
    }
}

in_both_modes! {
    row_01_a_request_for_a_channel_issues_exactly_one_refresh,
    row_02_row_03_revisions_and_files_are_passed_on,
    row_05_a_machine_without_a_request_is_left_alone,
    row_06_without_a_token_nothing_is_sent_and_the_reason_is_shown,
    row_07_row_21_row_22_calls_carry_the_token_and_errors_are_shown_in_k8sds_words,
    row_09_row_11_row_12_a_change_is_followed_to_its_end,
    row_10_a_request_that_k8sd_rejects_is_repeated_without_status_or_event,
    row_14_a_change_that_ends_in_another_way_has_failed,
    row_17_k8sd_may_be_away_while_it_is_refreshed,
    row_18_a_request_that_never_reached_k8sd_can_be_cancelled,
    row_18_a_request_without_an_answer_is_followed_to_its_end,
    row_20_the_same_option_is_installed_again_on_request,
    row_19_a_success_removes_the_time_of_the_last_failure,
    row_23_row_24_k8sd_is_reached_by_the_proxy_of_the_node,
    row_25_a_call_without_an_answer_ends_after_a_minute,
    row_51_a_request_goes_before_the_release,
    row_57_row_58_other_annotations_and_the_version_stay,
    row_59_a_control_plane_and_a_worker_are_upgraded_and_no_other_machine,
    row_60_an_edited_request_corrupts_no_release_and_is_not_lost,
    row_60_machines_of_a_group_follow_one_another,
    row_60_a_paused_cluster_waits,
    row_60_nothing_to_refresh_and_forgotten_changes_come_to_an_end,
    row_60_another_certificate_gets_no_token,
}
