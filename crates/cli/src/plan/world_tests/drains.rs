//! Forecasts of drains, compared with the drains.

use kube::Client;
use refit_kinds::refit::NodeUpdate;
use refit_predict::{DrainForecast, DrainOutcome};

use super::*;

fn nodes(world: &World) -> Vec<Value> {
    world.workload("default/edge-1").unwrap().list_values("", "nodes", None)
}

/// The node of the first worker.
fn node(world: &World) -> String {
    let nodes = nodes(world);
    let mut names = nodes.iter().filter_map(|node| node["metadata"]["name"].as_str());
    names.find(|name| name.starts_with("edge-1-md-0")).unwrap().to_owned()
}

fn workload(world: &World) -> Client {
    world.workload_client("default/edge-1", "plan-test").unwrap()
}

async fn create(world: &World, api_version: &str, kind: &str, name: &str, mut body: Value) {
    body["apiVersion"] = json!(api_version);
    body["kind"] = json!(kind);
    body["metadata"]["name"] = json!(name);
    body["metadata"]["namespace"] = json!("default");
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let gvk = kube::core::GroupVersionKind::gvk(group, version, kind);
    let resource = discovery::ApiResource::from_gvk(&gvk);
    let api: Api<DynamicObject> = Api::namespaced_with(workload(world), "default", &resource);
    api.create(&PostParams::default(), &serde_json::from_value(body).unwrap()).await.unwrap();
}

/// A ReplicaSet whose pods have this spec.
async fn replica_set(world: &World, name: &str, replicas: i64, spec: Value) {
    let mut pod = json!({"containers": [{"name": name, "image": "example.com/image:1"}]});
    for (key, value) in spec.as_object().unwrap() {
        pod[key] = value.clone();
    }
    let labels = json!({"app": name});
    let body = json!({"spec": {"replicas": replicas, "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": pod}}});
    create(world, "apps/v1", "ReplicaSet", name, body).await;
    world.pass(Duration::from_mins(2)).await;
    assert_eq!(running(world, name).len(), usize::try_from(replicas).unwrap(), "{name}");
}

async fn budget(world: &World, name: &str, max_unavailable: i64) {
    let body = json!({"spec": {"maxUnavailable": max_unavailable,
        "selector": {"matchLabels": {"app": name}}}});
    create(world, "policy/v1", "PodDisruptionBudget", name, body).await;
    world.pass(Duration::from_mins(1)).await;
}

fn on_node(node: &str) -> Value {
    json!({"nodeSelector": {"kubernetes.io/hostname": node}})
}

/// The pods with this label: their nodes, by uid; an empty name for a pod that is Pending.
fn pods(world: &World, app: &str) -> Vec<(String, String)> {
    let pods = world.workload("default/edge-1").unwrap().list_values("", "pods", Some("default"));
    let own = pods.iter().filter(|pod| pod["metadata"]["labels"]["app"] == app);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    own.map(|pod| (text(&pod["metadata"]["uid"]), text(&pod["spec"]["nodeName"]))).collect()
}

fn running(world: &World, app: &str) -> Vec<(String, String)> {
    pods(world, app).into_iter().filter(|(_, node)| !node.is_empty()).collect()
}

/// The plan for a patch of the workers, and the forecast for the first of them.
async fn forecast(world: &World) -> (GroupPrediction, DrainForecast) {
    let change = [version_of_workers(PATCH)];
    let input = gather(&mut reader(world), &Change::Objects(&change)).await.unwrap();
    let group = only(predict(&input).groups);
    assert_eq!(group.drains.len(), 3, "{group:#?}");
    let drain = group.drains.iter().find(|drain| drain.node == node(world)).unwrap().clone();
    (group, drain)
}

fn concerns(drain: &DrainForecast) -> Vec<&str> {
    drain.concerns.iter().map(|one| one.reason).collect()
}

fn blockers(group: &GroupPrediction) -> Vec<&str> {
    group.blocked_by.iter().map(|one| &*one.reason).collect()
}

/// Updates the workers, and counts how often a pod was seen Pending.
async fn update(world: &World, app: &str) -> usize {
    apply(world, &version_of_workers(PATCH)).await;
    let mut pending = 0;
    for _ in 0..360 {
        world.pass(Duration::from_secs(5)).await;
        pending += pods(world, app).iter().filter(|(_, node)| node.is_empty()).count();
    }
    pending
}

/// How many workers have the new version.
async fn updated(world: &World) -> usize {
    let facts = facts(world).await.unwrap();
    facts.iter().filter(|one| one.kubelet_version.to_string() == PATCH).count()
}

/// What the updates that are not finished wait for.
fn waits_for(world: &World) -> BTreeSet<String> {
    let updates = world.management().list_values("refit.dev", "nodeupdates", Some("default"));
    let updates = updates.iter().map(|update| NodeUpdate::deserialize(update).unwrap());
    let status = updates.filter_map(|update| update.status);
    status.flat_map(|status| status.blocked_by).map(|blocked| blocked.reason).collect()
}

fn is_cordoned(world: &World) -> bool {
    nodes(world).iter().any(|node| node["spec"]["unschedulable"] == true)
}

#[test]
fn drains_succeed_where_all_pods_fit_elsewhere() {
    in_world(async {
        let world = up();
        let (group, drain) = forecast(&world).await;
        assert!(group.drains.iter().all(|one| one.outcome == DrainOutcome::Succeeds), "{group:#?}");
        assert!(drain.pods > 0 && drain.concerns.is_empty(), "{drain:#?}");
        assert_eq!(update(&world, "web").await, 0);
        assert_eq!(updated(&world).await, 3);
    });
}

