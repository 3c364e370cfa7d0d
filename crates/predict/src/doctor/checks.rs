//! One function for each check.

use std::collections::BTreeMap;

use jiff::SignedDuration;
use refit_core::{certificates::SERVER, change::asked::opted_in, invariants::Invariant};
use refit_kinds::keys;

use super::{Facts, Findings, Level, Workload};
use crate::{
    Unreached,
    input::REPORT_STALE_AFTER,
    managers::{Provider, first_version},
    reach::{EXTENSION, Extension, GroupRef, HOOKS, Reach, Read, Shape, reach},
    selectors::{Overlap, overlap},
};

/// How long after its expiry a Lease still counts as held.
const LEASE_GRACE: SignedDuration = SignedDuration::from_secs(15);
/// The controller's Deployment.
pub(super) const CONTROLLER: &str = "Deployment/refit-system/refit-controller";
/// The command that repairs an installation.
const APPLY: &str = "refit install --image IMAGE --apply";

pub(super) fn crds(facts: &Facts, found: &mut Findings) {
    let there = match &facts.crds {
        Read::Known(crds) => crds,
        Read::Unknown(why) => return found.unknown("CustomResourceDefinitions", why),
    };
    for wanted in &facts.wanted_crds {
        let object = format!("CustomResourceDefinition/{}", wanted.name);
        let Some(crd) = there.iter().find(|crd| crd.name == wanted.name) else {
            found.fail(&object, "it does not exist".to_owned(), APPLY);
            continue;
        };
        if !crd.established {
            let remedy = "check its conditions: kubectl describe crd";
            found.fail(&object, "the API server does not serve it".to_owned(), remedy);
        }
        for version in &wanted.served {
            if !crd.served.contains(version) {
                found.fail(&object, format!("it does not serve {version}"), APPLY);
            } else if crd.schemas.get(version) != wanted.schemas.get(version) {
                let message = format!(
                    "its schema of {version} differs from the schema of this program ({})",
                    facts.version
                );
                found.warn(
                    &object,
                    message,
                    "install this version, or use the program of the installed version",
                );
            }
        }
        for version in crd.stored.difference(&wanted.served) {
            let message = format!("objects may be stored as {version}, which is no longer served");
            let remedy = "migrate them and remove the version from status.storedVersions";
            found.warn(&object, message, remedy);
        }
    }
    let count = facts.wanted_crds.len();
    found.or_ok("CustomResourceDefinitions", format!("all {count} are installed and current"));
}

pub(super) fn rights(facts: &Facts, found: &mut Findings) {
    const ACCOUNT: &str = "ServiceAccount/refit-system/refit-controller";
    let rights = match &facts.rights {
        Read::Known(rights) => rights,
        Read::Unknown(why) => return found.unknown(ACCOUNT, why),
    };
    let missing: Vec<&str> =
        rights.iter().filter(|right| !right.allowed).map(|right| right.what.as_str()).collect();
    if !missing.is_empty() {
        let message = format!("it is not allowed to {}", missing.join(", or to "));
        found.fail(ACCOUNT, message, "refit install --only rbac --apply");
    }
    found.or_ok(ACCOUNT, format!("it has all {} required permissions", rights.len()));
}

/// The installation as seen from an opted-in namespace, whatever its labels.
fn from_anywhere(extensions: &[Extension]) -> Reach {
    let refit =
        extensions.iter().filter(|extension| extension.name == EXTENSION).map(|extension| {
            Extension { selector: Extension::assumed().selector, ..extension.clone() }
        });
    Reach {
        group: GroupRef {
            kind: "KubeadmControlPlane".to_owned(),
            namespace: String::new(),
            name: String::new(),
        },
        shape: Shape::Unknown,
        paused: None,
        disabled: None,
        bootstrap_kind: None,
        extensions: Read::Known(refit.collect()),
        namespace_labels: Read::Known(BTreeMap::new()),
        // The managers have a separate check.
        managers: Read::Unknown(String::new()),
    }
}

