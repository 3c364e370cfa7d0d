//! The annotations of owners: Machine after Machine is upgraded.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use refit_cluster_api::kinds::{Machine, MachineDeployment, MachineSet};
use refit_core::annotation::Compat;
use refit_kinds::{
    canonical::{CANONICAL, REFIT},
    keys,
    refit::{Disruption, NodeUpdate, Phase, TaskPhase, UpgradeTask},
};
use serde_json::json;

use super::{
    fails,
    lab::{CHANNEL, CONTROL_PLANE, CONTROL_PLANES, LATE_MEMBER, LATE_WORKER, Lab, WORKERS},
    pass,
};

const OTHER: &str = "channel=1.34-classic/edge";
const LOCK: &str = "edge-1-cp-inplace-upgrade-lock";

impl Lab {
    async fn ask_owner(&self, owner: &str, option: &str) {
        self.annotate_owner(owner, CANONICAL.upgrade_to, Some(option)).await;
    }

    /// The names of Machines in the order of their uids.
    async fn by_uid(&self, names: &[&str]) -> Vec<String> {
        let mut machines = Vec::new();
        for name in names {
            machines.push(self.read(name).await);
        }
        machines.sort_by_key(kube::ResourceExt::uid);
        machines.iter().map(kube::ResourceExt::name_any).collect()
    }

    /// The Machines that have a request or run a refresh.
    async fn asked(&self, names: &[&str]) -> Vec<String> {
        let mut asked = Vec::new();
        for name in names {
            let shown = self.shown(name).await;
            let is_asked =
                |known: &String| known.starts_with("to=") || known.contains("in-progress");
            if shown.iter().any(is_asked) {
                asked.push((*name).to_owned());
            }
        }
        asked
    }

    /// The Machines in the order in which they were asked first, until an owner is done. Never are two asked at once.
    async fn sequence(&self, owner: &str, names: &[&str]) -> Vec<String> {
        let mut order = Vec::new();
        for _ in 0..4000 {
            let asked = self.asked(names).await;
            assert!(asked.len() <= 1, "two at once: {asked:?}");
            for name in asked {
                if !order.contains(&name) {
                    order.push(name);
                }
            }
            if self.shown_by(owner).await.contains(&"status=done".to_owned()) {
                return order;
            }
            pass(1).await;
        }
        panic!("{owner} is never done: {:?} {:#?}", self.shown_by(owner).await, self.tasks().await);
    }

    fn locks(&self) -> Api<ConfigMap> {
        Api::default_namespaced(self.site.client())
    }

    async fn lock_holder(&self) -> Option<String> {
        let lock = self.locks().get_opt(LOCK).await.unwrap()?;
        Some(lock.data.unwrap_or_default()["lock-information"].clone())
    }

    async fn lock(&self, text: &str) {
        let lock = json!({"metadata": {"name": LOCK}, "data": {"lock-information": text}});
        let lock: ConfigMap = serde_json::from_value(lock).unwrap();
        self.locks().create(&PostParams::default(), &lock).await.unwrap();
    }
}

fn holder(machine: &str) -> String {
    format!("{{\"machineName\":\"{machine}\",\"machineNamespace\":\"default\"}}")
}

fn done() -> [String; 2] {
    [format!("release={CHANNEL}"), "status=done".to_owned()]
}

async fn row_26_row_27_row_33_row_34_workers_are_upgraded_one_at_a_time_in_the_order_of_their_uids(
    compat: Compat,
) {
    let lab = Lab::in_mode(compat).await;
    lab.ask_owner("md", CHANNEL).await;
    lab.until_owner("md", "status=in-progress").await;
    assert!(lab.shown_by("md").await.contains(&format!("to={CHANNEL}")));
    let order = lab.sequence("md", &WORKERS).await;
    assert_eq!(order, lab.by_uid(&WORKERS).await);
    assert_eq!(lab.shown_by("md").await, done());
    let mut expected = vec!["Normal InPlaceUpgradeDone: In-place upgrade is done".to_owned()];
    for name in WORKERS {
        assert_eq!(lab.shown(name).await, done());
        assert_eq!(lab.refreshes(name).len(), 1);
        expected.extend([
            format!(
                "Normal InPlaceUpgradeInProgress: Machine \"{name}\" is upgrading to \"{CHANNEL}\""
            ),
            format!(
                "Normal InPlaceUpgradeInProgress: In-place upgrade is in-progress for \"{name}\""
            ),
        ]);
    }
    expected.sort();
    pass(1200).await;
    let mut events = lab.events("md").await;
    if compat == Compat::Strict {
        events.dedup();
    }
    assert_eq!(events, expected, "each once");
    assert_eq!(lab.tasks().await.len(), 1);
}

