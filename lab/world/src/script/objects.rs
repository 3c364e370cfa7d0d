//! Objects that a script names: finds them, and writes them as a user does.

use lab_apiserver::{ApiServer, Registry};
use refit_kinds::json::{name, text};
use serde_json::Value;

use super::{
    command::{Reference, Wrong, wrong},
    field::{self, Field, Setting},
    names::Names,
    show::sorted_by,
    table::table,
};
use crate::{
    direct::{Call, Direct, DirectError, USER},
    env::canonical,
    manifests::schemaless_crds,
    world::{World, collection},
};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const DEFAULT_NAMESPACE: &str = "default";

/// A kind that an API server serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Kind {
    pub(super) group: String,
    version: String,
    pub(super) kind: String,
    pub(super) plural: String,
    namespaced: bool,
    status: bool,
}

impl Kind {
    /// Whether names of this kind contain a random part.
    fn is_generated(&self) -> bool {
        !matches!(
            self.kind.as_str(),
            "Cluster"
                | "KubeadmControlPlane"
                | canonical::CONTROL_PLANE
                | "MachineDeployment"
                | "UpdateGroup"
        )
    }

    /// `plural.group`, or `plural` for a core kind.
    pub(super) fn resource(&self) -> String {
        let Self { group, plural, .. } = self;
        if group.is_empty() { plural.clone() } else { format!("{plural}.{group}") }
    }

    fn path(&self, namespace: &str, name: &str) -> String {
        let Self { group, version, plural, .. } = self;
        let base = if group.is_empty() {
            format!("/api/{version}")
        } else {
            format!("/apis/{group}/{version}")
        };
        if self.namespaced {
            format!("{base}/namespaces/{namespace}/{plural}/{name}")
        } else {
            format!("{base}/{plural}/{name}")
        }
    }
}

/// Finds the kind that `word` names, as kubectl does: by kind, plural, singular or short name.
pub(super) fn kind(server: &ApiServer, word: &str) -> Result<Kind, Wrong> {
    let (word, group) = match word.split_once('.') {
        Some((word, group)) => (word.to_lowercase(), Some(group)),
        None => (word.to_lowercase(), None),
    };
    let fits = |names: &[&str], found: &str| {
        group.is_none_or(|group| group == found)
            && names.iter().any(|name| name.to_lowercase() == word)
    };
    let definitions = server.list_values("apiextensions.k8s.io", "customresourcedefinitions", None);
    let defined = definitions.iter().find_map(|crd| {
        let names = &crd["spec"]["names"];
        let mut all: Vec<&str> =
            ["kind", "plural", "singular"].iter().filter_map(|key| names[*key].as_str()).collect();
        all.extend(names["shortNames"].as_array().into_iter().flatten().filter_map(Value::as_str));
        fits(&all, text(crd, "/spec/group")).then(|| of_definition(crd))?
    });
    let built_in = || {
        let registry = Registry::builtin();
        let mut found: Vec<_> = registry
            .all_stored()
            .filter(|resource| {
                let mut names = vec![&*resource.kind, &*resource.plural, &*resource.singular];
                names.extend(resource.short_names.iter().map(String::as_str));
                fits(&names, &resource.group)
            })
            .collect();
        found.sort_by_key(|resource| resource.group.clone());
        found.first().map(|resource| Kind {
            group: resource.group.to_string(),
            version: resource.storage_version.to_string(),
            kind: resource.kind.to_string(),
            plural: resource.plural.to_string(),
            namespaced: resource.namespaced,
            status: resource.has_status,
        })
    };
    defined.or_else(built_in).ok_or_else(|| {
        wrong(
            "kind",
            word.as_str(),
            "a kind that the API server serves, such as md, machine or secret",
        )
    })
}

fn of_definition(crd: &Value) -> Option<Kind> {
    let versions = crd["spec"]["versions"].as_array()?;
    let version = versions.iter().find(|version| version["storage"] == true)?;
    Some(Kind {
        group: text(crd, "/spec/group").to_owned(),
        version: text(version, "/name").to_owned(),
        kind: text(crd, "/spec/names/kind").to_owned(),
        plural: text(crd, "/spec/names/plural").to_owned(),
        namespaced: text(crd, "/spec/scope") == "Namespaced",
        status: version["subresources"]["status"].is_object(),
    })
}

