use super::*;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn good() -> MachineObservation {
    let part = |kind: &str, field| ObservedPart {
        kind: kind.to_owned(),
        exists: true,
        ready: true,
        field,
    };
    MachineObservation {
        infrastructure: part("DockerMachine", "status.initialization.provisioned"),
        bootstrap: Some(part("KubeadmConfig", "status.initialization.dataSecretCreated")),
        node: NodeState::Known(Some(("True".into(), "KubeletReady".into(), "fine".into()))),
        registered: true,
        updating: None,
        deleting: None,
        up_to_date: None,
        gates: Vec::new(),
        min_ready_seconds: 0,
    }
}

fn find(list: &[DesiredCondition], type_: &str) -> DesiredCondition {
    list.iter().find(|one| one.type_ == type_).cloned().unwrap()
}

fn computed(seen: &MachineObservation, type_: &str) -> DesiredCondition {
    find(&all(seen, &[], at(100)), type_)
}

fn stored(conditions_: &[(&str, &str, i64)]) -> Vec<Condition> {
    let mut list = Vec::new();
    for (type_, status, since) in conditions_ {
        conditions::set(&mut list, at(*since), None, (type_, status, "R", ""));
    }
    list
}

#[test]
fn a_machine_whose_parts_are_good_is_ready_and_available() {
    assert_eq!(computed(&good(), "Ready").status, Status::True);
    assert_eq!(computed(&good(), "Available").status, Status::True);
    assert_eq!(computed(&good(), "Updating").reason, "NotUpdating");
    assert_eq!(computed(&good(), "Deleting").reason, "NotDeleting");
}

#[test]
fn each_bad_part_is_named() {
    let mut seen = good();
    seen.infrastructure.ready = false;
    assert_eq!(
        computed(&seen, "Ready").message,
        "* InfrastructureReady: DockerMachine status.initialization.provisioned is false"
    );
    seen.infrastructure.exists = false;
    assert_eq!(computed(&seen, "InfrastructureReady").reason, "DoesNotExist");
    let mut seen = good();
    seen.node = NodeState::Known(Some(("False".into(), "R".into(), "kubelet stopped".into())));
    assert_eq!(computed(&seen, "NodeHealthy").reason, "NodeNotHealthy");
    assert_eq!(computed(&seen, "Ready").message, "* NodeHealthy:\n  * Node.Ready: kubelet stopped");
}

#[test]
fn an_update_makes_a_machine_unready_and_unavailable() {
    let mut seen = good();
    seen.updating =
        Some(("InPlaceUpdating".to_owned(), "In-place update in progress: draining".to_owned()));
    let ready = computed(&seen, "Ready");
    assert_eq!((ready.status, ready.reason.as_str()), (Status::False, "NotReady"));
    assert_eq!(ready.message, "* Updating: In-place update in progress: draining");
    let available = computed(&seen, "Available");
    assert_eq!((available.status, available.reason.as_str()), (Status::False, "NotReady"));
}

#[test]
fn a_node_that_has_not_registered_makes_readiness_unknown() {
    let mut seen = good();
    seen.node = NodeState::Awaited { provider_id: Some("sandbox://m".to_owned()) };
    let ready = computed(&seen, "Ready");
    assert_eq!((ready.status, ready.reason.as_str()), (Status::Unknown, "ReadyUnknown"));
    assert_eq!(
        ready.message,
        "* NodeHealthy: Waiting for a Node with spec.providerID sandbox://m to exist"
    );
    assert_eq!(computed(&seen, "Available").status, Status::False);
    seen.node = NodeState::Gone("m".to_owned());
    assert_eq!(computed(&seen, "NodeReady").reason, "NodeDeleted");
}

#[test]
fn an_unreachable_workload_cluster_keeps_node_conditions() {
    let mut seen = good();
    seen.node = NodeState::NotConnected;
    let existing = stored(&[("NodeReady", "True", 1), ("NodeHealthy", "True", 1)]);
    let list = all(&seen, &existing, at(100));
    assert!(list.iter().all(|one| one.type_ != "NodeHealthy"));
    assert_eq!(find(&list, "Ready").status, Status::True);
    assert_eq!(computed(&seen, "NodeHealthy").reason, "ConnectionDown");
}

#[test]
fn gates_and_health_checks_count() {
    let mut seen = good();
    seen.gates = vec!["EtcdPodHealthy".to_owned()];
    assert_eq!(computed(&seen, "Ready").message, "* EtcdPodHealthy: Condition not yet reported");
    let list = all(&seen, &stored(&[("EtcdPodHealthy", "True", 1)]), at(100));
    assert_eq!(find(&list, "Ready").status, Status::True);
    let list = all(&good(), &stored(&[("HealthCheckSucceeded", "False", 1)]), at(100));
    assert_eq!(find(&list, "Ready").message, "* HealthCheckSucceeded: R");
}

#[test]
fn a_machine_is_available_after_its_minimum_of_ready_seconds() {
    let mut seen = good();
    seen.min_ready_seconds = 30;
    let available =
        |existing: &[Condition], now: i64| find(&all(&seen, existing, at(now)), "Available").reason;
    assert_eq!(available(&[], 100), "WaitingForMinReadySeconds");
    let ready = stored(&[("Ready", "True", 100)]);
    assert_eq!(available(&ready, 110), "WaitingForMinReadySeconds");
    assert_eq!(available(&ready, 130), "Available");
    let rest = wait_for_available(30, &ready, at(110)).unwrap();
    assert_eq!(rest.as_secs(), 20);
    assert_eq!(wait_for_available(30, &ready, at(130)), None);
}

#[test]
fn a_deletion_makes_a_machine_unready() {
    let mut seen = good();
    seen.deleting = Some(("DrainingNode".to_owned(), "Drain not completed yet".to_owned()));
    assert_eq!(computed(&seen, "Ready").message, "* Deleting: Drain not completed yet");
}

#[test]
fn a_machine_without_bootstrap_config_brings_its_secret() {
    let mut seen = good();
    seen.bootstrap = None;
    assert_eq!(computed(&seen, "BootstrapConfigReady").reason, "DataSecretProvided");
    assert_eq!(computed(&seen, "Ready").status, Status::True);
}
