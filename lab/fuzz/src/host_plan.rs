use std::collections::BTreeMap;

use refit_kinds::{
    keys,
    refit::{HostPlan, PlannedAction},
};
use refit_runtime::plan_signing::{Claims, PlanKeys, PlanSigner, claims_of};

/// A private key of these tests, as `openssl genpkey` encodes it.
const KEY: &str = "-----BEGIN PRIVATE KEY-----\n\
    MC4CAQAwBQYDK2VwBCIEIAEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEB\n\
    -----END PRIVATE KEY-----\n";

/// Its public half.
const PUBLIC_KEY: &str = "-----BEGIN PUBLIC KEY-----\n\
    MCowBQYDK2VwAyEAiojj3XQJ8ZX9UtstPLpdcspnCb8dlBIb83SIAbQPb1w=\n\
    -----END PUBLIC KEY-----\n";

/// Parses a HostPlan as the agent does, and verifies its signature.
pub fn host_plan(input: &[u8]) {
    let Ok(plan) = serde_json::from_slice::<HostPlan>(input) else {
        return;
    };
    let _ = claims_of(&plan);
    for step in &plan.spec.steps {
        if let PlannedAction::Unknown(unknown) = &step.action {
            assert!(!unknown.error().to_string().is_empty());
        }
    }
    assert_eq!(reread(&plan), plan, "printing and parsing change the plan");
    let signer = PlanSigner::from_pem(KEY).expect("a valid key");
    let claims = Claims {
        goal_hash: "9c1d".to_owned(),
        issued_at: "2026-01-01T00:00:00Z".parse().expect("a timestamp"),
    };
    let mut signed = plan;
    let signature = signer.sign(&signed, &signed.spec, &claims);
    let annotations = signed.metadata.annotations.get_or_insert_with(BTreeMap::new);
    annotations.insert(keys::PLAN_SIGNATURE.to_owned(), signature);
    let keys = PlanKeys::from_pem(PUBLIC_KEY).expect("a valid key");
    assert!(keys.verify(&reread(&signed)).is_ok(), "the agent distrusts what was signed");
}

fn reread(plan: &HostPlan) -> HostPlan {
    let text = serde_json::to_vec(plan).expect("a plan can be printed");
    serde_json::from_slice(&text).expect("a printed plan can be parsed")
}
