//! Reads package metadata from the package itself, not from its file name.

use std::{
    fs,
    io::{self, BufReader, Read, Seek as _, SeekFrom},
    path::Path,
};

use flate2::read::GzDecoder;
use lzma_rust2::XzReader;
use ruzstd::decoding::StreamingDecoder;

use super::{BuildError, PackageSpec, Spec};
use crate::manifest::{Package, PackageFormat};

/// Size limit of a control file, in bytes.
const MAX_CONTROL_BYTES: u64 = 4 << 20;
/// Size limit of a .rpm header, in bytes.
const MAX_RPM_HEADER_BYTES: u64 = 64 << 20;
/// Memory limit for unpacking a control file, in KiB.
const XZ_MEMORY_KIB: u32 = 128 << 10;

/// Determines the package format from the file name.
pub(crate) fn format_of(path: &Path) -> Option<PackageFormat> {
    let name = path.file_name()?.to_str()?;
    match path.extension().and_then(|ending| ending.to_str()) {
        Some("deb") => return Some(PackageFormat::Deb),
        Some("rpm") => return Some(PackageFormat::Rpm),
        _ => {}
    }
    let tarball = [".tar.gz", ".tgz", ".tar.xz", ".tar.zst", ".tar"];
    let is_tarball = tarball.iter().any(|ending| name.ends_with(ending));
    is_tarball.then_some(PackageFormat::Tarball)
}

/// Reads the metadata of a package.
pub(crate) fn read(path: &Path, given: &PackageSpec, spec: &Spec) -> Result<Package, BuildError> {
    let format = format_of(path).ok_or_else(|| {
        BuildError::input(
            path,
            "unknown file type, expected .deb, .rpm, .tar.gz, .tgz, .tar.xz, .tar.zst or .tar",
        )
    })?;
    let broken = |error: io::Error| BuildError::input(path, format!("cannot read it: {error}"));
    let open = || fs::File::open(path).map_err(BuildError::read(path));
    if format != PackageFormat::Tarball && (given.name.is_some() || given.version.is_some()) {
        return Err(BuildError::input(
            path,
            "the package contains its own name and version; remove them here",
        ));
    }
    match format {
        PackageFormat::Deb => deb(open()?).map_err(broken),
        PackageFormat::Rpm => rpm(BufReader::new(open()?)).map_err(broken),
        PackageFormat::Tarball => {
            let file = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let stem = file.split(".t").next().unwrap_or(file);
            Ok(Package {
                architecture: spec.architecture.as_str().to_owned(),
                format,
                name: given.name.clone().unwrap_or_else(|| stem.to_owned()),
                version: given.version.clone().unwrap_or_else(|| spec.kubernetes_version.bare()),
            })
        }
    }
}

fn invalid_package(problem: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, problem.into())
}

/// Reads a .deb: an `ar` archive with the control file in its second member.
fn deb(mut file: fs::File) -> io::Result<Package> {
    let mut magic = [0; 8];
    file.read_exact(&mut magic)?;
    if magic != *b"!<arch>\n" {
        return Err(invalid_package("not an ar archive"));
    }
    loop {
        let mut header = [0; 60];
        file.read_exact(&mut header).map_err(|_| invalid_package("no control file"))?;
        let text = |from: usize, to: usize| {
            let field = header.get(from..to).and_then(|field| std::str::from_utf8(field).ok());
            field.map(|field| field.trim().trim_end_matches('/').to_owned())
        };
        let name = text(0, 16).ok_or_else(|| invalid_package("a member has no name"))?;
        let size = text(48, 58).and_then(|size| size.parse::<u64>().ok());
        let size = size.ok_or_else(|| invalid_package("a member has no size"))?;
        if name.starts_with("control.tar") {
            let member = BufReader::new(file.take(size));
            let control = match name.as_str() {
                "control.tar" => control_file(member),
                "control.tar.gz" => control_file(GzDecoder::new(member)),
                "control.tar.xz" => {
                    control_file(XzReader::new_mem_limit(member, true, XZ_MEMORY_KIB))
                }
                "control.tar.zst" => {
                    let decoder = StreamingDecoder::new(member);
                    control_file(decoder.map_err(|error| invalid_package(error.to_string()))?)
                }
                _ => Err(invalid_package(format!("unknown compression of {name}"))),
            };
            return from_control(&control?);
        }
        let skip =
            i64::try_from(size + size % 2).map_err(|_| invalid_package("a member is too large"))?;
        file.seek(SeekFrom::Current(skip))?;
    }
}

