//! Updaters: an external one changes the memory of machines, alone and along with the version; one leaves
//! an image that is rotated with the version; and what the provider refuses is not begun.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context as _, ensure};
use lab_testbed::{
    Bed, Cluster, ClusterSpec,
    cluster::{TO, error_text, settled},
    controller::program,
    directory::free_port,
    eventually,
    objects::{
        self, DEV_MACHINE, DEV_MACHINE_TEMPLATE, MACHINE_DEPLOYMENT, NODE_UPDATE, Objects,
        UPDATE_GROUP, UPDATER, annotation, name, text,
    },
    process::{Part, Program},
    wait,
};
use serde_json::{Value, json};

use super::{contract, look};

const WITHIN: Duration = Duration::from_mins(6);
/// How long nothing may happen. Cluster API calls again within this time.
const QUIET: Duration = Duration::from_secs(25);
const GROUP: &str = "infrastructure.cluster.x-k8s.io";
const HAS: &str = "memory.example/has";
/// The permission to ask the provider, for the machines of this bed.
const ROLE: [&str; 2] = [
    include_str!("../../../../deploy/infrastructure/role.yaml"),
    include_str!("../../../../deploy/infrastructure/role_binding.yaml"),
];

pub(super) async fn run(bed: &Bed) -> anyhow::Result<()> {
    let fields = json!({
        "memoryMiB": {"type": "integer"},
        "imageName": {"type": "string"},
        "operatingSystem": {"type": "string"},
    });
    look::add_fields_of_machines(bed, &fields).await?;
    // As CAPV refuses changes of its machines.
    let rule = json!({
        "rule": "!has(oldSelf.operatingSystem) || self.operatingSystem == oldSelf.operatingSystem",
        "message": "cannot be modified",
    });
    look::add_rule_of_machines(bed, &rule).await?;
    let spec = ClusterSpec { workers: vec![("md", 2, 0, 1)], ..ClusterSpec::default() };
    let cluster = bed.cluster("updaters", &spec).await?;
    let (_server, url) = server(bed).await?;
    updaters(bed, &url).await?;
    let before = look::identities(&cluster).await?;

    version_and_memory_of_the_control_plane(bed, &cluster).await?;
    memory_of_workers(&cluster).await?;
    image_and_version_of_workers(&cluster).await?;
    operating_system_of_workers(&cluster).await?;
    let after = look::identities(&cluster).await?;
    ensure!(before == after, "{before:#?} became {after:#?}");
    replaced_by_policy(&cluster).await?;
    let machines = cluster.control_plane_machines().await?;
    contract::by_memory_provider(bed, &cluster, machines.first().context("there is no Machine")?)
        .await
}

/// Starts the server of `examples/hook-updater`.
async fn server(bed: &Bed) -> anyhow::Result<(Part, String)> {
    let certificates = bed.directory.join("hook-updater");
    bed.certs().write_server(&certificates)?;
    let port = free_port()?;
    let file = |name: &str| certificates.join(name).display().to_string();
    let kubeconfig = bed.kubeconfig().display().to_string();
    let program = Program {
        name: "hook-updater".to_owned(),
        path: program("hook-updater", "hook-updater").await?,
        args: vec![
            format!("--bind=127.0.0.1:{port}"),
            format!("--cert={}", file("tls.crt")),
            format!("--key={}", file("tls.key")),
        ],
        env: BTreeMap::from([("KUBECONFIG".to_owned(), kubeconfig)]),
        restart: true,
    };
    Ok((Part::start(program, &bed.directory)?, format!("https://localhost:{port}")))
}

async fn updaters(bed: &Bed, url: &str) -> anyhow::Result<()> {
    let all = Objects::of_cluster(bed.client().clone());
    let claims = |field: &str| {
        json!([{
            "group": GROUP, "kind": "DevMachine", "paths": [format!("/spec/{field}")],
        }])
    };
    let specs = [
        (
            "memory",
            json!({
                "order": 10,
                "claims": claims("memoryMiB"),
                "action": "Update",
                "disruption": "Drain",
                "hook": {"url": url, "caBundle": bed.certs().ca_bundle()},
                "verify": [format!(
                    "infrastructureMachine.metadata.annotations['{HAS}'] == \
                     string(infrastructureMachine.spec.memoryMiB)"
                )],
            }),
        ),
        ("image", json!({"claims": claims("imageName"), "action": "Leave"})),
        ("operating-system", json!({"claims": claims("operatingSystem"), "action": "Leave"})),
    ];
    for (updater, spec) in specs {
        let object = json!({
            "apiVersion": "refit.dev/v1alpha1", "kind": "Updater",
            "metadata": {"name": updater}, "spec": spec,
        });
        all.apply(&object).await?;
        eventually("the Updater is accepted", WITHIN, async || {
            let found = all.get(UPDATER, updater).await.map_err(error_text)?;
            let accepted = objects::is_true(&found, "Accepted");
            accepted.then_some(()).ok_or_else(|| objects::condition_text(&found, "Accepted"))
        })
        .await?;
    }
    Ok(())
}

