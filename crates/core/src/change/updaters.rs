//! Updaters that operators add: whether one is valid, and which apply to a machine.

use std::collections::BTreeMap;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use jiff::Timestamp;
use kube::{
    ResourceExt as _,
    core::{Selector, SelectorExt as _},
};
use refit_kinds::{
    canonical::K8SD,
    conditions,
    refit::{
        self, CONFIGURATION, Disruption, KUBEADM, ObjectClaim, Owner, ProviderPart, UpdatePart,
        UpdaterAction, UpdaterHook, UpdaterHost, UpdaterSelector, UpdaterSpec, UpdaterStatus,
    },
};
use serde_json::Value;

use super::{
    claim::{Claim, hash_of},
    claim_path::{BadClaimPath, ClaimPath},
    cover::{AddedUpdater, Updater},
    host_part::{unclaimed_argument, unused_claim},
    verify::compiled,
};

/// Why an Updater is not used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, strum::IntoStaticStr)]
pub enum BadUpdater {
    /// A path is not one.
    #[strum(serialize = "InvalidPath")]
    #[error("spec.claims[{claim}].paths[{path}]: {why}")]
    Path {
        /// Index of the claim.
        claim: usize,
        /// Index of the path.
        path: usize,
        /// What is wrong with it.
        why: BadClaimPath,
    },
    /// The selector of Clusters cannot be evaluated.
    #[strum(serialize = "InvalidSelector")]
    #[error("spec.selector.clusterSelector: {0}")]
    Selector(String),
    /// Its name is that of a built-in updater.
    #[error("metadata.name: {0} is built in; choose another name")]
    NameTaken(String),
    /// It makes changes, and not one thing does.
    #[error(
        "action Update needs exactly one of spec.hook, spec.host and spec.template, which makes the changes"
    )]
    NotOneWay,
    /// Only a provider can bring machines to a version.
    #[strum(serialize = "ClaimsVersion")]
    #[error(
        "spec.claims[{claim}] has the version of Machine: only an Updater with spec.template can bring \
         machines to a version"
    )]
    ClaimsVersion {
        /// Index of the claim.
        claim: usize,
    },
    /// The authorities of its server cannot be used.
    #[strum(serialize = "InvalidCaBundle")]
    #[error("spec.hook.caBundle: {0}")]
    Authorities(String),
    /// A path is claimed, and no step of the agent carries it out.
    #[error("spec.claims: no step of spec.host uses {path}; claim only the paths of its arguments")]
    UnusedClaim {
        /// The path.
        path: String,
    },
    /// An argument of the agent's steps is not claimed.
    #[error("spec.host: {path} is not claimed; add it to spec.claims")]
    UnclaimedArgument {
        /// The path.
        path: String,
    },
    /// An expression is not valid CEL.
    #[strum(serialize = "InvalidExpression")]
    #[error("spec.verify[{index}]: {why}")]
    Verify {
        /// Index of the expression.
        index: usize,
        /// What is wrong with it.
        why: String,
    },
    /// It would report a version or a failure domain as reached that no machine has.
    #[error(
        "spec.claims[{claim}] is about Machine, whose version and failure domain must be true, and action \
         Leave does nothing about them: claim other kinds"
    )]
    LeavesMachine {
        /// Index of the claim.
        claim: usize,
    },
}

/// Condition of an Updater: it is used.
pub const ACCEPTED: &str = "Accepted";

/// The status of an Updater that shows whether it is used.
pub fn show_accepted(updater: &refit::Updater, now: Timestamp) -> UpdaterStatus {
    let generation = updater.metadata.generation;
    let mut next = updater.status.clone().unwrap_or_default();
    let refused = accepted(updater).err();
    let message = refused.as_ref().map(ToString::to_string).unwrap_or_default();
    let condition = match &refused {
        None => (ACCEPTED, "True", ACCEPTED, ""),
        Some(why) => (ACCEPTED, "False", why.into(), message.as_str()),
    };
    conditions::set(&mut next.conditions, now, generation, condition);
    UpdaterStatus { observed_generation: generation, ..next }
}

/// What selects Updaters for a machine.
#[derive(Clone, Copy, Debug)]
pub struct Selected<'a> {
    /// Labels of the machine's Cluster.
    pub cluster_labels: &'a BTreeMap<String, String>,
    /// Kind of the machine's owner.
    pub owner: Owner,
    /// Kind of its infrastructure machine.
    pub infrastructure_kind: &'a str,
}

