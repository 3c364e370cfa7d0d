//! Reads what `clusterctl generate cluster` prints, and refuses what cannot run before the first
//! write.
//!
//! Every problem of every file is found in one go and names file, line, object, field, what it got
//! and what it wants.

mod check;
mod crds;
mod fields;
mod refs;
mod rehearsal;
mod yaml;

use std::{fmt, path::Path};

use refit_cluster_api::kinds;
use serde_json::{Value, json};

pub use crds::schemaless_crds;
pub use rehearsal::rehearse;

/// Largest manifest file that is read: 16 MiB.
const MAX_FILE_BYTES: u64 = 16 * 1024 * 1024;

/// One thing that is wrong with a manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// File as it was named.
    pub file: String,
    /// Line, from 1.
    pub line: u64,
    /// `Kind/name`, as far as the object has them.
    pub object: String,
    /// Path of the field, such as `spec.replicas`.
    pub field: String,
    /// What the file says.
    pub got: String,
    /// What it should say, and the way there.
    pub want: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, line, object, field, got, want } = self;
        write!(f, "{file}:{line}: {object}: {field}: got {got}, want {want}")
    }
}

/// Why manifests cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A file cannot be read.
    #[error("{file} cannot be read")]
    Read {
        /// The file.
        file: String,
        /// Why.
        source: std::io::Error,
    },
    /// A file is too large to be a manifest.
    #[error("{file} has {bytes} bytes, and a manifest may have at most {MAX_FILE_BYTES}")]
    TooLarge {
        /// The file.
        file: String,
        /// Its size.
        bytes: u64,
    },
    /// The manifests are wrong; nothing was written.
    #[error("{}", lines(.0))]
    Invalid(Vec<Problem>),
}

fn lines(problems: &[Problem]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

/// One object of a manifest and where it stands.
#[derive(Clone, Debug)]
pub struct Manifest {
    /// File as it was named.
    pub file: String,
    /// The object; its namespace is filled in.
    pub object: Value,
    lines: yaml::Lines,
    usable: bool,
}

impl Manifest {
    /// `Kind/name`.
    pub fn title(&self) -> String {
        title(&self.object)
    }

    /// Whether something in the sandbox acts on the object. Others are kept as they are.
    pub fn acted_on(&self) -> bool {
        let version = text(&self.object, "/apiVersion");
        let group = version.split_once('/').map_or("", |(group, _)| group);
        let known = [
            kinds::CORE_GROUP,
            kinds::CONTROL_PLANE_GROUP,
            kinds::BOOTSTRAP_GROUP,
            kinds::INFRASTRUCTURE_GROUP,
        ];
        let kind = text(&self.object, "/kind");
        (known.contains(&group) && !check::UNSUPPORTED_KINDS.contains(&kind))
            || (version == "v1" && kind == "Namespace")
    }

    /// What is wrong with the value at a JSON pointer into the object, for whoever wrote the file.
    pub fn problem(&self, pointer: &str, got: String, want: impl Into<String>) -> Problem {
        Problem {
            file: self.file.clone(),
            line: self.lines.of(pointer),
            object: self.title(),
            field: field_path(pointer),
            got,
            want: want.into(),
        }
    }
}

/// Reads and checks manifest files. Nothing is changed in them but an absent namespace, which
/// becomes `default`.
///
/// # Errors
/// [`LoadError::Invalid`] holds every problem of every file.
pub fn load(files: &[impl AsRef<Path>]) -> Result<Vec<Manifest>, LoadError> {
    let texts = texts(files)?;
    parse(texts.iter().map(|(name, text)| (name.as_str(), text.as_slice())))
}

/// Reads manifest files that need not make up a whole cluster: every object must be one, and what
/// it refers to may be elsewhere.
///
/// # Errors
/// [`LoadError::Invalid`] holds every problem of every file.
pub fn load_part(files: &[impl AsRef<Path>]) -> Result<Vec<Manifest>, LoadError> {
    let mut manifests = Vec::new();
    let mut problems = Vec::new();
    for (name, text) in texts(files)? {
        let mut file = yaml::read(&name, &text);
        for (object, lines) in file.documents {
            expand(&name, object, &lines, &mut manifests, &mut problems);
        }
        problems.append(&mut file.problems);
    }
    problems.extend(check::identities(&mut manifests));
    if problems.is_empty() {
        return Ok(manifests);
    }
    problems.sort_by(|a, b| (&a.file, a.line).cmp(&(&b.file, b.line)));
    Err(LoadError::Invalid(problems))
}

/// The names and contents of files.
fn texts(files: &[impl AsRef<Path>]) -> Result<Vec<(String, Vec<u8>)>, LoadError> {
    let mut texts = Vec::new();
    for file in files {
        let name = file.as_ref().display().to_string();
        let read = |source| LoadError::Read { file: name.clone(), source };
        let bytes = std::fs::metadata(file).map_err(read)?.len();
        if bytes > MAX_FILE_BYTES {
            return Err(LoadError::TooLarge { file: name, bytes });
        }
        let text = std::fs::read(file).map_err(read)?;
        texts.push((name, text));
    }
    Ok(texts)
}

/// Reads and checks manifests that are in memory already: name and content of each file.
pub fn parse<'a>(
    files: impl IntoIterator<Item = (&'a str, &'a [u8])>,
) -> Result<Vec<Manifest>, LoadError> {
    let mut manifests = Vec::new();
    let mut problems = Vec::new();
    let mut unread = Vec::new();
    let mut first = None;
    for (name, text) in files {
        first.get_or_insert(name);
        let mut file = yaml::read(name, text);
        for (object, lines) in file.documents {
            expand(name, object, &lines, &mut manifests, &mut problems);
        }
        problems.append(&mut file.problems);
        unread.append(&mut file.unread);
    }
    problems.extend(check::identities(&mut manifests));
    problems.extend(check::contents(&manifests, &unread));
    if problems.is_empty() {
        problems.extend(check::no_cluster(first.unwrap_or("(no file)"), &manifests));
    }
    if problems.is_empty() {
        Ok(manifests)
    } else {
        problems.sort_by(|a, b| (&a.file, a.line).cmp(&(&b.file, b.line)));
        Err(LoadError::Invalid(problems))
    }
}