async fn row_28_a_worker_that_is_being_deleted_is_waited_for(compat: Compat) {
    let lab = Lab::in_mode(compat).await;
    let machines: Api<Machine> = Api::default_namespaced(lab.site.client());
    let finalizer = |held: &[&str]| json!({"metadata": {"finalizers": held}});
    let patch = async |held: &[&str]| {
        let body = finalizer(held);
        machines.patch(WORKERS[0], &PatchParams::default(), &Patch::Merge(&body)).await.unwrap();
    };
    patch(&["example.com/held"]).await;
    machines.delete(WORKERS[0], &DeleteParams::default()).await.unwrap();
    lab.ask_owner("md", CHANNEL).await;
    pass(600).await;
    assert_eq!(lab.asked(&WORKERS[1..]).await.len(), 0);
    patch(&[]).await;
    lab.late_worker().await;
    lab.until_owner("md", "status=done").await;
    assert_eq!(lab.shown(WORKERS[1]).await, done());
}

async fn row_29_row_30_an_owner_without_a_request_or_under_deletion_is_left_alone(compat: Compat) {
    let lab = Lab::in_mode(compat).await;
    let owners: Api<MachineDeployment> = Api::default_namespaced(lab.site.client());
    let body = json!({"metadata": {"finalizers": ["example.com/held"]}});
    owners.patch("md", &PatchParams::default(), &Patch::Merge(&body)).await.unwrap();
    lab.annotate_owner("md", CANONICAL.status, Some("in-progress")).await;
    pass(300).await;
    assert_eq!(lab.tasks().await.len(), 0);
    owners.delete("md", &DeleteParams::default()).await.unwrap();
    lab.ask_owner("md", CHANNEL).await;
    pass(300).await;
    assert_eq!(lab.tasks().await.len(), 0);
    assert_eq!(lab.asked(&WORKERS).await.len(), 0);
}

async fn row_31_row_32_a_failure_is_shown_on_the_owner_and_its_end_resumes_the_sequence(
    compat: Compat,
) {
    let lab = Lab::in_mode(compat).await;
    let first = lab.by_uid(&WORKERS).await[0].clone();
    lab.script(&first, [fails("no space left"), fails("no space left"), fails("no space left")]);
    lab.ask_owner("md", CHANNEL).await;
    lab.until_owner("md", "status=failed").await;
    assert_eq!(lab.shown_by("md").await, ["status=failed".to_owned(), format!("to={CHANNEL}")]);
    let others = WORKERS.into_iter().filter(|name| **name != *first).collect::<Vec<_>>();
    assert_eq!(lab.asked(&others).await.len(), 0);
    lab.until_owner("md", "status=in-progress").await;
    lab.until_owner("md", "status=done").await;
    let events = lab.events("md").await;
    let failed =
        format!("Warning InPlaceUpgradeFailed: In-place upgrade failed for machine \"{first}\".");
    assert!(events.contains(&failed), "{events:?}");
}

async fn row_35_a_worker_that_is_added_later_is_upgraded_as_well(compat: Compat) {
    let lab = Lab::in_mode(compat).await;
    lab.ask_owner("md", CHANNEL).await;
    lab.until_owner("md", "status=done").await;
    pass(600).await;
    lab.late_worker().await;
    lab.until_owner("md", "status=in-progress").await;
    assert_eq!(
        lab.shown_by("md").await,
        ["status=in-progress".to_owned(), format!("to={CHANNEL}")]
    );
    lab.until_owner("md", "status=done").await;
    assert_eq!(lab.shown(LATE_WORKER).await, done());
    assert_eq!(lab.refreshes(WORKERS[0]).len(), 1, "those that have it are left alone");
}

