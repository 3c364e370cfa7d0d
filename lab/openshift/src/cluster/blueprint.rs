//! What a cluster is to look like.

use super::Release;

/// Describes a cluster that [`super::Cluster::create`] builds.
#[derive(Clone, Debug)]
pub struct Blueprint {
    /// `spec.clusterID` of the ClusterVersion.
    pub cluster_id: String,
    /// The channel.
    pub channel: String,
    /// The releases that the cluster had, the oldest first; the last one is that which it runs.
    pub history: Vec<Release>,
    /// All other releases.
    pub releases: Vec<Release>,
    /// The machine pools of the workers.
    pub workers: Vec<Workers>,
    /// How many replicas the application has. Each pod needs a node of its own only if there are as many.
    pub application: u32,
    /// The certificate authority of the cluster's own services, in PEM.
    pub service_ca: String,
    /// The secret part of the pull secret for OpenShift Cluster Manager.
    pub ocm_token: String,
    /// Whether there is a FileIntegrity, as in FedRAMP.
    pub has_file_integrity: bool,
}

/// A machine pool of workers: one MachineSet.
#[derive(Clone, Debug)]
pub struct Workers {
    /// The machine pool, which is a label and part of the names.
    pub pool: String,
    /// The zone.
    pub zone: String,
    /// How many Machines.
    pub replicas: u32,
    /// Whether the nodes have a MachineConfigPool of their own.
    pub has_own_config: bool,
}

impl Workers {
    /// A pool in the zone `us-east-1a`.
    pub fn new(pool: &str, replicas: u32) -> Self {
        let (pool, zone) = (pool.to_owned(), "us-east-1a".to_owned());
        Self { pool, zone, replicas, has_own_config: false }
    }

    /// Name of its MachineSet.
    pub fn machine_set(&self) -> String {
        format!("lab-{}-{}", self.pool, self.zone)
    }
}

impl Default for Blueprint {
    /// A cluster of version 4.16.3 with three workers, an update in its channel, one with a known risk, and one of the next
    /// minor version.
    fn default() -> Self {
        let also = |version| Release::new(version).also_in(&["stable-4.17"]);
        Self {
            cluster_id: "3a5f4c7e-98d1-4a3c-9f0e-0c1d2e3f4a5b".to_owned(),
            channel: "stable-4.16".to_owned(),
            history: vec![Release::new("4.15.20"), also("4.16.3")],
            releases: vec![
                also("4.16.4"),
                also("4.16.5").with_risk("Nodes with much memory may not boot."),
                Release::new("4.17.1"),
            ],
            workers: vec![Workers::new("worker", 3)],
            application: 4,
            service_ca: String::new(),
            ocm_token: "secret".to_owned(),
            has_file_integrity: false,
        }
    }
}
