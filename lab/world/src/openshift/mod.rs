//! A world with an OpenShift cluster: the simulated cluster, what its upgrades depend on, and refit-managed, in one process
//! and on one clock.
//!
//! | module | is for |
//! |---|---|
//! | `program` | runs refit-managed, which can be killed at every write |
//! | `sweep` | with the feature `sabotage`: kills it at every write of an upgrade |

mod program;
#[cfg(feature = "sabotage")]
pub mod sweep;

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use lab_apiserver::{ApiServer, auth::Authentication};
use lab_openshift::{Blueprint, Site, ocm::Ocm, site::OCM_HOST};
use refit_managed::Compat;
use refit_openshift::{
    config::{CONFIG_KEY, CONFIG_MAP, Platform},
    upgrade_config::{NAME, NAMESPACE, UpgradeConfig},
};
use refit_runtime::{Clock, gate::Effect};
use serde_json::{Value, json};
use tokio::task::JoinSet;

pub use self::program::Kill;
use self::program::Program;

/// How long a new cluster takes to settle.
const SETTLE: std::time::Duration = std::time::Duration::from_mins(5);

/// Options of a world.
#[derive(Clone, Debug)]
pub struct WorldOptions {
    /// The clock.
    pub clock: Clock,
    /// The platform, whose steps are taken. Upgrades of OSD are requested by policies of OCM, those of ARO by an UpgradeConfig.
    pub platform: Platform,
    /// Whether faults of the original are repaired.
    pub compat: Compat,
    /// How callers of the API from outside of the process are authenticated.
    pub authentication: Authentication,
    /// The secret part of the pull secret, with which OCM is called.
    pub ocm_token: String,
}

impl WorldOptions {
    /// A world that starts at a fixed time.
    pub fn new(platform: Platform) -> Self {
        Self {
            clock: Clock::simulated("2026-03-02T08:00:00Z".parse().expect("a valid time")),
            platform,
            compat: Compat::Repaired,
            authentication: Authentication::Open,
            ocm_token: Blueprint::default().ocm_token,
        }
    }
}

/// A cluster and the program. Dropping it stops everything in it.
#[derive(Debug)]
pub struct World {
    pub(crate) site: Site,
    platform: Platform,
    program: Arc<Program>,
    tasks: JoinSet<()>,
}

impl World {
    /// Creates a cluster of version 4.16.3 with three workers, and starts the program.
    pub async fn new(options: WorldOptions) -> anyhow::Result<Self> {
        // What is random in the program is the same in each world: it runs in the thread of its runtime.
        fastrand::seed(1);
        let blueprint = Blueprint { ocm_token: options.ocm_token, ..Blueprint::default() };
        let site = Site::new(options.clock, &blueprint, options.authentication).await?;
        site.add_token_secret().await?;
        let program = Arc::new(Program::new(&site, options.compat)?);
        let world = Self { site, platform: options.platform, program, tasks: JoinSet::new() };
        world.set_config(&config(options.platform)).await?;
        world.pass(SETTLE).await;
        world.run()
    }

    fn run(mut self) -> anyhow::Result<Self> {
        self.tasks.spawn(self.program.clone().run());
        let metrics = self.program.metrics()?;
        self.tasks.spawn(program::scrape(metrics, self.site.prometheus.clone()));
        Ok(self)
    }

    /// The current time in the world.
    pub fn now(&self) -> Timestamp {
        self.site.clock.now_seconds()
    }

    /// Lets time pass.
    pub async fn pass(&self, time: std::time::Duration) {
        tokio::time::sleep(time).await;
    }

