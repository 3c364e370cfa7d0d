//! A cluster that carries out what an operator asks for.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{api::core::v1::ConfigMap, apimachinery::pkg::apis::meta::v1::Time};
use kube::ResourceExt as _;
use refit_openshift::{
    Compat,
    cluster_version::has_commenced,
    config::{Config, Platform, UpgraderConfig},
    decide::{Decision, decide},
    dependencies::Unavailable,
    health::{Essential, Extended, budgets::DvoRead},
    history::{first, with_entry},
    kinds::{ClusterVersion, MachineConfigPool, MachineSet},
    maintenance::{CREATED_BY, Silence, SilenceState, SilenceStatus, SilenceWrite},
    notify::note_sent,
    steps::{Fact, Facts, Known, Machines, Write},
    upgrade_config::{
        Desired, OSD, Phase, UpgradeCondition, UpgradeConfig, UpgradeConfigSpec, UpgradeHistory,
        UpgradeType,
    },
};
use serde_json::{Value, json};

pub(crate) const OLD: &str = "4.16.3";
pub(crate) const NEW: &str = "4.17.0";
const UPGRADE_AT: &str = "2026-03-02T09:00:00Z";
const CONFIG: &str = "
maintenance: {controlPlaneTime: 90}
scale: {timeOut: 30}
upgradeWindow: {delayTrigger: 30, timeOut: 120}
nodeDrain: {timeOut: 45, expectedNodeDrainTime: 8}
extDependencyAvailabilityChecks: {http: {timeout: 10, urls: ['https://api.openshift.com']}}
";

#[expect(clippy::struct_excessive_bools, reason = "independent troubles, not a state")]
pub(crate) struct Cluster {
    pub(crate) upgrade: UpgradeConfig,
    compat: Compat,
    pub(crate) config: UpgraderConfig,
    version: Value,
    pub(crate) pools: Vec<MachineConfigPool>,
    /// The versions that are offered.
    pub(crate) offers: Vec<String>,
    /// The critical alerts that fire.
    pub(crate) alerts: Vec<String>,
    pub(crate) paging: Vec<String>,
    pub(crate) dependency_is_down: bool,
    pub(crate) control_plane_hangs: bool,
    pub(crate) workers_take_time: bool,
    pub(crate) drains_fail: bool,
    pub(crate) drain_is_unknown: bool,
    pub(crate) refreshed: Result<bool, String>,
    pub(crate) asks_cincinnati: bool,
    machines: Machines,
    silences: Vec<Silence>,
    /// The notifications that were sent.
    pub(crate) sent: Vec<String>,
    /// The notifications that cannot be sent.
    pub(crate) refuses: Vec<String>,
    /// The writes, without reads.
    pub(crate) written: Vec<Write>,
    pub(crate) now: Timestamp,
}

fn of<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

impl Cluster {
    /// A cluster whose upgrade was due a minute ago.
    pub(crate) fn new(compat: Compat) -> Self {
        let spec = UpgradeConfigSpec {
            desired: Desired {
                version: Some(NEW.into()),
                channel: Some("stable-4.17".into()),
                image: None,
            },
            upgrade_at: UPGRADE_AT.into(),
            pdb_force_drain_timeout: 60,
            type_: UpgradeType(OSD.into()),
            capacity_reservation: None,
        };
        let map: ConfigMap = of(json!({"data": {"config.yaml": CONFIG}}));
        let pool = json!({
            "apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfigPool",
            "metadata": {"name": "worker"}, "spec": {}, "status": {"machineCount": 3, "updatedMachineCount": 3},
        });
        let set = json!({
            "apiVersion": "machine.openshift.io/v1beta1", "kind": "MachineSet",
            "metadata": {"name": "a", "labels": {"hive.openshift.io/machine-pool": "worker"}},
            "spec": {"replicas": 3, "selector": {"matchLabels": {}}, "template": {"metadata": {"labels": {}}}},
        });
        let completed =
            json!({"state": "Completed", "version": OLD, "completionTime": "2026-02-01T00:00:00Z"});
        Self {
            upgrade: UpgradeConfig::new("managed-upgrade-config", spec),
            compat,
            config: Config::parse(Some(&map), compat).unwrap().upgrader().unwrap(),
            version: json!({
                "apiVersion": "config.openshift.io/v1", "kind": "ClusterVersion",
                "metadata": {"name": "version"},
                "spec": {"clusterID": "id", "channel": "stable-4.16"},
                "status": {"desired": {"version": OLD}, "history": [completed]},
            }),
            pools: vec![of(pool)],
            offers: vec![NEW.into(), "4.17.9".into()],
            alerts: Vec::new(),
            paging: Vec::new(),
            dependency_is_down: false,
            control_plane_hangs: false,
            workers_take_time: false,
            drains_fail: false,
            drain_is_unknown: false,
            refreshed: Ok(true),
            asks_cincinnati: false,
            machines: Machines { sets: vec![of(set)], ..Machines::default() },
            silences: Vec::new(),
            sent: Vec::new(),
            refuses: Vec::new(),
            written: Vec::new(),
            now: UPGRADE_AT.parse::<Timestamp>().unwrap() + SignedDuration::from_mins(1),
        }
    }

