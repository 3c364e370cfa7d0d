//! Files named in a script.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::command::{Wrong, wrong};

/// Maximum size of a file that a script reads: 16 MiB.
const MOST_BYTES: u64 = 16 * 1024 * 1024;

/// Directories in which the files of a script are searched: the script's directory, its parents,
/// and the current directory.
pub(super) fn directories(base: &Path) -> Vec<PathBuf> {
    let base = std::path::absolute(base).unwrap_or_else(|_| base.to_owned());
    let mut directories: Vec<PathBuf> = base.ancestors().map(Path::to_owned).collect();
    directories.push(PathBuf::new());
    directories
}

/// Finds a file that a script names.
pub(super) fn find(directories: &[PathBuf], name: &str) -> Result<PathBuf, Wrong> {
    let found =
        directories.iter().map(|directory| directory.join(name)).find(|path| path.is_file());
    found.ok_or_else(|| {
        let want =
            "a file in the directory of the script, in a parent of it, or in the current one";
        wrong("file", name, want)
    })
}

/// Reads the file as text.
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

/// Parses the objects of a YAML text.
pub(crate) fn objects(name: &str, text: &str) -> Result<Vec<Value>, Wrong> {
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