/// Takes `kind: List` and its like, such as `SecretList`, apart.
fn expand(
    file: &str,
    object: Value,
    lines: &yaml::Lines,
    out: &mut Vec<Manifest>,
    problems: &mut Vec<Problem>,
) {
    let kind = text(&object, "/kind");
    let is_list = kind.ends_with("List") && (kind == "List" || object.get("items").is_some());
    let mut manifest =
        Manifest { file: file.to_owned(), object, lines: lines.clone(), usable: true };
    if !is_list {
        out.push(manifest);
        return;
    }
    match manifest.object["items"].take() {
        Value::Array(items) => {
            for (i, item) in items.into_iter().enumerate() {
                let lines = lines.below(&format!("/items/{i}"));
                expand(file, item, &lines, out, problems);
            }
        }
        other => {
            let got = shown(Some(&other));
            problems.push(Problem {
                object: kind_of(&manifest.object),
                ..manifest.problem("/items", got, "a list of Kubernetes objects")
            });
        }
    }
}

fn kind_of(object: &Value) -> String {
    text(object, "/kind").to_owned()
}

/// Sets KubeadmControlPlane `maxSurge: 0` and MachineDeployment `maxSurge: 0, maxUnavailable: 1`,
/// so that Cluster API makes no machine on top (`spec/capi.md 2.2, 3.3`).
pub fn forbid_surge(objects: &mut [Value]) {
    for object in objects {
        let rolling = match text(object, "/kind") {
            "KubeadmControlPlane" => json!({ "maxSurge": 0 }),
            "MachineDeployment" => json!({ "maxSurge": 0, "maxUnavailable": 1 }),
            _ => continue,
        };
        if let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) {
            let rollout = spec.entry("rollout").or_insert_with(|| json!({}));
            if !rollout.is_object() {
                *rollout = json!({});
            }
            rollout["strategy"] = json!({ "type": "RollingUpdate", "rollingUpdate": rolling });
        }
    }
}

fn title(object: &Value) -> String {
    let or = |value: &str, none: &str| {
        if value.is_empty() { none.to_owned() } else { value.to_owned() }
    };
    format!(
        "{}/{}",
        or(text(object, "/kind"), "(no kind)"),
        or(text(object, "/metadata/name"), "(no name)")
    )
}

fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// `/spec/files/0/path` as `spec.files[0].path`.
fn field_path(pointer: &str) -> String {
    let mut path = String::new();
    for part in pointer.split('/').filter(|part| !part.is_empty()) {
        if part.bytes().all(|b| b.is_ascii_digit()) {
            path.extend(["[", part, "]"]);
        } else {
            if !path.is_empty() {
                path.push('.');
            }
            path.push_str(&part.replace("~1", "/").replace("~0", "~"));
        }
    }
    path
}

/// A value as it is shown in a problem: JSON, cut at 60 characters.
fn shown(value: Option<&Value>) -> String {
    let Some(value) = value else {
        return "nothing".to_owned();
    };
    let text = value.to_string();
    if text.chars().count() > 60 {
        format!("{}...", text.chars().take(57).collect::<String>())
    } else {
        text
    }
}

#[cfg(test)]
mod tests;
