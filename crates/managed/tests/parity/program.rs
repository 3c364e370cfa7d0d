//! Rows of the program as a whole: it runs in the process of the test, on a simulated cluster.

mod alerts;
mod drains;
mod rights;
mod world;

use std::time::Duration;

use kube::Api;
use lab_openshift::{cluster::Release, wire::Trouble};
use refit_managed::Compat;
use refit_openshift::{
    kinds::ClusterVersion,
    upgrade_config::{NAME, Phase},
};
use serde_json::json;
use strum::VariantArray as _;

use self::world::{LOCAL, Program, VERSION, World, by_ocm, in_world};
use crate::Row;

pub(crate) const ROWS: &[Row] = &[
    Row {
        number: 8,
        name: "an edit of the configuration applies without a restart",
        test: an_edit_of_the_configuration_applies_without_a_restart,
    },
    Row {
        number: 13,
        name: "an upgrade that is cancelled before it commences leaves no extra nodes and silences",
        test: a_cancelled_upgrade_leaves_nothing,
    },
    Row {
        number: 13,
        name: "an upgrade that is deleted by hand before it commences leaves no extra nodes and silences",
        test: a_deleted_upgrade_leaves_nothing,
    },
    Row {
        number: 13,
        name: "an upgrade that is edited to another version before it commences leaves no extra nodes and silences",
        test: an_edited_upgrade_leaves_nothing,
    },
    Row {
        number: 13,
        name: "a cancellation that arrives after the upgrade has commenced holds the UpgradeConfig",
        test: a_cancellation_crosses_the_beginning,
    },
    Row {
        number: 30,
        name: "an upgrade that is due shows that its provider cannot be asked",
        test: a_provider_out_of_reach_is_shown,
    },
    Row {
        number: 35,
        name: "metrics of an UpgradeConfig that is deleted are removed, but not the result",
        test: metrics_of_a_deleted_upgrade_config_are_removed,
    },
    Row {
        number: 36,
        name: "a change of the status wakes nothing, and one of the spec does",
        test: a_change_of_the_status_wakes_nothing,
    },
    Row {
        number: 89,
        name: "an upgrade whose policy is gone once it has commenced is completed",
        test: an_upgrade_whose_policy_is_gone_is_completed,
    },
    Row {
        number: 99,
        name: "a notice that OCM does not accept keeps no drain waiting",
        test: drains::a_drain_goes_on_without_ocm,
    },
    Row {
        number: 99,
        name: "drains of several nodes at once send one notice",
        test: drains::drains_at_once_send_one_notice,
    },
    Row {
        number: 102,
        name: "Prometheus reads the text of both ports, and a scrape that fails has status 500",
        test: prometheus_reads_the_text_of_both_ports,
    },
    Row {
        number: 104,
        name: "each of the six alerts fires on its metric, and on nothing else",
        test: alerts::each_alert_fires_on_its_metric,
    },
    Row {
        number: 105,
        name: "upgrades use each right of the manifests, and no other",
        test: rights::upgrades_use_each_right_and_no_other,
    },
    Row {
        number: 105,
        name: "dedicated-admins may neither request, change nor delete an upgrade",
        test: rights::dedicated_admins_request_no_upgrades,
    },
    Row {
        number: 106,
        name: "one replica leads, another takes over, and ports and probes are served",
        test: one_replica_leads_and_another_takes_over,
    },
    Row {
        number: 106,
        name: "a replica that does not lead syncs with the provider in the original only",
        test: a_standby_syncs_in_the_original_only,
    },
    Row {
        number: 108,
        name: "an UpgradeConfig that is deleted during its upgrade resumes as Upgrading",
        test: a_deleted_upgrade_config_resumes,
    },
    Row {
        number: 109,
        name: "an upgrade waits for its time, and runs through; an invalid time is a metric",
        test: an_upgrade_waits_for_its_time_and_runs_through,
    },
    Row {
        number: 110,
        name: "each deviation from the original is documented",
        test: each_deviation_is_documented,
    },
];