fn control_file(tar: impl Read) -> io::Result<String> {
    let mut archive = tar::Archive::new(tar.take(MAX_CONTROL_BYTES));
    for entry in archive.entries()? {
        let entry = entry?;
        let path = entry.path()?.into_owned();
        if path == Path::new("control") || path == Path::new("./control") {
            let mut text = String::new();
            entry.take(MAX_CONTROL_BYTES).read_to_string(&mut text)?;
            return Ok(text);
        }
    }
    Err(invalid_package("no control file"))
}

fn from_control(text: &str) -> io::Result<Package> {
    let field = |name: &str| {
        let mut lines = text.lines().filter_map(|line| line.split_once(':'));
        let value = lines.find(|(key, _)| key.eq_ignore_ascii_case(name));
        value
            .map(|(_, value)| value.trim().to_owned())
            .ok_or_else(|| invalid_package(format!("no {name} in the control file")))
    };
    Ok(Package {
        architecture: field("Architecture")?,
        format: PackageFormat::Deb,
        name: field("Package")?,
        version: field("Version")?,
    })
}

/// Tags of a .rpm header.
mod tag {
    pub(super) const NAME: u32 = 1000;
    pub(super) const VERSION: u32 = 1001;
    pub(super) const RELEASE: u32 = 1002;
    pub(super) const EPOCH: u32 = 1003;
    pub(super) const ARCH: u32 = 1022;
}

/// A .rpm header: entries that point into a data store.
struct RpmHeader {
    index: Vec<u8>,
    store: Vec<u8>,
}

/// Reads a .rpm: a lead, a header with signatures, and the main header.
fn rpm(mut file: impl Read) -> io::Result<Package> {
    let mut lead = [0; 96];
    file.read_exact(&mut lead)?;
    if !lead.starts_with(&[0xed, 0xab, 0xee, 0xdb]) {
        return Err(invalid_package("not an rpm package"));
    }
    let signatures = RpmHeader::read(&mut file)?;
    let padding = (8 - signatures.store.len() % 8) % 8;
    io::copy(&mut file.by_ref().take(padding as u64), &mut io::sink())?;
    let header = RpmHeader::read(&mut file)?;
    let text =
        |tag: u32| header.text(tag).ok_or_else(|| invalid_package(format!("tag {tag} is missing")));
    let version = format!("{}-{}", text(tag::VERSION)?, text(tag::RELEASE)?);
    Ok(Package {
        architecture: text(tag::ARCH)?,
        format: PackageFormat::Rpm,
        name: text(tag::NAME)?,
        version: match header.number(tag::EPOCH) {
            None | Some(0) => version,
            Some(epoch) => format!("{epoch}:{version}"),
        },
    })
}

impl RpmHeader {
    fn read(file: &mut impl Read) -> io::Result<Self> {
        let mut intro = [0; 16];
        file.read_exact(&mut intro)?;
        if !intro.starts_with(&[0x8e, 0xad, 0xe8, 0x01]) {
            return Err(invalid_package("a header has the wrong magic bytes"));
        }
        let (entries, store) = (number_at(&intro, 8), number_at(&intro, 12));
        let (Some(entries), Some(store)) = (entries, store) else {
            return Err(invalid_package("a header has no length"));
        };
        let (index, store) = (u64::from(entries) * 16, u64::from(store));
        if index + store > MAX_RPM_HEADER_BYTES {
            return Err(invalid_package("a header is too large"));
        }
        Ok(Self { index: exactly(file, index)?, store: exactly(file, store)? })
    }

    /// Returns the data of a tag, from its first byte on.
    fn value(&self, tag: u32) -> Option<&[u8]> {
        let entry = self.index.chunks_exact(16).find(|entry| number_at(entry, 0) == Some(tag))?;
        let offset = usize::try_from(number_at(entry, 8)?).ok()?;
        self.store.get(offset..)
    }

    fn text(&self, tag: u32) -> Option<String> {
        let value = self.value(tag)?;
        let end = value.iter().position(|&byte| byte == 0)?;
        String::from_utf8(value.get(..end)?.to_vec()).ok()
    }

    fn number(&self, tag: u32) -> Option<u32> {
        number_at(self.value(tag)?, 0)
    }
}

fn exactly(file: &mut impl Read, length: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(length).read_to_end(&mut bytes)?;
    if bytes.len() as u64 == length {
        Ok(bytes)
    } else {
        Err(invalid_package("the file ends within a header"))
    }
}

fn number_at(bytes: &[u8], at: usize) -> Option<u32> {
    let four = bytes.get(at..)?.first_chunk::<4>()?;
    Some(u32::from_be_bytes(*four))
}

#[cfg(test)]
#[path = "package_tests.rs"]
mod tests;