/// A copy of a group's template with these fields, under a new name.
async fn template(
    cluster: &Cluster,
    from: &str,
    to: &str,
    fields: &Value,
) -> anyhow::Result<String> {
    let template = cluster.objects.get(DEV_MACHINE_TEMPLATE, from).await?;
    let mut spec = template["spec"].clone();
    let own = spec["template"]["spec"].as_object_mut().context("the template has no spec")?;
    own.extend(fields.as_object().cloned().unwrap_or_default());
    let object = json!({
        "apiVersion": format!("{GROUP}/v1beta2"),
        "kind": "DevMachineTemplate",
        "metadata": {"name": to, "namespace": cluster.namespace},
        "spec": spec,
    });
    cluster.objects.apply(&object).await?;
    Ok(to.to_owned())
}

/// Version and memory change at once. Without the permission to ask the provider, nothing happens.
async fn version_and_memory_of_the_control_plane(
    bed: &Bed,
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let from =
        text(&cluster.control_plane().await?, "/spec/machineTemplate/spec/infrastructureRef/name")
            .to_owned();
    let bigger = template(cluster, &from, "cp-bigger", &json!({"memoryMiB": 8192})).await?;
    let change = json!({
        "version": TO,
        "machineTemplate": {"spec": {"infrastructureRef": {"name": bigger}}},
    });
    cluster.change_control_plane(&change).await?;
    let owner = name(&cluster.control_plane().await?).to_owned();
    eventually("the missing permission is reported", WITHIN, async || {
        let group = group(cluster, &owner).await.map_err(error_text)?;
        let covered = objects::condition_text(&group, "Covered");
        let names_it = covered.contains("ProviderForbidden") && covered.contains("devmachines");
        names_it.then_some(()).ok_or(covered)
    })
    .await?;
    for file in ROLE {
        let file = file.replace("metal3machines", "devmachines");
        for object in objects::documents(&file, &[])? {
            objects::apply(bed.client(), &object).await?;
        }
    }
    cluster.control_plane_is_at(TO, WITHIN).await?;
    eventually("the control plane is settled", WITHIN, async || {
        let found = cluster.control_plane().await.map_err(error_text)?;
        settled(&found, &["Available", "MachinesReady", "MachinesUpToDate"])
    })
    .await?;
    have_memory(cluster, &cluster.control_plane_machines().await?, "8192").await?;
    let updates = cluster.objects.list(NODE_UPDATE).await?;
    for update in &updates {
        let parts: Vec<&str> = update["spec"]["parts"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|part| text(part, "/updater"))
            .collect();
        ensure!(parts == ["kubeadm", "memory"], "{} has {parts:?}", name(update));
    }
    ensure!(updates.len() == 3, "{} NodeUpdates", updates.len());
    look::nothing_is_left(cluster).await
}

async fn group(cluster: &Cluster, owner: &str) -> anyhow::Result<Value> {
    let groups = cluster.objects.list(UPDATE_GROUP).await?;
    let found = groups.into_iter().find(|group| text(group, "/spec/owner/name") == owner);
    found.with_context(|| format!("there is no UpdateGroup of {owner}"))
}

async fn have_memory(cluster: &Cluster, machines: &[Value], memory: &str) -> anyhow::Result<()> {
    for machine in machines {
        let infrastructure = text(machine, "/spec/infrastructureRef/name");
        let found = cluster.objects.get(DEV_MACHINE, infrastructure).await?;
        let has = annotation(&found, HAS);
        ensure!(has == Some(memory), "{infrastructure} has {has:?} MiB");
    }
    Ok(())
}

