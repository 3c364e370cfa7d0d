//! The differences between a control plane Machine and its control plane
//! (`docs/facts/control-plane.md#rollout` and `docs/facts/control-plane.md#differences`).

use std::fmt;

use jiff::{SignedDuration, Timestamp};
use refit_kinds::json::{annotations, created_at, text, time};
use refit_kinds::version::StatedVersion;
use serde_json::Value;

use crate::{
    desired::{control_plane::ControlPlane, is_clone_of},
    kubeadm_config,
};

/// Why a Machine is not up to date. `Display` uses the text of Cluster API's condition `UpToDate`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Difference {
    /// `spec.rollout.after` has passed, and the Machine is older.
    RolloutAfter,
    /// Its certificates expire within `spec.rollout.before.certificatesExpiryDays`. The Machine
    /// reports the expiry; if it does not, the expiry is unknown.
    Certificates,
    /// Its version differs.
    Version {
        /// `spec.version` of the Machine.
        has: StatedVersion,
        /// `spec.version` of the control plane.
        wants: StatedVersion,
    },
    /// Its KubeadmConfig differs from the desired one.
    KubeadmConfig,
    /// Its infrastructure machine was cloned from another template.
    Infrastructure {
        /// Kind of the infrastructure machine.
        kind: String,
    },
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RolloutAfter => f.write_str("KubeadmControlPlane spec.rolloutAfter expired"),
            Self::Certificates => f.write_str("Certificates will expire soon, rollout required"),
            Self::Version { has, wants } => write!(f, "Version {has}, {wants} required"),
            Self::KubeadmConfig => f.write_str("KubeadmConfig is not up-to-date"),
            Self::Infrastructure { kind } => write!(f, "{kind} is not up-to-date"),
        }
    }
}

impl Difference {
    /// Returns every difference of a Machine, dates first. An unknown part counts as equal.
    pub fn all(
        plane: ControlPlane<'_>,
        machine: &Value,
        infrastructure: Option<&Value>,
        config: Option<&Value>,
        now: Timestamp,
    ) -> Vec<Self> {
        let wanted = plane.object;
        let mut found = Self::by_date(wanted, machine, now);
        let version = |object: &Value| StatedVersion::from(text(object, "/spec/version"));
        let (has, wants) = (version(machine), version(wanted));
        if has != wants {
            found.push(Self::Version { has, wants });
        }
        if config.is_some_and(|config| !kubeadm_config::is_up_to_date(&config["spec"], wanted)) {
            found.push(Self::KubeadmConfig);
        }
        let template = plane.infrastructure_template();
        if infrastructure.is_some_and(|found| !is_clone_of(&annotations(found), &template)) {
            let kind = text(machine, "/spec/infrastructureRef/kind").to_owned();
            found.push(Self::Infrastructure { kind });
        }
        found
    }

    /// Returns the differences that an in-place update cannot remove, because it does not change
    /// the age of the Machine.
    fn by_date(control_plane: &Value, machine: &Value, now: Timestamp) -> Vec<Self> {
        let after = time(control_plane, "/spec/rollout/after");
        let days = control_plane
            .pointer("/spec/rollout/before/certificatesExpiryDays")
            .and_then(Value::as_i64);
        let margin = |days: i64| SignedDuration::from_secs(days.saturating_mul(24 * 3600));
        let mut found = Vec::new();
        if after.is_some_and(|after| after <= now && created_at(machine) < after) {
            found.push(Self::RolloutAfter);
        }
        if days
            .zip(time(machine, "/status/certificatesExpiryDate"))
            .is_some_and(|(days, end)| end.duration_since(now) <= margin(days))
        {
            found.push(Self::Certificates);
        }
        found
    }

