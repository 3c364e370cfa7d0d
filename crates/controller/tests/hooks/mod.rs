//! Responses to Cluster API over the wire, by a controller that watches a fleet.

mod can_update;
mod fleet;
mod recorded;
mod update_machine;

use self::fleet::Fleet;

#[tokio::test(start_paused = true)]
async fn metrics_report_the_caches() {
    let fleet = Fleet::new().await;
    for line in [
        "machines{phase=\"None\"} 5",
        "leader 1",
        "synced 1",
        "workload_api_up{namespace=\"default\",cluster=\"edge-1\"} 1",
        "series_omitted{kind=\"UpdateGroup\"} 0",
        "workqueue_depth{controller=\"node-update\"} 0",
    ] {
        fleet.assert_metric(line).await;
    }
}