pub(super) fn extension(facts: &Facts, found: &mut Findings) {
    let object = format!("ExtensionConfig/{EXTENSION}");
    let extensions = match &facts.extensions {
        Read::Known(extensions) => extensions,
        Read::Unknown(why) => return found.unknown(&object, why),
    };
    if let Err(unreached) = reach(&from_anywhere(extensions)) {
        found.fail(&object, unreached.to_string(), "");
    }
    rivals(extensions, found);
    found.or_ok(&object, "Cluster API has discovered all hooks".to_owned());
}

/// Other extensions that serve one of Refit's hooks, in namespaces that Refit's selects too.
fn rivals(extensions: &[Extension], found: &mut Findings) {
    let selector = |extension: &Extension| extension.selector.clone().ok().flatten();
    let refit = extensions.iter().find(|extension| extension.name == EXTENSION);
    let Some(ours) = refit.and_then(selector) else {
        return;
    };
    for other in extensions.iter().filter(|extension| extension.name != EXTENSION) {
        let hook = other.hooks.iter().find(|hook| HOOKS.contains(&hook.as_str()));
        let (Some(theirs), Some(hook)) = (selector(other), hook) else { continue };
        let object = format!("ExtensionConfig/{}", other.name);
        let why = format!(
            "it serves {hook}, as ExtensionConfig {EXTENSION} does; Cluster API supports only one \
             and stops every rollout in a namespace that both select"
        );
        let remedy = "narrow one namespaceSelector";
        match overlap(&ours, &theirs) {
            Overlap::None => {}
            Overlap::Possible => {
                let message = format!("{why}, and {ours} does not exclude {theirs}");
                found.warn(&object, message, remedy);
            }
            Overlap::Certain => {
                found.fail(&object, format!("{why}: here, every opted-in one"), remedy);
            }
        }
    }
}

pub(super) fn certificate(facts: &Facts, found: &mut Findings) {
    const SECRET: &str = "Secret/refit-system/refit-webhook-tls";
    const REMEDY: &str = "delete the Secret, and the controller creates another; if cert-manager \
        manages it, check there";
    let certificate = match &facts.certificate {
        Read::Known(Some(certificate)) => certificate,
        Read::Known(None) => {
            let remedy = "the controller creates it when it starts; check its logs";
            return found.fail(SECRET, "it does not exist".to_owned(), remedy);
        }
        Read::Unknown(why) => return found.unknown(SECRET, why),
    };
    match &certificate.leaf {
        Err(why) => found.fail(SECRET, format!("cannot read its certificate: {why}"), REMEDY),
        Ok(leaf) => {
            if leaf.until <= facts.now {
                found.fail(SECRET, format!("its certificate expired at {}", leaf.until), REMEDY);
            } else if leaf.until.duration_since(facts.now) < SERVER.leaf_renew_before / 2 {
                let message =
                    format!("its certificate expires at {} and was not renewed", leaf.until);
                found.warn(SECRET, message, REMEDY);
            }
            if leaf.from > facts.now {
                let message = format!("its certificate is not valid before {}", leaf.from);
                found.fail(SECRET, message, "check the clocks of the machines");
            }
            let missing: Vec<&str> = certificate
                .wanted_names
                .iter()
                .filter(|name| !leaf.names.contains(name))
                .map(String::as_str)
                .collect();
            if !missing.is_empty() {
                let message = format!("its certificate is not valid for {}", missing.join(", "));
                found.fail(SECRET, message, REMEDY);
            }
        }
    }
    if !certificate.bundle_matches {
        let message = "ExtensionConfig refit trusts a different ca.crt".to_owned();
        let remedy = "Cluster API copies it within ten minutes; check that the ExtensionConfig \
            has the annotation runtime.cluster.x-k8s.io/inject-ca-from-secret: \
            refit-system/refit-webhook-tls";
        found.fail(SECRET, message, remedy);
    }
    if let Ok(leaf) = &certificate.leaf {
        found.or_ok(SECRET, format!("its certificate is valid until {}", leaf.until));
    }
}