/// A critical alert that fails the health check.
const ALERT: &[(&str, &str)] = &[("severity", "critical"), ("namespace", "openshift-etcd")];

fn an_edit_of_the_configuration_applies_without_a_restart() {
    in_world(async {
        let world = World::new().await;
        world.configure("configManager: [").await;
        let _program = world.start(Compat::Repaired);
        world.request(&world.at(3).to_string()).await;
        world.minutes(5).await;
        let upgrade = world.upgrade().await;
        let entry = upgrade.entry().unwrap();
        assert_eq!(entry.phase, Phase::New, "without a configuration, nothing is decided");
        let shown = &entry.condition("ConfigurationInvalid").unwrap();
        assert!(shown.message.contains("cannot parse config.yaml"), "{shown:?}");
        world.prometheus.fire("EtcdDown", ALERT);
        world.configure(LOCAL).await;
        world.until(Phase::Upgrading, 3).await;
        world.minutes(5).await;
        let upgrade = world.upgrade().await;
        assert_eq!(upgrade.entry().unwrap().condition("ConfigurationInvalid"), None);
        assert!(!world.is_commenced().await, "the alert keeps it waiting");
        world.configure(&format!("{LOCAL}healthCheck: {{ignoredCriticals: [EtcdDown]}}\n")).await;
        world.minutes(2).await;
        assert!(world.is_commenced().await);
    });
}

fn metrics_of_a_deleted_upgrade_config_are_removed() {
    in_world(async {
        let world = World::new().await;
        let program = world.start(Compat::Repaired);
        world.request(&world.at(1).to_string()).await;
        world.until(Phase::Upgraded, 240).await;
        world.minutes(2).await;
        assert!(world.gauges(&program, "upgradeoperator_").await.len() > 20);
        assert!(world.get(&program, 8089, "/metrics").await.unwrap().contains("managed_upgrade_"));
        world.delete().await;
        world.seconds(5).await;
        let name = format!("upgradeconfig_name=\"{NAME}\"");
        let result = format!(
            "upgradeoperator_upgrade_result{{{name},preceding_version=\"4.16.3\",stream=\"z\",version=\"{VERSION}\",alerts=\"\"}} 1"
        );
        assert_eq!(world.gauges(&program, "upgrade").await, [result]);
        let custom = world.get(&program, 8089, "/metrics").await.unwrap();
        assert!(custom.contains("managed_upgrade_"), "it is read again after 15 s");
        world.seconds(15).await;
        assert_eq!(world.get(&program, 8089, "/metrics").await.unwrap(), "# EOF\n");
    });
}

fn a_change_of_the_status_wakes_nothing() {
    in_world(async {
        for compat in Compat::VARIANTS {
            let world = World::new().await;
            // The sync reads the UpgradeConfig as well.
            world.configure(&LOCAL.replace("watchInterval: 1}", "watchInterval: 500}")).await;
            let _program = world.start(*compat);
            world.request(&world.at(100).to_string()).await;
            world.minutes(4).await;
            assert_eq!(world.phase().await, Some(Phase::Pending));
            let looks = || {
                world.calls("GET /api/v1/namespaces/openshift-managed-upgrade-operator/configmaps")
            };
            let before = looks();
            let mut upgrade = world.upgrade().await;
            let status = upgrade.status.as_mut().unwrap();
            status.history[0].conditions.clear();
            "4.16.2".clone_into(&mut status.history[0].preceding_version);
            let body = json!({"status": status});
            let merge = kube::api::Patch::Merge(&body);
            world.upgrades().patch_status(NAME, &<_>::default(), &merge).await.unwrap();
            world.seconds(20).await;
            assert_eq!(looks(), before, "{compat}");
            world.patch(&json!({"spec": {"PDBForceDrainTimeout": 30}})).await;
            world.seconds(5).await;
            assert_eq!(looks(), before + 1, "{compat}");
        }
    });
}

