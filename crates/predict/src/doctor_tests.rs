use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::core::Selector;
use serde_json::json;

use super::*;
use refit_core::{change::OnUncovered, invariants::Invariant, node::Weight, report::Refusal};
use refit_kinds::{
    keys,
    refit::{Admission, HeldKind, HeldOwner},
    version::KubernetesVersion,
};

fn now() -> Timestamp {
    "2026-03-02T08:00:00Z".parse().unwrap()
}

fn ago(seconds: i64) -> Timestamp {
    now() - SignedDuration::from_secs(seconds)
}

fn crd() -> Crd {
    Crd {
        name: "nodeupdates.refit.dev".into(),
        served: ["v1alpha1".to_owned()].into(),
        stored: ["v1alpha1".to_owned()].into(),
        schemas: [("v1alpha1".to_owned(), "hash".to_owned())].into(),
        established: true,
    }
}

fn host(name: &str, control_plane: bool) -> Host {
    Host {
        machine: name.into(),
        node: name.into(),
        control_plane,
        kubelet: "v1.35.0".into(),
        agent: "0.1.0".into(),
        reported_at: Some(ago(60)),
        unread: Vec::new(),
    }
}

fn certificate() -> Certificate {
    Certificate {
        leaf: Ok(CertificateFacts {
            subject: "refit".into(),
            issuer: "ca".into(),
            from: ago(3600),
            until: now() + SignedDuration::from_hours(24 * 60),
            names: vec!["refit-webhook.refit-system.svc".into()],
        }),
        bundle_matches: true,
        wanted_names: vec!["refit-webhook.refit-system.svc".into()],
    }
}

fn opted_in() -> BTreeMap<String, String> {
    ["refit.dev/in-place", "refit.dev/hold-replacements"]
        .map(|key| (key.to_owned(), "enabled".to_owned()))
        .into()
}

/// The installation with other labels of its namespace.
fn with_labels(enabled: &[&str]) -> Facts {
    let labels = enabled.iter().map(|key| ((*key).to_owned(), "enabled".to_owned())).collect();
    with(|f| {
        let Read::Known(namespaces) = &mut f.namespaces else { unreachable!() };
        namespaces[0].labels = Read::Known(labels);
    })
}

fn sound() -> Facts {
    Facts {
        now: now(),
        version: "0.1.0".into(),
        wanted_crds: vec![crd()],
        crds: Read::Known(vec![crd()]),
        rights: Read::Known(vec![Right {
            what: "list machines.cluster.x-k8s.io".into(),
            allowed: true,
        }]),
        extensions: Read::Known(vec![Extension::assumed()]),
        certificate: Read::Known(Some(certificate())),
        managers: Read::Known(Manager::assumed()),
        canonical_managers: Read::Known(Vec::new()),
        canonical_requests: 0,
        client_copies: Read::Known(vec![client_copy()]),
        controller: Read::Known(Some(Workload {
            replicas: 2,
            ready: 2,
            image: "registry/refit:v0.1.0".into(),
            client_auth: ClientAuth::Secret,
            canonical: CanonicalMode::Off,
        })),
        lease: Read::Known(Some(Lease {
            holder: "refit-controller-a".into(),
            renewed_at: Some(ago(5)),
            duration_seconds: 15,
        })),
        namespaces: Read::Known(vec![Namespace {
            name: "default".into(),
            clusters: vec!["edge-1".into()],
            labels: Read::Known(opted_in()),
        }]),
        missing_hold_policies: Read::Known(Vec::new()),
        replacement_holds: Read::Known([("default".to_owned(), vec![String::new()])].into()),
        owners: [("default".to_owned(), 2)].into(),
        replaced_by_surge: Vec::new(),
        hosts: [(
            "default/edge-1".to_owned(),
            Read::Known(vec![host("cp", true), host("w", false)]),
        )]
        .into(),
        refused: Vec::new(),
        blocked: Vec::new(),
        unfinished: 0,
        violations: Vec::new(),
    }
}

fn with(change: impl FnOnce(&mut Facts)) -> Facts {
    let mut facts = sound();
    change(&mut facts);
    facts
}

