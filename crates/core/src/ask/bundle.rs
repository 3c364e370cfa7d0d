//! The bundle that hosts install from where Cluster API requests their updates: it knows of none, so the UpgradeTask of
//! the owner names it.

use refit_kinds::{
    canonical::{BUNDLE, BadOption, REFIT, Wanted},
    conditions, keys,
    refit::{GroupBundle, Stage, UpgradeTask},
    version::KubernetesVersion,
};

use crate::task::{Obstacle, status::READY};

/// The bundle of a group that its tasks ask for: for the version of the oldest task that has not ended, which alone works.
/// What an annotation asks for comes first: its task may wait for one that names none. `requested` is the version of the owner.
pub fn bundle_of<'a>(
    tasks: impl IntoIterator<Item = &'a UpgradeTask>,
    requested: Option<&'a KubernetesVersion>,
) -> Option<GroupBundle> {
    let may_work = |task: &&UpgradeTask| !task.phase().has_ended() && !is_for_no_group(task);
    let mut unfinished: Vec<&UpgradeTask> = tasks.into_iter().filter(may_work).collect();
    unfinished.sort_by_key(|task| task.age());
    let version_of = |task: &'a UpgradeTask| version_of(task).or(requested);
    let version = version_of(unfinished.first()?)?;
    let (annotated, others): (Vec<&UpgradeTask>, Vec<&UpgradeTask>) =
        unfinished.into_iter().partition(|task| is_of_annotation(task));
    let location = annotated.into_iter().chain(others).find_map(|task| {
        let goes_on = match task.spec.stage {
            Stage::Ongoing => task.metadata.deletion_timestamp.is_none(),
            Stage::Abort => false,
        };
        let is_for_all = task.spec.machines.is_none() && version_of(task) == Some(version);
        task.spec.bundle.clone().filter(|_| goes_on && is_for_all)
    })?;
    Some(GroupBundle { location, version: version.clone() })
}

fn is_of_annotation(task: &UpgradeTask) -> bool {
    let annotations = task.metadata.annotations.as_ref();
    annotations.is_some_and(|all| all.contains_key(keys::REQUESTED_BY))
}

/// Whether a task shows that what it names is not a group of Refit.
fn is_for_no_group(task: &UpgradeTask) -> bool {
    let conditions = task.status.as_ref().map_or(&[][..], |status| &status.conditions);
    conditions::get(conditions, READY).is_some_and(|ready| Obstacle::is_of_no_group(&ready.reason))
}

/// The version of a task; of one that is for what its owner requests, what that was.
fn version_of(task: &UpgradeTask) -> Option<&KubernetesVersion> {
    let shown = || task.status.as_ref()?.version.as_ref();
    task.spec.version.as_ref().or_else(shown)
}

/// Why it is not known yet from which bundle a Machine installs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BundleExpected {
    /// No task names the bundle.
    #[error(
        "the annotation {key} of its owner asks for bundle {location:?}, and no UpgradeTask with it works on the owner: if \
         none follows soon, remove the annotation to install from the sources of HostSettings",
        key = REFIT.upgrade_to
    )]
    Unknown {
        /// Where the bundle is.
        location: String,
    },
    /// The annotation cannot be read.
    #[error(
        "the annotation {key} of its owner: {0}. Set it right, or remove it to install from the sources of HostSettings",
        key = REFIT.upgrade_to
    )]
    Invalid(#[from] BadOption),
}