fn prometheus_reads_the_text_of_both_ports() {
    in_world(async {
        let world = World::new().await;
        let program = world.start(Compat::Repaired);
        world.request(&world.at(1).to_string()).await;
        world.until(Phase::Upgraded, 240).await;
        world.minutes(2).await;
        for (port, name) in
            [(8383, "upgradeoperator_upgrade_result"), (8089, "managed_upgrade_upgrade_scheduled")]
        {
            let text = world.get(&program, port, "/metrics").await.unwrap();
            assert!(text.contains(&format!("\n# TYPE {name} gauge\n{name}{{")), "{text}");
            assert!(!text.contains("_total"), "{text}");
            alerts::check_metrics(&text);
            assert!(world.get(&program, port, "/").await.is_err());
        }
        // The original crashes, and restarts, for a version without an entry.
        world.patch(&json!({"spec": {"upgradeAt": "tomorrow"}})).await;
        world.minutes(1).await;
        let failed = world.get(&program, 8089, "/metrics").await.unwrap_err();
        let kube::Error::Api(status) = failed else { panic!("{failed}") };
        assert_eq!(status.code, 500);
        assert!(status.message.contains("invalid spec.upgradeAt \"tomorrow\""), "{status:?}");
    });
}

fn one_replica_leads_and_another_takes_over() {
    in_world(async {
        let world = World::new().await;
        let first = world.start_replica("a.test", Compat::Repaired);
        world.seconds(5).await;
        let second = world.start_replica("b.test", Compat::Repaired);
        world.seconds(5).await;
        world.request(&world.at(1).to_string()).await;
        world.until(Phase::Upgrading, 5).await;
        for replica in [&first, &second] {
            assert_eq!(world.get(replica, 8081, "/healthz").await.unwrap(), "ok");
            assert_eq!(world.get(replica, 8081, "/readyz").await.unwrap(), "ok");
            let custom = world.get(replica, 8089, "/metrics").await.unwrap();
            assert!(custom.contains("phase=\"Upgrading\""), "{custom}");
        }
        assert!(!world.gauges(&first, "upgradeoperator_").await.is_empty());
        assert_eq!(world.gauges(&second, "upgradeoperator_").await, [""; 0]);
        first.stop.cancel();
        world.seconds(5).await;
        assert!(first.task.is_finished());
        world.minutes(2).await;
        assert!(!world.gauges(&second, "upgradeoperator_").await.is_empty());
        world.until(Phase::Upgraded, 240).await;
    });
}

fn a_standby_syncs_in_the_original_only() {
    in_world(async {
        for compat in Compat::VARIANTS {
            let world = World::new().await;
            world.configure(&by_ocm()).await;
            world.ocm.schedule("p-1", VERSION, world.at(60));
            world.lead_elsewhere().await;
            let _standby = world.start_replica("b.test", *compat);
            for _ in 0..30 {
                world.seconds(5).await;
                world.lead_elsewhere().await;
            }
            let created = world.upgrades().get_opt(NAME).await.unwrap();
            assert_eq!(created.is_some(), *compat == Compat::Strict, "{compat}");
            assert_eq!(created.and_then(|one| one.status), None, "only the leader works on it");
        }
    });
}

/// A world whose upgrade has its extra node and its silence, and waits because its version was withdrawn.
async fn withdrawn(compat: Compat) -> (World, Program) {
    let world = World::new().await;
    world.configure(&by_ocm()).await;
    world.ocm.schedule("p-1", VERSION, world.at(10));
    let program = world.start(compat);
    world.until(Phase::Upgrading, 30).await;
    world.cluster.set_releases(&[]).await.unwrap();
    for _ in 0..40 {
        if !world.silences().is_empty() {
            break;
        }
        world.minutes(1).await;
    }
    assert_eq!(left(&world).await, (1, 1));
    assert!(!world.is_commenced().await);
    (world, program)
}