    pub(crate) fn upgrade_at(&self) -> Timestamp {
        self.upgrade.spec.upgrade_at.parse().unwrap()
    }

    fn cluster_version(&self) -> ClusterVersion {
        let mut version = self.version.clone();
        let offers = self.offers.iter().map(|version| json!({"version": version, "image": "i"}));
        version["status"]["availableUpdates"] = offers.collect();
        of(version)
    }

    pub(crate) fn history(&self) -> Vec<UpgradeHistory> {
        self.upgrade.status.clone().unwrap_or_default().history
    }

    pub(crate) fn entry(&self) -> UpgradeHistory {
        self.upgrade.entry().unwrap().clone()
    }

    pub(crate) fn first_entry(&self) -> UpgradeHistory {
        first(&self.upgrade, &self.cluster_version(), (self.now, self.compat)).unwrap()
    }

    pub(crate) fn edit_entry(&mut self, edit: impl FnOnce(&mut UpgradeHistory)) {
        let mut entry = self.entry();
        edit(&mut entry);
        self.upgrade.status = Some(with_entry(self.upgrade.status.as_ref(), entry, self.compat));
    }

    pub(crate) fn condition(&self, step: &str) -> UpgradeCondition {
        self.entry().condition(step).unwrap().clone()
    }

    fn completed(&self) -> Timestamp {
        self.entry().complete_time.unwrap().0
    }

    fn ran(&self) -> SignedDuration {
        self.completed().duration_since(self.entry().start_time.unwrap().0)
    }

    pub(crate) fn pass(&mut self, duration: SignedDuration) {
        self.now += duration;
    }

    /// Looks until the upgrade is in a phase, and once more if its steps begin then.
    pub(crate) fn run_to(&mut self, phase: Phase) -> Decision {
        for _ in 0..20 {
            let decision = self.look();
            if self.entry().phase == phase {
                return if phase == Phase::Upgrading { self.look() } else { decision };
            }
        }
        panic!("{:#?}", self.entry());
    }

    /// A look, with all reads and writes that it asks for.
    pub(crate) fn look(&mut self) -> Decision {
        let mut entry = self.upgrade.entry().cloned().unwrap_or_else(|| self.first_entry());
        let (mut facts, mut tried) = (Facts::default(), Vec::new());
        let desired = self.upgrade.spec.desired.clone();
        let was_commenced = has_commenced(&self.cluster_version(), &desired) == Ok(true);
        for _ in 0..100 {
            let decision = decide(
                Platform::of(&self.upgrade.spec.type_),
                &Known {
                    upgrade: &self.upgrade,
                    entry: &entry,
                    compat: self.compat,
                    config: &self.config,
                    asks_cincinnati: self.asks_cincinnati,
                    architecture: "amd64",
                    cluster: &self.cluster_version(),
                    was_commenced,
                    pools: &self.pools,
                    facts: facts.clone(),
                    tried: tried.clone(),
                    now: self.now,
                },
            );
            if decision.writes.is_empty() {
                let status =
                    with_entry(self.upgrade.status.as_ref(), decision.entry.clone(), self.compat);
                self.upgrade.status = Some(status);
                return decision;
            }
            for write in decision.writes {
                if let Write::Read(fact) = &write {
                    self.read(fact, &mut facts);
                } else {
                    let outcome = self.perform(&write, &mut facts, &mut entry);
                    self.written.push(write.clone());
                    tried.push((write, outcome));
                }
            }
        }
        panic!("{tried:#?}");
    }

