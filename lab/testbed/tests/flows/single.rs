//! A control plane of one Machine that is to be updated in place: at no time is there a second Machine.

use std::time::Duration;

use anyhow::ensure;
use lab_testbed::{
    Bed, Cluster, ClusterSpec,
    cluster::{TO, error_text},
    eventually,
    fault::{Fault, FaultProxy},
    objects::{CONTROL_PLANE, UPGRADE_TASK, annotation, name, text},
    recorder::Recorder,
};
use refit_kinds::keys;
use serde_json::json;

use super::{look, tasks};

const WITHIN: Duration = Duration::from_mins(5);
/// How long an update may take until the controller is cut off.
const STRUCK: Duration = Duration::from_mins(2);

/// Parts of writes that each update makes.
const WRITTEN: [&str; 5] = [
    "/kubeadmcontrolplanes/crashed",
    "POST /apis/refit.dev/v1alpha1/namespaces/crashed/upgradetasks",
    "/nodeupdates",
    "/kubeadmconfigs/",
    "/cluster.x-k8s.io/v1beta2/namespaces/crashed/machines/",
];

fn spec() -> ClusterSpec {
    ClusterSpec {
        control_planes: 1,
        surge: 1,
        workers: Vec::new(),
        holds: true,
        ..ClusterSpec::default()
    }
}

pub(super) async fn run(bed: &Bed) -> anyhow::Result<()> {
    let _calm = bed.calm().await;
    tasks::grant(bed).await?;
    let single = Single::create(bed, "single").await?;
    single.update(TO).await?;
    // Another change of the same control plane, this time of what kubeadm is given.
    let arguments = json!({"apiServer": {"extraArgs": [{"name": "v", "value": "3"}]}});
    single.change(&json!({"kubeadmConfigSpec": {"clusterConfiguration": arguments}})).await?;
    single.is_as_before().await?;
    look::nothing_is_left(&single.cluster).await
}

/// The controller crashes before and after each write of an update, one update each.
pub(super) async fn crashed(bed: &Bed) -> anyhow::Result<()> {
    let _alone = bed.alone().await;
    tasks::grant(bed).await?;
    let proxy = bed.controller().behind_proxy(bed.certs(), bed.url(), &bed.directory).await?;
    let single = Single::create(bed, "crashed").await?;
    let mut patch = 3;
    let mut next = || {
        patch += 1;
        format!("v1.34.{patch}")
    };
    proxy.connect(None);
    single.update(&next()).await?;
    let writes = proxy.writes();
    tracing::info!(?writes, "an undisturbed update");
    for part in WRITTEN {
        ensure!(writes.iter().any(|write| write.contains(part)), "no {part} in {writes:#?}");
    }
    let mut crashes = 0;
    for number in 1..=writes.len() {
        for fault in [Fault::Before(number), Fault::After(number)] {
            let version = next();
            crashes += usize::from(single.survives(bed, &proxy, fault, &version).await?);
        }
    }
    // An update may make fewer writes of status than another one.
    ensure!(crashes * 10 >= writes.len() * 2 * 9, "{crashes} crashes in {} writes", writes.len());
    single.is_as_before().await?;
    look::nothing_is_left(&single.cluster).await
}

/// A cluster of one machine that asks for updates in place.
struct Single {
    cluster: Cluster,
    recorder: Recorder,
    before: Vec<(String, Vec<String>)>,
}

impl Single {
    async fn create(bed: &Bed, name: &'static str) -> anyhow::Result<Self> {
        let cluster = bed.cluster(name, &spec()).await?;
        let opt_in = [(keys::SINGLE_REPLICA, Some("InPlace"))];
        cluster.objects.annotate(CONTROL_PLANE, name, &opt_in).await?;
        let before = look::identities(&cluster).await?.into_iter().collect();
        let recorder = Recorder::start(&cluster).await?;
        Ok(Self { cluster, recorder, before })
    }

    /// Changes the version, and waits until the update has ended.
    async fn update(&self, version: &str) -> anyhow::Result<()> {
        self.change(&json!({"version": version})).await?;
        self.cluster.control_plane_is_at(version, WITHIN).await?;
        self.is_as_before().await
    }

    /// Changes the control plane, and waits until Cluster API goes on with it.
    async fn change(&self, spec: &serde_json::Value) -> anyhow::Result<()> {
        let before = self.cluster.objects.list(UPGRADE_TASK).await?.len();
        self.cluster.change_control_plane(spec).await?;
        self.has_ended(before + 1).await
    }

    async fn has_ended(&self, tasks: usize) -> anyhow::Result<()> {
        eventually("the task has ended", WITHIN, async || {
            let found = self.cluster.objects.list(UPGRADE_TASK).await.map_err(error_text)?;
            if let Some(task) = found.iter().find(|task| text(task, "/status/phase") != "Complete")
            {
                return Err(format!("{} is {}", name(task), text(task, "/status/phase")));
            }
            if found.len() != tasks {
                return Err(format!("{} tasks instead of {tasks}", found.len()));
            }
            let plane = self.cluster.control_plane().await.map_err(error_text)?;
            match annotation(&plane, keys::PAUSED) {
                Some(_) => Err("the control plane is paused".to_owned()),
                None => Ok(()),
            }
        })
        .await
    }

    /// An update during which the controller crashes ends as any other. Returns whether it made so many writes.
    async fn survives(
        &self,
        bed: &Bed,
        proxy: &FaultProxy,
        fault: Fault,
        version: &str,
    ) -> anyhow::Result<bool> {
        let before = self.cluster.objects.list(UPGRADE_TASK).await?.len();
        proxy.connect(Some(fault));
        self.cluster.change_control_plane(&json!({"version": version})).await?;
        let is_struck = tokio::time::timeout(STRUCK, proxy.struck()).await.is_ok();
        let writes = proxy.writes();
        tracing::info!(?fault, version, is_struck, last = ?writes.last(), "crashes");
        let (Fault::Before(number) | Fault::After(number)) = fault;
        ensure!(is_struck || writes.len() < number, "{fault:?} is not in {writes:#?}");
        let (ends, _) = bed.controller().part().ends();
        bed.controller().part().crash();
        eventually("our controller has ended", WITHIN, async || {
            let (now, _) = bed.controller().part().ends();
            (now > ends).then_some(()).ok_or_else(|| "it runs".to_owned())
        })
        .await?;
        proxy.connect(None);
        bed.controller().ready().await?;
        self.has_ended(before + 1).await?;
        self.cluster.control_plane_is_at(version, WITHIN).await?;
        self.is_as_before().await?;
        Ok(is_struck)
    }

    /// The Machine is the same, and there was never another one.
    async fn is_as_before(&self) -> anyhow::Result<()> {
        let after: Vec<_> = look::identities(&self.cluster).await?.into_iter().collect();
        ensure!(self.before == after, "{:#?} became {after:#?}", self.before);
        let counts = self.recorder.counts(&self.cluster.name);
        ensure!(counts == [1], "numbers of Machines: {counts:?}");
        Ok(())
    }
}