pub(super) fn cluster_api(facts: &Facts, found: &mut Findings) {
    let managers = match &facts.managers {
        Read::Known(managers) => managers,
        Read::Unknown(why) => return found.unknown("Deployments of Cluster API", why),
    };
    for provider in Provider::ALL {
        let object = format!("provider {}", provider.label());
        let Some(manager) = managers.iter().find(|m| m.provider == provider) else {
            let message =
                "no Deployment has the label cluster.x-k8s.io/provider with this value".to_owned();
            found.warn(
                &object,
                message,
                "check that this is the management cluster; --context selects another",
            );
            continue;
        };
        let object = format!("Deployment/{}", manager.deployment);
        match &manager.version {
            None => {
                let message = format!("its version is unknown: the image is {:?}", manager.image);
                found.warn(&object, message, "");
            }
            Some(version) if version.minor_below(&first_version()) => {
                let message =
                    format!("it is Cluster API {version}; in-place updates need v1.12 or newer");
                found.fail(&object, message, "clusterctl upgrade");
            }
            Some(_) => {}
        }
        for gate in provider.gates() {
            if !manager.gate(gate) {
                let message = format!("feature gate {gate} is disabled");
                let remedy = format!("add {gate}=true to its --feature-gates");
                found.fail(&object, message, &remedy);
            }
        }
    }
    let version = managers.iter().find_map(|manager| manager.version.clone());
    let version = version.map_or_else(String::new, |version| format!(" {version}"));
    found.or_ok("Cluster API", format!("Cluster API{version} has its feature gates enabled"));
}

pub(super) fn controller(facts: &Facts, found: &mut Findings) {
    let workload = match &facts.controller {
        Read::Known(Some(workload)) => workload,
        Read::Known(None) => {
            let discovered = matches!(&facts.extensions, Read::Known(all)
                if all.iter().any(|e| e.name == EXTENSION && e.discovered.as_ref().is_some_and(|(s, _)| s == "True")));
            let message = "it does not exist".to_owned();
            if discovered {
                let remedy = "the hooks are served by a controller that runs elsewhere";
                return found.warn(CONTROLLER, message, remedy);
            }
            return found.fail(CONTROLLER, message, APPLY);
        }
        Read::Unknown(why) => return found.unknown(CONTROLLER, why),
    };
    let Workload { replicas, ready, image, client_auth: _, canonical: _ } = workload;
    let remedy = "kubectl -n refit-system describe pods; kubectl -n refit-system logs \
        deploy/refit-controller";
    if *ready == 0 {
        found.fail(CONTROLLER, format!("none of {replicas} replicas is ready"), remedy);
    } else if ready < replicas {
        found.warn(CONTROLLER, format!("{ready} of {replicas} replicas are ready"), remedy);
    }
    if *replicas < 2 {
        let message = format!(
            "{replicas} replica(s): Cluster API does not start while no replica serves the hooks"
        );
        found.warn(CONTROLLER, message, "set spec.replicas to 2");
    }
    let tag = image.rsplit_once(':').map(|(_, tag)| tag.trim_start_matches('v'));
    if tag.is_some_and(|tag| tag != facts.version && tag.parse::<semver::Version>().is_ok()) {
        let message = format!("it runs {image}, but this program is {}", facts.version);
        found.warn(CONTROLLER, message, "use the same version everywhere");
    }
    found.or_ok(CONTROLLER, format!("{ready} of {replicas} replicas are ready"));
}

pub(super) fn lease(facts: &Facts, found: &mut Findings) {
    const OBJECT: &str = "Lease/refit-system/refit-controller";
    let remedy = "kubectl -n refit-system logs deploy/refit-controller";
    let lease = match &facts.lease {
        Read::Known(Some(lease)) => lease,
        Read::Known(None) => {
            let message =
                "it does not exist: no controller with leader election has become the leader"
                    .to_owned();
            return found.warn(OBJECT, message, remedy);
        }
        Read::Unknown(why) => return found.unknown(OBJECT, why),
    };
    let held = SignedDuration::from_secs(lease.duration_seconds.clamp(1, 3600)) + LEASE_GRACE;
    match lease.renewed_at {
        _ if lease.holder.is_empty() => {
            found.fail(OBJECT, "no replica holds it".to_owned(), remedy);
        }
        Some(at) if facts.now.duration_since(at) <= held => {}
        _ => {
            let message = format!("{} holds it, but does not renew it", lease.holder);
            found.fail(OBJECT, message, remedy);
        }
    }
    found.or_ok(OBJECT, format!("{} leads", lease.holder));
}

