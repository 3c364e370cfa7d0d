use super::*;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).unwrap()
}

/// A step that started at second 0 in boot `b1`, and what is known about it later.
struct Case {
    command: Command,
    unit: UnitState,
    evidence: Option<Evidence>,
    boot_id: &'static str,
    waited: u64,
    now: i64,
}

impl Case {
    fn new(command: Command, unit: UnitState) -> Self {
        Self { command, unit, evidence: None, boot_id: "b1", waited: 0, now: 1 }
    }

    fn shows(mut self, evidence: Evidence) -> Self {
        self.evidence = Some(evidence);
        self
    }

    fn booted(mut self) -> Self {
        self.boot_id = "b2";
        self
    }

    fn after(mut self, waited: u64) -> Self {
        self.waited = waited;
        self
    }

    fn judged(&self) -> Verdict {
        let since = Since { at: at(0), boot_id: "b1".to_owned() };
        let job = Job::new("p", "u", "s", self.command.clone());
        judge(Known {
            job: &job,
            since: &since,
            boot_id: self.boot_id,
            unit: &self.unit,
            evidence: self.evidence.as_ref(),
            waited: Duration::from_secs(self.waited),
            now: at(self.now),
        })
    }

    fn reason(&self) -> &'static str {
        match self.judged() {
            Verdict::Fail(failure) => failure.reason,
            other => panic!("{other:?}"),
        }
    }
}

fn exited(code: i32) -> UnitState {
    UnitState::Exited { code, output_tail: "tail".to_owned() }
}

fn missing() -> Evidence {
    Evidence::Missing { what: "it does not exist".to_owned() }
}

fn refused() -> Evidence {
    Evidence::Refused {
        kind: FailureKind::NeedsPerson,
        reason: "NoEtcdctl",
        what: "cannot save etcd".to_owned(),
    }
}

const ONCE: [Command; 2] =
    [Command::Step(HostStep::KubeletRestart {}), Command::Step(HostStep::Reboot {})];

#[test]
fn a_running_unit_is_waited_for() {
    let case = Case::new(Command::Step(HostStep::Snapshot {}), UnitState::Running);
    assert_eq!(case.judged(), Verdict::Wait);
}

#[test]
fn an_unknown_unit_restarts_if_idempotent_or_not_done() {
    let idempotent = Case::new(Command::Step(HostStep::Snapshot {}), UnitState::Unknown);
    assert_eq!(idempotent.judged(), Verdict::StartUnit);
    for command in ONCE {
        let unknown = || Case::new(command.clone(), UnitState::Unknown);
        assert_eq!(unknown().judged(), Verdict::Look);
        assert_eq!(unknown().shows(missing()).judged(), Verdict::StartUnit);
        assert_eq!(unknown().shows(Evidence::Done).judged(), Verdict::Done);
    }
}

#[test]
fn a_step_that_a_boot_interrupted_counts_as_an_attempt() {
    for command in
        [Command::Step(HostStep::Snapshot {}), Command::Step(HostStep::KubeletRestart {})]
    {
        let unknown = || Case::new(command.clone(), UnitState::Unknown).booted();
        assert_eq!(unknown().judged(), Verdict::Look);
        assert_eq!(unknown().shows(Evidence::Done).judged(), Verdict::Done);
        assert_eq!(unknown().shows(missing()).reason(), "Interrupted");
        assert_eq!(unknown().shows(refused()).reason(), "NoEtcdctl");
    }
    let reboot = Case::new(Command::Step(HostStep::Reboot {}), UnitState::Unknown).booted();
    assert_eq!(reboot.shows(Evidence::Done).judged(), Verdict::Done);
}

#[test]
fn exit_code_0_counts_only_after_an_inspection() {
    let good = || Case::new(Command::Step(HostStep::KubeletRestart {}), exited(0));
    assert_eq!(good().judged(), Verdict::Look);
    assert_eq!(good().shows(Evidence::Done).judged(), Verdict::Done);
    assert_eq!(good().shows(missing()).reason(), "NotVerified");
    assert_eq!(good().shows(refused()).reason(), "NoEtcdctl");
}

#[test]
fn a_bad_exit_code_fails_the_step_with_the_output() {
    let case = Case::new(Command::Step(HostStep::Snapshot {}), exited(100));
    let Verdict::Fail(failure) = case.judged() else {
        panic!("{:?}", case.judged());
    };
    assert_eq!(failure.reason, "CommandFailed");
    assert!(failure.message.contains("exit code 100") && failure.message.contains("tail"));
}

#[test]
fn a_failed_non_idempotent_step_is_inspected_first() {
    let bad = || Case::new(Command::Step(HostStep::KubeletRestart {}), exited(1));
    assert_eq!(bad().judged(), Verdict::Look);
    assert_eq!(bad().shows(Evidence::Done).judged(), Verdict::Done);
    assert_eq!(bad().shows(missing()).reason(), "CommandFailed");
}

#[test]
fn a_reboot_is_awaited_up_to_a_monotonic_timeout() {
    let reboot = || Case::new(Command::Step(HostStep::Reboot {}), exited(0)).shows(missing());
    for now in [-86_400, 1, 86_400] {
        let mut case = reboot().after(60);
        case.now = now;
        assert_eq!(case.judged(), Verdict::Wait, "at {now}");
    }
    assert_eq!(reboot().after(900).reason(), "NotVerified");
}

#[test]
fn a_reboot_killed_by_the_shutdown_is_judged_by_the_boot() {
    let killed = || Case::new(Command::Step(HostStep::Reboot {}), exited(15));
    assert_eq!(killed().judged(), Verdict::Look);
    assert_eq!(killed().shows(Evidence::Done).judged(), Verdict::Done);
    assert_eq!(killed().shows(missing()).after(59).judged(), Verdict::Wait);
    assert_eq!(killed().shows(missing()).after(60).reason(), "CommandFailed");
}
