use refit_kinds::{
    keys,
    refit::{Gate, HostStep, PlanState, PlannedStep},
};
use refit_runtime::plan_signing::{Claims, PlanSigner};

use tempfile::TempDir;

use super::*;
use crate::{disk::RealDisk, state::Record};

// A key whose 32 bytes are all 1. It is only used here.
const PRIVATE: &str = "MC4CAQAwBQYDK2VwBCIEIAEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEB";
const PUBLIC: &str = "MCowBQYDK2VwAyEAiojj3XQJ8ZX9UtstPLpdcspnCb8dlBIb83SIAbQPb1w=";

fn pem(label: &str, text: &str) -> String {
    format!("-----BEGIN {label}-----\n{text}\n-----END {label}-----\n")
}

fn disk(directory: &TempDir) -> Arc<dyn Disk> {
    Arc::new(RealDisk::open(directory.path()).unwrap())
}

fn trust(disk: &Arc<dyn Disk>) -> PlanTrust {
    let keys = PlanKeys::from_pem(&pem("PUBLIC KEY", PUBLIC)).unwrap();
    PlanTrust::new(keys, disk.clone())
}

/// A plan of a NodeUpdate that was created at second `made`.
fn plan(id: &str, made: i64) -> HostPlan {
    let spec = HostPlanSpec {
        plan_id: id.into(),
        gate: Gate::Stage,
        steps: vec![PlannedStep {
            id: "stage".to_owned(),
            ..PlannedStep::new(HostStep::Preflight { version: None })
        }],
        ..HostPlanSpec::default()
    };
    let mut plan = HostPlan::new("n1", spec);
    plan.metadata.uid = Some("u".to_owned());
    let signer = PlanSigner::from_pem(&pem("PRIVATE KEY", PRIVATE)).unwrap();
    let claims =
        Claims { goal_hash: "g".to_owned(), issued_at: Timestamp::from_second(made).unwrap() };
    let value = signer.sign(&plan, &plan.spec, &claims);
    plan.metadata.annotations = Some([(keys::PLAN_SIGNATURE.to_owned(), value)].into());
    plan
}

fn accepted(id: &str) -> Record {
    let plan = plan(id, 0);
    Record::PlanAccepted {
        plan: id.into(),
        node_update: String::new(),
        steps: plan.spec.steps,
        point_of_no_return: String::new(),
        packages: std::collections::BTreeMap::new(),
        static_pods: std::collections::BTreeMap::new(),
        at: Timestamp::UNIX_EPOCH,
    }
}

fn why(outcome: Result<(), TrustError>) -> Option<String> {
    outcome.err().map(|error| error.to_string())
}

#[tokio::test(start_paused = true)]
async fn an_older_plan_is_not_trusted_even_if_signed() {
    let directory = tempfile::tempdir().unwrap();
    let disk = disk(&directory);
    assert_eq!(why(trust(&disk).believe(&plan("a", 100)).await), None);
    assert_eq!(why(trust(&disk).believe(&plan("b", 200)).await), None);
    // Another process with the same disk.
    let refused = why(trust(&disk).believe(&plan("a", 100)).await).unwrap();
    assert!(refused.contains("already accepted"), "{refused}");
    assert_eq!(why(trust(&disk).believe(&plan("b", 200)).await), None);
}

#[tokio::test(start_paused = true)]
async fn an_unsigned_or_changed_plan_is_ignored() {
    let directory = tempfile::tempdir().unwrap();
    let disk = disk(&directory);
    let mut changed = plan("a", 100);
    changed.spec.gate = Gate::Disrupt;
    let refused = why(trust(&disk).believe(&changed).await).unwrap();
    assert!(refused.contains("does not match"), "{refused}");
    changed.metadata.annotations = None;
    let refused = why(trust(&disk).believe(&changed).await).unwrap();
    assert!(refused.contains("not signed"), "{refused}");
    assert_eq!(disk.read(MARK).await.unwrap(), None);
}

#[test]
fn a_report_names_why_a_plan_waits_and_keeps_ended_plans() {
    let facts = refit_kinds::refit::HostFacts::default();
    let error = TrustError::Distrust(Distrust::Unsigned);
    let refused = Refused::new(plan("a", 0).spec, &error);

    let waits = refused.report(&JournalState::default(), &facts);
    assert_eq!((&*waits.plan_id, waits.state), ("a", PlanState::Retrying));
    assert_eq!(waits.steps[0].reason, "PlanNotTrusted");
    assert!(waits.steps[0].message.contains("--plan-keys"));

    let over = |id: &str| {
        let ended = Record::PlanEnded {
            plan: id.into(),
            state: PlanState::Succeeded,
            at: Timestamp::UNIX_EPOCH,
        };
        JournalState::replay([&accepted(id), &ended])
    };
    let same = refused.report(&over("a"), &facts);
    assert_eq!((&*same.plan_id, same.state), ("a", PlanState::Succeeded));
    let next = refused.report(&over("z"), &facts);
    assert_eq!((&*next.plan_id, next.state), ("a", PlanState::Retrying));

    let live = JournalState::replay([&accepted("z")]);
    let live = refused.report(&live, &facts);
    assert_eq!(live.plan_id, "z");
    assert_eq!(live.steps[0].reason, "PlanNotTrusted");
}