/// The Updater as it is used, or why it is not.
pub fn accepted(updater: &refit::Updater) -> Result<Updater, BadUpdater> {
    cluster_selector(updater.spec.selector.as_ref())?;
    let claims = updater.spec.claims.iter().enumerate();
    let claims =
        claims.map(|(index, claim)| parsed(index, claim)).collect::<Result<Vec<_>, _>>()?;
    let UpdaterSpec { action, disruption, timeout_seconds, hook, host, template, verify, .. } =
        &updater.spec;
    let name = updater.name_any();
    if [KUBEADM, CONFIGURATION, K8SD].contains(&&*name) {
        return Err(BadUpdater::NameTaken(name));
    }
    let disruption = match action {
        UpdaterAction::Leave => {
            if let Some(claim) = claims.iter().position(|claim| claim.kind == "Machine") {
                return Err(BadUpdater::LeavesMachine { claim });
            }
            Disruption::None
        }
        UpdaterAction::Update => {
            match (hook, host, template) {
                (Some(hook), None, None) => check_authorities(hook)?,
                (None, Some(host), None) => check_host(host, &claims)?,
                (None, None, Some(_)) => {}
                _ => return Err(BadUpdater::NotOneWay),
            }
            // The server cannot bring a machine to a version: it has no gates.
            let version = claims.iter().position(Claim::names_version);
            if let Some(claim) = version.filter(|_| template.is_none()) {
                return Err(BadUpdater::ClaimsVersion { claim });
            }
            disruption.unwrap_or_default()
        }
    };
    for (index, expression) in verify.iter().enumerate() {
        compiled(expression).map_err(|why| BadUpdater::Verify { index, why })?;
    }
    let part = UpdatePart {
        updater: name,
        action: *action,
        disruption,
        timeout_seconds: Some(*timeout_seconds),
        host: None,
        template: template.clone().map(|template| ProviderPart {
            template,
            brings_version: claims.iter().any(Claim::names_version),
        }),
    };
    Ok(Updater::Added(AddedUpdater { part, claims, host: host.clone() }))
}

/// What cannot be the authorities of a server is found before a machine is drained for it.
fn check_authorities(hook: &UpdaterHook) -> Result<(), BadUpdater> {
    let pem = STANDARD.decode(&hook.ca_bundle);
    let pem = pem.map_err(|error| BadUpdater::Authorities(format!("it is not base64: {error}")))?;
    if String::from_utf8_lossy(&pem).contains("-----BEGIN CERTIFICATE-----") {
        Ok(())
    } else {
        Err(BadUpdater::Authorities("it holds no PEM certificate".to_owned()))
    }
}

/// Every claim must be carried out, and every argument must be claimed: a change of it is a change of the
/// machine.
fn check_host(host: &UpdaterHost, claims: &[Claim]) -> Result<(), BadUpdater> {
    if let Some(path) = unused_claim(host, claims) {
        return Err(BadUpdater::UnusedClaim { path: path.to_string() });
    }
    match unclaimed_argument(host, claims) {
        Some(path) => Err(BadUpdater::UnclaimedArgument { path }),
        None => Ok(()),
    }
}

/// sha256 of what an Updater claims of these objects.
pub fn hash_of_claimed(updater: &refit::Updater, objects: &[&Value]) -> Option<String> {
    let claims = updater.spec.claims.iter().enumerate();
    let claims = claims.map(|(index, claim)| parsed(index, claim)).collect::<Result<Vec<_>, _>>();
    hash_of(&claims.ok()?, objects)
}

/// Whether an Updater claims fields of a kind.
pub fn claims_of_kind(updater: &refit::Updater, group: &str, kind: &str) -> bool {
    updater.spec.claims.iter().any(|claim| claim.group == group && claim.kind == kind)
}

/// Whether an Updater claims files of a bootstrap config of this kind, and so needs their contents.
pub fn claims_contents(updater: &refit::Updater, group: &str, kind: &str) -> bool {
    let of_kind =
        updater.spec.claims.iter().filter(|claim| claim.group == group && claim.kind == kind);
    let mut paths = of_kind.flat_map(|claim| &claim.paths);
    paths.any(|path| {
        let rest = path.strip_prefix("/spec/files");
        path == "/spec/**" || rest.is_some_and(|rest| rest.starts_with(['/', '[']))
    })
}

