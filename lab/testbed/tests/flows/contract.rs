//! `refit contract test` against both examples of a provider, on real kube-apiserver.

use std::{collections::BTreeMap, fs};

use anyhow::{Context as _, ensure};
use lab_testbed::{
    Bed, Cluster, cli,
    controller::program,
    objects::{self, DEV_MACHINE, name, text},
    process::{Part, Program},
};
use serde_json::{Value, json};

/// A version that no other part of the flow uses.
const VERSION: &str = "v1.35.2";
const HAS: &str = "memory.example/has";
/// What the example in Rust installs.
const MEMORY_PROVIDER: [&str; 2] = [
    include_str!("../../../../examples/provider/crds.yaml"),
    include_str!("../../../../examples/provider/provider.yaml"),
];

/// A provider as the suite is given it.
struct Tested<'a> {
    /// Name of its process.
    process: &'a str,
    template: Value,
    /// Spec of its Updater, without the template.
    updater: Value,
    options: &'a [&'a str],
}

/// The provider in Go brings a Machine to a version.
pub(super) async fn by_hosts_provider(
    bed: &Bed,
    cluster: &Cluster,
    machine: &str,
    url: &str,
) -> anyhow::Result<()> {
    let tested = Tested {
        process: "hosts-provider",
        template: json!({
            "apiVersion": "hosts.example/v1",
            "kind": "HostUpgradeTemplate",
            "metadata": {"name": "hosts"},
            "spec": {"template": {"spec": {"url": url}}},
        }),
        updater: json!({
            "claims": [{"group": "cluster.x-k8s.io", "kind": "Machine", "paths": ["/spec/version"]}],
        }),
        options: &["--to", VERSION],
    };
    keeps(bed, cluster, machine, tested).await
}

/// The provider in Rust changes the memory of a Machine, whose infrastructure machine has the field.
pub(super) async fn by_memory_provider(
    bed: &Bed,
    cluster: &Cluster,
    machine: &Value,
) -> anyhow::Result<()> {
    for yaml in MEMORY_PROVIDER {
        for object in objects::documents(yaml, &[])? {
            objects::apply(bed.client(), &object).await?;
        }
    }
    let infrastructure = text(machine, "/spec/infrastructureRef/name");
    let more = json!({"spec": {"memoryMiB": 12_288}});
    cluster.objects.merge(DEV_MACHINE, infrastructure, &more).await?;
    let kubeconfig = bed.directory.join("admin.kubeconfig").display().to_string();
    let provider = Program {
        name: "memory-provider".to_owned(),
        path: program("memory-provider", "memory-provider").await?,
        args: Vec::new(),
        env: BTreeMap::from([("KUBECONFIG".to_owned(), kubeconfig)]),
        restart: true,
    };
    let provider = Part::start(provider, &bed.directory)?;
    let tested = Tested {
        process: "memory-provider",
        template: json!({
            "apiVersion": "memory.example/v1",
            "kind": "MemoryUpdateTemplate",
            "metadata": {"name": "memory"},
            "spec": {"template": {"spec": {"mostMib": 65536}}},
        }),
        updater: json!({
            "claims": [{
                "group": "infrastructure.cluster.x-k8s.io", "kind": "DevMachine",
                "paths": ["/spec/memoryMiB"],
            }],
            "verify": [format!(
                "infrastructureMachine.metadata.annotations['{HAS}'] == \
                 string(infrastructureMachine.spec.memoryMiB)"
            )],
        }),
        options: &[],
    };
    keeps(bed, cluster, name(machine), tested).await.with_context(|| provider.tail())
}

/// Runs the suite, which kills the provider after each gate opens. Every clause is tested and kept.
async fn keeps(
    bed: &Bed,
    cluster: &Cluster,
    machine: &str,
    tested: Tested<'_>,
) -> anyhow::Result<()> {
    let Tested { process, template, mut updater, options } = tested;
    updater["action"] = json!("Update");
    updater["disruption"] = json!("Drain");
    updater["template"] = json!({
        "apiVersion": template["apiVersion"], "kind": template["kind"],
        "name": template["metadata"]["name"],
    });
    let updater = json!({
        "apiVersion": "refit.dev/v1alpha1", "kind": "Updater",
        "metadata": {"name": "contract"}, "spec": updater,
    });
    let file = bed.directory.join(format!("{process}.yaml"));
    fs::write(&file, format!("{template}\n---\n{updater}\n"))?;
    let file = file.display().to_string();
    // It may just be between two starts.
    let restart = format!("until pkill -KILL -x {process}; do sleep 0.2; done");
    let mut args = vec![
        "contract",
        "test",
        "--template",
        &file,
        "--machine",
        machine,
        "--restart",
        &restart,
        "--timeout",
        "3m",
        "--settle",
        "2s",
    ];
    args.extend(options);
    let report = cli::json(bed, &cluster.namespace, &args).await?;
    let clauses = report["clauses"].as_array().context("the report has no clauses")?;
    let others: Vec<&Value> = clauses.iter().filter(|one| one["verdict"] != "kept").collect();
    ensure!(report["kept"] == true && others.is_empty(), "{process}: {others:#?}");
    Ok(())
}