/// The API server of `cluster`, or that of the management cluster.
pub(super) fn server(world: &World, cluster: Option<&str>) -> Result<ApiServer, Wrong> {
    let Some(cluster) = cluster else {
        return Ok(world.management().clone());
    };
    let key = cluster_key(world, cluster)?;
    world.workload(&key).ok_or_else(|| unknown_cluster(world, cluster))
}

/// Key of the workload cluster that a script names.
pub(super) fn cluster_key(world: &World, cluster: &str) -> Result<String, Wrong> {
    let known = world.clusters();
    let key = known.iter().find(|key| *key == cluster || key.rsplit('/').next() == Some(cluster));
    key.cloned().ok_or_else(|| unknown_cluster(world, cluster))
}

fn unknown_cluster(world: &World, cluster: &str) -> Wrong {
    let known = world.clusters();
    let names: Vec<&str> = known.iter().filter_map(|key| key.rsplit('/').next()).collect();
    wrong("cluster", cluster, format!("one of the workload clusters: {}", names.join(", ")))
}

/// An object that a script names, whether it exists or not.
pub(super) struct Found {
    pub(super) kind: Kind,
    server: ApiServer,
    namespace: String,
    pub(super) name: String,
    title: String,
}

impl Found {
    pub(super) fn new(world: &World, names: &Names, reference: &Reference) -> Result<Self, Wrong> {
        let server = server(world, reference.cluster.as_deref())?;
        let mut found = Self::on(server, reference, DEFAULT_NAMESPACE)?;
        found.rename(names, reference);
        Ok(found)
    }

    /// An object of an API server, in this namespace if the script names none.
    pub(super) fn on(
        server: ApiServer,
        reference: &Reference,
        default_namespace: &str,
    ) -> Result<Self, Wrong> {
        let kind = kind(&server, &reference.kind)?;
        let namespace = match (&reference.namespace, kind.namespaced) {
            (_, false) => String::new(),
            (Some(namespace), true) => namespace.clone(),
            (None, true) => default_namespace.to_owned(),
        };
        let (name, title) = (reference.name.clone(), reference.to_string());
        Ok(Self { kind, server, namespace, name, title })
    }

    /// Resolves the script's name again: its real name may be known only now.
    pub(super) fn rename(&mut self, names: &Names, reference: &Reference) {
        if self.kind.is_generated() {
            self.name = names.real(&reference.name);
        }
    }

    /// The object as stored.
    pub(super) fn get(&self) -> Option<Value> {
        let Kind { group, plural, .. } = &self.kind;
        self.server.get_value(group, plural, &self.namespace, &self.name)
    }

    /// The object; an error if it does not exist.
    pub(super) fn need(&self) -> Result<Value, Wrong> {
        self.get().ok_or_else(|| {
            let Kind { group, plural, .. } = &self.kind;
            let all = self.server.list_values(group, plural, Some(&self.namespace));
            let there: Vec<&str> = all.iter().take(12).map(name).collect();
            let want = if there.is_empty() {
                format!("an existing {0}; no {0} exists", self.kind.kind)
            } else {
                format!("one of {}", there.join(", "))
            };
            wrong("object", self.title.as_str(), want)
        })
    }

    /// Fields of the object; all of it without fields.
    pub(super) fn show(&self, fields: &[Field]) -> Result<String, Wrong> {
        let mut found = self.need()?;
        if fields.is_empty() {
            if let Some(metadata) = found["metadata"].as_object_mut() {
                metadata.remove("managedFields");
            }
            return Ok(format!("{found:#}\n"));
        }
        let lines = fields.iter().map(|field| format!("{}: {}\n", field.text, field.shown(&found)));
        Ok(lines.collect())
    }