fn with_host(change: impl FnOnce(&mut Host)) -> Facts {
    let mut one = host("w", false);
    change(&mut one);
    with(|f| {
        let hosts = Read::Known(vec![host("cp", true), one]);
        f.hosts.insert("default/edge-1".into(), hosts);
    })
}

fn with_certificate(change: impl FnOnce(&mut Certificate)) -> Facts {
    let mut one = certificate();
    change(&mut one);
    with(|f| f.certificate = Read::Known(Some(one)))
}

fn with_extension(change: impl FnOnce(&mut Extension)) -> Facts {
    let mut one = Extension::assumed();
    change(&mut one);
    with(|f| f.extensions = Read::Known(vec![one]))
}

fn with_crd(change: impl FnOnce(&mut Crd)) -> Facts {
    let mut one = crd();
    change(&mut one);
    with(|f| f.crds = Read::Known(vec![one]))
}

fn with_workload(replicas: i64, ready: i64, image: &str) -> Facts {
    with(|f| {
        f.controller = Read::Known(Some(Workload {
            replicas,
            ready,
            image: image.into(),
            client_auth: ClientAuth::Secret,
            canonical: CanonicalMode::Off,
        }));
    })
}

fn client_copy() -> ClientCopy {
    ClientCopy {
        namespace: "capi-system".into(),
        name: "refit-hook-client".into(),
        leaf: Ok(CertificateFacts {
            subject: "refit-hook-client".into(),
            issuer: "ca".into(),
            from: ago(3600),
            until: now() + SignedDuration::from_hours(24 * 365 * 4),
            names: vec!["refit-hook-client".into()],
        }),
        trusted: true,
    }
}

fn with_copy(change: impl FnOnce(&mut ClientCopy)) -> Facts {
    let mut one = client_copy();
    change(&mut one);
    with(|f| f.client_copies = Read::Known(vec![one]))
}

/// Managers without their flags, and a controller that serves these clients.
fn without_flags(client_auth: ClientAuth) -> Facts {
    let mut managers = Manager::assumed();
    managers[0].missing_flags = vec!["--runtime-extension-client-cert-file"];
    with(|f| {
        f.managers = Read::Known(managers);
        if let Read::Known(Some(workload)) = &mut f.controller {
            workload.client_auth = client_auth;
        }
    })
}

fn with_lease(holder: &str, seconds: i64) -> Facts {
    with(|f| {
        f.lease = Read::Known(Some(Lease {
            holder: holder.into(),
            renewed_at: Some(ago(seconds)),
            duration_seconds: 15,
        }));
    })
}

#[test]
fn a_healthy_installation_has_one_ok_per_check() {
    let found = examine(&sound());
    let checks: Vec<Check> = found.iter().map(|finding| finding.check).collect();
    assert_eq!(checks, Check::ALL, "{found:#?}");
    assert!(found.iter().all(|finding| finding.level == Level::Ok), "{found:#?}");
}