async fn row_36_row_54_machines_of_other_owners_are_untouched(compat: Compat) {
    let lab = Lab::of_three(compat).await;
    lab.ask_owner("md", CHANNEL).await;
    lab.until_owner("md", "status=done").await;
    for name in CONTROL_PLANES {
        assert_eq!(lab.shown(name).await, [""; 0]);
    }
    // Workers and control plane at the same time.
    lab.ask_owner("md", OTHER).await;
    lab.ask_owner("cp", OTHER).await;
    let mut both = false;
    for _ in 0..1200 {
        let (workers, members) = (lab.asked(&WORKERS).await, lab.asked(&CONTROL_PLANES).await);
        both |= !workers.is_empty() && !members.is_empty();
        pass(1).await;
    }
    assert!(both);
    for owner in ["md", "cp"] {
        lab.until_owner(owner, &format!("release={OTHER}")).await;
    }
}

async fn row_37_a_machine_deployment_without_machine_sets_is_not_done(compat: Compat) {
    let lab = Lab::in_mode(compat).await;
    let client = lab.site.client();
    for name in WORKERS {
        let machines: Api<Machine> = Api::default_namespaced(client.clone());
        machines.delete(name, &DeleteParams::default()).await.unwrap();
    }
    let owners: Api<MachineDeployment> = Api::default_namespaced(client.clone());
    let body = json!({"spec": {"replicas": 0}});
    owners.patch("md", &PatchParams::default(), &Patch::Merge(&body)).await.unwrap();
    let sets: Api<MachineSet> = Api::default_namespaced(client);
    sets.delete("md-a", &DeleteParams::default()).await.unwrap();
    pass(10).await;
    lab.ask_owner("md", CHANNEL).await;
    pass(600).await;
    assert_eq!(lab.shown_by("md").await, [format!("to={CHANNEL}")]);
}

async fn row_38_an_edited_option_lets_the_running_refresh_end_and_is_then_installed_everywhere(
    compat: Compat,
) {
    let lab = Lab::in_mode(compat).await;
    let first = lab.by_uid(&WORKERS).await[0].clone();
    lab.ask_owner("md", CHANNEL).await;
    lab.until(&first, "status=in-progress").await;
    lab.ask_owner("md", OTHER).await;
    lab.until_owner("md", &format!("release={OTHER}")).await;
    for name in WORKERS {
        assert!(lab.shown(name).await.contains(&format!("release={OTHER}")));
        let times = if *name == *first { 2 } else { 1 };
        assert_eq!(lab.refreshes(name).len(), times, "{name}");
    }
    let phases: Vec<_> =
        lab.tasks().await.into_iter().map(|task| task.status.unwrap().phase).collect();
    assert_eq!(phases, [TaskPhase::Aborted, TaskPhase::Complete]);
}

async fn row_39_a_control_plane_waits_until_all_its_members_are_ready(compat: Compat) {
    let lab = Lab::of_three(compat).await;
    lab.ready_control_planes(2).await;
    lab.ask_owner("cp", CHANNEL).await;
    pass(600).await;
    assert_eq!(lab.asked(&CONTROL_PLANES).await.len(), 0);
    assert_eq!(lab.lock_holder().await, None);
    lab.ready_control_planes(3).await;
    lab.until_owner("cp", "status=done").await;
}

async fn row_40_row_41_row_42_row_46_members_of_a_control_plane_take_turns_by_a_lock(
    compat: Compat,
) {
    let lab = Lab::of_three(compat).await;
    lab.ask_owner("cp", CHANNEL).await;
    let first = lab.by_uid(&CONTROL_PLANES).await[0].clone();
    lab.until(&first, "status=in-progress").await;
    let lock = lab.locks().get(LOCK).await.unwrap();
    assert_eq!(lock.labels()["cluster.x-k8s.io/cluster-name"], "edge-1");
    let owner = &lock.owner_references()[0];
    assert_eq!((&*owner.kind, &*owner.name, owner.controller), ("Cluster", "edge-1", None));
    assert_eq!(lock.data, Some(BTreeMap::from([("lock-information".to_owned(), holder(&first))])));
    let order = lab.sequence("cp", &CONTROL_PLANES).await;
    assert_eq!(order, lab.by_uid(&CONTROL_PLANES).await);
    assert_eq!(lab.shown_by("cp").await, done());
    assert_eq!(lab.lock_holder().await, None);
}

async fn row_43_row_53_a_stale_lock_is_released(compat: Compat) {
    let lab = Lab::of_three(compat).await;
    // As after a crash between lock and request, or of a Machine that is gone.
    for stale in [CONTROL_PLANES[2], "gone"] {
        lab.lock(&holder(stale)).await;
        let option = if stale == "gone" { OTHER } else { CHANNEL };
        lab.ask_owner("cp", option).await;
        lab.until_owner("cp", &format!("release={option}")).await;
        assert_eq!(lab.lock_holder().await, None);
    }
}

