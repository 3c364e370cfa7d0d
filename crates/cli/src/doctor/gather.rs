//! Reads the facts for a diagnosis from a live cluster.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use k8s_openapi::{
    api::{
        admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding},
        apps::v1::Deployment,
        coordination::v1::Lease,
        core::v1::{Container, Namespace, Node, Pod, Secret},
        policy::v1::PodDisruptionBudget,
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{Api, Client, ResourceExt as _, api::ListParams, discovery::ApiResource};
use refit_cluster_api::kinds::{
    Cluster as ClusterObject, ExtensionConfig, KubeadmControlPlane, Machine, MachineDeployment,
    MachineSet,
};
use refit_core::{
    certificates::CertificateFacts, change::OnUncovered, group::BLOCKED, invariants::World,
};
use refit_kinds::{
    canonical::CANONICAL,
    crds,
    json::{self, annotation, kind, label, name, namespace, text},
    keys,
    refit::{HostPlan, NodeUpdate, ReplacementHold, UpdateGroup, hash_json},
};
use refit_predict::{
    Extension, GroupRef, Manager, Objects, Read,
    doctor::{self, Certificate, ClientAuth, ClientCopy, Crd, Facts, Host},
    input::reported_at,
    managers::{ClientSecret, PROVIDER_LABEL},
    preflight::{Refused, WorkloadFacts, refused},
};
use serde_json::Value;
use x509_parser::{
    extensions::GeneralName,
    pem::{Pem, parse_x509_pem},
};

use super::rights;
use crate::plan::{
    gather::default_policy,
    reader::{Reader, everything, reason_of},
};

/// Namespace of an installation.
pub(super) const SYSTEM: &str = "refit-system";
/// Name of the controller's Deployment, Lease and ServiceAccount.
pub(super) const CONTROLLER: &str = "refit-controller";
/// Name of the Secret with the hook server's certificate.
const CERTIFICATE: &str = "refit-webhook-tls";
/// User agent of the client.
const READER: &str = "doctor";

/// Apparent leftovers get this long to be cleaned up; whatever changes in this time is not a
/// finding.
const SETTLE: Duration = Duration::from_secs(5);

/// Reads the facts; reads apparent leftovers twice.
pub(super) async fn gather(reader: &Reader) -> anyhow::Result<Facts> {
    let mut facts = read_once(reader).await?;
    if facts.unfinished == 0 && !facts.violations.is_empty() {
        tokio::time::sleep(SETTLE).await;
        let again = read_once(reader).await?;
        facts.unfinished = again.unfinished;
        facts.violations.retain(|one| again.violations.contains(one));
    }
    Ok(facts)
}

/// The control planes of Clusters that are of another kind than KubeadmControlPlane, such as CK8sControlPlane.
async fn other_control_planes(reader: &Reader, clusters: &[Value]) -> anyhow::Result<Vec<Value>> {
    let mut reader = reader.clone();
    let kinds: BTreeSet<(&str, &str)> = clusters
        .iter()
        .map(|cluster| {
            let of = |field| text(cluster, &format!("/spec/controlPlaneRef/{field}"));
            (of("apiGroup"), of("kind"))
        })
        .filter(|(group, kind)| !group.is_empty() && *kind != "KubeadmControlPlane")
        .collect();
    let mut all = Vec::new();
    for (group, kind) in kinds {
        all.extend(reader.everywhere_of(group, kind).await?);
    }
    Ok(all)
}

