//! Reads Kubernetes manifests and finds every problem with its line.
//!
//! All problems of all files are found in one pass. Each problem names file, line, object, field,
//! the value found and the expected value. [`load`] accepts any objects; a caller with more
//! requirements, such as a complete cluster, starts from [`read`] and adds its own problems.

mod identity;
mod typed;
mod yaml;

use std::{fmt, path::Path};

use refit_kinds::json::{kind, name, text};
use serde_json::Value;

pub use identity::is_cluster_scoped_built_in;
pub use typed::{A_VERSION, typed};

/// Largest manifest file that is read: 16 MiB.
const MAX_FILE_BYTES: u64 = 16 * 1024 * 1024;

/// One problem in a manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// File name as given.
    pub file: String,
    /// Line, from 1.
    pub line: u64,
    /// `Kind/name`, as far as the object has them.
    pub object: String,
    /// Path of the field, such as `spec.replicas`.
    pub field: String,
    /// The value found.
    pub got: String,
    /// The expected value, and how to get it.
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
    #[error("cannot read {file}")]
    Read {
        /// The file.
        file: String,
        /// The cause.
        source: std::io::Error,
    },
    /// A file is too large to be a manifest.
    #[error("{file} has {bytes} bytes, which exceeds the limit of {MAX_FILE_BYTES} for a manifest")]
    TooLarge {
        /// The file.
        file: String,
        /// Size of the file in bytes.
        bytes: u64,
    },
    /// The manifests are invalid; nothing was written.
    #[error("{}", lines(.0))]
    Invalid(Vec<Problem>),
}

impl LoadError {
    /// An error with these problems in the order of the files; `Ok` if the list is empty.
    pub fn unless_empty(mut problems: Vec<Problem>) -> Result<(), Self> {
        if problems.is_empty() {
            return Ok(());
        }
        problems.sort_by(|a, b| (&a.file, a.line).cmp(&(&b.file, b.line)));
        Err(Self::Invalid(problems))
    }
}

fn lines(problems: &[Problem]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

/// One object of a manifest, with its location.
#[derive(Clone, Debug)]
pub struct Manifest {
    /// File name as given.
    pub file: String,
    /// The object, with its namespace filled in.
    pub object: Value,
    lines: yaml::Lines,
    identified: bool,
}

impl Manifest {
    /// `Kind/name`.
    pub fn title(&self) -> String {
        let or = |value: &str, none: &str| {
            if value.is_empty() { none.to_owned() } else { value.to_owned() }
        };
        format!("{}/{}", or(kind(&self.object), "(no kind)"), or(name(&self.object), "(no name)"))
    }

    /// The line on which the object starts.
    pub fn line(&self) -> u64 {
        self.lines.of("")
    }

    /// Whether version, kind and name are valid. An object with invalid ones has its own problems
    /// and is not checked further.
    pub fn is_identified(&self) -> bool {
        self.identified
    }

    /// A problem with the value at a JSON pointer into the object.
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

/// The content of manifest files.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    /// The objects, in the order of the files.
    pub manifests: Vec<Manifest>,
    /// The problems found so far.
    pub problems: Vec<Problem>,
    /// The texts of documents that are not YAML.
    pub unread: Vec<String>,
}

/// Reads manifest files. Every object must be valid and unique; the objects that it refers to may
/// be elsewhere. Only an absent namespace is changed, to `default`.
///
/// # Errors
/// [`LoadError::Invalid`] holds every problem of every file.
pub fn load(files: &[impl AsRef<Path>]) -> Result<Vec<Manifest>, LoadError> {
    let texts = texts(files)?;
    let found = read(texts.iter().map(|(name, text)| (name.as_str(), text.as_slice())));
    LoadError::unless_empty(found.problems)?;
    Ok(found.manifests)
}

/// The names and contents of files.
pub fn texts(files: &[impl AsRef<Path>]) -> Result<Vec<(String, Vec<u8>)>, LoadError> {
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

/// Reads manifests in memory: name and content of each file.
pub fn read<'a>(files: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> Reading {
    let mut reading = Reading::default();
    for (name, text) in files {
        let mut file = yaml::read(name, text);
        for (object, lines) in file.documents {
            expand(name, object, &lines, &mut reading);
        }
        reading.problems.append(&mut file.problems);
        reading.unread.append(&mut file.unread);
    }
    reading.problems.extend(identity::check(&mut reading.manifests));
    reading
}

/// Splits `kind: List` and similar kinds, such as `SecretList`, into their items.
fn expand(file: &str, object: Value, lines: &yaml::Lines, out: &mut Reading) {
    let kind = kind(&object).to_owned();
    let is_list = kind.ends_with("List") && (kind == "List" || object.get("items").is_some());
    let mut manifest =
        Manifest { file: file.to_owned(), object, lines: lines.clone(), identified: true };
    if !is_list {
        out.manifests.push(manifest);
        return;
    }
    let items = manifest.object["items"].take();
    if let Value::Array(items) = items {
        for (i, item) in items.into_iter().enumerate() {
            let lines = lines.below(&format!("/items/{i}"));
            expand(file, item, &lines, out);
        }
    } else {
        let got = shown(Some(&items));
        let problem = manifest.problem("/items", got, "a list of Kubernetes objects");
        out.problems.push(Problem { object: kind, ..problem });
    }
}

/// Converts `/spec/files/0/path` to `spec.files[0].path`.
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

/// A value as shown in a problem: JSON, cut at 60 characters.
pub fn shown(value: Option<&Value>) -> String {
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

/// The API group of an object, empty for the core group.
pub fn group_of(object: &Value) -> &str {
    text(object, "/apiVersion").split_once('/').map_or("", |(group, _)| group)
}

#[cfg(test)]
mod tests;