/// The bundle for an update to a version. `noted` is what the group shows live, and `requested` the annotation of its
/// owner: between the end of one task and the next, an edited request must not lead to an update without a bundle.
pub fn bundle_for(
    version: &KubernetesVersion,
    noted: Option<&GroupBundle>,
    requested: Option<&str>,
) -> Result<Option<String>, BundleExpected> {
    let noted = noted.filter(|bundle| bundle.version == *version).map(|bundle| &bundle.location);
    match requested.map(|text| (Wanted::parse(REFIT, text), text)) {
        Some((Ok(Wanted::Bundle { location, version: of }), _))
            if of.as_ref().is_none_or(|of| of == version) && noted != Some(&location) =>
        {
            Err(BundleExpected::Unknown { location })
        }
        Some((Err(bad), text)) if text.contains(BUNDLE) => Err(bad.into()),
        Some((Ok(_) | Err(_), _)) | None => Ok(noted.cloned()),
    }
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
        bundle_of(tasks, None).map(|bundle| bundle.location)
    }

    #[test]
    fn the_tasks_for_the_version_of_the_oldest_one_decide_the_bundle_of_a_group() {
        let bundle = || json!({"bundle": "/a"});
        let other = task("t-2", &json!({"bundle": "/b", "version": OLD}), TaskPhase::Pending);
        let of = |spec, phase| noted(&[other.clone(), task("t-1", &spec, phase)]);
        assert_eq!(of(bundle(), TaskPhase::Ongoing).as_deref(), Some("/a"));
        assert_eq!(of(bundle(), TaskPhase::Failed).as_deref(), Some("/a"), "a Machine has failed");
        assert_eq!(of(bundle(), TaskPhase::Complete).as_deref(), Some("/b"));
        assert_eq!(of(json!({}), TaskPhase::Ongoing), None, "the other one is for another version");
        let of_same = json!({"version": OLD});
        assert_eq!(of(of_same, TaskPhase::Ongoing).as_deref(), Some("/b"), "it waits for this one");
        let aborted = json!({"bundle": "/a", "stage": "Abort"});
        assert_eq!(of(aborted, TaskPhase::Ongoing), None);
        let of_some = json!({"bundle": "/a", "via": "Machines", "machines": ["m"]});
        assert_eq!(of(of_some, TaskPhase::Ongoing), None);
        assert_eq!(noted(&[]), None);
        let mut annotated = other.clone();
        annotated.spec.version = NEW.parse().ok();
        let requested_by = (keys::REQUESTED_BY.to_owned(), REFIT.upgrade_to.to_owned());
        annotated.metadata.annotations = Some([requested_by].into());
        let one = task("t-1", &bundle(), TaskPhase::Ongoing);
        assert_eq!(noted(&[one.clone(), annotated]).as_deref(), Some("/b"), "an annotation asks");
        let mut wrong = one.clone();
        wrong.status.as_mut().unwrap().conditions = vec![
            serde_json::from_value(json!({
                "type": "Ready", "status": "False", "reason": "NotSupported", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }))
            .unwrap(),
        ];
        assert_eq!(noted(&[wrong, other]).as_deref(), Some("/b"), "the first one works on nothing");
    }

    #[test]
    fn a_task_without_a_version_is_for_the_one_that_its_owner_requested() {
        let mut one = task("t-1", &json!({"bundle": "/a"}), TaskPhase::Ongoing);
        one.spec.version = None;
        assert_eq!(bundle_of([&one], None), None, "not known yet");
        let requested = NEW.parse().unwrap();
        assert_eq!(
            bundle_of([&one], Some(&requested)).map(|of| of.version),
            Some(requested.clone())
        );
        one.status.as_mut().unwrap().version = NEW.parse().ok();
        let of = GroupBundle { location: "/a".into(), version: NEW.parse().unwrap() };
        assert_eq!(bundle_of([&one], OLD.parse().ok().as_ref()), Some(of));
    }

    #[test]
    fn an_update_takes_only_the_bundle_of_its_own_version() {
        let new = NEW.parse().unwrap();
        let of = |version: &str| GroupBundle {
            location: "/a".into(),
            version: version.parse().unwrap(),
        };
        for (noted, taken) in [(Some(of(NEW)), Some("/a")), (Some(of(OLD)), None), (None, None)] {
            let bundle = bundle_for(&new, noted.as_ref(), None).unwrap();
            assert_eq!(bundle.as_deref(), taken, "{noted:?}");
        }
    }

    #[test]
    fn no_update_begins_while_the_task_of_a_requested_bundle_is_missing() {
        let new = NEW.parse().unwrap();
        let noted = GroupBundle { location: "/a".into(), version: NEW.parse().unwrap() };
        for (requested, waits) in [
            ("version=v1.36.0,bundle=/b", true),
            ("bundle=/b", true),
            ("bundle=b", true),
            ("version=v1,bundle=/a", true),
            ("version=v1.36.0,bundle=/a", false),
            ("bundle=/a", false),
            ("version=v1.35.0,bundle=/b", false),
            ("version=v1.36.0", false),
            ("channel=1.36/stable", false),
            ("chanel=1.36/stable", false),
        ] {
            let bundle = bundle_for(&new, Some(&noted), Some(requested));
            assert_eq!(bundle.is_err(), waits, "{requested}");
        }
        for (requested, part) in
            [("bundle=/b", "\"/b\""), ("bundle=b", "expected an absolute path")]
        {
            let why = bundle_for(&new, None, Some(requested)).unwrap_err().to_string();
            assert!(why.contains("refit.dev/in-place-upgrade-to") && why.contains(part), "{why}");
        }
    }
}
