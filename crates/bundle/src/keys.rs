//! Public keys, and verification of manifest signatures.
//!
//! Keys and signatures use the minisign format: `minisign -Vm refit-bundle.json` gives the same
//! result.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use minisign_verify::{PublicKey, Signature};

/// File name extension of public keys.
const ENDING: &str = "pub";
/// Size limit of a key file, in bytes.
const MAX_KEY_BYTES: u64 = 4096;

/// The trusted keys, each with its origin.
#[derive(Clone, Debug, Default)]
pub struct PublicKeys(Vec<(String, PublicKey)>);

/// Why a key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// The underlying error.
        source: io::Error,
    },
    /// The text is not a public key.
    #[error(
        "invalid minisign public key {name} ({problem}), expected the .pub file that `refit \
         bundle keygen` or `minisign -G` wrote, or its second line"
    )]
    Form {
        /// Origin of the key.
        name: String,
        /// What is wrong.
        problem: String,
    },
    /// A plan or another source names a key that the host does not trust.
    #[error(
        "the host does not trust the public key {key}, and naming a key in a plan does not make \
         it trusted ({trusted}); add its .pub file to the host's keys"
    )]
    Untrusted {
        /// The untrusted key.
        key: String,
        /// The trusted keys, or a note that no key is trusted.
        trusted: String,
    },
}

/// Why a signature is refused.
#[derive(Debug, thiserror::Error)]
pub enum SignatureError {
    /// No key is trusted.
    #[error("no public key is trusted")]
    NoKeys,
    /// The text is not a signature.
    #[error("not a minisign signature: {0}")]
    Form(String),
    /// The signature matches none of the keys.
    #[error("no trusted key verifies it (tried: {tried})")]
    NoMatch {
        /// Origins of the keys that were tried.
        tried: String,
    },
}

/// A valid signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signed {
    /// Origin of the key.
    pub key: String,
    /// Trusted comment of the signer, protected by the signature.
    pub comment: String,
}

impl PublicKeys {
    /// Parses a key: the text of a .pub file, or only its second line.
    pub fn parse(name: &str, text: &str) -> Result<Self, KeyError> {
        let failed = |problem: String| KeyError::Form { name: name.to_owned(), problem };
        let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let base64 = match (lines.next(), lines.next(), lines.next()) {
            (Some(key), None, None) => key,
            (Some(comment), Some(key), None) if comment.starts_with("untrusted comment:") => key,
            _ => {
                return Err(failed("expected a comment line and a key line".into()));
            }
        };
        // Without the comment, so that the same key in two files compares equal.
        let key = PublicKey::from_base64(base64).map_err(|error| failed(error.to_string()))?;
        Ok(Self(vec![(name.to_owned(), key)]))
    }

    /// Reads a .pub file, or all of them in a directory. A missing directory gives no keys.
    pub fn load(path: &Path) -> Result<Self, KeyError> {
        let failed = |source| KeyError::Read { path: path.to_owned(), source };
        let entries = match fs::read_dir(path) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => return load_file(path),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return match path.extension() {
                    Some(ending) if ending == ENDING => Err(failed(error)),
                    _ => Ok(Self::default()),
                };
            }
            Err(error) => return Err(failed(error)),
        };
        let paths: Result<Vec<_>, _> =
            entries.map(|entry| entry.map(|entry| entry.path())).collect();
        let mut paths = paths.map_err(failed)?;
        paths.retain(|path| path.extension().is_some_and(|ending| ending == ENDING));
        paths.sort();
        let mut keys = Self::default();
        for path in paths {
            keys.extend(load_file(&path)?);
        }
        Ok(keys)
    }

    /// Adds other keys.
    pub fn extend(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    /// Reports whether no key is trusted.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the number of trusted keys.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Restricts the keys to those that a plan or another source names. The named keys must be
    /// among those that the host trusts already, so a host without keys trusts none.
    pub fn narrowed_to(&self, named: &Self) -> Result<Self, KeyError> {
        if named.is_empty() {
            return Ok(self.clone());
        }
        for (name, key) in &named.0 {
            if !self.0.iter().any(|(_, own)| own == key) {
                return Err(KeyError::Untrusted {
                    key: name.clone(),
                    trusted: match self.names() {
                        names if names.is_empty() => "it trusts no key".to_owned(),
                        names => format!("it trusts {names}"),
                    },
                });
            }
        }
        Ok(named.clone())
    }

    /// Verifies a signature over some bytes against every key.
    pub fn verify(&self, bytes: &[u8], signature: &str) -> Result<Signed, SignatureError> {
        if self.is_empty() {
            return Err(SignatureError::NoKeys);
        }
        let signature = Signature::decode(signature)
            .map_err(|error| SignatureError::Form(error.to_string()))?;
        for (name, key) in &self.0 {
            // The legacy form is refused: it does not hash before signing, and no current tool
            // writes it.
            if key.verify(bytes, &signature, false).is_ok() {
                return Ok(Signed {
                    key: name.clone(),
                    comment: signature.trusted_comment().to_owned(),
                });
            }
        }
        Err(SignatureError::NoMatch { tried: self.names() })
    }

    fn names(&self) -> String {
        let names: Vec<&str> = self.0.iter().map(|(name, _)| name.as_str()).collect();
        names.join(", ")
    }
}

