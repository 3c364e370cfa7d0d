//! Discovery: kinds, schemas, versions, permissions.

use crate::{has, namespace, row, suite};

#[test]
fn the_server_returns_its_version() {
    has(
        &suite().kubectl.run("version").ok(),
        &["Client Version: v1.35", "Server Version: v1.35.0"],
    );
}

#[test]
fn api_resources_list_every_kind_with_its_names() {
    let text = suite().kubectl.run("api-resources").ok();
    assert_eq!(row(&text, "nodeupdates").last(), Some(&"NodeUpdate"));
    let machines = row(&text, "machines");
    assert_eq!(machines[1..], ["ma", "cluster.x-k8s.io/v1beta2", "true", "Machine"]);
    assert_eq!(row(&text, "nodes"), ["nodes", "no", "v1", "false", "Node"]);
    let wide = suite().kubectl.run("api-resources --api-group=cluster.x-k8s.io -o wide").ok();
    has(&wide, &["create,delete,deletecollection,get,list,patch,update,watch", "cluster-api"]);
    let names = suite().kubectl.run("api-resources --namespaced=false -o name").ok();
    has(&names, &["customresourcedefinitions.apiextensions.k8s.io"]);
    let category = suite().kubectl.run("api-resources --categories=cluster-api -o name").ok();
    has(&category, &["kubeadmcontrolplanes.controlplane.cluster.x-k8s.io"]);
}

#[test]
fn api_versions_list_every_group_version() {
    let text = suite().kubectl.run("api-versions").ok();
    has(&text, &["refit.dev/v1alpha1\n", "apps/v1\n", "cluster.x-k8s.io/v1beta2\n", "\nv1\n"]);
}

#[test]
fn explain_describes_custom_kinds() {
    let kubectl = &suite().kubectl;
    let text = kubectl.run("explain nodeupdates").ok();
    has(
        &text,
        &[
            "GROUP:      refit.dev",
            "KIND:       NodeUpdate",
            "VERSION:    v1alpha1",
            "FIELDS:",
            "spec",
        ],
    );
    let text = kubectl.run("explain nodeupdates.spec.goal").ok();
    has(&text, &["FIELD: goal", "kubernetesVersion"]);
    let text = kubectl.run("explain nodeupdates --recursive").ok();
    has(&text, &["machineRef", "ownerReferences", "progress"]);
    has(
        &kubectl.run("explain nodeupdates.spec.nothing").err(),
        &["field \"nothing\" does not exist"],
    );
}

#[test]
fn explain_describes_built_in_kinds() {
    let kubectl = &suite().kubectl;
    let text = kubectl.run("explain pods.spec.containers").ok();
    has(
        &text,
        &["FIELD: containers <[]Container>", "imagePullPolicy", "A single application container"],
    );
    has(
        &kubectl.run("explain deployment.spec.template --recursive").ok(),
        &["tolerations", "readinessProbe"],
    );
    has(
        &kubectl.run("explain customresourcedefinitions.spec.versions").ok(),
        &["additionalPrinterColumns"],
    );
    has(
        &kubectl.run("explain events --api-version=events.k8s.io/v1").ok(),
        &["GROUP:      events.k8s.io", "regarding"],
    );
}

#[test]
fn can_i_asks_rbac() {
    let kubectl = namespace("can-i");
    let ann = kubectl.with("--context=ann");
    assert_eq!(kubectl.run("auth can-i delete machines").ok(), "yes\n");
    let no = ann.run("auth can-i delete machines");
    assert_eq!((no.code, no.stdout.as_str()), (1, "no\n"));
    has(&ann.run("get machines").err(), &["Forbidden", "ann", "cannot list resource \"machines\""]);
    kubectl.run("create role reader --verb=get,list --resource=machines.cluster.x-k8s.io").ok();
    kubectl.run("create rolebinding readers --role=reader --group=team").ok();
    assert_eq!(ann.run("auth can-i list machines").ok(), "yes\n");
    assert_eq!(ann.run("get machines").code, 0);
    assert_eq!(ann.run("auth can-i delete machines").code, 1);
    has(&ann.run("auth can-i --list").ok(), &["machines.cluster.x-k8s.io", "[get list]"]);
    has(&kubectl.run("auth can-i list machines --as=bob --as-group=team").ok(), &["yes"]);
    has(&ann.run("auth whoami").ok(), &["Username", "ann", "team"]);
    let text = kubectl.run("get rolebinding readers -o wide").ok();
    has(&text, &["Role/reader", "team"]);
}

#[test]
fn a_service_account_token_has_its_rbac_permissions() {
    let kubectl = namespace("tokens");
    kubectl.run("create serviceaccount robot").ok();
    kubectl.run("create rolebinding robot --clusterrole=view --serviceaccount=tokens:robot").ok();
    let token = kubectl.run("create token robot").ok();
    assert_eq!(token.trim().split('.').count(), 3);
    let flag = format!("--token={}", token.trim());
    let robot = kubectl.with("--user=").with(&flag);
    let output = robot.run("auth whoami -o jsonpath={.status.userInfo.username}");
    has(&output.ok(), &["system:serviceaccount:tokens:robot"]);
}
