//! The settings of a plan: which HostSettings applies, and when it is read.

use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use refit_cluster_api::kinds::{Machine, MachineDeployment};
use refit_kinds::{
    keys,
    refit::{HostPlan, HostSettings, HostStep},
};
use serde_json::{Value, json};

use super::lab::Lab;
use crate::common::{objects::made, site::settle};

/// Settings whose package repository identifies them.
async fn apply_settings(lab: &Lab, name: &str, applies_to: Value, repository: &str) {
    let spec = json!({
        "appliesTo": applies_to, "settings": {"packages": {"repository": repository}},
    });
    let object = json!({"metadata": {"name": name}, "spec": spec});
    let _: HostSettings = made(&lab.site.client(), object).await;
}

async fn change_repository(lab: &Lab, name: &str, repository: &str) {
    let settings: Api<HostSettings> = Api::default_namespaced(lab.site.client());
    let body = json!({"spec": {"settings": {"packages": {"repository": repository}}}});
    settings.patch(name, &PatchParams::default(), &Patch::Merge(&body)).await.unwrap();
}

async fn ask(lab: &Lab, machine: &str) {
    let machines: Api<Machine> = Api::default_namespaced(lab.site.client());
    let uid = machines.get(machine).await.unwrap().metadata.uid.unwrap();
    lab.ask_for(machine, &uid).await;
}

/// The package repository in the plan of a host, once it has one.
async fn planned(lab: &Lab, node: &str) -> Option<String> {
    for _ in 0..4 {
        lab.hosts_work().await;
        settle().await;
    }
    let plans: Api<HostPlan> =
        Api::namespaced(lab.site.workload_client(), keys::HOST_PLAN_NAMESPACE);
    let plan = plans.get(node).await.unwrap();
    let mut steps = plan.spec.steps.iter().filter_map(|step| step.step());
    let packages = steps.find_map(HostStep::packages);
    packages.map(|packages| packages.repository.clone())
}

/// Reason and object of what blocks the only NodeUpdate.
async fn blocked_by(lab: &Lab) -> (String, String) {
    settle().await;
    let update = lab.updates().await.remove(0);
    let blocker = update.status.unwrap().blocked_by.remove(0);
    (blocker.reason, blocker.object)
}

#[tokio::test(start_paused = true)]
async fn a_plan_has_the_settings_that_apply_when_it_is_made_whatever_the_cache_knows() {
    let lab = Lab::new().await;
    apply_settings(&lab, "fleet", json!({"all": {}}), "https://old.example/").await;
    let _controller = lab.site.start(None);
    settle().await;
    lab.site.hold_back("hostsettings.refit.dev");
    change_repository(&lab, "fleet", "https://new.example/").await;
    ask(&lab, "w-0").await;
    assert_eq!(planned(&lab, "w-0").await.as_deref(), Some("https://new.example/"));
    change_repository(&lab, "fleet", "https://later.example/").await;
    assert_eq!(planned(&lab, "w-0").await.as_deref(), Some("https://new.example/"));
}

#[tokio::test(start_paused = true)]
async fn the_host_settings_that_names_the_owner_is_used() {
    let lab = Lab::new().await;
    let owner = json!({"owners": [{"kind": "MachineDeployment", "name": "md"}]});
    apply_settings(&lab, "a-fleet", json!({"all": {}}), "https://fleet.example/").await;
    apply_settings(&lab, "b-edge", json!({"clusters": ["edge-1"]}), "https://edge.example/").await;
    apply_settings(&lab, "c-md", owner, "https://md.example/").await;
    let _controller = lab.site.start(None);
    ask(&lab, "w-0").await;
    assert_eq!(planned(&lab, "w-0").await.as_deref(), Some("https://md.example/"));
}

#[tokio::test(start_paused = true)]
async fn an_update_waits_while_two_host_settings_apply_equally() {
    let lab = Lab::new().await;
    for name in ["one", "other"] {
        apply_settings(&lab, name, json!({"clusters": ["edge-1"]}), "https://x.example/").await;
    }
    let _controller = lab.site.start(None);
    ask(&lab, "w-0").await;
    let conflict = ("HostSettingsConflict".into(), "HostSettings one, other".into());
    assert_eq!(blocked_by(&lab).await, conflict);
    assert_eq!(planned(&lab, "w-0").await, None);
    let settings: Api<HostSettings> = Api::default_namespaced(lab.site.client());
    settings.delete("other", &DeleteParams::default()).await.unwrap();
    assert_eq!(planned(&lab, "w-0").await.as_deref(), Some("https://x.example/"));
}

#[tokio::test(start_paused = true)]
async fn the_annotation_on_an_owner_holds_updates_and_sets_nothing() {
    let lab = Lab::new().await;
    let owners: Api<MachineDeployment> = Api::default_namespaced(lab.site.client());
    let annotate = async |value: Value| {
        let body = json!({"metadata": {"annotations": {keys::HOST_SETTINGS: value}}});
        owners.patch("md", &PatchParams::default(), &Patch::Merge(&body)).await.unwrap();
    };
    annotate(json!(r#"{"packages": {"repository": "https://evil.example/"}}"#)).await;
    let _controller = lab.site.start(None);
    ask(&lab, "w-0").await;
    let annotation = ("HostSettingsAnnotation".into(), "MachineDeployment md".into());
    assert_eq!(blocked_by(&lab).await, annotation);
    assert_eq!(planned(&lab, "w-0").await, None);
    annotate(Value::Null).await;
    assert_eq!(planned(&lab, "w-0").await.as_deref(), Some(""), "without settings");
}

#[tokio::test(start_paused = true)]
async fn the_api_server_rejects_ambiguous_and_incomplete_host_settings() {
    let lab = Lab::new().await;
    let api: Api<HostSettings> = Api::default_namespaced(lab.site.client());
    let dynamic: Api<kube::core::DynamicObject> = Api::default_namespaced_with(
        lab.site.client(),
        &kube::discovery::ApiResource::erase::<HostSettings>(&()),
    );
    let image = |rest: Value| {
        let os_image = json!({"name": "os-2", "url": "bundle:///os/os-2", "sha384": "ab"});
        let mut settings = json!({"osImage": os_image});
        settings.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        json!({"appliesTo": {"all": {}}, "settings": settings})
    };
    let with = |applies_to: Value| json!({"appliesTo": applies_to, "settings": {}});
    for (spec, problem) in [
        (with(json!({})), "spec.appliesTo"),
        (with(json!({"all": {}, "clusters": ["edge-1"]})), "spec.appliesTo"),
        (with(json!({"clusters": []})), "spec.appliesTo.clusters"),
        (with(json!({"owners": [{"kind": "Machine", "name": "w-0"}]})), "owners[0].kind"),
        (with(json!({"owners": [{"kind": "MachineSet"}]})), "owners[0].name"),
        (json!({"appliesTo": {"all": {}}}), "spec.settings"),
        (image(json!({})), "set settings.bundle"),
    ] {
        let object = serde_json::from_value(json!({
            "apiVersion": "refit.dev/v1alpha1", "kind": "HostSettings",
            "metadata": {"name": "x"}, "spec": spec,
        }));
        let error = dynamic.create(&PostParams::default(), &object.unwrap()).await.unwrap_err();
        assert!(error.to_string().contains(problem), "{spec}: {error}");
    }
    let whole = image(json!({"bundle": {"location": "/mnt/bundles/v1.35.0"}}));
    let object = json!({"metadata": {"name": "x"}, "spec": whole});
    let made: HostSettings = made(&lab.site.client(), object).await;
    assert!(api.get("x").await.unwrap().spec == made.spec);
}