async fn row_43_row_60_an_edited_option_releases_the_lock_only_after_the_refresh(compat: Compat) {
    let lab = Lab::of_three(compat).await;
    lab.ask_owner("cp", CHANNEL).await;
    let first = lab.by_uid(&CONTROL_PLANES).await[0].clone();
    lab.until(&first, "status=in-progress").await;
    lab.ask_owner("cp", OTHER).await;
    while lab.k8sd(&first).is_busy() {
        assert_eq!(lab.lock_holder().await, Some(holder(&first)));
        pass(1).await;
    }
    lab.until_owner("cp", &format!("release={OTHER}")).await;
    for name in CONTROL_PLANES {
        let times = if *name == *first { 2 } else { 1 };
        assert_eq!(lab.refreshes(name).len(), times, "{name}");
    }
}

async fn row_44_a_lock_that_names_no_machine_stops_the_control_plane_and_is_reported(
    compat: Compat,
) {
    let lab = Lab::of_three(compat).await;
    lab.lock("{").await;
    lab.ask_owner("cp", CHANNEL).await;
    pass(600).await;
    assert_eq!(lab.asked(&CONTROL_PLANES).await.len(), 0);
    let status = lab.tasks().await[0].status.clone().unwrap();
    assert_eq!(status.phase, TaskPhase::Failed);
    assert!(status.conditions[0].message.contains(LOCK), "{}", status.conditions[0].message);
    lab.locks().delete(LOCK, &DeleteParams::default()).await.unwrap();
    lab.until_owner("cp", "status=done").await;
}

async fn row_45_a_member_that_failed_keeps_the_lock(compat: Compat) {
    let lab = Lab::of_three(compat).await;
    let first = lab.by_uid(&CONTROL_PLANES).await[0].clone();
    lab.script(&first, [fails("no space left"), fails("no space left"), fails("no space left")]);
    lab.ask_owner("cp", CHANNEL).await;
    lab.until_owner("cp", "status=failed").await;
    assert_eq!(lab.lock_holder().await, Some(holder(&first)));
    assert_eq!(lab.asked(&CONTROL_PLANES).await, [first]);
    lab.until_owner("cp", "status=done").await;
}

async fn row_47_a_request_that_is_removed_stops_the_sequence_and_releases_the_lock(compat: Compat) {
    let lab = Lab::of_three(compat).await;
    lab.ask_owner("cp", CHANNEL).await;
    let first = lab.by_uid(&CONTROL_PLANES).await[0].clone();
    lab.until(&first, "status=in-progress").await;
    lab.annotate_owner("cp", CANONICAL.upgrade_to, None).await;
    lab.until(&first, "status=done").await;
    pass(600).await;
    assert_eq!(lab.lock_holder().await, None);
    assert_eq!(lab.shown_by("cp").await, [""; 0]);
    let refreshed = CONTROL_PLANES.iter().map(|name| lab.refreshes(name).len()).sum::<usize>();
    assert_eq!(refreshed, 1);
}

async fn row_52_a_machine_that_is_asked_by_others_is_waited_for(compat: Compat) {
    let lab = Lab::in_mode(compat).await;
    lab.ask(WORKERS[0], OTHER).await;
    lab.until(WORKERS[0], "status=in-progress").await;
    lab.ask_owner("md", CHANNEL).await;
    pass(20).await;
    assert_eq!(lab.asked(&WORKERS).await, [WORKERS[0]]);
    lab.until_owner("md", "status=done").await;
}

async fn row_52_a_status_that_nothing_ends_holds_up_no_owner_but_in_strict_mode(compat: Compat) {
    let lab = Lab::in_mode(compat).await;
    lab.annotate(WORKERS[1], CANONICAL.status, Some("in-progress")).await;
    lab.ask_owner("md", CHANNEL).await;
    if compat == Compat::Strict {
        pass(1800).await;
        assert!(lab.refreshes(WORKERS[1]).is_empty());
        assert_eq!(lab.asked(&WORKERS).await, [WORKERS[1]]);
        // Its request can be removed, and made again.
        lab.annotate_owner("md", CANONICAL.upgrade_to, None).await;
        pass(60).await;
        assert!(
            lab.tasks().await.iter().all(|task| task.status.as_ref().unwrap().phase.has_ended())
        );
        lab.annotate(WORKERS[1], CANONICAL.status, None).await;
        lab.ask_owner("md", CHANNEL).await;
    }
    lab.until_owner("md", "status=done").await;
}