#[test]
fn the_table_of_findings() {
    use Check as C;
    use Level::{Fail, Warn};
    let unknown = || "you may not".to_owned();
    let leaf =
        |change: fn(&mut CertificateFacts)| with_certificate(|c| change(c.leaf.as_mut().unwrap()));
    let table = vec![
        (with(|f| f.crds = Read::Known(Vec::new())), C::Crds, Fail),
        (with(|f| f.crds = Read::Unknown(unknown())), C::Crds, Warn),
        (with_crd(|c| c.established = false), C::Crds, Fail),
        (with_crd(|c| c.served.clear()), C::Crds, Fail),
        (with_crd(|c| c.schemas.clear()), C::Crds, Warn),
        (with_crd(|c| c.stored = ["v1alpha0".to_owned()].into()), C::Crds, Warn),
        (
            with(|f| {
                f.rights =
                    Read::Known(vec![Right { what: "patch machines".into(), allowed: false }]);
            }),
            C::Rbac,
            Fail,
        ),
        (with(|f| f.rights = Read::Unknown(unknown())), C::Rbac, Warn),
        (with_extension(|e| e.name = "other".into()), C::Extension, Fail),
        (with_extension(|e| e.discovered = None), C::Extension, Fail),
        (with_extension(|e| e.has_ca_bundle = false), C::Extension, Fail),
        (with_extension(|e| e.selector = Ok(None)), C::Namespaces, Warn),
        (
            with(|f| {
                let Read::Known(namespaces) = &mut f.namespaces else { unreachable!() };
                namespaces[0].labels = Read::Unknown(unknown());
                namespaces.push(Namespace {
                    name: "held".into(),
                    clusters: vec!["edge-2".into()],
                    labels: Read::Known(opted_in()),
                });
                let Read::Known(holds) = &mut f.replacement_holds else { unreachable!() };
                holds.insert("held".into(), vec![String::new()]);
            }),
            C::Namespaces,
            Warn,
        ),
        (with(|f| f.missing_hold_policies = Read::Known(vec!["P/holds".into()])), C::Holds, Fail),
        (with(|f| f.missing_hold_policies = Read::Unknown(unknown())), C::Holds, Warn),
        (with(|f| f.replacement_holds = Read::Known(BTreeMap::new())), C::Holds, Fail),
        (with(|f| f.replacement_holds = Read::Unknown(unknown())), C::Holds, Warn),
        (
            with(|f| {
                let Read::Known(managers) = &mut f.managers else { unreachable!() };
                managers[1].user = "system:serviceaccount:kcp:manager".into();
            }),
            C::Holds,
            Warn,
        ),
        (with_labels(&["refit.dev/in-place"]), C::Holds, Warn),
        (with(|f| f.certificate = Read::Known(None)), C::Certificate, Fail),
        (leaf(|leaf| leaf.until = ago(1)), C::Certificate, Fail),
        (leaf(|leaf| leaf.until = now() + SignedDuration::from_hours(24)), C::Certificate, Warn),
        (leaf(|leaf| leaf.from = ago(-60)), C::Certificate, Fail),
        (leaf(|leaf| leaf.names.clear()), C::Certificate, Fail),
        (with_certificate(|c| c.bundle_matches = false), C::Certificate, Fail),
        (with_certificate(|c| c.leaf = Err("no PEM".into())), C::Certificate, Fail),
        (with(|f| f.managers = Read::Known(Manager::assumed().split_off(1))), C::ClusterApi, Warn),
        (
            with(|f| {
                let mut managers = Manager::assumed();
                managers[0].version = Some(KubernetesVersion::new(1, 11, 0));
                f.managers = Read::Known(managers);
            }),
            C::ClusterApi,
            Fail,
        ),
        (
            with(|f| {
                let mut managers = Manager::assumed();
                managers[1].gates.clear();
                f.managers = Read::Known(managers);
            }),
            C::ClusterApi,
            Fail,
        ),
        (without_flags(ClientAuth::Secret), C::HookClients, Fail),
        (without_flags(ClientAuth::OwnAuthority), C::HookClients, Fail),
        (without_flags(ClientAuth::Off), C::HookClients, Warn),
        (with_copy(|c| c.leaf = Err("no PEM".into())), C::HookClients, Fail),
        (with_copy(|c| c.leaf.as_mut().unwrap().until = ago(1)), C::HookClients, Fail),
        (
            with_copy(|c| {
                c.leaf.as_mut().unwrap().until = now() + SignedDuration::from_hours(24 * 365);
            }),
            C::HookClients,
            Warn,
        ),
        (with_copy(|c| c.trusted = false), C::HookClients, Fail),
        (with(|f| f.client_copies = Read::Unknown(unknown())), C::HookClients, Warn),
        (with(|f| f.controller = Read::Known(None)), C::Controller, Warn),
        (with_workload(2, 0, "refit:0.1.0"), C::Controller, Fail),
        (with_workload(2, 1, "refit:0.1.0"), C::Controller, Warn),
        (with_workload(1, 1, "refit:0.1.0"), C::Controller, Warn),
        (with_workload(2, 2, "refit:0.0.9"), C::Controller, Warn),
        (with_lease("", 1), C::Lease, Fail),
        (with_lease("a", 60), C::Lease, Fail),
        (with(|f| f.lease = Read::Known(None)), C::Lease, Warn),
        (with_host(|h| h.reported_at = None), C::Agents, Fail),
        (with_host(|h| h.unread = vec!["packages: locked".to_owned()]), C::Agents, Warn),
        (with_host(|h| h.reported_at = Some(ago(901))), C::Agents, Fail),
        (with_host(|h| h.agent = "0.0.9".into()), C::Agents, Warn),
        (with_host(|h| h.kubelet = "v1.36.0".into()), C::Skew, Fail),
        (with_host(|h| h.kubelet = "v1.31.0".into()), C::Skew, Fail),
        (
            with(|f| {
                f.violations = vec![Violation {
                    invariant: Invariant::Cordons,
                    object: "Node/w".into(),
                    message: "a cordon is left".into(),
                }];
            }),
            C::Invariants,
            Fail,
        ),
        (
            with(|f| {
                let refused = Refused {
                    check: refit_core::node::Check::Cordon,
                    weight: Weight::Waits,
                    refusal: Refusal::NodeCordoned { node: "w".into() },
                    machines: vec!["w".into()],
                };
                f.refused = vec![("MachineDeployment/w (default)".to_owned(), refused)];
            }),
            C::Preflight,
            Warn,
        ),
        (
            with(|f| {
                let why = "Failed: Machine w-0: NodeUpdate w-0-1 failed".to_owned();
                f.blocked = vec![("MachineDeployment/w (default)".to_owned(), why)];
            }),
            C::Rollouts,
            Warn,
        ),
    ];
    for (facts, check, level) in table {
        let found = examine(&facts);
        let worst: Vec<&Finding> = found.iter().filter(|f| f.level != Level::Ok).collect();
        assert_eq!(worst.len(), 1, "{check:?}: {worst:#?}");
        assert_eq!((worst[0].check, worst[0].level), (check, level), "{worst:#?}");
        assert!(worst[0].message.len() > 10, "{worst:#?}");
    }
}

