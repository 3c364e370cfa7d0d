//! Files that a script names.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::command::{Wrong, wrong};

/// Largest file that a script reads: 16 MiB.
const MOST_BYTES: u64 = 16 * 1024 * 1024;

/// Where the files of a script are looked for: beside it, in every folder above it, and in the
/// current one.
pub(super) fn folders(beside: &Path) -> Vec<PathBuf> {
    let beside = std::path::absolute(beside).unwrap_or_else(|_| beside.to_owned());
    let mut folders: Vec<PathBuf> = beside.ancestors().map(Path::to_owned).collect();
    folders.push(PathBuf::new());
    folders
}

/// The file that a script names.
pub(super) fn find(folders: &[PathBuf], name: &str) -> Result<PathBuf, Wrong> {
    let found = folders.iter().map(|folder| folder.join(name)).find(|path| path.is_file());
    found.ok_or_else(|| {
        let want = "a file beside the script, in a folder above it, or in the current one";
        wrong("file", name, want)
    })
}

/// Its text.
pub(super) fn read(path: &Path, name: &str) -> Result<String, Wrong> {
    let unreadable = |error: std::io::Error| {
        wrong("file", format!("{name}: {error}"), "a file that can be read")
    };
    let bytes = std::fs::metadata(path).map_err(unreadable)?.len();
    if bytes > MOST_BYTES {
        return Err(wrong(
            "file",
            format!("{name} of {bytes} bytes"),
            format!("at most {MOST_BYTES} bytes"),
        ));
    }
    std::fs::read_to_string(path).map_err(unreadable)
}

/// The objects of a YAML text.
pub(super) fn objects(name: &str, text: &str) -> Result<Vec<Value>, Wrong> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(text)
        .map_err(|error| wrong("YAML", format!("{name}: {error}"), "Kubernetes objects"))?;
    let objects: Vec<Value> = documents.into_iter().filter(|value| !value.is_null()).collect();
    let bad = objects.iter().find(|object| {
        ["/apiVersion", "/kind", "/metadata/name"].iter().any(|pointer| {
            object.pointer(pointer).and_then(Value::as_str).is_none_or(str::is_empty)
        })
    });
    match bad {
        Some(bad) => Err(wrong("object", bad.to_string(), "apiVersion, kind and metadata.name")),
        None if objects.is_empty() => {
            Err(wrong("YAML", format!("nothing in {name}"), "Kubernetes objects"))
        }
        None => Ok(objects),
    }
}
