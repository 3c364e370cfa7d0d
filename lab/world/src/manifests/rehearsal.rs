//! Applies manifests to a temporary API server, so that its rejections are known before the first
//! write to the real one.

use lab_apiserver::{ApiServer, Registry};
use refit_kinds::json::text;
use refit_manifests::{LoadError, Manifest, Problem, group_of, shown};
use refit_runtime::Clock;
use serde_json::Value;

use super::crds::{BUNDLED_CRDS, schemaless_crds};
use crate::{
    direct::{Call, Direct, DirectError, USER, server_options},
    world::collection,
};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// Reports every object that the embedded API server will reject.
///
/// # Errors
/// [`LoadError::Invalid`] holds every problem.
pub async fn rehearse(manifests: &[Manifest]) -> Result<(), LoadError> {
    let server = ApiServer::new(server_options(Clock::real(), 1));
    let api = Direct::new(server.clone(), USER);
    let objects: Vec<Value> = manifests.iter().map(|m| m.object.clone()).collect();
    let bundled_crds =
        BUNDLED_CRDS.iter().map(|crd| serde_json::to_value(crd).expect("a CRD is JSON"));
    for crd in bundled_crds.chain(schemaless_crds(&objects)) {
        // Errors in a CRD show in the objects that need it.
        let _ = api.send(Call::create(DEFINITIONS, crd)).await;
    }
    for name in namespaces(&objects) {
        let body = serde_json::json!({
            "apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name},
        });
        let _ = api.send(Call::create("/api/v1/namespaces", body)).await;
    }
    let mut problems = Vec::new();
    for manifest in manifests {
        let mut object = manifest.object.clone();
        lab_cluster_api_shell::defaults::default_object(&mut object);
        let Some(path) = collection(&server, &object) else {
            problems.push(not_served(manifest));
            continue;
        };
        match api.send(Call::create(path, object)).await {
            Err(error) if error.code() == Some(404) => problems.push(not_served(manifest)),
            Err(error) if error.code() != Some(409) => problems.extend(refused(manifest, &error)),
            _ => {}
        }
    }
    if problems.is_empty() { Ok(()) } else { Err(LoadError::Invalid(problems)) }
}

fn namespaces(objects: &[Value]) -> Vec<&str> {
    let names = objects.iter().map(|object| text(object, "/metadata/namespace"));
    let mut names: Vec<&str> = names.filter(|name| !name.is_empty()).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// No API serves this version of the kind, or the kind at all.
fn not_served(manifest: &Manifest) -> Problem {
    let version = text(&manifest.object, "/apiVersion");
    let group = group_of(&manifest.object);
    let kind = text(&manifest.object, "/kind");
    let registry = Registry::builtin();
    let same = registry.all().find(|resource| *resource.group == *group && *resource.kind == *kind);
    let (pointer, want) = match same {
        Some(resource) => ("/apiVersion", resource.api_version()),
        None => ("/kind", format!("a kind of {version} that the embedded API server supports")),
    };
    manifest.problem(pointer, shown(manifest.object.pointer(pointer)), want)
}

fn refused(manifest: &Manifest, error: &DirectError) -> Vec<Problem> {
    let DirectError::Status { message, causes, .. } = error else {
        return vec![manifest.problem("/kind", shown(None), error.to_string())];
    };
    let problem = |field: &str, message: &str| {
        let pointer = pointer(field);
        let got = shown(manifest.object.pointer(&pointer));
        let want = match message {
            "" | "Required value" => "a value: the field is required".to_owned(),
            message => format!("a value that the API accepts: {message}"),
        };
        manifest.problem(&pointer, got, want)
    };
    let problems: Vec<_> = causes
        .iter()
        .filter(|(field, _)| !field.is_empty() && field != "<nil>")
        .map(|(field, message)| problem(field, message))
        .collect();
    if problems.is_empty() { vec![problem("kind", message)] } else { problems }
}

/// Converts `spec.files[0].path` to `/spec/files/0/path`.
fn pointer(field: &str) -> String {
    let parts = field.split(['.', '[', ']']).filter(|part| !part.is_empty());
    parts.fold(String::new(), |mut pointer, part| {
        pointer.push('/');
        pointer.push_str(&part.replace('~', "~0").replace('/', "~1"));
        pointer
    })
}
