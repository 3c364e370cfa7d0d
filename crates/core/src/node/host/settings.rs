//! Which HostSettings applies to a machine: [the most specific one](super::selection).

use std::{collections::BTreeMap, sync::Arc};

use refit_kinds::{
    keys,
    refit::{BundleRef, GroupOwner, HostSettings, PackageArgs, PlanSettings},
};

use super::selection::{Candidates, NotChosen, most_specific};
use crate::report::Refusal;

/// What decides about the host settings of a machine.
#[derive(Clone, Copy, Debug)]
pub struct SettingsSources<'a> {
    /// Every HostSettings of the machine's namespace, in order of the names.
    pub objects: &'a [Arc<HostSettings>],
    /// Names of the HostSettings of the namespace that cannot be read, with the reason.
    pub unreadable: &'a BTreeMap<String, String>,
    /// Kind, name and annotations of the Machine, its owner and its Cluster.
    pub annotated: &'a [(String, &'a BTreeMap<String, String>)],
    /// The machine's owner.
    pub owner: &'a GroupOwner,
    /// Name of the machine's Cluster.
    pub cluster: &'a str,
}

/// The settings that apply to a machine: those of the most specific HostSettings, or none.
///
/// # Errors
/// Two objects are equally specific, an object cannot be read, or the annotation that this kind
/// replaces is still in use.
pub fn host_settings(sources: SettingsSources<'_>) -> Result<PlanSettings, Refusal> {
    let object = applying_settings(sources)?;
    Ok(object.map(|object| object.spec.settings.clone()).unwrap_or_default())
}

/// The HostSettings that applies to a machine, if one does.
///
/// # Errors
/// Those of [`host_settings`].
pub fn applying_settings(
    sources: SettingsSources<'_>,
) -> Result<Option<&Arc<HostSettings>>, Refusal> {
    let SettingsSources { objects, unreadable, annotated, owner, cluster } = sources;
    if let Some((object, _)) =
        annotated.iter().find(|(_, annotations)| annotations.contains_key(keys::HOST_SETTINGS))
    {
        return Err(Refusal::HostSettingsAnnotation { object: object.clone() });
    }
    match most_specific(&Candidates { objects, unreadable, owner, cluster }) {
        Ok(chosen) => Ok(chosen),
        Err(NotChosen::Unreadable { name, why }) => {
            Err(Refusal::HostSettingsUnreadable { name, why })
        }
        Err(NotChosen::Conflict { names, owner, by }) => {
            Err(Refusal::HostSettingsConflict { names, owner, by })
        }
    }
}

/// The settings of an update whose host may have to install from another bundle: everything then comes from that one. What
/// HostSettings demand of a bundle still applies.
pub fn from_bundle(settings: PlanSettings, location: Option<&str>) -> PlanSettings {
    let Some(location) = location else { return settings };
    let packages = settings.packages.map(|packages| PackageArgs {
        driver: packages.driver,
        install: packages.install,
        ..PackageArgs::default()
    });
    let demanded = settings.bundle.unwrap_or_default();
    let bundle = Some(BundleRef { location: location.to_owned(), ..demanded });
    PlanSettings { packages, bundle, ..settings }
}

#[cfg(test)]
mod tests {
    use refit_kinds::refit::{
        AppliesTo, HostSettingsSpec, NtpArgs, Owner, OwnerName, PackageDriver, PackageVersion,
    };

    use super::*;

    /// A HostSettings whose time server is its own name.
    fn object(name: &str, applies_to: AppliesTo) -> Arc<HostSettings> {
        let ntp = NtpArgs { enabled: true, servers: vec![name.to_owned()] };
        let settings = PlanSettings { ntp: Some(ntp), ..PlanSettings::default() };
        Arc::new(HostSettings::new(name, HostSettingsSpec { applies_to, settings }))
    }

    fn owners(name: &str, kind: Owner, owners: &[&str]) -> Arc<HostSettings> {
        let named = |name: &&str| OwnerName { kind, name: (*name).to_owned() };
        object(name, AppliesTo::Owners(owners.iter().map(named).collect()))
    }

    fn clusters(name: &str, names: &[&str]) -> Arc<HostSettings> {
        object(name, AppliesTo::Clusters(names.iter().map(|&name| name.to_owned()).collect()))
    }

    fn all(name: &str) -> Arc<HostSettings> {
        object(name, AppliesTo::All {})
    }

    fn owner() -> GroupOwner {
        GroupOwner { kind: "MachineDeployment".into(), name: "md".into(), ..GroupOwner::default() }
    }

    /// The name of the object that is used, or the reason and object of the refusal.
    fn chosen(objects: &[Arc<HostSettings>]) -> String {
        let sources = SettingsSources {
            objects,
            unreadable: &BTreeMap::new(),
            annotated: &[],
            owner: &owner(),
            cluster: "edge-1",
        };
        match host_settings(sources) {
            Ok(settings) => settings.ntp.map_or("none".to_owned(), |ntp| ntp.servers.join(" ")),
            Err(refusal) => format!("{} {}", refusal.reason(), refusal.object()),
        }
    }

