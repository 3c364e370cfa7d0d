//! A change of a KubeadmConfig on its host: the plan has the values that its goal was made of, or there is no plan.

use std::sync::Arc;

use refit_kinds::refit::{
    CONFIGURATION, ConfigurationPart, Disruption, Goal, GoalPart, HostPart, StepType, UpdatePart,
};
use serde_json::{Value, json};
use strum::VariantArray as _;

use super::world::*;
use crate::{
    change::hash_of_configuration,
    node::{ConfigurationValues, Write, awaits_configuration, decide, requires_live_configuration},
};

fn spec(content: &str) -> Value {
    json!({"files": [{"path": "/etc/a", "content": content}]})
}

/// A machine whose file `/etc/a` is to get this content.
fn one(content: &str) -> One {
    let mut one = One::worker();
    let goal =
        GoalPart { updater: CONFIGURATION.to_owned(), hash: hash_of_configuration(&spec(content)) };
    one.update.spec.goal = Goal { parts: vec![goal], ..Goal::default() };
    let part = ConfigurationPart { files: vec!["/etc/a".into()], ..ConfigurationPart::default() };
    one.update.spec.parts = Some(vec![UpdatePart {
        updater: CONFIGURATION.to_owned(),
        host: Some(HostPart::Configuration(part)),
        disruption: Disruption::None,
        ..UpdatePart::kubeadm()
    }]);
    let status = one.plan.as_mut().unwrap().status.as_mut().unwrap();
    status.capabilities = StepType::VARIANTS.to_vec();
    one
}

/// Decides until the next write is the plan; returns whether its values must be read first.
fn must_be_read(one: &mut One) -> bool {
    for _ in 0..10 {
        let snapshot = one.snapshot(None);
        let decision = decide(&snapshot, at(one.now));
        if matches!(decision.write, Some(Write::HostPlan(_))) {
            return requires_live_configuration(&snapshot, &decision);
        }
        assert!(one.step(), "there is no plan: {:?}", one.blocked_by());
    }
    panic!("there is no plan");
}

#[test]
fn a_plan_is_made_of_a_kubeadm_config_that_was_read() {
    let mut one = one("x");
    assert!(must_be_read(&mut one));
    one.configuration = ConfigurationValues::Read(Some(Arc::new(spec("x"))));
    assert!(!must_be_read(&mut one));
    one.settle();
    assert!(!awaits_configuration(&one.status()));
    let steps = json!(one.plan.unwrap().spec.steps);
    assert!(steps.to_string().contains(r#""content":"x""#), "{steps}");
}

#[test]
fn an_update_waits_as_long_as_its_kubeadm_config_has_other_values() {
    for (read, why) in [
        (None, "it does not exist"),
        (Some(json!({})), "it has no file /etc/a"),
        (Some(spec("y")), "it has other values"),
    ] {
        let mut one = one("x");
        assert!(must_be_read(&mut one));
        one.configuration = ConfigurationValues::Read(read.map(Arc::new));
        one.settle();
        assert_eq!(one.blocked_by(), ["ConfigurationChanged"]);
        assert!(one.status().message.contains(why), "{}", one.status().message);
        assert!(awaits_configuration(&one.status()), "what it waits for is read before a decision");
        // Nothing is written while nothing changes.
        one.log.clear();
        one.settle();
        assert_eq!(one.log, [""; 0]);
        one.configuration = ConfigurationValues::Read(Some(Arc::new(spec("x"))));
        one.settle();
        assert_eq!(one.blocked_by(), [""; 0]);
    }
}