pub(super) fn namespaces(facts: &Facts, found: &mut Findings) {
    let namespaces = match &facts.namespaces {
        Read::Known(namespaces) => namespaces,
        Read::Unknown(why) => return found.unknown("Namespaces", why),
    };
    let Read::Known(extensions) = &facts.extensions else {
        return found.unknown("Namespaces", "the ExtensionConfigs are unknown");
    };
    let Some(refit) = extensions.iter().find(|e| e.name == EXTENSION) else {
        let message = "cannot be matched: ExtensionConfig refit does not exist".to_owned();
        return found.add(Level::Ok, "Namespaces", message, "");
    };
    let mut reached = 0;
    for namespace in namespaces {
        let object = format!("Namespace/{}", namespace.name);
        let labels = match &namespace.labels {
            Read::Known(labels) => labels,
            Read::Unknown(why) => {
                found.unknown(&object, why);
                continue;
            }
        };
        let mut facts = from_anywhere(&[Extension::assumed()]);
        facts.group.namespace.clone_from(&namespace.name);
        facts.namespace_labels = Read::Known(labels.clone());
        let others = extensions.iter().filter(|e| e.name != EXTENSION).cloned();
        let this = Extension { selector: refit.selector.clone(), ..Extension::assumed() };
        facts.extensions = Read::Known(others.chain([this]).collect());
        match reach(&facts) {
            Ok(()) if opted_in(labels) => reached += 1,
            Ok(()) => {
                let message = format!(
                    "ExtensionConfig {EXTENSION} selects it, but it lacks the label {}={}: Refit \
                     refuses every request for it",
                    keys::IN_PLACE,
                    keys::OPTED_IN
                );
                found.fail(&object, message, "set the label, or narrow the namespaceSelector");
            }
            Err(unreached) => {
                let clusters = namespace.clusters.join(", ");
                let there = if opted_in(labels) {
                    "Clusters there"
                } else {
                    "Refit does not connect to the Clusters there"
                };
                let message = format!("{unreached} ({there}: {clusters})");
                let level = if matches!(unreached, Unreached::Shared { .. }) {
                    Level::Fail
                } else {
                    Level::Warn
                };
                found.add(level, &object, message, "");
            }
        }
    }
    found.or_ok("Namespaces", format!("{reached} with Clusters, all opted in"));
}

/// Whether the namespace of a cluster did not opt in: agents have nowhere to report there.
fn is_closed(facts: &Facts, cluster: &str) -> bool {
    let Read::Known(namespaces) = &facts.namespaces else { return false };
    let namespace = cluster.split_once('/').map_or("", |(namespace, _)| namespace);
    let of_cluster = namespaces.iter().find(|known| known.name == namespace);
    of_cluster.is_some_and(|known| matches!(&known.labels, Read::Known(l) if !opted_in(l)))
}