    /// Sets the configuration of the program.
    pub async fn set_config(&self, config: &Value) -> kube::Result<()> {
        let text = serde_json::to_string_pretty(config).map_err(kube::Error::SerdeError)?;
        let body = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": CONFIG_MAP}, "data": {CONFIG_KEY: text},
        });
        let apply = PatchParams::apply(crate::direct::USER).force();
        let maps: Api<ConfigMap> = Api::namespaced(self.site.client.clone(), NAMESPACE);
        maps.patch(CONFIG_MAP, &apply, &Patch::Apply(&body)).await.map(|_| ())
    }

    /// The API server itself, to read it without HTTP.
    pub fn server(&self) -> &ApiServer {
        &self.site.server
    }

    /// A client of the API with all rights.
    pub fn client(&self) -> Client {
        self.site.client.clone()
    }

    /// OCM.
    pub fn ocm(&self) -> &Ocm {
        &self.site.ocm
    }

    /// The silences in Alertmanager.
    pub fn silences(&self) -> Vec<Value> {
        self.site.alertmanager.silences(self.now())
    }

    /// Kills the program. It starts again after a time.
    pub fn kill(&self, after: SignedDuration) {
        self.program.kill(after);
    }

    /// Kills the program at a write that is to come.
    pub fn arm(&self, kill: Kill) {
        self.program.arm(kill);
    }

    /// Whether the program was killed at that write.
    pub fn has_fired(&self) -> bool {
        self.program.has_fired()
    }

    /// How often the program was started.
    pub fn starts(&self) -> u32 {
        self.program.starts()
    }

    /// The writes of the program so far, also those that were prevented.
    pub fn writes(&self) -> Vec<Effect> {
        self.program.writes()
    }

    /// The UpgradeConfig, as stored.
    pub fn upgrade(&self) -> Option<Value> {
        let group = "upgrade.managed.openshift.io";
        self.site.server.get_value(group, "upgradeconfigs", NAMESPACE, NAME)
    }

    /// The phase of the upgrade; empty without one.
    pub fn phase(&self) -> String {
        let upgrade = self.upgrade().unwrap_or_default();
        refit_kinds::json::text(&upgrade, "/status/history/0/phase").to_owned()
    }

    /// Schedules an upgrade in OCM.
    pub fn schedule(&self, policy: &str, version: &str, after: SignedDuration) {
        self.site.ocm.schedule(policy, version, self.now() + after);
    }

    /// Requests an upgrade with an UpgradeConfig.
    pub async fn request(&self, version: &str, after: SignedDuration) -> kube::Result<()> {
        let upgrade = json!({
            "apiVersion": "upgrade.managed.openshift.io/v1alpha1", "kind": "UpgradeConfig",
            "metadata": {"name": NAME},
            "spec": {
                "desired": {"version": version, "channel": channel(version)},
                "upgradeAt": (self.now() + after).to_string(),
                "PDBForceDrainTimeout": 60, "type": self.platform.to_string(),
            },
        });
        let upgrade: UpgradeConfig =
            serde_json::from_value(upgrade).map_err(kube::Error::SerdeError)?;
        let upgrades: Api<UpgradeConfig> = Api::namespaced(self.site.client.clone(), NAMESPACE);
        upgrades.create(&PostParams::default(), &upgrade).await.map(|_| ())
    }
}

/// The channel `stable` of a version.
fn channel(version: &str) -> String {
    let minor = version.rsplit_once('.').map_or(version, |(minor, _)| minor);
    format!("stable-{minor}")
}

/// The configuration that a world begins with.
fn config(platform: Platform) -> Value {
    let source = match platform {
        Platform::Osd => json!({"source": "OCM", "ocmBaseUrl": format!("http://{OCM_HOST}")}),
        Platform::Aro => json!({"source": "LOCAL", "localConfigName": NAME}),
    };
    let mut config = json!({
        "upgradeType": platform.to_string(),
        "configManager": source,
        "maintenance": {"controlPlaneTime": 90},
        "scale": {"timeOut": 30},
        "upgradeWindow": {"delayTrigger": 30, "timeOut": 120},
        "nodeDrain": {"timeOut": 45, "expectedNodeDrainTime": 8},
        "featureGate": {"enabled": ["PreHealthCheck", "ServiceLogNotification"]},
    });
    config["configManager"]["watchInterval"] = json!(1);
    config
}