/// Reads the facts once. An unreachable cluster is an error; a forbidden read is not.
async fn read_once(reader: &Reader) -> anyhow::Result<Facts> {
    let client = &reader.cluster.client;
    let clusters = reader.everywhere::<ClusterObject>().await?;
    let machines = reader.everywhere::<Machine>().await?;
    let updates = reader.everywhere::<NodeUpdate>().await?;
    let groups = reader.everywhere::<UpdateGroup>().await?;
    let mut world = World::new();
    let on_uncovered = default_policy(&reader.cluster).await;
    let owners = [
        ("controlplane.cluster.x-k8s.io", reader.everywhere::<KubeadmControlPlane>().await?),
        ("cluster.x-k8s.io", reader.everywhere::<MachineDeployment>().await?),
        ("cluster.x-k8s.io", reader.everywhere::<MachineSet>().await?),
        ("cluster.x-k8s.io", clusters.clone()),
        ("cluster.x-k8s.io", machines.clone()),
        ("refit.dev", updates.clone()),
        ("refit.dev", groups.clone()),
    ];
    for (group, objects) in &owners {
        for object in objects {
            feed(&mut world, group, None, object);
        }
    }
    let now = reader.cluster.clock.now();
    let mut objects = Objects::new();
    objects.extend(owners.iter().flat_map(|(_, objects)| objects).cloned());
    let (mut hosts, mut refused) = (BTreeMap::new(), Vec::new());
    for cluster in &clusters {
        let key = format!("{}/{}", namespace(cluster), name(cluster));
        let found = hosts_of(reader, cluster, &machines, &mut world).await;
        if let Read::Known((_, facts)) = &found {
            refused.extend(refused_in(&objects, cluster, facts, now));
        }
        hosts.insert(key, map(found, |(hosts, _)| hosts));
    }
    let extensions = read::<ExtensionConfig>(client, "").await;
    let of_ours = match &extensions {
        Read::Known(all) => {
            all.iter().find(|e| e.metadata.name.as_deref() == Some("refit")).cloned()
        }
        Read::Unknown(_) => None,
    };
    let deployments = read::<Deployment>(client, PROVIDER_LABEL).await;
    let canonical_managers = map(deployments.clone(), |all| {
        all.iter().filter_map(manager_of_canonical).collect::<Vec<_>>()
    });
    let managers = map(deployments, |all| all.iter().filter_map(Manager::of).collect::<Vec<_>>());
    let other_planes = other_control_planes(reader, &clusters).await?;
    let annotated = owners.iter().flat_map(|(_, objects)| objects).chain(&other_planes);
    let canonical_requests = annotated
        .filter(|object| {
            let keys = [CANONICAL.upgrade_to, CANONICAL.certificates.refresh];
            keys.iter().any(|key| annotation(object, key).is_some())
        })
        .count();
    let final_phases = ["Succeeded", "Failed", "Stopped"];
    let unfinished = |update: &&Value| !final_phases.contains(&text(update, "/status/phase"));
    Ok(Facts {
        now,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        wanted_crds: crds::refit_crds().iter().map(crd_of).collect(),
        crds: crds_there(client).await,
        rights: rights::rights(client).await,
        certificate: certificate(client, of_ours.as_ref()).await,
        extensions: map(extensions, |all| all.iter().map(Extension::of).collect()),
        client_copies: client_copies(client, &managers).await,
        managers,
        canonical_managers,
        canonical_requests,
        controller: controller(client).await,
        lease: lease(client).await,
        namespaces: namespaces(client, &clusters).await,
        missing_hold_policies: missing_hold_policies(client).await,
        replacement_holds: replacement_holds(client).await,
        owners: owners_by_namespace(&objects),
        replaced_by_surge: replaced_by_surge(&objects, on_uncovered),
        hosts,
        refused,
        blocked: groups.iter().filter_map(blocked).collect(),
        unfinished: updates.iter().filter(unfinished).count(),
        violations: world.at_rest(now),
    })
}

/// Number of owners that a ReplacementHold may name, by namespace.
fn owners_by_namespace(objects: &Objects) -> BTreeMap<String, usize> {
    let mut all = BTreeMap::new();
    for owner in
        ["KubeadmControlPlane", "MachineDeployment"].iter().flat_map(|k| objects.of_kind(k))
    {
        *all.entry(namespace(owner).to_owned()).or_default() += 1;
    }
    all
}

/// The MachineDeployments that replace their only machine by means of a second one.
fn replaced_by_surge(objects: &Objects, on_uncovered: OnUncovered) -> Vec<(String, String)> {
    let is_so = |deployment: &&Value| {
        let cluster = text(deployment, "/spec/clusterName");
        let cluster = objects.get("Cluster", namespace(deployment), cluster);
        doctor::hold::is_replaced_by_surge(deployment, cluster, on_uncovered)
    };
    let found = objects.of_kind("MachineDeployment").filter(is_so);
    found.map(|one| (namespace(one).to_owned(), name(one).to_owned())).collect()
}

