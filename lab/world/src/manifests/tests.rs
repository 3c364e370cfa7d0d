use super::*;

const GOOD: &str = include_str!("../../../../examples/cluster.yaml");

fn problems(text: &str) -> Vec<String> {
    match parse([("f.yaml", text.as_bytes())]) {
        Ok(_) => Vec::new(),
        Err(LoadError::Invalid(problems)) => problems.iter().map(ToString::to_string).collect(),
        Err(error) => panic!("{error}"),
    }
}

#[track_caller]
fn refused(from: &str, to: &str, want: &str) {
    assert!(GOOD.contains(from), "the example no longer has {from:?}");
    let found = problems(&GOOD.replacen(from, to, 1));
    assert!(found.iter().any(|p| p.contains(want)), "no {want:?} in {found:#?}");
}

#[test]
fn the_example_is_accepted() {
    assert_eq!(problems(GOOD), Vec::<String>::new());
}

#[test]
fn a_wrong_type_in_a_field_that_is_read_is_refused() {
    refused(
        "  replicas: 3\n",
        "  replicas: three\n",
        "spec.replicas: got \"three\", want an integer",
    );
    refused("  replicas: 5\n", "  replicas: [5]\n", "spec.replicas: got [5], want an integer");
}

#[test]
fn a_problem_names_the_line_of_its_field() {
    let text = GOOD.replacen("  replicas: 5\n", "  replicas: many\n", 1);
    let line = text.lines().position(|l| l == "  replicas: many").unwrap() + 1;
    assert!(problems(&text)[0].starts_with(&format!("f.yaml:{line}: MachineDeployment/")));
}

#[test]
fn an_invalid_version_is_refused() {
    refused(
        "version: v1.34.2",
        "version: 1.34.2",
        "spec.version: got \"1.34.2\", want a version vX.Y.Z",
    );
    refused("version: v1.34.2", "version: v1.34", "got \"v1.34\", want a version vX.Y.Z");
}

#[test]
fn a_dangling_reference_is_refused() {
    refused(
        "    kind: KubeadmControlPlane\n    name: edge-1",
        "    kind: KubeadmControlPlane\n    name: edge-2",
        "spec.controlPlaneRef: got KubeadmControlPlane/edge-2",
    );
}

#[test]
fn old_api_versions_are_refused_with_the_way_to_convert() {
    refused(
        "apiVersion: controlplane.cluster.x-k8s.io/v1beta2",
        "apiVersion: controlplane.cluster.x-k8s.io/v1beta1",
        "kubectl get kubeadmcontrolplanes.v1beta2.controlplane.cluster.x-k8s.io",
    );
}

#[test]
fn a_cluster_class_topology_is_refused_with_the_reason() {
    refused(
        "  clusterNetwork:",
        "  topology: {version: v1.34.2}\n  clusterNetwork:",
        "no topology controller",
    );
}

#[test]
fn a_surge_that_cluster_api_refuses_is_refused() {
    refused(
        "        maxSurge: 0\n",
        "        maxSurge: 2\n",
        "rollingUpdate.maxSurge: got 2, want 0 or 1",
    );
    refused("  replicas: 3\n", "  replicas: 1\n", "with fewer than 3 replicas Cluster API rejects");
}

#[test]
fn all_problems_are_reported_at_once() {
    let text =
        GOOD.replacen("replicas: 3", "replicas: x", 1).replacen("replicas: 5", "replicas: y", 1);
    assert_eq!(problems(&text).len(), 2);
}

#[test]
fn manifests_without_a_cluster_are_refused() {
    assert!(
        problems("apiVersion: v1\nkind: Secret\nmetadata: {name: a}\n")[0]
            .contains("got no Cluster")
    );
    assert!(problems("")[0].contains("got no Cluster"));
}

#[test]
fn add_on_objects_are_kept_and_not_acted_on() {
    let text = format!("{GOOD}\n---\napiVersion: v1\nkind: Secret\nmetadata: {{name: extra}}\n");
    let manifests = parse([("f.yaml", text.as_bytes())]).unwrap();
    let kept: Vec<_> =
        manifests.iter().filter(|m| !is_acted_on(&m.object)).map(Manifest::title).collect();
    assert_eq!(kept, ["Secret/extra"]);
}

#[test]
fn forbidding_surge_sets_both_strategies() {
    let manifests =
        parse([("f.yaml", GOOD.replace("maxSurge: 0", "maxSurge: 1").as_bytes())]).unwrap();
    let mut objects: Vec<Value> = manifests.into_iter().map(|m| m.object).collect();
    forbid_surge(&mut objects);
    for object in &objects {
        let rolling = object.pointer("/spec/rollout/strategy/rollingUpdate");
        match text(object, "/kind") {
            "KubeadmControlPlane" => assert_eq!(rolling, Some(&json!({ "maxSurge": 0 }))),
            "MachineDeployment" => {
                assert_eq!(rolling, Some(&json!({ "maxSurge": 0, "maxUnavailable": 1 })));
            }
            _ => assert_eq!(rolling, None),
        }
    }
}