/// The workers rotate to a template, and the change is complete.
async fn rotate(cluster: &Cluster, template: &str, change: Value) -> anyhow::Result<()> {
    let mut spec = change;
    spec["infrastructureRef"] = json!({"name": template});
    cluster.change_workers("md", &json!({"template": {"spec": spec}})).await?;
    eventually("every worker is updated", WITHIN, async || {
        let found = cluster.deployment("md").await.map_err(error_text)?;
        settled(&found, &["Available", "MachinesReady", "MachinesUpToDate"])?;
        let machines = cluster.worker_machines("md").await.map_err(error_text)?;
        for machine in &machines {
            let infrastructure = text(machine, "/spec/infrastructureRef/name");
            let found =
                cluster.objects.get(DEV_MACHINE, infrastructure).await.map_err(error_text)?;
            let of = annotation(&found, "cluster.x-k8s.io/cloned-from-name").unwrap_or_default();
            if of != template {
                return Err(format!("{infrastructure} comes from {of}"));
            }
        }
        Ok(())
    })
    .await?;
    look::nothing_is_left(cluster).await
}

async fn memory_of_workers(cluster: &Cluster) -> anyhow::Result<()> {
    let fields = json!({"memoryMiB": 4096, "imageName": "a", "operatingSystem": "linux"});
    let bigger = template(cluster, "updaters-md", "md-bigger", &fields).await?;
    rotate(cluster, &bigger, json!({})).await?;
    have_memory(cluster, &cluster.worker_machines("md").await?, "4096").await
}

/// The ordinary upgrade of a provider whose images have the version.
async fn image_and_version_of_workers(cluster: &Cluster) -> anyhow::Result<()> {
    let newer = template(cluster, "md-bigger", "md-newer", &json!({"imageName": "b"})).await?;
    rotate(cluster, &newer, json!({"version": TO})).await?;
    for machine in cluster.worker_machines("md").await? {
        let left = annotation(&machine, "refit.dev/left").unwrap_or_default();
        ensure!(left.contains("image"), "{} shows {left:?} as left", name(&machine));
        let kubelet = text(&machine, "/status/nodeInfo/kubeletVersion");
        ensure!(kubelet == TO, "{} runs {kubelet}", name(&machine));
    }
    Ok(())
}

/// The provider refuses the change, so no Machine is moved to it.
async fn operating_system_of_workers(cluster: &Cluster) -> anyhow::Result<()> {
    let windows =
        template(cluster, "md-newer", "md-windows", &json!({"operatingSystem": "windows"})).await?;
    let before = look::identities(cluster).await?;
    let change = json!({"template": {"spec": {"infrastructureRef": {"name": windows}}}});
    cluster.change_workers("md", &change).await?;
    eventually("the provider's words are reported", WITHIN, async || {
        let group = group(cluster, "updaters-md").await.map_err(error_text)?;
        let uncovered = group["status"]["uncovered"].to_string();
        let names_it =
            uncovered.contains("cannot be modified") && objects::is_true(&group, "Blocked");
        names_it.then_some(()).ok_or(uncovered)
    })
    .await?;
    wait::never("a machine is touched", QUIET, async || {
        let now = look::identities(cluster).await.map_err(error_text)?;
        if now == before { Ok(()) } else { Err(format!("{before:?} became {now:?}")) }
    })
    .await?;
    look::no_mark_is_left(cluster).await
}

/// With the policy Replace, the same change gives new machines.
async fn replaced_by_policy(cluster: &Cluster) -> anyhow::Result<()> {
    let before = uids(&cluster.worker_machines("md").await?);
    let replace = [("refit.dev/on-uncovered", Some("Replace"))];
    cluster.objects.annotate(MACHINE_DEPLOYMENT, "updaters-md", &replace).await?;
    eventually("every worker is a new machine", WITHIN, async || {
        let found = cluster.deployment("md").await.map_err(error_text)?;
        settled(&found, &["Available", "MachinesReady", "MachinesUpToDate"])?;
        let machines = cluster.worker_machines("md").await.map_err(error_text)?;
        let now = uids(&machines);
        if now.len() != before.len() || now.iter().any(|uid| before.contains(uid)) {
            return Err(format!("{before:?} became {now:?}"));
        }
        for machine in &machines {
            let infrastructure = text(machine, "/spec/infrastructureRef/name");
            let found =
                cluster.objects.get(DEV_MACHINE, infrastructure).await.map_err(error_text)?;
            let system = text(&found, "/spec/operatingSystem");
            if system != "windows" {
                return Err(format!("{infrastructure} has {system:?}"));
            }
        }
        Ok(())
    })
    .await?;
    look::no_mark_is_left(cluster).await
}

fn uids(machines: &[Value]) -> Vec<String> {
    machines.iter().map(|machine| text(machine, "/metadata/uid").to_owned()).collect()
}