/// The machines of a Cluster that would have to wait, by the owners of their groups.
fn refused_in(
    objects: &Objects,
    cluster: &Value,
    facts: &WorkloadFacts,
    now: jiff::Timestamp,
) -> Vec<(String, Refused)> {
    let is_here = |object: &&Value| {
        let of = label(object, keys::CLUSTER_NAME).unwrap_or(text(object, "/spec/clusterName"));
        namespace(object) == namespace(cluster) && of == name(cluster)
    };
    let kinds = ["KubeadmControlPlane", "MachineDeployment", "MachineSet"];
    let of_kinds = kinds.into_iter().flat_map(|kind| objects.of_kind(kind)).filter(is_here);
    // The MachineSets of MachineDeployments are part of those.
    let owners = of_kinds.filter(|one| json::controller(one).is_none_or(|(of, _)| of == "Cluster"));
    let mut all = Vec::new();
    for owner in owners {
        let title = format!("{}/{} ({})", kind(owner), name(owner), namespace(owner));
        let refused = refused(objects, &GroupRef::of(owner), facts, now);
        all.extend(refused.into_iter().map(|one| (title.clone(), one)));
    }
    all
}

/// The owner of a group that is blocked, and why.
fn blocked(group: &Value) -> Option<(String, String)> {
    let conditions = group.pointer("/status/conditions")?.as_array()?;
    let blocked = |one: &&Value| one["type"] == BLOCKED && one["status"] == "True";
    let condition = conditions.iter().find(blocked)?;
    let owner = |field| text(group, field);
    let object = format!(
        "{}/{} ({})",
        owner("/spec/owner/kind"),
        owner("/spec/owner/name"),
        namespace(group)
    );
    let why = format!("{}: {}", text(condition, "/reason"), text(condition, "/message"));
    Some((object, why))
}

/// Feeds the existing objects to the invariant checker.
fn feed(world: &mut World, group: &str, cluster: Option<&str>, object: &Value) {
    // Existing objects are not writes by Refit, so they cannot violate an invariant.
    let kind = text(object, "/kind");
    drop(world.observe(group, kind, cluster, None, Some(object), READER));
}

fn map<T, U>(read: Read<T>, change: impl FnOnce(T) -> U) -> Read<U> {
    match read {
        Read::Known(value) => Read::Known(change(value)),
        Read::Unknown(why) => Read::Unknown(why),
    }
}

async fn read<K>(client: &Client, selector: &str) -> Read<Vec<K>>
where
    K: kube::Resource<DynamicType = ()> + Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let params = ListParams::default().labels(selector);
    match Api::<K>::all(client.clone()).list(&params).await {
        Ok(list) => Read::Known(list.items),
        Err(kube::Error::Api(status)) if status.code == 404 => Read::Known(Vec::new()),
        Err(error) => Read::Unknown(reason_of(&error)),
    }
}

/// Reads one object in the installation's namespace.
pub(super) async fn system<K>(client: &Client, name: &str) -> Read<Option<K>>
where
    K: kube::Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + serde::de::DeserializeOwned,
{
    match Api::<K>::namespaced(client.clone(), SYSTEM).get_opt(name).await {
        Ok(found) => Read::Known(found),
        Err(error) => Read::Unknown(reason_of(&error)),
    }
}

async fn crds_there(client: &Client) -> Read<Vec<Crd>> {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let mut found = Vec::new();
    for wanted in crds::refit_crds() {
        let name = wanted.metadata.name.unwrap_or_default();
        match api.get_opt(&name).await {
            Ok(crd) => found.extend(crd.as_ref().map(crd_of)),
            Err(error) => return Read::Unknown(reason_of(&error)),
        }
    }
    Read::Known(found)
}

fn crd_of(crd: &CustomResourceDefinition) -> Crd {
    let status = crd.status.as_ref();
    let versions = &crd.spec.versions;
    let schema = |schema: &Option<_>| {
        let json = serde_json::to_value(schema).unwrap_or_default();
        hash_json(&json)
    };
    let conditions = status.and_then(|status| status.conditions.as_ref());
    Crd {
        name: crd.metadata.name.clone().unwrap_or_default(),
        served: versions
            .iter()
            .filter(|version| version.served)
            .map(|version| version.name.clone())
            .collect(),
        stored: status
            .and_then(|status| status.stored_versions.clone())
            .unwrap_or_default()
            .into_iter()
            .collect(),
        schemas: versions
            .iter()
            .map(|version| (version.name.clone(), schema(&version.schema)))
            .collect(),
        established: conditions
            .into_iter()
            .flatten()
            .any(|condition| condition.type_ == "Established" && condition.status == "True"),
    }
}