    /// Sets fields in one request, status fields in another. Returns the changes, one line each.
    pub(super) async fn change(&self, settings: &[Setting]) -> Result<Vec<String>, Wrong> {
        let old = self.need()?;
        let mut new = old.clone();
        let mut lines = Vec::new();
        for setting in settings {
            let before = setting.field.shown(&new);
            if !setting.apply(&mut new) {
                let want = "a field of an existing object or list";
                return Err(wrong("change", setting.field.text.as_str(), want));
            }
            let line =
                format!("{}: {} {before} -> {}", self.title, setting.field.text, setting.shown());
            lines.push(line);
        }
        let in_status =
            self.kind.status && settings.iter().any(|setting| setting.field.in_status());
        let path = self.kind.path(&self.namespace, &self.name);
        let api = Direct::new(self.server.clone(), USER);
        if let Some(mut patch) = field::merge_patch(&old, &new) {
            let status = patch.as_object_mut().and_then(|patch| patch.remove("status"));
            if in_status && let Some(status) = status {
                let body = serde_json::json!({ "status": status });
                self.send(&api, Call::merge(format!("{path}/status"), body)).await?;
            }
            if patch.as_object().is_some_and(|patch| !patch.is_empty()) {
                self.send(&api, Call::merge(path, patch)).await?;
            }
        }
        Ok(lines)
    }

    /// Deletes the object.
    pub(super) async fn delete(&self) -> Result<(), Wrong> {
        self.need()?;
        let api = Direct::new(self.server.clone(), USER);
        let path = self.kind.path(&self.namespace, &self.name);
        self.send(&api, Call::delete(path)).await
    }

    async fn send(&self, api: &Direct, call: Call) -> Result<(), Wrong> {
        api.send(call).await.map(drop).map_err(|error| refused(&self.title, &error))
    }
}

fn refused(what: &str, error: &DirectError) -> Wrong {
    let want = match error {
        DirectError::Status { .. } => "a request that the API server accepts",
        DirectError::Transport { .. } => "an API server that answers",
    };
    wrong(what, error.to_string(), want)
}

/// Fields of all objects of a kind.
pub(super) fn show_all(
    server: &ApiServer,
    names: &Names,
    kind: &str,
    fields: &[Field],
) -> Result<String, Wrong> {
    let kind = self::kind(server, kind)?;
    let objects = server.list_values(&kind.group, &kind.plural, None);
    let rows = objects
        .iter()
        .map(|object| {
            let cells = fields.iter().map(|field| field.shown(object));
            std::iter::once(name(object).to_owned()).chain(cells).collect()
        })
        .collect();
    let header: Vec<&str> =
        std::iter::once("NAME").chain(fields.iter().map(|field| field.text.as_str())).collect();
    Ok(table(&header, &sorted_by(names, rows)))
}

/// Creates objects, or merges them into existing ones; returns the changes, one line each.
pub(super) async fn apply(
    world: &World,
    cluster: Option<&str>,
    mut objects: Vec<Value>,
) -> Result<Vec<String>, Wrong> {
    for object in &mut objects {
        lab_cluster_api_shell::defaults::default_object(object);
        world.trust_hook_updater(object);
    }
    apply_to(&server(world, cluster)?, objects, DEFAULT_NAMESPACE).await
}

/// The same on an API server. Objects that name no namespace are in this one.
pub(super) async fn apply_to(
    server: &ApiServer,
    objects: Vec<Value>,
    default_namespace: &str,
) -> Result<Vec<String>, Wrong> {
    let api = Direct::new(server.clone(), USER);
    for crd in schemaless_crds(&objects) {
        let name = text(&crd, "/metadata/name").to_owned();
        match api.send(Call::create(DEFINITIONS, crd)).await {
            Err(error) if error.code() != Some(409) => return Err(refused(&name, &error)),
            _ => {}
        }
    }
    let mut lines = Vec::new();
    for mut object in objects {
        let title = format!("{}/{}", text(&object, "/kind"), text(&object, "/metadata/name"));
        if text(&object, "/metadata/namespace").is_empty() {
            object["metadata"]["namespace"] = Value::from(default_namespace);
        }
        let Some(path) = collection(server, &object) else {
            return Err(wrong("apply", title, "a kind that the API server serves"));
        };
        if !path.contains("/namespaces/")
            && let Some(metadata) = object["metadata"].as_object_mut()
        {
            metadata.remove("namespace");
        }
        let name = text(&object, "/metadata/name").to_owned();
        match api.send(Call::create(path.clone(), object.clone())).await {
            Ok(_) => lines.push(format!("{title} created")),
            Err(error) if error.code() == Some(409) => {
                let call = Call::merge(format!("{path}/{name}"), object);
                api.send(call).await.map_err(|error| refused(&title, &error))?;
                lines.push(format!("{title} changed"));
            }
            Err(error) => return Err(refused(&title, &error)),
        }
    }
    Ok(lines)
}