/// Selects namespaces in which this label is `enabled`.
fn selector(key: &str) -> Selector {
    let labels = json!({"matchLabels": {key: "enabled"}});
    let labels: LabelSelector = serde_json::from_value(labels).unwrap();
    Selector::try_from(labels).unwrap()
}

#[test]
fn another_extension_with_the_same_hooks_is_reported() {
    use Check::{Extension as Selectors, Namespaces};
    use Level::{Fail, Warn};
    let refit =
        Extension { selector: Ok(Some(selector("refit.dev/in-place"))), ..Extension::assumed() };
    let other = Extension { name: "other".into(), ..Extension::assumed() };
    let table = [
        (other.clone(), vec![(Selectors, Fail), (Namespaces, Fail)]),
        (
            Extension { selector: Ok(Some(selector("team"))), ..other.clone() },
            vec![(Selectors, Warn)],
        ),
        (Extension { hooks: vec!["BeforeClusterUpgrade".into()], ..other.clone() }, vec![]),
        (Extension { selector: Ok(None), ..other.clone() }, vec![]),
        (Extension { selector: Err("no operator".into()), ..other }, vec![]),
    ];
    for (other, wanted) in table {
        let shown = format!("{other:?}");
        let facts = with(|f| {
            f.extensions = Read::Known(vec![refit.clone(), other]);
            f.namespaces = Read::Known(vec![Namespace {
                name: "default".into(),
                clusters: vec!["edge-1".into()],
                labels: Read::Known(opted_in()),
            }]);
        });
        let found = examine(&facts);
        let bad = found.iter().filter(|finding| finding.level != Level::Ok);
        let bad: Vec<_> = bad.map(|finding| (finding.check, finding.level)).collect();
        assert_eq!(bad, wanted, "{shown}");
    }
}

#[test]
fn a_held_namespace_that_did_not_opt_in_is_reported_by_both_checks() {
    let levels = |enabled: &[&str]| -> Vec<(Check, Level)> {
        let found = examine(&with_labels(enabled)).into_iter();
        let bad = found.filter(|finding| finding.level != Level::Ok);
        bad.map(|finding| (finding.check, finding.level)).collect()
    };
    let both = [(Check::Namespaces, Level::Fail), (Check::Holds, Level::Warn)];
    assert_eq!(levels(&["refit.dev/hold-replacements"]), both);
    assert_eq!(levels(&[]), both);
    assert_eq!(levels(&["refit.dev/hold-replacements", "refit.dev/in-place"]), []);
    let found = examine(&with_labels(&["refit.dev/in-place"]));
    let unheld = found.iter().find(|finding| finding.check == Check::Holds).unwrap();
    assert_eq!(
        unheld.remedy,
        "kubectl label namespace default refit.dev/hold-replacements=enabled"
    );
}