/// The silences and the extra MachineSets.
async fn left(world: &World) -> (usize, usize) {
    (world.silences().len(), world.extra_machine_sets().await)
}

/// The same for an upgrade that did not commence, and is cancelled, deleted or edited.
fn left_by(compat: Compat) -> (usize, usize) {
    match compat {
        Compat::Repaired => (0, 0),
        Compat::Strict => (1, 1),
    }
}

/// A world whose upgrade has commenced, with an extra node and a silence. Then its provider is the object in the cluster.
async fn commenced() -> (World, Program) {
    let world = World::new().await;
    world.configure(&by_ocm()).await;
    world.ocm.schedule("p-1", VERSION, world.at(10));
    let program = world.start(Compat::Repaired);
    world.until_commenced(60).await;
    world.configure(LOCAL).await;
    (world, program)
}

fn a_cancelled_upgrade_leaves_nothing() {
    in_world(async {
        for compat in Compat::VARIANTS {
            let (world, _program) = withdrawn(*compat).await;
            world.ocm.set_state("p-1", "cancelled", "");
            world.until_gone(5).await;
            world.seconds(5).await;
            assert_eq!(left(&world).await, left_by(*compat));
        }
    });
}

fn a_deleted_upgrade_leaves_nothing() {
    in_world(async {
        for compat in Compat::VARIANTS {
            let (world, _program) = withdrawn(*compat).await;
            world.configure(LOCAL).await;
            world.alertmanager.set_down(true);
            world.delete().await;
            world.minutes(2).await;
            assert_eq!(world.silences().len(), 1, "Alertmanager does not answer");
            world.alertmanager.set_down(false);
            world.minutes(7).await;
            assert_eq!(left(&world).await, left_by(*compat));
        }
        // One that had commenced needs them until its end.
        let (world, _program) = commenced().await;
        world.delete().await;
        world.minutes(6).await;
        assert_eq!(left(&world).await, (1, 1));
        world.minutes(120).await;
        assert_eq!(left(&world).await, (0, 0));
    });
}

fn an_edited_upgrade_leaves_nothing() {
    in_world(async {
        for compat in Compat::VARIANTS {
            let (world, _program) = withdrawn(*compat).await;
            world.configure(LOCAL).await;
            world.alertmanager.set_down(true);
            let later =
                json!({"upgradeAt": world.at(500).to_string(), "desired": {"version": "4.16.5"}});
            world.cluster.set_releases(&[Release::new("4.16.5")]).await.unwrap();
            world.patch(&json!({"spec": later})).await;
            world.until(Phase::Pending, 5).await;
            world.minutes(2).await;
            assert_eq!(world.silences().len(), 1, "Alertmanager does not answer");
            world.alertmanager.set_down(false);
            world.minutes(7).await;
            assert_eq!(left(&world).await, left_by(*compat));
        }
        // Also if the request that has replaced it has failed.
        let (world, _program) = withdrawn(Compat::Repaired).await;
        world.configure(LOCAL).await;
        world.alertmanager.set_down(true);
        let downgrade = json!({"version": "4.16.1"});
        world
            .patch(
                &json!({"spec": {"upgradeAt": world.at(-200).to_string(), "desired": downgrade}}),
            )
            .await;
        world.until(Phase::Failed, 10).await;
        assert_eq!(world.silences().len(), 1, "Alertmanager does not answer");
        world.alertmanager.set_down(false);
        world.minutes(7).await;
        assert_eq!(left(&world).await, (0, 0));
        // One that had commenced needs them until its end.
        let (world, _program) = commenced().await;
        world.patch(&json!({"spec": {"upgradeAt": world.at(500).to_string(), "desired": {"version": "4.16.5"}}})).await;
        world.until(Phase::Pending, 5).await;
        world.minutes(6).await;
        assert_eq!(left(&world).await, (1, 1));
        world.minutes(120).await;
        assert_eq!(left(&world).await, (0, 0));
    });
}