#[test]
fn pods_that_fit_nowhere_are_pending_until_their_node_is_back() {
    in_world(async {
        let world = up();
        replica_set(&world, "db", 1, on_node(&node(&world))).await;
        let (group, drain) = forecast(&world).await;
        assert_eq!(group.outcome, PredictedOutcome::InPlace, "{group:#?}");
        assert_eq!(drain.outcome, DrainOutcome::LeavesPending, "{drain:#?}");
        assert_eq!(concerns(&drain), ["PodFitsNowhere"]);
        let message = &drain.concerns[0].message;
        assert!(message.ends_with("0 of 5 other nodes: 5 node selector or affinity"), "{message}");
        assert!(update(&world, "db").await > 0);
        assert_eq!(updated(&world).await, 3);
        assert!(pods(&world, "db").iter().all(|(_, on)| *on == node(&world)));
    });
}

#[test]
fn pods_without_room_elsewhere_are_pending_until_their_node_is_back() {
    in_world(async {
        let world = up();
        let requests = json!({"containers": [{"name": "big", "image": "example.com/image:1",
            "resources": {"requests": {"cpu": "3"}}}]});
        replica_set(&world, "big", 3, requests.clone()).await;
        let (group, drain) = forecast(&world).await;
        assert!(group.drains.iter().all(|one| one.outcome == DrainOutcome::LeavesPending));
        assert!(drain.concerns[0].message.contains("2 insufficient cpu"), "{drain:#?}");
        assert!(update(&world, "big").await > 0);
        assert_eq!((updated(&world).await, running(&world, "big").len()), (3, 3));
        // With two of them, the one of a drained node fits on the third.
        let world = up();
        replica_set(&world, "big", 2, requests).await;
        let (group, _) = forecast(&world).await;
        assert!(group.drains.iter().all(|one| one.outcome == DrainOutcome::Succeeds), "{group:#?}");
        assert_eq!(update(&world, "big").await, 0);
        assert_eq!(updated(&world).await, 3);
    });
}

async fn bare(world: &World) {
    let body = json!({"metadata": {"labels": {"app": "bare"}},
        "spec": {"nodeName": node(world), "containers": [{"name": "c", "image": "example.com/image:1"}]}});
    create(world, "v1", "Pod", "bare", body).await;
    world.pass(Duration::from_mins(1)).await;
}

#[test]
fn a_bare_pod_holds_the_drain_or_is_lost_as_predicted() {
    in_world(async {
        let world = up();
        bare(&world).await;
        let (group, drain) = forecast(&world).await;
        assert_eq!(group.outcome, PredictedOutcome::Blocked);
        assert_eq!(blockers(&group), ["PodUnreplicated"]);
        assert_eq!(drain.outcome, DrainOutcome::Waits, "{drain:#?}");
        update(&world, "bare").await;
        assert!(updated(&world).await < 3);
        assert!(waits_for(&world).contains("PodUnreplicated"), "{:?}", waits_for(&world));
        assert_eq!(pods(&world, "bare").len(), 1);

        let world = up();
        bare(&world).await;
        let evict = json!({"refit.dev/drain-unreplicated": "Evict"});
        let mut owner = workers(&json!({}));
        owner["metadata"]["annotations"] = evict;
        apply(&world, &owner).await;
        let (group, drain) = forecast(&world).await;
        assert_eq!(group.outcome, PredictedOutcome::InPlace, "{group:#?}");
        assert_eq!((drain.outcome, concerns(&drain)), (DrainOutcome::LosesPods, vec!["PodLost"]));
        update(&world, "bare").await;
        assert_eq!((updated(&world).await, pods(&world, "bare").len()), (3, 0));
    });
}

#[test]
fn pods_with_an_empty_dir_lose_it_as_predicted() {
    in_world(async {
        let world = up();
        let volumes = json!({"volumes": [{"name": "cache", "emptyDir": {}}]});
        replica_set(&world, "cache", 3, volumes).await;
        let (group, drain) = forecast(&world).await;
        assert_eq!(concerns(&drain), ["LocalDataLost"], "{drain:#?}");
        assert!(blockers(&group).is_empty());
        let before: BTreeSet<String> =
            running(&world, "cache").into_iter().map(|one| one.0).collect();
        update(&world, "cache").await;
        let after: BTreeSet<String> =
            running(&world, "cache").into_iter().map(|one| one.0).collect();
        assert_eq!((updated(&world).await, after.len()), (3, 3));
        assert!(before.is_disjoint(&after));
    });
}

#[test]
fn a_budget_that_allows_nothing_holds_the_update_before_the_cordon() {
    in_world(async {
        let world = up();
        replica_set(&world, "one", 1, on_node(&node(&world))).await;
        budget(&world, "one", 0).await;
        let (group, drain) = forecast(&world).await;
        assert_eq!(blockers(&group), ["PodDisruptionBudget"], "{group:#?}");
        assert_eq!(drain.outcome, DrainOutcome::Waits);
        update(&world, "one").await;
        assert!(updated(&world).await < 3);
        assert!(waits_for(&world).contains("PodDisruptionBudget"), "{:?}", waits_for(&world));
        assert!(!is_cordoned(&world));
    });
}

#[test]
fn pods_that_use_up_their_budget_hold_the_drain_of_their_own_node() {
    in_world(async {
        let world = up();
        replica_set(&world, "pair", 2, on_node(&node(&world))).await;
        budget(&world, "pair", 1).await;
        let (group, drain) = forecast(&world).await;
        assert_eq!(blockers(&group), ["BudgetUsedUp"], "{group:#?}");
        assert_eq!(drain.outcome, DrainOutcome::Waits);
        assert!(update(&world, "pair").await > 0);
        assert!(updated(&world).await < 3);
        assert!(waits_for(&world).contains("PodDisruptionBudget"), "{:?}", waits_for(&world));
        assert!(is_cordoned(&world));
    });
}
