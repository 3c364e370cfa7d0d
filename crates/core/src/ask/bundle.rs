//! The bundle that hosts install from where Cluster API requests their updates: it knows of none, so the UpgradeTask of
//! the owner names it.

use refit_kinds::{
    canonical::{REFIT, Wanted},
    refit::{GroupBundle, Stage, UpgradeTask, Via},
    version::KubernetesVersion,
};

/// The bundle of a group that its tasks ask for: that of the oldest one that has not ended, which alone works.
pub fn bundle_of<'a>(tasks: impl IntoIterator<Item = &'a UpgradeTask>) -> Option<GroupBundle> {
    let unfinished = tasks
        .into_iter()
        .filter(|task| !task.status.as_ref().is_some_and(|status| status.phase.has_ended()));
    let task = unfinished.min_by_key(|task| task.age())?;
    let goes_on = match (task.spec.via, task.spec.stage) {
        (Via::Spec, Stage::Ongoing) => task.metadata.deletion_timestamp.is_none(),
        (Via::Spec, Stage::Abort) | (Via::Machines, _) => false,
    };
    let location = task.spec.bundle.clone().filter(|_| goes_on)?;
    Some(GroupBundle { location, version: task.spec.version.clone() })
}

/// Why it is not known yet from which bundle a Machine installs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the annotation {key} of its owner asks for bundle {location:?}, and no UpgradeTask with it works on the owner: if \
     none follows soon, remove the annotation to install from the sources of HostSettings",
    key = REFIT.upgrade_to
)]
pub struct BundleExpected {
    location: String,
}

/// The bundle for an update to a version. `noted` is what the group shows live, and `requested` the annotation of its
/// owner: between the end of one task and the next, an edited request must not lead to an update without a bundle.
pub fn bundle_for(
    version: Option<&KubernetesVersion>,
    noted: Option<&GroupBundle>,
    requested: Option<&str>,
) -> Result<Option<String>, BundleExpected> {
    let is_for = |of: &Option<KubernetesVersion>| of.is_none() || of.as_ref() == version;
    let noted = noted.filter(|bundle| is_for(&bundle.version)).map(|bundle| &bundle.location);
    if version.is_some()
        && let Some(Ok(Wanted::Bundle { location, version: of })) =
            requested.map(|text| Wanted::parse(REFIT, text))
        && is_for(&of)
        && noted != Some(&location)
    {
        return Err(BundleExpected { location });
    }
    Ok(noted.cloned().filter(|_| version.is_some()))
}

#[cfg(test)]
mod tests {
    use refit_kinds::refit::TaskPhase;
    use serde_json::json;

    use super::*;

    const OLD: &str = "v1.35.0";
    const NEW: &str = "v1.36.0";

    fn task(name: &str, spec: &serde_json::Value, phase: TaskPhase) -> UpgradeTask {
        let mut all = json!({
            "stage": "Ongoing", "clusterRef": {"name": "c"}, "via": "Spec", "version": NEW,
        });
        all.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        serde_json::from_value(json!({
            "apiVersion": "refit.dev/v1alpha1", "kind": "UpgradeTask",
            "metadata": {"name": name, "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": all,
            "status": {"phase": phase},
        }))
        .unwrap()
    }

    fn noted(tasks: &[UpgradeTask]) -> Option<String> {
        bundle_of(tasks).map(|bundle| bundle.location)
    }

    #[test]
    fn the_oldest_unfinished_task_decides_the_bundle_of_a_group() {
        let bundle = || json!({"bundle": "/a"});
        let other = task("t-2", &json!({"bundle": "/b"}), TaskPhase::Pending);
        let of = |spec, phase| noted(&[other.clone(), task("t-1", &spec, phase)]);
        assert_eq!(of(bundle(), TaskPhase::Ongoing).as_deref(), Some("/a"));
        assert_eq!(of(bundle(), TaskPhase::Failed).as_deref(), Some("/a"), "a Machine has failed");
        assert_eq!(of(bundle(), TaskPhase::Complete).as_deref(), Some("/b"));
        assert_eq!(of(json!({}), TaskPhase::Ongoing), None, "the other one waits");
        let aborted = json!({"bundle": "/a", "stage": "Abort"});
        assert_eq!(of(aborted, TaskPhase::Ongoing), None);
        let of_machines = json!({"bundle": "/a", "via": "Machines"});
        assert_eq!(of(of_machines, TaskPhase::Ongoing), None);
        assert_eq!(noted(&[]), None);
    }

    #[test]
    fn an_update_takes_only_the_bundle_of_its_own_version() {
        let (old, new) = (OLD.parse().unwrap(), NEW.parse().unwrap());
        let of = |version| GroupBundle { location: "/a".into(), version };
        for (noted, taken) in [
            (Some(of(Some(NEW.parse().unwrap()))), Some("/a")),
            (Some(of(Some(OLD.parse().unwrap()))), None),
            (Some(of(None)), Some("/a")),
            (None, None),
        ] {
            let bundle = bundle_for(Some(&new), noted.as_ref(), None).unwrap();
            assert_eq!(bundle.as_deref(), taken, "{noted:?}");
            assert_eq!(bundle_for(None, noted.as_ref(), None), Ok(None), "it installs no version");
        }
        assert_eq!(
            bundle_for(Some(&old), Some(&of(None)), Some("bundle=/a")),
            Ok(Some("/a".into()))
        );
    }

    #[test]
    fn no_update_begins_while_the_task_of_a_requested_bundle_is_missing() {
        let new = NEW.parse().unwrap();
        let noted = GroupBundle { location: "/a".into(), version: Some(NEW.parse().unwrap()) };
        for (requested, waits) in [
            ("version=v1.36.0,bundle=/b", true),
            ("bundle=/b", true),
            ("version=v1.36.0,bundle=/a", false),
            ("bundle=/a", false),
            ("version=v1.35.0,bundle=/b", false),
            ("version=v1.36.0", false),
            ("channel=1.36/stable", false),
            ("bundle=b", false),
        ] {
            let bundle = bundle_for(Some(&new), Some(&noted), Some(requested));
            assert_eq!(bundle.is_err(), waits, "{requested}");
        }
        let why = bundle_for(Some(&new), None, Some("bundle=/b")).unwrap_err().to_string();
        assert!(why.contains("refit.dev/in-place-upgrade-to") && why.contains("\"/b\""), "{why}");
    }
}