async fn certificate(
    client: &Client,
    extension: Option<&ExtensionConfig>,
) -> Read<Option<Certificate>> {
    let secret = match system::<Secret>(client, CERTIFICATE).await {
        Read::Known(Some(secret)) => secret,
        Read::Known(None) => return Read::Known(None),
        Read::Unknown(why) => return Read::Unknown(why),
    };
    let data = secret.data.unwrap_or_default();
    let bytes = |key: &str| data.get(key).map(|value| value.0.clone()).unwrap_or_default();
    let config = extension.map(|extension| &extension.spec.client_config);
    let service = config.and_then(|config| config.service.as_ref());
    let encoded = data.get("ca.crt").and_then(|bundle| serde_json::to_value(bundle).ok());
    let bundle = config.and_then(|config| config.ca_bundle.as_deref());
    Read::Known(Some(Certificate {
        leaf: leaf(&bytes("tls.crt")),
        bundle_matches: extension.is_none() || encoded.as_ref().and_then(Value::as_str) == bundle,
        wanted_names: service
            .map(|service| format!("{}.{}.svc", service.name, service.namespace))
            .into_iter()
            .collect(),
    }))
}

/// Reads the first certificate of a PEM file.
fn leaf(pem: &[u8]) -> Result<CertificateFacts, String> {
    let (_, pem) = parse_x509_pem(pem).map_err(|error| format!("key tls.crt: {error}"))?;
    let certificate = pem.parse_x509().map_err(|error| format!("key tls.crt: {error}"))?;
    let time =
        |seconds: i64| jiff::Timestamp::from_second(seconds).map_err(|error| error.to_string());
    let names = certificate
        .subject_alternative_name()
        .ok()
        .flatten()
        .map(|alternatives| {
            let dns = |name: &GeneralName<'_>| {
                if let GeneralName::DNSName(name) = name { Some((*name).to_owned()) } else { None }
            };
            alternatives.value.general_names.iter().filter_map(dns).collect()
        })
        .unwrap_or_default();
    Ok(CertificateFacts {
        subject: certificate.subject().to_string(),
        issuer: certificate.issuer().to_string(),
        from: time(certificate.validity().not_before.timestamp())?,
        until: time(certificate.validity().not_after.timestamp())?,
        names,
    })
}

async fn controller(client: &Client) -> Read<Option<doctor::Workload>> {
    map(system::<Deployment>(client, CONTROLLER).await, |found| {
        found.map(|deployment| {
            let spec = deployment.spec.unwrap_or_default();
            let containers = spec.template.spec.map(|pod| pod.containers).unwrap_or_default();
            let client_auth = client_auth(&containers);
            let flag = flags(&containers).into_iter().find_map(|flag| {
                let value = flag.strip_prefix("--canonical=");
                value.or_else(|| flag.strip_prefix("REFIT_CANONICAL=")).map(str::to_owned)
            });
            doctor::Workload {
                replicas: i64::from(spec.replicas.unwrap_or(1)),
                ready: i64::from(deployment.status.and_then(|s| s.ready_replicas).unwrap_or(0)),
                image: containers.into_iter().find_map(|c| c.image).unwrap_or_default(),
                client_auth,
                canonical: flag.and_then(|value| value.parse().ok()).unwrap_or_default(),
            }
        })
    })
}

/// The name of a manager of Canonical's providers, if it runs.
fn manager_of_canonical(deployment: &Deployment) -> Option<String> {
    let provider = deployment.labels().get(PROVIDER_LABEL)?;
    let runs = deployment.spec.as_ref().and_then(|spec| spec.replicas) != Some(0);
    (provider.contains("ck8s") && runs).then(|| {
        let namespace = deployment.namespace().unwrap_or_default();
        format!("Deployment/{} ({namespace})", deployment.name_any())
    })
}

