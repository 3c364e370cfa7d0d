//! sha256 digests, which name the contents of bundles.

use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::Digest as _;

/// Prefix of a digest in OCI notation.
const PREFIX: &str = "sha256:";

/// A sha256 digest: 64 lower-case hexadecimal digits, safe as a file name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest(String);

/// The text is not a sha256 digest.
#[derive(Debug, thiserror::Error)]
#[error("invalid sha256 {0:?}, expected 64 lower-case hexadecimal digits")]
pub struct NoDigest(String);

impl Digest {
    /// Computes the digest of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        let mut hasher = Hasher::default();
        hasher.update(bytes);
        hasher.finish()
    }

    /// Returns the hexadecimal digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the OCI notation: `sha256:...`.
    pub fn to_oci(&self) -> String {
        format!("{PREFIX}{}", self.0)
    }

    /// Parses the OCI notation: `sha256:...`.
    pub fn from_oci(text: &str) -> Result<Self, NoDigest> {
        match text.strip_prefix(PREFIX) {
            Some(digits) => Self::try_from(digits.to_owned()),
            None => Err(NoDigest(text.to_owned())),
        }
    }
}

impl TryFrom<String> for Digest {
    type Error = NoDigest;

    fn try_from(text: String) -> Result<Self, NoDigest> {
        let digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if text.len() == 64 && text.bytes().all(digit) {
            Ok(Self(text))
        } else {
            Err(NoDigest(text))
        }
    }
}

impl std::str::FromStr for Digest {
    type Err = NoDigest;

    fn from_str(text: &str) -> Result<Self, NoDigest> {
        Self::try_from(text.to_owned())
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> Self {
        digest.0
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Computes a digest incrementally.
#[derive(Clone, Default)]
pub struct Hasher(sha2::Sha256);

impl Hasher {
    /// Adds the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Returns the digest of all bytes.
    pub fn finish(self) -> Digest {
        use fmt::Write as _;
        let mut digits = String::with_capacity(64);
        for byte in self.0.finalize() {
            write!(digits, "{byte:02x}").expect("writing to a String cannot fail");
        }
        Digest(digits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_lower_case_hexadecimal_of_its_full_length() {
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(Digest::of(b"").as_str(), empty);
        assert_eq!(Digest::from_oci(&format!("sha256:{empty}")).unwrap(), Digest::of(b""));
        for bad in ["", "sha256:", "../../etc/passwd", &empty.to_uppercase(), &empty[1..]] {
            assert!(bad.parse::<Digest>().is_err(), "{bad}");
        }
        assert!(Digest::from_oci(&format!("sha512:{empty}")).is_err());
    }
}
