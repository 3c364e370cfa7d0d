//! Parses the location of a bundle.

use std::{
    fmt,
    path::{Path, PathBuf},
    str::FromStr,
};

use http::Uri;

use crate::{digest::Digest, error::Error};

/// Hint for a bundle that was packed into a single file.
pub(crate) const NO_TAR: &str =
    "a bundle is a directory; unpack the tar, or serve the unpacked directory over HTTP";

/// The location of a bundle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    /// A directory on this host.
    Path(PathBuf),
    /// A directory on an HTTP server; ends with a slash.
    Http(Uri),
    /// An artifact in a registry.
    Registry(Reference),
}

/// An artifact in a registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    /// Whether the registry uses plain HTTP (`oci+http://`).
    pub plain: bool,
    /// `HOST` or `HOST:PORT`.
    pub host: String,
    /// Repository in the registry.
    pub repository: String,
    /// Version of the artifact.
    pub version: Version,
}

/// Version of an artifact in a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Version {
    /// The artifact with this digest.
    Digest(Digest),
    /// The artifact that has this tag now; the signature decides whether to trust it.
    Tag(String),
}

impl Version {
    /// Returns the version as used in the registry's paths.
    pub(crate) fn to_path(&self) -> String {
        match self {
            Self::Digest(digest) => digest.to_oci(),
            Self::Tag(tag) => tag.clone(),
        }
    }
}

impl Location {
    /// Creates a location for a directory on this host.
    pub fn path(path: impl AsRef<Path>) -> Self {
        Self::Path(path.as_ref().to_owned())
    }
}

impl FromStr for Location {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let refused = |problem: &str| Error::Location {
            location: without_password(text),
            problem: problem.to_owned(),
        };
        let Some((scheme, rest)) = text.split_once("://") else {
            return if text.starts_with('/') {
                Ok(Self::path(text))
            } else {
                Err(refused("the path is not absolute"))
            };
        };
        match scheme {
            "file" if rest.starts_with('/') => Ok(Self::path(rest)),
            "file" => Err(refused("file:// must be followed by an absolute path")),
            "http" | "https" => parse_http(text).map_err(refused),
            "oci" | "oci+http" => parse_registry(rest, scheme == "oci+http").map_err(refused),
            _ => Err(refused("unknown scheme")),
        }
    }
}

fn parse_http(text: &str) -> Result<Location, &'static str> {
    let uri: Uri = text.parse().map_err(|_| "not a URL")?;
    let authority = uri.authority().ok_or("the URL has no host")?;
    if authority.as_str().contains('@') {
        return Err("the URL must not contain credentials; put them into the credentials file");
    }
    if Path::new(uri.path()).extension().is_some_and(|ending| ending == "tar") {
        return Err(NO_TAR);
    }
    if uri.query().is_some() {
        return Err("the URL of a directory must not have a query");
    }
    if uri.path().ends_with('/') {
        return Ok(Location::Http(uri));
    }
    let with_slash = format!("{text}/").parse().map_err(|_| "not a URL")?;
    Ok(Location::Http(with_slash))
}

fn parse_registry(rest: &str, plain: bool) -> Result<Location, &'static str> {
    let (host, path) = rest.split_once('/').ok_or("the repository is missing")?;
    let host_char = |c: char| c.is_ascii_alphanumeric() || ".-:[]".contains(c);
    if host.is_empty() || !host.chars().all(host_char) {
        return Err("invalid registry, expected HOST or HOST:PORT");
    }
    let (repository, version) = match path.split_once('@') {
        Some((repository, digest)) => {
            let digest = Digest::from_oci(digest).map_err(|_| "invalid digest, expected sha256")?;
            // If there is a digest, the tag before it adds nothing.
            let repository = repository.split_once(':').map_or(repository, |(name, _)| name);
            (repository, Version::Digest(digest))
        }
        None => match path.split_once(':') {
            Some((repository, tag)) if is_tag(tag) => (repository, Version::Tag(tag.to_owned())),
            Some(_) => return Err("invalid tag"),
            None => return Err("neither a digest nor a tag"),
        },
    };
    let part = |part: &str| {
        let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "._-".contains(c);
        part.starts_with(|c: char| c.is_ascii_alphanumeric()) && part.chars().all(allowed)
    };
    if repository.len() > 255 || !repository.split('/').all(part) {
        return Err("invalid repository");
    }
    Ok(Location::Registry(Reference {
        plain,
        host: host.to_owned(),
        repository: repository.to_owned(),
        version,
    }))
}

fn is_tag(tag: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    (1..=128).contains(&tag.len()) && !tag.starts_with(['.', '-']) && tag.chars().all(allowed)
}

/// Removes what may be a secret: the user part, and the query, which may hold a signature.
pub(crate) fn without_password(text: &str) -> String {
    let Some((scheme, rest)) =
        text.split_once("://").filter(|(scheme, _)| scheme.starts_with("http"))
    else {
        return text.to_owned();
    };
    let rest = rest.split('?').next().unwrap_or_default();
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let host = authority.rsplit('@').next().unwrap_or_default();
    format!("{scheme}://{host}/{path}")
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => path.display().fmt(f),
            Self::Http(uri) => f.write_str(&shown(uri)),
            Self::Registry(reference) => reference.fmt(f),
        }
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.plain { "oci+http" } else { "oci" };
        let separator = match self.version {
            Version::Digest(_) => '@',
            Version::Tag(_) => ':',
        };
        let (host, repository, version) = (&self.host, &self.repository, self.version.to_path());
        write!(f, "{scheme}://{host}/{repository}{separator}{version}")
    }
}

/// Formats a URL for messages, without its query.
pub(crate) fn shown(uri: &Uri) -> String {
    let text = uri.to_string();
    match text.split_once('?') {
        Some((before, _)) => before.to_owned(),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_form_of_a_location_is_recognized() {
        let digest = Digest::of(b"").to_oci();
        let cases = [
            ("/mnt/usb/bundle", "/mnt/usb/bundle"),
            ("file:///mnt/usb/bundle", "/mnt/usb/bundle"),
            ("https://h/bundles/v1.35.0", "https://h/bundles/v1.35.0/"),
            (
                "oci://r.example:5000/refit/bundle:v1.35.0",
                "oci://r.example:5000/refit/bundle:v1.35.0",
            ),
            ("oci+http://r/b:t", "oci+http://r/b:t"),
        ];
        for (text, shown) in cases {
            assert_eq!(text.parse::<Location>().unwrap().to_string(), shown, "{text}");
        }
        let text = format!("oci://r/b:tag@{digest}");
        let location: Location = text.parse().unwrap();
        assert_eq!(location.to_string(), format!("oci://r/b@{digest}"));
    }

    #[test]
    fn an_invalid_location_is_refused_without_showing_a_password() {
        for bad in [
            "",
            "relative/path",
            "ftp://h/b",
            "file://relative",
            "https://",
            "https://h/b?x=1",
            "oci://r",
            "oci://r/b",
            "oci://r/B:t",
            "oci://r/../b:t",
            "oci://r/b@sha256:1",
            "oci://r/b:-t",
            "oci://u@h/b:t",
        ] {
            assert!(bad.parse::<Location>().is_err(), "{bad}");
        }
        let error = "https://h/b.tar?sig=secret".parse::<Location>().unwrap_err().to_string();
        assert!(!error.contains("secret") && error.contains("unpack the tar"), "{error}");
        let error = "https://me:hunter2@h/b".parse::<Location>().unwrap_err().to_string();
        assert!(!error.contains("hunter2") && error.contains("credentials"), "{error}");
    }
}
