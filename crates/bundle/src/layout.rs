//! Paths inside a bundle, and the tar headers of the archive that runtimes import images from.

use crate::{digest::Digest, manifest::MAX_FILE_BYTES};

/// File name of the manifest.
pub const MANIFEST: &str = "refit-bundle.json";
/// File name of the manifest's signature.
pub const SIGNATURE: &str = "refit-bundle.json.minisig";
/// Size limit of a signature, in bytes.
pub const MAX_SIGNATURE_BYTES: u64 = 4096;
/// Directory of the contents.
pub const BLOBS: &str = "blobs/sha256";
/// The file that makes a directory an OCI layout.
pub const OCI_LAYOUT: &str = "oci-layout";
/// File name of the index of an OCI layout.
pub const OCI_INDEX: &str = "index.json";

/// Block size of a tar, in bytes.
pub const BLOCK: u64 = 512;
/// [`BLOCK`] as a `usize`.
const BLOCK_LEN: usize = 512;

/// Returns the path of a content inside a bundle.
pub fn blob_path(digest: &Digest) -> String {
    format!("{BLOBS}/{digest}")
}

/// Builds the tar header of a file; it depends only on the name and size.
///
/// Returns `None` if a plain header cannot represent them.
pub fn tar_header(name: &str, size: u64) -> Option<[u8; BLOCK_LEN]> {
    if name.is_empty() || name.len() > 100 || size > MAX_FILE_BYTES {
        return None;
    }
    let mut header = [0u8; BLOCK_LEN];
    let mut put = |at: usize, text: &[u8]| {
        header
            .get_mut(at..at + text.len())
            .expect("all fields are within the header")
            .copy_from_slice(text);
    };
    put(0, name.as_bytes());
    put(100, b"0000644\0");
    put(108, b"0000000\0");
    put(116, b"0000000\0");
    put(124, format!("{size:011o}\0").as_bytes());
    put(136, b"00000000000\0");
    // The checksum counts its own field as blanks.
    put(148, b"        ");
    put(156, b"0");
    put(257, b"ustar\x0000");
    let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
    let text = format!("{sum:06o}\0 ");
    header
        .get_mut(148..156)
        .expect("the checksum is within the header")
        .copy_from_slice(text.as_bytes());
    Some(header)
}

/// Returns the number of bytes that pad a file of this size to a full block.
pub fn padding(size: u64) -> u64 {
    (BLOCK - size % BLOCK) % BLOCK
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_holds_only_name_and_size() {
        let header = tar_header("blobs/sha256/x", 1234).unwrap();
        let read = tar::Header::from_byte_slice(&header);
        assert_eq!(read.path().unwrap().to_str(), Some("blobs/sha256/x"));
        assert_eq!(
            (read.size().unwrap(), read.mtime().unwrap(), read.uid().unwrap()),
            (1234, 0, 0)
        );
        let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
        let own: u32 = header[148..156].iter().map(|&byte| u32::from(byte)).sum();
        assert_eq!(read.cksum().unwrap(), sum - own + 8 * 32);
        assert!(tar_header("x", MAX_FILE_BYTES).is_some());
        assert!(tar_header("x", MAX_FILE_BYTES + 1).is_none());
        assert!(tar_header(&"x".repeat(101), 1).is_none());
    }

    #[test]
    fn padding_fills_the_last_block() {
        assert_eq!([0, 1, 511, 512, 513].map(padding), [0, 511, 1, 0, 511]);
    }
}