    /// Reports whether only a new Machine removes this difference.
    pub fn is_by_date(&self) -> bool {
        match self {
            Self::RolloutAfter | Self::Certificates => true,
            Self::Version { .. } | Self::KubeadmConfig | Self::Infrastructure { .. } => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn control_plane(rollout: &Value) -> Value {
        json!({
            "metadata": {"name": "edge-1"},
            "spec": {
                "version": "v1.35.0",
                "kubeadmConfigSpec": {"joinConfiguration": {"nodeRegistration": {"name": "n"}}},
                "machineTemplate": {"spec": {"infrastructureRef": {
                    "apiGroup": "infrastructure.cluster.x-k8s.io",
                    "kind": "DockerMachineTemplate", "name": "new",
                }}},
                "rollout": rollout,
            },
        })
    }

    fn machine(version: &str) -> Value {
        json!({
            "metadata": {"name": "m", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {
                "clusterName": "edge-1", "version": version,
                "infrastructureRef": {"apiGroup": "i", "kind": "DockerMachine", "name": "m"},
            },
            "status": {"certificatesExpiryDate": "2026-04-01T00:00:00Z"},
        })
    }

    fn infrastructure(template: &str) -> Value {
        json!({"metadata": {"name": "m", "annotations": {
            "cluster.x-k8s.io/cloned-from-name": template,
            "cluster.x-k8s.io/cloned-from-groupkind":
                "DockerMachineTemplate.infrastructure.cluster.x-k8s.io",
        }}})
    }

    fn config(name: &str) -> Value {
        json!({"metadata": {"name": "m"}, "spec": {
            "clusterConfiguration": {"featureGates": {"ControlPlaneKubeletLocalMode": true}},
            "joinConfiguration": {"nodeRegistration": {"name": name}},
        }})
    }

    fn differences(
        rollout: &Value,
        version: &str,
        parts: Option<(Value, Value)>,
        now: &str,
    ) -> Vec<String> {
        let object = control_plane(rollout);
        let plane = ControlPlane { object: &object, cluster: "edge-1" };
        let (infrastructure, config) = parts.unzip();
        let now = now.parse().unwrap();
        Difference::all(plane, &machine(version), infrastructure.as_ref(), config.as_ref(), now)
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn each_difference_has_its_message() {
        let rollout = json!({"after": "2026-01-15T00:00:00Z"});
        let parts = (infrastructure("old"), config("other"));
        assert_eq!(
            differences(&rollout, "v1.34.2", Some(parts), "2026-02-01T00:00:00Z"),
            [
                "KubeadmControlPlane spec.rolloutAfter expired",
                "Version v1.34.2, v1.35.0 required",
                "KubeadmConfig is not up-to-date",
                "DockerMachine is not up-to-date",
            ]
        );
    }

    #[test]
    fn a_machine_like_its_spec_has_no_difference() {
        let rollout = json!({"after": "2026-03-01T00:00:00Z"});
        let parts = (infrastructure("new"), config("n"));
        let found = differences(&rollout, "v1.35.0", Some(parts), "2026-02-01T00:00:00Z");
        assert!(found.is_empty(), "{found:?}");
    }

    #[test]
    fn a_part_that_is_not_known_counts_as_equal() {
        let none = json!({});
        assert!(differences(&none, "v1.35.0", None, "2026-02-01T00:00:00Z").is_empty());
        let bare = json!({"metadata": {"name": "m"}});
        let parts = (bare, config("n"));
        assert!(differences(&none, "v1.35.0", Some(parts), "2026-02-01T00:00:00Z").is_empty());
    }

    #[test]
    fn a_date_makes_a_machine_outdated_once_it_is_reached() {
        let rollout = json!({
            "after": "2026-02-01T00:00:00Z", "before": {"certificatesExpiryDays": 10},
        });
        let (after, certificates) = (
            "KubeadmControlPlane spec.rolloutAfter expired",
            "Certificates will expire soon, rollout required",
        );
        let table: [(&str, &[&str]); 4] = [
            ("2026-01-31T00:00:00Z", &[]),
            ("2026-02-01T00:00:00Z", &[after]),
            ("2026-03-21T23:59:59Z", &[after]),
            ("2026-03-22T00:00:00Z", &[after, certificates]),
        ];
        for (now, want) in table {
            assert_eq!(differences(&rollout, "v1.35.0", None, now), want, "{now}");
        }
        let unlimited = differences(&json!({}), "v1.35.0", None, "9999-01-01T00:00:00Z");
        assert!(unlimited.is_empty());
    }
}