/// The flags of containers, as `--name=value`, and their variables, as `NAME=value`.
fn flags(containers: &[Container]) -> Vec<String> {
    let args: Vec<String> =
        containers.iter().flat_map(|one| one.args.iter().flatten().cloned()).collect();
    // The value of a flag may be an argument of its own.
    let pairs = args.windows(2).map(|pair| pair.join("="));
    let variables = containers.iter().flat_map(|one| one.env.iter().flatten());
    let variables =
        variables.map(|one| format!("{}={}", one.name, one.value.as_deref().unwrap_or_default()));
    pairs.chain(args.iter().cloned()).chain(variables).collect()
}

/// Whose hook calls a controller with these containers serves.
fn client_auth(containers: &[Container]) -> ClientAuth {
    let all = flags(containers);
    let is_off = |one: &String| {
        matches!(one.as_str(), "--hook-client-auth=Off" | "REFIT_HOOK_CLIENT_AUTH=Off")
    };
    let own = |one: &String| one.starts_with("--client-ca") || one.starts_with("REFIT_CLIENT_CA=");
    if all.iter().any(is_off) {
        ClientAuth::Off
    } else if all.iter().any(own) {
        ClientAuth::OwnAuthority
    } else {
        ClientAuth::Secret
    }
}

/// Copies of the managers' client certificate, in their namespaces.
async fn client_copies(client: &Client, managers: &Read<Vec<Manager>>) -> Read<Vec<ClientCopy>> {
    let Read::Known(managers) = managers else {
        // The managers are reported as unknown.
        return Read::Known(Vec::new());
    };
    let source = match system::<Secret>(client, keys::HOOK_CLIENT).await {
        Read::Known(source) => source.and_then(|secret| secret.data).unwrap_or_default(),
        Read::Unknown(why) => return Read::Unknown(why),
    };
    let bundle = source.get("ca.crt").map(|value| value.0.as_slice()).unwrap_or_default();
    let authorities: Vec<String> = Pem::iter_from_buffer(bundle)
        .filter_map(|pem| Some(pem.ok()?.parse_x509().ok()?.subject().to_string()))
        .collect();
    let wanted: BTreeSet<(&str, Option<&ClientSecret>)> = managers
        .iter()
        .filter_map(|one| Some((one.deployment.split_once('/')?.0, one.client_secret.as_ref())))
        .collect();
    let mut copies = Vec::new();
    for (namespace, mounted) in wanted {
        // Another kind of volume may be made from a copy of the usual name.
        let (name, key) =
            mounted.map_or((keys::HOOK_CLIENT, "tls.crt"), |secret| (&secret.name, &secret.key));
        let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
        let leaf = match secrets.get_opt(name).await {
            Ok(Some(copy)) => {
                let data = copy.data.unwrap_or_default();
                leaf(data.get(key).map(|value| value.0.as_slice()).unwrap_or_default())
            }
            Ok(None) if mounted.is_some() => Err("the Secret does not exist".to_owned()),
            Ok(None) => continue,
            Err(error) => return Read::Unknown(reason_of(&error)),
        };
        let trusted = leaf.as_ref().is_ok_and(|leaf| authorities.contains(&leaf.issuer));
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        copies.push(ClientCopy { namespace, name, leaf, trusted });
    }
    Read::Known(copies)
}

async fn lease(client: &Client) -> Read<Option<doctor::Lease>> {
    map(system::<Lease>(client, CONTROLLER).await, |found| {
        found.and_then(|lease| lease.spec).map(|spec| doctor::Lease {
            holder: spec.holder_identity.unwrap_or_default(),
            renewed_at: spec.renew_time.map(|at| at.0),
            duration_seconds: i64::from(spec.lease_duration_seconds.unwrap_or(15)),
        })
    })
}

/// Reads the namespaces that contain Clusters.
async fn namespaces(client: &Client, clusters: &[Value]) -> Read<Vec<doctor::Namespace>> {
    let api: Api<Namespace> = Api::all(client.clone());
    let names: BTreeSet<&str> = clusters.iter().map(namespace).collect();
    let mut found = Vec::new();
    for of in names {
        let labels = match api.get(of).await {
            Ok(space) => Read::Known(space.metadata.labels.unwrap_or_default()),
            Err(error) => Read::Unknown(reason_of(&error)),
        };
        found.push(doctor::Namespace {
            name: of.to_owned(),
            clusters: clusters
                .iter()
                .filter(|cluster| namespace(cluster) == of)
                .map(|cluster| name(cluster).to_owned())
                .collect(),
            labels,
        });
    }
    Read::Known(found)
}