    fn read(&self, fact: &Fact, facts: &mut Facts) {
        match fact {
            Fact::Health => {
                let (alerts, operators) = (Ok(self.alerts.clone()), Ok(Vec::new()));
                facts.health = Some(Essential { alerts, operators });
            }
            Fact::MoreHealth => {
                facts.more_health = Some(Extended {
                    can_scale: None,
                    nodes: Ok(Vec::new()),
                    budgets: Ok(Vec::new()),
                    dvo: DvoRead::Metrics(String::new()),
                });
            }
            Fact::Dependencies(urls) => {
                let status = |url: &String| Unavailable::Server { url: url.clone(), status: 503 };
                let down = urls.iter().filter(|_| self.dependency_is_down);
                facts.dependencies = Some(down.map(status).collect());
            }
            Fact::Machines => facts.machines = Some(Ok(self.machines.clone())),
            Fact::Silences => facts.silences = Some(Ok(self.silences.clone())),
            Fact::Sent { event, query } => {
                assert!(query.contains(&event.to_string()), "{query}");
                facts.sent.insert(*event, Ok(self.sent.contains(&event.to_string())));
            }
            Fact::Refresh => facts.refreshed = Some(self.refreshed.clone()),
            Fact::PagingAlerts { query } => {
                let (ran, since) = (self.ran(), self.now.duration_since(self.completed()));
                let window = format!("}}[{}s] offset {}s))", ran.as_secs().max(1), since.as_secs());
                assert!(query.ends_with(&window), "{query} {window}");
                assert!(query.starts_with("sum by (alertname)(max_over_time(ALERTS{"), "{query}");
                facts.paging_alerts = Some(Ok(self.paging.clone()));
            }
            Fact::Release(image) => {
                assert_eq!(image.registry, "quay.io");
                facts.release = Some(Ok(NEW.into()));
            }
            Fact::Graph(request) => {
                assert_eq!(request.channel, "stable-4.17");
                facts.offered = Some(Ok(vec![NEW.into()]));
            }
        }
    }

    fn perform(
        &mut self,
        write: &Write,
        facts: &mut Facts,
        entry: &mut UpgradeHistory,
    ) -> Result<(), String> {
        match write {
            Write::Notify(notification) => {
                let event = notification.event.to_string();
                if self.refuses.contains(&event) {
                    return Err("refused".into());
                }
                self.sent.push(event);
                note_sent(self.compat, entry, notification.event, &notification.text, self.now);
            }
            Write::Silence(write) => {
                self.silence(write);
                facts.silences = None;
            }
            Write::CreateMachineSet(set) => {
                let mut set = (**set).clone();
                set.metadata.creation_timestamp = Some(Time(self.now));
                self.machines.sets.push(set);
                facts.machines = None;
            }
            Write::DeleteMachineSet(name) => {
                self.machines.sets.retain(|set| set.name_any() != *name);
                facts.machines = None;
            }
            Write::Drain(nodes) => {
                if self.drain_is_unknown {
                    return Err("the taint has no timeAdded".into());
                }
                let failed = nodes.iter().filter(|_| self.drains_fail);
                facts.failed_drains = failed.cloned().collect();
            }
            Write::Request(patch) => self.request(patch),
            Write::ReinitFileIntegrity => {}
            Write::SetVersion(version) => {
                if self.refuses.contains(&"SetVersion".to_owned()) {
                    return Err("refused".into());
                }
                self.upgrade.spec.desired.version = Some(version.clone());
            }
            Write::Read(_) => panic!("{write:?}"),
        }
        Ok(())
    }