pub(super) fn agents(facts: &Facts, found: &mut Findings) {
    let mut fresh = 0;
    for (cluster, hosts) in &facts.hosts {
        if is_closed(facts, cluster) {
            continue;
        }
        let hosts = match hosts {
            Read::Known(hosts) => hosts,
            Read::Unknown(why) => {
                found.unknown(&format!("Cluster/{cluster}"), why);
                continue;
            }
        };
        for host in hosts {
            let object = format!("Node/{} ({cluster})", host.node);
            let remedy = format!(
                "check refit-agent on that host: systemctl status refit-agent, or its pod in \
                 refit-system of {cluster}"
            );
            for fact in &host.unread {
                let remedy = "repair what the message names: the host gets no update until then";
                found.warn(&object, format!("its agent cannot read {fact}"), remedy);
            }
            match host.reported_at {
                None => found.fail(&object, "its agent never reported".to_owned(), &remedy),
                Some(at) if facts.now.duration_since(at) > REPORT_STALE_AFTER => {
                    found.fail(&object, format!("its agent last reported at {at}"), &remedy);
                }
                Some(_) if host.agent != facts.version => {
                    let message = format!(
                        "its agent is {}, but this program is {}",
                        host.agent, facts.version
                    );
                    found.warn(&object, message, "use the same version everywhere");
                }
                Some(_) => fresh += 1,
            }
        }
    }
    found.or_ok("agents", format!("{fresh} agents reported recently"));
}

pub(super) fn skew(facts: &Facts, found: &mut Findings) {
    for (cluster, hosts) in &facts.hosts {
        let Read::Known(hosts) = hosts else { continue };
        let servers = hosts.iter().filter(|host| host.control_plane);
        let lowest = servers.filter_map(|host| host.kubelet.version()).min();
        let Some(server) = lowest else { continue };
        for host in hosts {
            if let Some(kubelet) = host.kubelet.version()
                && let Err(error) = kubelet.check_kubelet_of(server)
            {
                let object = format!("Node/{} ({cluster})", host.node);
                let remedy = "upgrade the older side: refit plan shows how";
                found.fail(&object, error.to_string(), remedy);
            }
        }
    }
    found.or_ok("versions", "the versions of kubelets and API servers are compatible".to_owned());
}

pub(super) fn preflight(facts: &Facts, found: &mut Findings) {
    for (cluster, hosts) in &facts.hosts {
        if let Read::Unknown(why) = hosts
            && !is_closed(facts, cluster)
        {
            found.unknown(&format!("Cluster/{cluster}"), why);
        }
    }
    for (group, refused) in &facts.refused {
        found.warn(group, refused.message(), "");
    }
    found.or_ok("machines", "an update of any machine could begin now".to_owned());
}

pub(super) fn rollouts(facts: &Facts, found: &mut Findings) {
    for (owner, why) in &facts.blocked {
        found.warn(owner, format!("its rollout is blocked: {why}"), "");
    }
    found.or_ok("rollouts", "no rollout is blocked".to_owned());
}

pub(super) fn invariants(facts: &Facts, found: &mut Findings) {
    if facts.unfinished > 0 {
        let message = format!(
            "{} updates are in progress; leftovers are checked when they have finished",
            facts.unfinished
        );
        return found.add(Level::Ok, "NodeUpdates", message, "");
    }
    if facts.hosts.values().any(|hosts| matches!(hosts, Read::Unknown(_))) {
        let why = "the Nodes of a Cluster are unknown";
        return found.unknown("invariants", why);
    }
    for violation in &facts.violations {
        let message = format!("invariant {}: {}", violation.invariant.number(), violation.message);
        let remedy = match violation.invariant {
            Invariant::NoneForgotten => {
                "inspect it with kubectl describe; refit retry machine/NAME requests another \
                 attempt"
            }
            Invariant::Cordons => "run kubectl uncordon once the node is healthy",
            Invariant::UpdateRequested => {
                "Cluster API counts it as up to date and does not change it; the next change of \
                 its MachineDeployment's template updates it too, annotation \
                 cluster.x-k8s.io/remediate-machine replaces it"
            }
            Invariant::EnoughAvailable
            | Invariant::OneMember
            | Invariant::NoReplacement
            | Invariant::OneUpdate
            | Invariant::OneUpdater
            | Invariant::Disruption
            | Invariant::AbortStops
            | Invariant::NothingLeft
            | Invariant::InWindow
            | Invariant::GateOpen
            | Invariant::WavesKept => {
                "restart the controller, which removes leftovers; if it remains, report it as a bug"
            }
        };
        found.fail(&violation.object, message, remedy);
    }
    found.or_ok("invariants", "no leftovers of finished updates".to_owned());
}