#[test]
fn every_fault_of_one_object_is_reported_at_once() {
    let text = GOOD
        .replacen("replicas: 3\n  version: v1.34.2", "replicas: x\n  version: 7", 1)
        .replacen("        maxSurge: 0\n", "        maxSurge: 7\n", 1)
        .replacen("name: edge-1-control-plane", "name: nowhere", 1);
    let fields: Vec<_> =
        problems(&text).iter().map(|p| p.split(": ").nth(2).unwrap().to_owned()).collect();
    assert_eq!(
        fields,
        [
            "spec.replicas",
            "spec.version",
            "spec.rollout.strategy.rollingUpdate.maxSurge",
            "spec.machineTemplate.spec.infrastructureRef",
        ]
    );
}

#[test]
fn a_problem_names_the_line_of_the_field_name() {
    let text = GOOD.replacen("    name: edge-1\n  infra", "    name: edge-9\n  infra", 1);
    let line = text.lines().position(|l| l == "  controlPlaneRef:").unwrap() + 1;
    assert!(problems(&text)[0].starts_with(&format!("f.yaml:{line}: Cluster/edge-1: ")));
}

#[test]
fn invalid_kinds_and_groups_are_refused() {
    refused("kind: SandboxCluster\nmeta", "kind: Sandbox Cluster\nmeta", "kind: got \"Sandbox Cl");
    refused("infrastructure.cluster.x-k8s.io/v1beta2", "a/b/c", "apiVersion: got \"a/b/c\"");
    refused(
        "kind: KubeadmControlPlane\nmeta",
        "kind: KubeadmControlPlan\nmeta",
        "that the sandbox runs: KubeadmControlPlane",
    );
    refused(
        "kind: MachineDeployment\nmeta",
        "kind: MachineSet\nmeta",
        "want a MachineDeployment: Cluster API does not roll out",
    );
    refused(
        "bootstrap.cluster.x-k8s.io/v1beta2",
        "bootstrap.cluster.x-k8s.io/v1beta1",
        "kubectl get kubeadmconfigtemplates.v1beta2",
    );
}

#[test]
fn values_that_cluster_api_refuses_are_refused() {
    refused("replicas: 5", "replicas: 2000000000", "want a number of machines from 0 to 1000");
    refused(
        "      clusterName: edge-1\n",
        "      clusterName: edge-5\n",
        "spec.template.spec.clusterName: got \"edge-5\", want the value of spec.clusterName",
    );
    refused("type: RollingUpdate", "type: OnDelete", "got \"OnDelete\", want RollingUpdate");
    refused("  clusterNetwork:", "  paused: true\n  clusterNetwork:", "spec.paused: got true");
    refused("port: 6443", "port: x", "spec.controlPlaneEndpoint.port: got \"x\", want an integer");
}

#[tokio::test]
async fn a_rehearsal_reports_objects_that_the_api_server_rejects() {
    let extra = "\n---\napiVersion: v1\nkind: Secret\nmetadata: {name: x}\ndata:\n  a: '%'\n\
                 ---\napiVersion: v1\nkind: Foo\nmetadata: {name: x}\n\
                 ---\napiVersion: apps/v1beta1\nkind: Deployment\nmetadata: {name: x}\n";
    let parsed = |text: &str| parse([("f.yaml", text.as_bytes())]).unwrap();
    rehearse(&parsed(GOOD)).await.unwrap();
    let Err(LoadError::Invalid(found)) = rehearse(&parsed(&format!("{GOOD}{extra}"))).await else {
        panic!("nothing is rejected");
    };
    let fields: Vec<_> = found.iter().map(|p| (p.field.as_str(), p.want.as_str())).collect();
    assert!(fields[0].1.contains("illegal base64"), "{fields:?}");
    assert_eq!(fields[1].0, "kind");
    assert_eq!(fields[2], ("apiVersion", "apps/v1"));
    assert_eq!(found.len(), 3);
}

#[tokio::test]
async fn unknown_kinds_of_built_in_groups_are_stored() {
    let extra = "\n---\napiVersion: autoscaling/v2\nkind: HorizontalPodAutoscaler\n\
                 metadata: {name: x}\n\
                 ---\napiVersion: networking.k8s.io/v1\nkind: IngressClass\nmetadata: {name: x}\n";
    let text = format!("{GOOD}{extra}");
    rehearse(&parse([("f.yaml", text.as_bytes())]).unwrap()).await.unwrap();
}

#[test]
fn two_clusters_do_not_share_an_endpoint() {
    let text = format!("{GOOD}\n---\n{}", GOOD.replace("namespace: default", "namespace: other"));
    let found = problems(&text);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("want a unique endpoint: SandboxCluster/edge-1 at f.yaml:25"));
    assert_eq!(problems(&text.replacen("edge-1.example", "x.example", 1)), [""; 0]);
}

#[test]
fn cluster_scoped_kinds_match_the_api_server() {
    for resource in lab_apiserver::Registry::builtin().all() {
        let (group, kind) = (&*resource.group, &*resource.kind);
        let known = refit_manifests::is_cluster_scoped_built_in(group, kind);
        assert_eq!(known, !resource.namespaced, "{group}/{kind}");
    }
}