#[test]
fn leftovers_are_not_judged_without_the_nodes() {
    let facts = with(|f| {
        f.hosts.insert("default/edge-2".into(), Read::Unknown("no route".into()));
        f.violations = vec![Violation {
            invariant: Invariant::NoneForgotten,
            object: "Machine/m".into(),
            message: "it runs nothing".into(),
        }];
    });
    let found = examine(&facts);
    let levels = |check| found.iter().find(|f| f.check == check).map(|f| f.level);
    assert_eq!(levels(Check::Agents), Some(Level::Warn));
    assert_eq!(levels(Check::Invariants), Some(Level::Warn));
}

#[test]
fn leftovers_are_not_checked_while_updates_run() {
    let facts = with(|f| {
        f.unfinished = 2;
        f.violations = vec![Violation {
            invariant: Invariant::NothingLeft,
            object: "Machine/m".into(),
            message: "Refit's guard remains".into(),
        }];
    });
    assert!(examine(&facts).iter().all(|finding| finding.level == Level::Ok));
}

#[test]
fn no_agent_is_expected_in_a_namespace_that_did_not_opt_in() {
    let mut silent = with_host(|host| host.reported_at = None);
    let levels = |facts: &Facts, check: Check| -> Vec<Level> {
        let found = examine(facts).into_iter().filter(|finding| finding.check == check);
        found.map(|finding| finding.level).collect()
    };
    assert_eq!(levels(&silent, Check::Agents), [Level::Fail]);
    let Read::Known(namespaces) = &mut silent.namespaces else { unreachable!() };
    namespaces[0].labels = Read::Known(BTreeMap::new());
    assert_eq!(levels(&silent, Check::Agents), [Level::Ok]);
    let mut selected = Extension::assumed();
    selected.selector = Ok(Some(selector(keys::IN_PLACE)));
    silent.extensions = Read::Known(vec![selected]);
    let found = examine(&silent);
    let namespace = found.iter().find(|finding| finding.check == Check::Namespaces).unwrap();
    assert_eq!(namespace.level, Level::Warn);
    let closed = "Refit does not connect to the Clusters there: edge-1";
    assert!(namespace.message.contains(closed), "{}", namespace.message);
}

#[test]
fn annotations_of_canonicals_providers_need_one_controller_that_serves_them() {
    use CanonicalMode::{ControllersAbsent, Off, On};
    let findings = |mode, managers: &[&str], requests| {
        let facts = with(|facts| {
            if let Read::Known(Some(controller)) = &mut facts.controller {
                controller.canonical = mode;
            }
            let managers = managers.iter().map(|name| (*name).to_owned()).collect();
            facts.canonical_managers = Read::Known(managers);
            facts.canonical_requests = requests;
        });
        let of_check = examine(&facts).into_iter().filter(|one| one.check == Check::Canonical);
        of_check.map(|one| (one.level, one.message)).collect::<Vec<_>>()
    };
    let theirs = ["Deployment/capi-ck8s-bootstrap (ck8s-system)"];
    for (mode, managers, requests, level, words) in [
        (Off, &[][..], 0, Level::Ok, "not requested"),
        (Off, &theirs[..], 3, Level::Ok, "served by Canonical's controllers"),
        (
            Off,
            &[],
            3,
            Level::Warn,
            "3 objects have annotations such as v1beta2.k8sd.io/in-place-upgrade-to",
        ),
        (On, &theirs, 1, Level::Warn, "leaves them to Canonical's controllers"),
        (On, &theirs, 0, Level::Ok, "not served by Refit"),
        (ControllersAbsent, &[], 9, Level::Ok, "served by Refit alone"),
        (ControllersAbsent, &theirs, 0, Level::Warn, "capi-ck8s-bootstrap"),
    ] {
        let found = findings(mode, managers, requests);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].0 == level && found[0].1.contains(words), "{found:?}");
    }
}