/// What is missing of the ValidatingAdmissionPolicies that hold replacements, and their bindings.
async fn missing_hold_policies(client: &Client) -> Read<Vec<String>> {
    let policies = read::<ValidatingAdmissionPolicy>(client, "").await;
    let bindings = read::<ValidatingAdmissionPolicyBinding>(client, "").await;
    let (policies, bindings) = match (policies, bindings) {
        (Read::Known(policies), Read::Known(bindings)) => (policies, bindings),
        (Read::Unknown(why), _) | (_, Read::Unknown(why)) => return Read::Unknown(why),
    };
    Read::Known(doctor::hold::missing_policies(&policies, &bindings))
}

/// The users that each ReplacementHold names.
async fn replacement_holds(client: &Client) -> Read<BTreeMap<String, Vec<String>>> {
    map(read::<ReplacementHold>(client, "").await, |all| {
        let entry = |one: ReplacementHold| (one.namespace().unwrap_or_default(), one.spec.callers);
        all.into_iter().map(entry).collect()
    })
}

/// Reads the hosts of a Cluster, to check their agents and leftovers on their Nodes, and what the checks of the
/// preflight read.
async fn hosts_of(
    reader: &Reader,
    cluster: &Value,
    machines: &[Value],
    world: &mut World,
) -> Read<(Vec<Host>, WorkloadFacts)> {
    let mut reader = reader.clone();
    namespace(cluster).clone_into(&mut reader.cluster.namespace);
    let cluster_name = name(cluster);
    let client = match reader.workload(cluster_name).await {
        Ok(client) => client,
        Err(why) => return Read::Unknown(why),
    };
    let (of_nodes, of_pods) = (ApiResource::erase::<Node>(&()), ApiResource::erase::<Pod>(&()));
    let of_plans = ApiResource::erase::<HostPlan>(&());
    let of_budgets = ApiResource::erase::<PodDisruptionBudget>(&());
    let read = futures::try_join!(
        everything(&client, &of_nodes),
        everything(&client, &of_pods),
        everything(&client, &of_plans),
        everything(&client, &of_budgets),
    );
    let (nodes, pods, plans, budgets) = match read {
        Ok(read) => read,
        Err(why) => return Read::Unknown(why),
    };
    for (group, objects) in [("", &nodes), ("", &pods), ("refit.dev", &plans)] {
        for object in objects {
            feed(world, group, Some(cluster_name), object);
        }
    }
    let facts = WorkloadFacts::of(&plans, &nodes, &budgets, &pods);
    let members = machines.iter().filter(|machine| {
        namespace(machine) == namespace(cluster)
            && text(machine, "/spec/clusterName") == cluster_name
    });
    let host = |machine: &Value| {
        let node = text(machine, "/status/nodeRef/name");
        if node.is_empty() {
            return None;
        }
        let plan = plans.iter().find(|plan| name(plan) == node);
        let of_plan = |pointer: &str| plan.map(|plan| text(plan, pointer)).unwrap_or_default();
        let labels = machine.pointer("/metadata/labels");
        Some(Host {
            machine: name(machine).to_owned(),
            node: node.to_owned(),
            control_plane: labels.is_some_and(|labels| labels.get(keys::CONTROL_PLANE).is_some()),
            kubelet: text(machine, "/status/nodeInfo/kubeletVersion").into(),
            agent: of_plan("/status/agentVersion").to_owned(),
            reported_at: plan.and_then(reported_at),
            unread: plan.map(unread).unwrap_or_default(),
        })
    };
    Read::Known((members.filter_map(host).collect(), facts))
}

/// The facts that an agent cannot read, each with the reason.
fn unread(plan: &Value) -> Vec<String> {
    let facts = plan.pointer("/status/facts/unread").and_then(Value::as_array);
    let fact = |fact: &Value| format!("{}: {}", text(fact, "/fact"), text(fact, "/message"));
    facts.into_iter().flatten().map(fact).collect()
}