fn parsed(index: usize, claim: &ObjectClaim) -> Result<Claim, BadUpdater> {
    let path = |(path, text): (usize, &String)| {
        text.parse::<ClaimPath>().map_err(|why| BadUpdater::Path { claim: index, path, why })
    };
    Ok(Claim {
        group: claim.group.clone(),
        kind: claim.kind.clone(),
        paths: claim.paths.iter().enumerate().map(path).collect::<Result<_, _>>()?,
    })
}

fn cluster_selector(selector: Option<&UpdaterSelector>) -> Result<Selector, BadUpdater> {
    let clusters = selector.and_then(|selector| selector.cluster_selector.clone());
    let clusters = clusters.map(Selector::try_from).transpose();
    clusters.map(Option::unwrap_or_default).map_err(|error| BadUpdater::Selector(error.to_string()))
}

/// The valid Updaters for a machine, in the order in which they claim.
pub fn updaters_for<'a>(
    all: impl IntoIterator<Item = &'a refit::Updater>,
    machine: Selected<'_>,
) -> Vec<Updater> {
    let mut selected: Vec<&refit::Updater> =
        all.into_iter().filter(|updater| is_for(updater, machine)).collect();
    selected.sort_by_key(|updater| (updater.spec.order, updater.name_any()));
    selected.into_iter().filter_map(|updater| accepted(updater).ok()).collect()
}

