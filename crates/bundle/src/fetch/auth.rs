//! Credentials for registries and HTTP servers, and the authentication challenges of servers.

use std::{collections::BTreeMap, fmt, fs, io, path::Path};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::{HeaderValue, Uri};
use serde::Deserialize;

use crate::error::Error;

/// Size limit of a credentials file, in bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// User names and passwords by host.
#[derive(Clone, Default)]
pub(crate) struct Credentials(BTreeMap<String, HeaderValue>);

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.keys()).finish()
    }
}

/// `config.json` of Docker, podman and the kubelet.
#[derive(Deserialize)]
struct DockerConfig {
    #[serde(default)]
    auths: BTreeMap<String, Entry>,
}

#[derive(Deserialize)]
struct Entry {
    #[serde(default)]
    auth: String,
    #[serde(default)]
    username: String,
    #[serde(default)]
    password: String,
}

impl Credentials {
    /// Reads a credentials file; a missing file means no credentials.
    pub(crate) fn load(path: &Path) -> Result<Self, Error> {
        let text = match fs::metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Ok(metadata) if metadata.len() > MAX_FILE_BYTES => {
                return Err(Error::read(path, io::Error::other("the file is too large")));
            }
            _ => fs::read_to_string(path).map_err(|error| Error::read(path, error))?,
        };
        // serde_json's error message would quote the input, which may hold a password.
        let no_json =
            || io::Error::other("not a config.json in the format of Docker and the kubelet");
        let config = serde_json::from_str(&text).map_err(|_| Error::read(path, no_json()))?;
        Ok(Self::from_config(config))
    }

    fn from_config(config: DockerConfig) -> Self {
        let header = |entry: Entry| {
            let encoded = match entry.auth.is_empty() {
                false => entry.auth,
                true if entry.username.is_empty() => return None,
                true => STANDARD.encode(format!("{}:{}", entry.username, entry.password)),
            };
            let mut value = HeaderValue::try_from(format!("Basic {encoded}")).ok()?;
            value.set_sensitive(true);
            Some(value)
        };
        let by_host = config.auths.into_iter().filter_map(|(server, entry)| {
            let without_scheme = server.split_once("://").map_or(server.as_str(), |(_, rest)| rest);
            let host = without_scheme.split('/').next()?.to_owned();
            Some((host, header(entry)?))
        });
        Self(by_host.collect())
    }

    /// Returns the Basic credentials for a server, only if the URL uses HTTPS.
    pub(crate) fn basic_for(&self, uri: &Uri) -> Option<HeaderValue> {
        match (uri.scheme_str(), uri.authority()) {
            (Some("https"), Some(authority)) => self.0.get(authority.as_str()).cloned(),
            _ => None,
        }
    }
}

/// The authentication that a `WWW-Authenticate` header asks for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Challenge {
    /// User name and password.
    Basic,
    /// A token from a token server.
    Bearer {
        /// URL of the token server.
        realm: String,
        /// The service that the token is for.
        service: String,
    },
}

impl Challenge {
    /// Parses a `WWW-Authenticate` header.
    pub(crate) fn parse(header: &str) -> Option<Self> {
        let (scheme, rest) = header.split_once(' ').unwrap_or((header, ""));
        if scheme.eq_ignore_ascii_case("basic") {
            return Some(Self::Basic);
        }
        if !scheme.eq_ignore_ascii_case("bearer") {
            return None;
        }
        let parameters = parameters(rest);
        Some(Self::Bearer {
            realm: parameters.get("realm")?.clone(),
            service: parameters.get("service").cloned().unwrap_or_default(),
        })
    }
}

/// Parses `key="value",...`; a comma inside quotes belongs to the value.
fn parameters(text: &str) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut rest = text;
    while let Some((key, after)) = rest.split_once('=') {
        let key = key.trim_matches([' ', ',']).to_ascii_lowercase();
        let (value, after) = match after.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"').unwrap_or((quoted, "")),
            None => after.split_once(',').unwrap_or((after, "")),
        };
        found.insert(key, value.to_owned());
        rest = after;
    }
    found
}

/// Percent-encodes a text for use in a query.
pub(crate) fn percent_encoded(text: &str) -> String {
    use fmt::Write as _;
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~:/".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            write!(encoded, "%{byte:02X}").expect("writing to a String cannot fail");
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_challenge_names_the_token_server() {
        let header = r#"Bearer realm="https://auth.example/token",service="reg,istry",scope="repository:a/b:pull""#;
        let expected = Challenge::Bearer {
            realm: "https://auth.example/token".into(),
            service: "reg,istry".into(),
        };
        assert_eq!(Challenge::parse(header), Some(expected));
        assert_eq!(Challenge::parse("Basic realm=x"), Some(Challenge::Basic));
        assert_eq!(Challenge::parse("Negotiate"), None);
        assert_eq!(Challenge::parse("Bearer"), None);
        assert_eq!(percent_encoded("a b&c/d:e"), "a%20b%26c/d:e");
    }

    #[test]
    fn credentials_are_sent_only_over_https_and_never_shown() {
        let text = r#"{"auths":{"https://r.example:5000/v2/":{"auth":"bWU6aHVudGVyMg=="},
            "q.example":{"username":"me","password":"hunter2"},"empty.example":{}}}"#;
        let credentials = Credentials::from_config(serde_json::from_str(text).unwrap());
        let basic = |uri: &str| credentials.basic_for(&uri.parse().unwrap());
        assert_eq!(basic("https://r.example:5000/x").unwrap(), "Basic bWU6aHVudGVyMg==");
        assert_eq!(basic("https://q.example/x"), basic("https://r.example:5000/x"));
        for none in ["http://q.example/x", "https://q.example:1/x", "https://empty.example/"] {
            assert_eq!(basic(none), None, "{none}");
        }
        let shown = format!("{credentials:?} {:?}", basic("https://q.example/"));
        assert!(!shown.contains("bWU6"), "{shown}");
    }

    #[test]
    fn a_file_that_cannot_be_read_is_not_quoted() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("config.json");
        assert!(Credentials::load(&path).unwrap().0.is_empty());
        fs::write(&path, "{\"auths\": hunter2").unwrap();
        let error = Credentials::load(&path).unwrap_err().to_string();
        assert!(!error.contains("hunter2"), "{error}");
    }
}