fn a_cancellation_crosses_the_beginning() {
    in_world(async {
        let (world, _program) = withdrawn(Compat::Repaired).await;
        // The sync has the answer that the policy is cancelled only after the upgrade has commenced.
        world.ocm.set_state("p-1", "cancelled", "");
        world.ocm.troubles().set(Some(Trouble::Slow(Duration::from_secs(25))));
        world.cluster.set_releases(&[Release::new(VERSION)]).await.unwrap();
        world.until_commenced(5).await;
        world.ocm.troubles().set(None);
        world.minutes(3).await;
        assert_eq!(world.phase().await, Some(Phase::Upgrading));
        assert_eq!(left(&world).await, (1, 1));
        let upgrade = world.upgrade().await;
        let held = upgrade.entry().unwrap().condition("UpgradeConfigHeld").unwrap();
        assert!(held.message.starts_with("The provider wants no upgrade any more"), "{held:?}");
        let last = upgrade.entry().unwrap().conditions.last().unwrap();
        assert_eq!((&*last.status, &*last.reason), ("True", "UnderWay"));
        world.until_gone(240).await;
    });
}

fn a_provider_out_of_reach_is_shown() {
    in_world(async {
        for compat in Compat::VARIANTS {
            let world = World::new().await;
            world.configure(&by_ocm()).await;
            world.ocm.schedule("p-1", VERSION, world.at(10));
            let _program = world.start(*compat);
            world.until(Phase::Pending, 5).await;
            world.ocm.troubles().set(Some(Trouble::Status(500)));
            world.minutes(15).await;
            assert_eq!(world.phase().await, Some(Phase::Pending));
            let shown = async || {
                let upgrade = world.upgrade().await;
                let shown = upgrade.entry().unwrap().condition("SyncFailed").cloned();
                shown.map(|one| (one.status, one.message.contains("500")))
            };
            match compat {
                Compat::Repaired => assert_eq!(shown().await, Some(("True".to_owned(), true))),
                Compat::Strict => assert_eq!(shown().await, None),
            }
            world.ocm.troubles().set(None);
            world.until(Phase::Upgrading, 5).await;
            assert_eq!(shown().await, None);
        }
    });
}

fn a_deleted_upgrade_config_resumes() {
    in_world(async {
        let world = World::new().await;
        world.configure(&by_ocm()).await;
        world.ocm.schedule("p-1", VERSION, world.at(10));
        let _program = world.start(Compat::Repaired);
        world.until(Phase::Upgrading, 30).await;
        world.minutes(5).await;
        assert!(world.is_commenced().await);
        while world.ocm.logs().len() < 2 {
            world.minutes(1).await;
        }
        let uid = world.upgrade().await.metadata.uid;
        world.delete().await;
        world.minutes(3).await;
        assert_eq!(world.phase().await, Some(Phase::Upgrading));
        assert_ne!(world.upgrade().await.metadata.uid, uid);
        world.until_completed("p-1", 240).await;
        assert_eq!(world.ocm.logs().len(), 3, "entries of the service log are posted once");
    });
}

fn an_upgrade_whose_policy_is_gone_is_completed() {
    in_world(async {
        let world = World::new().await;
        world.configure(&by_ocm()).await;
        world.ocm.schedule("p-1", VERSION, world.at(10));
        let _program = world.start(Compat::Repaired);
        world.until_commenced(60).await;
        world.ocm.delete("p-1");
        world.minutes(5).await;
        assert_eq!(world.phase().await, Some(Phase::Upgrading), "it is held");
        world.until_gone(240).await;
        let cluster: ClusterVersion = Api::all(world.client.clone()).get("version").await.unwrap();
        assert_eq!(cluster.status.unwrap().history[0].version, VERSION);
    });
}