fn load_file(path: &Path) -> Result<PublicKeys, KeyError> {
    let failed = |source| KeyError::Read { path: path.to_owned(), source };
    let size = fs::metadata(path).map_err(failed)?.len();
    let name = path.display().to_string();
    if size > MAX_KEY_BYTES {
        let problem = format!("{size} bytes exceed the limit of {MAX_KEY_BYTES}");
        return Err(KeyError::Form { name, problem });
    }
    let text = fs::read_to_string(path).map_err(failed)?;
    PublicKeys::parse(&name, &text)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    // Test vectors of minisign's own implementations, over the bytes `test`.
    const KEY: &str = "RWQf6LRCGA9i53mlYecO4IzT51TGPpvWucNSCh1CBM0QTaLn73Y7GFO3";
    const PREHASHED: &str = "untrusted comment: signature from minisign secret key
RUQf6LRCGA9i559r3g7V1qNyJDApGip8MfqcadIgT9CuhV3EMhHoN1mGTkUidF/z7SrlQgXdy8ofjb7bNJJylDOocrCo8KLzZwo=
trusted comment: timestamp:1556193335\tfile:test
y/rUw2y8/hOUYjZU71eHp/Wo1KZ40fGy2VJEDl34XMJM+TX48Ss/17u3IvIfbVR1FkZZSNCisQbuQY+bHwhEBg==";
    const LEGACY: &str = "untrusted comment: signature from minisign secret key
RWQf6LRCGA9i59SLOFxz6NxvASXDJeRtuZykwQepbDEGt87ig1BNpWaVWuNrm73YiIiJbq71Wi+dP9eKL8OC351vwIasSSbXxwA=
trusted comment: timestamp:1555779966\tfile:test
QtKMXWyYcwdpZAlPF7tE2ENJkRd1ujvKjlj1m9RtHTBnZPa5WKU5uWRs5GoP5M/VqE81QFuMKI5k/SfNQUaOAA==";

    fn key() -> PublicKeys {
        PublicKeys::parse("own", KEY).unwrap()
    }

    #[test]
    fn a_signature_by_minisign_is_valid() {
        let signed = key().verify(b"test", PREHASHED).unwrap();
        assert_eq!(signed.comment, "timestamp:1556193335\tfile:test");
        assert_eq!(signed.key, "own");
        let with_comment =
            format!("untrusted comment: minisign public key E7620F1842B4E81F\n{KEY}\n");
        let keys = PublicKeys::parse("file", &with_comment).unwrap();
        assert!(keys.verify(b"test", PREHASHED).is_ok());
    }

    #[test]
    fn changed_bytes_comments_and_legacy_signatures_are_refused() {
        assert!(key().verify(b"Test", PREHASHED).is_err());
        let comment = PREHASHED.replace("file:test", "file:best");
        assert!(key().verify(b"test", &comment).is_err());
        let error = key().verify(b"test", LEGACY).unwrap_err();
        assert!(matches!(error, SignatureError::NoMatch { .. }), "{error}");
        assert!(matches!(
            PublicKeys::default().verify(b"test", PREHASHED),
            Err(SignatureError::NoKeys)
        ));
    }

    #[test]
    fn a_named_key_narrows_and_never_widens() {
        let other = KEY.replace("GFO3", "GFO4");
        let named = PublicKeys::parse("plan", &other).unwrap();
        let own = key();
        assert!(matches!(own.narrowed_to(&named), Err(KeyError::Untrusted { .. })));
        let same = PublicKeys::parse("plan", KEY).unwrap();
        assert_eq!(own.narrowed_to(&same).unwrap().names(), "plan");
        let refused = PublicKeys::default().narrowed_to(&same).unwrap_err();
        assert!(refused.to_string().contains("it trusts no key"), "{refused}");
        assert_eq!(own.narrowed_to(&PublicKeys::default()).unwrap().names(), "own");
    }

    #[test]
    fn a_directory_gives_all_its_keys_and_names_an_invalid_one() {
        let directory = tempfile::tempdir().unwrap();
        assert!(PublicKeys::load(&directory.path().join("absent")).unwrap().is_empty());
        assert!(PublicKeys::load(&directory.path().join("absent.pub")).is_err());
        fs::write(directory.path().join("a.pub"), KEY).unwrap();
        fs::write(directory.path().join("README"), "no key").unwrap();
        assert_eq!(PublicKeys::load(directory.path()).unwrap().len(), 1);
        assert_eq!(PublicKeys::load(&directory.path().join("a.pub")).unwrap().len(), 1);
        fs::write(directory.path().join("b.pub"), "rubbish").unwrap();
        let error = PublicKeys::load(directory.path()).unwrap_err().to_string();
        assert!(error.contains("invalid minisign public key"), "{error}");
    }

    proptest! {
        #[test]
        fn random_text_is_neither_a_signature_nor_a_key(text in ".{0,300}", at in 0usize..300, byte in any::<u8>()) {
            prop_assert!(key().verify(b"test", &text).is_err());
            prop_assert!(PublicKeys::parse("x", &text).is_err());
            let mut bytes = PREHASHED.as_bytes().to_vec();
            let at = at % bytes.len();
            bytes[at] = byte;
            if let Ok(text) = String::from_utf8(bytes) {
                // Only the untrusted comment may change.
                let first_line = at < PREHASHED.find('\n').unwrap();
                let same = text == PREHASHED;
                if key().verify(b"test", &text).is_ok() {
                    prop_assert!(first_line || same || text.lines().eq(PREHASHED.lines()), "{}", text);
                }
            }
        }
    }
}