fn is_for(updater: &refit::Updater, machine: Selected<'_>) -> bool {
    let selector = updater.spec.selector.as_ref();
    let empty = UpdaterSelector::default();
    let UpdaterSelector { group_kinds, infrastructure_kinds, .. } = selector.unwrap_or(&empty);
    let has_labels =
        cluster_selector(selector).is_ok_and(|clusters| clusters.matches(machine.cluster_labels));
    has_labels
        && (group_kinds.is_empty() || group_kinds.contains(&machine.owner))
        && (infrastructure_kinds.is_empty()
            || infrastructure_kinds.iter().any(|kind| kind == machine.infrastructure_kind))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn updater(name: &str, spec: &Value) -> refit::Updater {
        serde_json::from_value(json!({
            "apiVersion": "refit.dev/v1alpha1",
            "kind": "Updater",
            "metadata": {"name": name},
            "spec": spec,
        }))
        .unwrap()
    }

    fn image(more: &Value) -> Value {
        let mut spec = json!({
            "action": "Leave",
            "claims": [{
                "group": "infrastructure.cluster.x-k8s.io",
                "kind": "Metal3Machine",
                "paths": ["/spec/image/**"],
            }],
        });
        json_patch::merge(&mut spec, more);
        spec
    }

    #[test]
    fn an_invalid_updater_is_refused_with_its_field() {
        let claim = |group: &str, kind: &str, paths: &[&str]| json!({"claims": [{"group": group, "kind": kind, "paths": paths}]});
        let operator = json!({"selector": {"clusterSelector": {
            "matchExpressions": [{"key": "a", "operator": "Near", "values": ["b"]}]}}});
        let leaves = "spec.claims[0] is about Machine";
        for (more, why) in [
            (
                claim("g", "K", &["/spec/a", "/spec/**/b"]),
                "spec.claims[0].paths[1]: \"/spec/**/b\" has ** before its end",
            ),
            (operator, "spec.selector.clusterSelector: "),
            (claim("cluster.x-k8s.io", "Machine", &["/spec/version"]), leaves),
            (claim("cluster.x-k8s.io", "Machine", &["/spec/failureDomain"]), leaves),
        ] {
            let error = accepted(&updater("u", &image(&more))).unwrap_err().to_string();
            assert!(error.starts_with(why), "{error}");
        }
    }

    #[test]
    fn only_a_provider_may_claim_the_version_of_machines() {
        let with = |way: &Value| {
            let mut spec = json!({
                "action": "Update",
                "disruption": "Drain",
                "claims": [{"group": "cluster.x-k8s.io", "kind": "Machine", "paths": ["/spec/version"]}],
            });
            json_patch::merge(&mut spec, way);
            accepted(&updater("nodes", &spec))
        };
        let template =
            json!({"apiVersion": "a.example/v1", "kind": "NodeUpdateTemplate", "name": "x"});
        let by_provider = with(&json!({ "template": template })).unwrap();
        assert!(by_provider.brings_version());
        let pem = STANDARD.encode("-----BEGIN CERTIFICATE-----");
        let refused = with(&json!({"hook": {"url": "https://x", "caBundle": pem}})).unwrap_err();
        assert!(refused.to_string().contains("only an Updater with spec.template"), "{refused}");
    }

    #[test]
    fn an_updater_that_makes_changes_is_checked_whole() {
        let with = |more: &Value| {
            let mut spec = json!({
                "order": 1,
                "action": "Update",
                "disruption": "Reboot",
                "claims": [{"group": "g", "kind": "M", "paths": ["/spec/image/**"]}],
            });
            spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            accepted(&updater("u", &spec)).map(drop).map_err(|why| why.to_string())
        };
        let pem = STANDARD.encode("-----BEGIN CERTIFICATE-----");
        let hook = json!({"url": "https://x", "caBundle": pem});
        let empty = json!({"url": "https://x", "caBundle": "Cg=="});
        let host =
            json!({"osImage": {"urlFrom": "/spec/image/url", "checksumFrom": "/spec/image/sum"}});
        let packages = json!({"osPackages": {"installFrom": "/spec/image"}});
        let typo = json!({"osPackages": {"installFrom": "/spec/image/list"}});
        let elsewhere =
            json!({"osImage": {"urlFrom": "/spec/url", "checksumFrom": "/spec/image/sum"}});
        let more = json!([{"group": "g", "kind": "M", "paths": ["/spec/image/**", "/spec/size"]}]);
        for (spec, why) in [
            (json!({"hook": hook}), ""),
            (json!({"hook": empty}), "spec.hook.caBundle: it holds no PEM certificate"),
            (json!({"host": host}), ""),
            (json!({"host": packages}), ""),
            (json!({"host": typo}), "spec.claims: no step of spec.host uses /spec/image/**"),
            (json!({}), "action Update needs exactly one"),
            (json!({"hook": hook, "host": host}), "action Update needs exactly one"),
            (
                json!({"host": host, "claims": more}),
                "spec.claims: no step of spec.host uses /spec/size",
            ),
            (json!({"host": elsewhere}), "spec.host: /spec/url is not claimed"),
            (json!({"hook": hook, "verify": ["machine.spec.ok", "a =="]}), "spec.verify[1]: "),
        ] {
            let error = with(&spec).err().unwrap_or_default();
            assert!(
                error.starts_with(why) && error.is_empty() == why.is_empty(),
                "{spec}: {error}"
            );
        }
    }

    #[test]
    fn updaters_are_selected_by_cluster_owner_and_infrastructure_and_sorted_by_order() {
        let all = [
            updater("late", &image(&json!({"order": 200}))),
            updater("b", &image(&json!({}))),
            updater("a", &image(&json!({}))),
            updater("early", &image(&json!({"order": 1}))),
            updater(
                "broken",
                &image(&json!({"claims": [{"group": "g", "kind": "K", "paths": ["/spec"]}]})),
            ),
            updater(
                "sites",
                &image(
                    &json!({"selector": {"clusterSelector": {"matchLabels": {"site": "edge"}}}}),
                ),
            ),
            updater(
                "elsewhere",
                &image(
                    &json!({"selector": {"clusterSelector": {"matchLabels": {"site": "core"}}}}),
                ),
            ),
            updater(
                "planes",
                &image(&json!({"selector": {"groupKinds": ["KubeadmControlPlane"]}})),
            ),
            updater(
                "docker",
                &image(&json!({"selector": {"infrastructureKinds": ["DockerMachine"]}})),
            ),
            updater(
                "metal",
                &image(&json!({"selector": {"infrastructureKinds": ["Metal3Machine"]}})),
            ),
        ];
        let labels = BTreeMap::from([("site".to_owned(), "edge".to_owned())]);
        let machine = Selected {
            cluster_labels: &labels,
            owner: Owner::Deployment,
            infrastructure_kind: "Metal3Machine",
        };
        let selected = updaters_for(&all, machine);
        let names: Vec<&str> = selected.iter().map(Updater::name).collect();
        assert_eq!(names, ["early", "a", "b", "metal", "sites", "late"]);
    }
}
