//! Reads the files of an OCI layout or a tar by name, without unpacking them.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, BufReader, Read as _},
    path::{Component, Path, PathBuf},
};

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::StreamingDecoder;
use tempfile::{NamedTempFile, TempPath};

use super::{BuildError, content::Content};

/// Maximum number of entries in an archive.
const MAX_ENTRIES: usize = 200_000;
/// Maximum number of links to follow for one file.
const MAX_LINKS: usize = 8;
/// Size limit of a JSON document in an image, in bytes.
pub(crate) const MAX_JSON_BYTES: u64 = 16 << 20;

/// Files of an OCI layout or of a tar, by name.
pub(crate) struct Archive {
    path: PathBuf,
    files: Files,
    unpacked: Option<TempPath>,
}

enum Files {
    Directory,
    Tar { found: BTreeMap<String, Content>, links: BTreeMap<String, String> },
}

impl Archive {
    /// Opens a layout, a tar, or a compressed tar, which is unpacked into `scratch` first.
    pub(crate) fn open(path: &Path, scratch: &Path) -> Result<Self, BuildError> {
        let mut archive = Self { path: path.to_owned(), files: Files::Directory, unpacked: None };
        if path.is_dir() {
            return Ok(archive);
        }
        archive.unpacked = decompress(path, scratch)?;
        let tar = archive.unpacked.as_deref().unwrap_or(path);
        archive.files = list(path, tar)?;
        Ok(archive)
    }

    /// Returns the unpacked temporary file; the file is removed when the value is dropped.
    pub(crate) fn into_unpacked(self) -> Option<TempPath> {
        self.unpacked
    }

    /// Finds the file with this name.
    pub(crate) fn find(&self, name: &str) -> Result<Option<Content>, BuildError> {
        match &self.files {
            Files::Directory => {
                let path = self.path.join(name);
                match fs::metadata(&path) {
                    Ok(found) if found.is_file() => {
                        Ok(Some(Content::Piece { path, offset: 0, size: found.len() }))
                    }
                    Ok(_) => Ok(None),
                    Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
                    Err(error) => Err(BuildError::read(path)(error)),
                }
            }
            Files::Tar { found, links } => {
                let mut name = name;
                for _ in 0..MAX_LINKS {
                    match (found.get(name), links.get(name)) {
                        (Some(content), _) => return Ok(Some(content.clone())),
                        (None, Some(target)) => name = target,
                        (None, None) => return Ok(None),
                    }
                }
                Ok(None)
            }
        }
    }

    /// Finds the file with this name; an error if it is missing.
    pub(crate) fn need(&self, name: &str) -> Result<Content, BuildError> {
        self.find(name)?.ok_or_else(|| self.invalid(format!("{name} is missing")))
    }

    /// Reads and parses the JSON file with this name.
    pub(crate) fn json<T: serde::de::DeserializeOwned>(&self, name: &str) -> Result<T, BuildError> {
        let bytes = self.need(name)?.read_small(MAX_JSON_BYTES)?;
        self.parse(name, &bytes)
    }

    /// Parses JSON that was read from this archive.
    pub(crate) fn parse<T: serde::de::DeserializeOwned>(
        &self,
        name: &str,
        bytes: &[u8],
    ) -> Result<T, BuildError> {
        let mut json = serde_json::Deserializer::from_slice(bytes);
        serde_path_to_error::deserialize(&mut json)
            .map_err(|error| self.invalid(format!("cannot read {name}: {error}")))
    }

    /// Creates an error about this archive.
    pub(crate) fn invalid(&self, problem: impl Into<String>) -> BuildError {
        BuildError::input(&self.path, problem)
    }
}

/// Unpacks gzip or zstd; returns `None` for any other format.
fn decompress(path: &Path, scratch: &Path) -> Result<Option<TempPath>, BuildError> {
    let open = || fs::File::open(path).map(BufReader::new).map_err(BuildError::read(path));
    let mut magic = [0; 4];
    let mut file = open()?;
    let read = file.read(&mut magic).map_err(BuildError::read(path))?;
    let magic = magic.get(..read).unwrap_or_default();
    let output = || NamedTempFile::new_in(scratch).map_err(BuildError::written(scratch));
    let temporary = if magic.starts_with(&[0x1f, 0x8b]) {
        let mut temporary = output()?;
        let mut input = MultiGzDecoder::new(open()?);
        io::copy(&mut input, &mut temporary).map_err(BuildError::read(path))?;
        temporary
    } else if magic.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
        let mut temporary = output()?;
        let input = StreamingDecoder::new(open()?);
        let mut input = input.map_err(|error| BuildError::input(path, error.to_string()))?;
        io::copy(&mut input, &mut temporary).map_err(BuildError::read(path))?;
        temporary
    } else {
        return Ok(None);
    };
    Ok(Some(temporary.into_temp_path()))
}

/// Lists a tar: the position of each file and the target of each link.
fn list(path: &Path, tar: &Path) -> Result<Files, BuildError> {
    let broken = |error: io::Error| BuildError::input(path, format!("not a tar archive: {error}"));
    let file = fs::File::open(tar).map_err(BuildError::read(tar))?;
    let mut archive = tar::Archive::new(BufReader::new(file));
    let (mut found, mut links) = (BTreeMap::new(), BTreeMap::new());
    for (count, entry) in archive.entries_with_seek().map_err(broken)?.enumerate() {
        let entry = entry.map_err(broken)?;
        if count > MAX_ENTRIES {
            return Err(BuildError::input(path, format!("more than {MAX_ENTRIES} entries")));
        }
        let name = entry.path().map_err(broken)?.into_owned();
        let Some(name) = plain(&name) else {
            continue;
        };
        let kind = entry.header().entry_type();
        if kind.is_file() {
            let content = Content::Piece {
                path: tar.to_owned(),
                offset: entry.raw_file_position(),
                size: entry.size(),
            };
            found.insert(name, content);
        } else if (kind.is_symlink() || kind.is_hard_link())
            && let Ok(Some(target)) = entry.link_name()
        {
            // If two images share a layer, Docker stores it once and links to it from the other
            // image.
            let base = if kind.is_symlink() {
                Path::new(&name).parent().unwrap_or(Path::new(""))
            } else {
                Path::new("")
            };
            if let Some(target) = plain(&base.join(target)) {
                links.insert(name, target);
            }
        }
    }
    Ok(Files::Tar { found, links })
}

/// Normalizes `.` and `..` in a name; returns `None` if the name points outside the archive.
fn plain(path: &Path) -> Option<String> {
    let mut parts: Vec<&str> = Vec::new();
    for component in path.components() {
        match component {
            Component::Normal(part) => parts.push(part.to_str()?),
            Component::CurDir | Component::RootDir => {}
            Component::ParentDir => {
                parts.pop()?;
            }
            Component::Prefix(_) => return None,
        }
    }
    Some(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_followed_inside_the_archive_and_never_out_of_it() {
        assert_eq!(plain(Path::new("./a/./b")).as_deref(), Some("a/b"));
        assert_eq!(plain(Path::new("x/../a/layer.tar")).as_deref(), Some("a/layer.tar"));
        assert_eq!(plain(Path::new("../etc/passwd")), None);
        assert_eq!(plain(Path::new("a/../../b")), None);
    }
}