/// What has been done when an upgrade is complete.
async fn assert_complete(world: &World) {
    let upgrade = world.upgrade().await;
    let entry = upgrade.entry().unwrap();
    let steps = entry.conditions.iter().filter(|one| !one.type_.starts_with("State"));
    let not_done: Vec<&str> =
        steps.filter(|one| one.status != "True").map(|one| &*one.type_).collect();
    assert_eq!(not_done, [""; 0]);
    assert!(entry.worker_start_time.is_some() && entry.worker_complete_time.is_some());
    assert_eq!(world.silences(), [""; 0]);
    let cluster: ClusterVersion = Api::all(world.client.clone()).get("version").await.unwrap();
    assert_eq!(cluster.status.unwrap().history[0].version, VERSION);
}

fn an_upgrade_waits_for_its_time_and_runs_through() {
    in_world(async {
        for compat in Compat::VARIANTS {
            let world = World::new().await;
            // A sync would delete an UpgradeConfig that is complete.
            world.configure(&by_ocm().replace("watchInterval: 1}", "watchInterval: 500}")).await;
            world.ocm.schedule("p-1", VERSION, world.at(30));
            let program = world.start(*compat);
            // In the original, Prometheus remembers what was sent.
            let scrape = async {
                loop {
                    world.seconds(15).await;
                    world.prometheus.scraped(&world.get(&program, 8383, "/metrics").await.unwrap());
                }
            };
            let upgrade = async {
                world.minutes(20).await;
                assert_eq!(world.phase().await, Some(Phase::Pending), "{compat}");
                assert!(!world.is_commenced().await);
                world.until(Phase::Upgrading, 12).await;
                // An extra node takes some minutes.
                world.minutes(15).await;
                assert!(world.is_commenced().await, "{compat}");
                assert_eq!(world.silences().len(), 1, "{compat}");
                assert_eq!(world.ocm.policy("p-1").unwrap().state, "started");
                world.until(Phase::Upgraded, 240).await;
                assert_complete(&world).await;
                assert_eq!(world.ocm.policy("p-1").unwrap().state, "completed", "{compat}");
                let logs = world.ocm.logs();
                let mut logs: Vec<&str> =
                    logs.iter().map(|log| log["summary"].as_str().unwrap()).collect();
                let mut wanted = vec![
                    "Cluster is starting with control and worker plane upgrade",
                    "Cluster has finished control plane upgrade",
                    "Cluster has finished with worker plane upgrade",
                ];
                match compat {
                    Compat::Repaired => {}
                    Compat::Strict => {
                        // It misses the deployment-validation-operator, and the scrape may lag.
                        wanted.insert(
                            0,
                            "Cluster has encountered healthcheck failure during upgrade",
                        );
                        logs.dedup();
                    }
                }
                assert_eq!(logs, wanted, "{compat}");
            };
            tokio::select! {
                () = scrape => {}
                () = upgrade => {}
            }
        }
        let world = World::new().await;
        let program = world.start(Compat::Repaired);
        world.request("tomorrow").await;
        world.minutes(2).await;
        let failed =
            world.gauges(&program, "upgradeoperator_upgradeconfig_validation_failed").await;
        assert!(failed[0].ends_with(" 1"), "{failed:?}");
        let upgrade = world.upgrade().await;
        let shown = upgrade.entry().unwrap().condition("UpgradeConfigValid").unwrap();
        assert!(shown.message.contains("invalid time \"tomorrow\""), "{shown:?}");
    });
}

fn each_deviation_is_documented() {
    let facts = include_str!("../../../../docs/facts/openshift-upgrades.md");
    let (_, deviations) = facts.split_once("## Deviations").unwrap();
    for number in 1..=17 {
        let row = format!("| M{number} | ");
        let row = deviations.lines().find(|line| line.starts_with(&row)).unwrap();
        let cells = row.split('|').filter(|cell| !cell.trim().is_empty());
        assert_eq!(cells.count(), 3, "{row}");
    }
}