    fn silence(&mut self, write: &SilenceWrite) {
        match write {
            SilenceWrite::Create(new) => self.silences.push(Silence {
                id: self.silences.len().to_string(),
                status: SilenceStatus { state: SilenceState::Active },
                created_by: CREATED_BY.into(),
                comment: new.comment.clone(),
                starts_at: new.starts_at,
            }),
            SilenceWrite::Delete { id } => {
                let found = self.silences.iter_mut().find(|silence| silence.id == *id);
                found.unwrap().status.state = SilenceState::Expired;
            }
        }
    }

    /// Merges a patch into the ClusterVersion, and upgrades the control plane.
    pub(crate) fn request(&mut self, patch: &Value) {
        for (key, value) in patch["spec"].as_object().unwrap() {
            let mut value = value.clone();
            if let Some(fields) = value.as_object_mut() {
                fields.retain(|_, field| !field.is_null());
            }
            self.version["spec"][key] = value;
        }
        let update = &patch["spec"]["desiredUpdate"];
        let by_image = update["image"].is_string().then_some(NEW);
        let Some(version) = update["version"].as_str().or(by_image) else { return };
        let mut release = json!({"version": version, "startedTime": self.now, "state": "Partial"});
        if !self.control_plane_hangs {
            release["state"] = "Completed".into();
            release["completionTime"] = json!(self.now);
        }
        self.version["status"]["desired"]["version"] = version.into();
        self.version["status"]["history"].as_array_mut().unwrap().insert(0, release);
        if self.workers_take_time {
            self.pools[0].status.as_mut().unwrap().updated_machine_count = 0;
        }
    }

    /// The ClusterVersion has this condition only.
    pub(crate) fn show_version_condition(&mut self, type_: &str, status: &str, message: &str) {
        self.version["status"]["conditions"] =
            json!([{"type": type_, "status": status, "reason": "", "message": message}]);
    }

    /// The nodes of the extra Machines are not Ready any more.
    pub(crate) fn extras_break(&mut self) {
        for status in self.machines.nodes.iter_mut().flat_map(|node| &mut node.status) {
            for ready in status.conditions.iter_mut().flatten() {
                ready.status = "False".into();
            }
        }
    }

    pub(crate) fn remove_machine_sets(&mut self) {
        self.machines.sets.clear();
    }

    /// The Machines of the extra nodes are gone.
    pub(crate) fn extras_leave(&mut self) {
        self.machines.machines.clear();
    }

    /// Another MachineSet of workers.
    pub(crate) fn add_machine_set(&mut self, name: &str) {
        let mut set: MachineSet = self.machines.sets[0].clone();
        set.metadata.name = Some(name.into());
        self.machines.sets.push(set);
    }

    pub(crate) fn machine_sets(&self) -> Vec<String> {
        self.machines.sets.iter().map(MachineSet::name_any).collect()
    }

    /// The extra nodes join the cluster.
    pub(crate) fn extras_join(&mut self) {
        let label = "upgrade.managed.openshift.io";
        let is_extra = |set: &&mut MachineSet| set.labels().contains_key(label);
        for set in self.machines.sets.iter_mut().filter(is_extra) {
            let name = set.name_any();
            set.status = Some(of(json!({"replicas": 1, "readyReplicas": 1})));
            let labels =
                json!({label: "true", "machine.openshift.io/cluster-api-machineset": name});
            self.machines.machines.push(of(json!({
                "apiVersion": "machine.openshift.io/v1beta1", "kind": "Machine",
                "metadata": {"name": name, "labels": labels}, "spec": {},
                "status": {"phase": "Running", "nodeRef": {"name": name}},
            })));
            let ready = json!([{"type": "Ready", "status": "True"}]);
            self.machines.nodes.push(of(json!({
                "metadata": {"name": name}, "status": {"conditions": ready},
            })));
        }
    }

    pub(crate) fn active_silences(&self) -> usize {
        let active = self.silences.iter();
        active.filter(|silence| silence.status.state == SilenceState::Active).count()
    }

    pub(crate) fn expire_silences(&mut self) {
        for silence in &mut self.silences {
            silence.status.state = SilenceState::Expired;
        }
    }
}