    #[test]
    fn the_most_specific_host_settings_is_used_as_a_whole() {
        let by_owner = || owners("o", Owner::Deployment, &["other", "md"]);
        let by_cluster = || clusters("c", &["edge-2", "edge-1"]);
        let table: [(&[Arc<HostSettings>], &str); 12] = [
            (&[], "none"),
            (&[all("a")], "a"),
            (&[by_cluster()], "c"),
            (&[by_owner()], "o"),
            (&[all("a"), by_cluster()], "c"),
            (&[all("a"), by_cluster(), by_owner()], "o"),
            (&[all("a"), all("b"), by_owner()], "o"),
            (&[owners("x", Owner::Deployment, &["other"]), clusters("y", &["edge"])], "none"),
            // The same name, but of another kind.
            (&[owners("x", Owner::Set, &["md"])], "none"),
            (&[owners("x", Owner::ControlPlane, &["md"]), all("a")], "a"),
            (&[by_owner(), all("a")], "o"),
            (&[owners("o", Owner::Deployment, &["md", "md"])], "o"),
        ];
        for (objects, expected) in table {
            assert_eq!(chosen(objects), expected, "{objects:?}");
        }
    }

    #[test]
    fn a_bundle_of_an_update_replaces_all_sources_and_keeps_what_is_demanded() {
        let settings = PlanSettings {
            packages: Some(PackageArgs {
                driver: PackageDriver::Dnf,
                repository: "https://p.example/".into(),
                install: vec![PackageVersion { name: "cri-tools".into(), version: "1.35*".into() }],
                ..PackageArgs::default()
            }),
            bundle: Some(BundleRef {
                location: "/mnt/old".into(),
                manifest_sha256: "5f0b".into(),
                ..BundleRef::default()
            }),
            ..PlanSettings::default()
        };
        assert_eq!(from_bundle(settings.clone(), None), settings);
        let moved = from_bundle(settings, Some("oci://mirror.example/refit:v1.35.0"));
        let (packages, bundle) = (moved.packages.unwrap(), moved.bundle.unwrap());
        assert_eq!((packages.driver, packages.repository), (PackageDriver::Dnf, String::new()));
        assert_eq!(packages.install.len(), 1);
        assert_eq!(bundle.location, "oci://mirror.example/refit:v1.35.0");
        assert_eq!(bundle.manifest_sha256, "5f0b");
    }

    #[test]
    fn two_equally_specific_host_settings_are_refused_by_name() {
        let md = |name: &str| owners(name, Owner::Deployment, &["md"]);
        let conflict = |names: &str| format!("HostSettingsConflict HostSettings {names}");
        assert_eq!(chosen(&[all("b"), all("a")]), conflict("a, b"));
        assert_eq!(chosen(&[all("a"), all("b"), all("c")]), conflict("a, b"));
        assert_eq!(chosen(&[all("z"), clusters("b", &["edge-1"]), clusters("a", &["edge-1"])]), {
            conflict("a, b")
        });
        assert_eq!(chosen(&[md("y"), clusters("a", &["edge-1"]), md("x")]), conflict("x, y"));
    }

    #[test]
    fn a_conflict_names_both_objects_the_owner_and_the_remedy() {
        let refusal = host_settings(SettingsSources {
            objects: &[clusters("b", &["edge-1"]), clusters("a", &["edge-1"])],
            unreadable: &BTreeMap::new(),
            annotated: &[],
            owner: &owner(),
            cluster: "edge-1",
        });
        assert_eq!(
            refusal.unwrap_err().sentence(),
            "waiting until one HostSettings applies to MachineDeployment md: both a and b select \
             its Cluster; delete one of them, or change its spec.appliesTo"
        );
    }

    #[test]
    fn an_unreadable_object_or_the_old_annotation_refuses_all_settings() {
        let broken = BTreeMap::from([("x".to_owned(), "unknown field ntpp".to_owned())]);
        let none = BTreeMap::new();
        let old = BTreeMap::from([(keys::HOST_SETTINGS.to_owned(), "{}".to_owned())]);
        let objects = [all("a")];
        let refused = |unreadable, annotations| {
            let annotated =
                [("Machine m".to_owned(), &none), ("Cluster edge-1".to_owned(), annotations)];
            let sources = SettingsSources {
                objects: &objects,
                unreadable,
                annotated: &annotated,
                owner: &owner(),
                cluster: "edge-1",
            };
            host_settings(sources).err()
        };
        assert_eq!(refused(&none, &none), None);
        let annotation = Refusal::HostSettingsAnnotation { object: "Cluster edge-1".into() };
        assert_eq!(refused(&none, &old), Some(annotation.clone()));
        assert_eq!(refused(&broken, &old), Some(annotation));
        assert_eq!(
            refused(&broken, &none),
            Some(Refusal::HostSettingsUnreadable {
                name: "x".into(),
                why: "unknown field ntpp".into(),
            })
        );
    }
}
