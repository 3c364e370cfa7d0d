//! Generates and reads secret keys, and signs with them.
//!
//! Files use the minisign format. The signing code is here because minisign's own library adds
//! randomness to each signature, and building the same bundle twice must give the same bytes.

use std::{
    fs,
    io::Write as _,
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use blake2::{Blake2b512, Digest as _};
use minisign::{KeyPair, SecretKeyBox};
use ring::signature::Ed25519KeyPair;

use super::BuildError;

/// Algorithm of a signature over a hash, as minisign encodes it.
const PREHASHED: &[u8] = b"ED";
/// Offset of the key number in a decoded secret key, after algorithms, salt and limits.
const NUMBER_AT: usize = 2 + 2 + 2 + 32 + 8 + 8;
/// Length of the key number.
const NUMBER_LEN: usize = 8;
/// Length of a seed, and of a public key.
const HALF_LEN: usize = 32;

/// A key that signs.
pub struct SecretKey {
    number: [u8; NUMBER_LEN],
    pair: Ed25519KeyPair,
}

impl std::fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SecretKey").finish_non_exhaustive()
    }
}

impl SecretKey {
    /// Reads a secret key; `password` decrypts an encrypted key.
    pub fn load(path: &Path, password: Option<String>) -> Result<Self, BuildError> {
        let refused = |problem: String| BuildError::Key { path: path.to_owned(), problem };
        let found = fs::metadata(path).map_err(BuildError::read(path))?;
        let mode = found.mode() & 0o777;
        if mode & 0o077 != 0 {
            let problem =
                format!("the file is readable by other users (mode {mode:03o}); run chmod 600");
            return Err(refused(problem));
        }
        let text = fs::read_to_string(path).map_err(BuildError::read(path))?;
        let key_box =
            SecretKeyBox::from_string(&text).map_err(|error| refused(error.to_string()))?;
        let key = match password {
            Some(password) => key_box.into_secret_key(Some(password)),
            None => key_box.into_unencrypted_secret_key(),
        };
        let key = key.map_err(|error| {
            refused(format!(
                "{error} (an encrypted key requires --password-file, an unencrypted key must not \
                 have it)"
            ))
        })?;
        Self::from_minisign(&key).ok_or_else(|| refused("not an ed25519 key".to_owned()))
    }

    fn from_minisign(key: &minisign::SecretKey) -> Option<Self> {
        let bytes = key.to_bytes();
        let (number, rest) = bytes.get(NUMBER_AT..)?.split_first_chunk::<NUMBER_LEN>()?;
        let (seed, rest) = rest.split_first_chunk::<HALF_LEN>()?;
        let public = rest.get(..HALF_LEN)?;
        Some(Self {
            number: *number,
            pair: Ed25519KeyPair::from_seed_and_public_key(seed, public).ok()?,
        })
    }

    /// Signs bytes together with a trusted comment, which cannot be changed later.
    pub fn sign(&self, bytes: &[u8], comment: &str) -> String {
        let signature = self.pair.sign(&Blake2b512::digest(bytes));
        let first = [PREHASHED, &self.number, signature.as_ref()].concat();
        let global = self.pair.sign(&[signature.as_ref(), comment.as_bytes()].concat());
        format!(
            "untrusted comment: signature from a refit bundle key\n{}\ntrusted comment: {comment}\n{}\n",
            STANDARD.encode(first),
            STANDARD.encode(global.as_ref()),
        )
    }
}

/// Paths of the two files of a new key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyFiles {
    /// The secret key, mode 0600.
    pub secret: PathBuf,
    /// The public key, for the hosts.
    pub public: PathBuf,
}

/// Generates a key pair: `<name>.key`, encrypted if `password` is given, and `<name>.pub`.
pub fn generate(name: &Path, password: Option<String>) -> Result<KeyFiles, BuildError> {
    let with = |ending: &str| {
        let mut file = name.as_os_str().to_owned();
        file.push(ending);
        PathBuf::from(file)
    };
    let files = KeyFiles { secret: with(".key"), public: with(".pub") };
    for path in [&files.secret, &files.public] {
        if fs::symlink_metadata(path).is_ok() {
            return Err(BuildError::Exists { path: path.clone() });
        }
    }
    let failed = |error: minisign::PError| BuildError::Key {
        path: files.secret.clone(),
        problem: error.to_string(),
    };
    let pair = match password {
        Some(password) => KeyPair::generate_encrypted_keypair(Some(password)),
        None => KeyPair::generate_unencrypted_keypair(),
    };
    let pair = pair.map_err(failed)?;
    let secret = pair.sk.to_box(Some("refit bundle secret key")).map_err(failed)?;
    let public = pair.pk.to_box().map_err(failed)?;
    write_new(&files.secret, 0o600, &secret.into_string())?;
    write_new(&files.public, 0o644, &public.into_string())?;
    Ok(files)
}

fn write_new(path: &Path, mode: u32, text: &str) -> Result<(), BuildError> {
    let mut options = fs::OpenOptions::new();
    let file = options.create_new(true).write(true).mode(mode).open(path);
    let mut file = file.map_err(BuildError::written(path))?;
    file.write_all(text.as_bytes())
        .and_then(|()| file.sync_all())
        .map_err(BuildError::written(path))
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;
    use crate::keys::PublicKeys;

    #[test]
    fn signatures_are_reproducible_and_minisign_accepts_them() {
        let directory = tempfile::tempdir().unwrap();
        let files = generate(&directory.path().join("release"), None).unwrap();
        assert_eq!(fs::metadata(&files.secret).unwrap().mode() & 0o777, 0o600);
        let key = SecretKey::load(&files.secret, None).unwrap();
        let signature = key.sign(b"manifest", "a comment");
        assert_eq!(signature, key.sign(b"manifest", "a comment"));
        let signed =
            PublicKeys::load(&files.public).unwrap().verify(b"manifest", &signature).unwrap();
        assert_eq!(signed.comment, "a comment");
        let public = minisign::PublicKey::from_file(&files.public).unwrap();
        let own = minisign::SignatureBox::from_string(&signature).unwrap();
        minisign::verify(&public, &own, Cursor::new(b"manifest"), true, false, false).unwrap();
        assert!(matches!(
            generate(&directory.path().join("release"), None),
            Err(BuildError::Exists { .. })
        ));
    }

    #[test]
    fn a_key_that_minisign_made_signs_here() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("k.key");
        let pair = KeyPair::generate_unencrypted_keypair().unwrap();
        write_new(&path, 0o600, &pair.sk.to_box(None).unwrap().into_string()).unwrap();
        let key = SecretKey::load(&path, None).unwrap();
        let keys = PublicKeys::parse("pub", &pair.pk.to_base64()).unwrap();
        assert!(keys.verify(b"x", &key.sign(b"x", "")).is_ok());
        assert!(keys.verify(b"y", &key.sign(b"x", "")).is_err());
    }

    #[test]
    fn a_key_that_others_can_read_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let files = generate(&directory.path().join("k"), None).unwrap();
        fs::set_permissions(&files.secret, std::os::unix::fs::PermissionsExt::from_mode(0o640))
            .unwrap();
        let error = SecretKey::load(&files.secret, None).unwrap_err().to_string();
        assert!(error.contains("chmod 600"), "{error}");
        let error = SecretKey::load(&files.public, None).unwrap_err().to_string();
        assert!(error.contains("invalid key"), "{error}");
    }
}