#[test]
fn doctor_names_the_fields_of_workers_whose_replacement_is_held() {
    let surging = |labels: &[&str]| {
        let mut facts = with_labels(labels);
        facts.replaced_by_surge = vec![("default".into(), "md".into())];
        let found = examine(&facts).into_iter();
        found.filter(|one| one.object.starts_with("MachineDeployment/")).collect::<Vec<_>>()
    };
    let found = surging(&["refit.dev/in-place", "refit.dev/hold-replacements"]);
    let [one] = &found[..] else { panic!("{found:#?}") };
    assert_eq!((one.check, one.level), (Check::Holds, Level::Warn));
    assert!(one.remedy.contains("maxSurge 0 and maxUnavailable 1"), "{one:?}");
    assert!(surging(&["refit.dev/in-place"]).is_empty());
}

#[test]
fn doctor_finds_workers_that_replace_their_only_machine() {
    let deployment = |replicas: i64, surge: i64, key: &str, value: &str| {
        json!({"kind": "MachineDeployment", "metadata": {"annotations": {key: value}},
            "spec": {"replicas": replicas, "rollout": {"strategy": {"type": "RollingUpdate",
                "rollingUpdate": {"maxSurge": surge, "maxUnavailable": 1 - surge}}}}})
    };
    let preserve = OnUncovered::Preserve;
    let table = [
        (deployment(1, 1, "a", "b"), preserve, true),
        (deployment(1, 0, "a", "b"), preserve, false),
        (deployment(2, 1, "a", "b"), preserve, false),
        (deployment(1, 1, keys::ON_UNCOVERED, "Replace"), preserve, false),
        (deployment(1, 1, keys::IN_PLACE, "Disabled"), preserve, false),
        (deployment(1, 1, "a", "b"), OnUncovered::Replace, false),
    ];
    for (one, default, wanted) in table {
        assert_eq!(hold::is_replaced_by_surge(&one, None, default), wanted, "{one}");
    }
    let cluster = json!({"metadata": {"annotations": {keys::ON_UNCOVERED: "Replace"}}});
    let one = deployment(1, 1, "a", "b");
    assert!(!hold::is_replaced_by_surge(&one, Some(&cluster), preserve));
}

#[test]
fn doctor_warns_before_a_replacement_hold_is_too_large_for_etcd() {
    let found = |owners: usize| {
        let facts = with(|f| f.owners = [("default".to_owned(), owners)].into());
        let found = examine(&facts).into_iter();
        found.filter(|one| one.message.contains("etcd")).collect::<Vec<_>>()
    };
    assert!(found(9_999).is_empty());
    let warned = found(10_000);
    assert_eq!((warned[0].check, warned[0].level), (Check::Holds, Level::Warn));
    assert!(warned[0].remedy.contains("namespaces"), "{warned:?}");
    // Not yet too large, if all owners have the longest name that is a label.
    let entry = HeldOwner {
        kind: HeldKind::KubeadmControlPlane,
        name: "n".repeat(63),
        create: Admission::Refused,
        delete: Admission::Refused,
        deletable_machines: Vec::new(),
        deletable_machine_sets: Vec::new(),
    };
    let size = serde_json::to_vec(&entry).unwrap().len() + 1;
    assert_eq!(size, 142);
    assert!(size * 10_000 < 3 * 512 * 1024);
}

#[test]
fn doctor_misses_a_policy_of_holds_whose_binding_does_not_deny() {
    let policy = |name: &str| serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
    let binding = |policy: &str, action: &str, reads: bool| {
        let params = reads.then(|| json!({"name": "refit"}));
        let spec = json!({"policyName": policy, "validationActions": [action], "paramRef": params});
        serde_json::from_value(json!({"spec": spec})).unwrap()
    };
    let (machines, sets) = ("refit-replacement-holds", "refit-replacement-holds-machine-sets");
    let policies = [policy(machines), policy(sets)];
    let missing =
        |of_machines, of_sets| hold::missing_policies(&policies, &[of_machines, of_sets]).join(" ");
    let fine = || binding(sets, "Deny", true);
    assert_eq!(missing(binding(machines, "Deny", true), fine()), "");
    let unbound = format!("ValidatingAdmissionPolicyBinding of {machines}");
    for (action, reads) in [("Audit", true), ("Warn", true), ("Deny", false)] {
        assert_eq!(missing(binding(machines, action, reads), fine()), unbound, "{action} {reads}");
    }
    assert_eq!(hold::missing_policies(&[], &[]).len(), 4);
}
