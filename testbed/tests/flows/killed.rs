//! Processes that die in the middle: the run ends as an undisturbed one.

use std::time::Duration;

use anyhow::ensure;
use refit_testbed::{
    Bed, ClusterSpec,
    cluster::{TO, said},
    eventually,
    managers::Manager,
    objects::{NODE_UPDATE, text},
};
use serde_json::json;

use super::look;

const WITHIN: Duration = Duration::from_mins(8);
/// How long our hooks stay away: Cluster API's managers give up after 60 s.
const AWAY: Duration = Duration::from_secs(90);
/// How often our controller is killed.
const KILLS: usize = 5;

pub(super) async fn run(bed: &Bed) -> anyhow::Result<()> {
    let _alone = bed.alone().await;
    let spec = ClusterSpec {
        workers: vec![("md", 2, 0, 1)],
        ..ClusterSpec::default()
    };
    let cluster = bed.cluster("killed", &spec).await?;
    let before = look::identities(&cluster).await?;
    cluster
        .change_control_plane(&json!({"version": TO}))
        .await?;
    let mut seen = String::new();
    for _ in 0..KILLS {
        // Each time where the work stands otherwise than the last time.
        seen = eventually("the work goes on", WITHIN, async || {
            let updates = cluster.objects.list(NODE_UPDATE).await.map_err(said)?;
            let at: Vec<&str> = updates.iter().map(|u| text(u, "/status/phase")).collect();
            let at = at.join(" ");
            if at.is_empty() || at == seen {
                return Err(format!("it is at {at:?}"));
            }
            Ok(at)
        })
        .await?;
        bed.controller().part().crash();
    }
    for manager in [Manager::Core, Manager::Bootstrap, Manager::ControlPlane] {
        bed.managers().part(manager).crash();
    }
    bed.controller().ready().await?;
    cluster.control_plane_is_at(TO, WITHIN).await?;
    // Nobody answers when they start: they end, and come back until somebody does.
    bed.controller().part().end().await;
    for manager in [Manager::Core, Manager::ControlPlane] {
        bed.managers().part(manager).crash();
    }
    let version = json!({"template": {"spec": {"version": TO}}});
    tokio::time::sleep(AWAY).await;
    bed.controller().part().start_again();
    bed.controller().ready().await?;
    for manager in [Manager::Core, Manager::ControlPlane] {
        bed.managers().ready(manager).await?;
    }
    eventually("the workers can be changed again", WITHIN, async || {
        cluster.change_workers("md", &version).await.map_err(said)
    })
    .await?;
    cluster.workers_are_at("md", TO, WITHIN).await?;
    let after = look::identities(&cluster).await?;
    ensure!(before == after, "{before:#?} became {after:#?}");
    let updates = cluster.objects.list(NODE_UPDATE).await?;
    ensure!(
        updates.len() == before.len(),
        "{} NodeUpdates for {}",
        updates.len(),
        before.len()
    );
    look::nothing_is_left(&cluster).await
}