async fn row_49_a_lock_that_another_client_holds_is_waited_for(compat: Compat) {
    let lab = Lab::of_three(compat).await;
    let last = CONTROL_PLANES[2];
    lab.ask(last, OTHER).await;
    lab.until(last, "status=in-progress").await;
    lab.lock(&holder(last)).await;
    lab.ask_owner("cp", CHANNEL).await;
    pass(30).await;
    assert_eq!(lab.asked(&CONTROL_PLANES).await, [last]);
    lab.until_owner("cp", "status=done").await;
}

async fn row_50_a_machine_that_is_asked_starts_afresh(compat: Compat) {
    let lab = Lab::in_mode(compat).await;
    let old = [
        (CANONICAL.release, "channel=1.33-classic/stable"),
        (CANONICAL.status, "done"),
        (CANONICAL.change_id.unwrap(), "7"),
        (CANONICAL.last_failed_attempt_at, "Wed, 30 Oct 2024 09:47:37 +0100"),
    ];
    for (key, value) in old {
        lab.annotate(CONTROL_PLANE, key, Some(value)).await;
    }
    lab.k8sd(CONTROL_PLANE).set_token("another");
    lab.ask_owner("cp", CHANNEL).await;
    pass(60).await;
    assert_eq!(lab.shown(CONTROL_PLANE).await, [format!("to={CHANNEL}")]);
}

async fn a_request_that_is_removed_before_its_machine_begins_is_withdrawn(compat: Compat) {
    let lab = Lab::of_three(compat).await;
    lab.ready_control_planes(2).await;
    for name in WORKERS {
        lab.k8sd(name).set_token("another");
    }
    for owner in ["cp", "md"] {
        lab.ask_owner(owner, CHANNEL).await;
    }
    pass(120).await;
    assert_eq!(lab.asked(&WORKERS).await.len(), 1);
    for owner in ["cp", "md"] {
        lab.annotate_owner(owner, CANONICAL.upgrade_to, None).await;
    }
    pass(30).await;
    let phases: Vec<_> =
        lab.tasks().await.into_iter().map(|task| task.status.unwrap().phase).collect();
    assert_eq!(phases, [TaskPhase::Aborted, TaskPhase::Aborted]);
    lab.ready_control_planes(3).await;
    pass(600).await;
    assert_eq!(lab.asked(&WORKERS).await.len() + lab.asked(&CONTROL_PLANES).await.len(), 0);
}

async fn the_task_of_a_request_may_be_deleted_after_its_end(compat: Compat) {
    let lab = Lab::in_mode(compat).await;
    let tasks: Api<UpgradeTask> = Api::default_namespaced(lab.site.client());
    lab.ask_owner("md", CHANNEL).await;
    lab.until_owner("md", "status=done").await;
    tasks.delete(&lab.tasks().await[0].name_any(), &DeleteParams::default()).await.unwrap();
    pass(30).await;
    lab.ask_owner("md", OTHER).await;
    lab.until_owner("md", &format!("release={OTHER}")).await;
    assert_eq!(lab.tasks().await.len(), 1);
}

async fn a_namespace_that_opts_in_later_is_served(compat: Compat) {
    let lab = Lab::in_mode(compat).await;
    lab.opt_in(false).await;
    lab.ask_owner("md", CHANNEL).await;
    lab.ask(CONTROL_PLANE, CHANNEL).await;
    pass(300).await;
    assert_eq!((lab.tasks().await.len(), lab.updates().await.len()), (0, 0));
    lab.opt_in(true).await;
    lab.until_owner("md", "status=done").await;
    lab.until(CONTROL_PLANE, "status=done").await;
}

async fn row_48_a_member_that_is_added_later_is_upgraded_once_the_control_plane_is_ready(
    compat: Compat,
) {
    let lab = Lab::in_mode(compat).await;
    lab.ask_owner("cp", CHANNEL).await;
    lab.until_owner("cp", "status=done").await;
    pass(5).await;
    lab.late_member().await;
    lab.until_owner("cp", "status=in-progress").await;
    pass(300).await;
    assert_eq!(lab.shown(LATE_MEMBER).await, [""; 0], "only one of two replicas is ready");
    lab.ready_control_planes(2).await;
    lab.until_owner("cp", "status=done").await;
    assert_eq!(lab.shown(LATE_MEMBER).await, done());
}

