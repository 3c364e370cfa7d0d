//! Packages of the operating system on the same hosts: alone, with a boot that they require, and in one transaction with
//! another Kubernetes version.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::ensure;
use lab_hosts::{eventually, management::send};
use refit_kinds::{
    json::{name, text},
    keys,
};
use serde_json::{Value, json};

use crate::{
    CONTROL_PLANE, NODE_UPDATES, Site, VERSION, WITHIN, WORKERS, common, seen, watch::applications,
};

/// The next version of the hosts.
const GOAL: &str = "v1.35.0";
/// A package that requires no boot, and one that does.
const TOOL: &str = "site-tool";
const KERNEL: &str = "site-kernel";
/// How long the control plane may take for its upgrade, in seconds.
const UPGRADE_SECONDS: u64 = 600;

/// The settings that ask for these packages, each with its version, and for so many attempts to fetch them: the default is to
/// try for half an hour.
fn install(attempts: u32, packages: &[(&str, &str)]) -> Value {
    let packages: Vec<Value> =
        packages.iter().map(|(name, version)| json!({"name": name, "version": version})).collect();
    let limits = json!({"os-packages-stage": {"maxAttempts": attempts}});
    json!({"osPackages": {"install": packages}, "limits": limits})
}

/// Chooses whether changed HostSettings start updates.
async fn set_policy(site: &Site<'_>, policy: &Value) -> anyhow::Result<()> {
    let body = json!({"metadata": {"annotations": {keys::HOST_SETTINGS_CHANGES: policy}}});
    for owner in [CONTROL_PLANE, WORKERS] {
        send(&site.cluster.management.client, "PATCH", owner, &body).await?;
    }
    Ok(())
}

async fn have(site: &Site<'_>, package: &str, version: &str) -> anyhow::Result<()> {
    let format = "--showformat=${Version} ${db:Status-Status}";
    for host in site.hosts {
        let found = host.exec(["dpkg-query", "--show", format, package]).await?;
        let wanted = format!("{version} installed");
        ensure!(found.trim() == wanted, "{}: {package} {found} instead of {wanted}", host.name);
        let program = host.exec([package]).await?;
        ensure!(program.trim() == version, "{}: {package} runs as {program}", host.name);
    }
    Ok(())
}

/// A version that no source has fails and names it, and disturbs no host. Other settings then start other updates. They have a
/// package that requires no boot, and change nothing but that package.
pub(crate) async fn without_boot(site: &Site<'_>) -> anyhow::Result<()> {
    let Site { cluster, hosts, watch, .. } = *site;
    let before = seen(cluster, hosts).await?;
    set_policy(site, &json!("Start")).await?;
    cluster.management.set_host_settings(&install(1, &[(TOOL, "9.9-1")])).await?;
    let failed = eventually("the missing version fails", WITHIN, async || {
        let updates = cluster.list(NODE_UPDATES).await.map_err(|error| format!("{error:#}"))?;
        let lines =
            || updates.iter().map(|update| text(update, "/status/phase")).collect::<Vec<_>>();
        let failed = updates.iter().find(|update| text(update, "/status/phase") == "Failed");
        failed.cloned().ok_or_else(|| lines().join(" "))
    })
    .await?;
    let message = text(&failed, "/status/failureMessage");
    ensure!(
        message.contains("9.9-1"),
        "{}: the message names the version: {message}",
        name(&failed)
    );
    have(site, TOOL, "1.0-1").await?;

    let updates = site.updates().await?;
    cluster.management.set_host_settings(&install(3, &[(TOOL, "1.1-1")])).await?;
    site.until_one_more(&updates).await?;
    have(site, TOOL, "1.1-1").await?;
    let after = seen(cluster, hosts).await?;
    ensure!(before == after, "a package disturbs nothing: {before:#?} became {after:#?}");
    let cordons = watch.cordons()?;
    ensure!(cordons.is_empty(), "no node is drained: {cordons:?}");
    Ok(())
}

/// A package that requires a boot: each machine is drained and boots once, one after another.
pub(crate) async fn with_boot(site: &Site<'_>) -> anyhow::Result<()> {
    let packages = install(3, &[(TOOL, "1.1-1"), (KERNEL, "1.1-1")]);
    let updates = site.updates().await?;
    let began = Began::of(site).await?;
    site.cluster.management.set_host_settings(&packages).await?;
    site.until_one_more(&updates).await?;
    began.all_booted_once_more(site, VERSION).await?;
    have(site, KERNEL, "1.1-1").await?;
    have(site, TOOL, "1.1-1").await
}

/// Packages wait for the next version where the owner does not start updates for them: then both are one transaction, with one
/// drain and one boot.
pub(crate) async fn with_version(site: &Site<'_>) -> anyhow::Result<()> {
    set_policy(site, &Value::Null).await?;
    let updates = site.updates().await?;
    let began = Began::of(site).await?;
    let packages = install(3, &[(TOOL, "1.1-1"), (KERNEL, "1.2*")]);
    site.cluster.management.set_host_settings(&packages).await?;
    site.cluster.management.upgrade(GOAL, UPGRADE_SECONDS).await?;
    site.until_one_more(&updates).await?;
    began.all_booted_once_more(site, GOAL).await?;
    have(site, KERNEL, "1.2-1").await?;
    let ended = ["Succeeded", "Failed", "Stopped"];
    for update in &site.cluster.list(NODE_UPDATES).await? {
        let phase = text(update, "/status/phase");
        ensure!(ended.contains(&phase), "{} is {phase} at the end", name(update));
    }
    Ok(())
}

/// What is compared with the end of a phase in which hosts boot.
struct Began {
    boots: BTreeMap<String, u32>,
    cordons: BTreeMap<String, u32>,
    pods: BTreeSet<String>,
}

impl Began {
    async fn of(site: &Site<'_>) -> anyhow::Result<Self> {
        Ok(Self {
            boots: site.hosts.iter().map(|host| (host.name.clone(), host.boots())).collect(),
            cordons: site.watch.cordons()?,
            pods: applications(site.cluster).await?.into_keys().collect(),
        })
    }

    /// Checks that each host booted once more, after its node was drained, and runs the version.
    async fn all_booted_once_more(&self, site: &Site<'_>, version: &str) -> anyhow::Result<()> {
        let Site { cluster, hosts, .. } = *site;
        let cordons = site.watch.cordons()?;
        let once_more = |before: &BTreeMap<String, u32>, name: &str| {
            before.get(name).copied().unwrap_or_default() + 1
        };
        for host in hosts {
            let name = host.name.as_str();
            common::is_at(host, version, cluster.control_planes.contains(&host.name)).await?;
            let boots = (host.boots(), once_more(&self.boots, name));
            ensure!(boots.0 == boots.1, "{name} booted {} times instead of {}", boots.0, boots.1);
            let drains = (cordons.get(name).copied(), once_more(&self.cordons, name));
            ensure!(drains.0 == Some(drains.1), "{name} was cordoned {drains:?} times");
            ensure!(!host.has("run/reboot-required"), "{name} must still boot");
        }
        // Each of them left the worker on which it was, and the budget was kept, as the end of the test shows.
        let pods: BTreeSet<String> = applications(cluster).await?.into_keys().collect();
        let stayed: Vec<&String> = pods.intersection(&self.pods).collect();
        ensure!(stayed.is_empty() && !pods.is_empty(), "pods of drained workers stay: {stayed:?}");
        Ok(())
    }
}
