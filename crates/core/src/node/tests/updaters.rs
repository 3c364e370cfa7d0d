//! Updates in which Updaters work, alone or with the host.

use refit_kinds::{
    keys,
    refit::{
        Disruption, Goal, GoalOption, HostPart, OsImageArgs, PartState, Phase, Stage, StepState,
        StepType, Until, UpdatePart, UpdaterAction,
    },
};

use super::world::*;
use crate::node::Called;

fn part(updater: &str, disruption: Disruption) -> UpdatePart {
    UpdatePart {
        updater: updater.into(),
        action: UpdaterAction::Update,
        disruption,
        timeout_seconds: Some(600),
        host: None,
        template: None,
    }
}

fn with(mut one: One, parts: &[UpdatePart]) -> One {
    one.update.spec.parts = Some(parts.to_vec());
    one
}

/// An update in which no agent takes part: none has ever reported.
fn alone(parts: &[UpdatePart]) -> One {
    let mut one = with(One::worker(), parts);
    one.plan = None;
    one.node_mut().kubelet_version = GOAL.into();
    one
}

fn acts(one: &One) -> Vec<&str> {
    one.log.iter().map(String::as_str).filter(|word| *word != "status").collect()
}

/// Lets time pass until nothing happens any more.
fn run(one: &mut One, seconds: i64) {
    let end = one.now + seconds;
    while one.now < end {
        one.settle();
        one.now += 1;
    }
}

#[test]
fn an_update_that_disturbs_nothing_takes_no_slot() {
    let mut one = alone(&[part("labels", Disruption::None)]);
    one.settle();
    assert_eq!(one.phase(), Phase::Succeeded);
    let expected = [
        "condition Waiting",
        "ask labels",
        "enter",
        "condition ExternalUpgradeInProgress",
        "begin labels",
        "call labels",
        "condition UpToDate",
        "release",
    ];
    assert_eq!(acts(&one), expected);
    assert_eq!(one.status().parts[0].state, PartState::Unverified);
}

#[test]
fn a_restart_takes_a_slot_and_leaves_the_pods() {
    let mut one = alone(&[part("flags", Disruption::Restart)]);
    one.settle();
    assert_eq!(one.phase(), Phase::Succeeded);
    assert_eq!(
        acts(&one),
        [
            "condition Waiting",
            "ask flags",
            "claim",
            "guard",
            "condition ExternalUpgradeInProgress",
            "begin flags",
            "call flags",
            "unguard",
            "condition UpToDate",
            "release",
        ]
    );
    assert_eq!(one.pods.len(), 1);
}

#[test]
fn a_machine_keeps_its_pods_while_its_updater_cannot_be_called() {
    let on_host = with(One::worker(), &[UpdatePart::kubeadm(), part("memory", Disruption::Drain)]);
    for mut one in [alone(&[part("memory", Disruption::Drain)]), on_host.staged()] {
        one.callable = Err("no answer from https://memory".into());
        run(&mut one, 60);
        assert_eq!(one.phase(), Phase::Waiting);
        assert_eq!(one.blocked_by(), ["UpdaterFails"]);
        assert_eq!(one.slots(), 0);
        let log = acts(&one);
        let asked = log.iter().filter(|word| **word == "ask memory").count();
        assert!((4..=5).contains(&asked), "{log:?}");
        assert!(!log.iter().any(|word| ["claim", "cordon", "evict"].contains(word)), "{log:?}");
        one.callable = Ok(());
        run(&mut one, 120);
        assert!(one.slots() == 1 || one.phase() == Phase::Succeeded, "{:?}", acts(&one));
    }
}

#[test]
fn an_answer_from_long_ago_is_not_relied_on() {
    let mut one = alone(&[part("memory", Disruption::Drain)]);
    while !acts(&one).contains(&"ask memory") {
        let decision = one.decide();
        one.apply(&decision, decision.write.clone().unwrap());
    }
    one.others[0].available = false;
    run(&mut one, 300);
    one.others[0].available = true;
    one.callable = Err("no answer".into());
    run(&mut one, 60);
    assert_eq!(one.slots(), 0, "{:?}", acts(&one));
    assert_eq!(one.blocked_by(), ["UpdaterFails"]);
}

#[test]
fn a_goal_that_no_updater_takes_fails_before_anything_is_disturbed() {
    for parts in [vec![], vec![UpdatePart::kubeadm()]] {
        let mut one = with(One::worker(), &parts);
        one.update.spec.goal = Goal {
            option: Some(GoalOption::Channel("1.35-classic/stable".into())),
            ..Goal::default()
        };
        one.settle();
        assert_eq!(one.phase(), Phase::Failed);
        assert_eq!(one.status().failure_reason, "OptionNotSupported");
        assert!(one.status().failure_message.contains("channel=1.35-classic/stable"));
    }
}

