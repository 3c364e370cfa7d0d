//! Checks that the controller's ServiceAccount has the permissions of an installation.

use std::collections::BTreeSet;

use k8s_openapi::api::{
    authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec},
    core::v1::{Namespace, ServiceAccount},
};
use kube::{
    Api, Client, ResourceExt as _,
    api::{ListParams, PostParams},
};
use refit_install::{Choices, Part, manifests, objects};
use refit_kinds::{json::text, keys};
use refit_predict::{Read, doctor::Right};

use super::gather::{CONTROLLER, SYSTEM, system};
use crate::plan::reader::reason_of;

/// Checks each permission in the installation's roles against the controller's ServiceAccount.
pub(super) async fn rights(client: &Client) -> Read<Vec<Right>> {
    match system::<ServiceAccount>(client, CONTROLLER).await {
        Read::Known(Some(_)) => {}
        Read::Known(None) => {
            let why = format!(
                "ServiceAccount {CONTROLLER} does not exist in {SYSTEM}; the controller uses \
                 another account"
            );
            return Read::Unknown(why);
        }
        Read::Unknown(why) => return Read::Unknown(why),
    }
    let api: Api<SubjectAccessReview> = Api::all(client.clone());
    let mut found = BTreeSet::new();
    for (space, attributes) in needed() {
        match right(&api, &space, &attributes).await {
            // The kubeconfigs may be readable in the namespaces of the clusters only.
            Ok(Right { allowed: false, .. }) if is_of_kubeconfigs(&attributes) => {
                match kubeconfig_rights(client, &api, &attributes).await {
                    Ok(rights) => found.extend(rights),
                    Err(error) => return Read::Unknown(reason_of(&error)),
                }
            }
            Ok(right) => {
                found.insert(right);
            }
            Err(error) => return Read::Unknown(reason_of(&error)),
        }
    }
    Read::Known(found.into_iter().collect())
}

/// Whether the controller has a permission.
async fn right(
    api: &Api<SubjectAccessReview>,
    space: &str,
    attributes: &ResourceAttributes,
) -> kube::Result<Right> {
    let review = SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: Some(format!("system:serviceaccount:{SYSTEM}:{CONTROLLER}")),
            groups: Some(vec![
                "system:serviceaccounts".to_owned(),
                format!("system:serviceaccounts:{SYSTEM}"),
                "system:authenticated".to_owned(),
            ]),
            resource_attributes: Some(attributes.clone()),
            ..SubjectAccessReviewSpec::default()
        },
        ..SubjectAccessReview::default()
    };
    let answer = api.create(&PostParams::default(), &review).await?;
    let allowed = answer.status.is_some_and(|status| status.allowed);
    Ok(Right { what: shown(attributes, space), allowed })
}

fn is_of_kubeconfigs(attributes: &ResourceAttributes) -> bool {
    attributes.resource.as_deref() == Some("secrets") && attributes.namespace.is_none()
}

/// Whether the controller may read kubeconfigs in each namespace that opted in.
async fn kubeconfig_rights(
    client: &Client,
    api: &Api<SubjectAccessReview>,
    attributes: &ResourceAttributes,
) -> kube::Result<Vec<Right>> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let opted_in = format!("{}={}", keys::IN_PLACE, keys::OPTED_IN);
    let found = namespaces.list(&ListParams::default().labels(&opted_in)).await?;
    let mut rights = Vec::new();
    for namespace in found {
        let space = namespace.name_any();
        let there = ResourceAttributes { namespace: Some(space.clone()), ..attributes.clone() };
        rights.push(right(api, &space, &there).await?);
    }
    if rights.is_empty() {
        rights.push(Right { what: shown(attributes, ""), allowed: false });
    }
    Ok(rights)
}

fn shown(attributes: &ResourceAttributes, space: &str) -> String {
    let word = |value: &Option<String>| value.clone().unwrap_or_default();
    let mut resource = word(&attributes.resource);
    let sub = word(&attributes.subresource);
    if !sub.is_empty() {
        resource = format!("{resource}/{sub}");
    }
    let group = word(&attributes.group);
    if !group.is_empty() {
        resource = format!("{resource}.{group}");
    }
    let mut text = format!("{} {resource}", word(&attributes.verb));
    let name = word(&attributes.name);
    if !name.is_empty() {
        text = format!("{text} {name}");
    }
    if space.is_empty() { text } else { format!("{text} in {space}") }
}

/// Lists the permissions in the roles of an installation.
fn needed() -> Vec<(String, ResourceAttributes)> {
    let mut all = Vec::new();
    for role in objects(&manifests(&[Part::Rbac], &Choices::default())) {
        if !matches!(text(&role, "/kind"), "ClusterRole" | "Role") {
            continue;
        }
        let space = text(&role, "/metadata/namespace");
        let rules = role["rules"].as_array().into_iter().flatten();
        for rule in rules {
            let list = |key: &str| -> Vec<String> {
                let values = rule[key].as_array().into_iter().flatten();
                values.filter_map(|v| Some(v.as_str()?.to_owned())).collect()
            };
            let names = list("resourceNames").into_iter().map(Some);
            let names: Vec<Option<String>> = names.collect();
            let names = if names.is_empty() { vec![None] } else { names };
            for group in list("apiGroups") {
                for resource in list("resources") {
                    let (plural, sub) = match resource.split_once('/') {
                        Some((plural, sub)) => (plural.to_owned(), Some(sub.to_owned())),
                        None => (resource.clone(), None),
                    };
                    for (verb, name) in pairs(list("verbs"), &names) {
                        let attributes = ResourceAttributes {
                            group: Some(group.clone()),
                            resource: Some(plural.clone()),
                            subresource: sub.clone(),
                            verb: Some(verb),
                            name,
                            namespace: Some(space.to_owned()).filter(|space| !space.is_empty()),
                            ..ResourceAttributes::default()
                        };
                        all.push((space.to_owned(), attributes));
                    }
                }
            }
        }
    }
    all
}

/// Every verb with every name.
fn pairs(
    verbs: Vec<String>,
    names: &[Option<String>],
) -> impl Iterator<Item = (String, Option<String>)> {
    verbs.into_iter().flat_map(|verb| names.iter().map(move |name| (verb.clone(), name.clone())))
}