#[tokio::test(start_paused = true)]
async fn a_control_plane_of_another_provider_is_known_by_the_contract() {
    let lab = Lab::of_another_provider().await;
    lab.annotate_owner("cp", keys::DRAIN, Some("true")).await;
    lab.annotate_owner("cp", REFIT.upgrade_to, Some(CHANNEL)).await;
    for name in CONTROL_PLANES {
        lab.refreshed(name, 1).await;
    }
    pass(900).await;
    let tasks = lab.tasks().await;
    assert_eq!(tasks[0].status.as_ref().unwrap().phase, TaskPhase::Complete);
    for update in lab.updates().await {
        let parts = update.spec.parts.unwrap();
        assert_eq!(parts[0].disruption, Disruption::Drain, "as its owner's annotation requests");
    }
    assert_eq!(lab.lock_holder().await, None, "the lock is for Canonical's prefix");
}

#[tokio::test(start_paused = true)]
async fn refits_prefix_upgrades_as_many_workers_as_may_be_down() {
    let lab = Lab::new().await;
    let owners: Api<MachineDeployment> = Api::default_namespaced(lab.site.client());
    let body = json!({"spec": {"rollout": {"strategy": {"rollingUpdate": {"maxUnavailable": 2}}}}});
    owners.patch("md", &PatchParams::default(), &Patch::Merge(&body)).await.unwrap();
    lab.annotate_owner("md", REFIT.upgrade_to, Some(CHANNEL)).await;
    let mut peak = 0;
    for _ in 0..1200 {
        let updates = lab.updates().await;
        let is_running = |update: &&NodeUpdate| {
            update.status.as_ref().is_some_and(|status| status.phase == Phase::Disrupting)
        };
        peak = peak.max(updates.iter().filter(is_running).count());
        pass(1).await;
    }
    assert_eq!(peak, 2);
    assert_eq!(lab.shown_by("md").await, [""; 0]);
    let owner = owners.get("md").await.unwrap();
    assert_eq!(owner.annotations()[REFIT.status], "done");
    assert_eq!(owner.annotations()[REFIT.release], CHANNEL);
}

in_both_modes! {
    row_26_row_27_row_33_row_34_workers_are_upgraded_one_at_a_time_in_the_order_of_their_uids,
    row_28_a_worker_that_is_being_deleted_is_waited_for,
    row_29_row_30_an_owner_without_a_request_or_under_deletion_is_left_alone,
    row_31_row_32_a_failure_is_shown_on_the_owner_and_its_end_resumes_the_sequence,
    row_35_a_worker_that_is_added_later_is_upgraded_as_well,
    row_36_row_54_machines_of_other_owners_are_untouched,
    row_37_a_machine_deployment_without_machine_sets_is_not_done,
    row_38_an_edited_option_lets_the_running_refresh_end_and_is_then_installed_everywhere,
    row_39_a_control_plane_waits_until_all_its_members_are_ready,
    row_40_row_41_row_42_row_46_members_of_a_control_plane_take_turns_by_a_lock,
    row_43_row_53_a_stale_lock_is_released,
    row_43_row_60_an_edited_option_releases_the_lock_only_after_the_refresh,
    row_47_a_request_that_is_removed_stops_the_sequence_and_releases_the_lock,
    row_52_a_machine_that_is_asked_by_others_is_waited_for,
    row_52_a_status_that_nothing_ends_holds_up_no_owner_but_in_strict_mode,
    a_request_that_is_removed_before_its_machine_begins_is_withdrawn,
    the_task_of_a_request_may_be_deleted_after_its_end,
    a_namespace_that_opts_in_later_is_served,
    row_44_a_lock_that_names_no_machine_stops_the_control_plane_and_is_reported,
    row_45_a_member_that_failed_keeps_the_lock,
    row_49_a_lock_that_another_client_holds_is_waited_for,
    row_50_a_machine_that_is_asked_starts_afresh,
    row_48_a_member_that_is_added_later_is_upgraded_once_the_control_plane_is_ready,
}