#[test]
fn one_drain_serves_all_updaters_which_work_in_their_order() {
    let parts = [
        part("memory", Disruption::Drain),
        part("labels", Disruption::None),
        part("firmware", Disruption::Reboot),
    ];
    let mut one = alone(&parts);
    one.settle();
    assert_eq!(one.phase(), Phase::Succeeded);
    let order = |word: &&&str| {
        ["claim", "cordon", "evict", "uncordon", "release"].contains(word)
            || word.starts_with("call")
    };
    let log = acts(&one);
    let order: Vec<&&str> = log.iter().filter(order).collect();
    assert_eq!(
        order,
        [
            &"call labels",
            &"claim",
            &"cordon",
            &"evict",
            &"call memory",
            &"call firmware",
            &"uncordon",
            &"release",
        ]
    );
    assert_eq!(one.slots(), 0);
    assert!(one.status().steps.iter().all(|step| step.state == StepState::Done));
}

#[test]
fn updaters_and_the_host_share_slot_and_drain() {
    let parts = [
        UpdatePart::kubeadm(),
        part("labels", Disruption::None),
        part("memory", Disruption::Drain),
    ];
    let mut one = with(One::worker(), &parts).upgraded();
    one.settle();
    one.host_works();
    one.kubelet_returns();
    one.settle();
    assert_eq!(one.phase(), Phase::Succeeded);
    let order =
        |word: &&&str| word.starts_with("gate") || word.starts_with("call") || **word == "cordon";
    let log = acts(&one);
    let order: Vec<&&str> = log.iter().filter(order).collect();
    assert_eq!(
        order,
        [
            &"gate Stage",
            &"gate Upgrade",
            &"call labels",
            &"cordon",
            &"gate Disrupt",
            &"call memory",
        ]
    );
    assert_eq!(
        one.status().message,
        "the machine runs v1.35.0; nothing verifies what labels, memory has done"
    );
}

#[test]
fn an_update_with_nothing_to_do_succeeds_at_once() {
    let mut leave = part("image", Disruption::None);
    leave.action = UpdaterAction::Leave;
    for parts in [vec![], vec![leave]] {
        let mut one = alone(&parts);
        one.settle();
        assert_eq!(one.phase(), Phase::Succeeded);
        let left = one.status().parts.iter().filter(|part| part.state == PartState::Left).count();
        assert_eq!(left, parts.len());
        let annotations = one.annotations();
        let noted = annotations.get(keys::LEFT).map(String::as_str);
        assert_eq!(noted, parts.first().map(|_| "image"));
        assert_eq!(acts(&one).last(), Some(&"condition UpToDate"));
        assert!(!acts(&one).contains(&"claim"));
    }
}

#[test]
fn an_updater_that_makes_a_change_is_no_longer_shown_as_left() {
    let mut one = alone(&[part("image", Disruption::None)]);
    let annotations = one.machine.as_mut().unwrap().metadata.annotations.get_or_insert_default();
    annotations.insert(keys::LEFT.to_owned(), "disk,image".into());
    one.settle();
    assert_eq!(one.annotations().get(keys::LEFT).map(String::as_str), Some("disk"));
}

#[test]
fn a_call_that_fails_is_shown_and_tried_again_more_and_more_slowly() {
    let mut one = alone(&[part("memory", Disruption::None)]);
    one.answer = Called::Failed { message: "no answer from https://x\nat all".into() };
    run(&mut one, 60);
    assert_eq!(one.phase(), Phase::Upgrading);
    assert_eq!(one.blocked_by(), ["UpdaterFails"]);
    assert_eq!(
        one.status().message,
        "Updater memory fails and is tried again: no answer from https://x at all"
    );
    assert!(one.status().retriable);
    let calls = acts(&one).iter().filter(|word| word.starts_with("call")).count();
    assert_eq!(calls, 4, "after 0, 5, 15 and 35 s");
    one.answer = Called::Done;
    run(&mut one, 60);
    assert_eq!(one.phase(), Phase::Succeeded);
}

#[test]
fn an_updater_that_does_not_finish_in_time_fails_the_update_by_name() {
    let mut one = alone(&[part("memory", Disruption::Drain)]);
    one.answer = Called::Again { message: "adding memory".into(), seconds: 30 };
    run(&mut one, 300);
    assert_eq!(one.status().message, "updater memory: adding memory");
    run(&mut one, 400);
    assert_eq!(one.phase(), Phase::Failed);
    let status = one.status();
    assert_eq!(status.failure_reason, "UpdaterTimedOut");
    assert_eq!(
        status.failure_message,
        "Updater memory has not finished within 600 s: adding memory"
    );
    // The machine is as the Updater left it: drained.
    assert!(one.node().unwrap().unschedulable);
}

#[test]
fn the_objects_must_show_what_an_updater_reports() {
    let mut one = alone(&[part("memory", Disruption::None)]);
    one.shows = Some(Err("machine.ready is false".into()));
    run(&mut one, 60);
    assert_eq!(one.blocked_by(), ["UpdaterNotVerified"]);
    let mut late = one.clone();
    run(&mut late, 700);
    assert_eq!(
        (late.phase(), late.status().failure_reason.as_str()),
        (Phase::Failed, "UpdaterNotVerified")
    );
    let calls = |one: &One| acts(one).iter().filter(|word| word.starts_with("call")).count();
    let before = calls(&one);
    one.shows = Some(Ok(()));
    run(&mut one, 60);
    assert_eq!((one.phase(), one.status().parts[0].state), (Phase::Succeeded, PartState::Done));
    assert_eq!(calls(&one), before + 1, "it is not called again, only its objects are read");
}

#[test]
fn an_abort_before_the_first_call_returns_everything() {
    let mut one = alone(&[part("memory", Disruption::Drain)]);
    while !acts(&one).contains(&"cordon") {
        assert!(one.step());
    }
    assert_eq!(one.phase(), Phase::Draining);
    one.update.spec.stage = Stage::Abort;
    one.settle();
    assert_eq!(one.phase(), Phase::Stopped);
    assert!(!one.node().unwrap().unschedulable);
    assert_eq!(one.slots(), 0);
    assert!(!acts(&one).contains(&"call memory"));
}

#[test]
fn an_abort_after_the_first_call_comes_too_late() {
    for disruption in [Disruption::None, Disruption::Drain] {
        let mut one = alone(&[part("memory", disruption)]);
        one.answer = Called::Again { message: String::new(), seconds: 30 };
        run(&mut one, 20);
        one.update.spec.stage = Stage::Abort;
        run(&mut one, 20);
        assert!(
            one.status().message.ends_with("(too late to abort: the update runs to completion)")
        );
        one.answer = Called::Done;
        run(&mut one, 60);
        assert_eq!(one.phase(), Phase::Succeeded, "{disruption:?}");
    }
}

#[test]
fn spec_until_holds_updaters_back() {
    let parts = [part("labels", Disruption::None), part("memory", Disruption::Drain)];
    let mut one = alone(&parts);
    one.update.spec.until = Until::Stage;
    one.settle();
    assert_eq!((one.phase(), one.blocked_by()), (Phase::Waiting, vec!["UntilReached".to_owned()]));
    one.update.spec.until = Until::Upgrade;
    one.settle();
    assert_eq!((one.slots(), one.blocked_by()), (0, vec!["UntilReached".to_owned()]));
    assert!(acts(&one).contains(&"call labels") && !acts(&one).contains(&"cordon"));
    one.update.spec.until = Until::Disrupt;
    one.settle();
    assert_eq!(one.phase(), Phase::Succeeded);
}

#[test]
fn a_machine_that_must_not_be_disturbed_gives_its_slot_back() {
    let mut one = alone(&[part("memory", Disruption::Drain)]);
    while one.slots() == 0 {
        assert!(one.step());
    }
    one.others[0].available = false;
    one.settle();
    assert_eq!((one.phase(), one.slots()), (Phase::Waiting, 0));
    assert_eq!(one.blocked_by(), ["GroupUnavailable"]);
    one.others[0].available = true;
    one.settle();
    assert_eq!(one.phase(), Phase::Succeeded);
}

#[test]
fn a_silent_agent_fails_no_update_that_waits_for_an_updater() {
    let mut one = with(One::worker(), &[UpdatePart::kubeadm(), part("memory", Disruption::Drain)]);
    one.host_lost_after = Some(jiff::SignedDuration::from_mins(5));
    one.answer = Called::Again { message: String::new(), seconds: 30 };
    let mut one = one.disrupted();
    run(&mut one, 500);
    assert_eq!(one.phase(), Phase::Disrupting, "{}", one.status().message);
}

/// An Updater whose part is made by the agent.
fn image() -> UpdatePart {
    let os_image = OsImageArgs {
        name: "os-2".into(),
        url: "https://images/os-2.cosi".into(),
        sha384: "ab".repeat(48),
        ..OsImageArgs::default()
    };
    UpdatePart { host: Some(HostPart::OsImage(os_image)), ..part("image", Disruption::Reboot) }
}

fn with_image_steps(mut one: One) -> One {
    let status = one.plan.as_mut().unwrap().status.as_mut().unwrap();
    let more = [StepType::OsImageStage, StepType::OsImageFinalize, StepType::OsImageCommit];
    status.capabilities.extend(more);
    one
}

#[test]
fn an_os_image_of_an_updater_is_installed_by_the_agent_with_the_version() {
    let one = with(One::worker(), &[UpdatePart::kubeadm(), image()]);
    let mut one = with_image_steps(one).disrupted();
    let plan = &one.plan.as_ref().unwrap().spec;
    assert!(plan.steps.iter().any(|step| step.id == "os-image-finalize"), "{plan:#?}");
    one.plan.as_mut().unwrap().status.as_mut().unwrap().facts.os_image = "os-2".into();
    one.settle();
    assert_eq!(one.phase(), Phase::Succeeded, "{}", one.status().message);
    assert_eq!(one.status().parts[0].state, PartState::Done);
    assert!(!acts(&one).iter().any(|word| word.starts_with("call")));
}

#[test]
fn two_sources_of_an_os_image_are_refused() {
    let mut one = with_image_steps(with(One::worker(), &[UpdatePart::kubeadm(), image()]));
    one.settings.os_image = Some(OsImageArgs { name: "os-3".into(), ..OsImageArgs::default() });
    one.settle();
    assert_eq!(
        (one.phase(), one.blocked_by()),
        (Phase::Pending, vec!["OsImageConflict".to_owned()])
    );
}
