//! `refit bundle`: builds, signs, inspects and verifies the bundles for hosts without internet
//! access.

mod build;
mod inspect;
mod keygen;
mod verify;

use std::{fs, path::Path, process::ExitCode};

use anyhow::Context as _;
use clap::{Subcommand, ValueEnum};
use refit_bundle::{
    fetch::{Limits, Location},
    manifest::{Architecture, Manifest, OsFamily},
};

use crate::global::GlobalArgs;

/// Build and verify signed bundles for hosts without internet access.
///
/// A bundle is a directory with packages, container images and a signed manifest. Hosts fetch it
/// from a path, a web server or a registry; see docs/bundle.md.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  refit bundle keygen release
  refit bundle build --from bundle.yaml --key release.key v1.35.0
  refit bundle inspect v1.35.0
  refit bundle verify --public-key release.pub v1.35.0")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Generate a key that signs bundles.
    Keygen(keygen::Args),
    /// Pack packages and images into a bundle and sign it.
    Build(build::Args),
    /// Verify the signature of a bundle and every byte in it.
    Verify(verify::Args),
    /// Show the contents of a bundle.
    Inspect(inspect::Args),
}

/// Runs the command.
pub(crate) fn run(args: &Args, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
    match &args.command {
        Command::Keygen(args) => keygen::run(args, global),
        Command::Build(args) => build::run(args, global),
        Command::Verify(args) => verify::run(args, global),
        Command::Inspect(args) => inspect::run(args, global),
    }
}

/// Location of a bundle and how to access it.
#[derive(Debug, clap::Args)]
struct SourceArgs {
    /// The bundle: a directory, http(s)://HOST/DIRECTORY/ or
    /// oci://REGISTRY/REPOSITORY@sha256:DIGEST.
    #[arg(value_name = "LOCATION")]
    location: String,
    /// Trust the certificate authorities in this PEM file for HTTPS instead of the system's.
    #[arg(long, value_name = "FILE")]
    ca_file: Option<std::path::PathBuf>,
    /// Read credentials for registries and web servers from this file, in Docker's format
    /// (config.json).
    #[arg(long, value_name = "FILE")]
    credentials_file: Option<std::path::PathBuf>,
}

impl SourceArgs {
    fn location(&self) -> anyhow::Result<Location> {
        if self.location.contains("://") {
            return Ok(self.location.parse()?);
        }
        let path = std::path::absolute(&self.location)?;
        Ok(Location::Path(path))
    }

    fn limits(&self) -> Limits {
        Limits {
            ca_file: self.ca_file.clone(),
            credentials_file: self.credentials_file.clone(),
            ..Limits::default()
        }
    }
}

/// Values of the flags for the processor architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ArchitectureName {
    Amd64,
    Arm64,
    Ppc64le,
    Riscv64,
    S390x,
}

impl From<ArchitectureName> for Architecture {
    fn from(name: ArchitectureName) -> Self {
        match name {
            ArchitectureName::Amd64 => Self::Amd64,
            ArchitectureName::Arm64 => Self::Arm64,
            ArchitectureName::Ppc64le => Self::Ppc64le,
            ArchitectureName::Riscv64 => Self::Riscv64,
            ArchitectureName::S390x => Self::S390x,
        }
    }
}

/// Values of the flags for the operating system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum OsFamilyName {
    /// Tarballs and images only.
    Any,
    /// Azure Linux.
    Azurelinux,
    /// Debian, Ubuntu and their derivatives.
    Debian,
    /// Red Hat and its derivatives.
    Rhel,
}

impl From<OsFamilyName> for OsFamily {
    fn from(name: OsFamilyName) -> Self {
        match name {
            OsFamilyName::Any => Self::Any,
            OsFamilyName::Azurelinux => Self::AzureLinux,
            OsFamilyName::Debian => Self::Debian,
            OsFamilyName::Rhel => Self::Rhel,
        }
    }
}

/// Reads the first line of a file. Passwords are not flags, because other users can see the command
/// line.
fn password(path: Option<&Path>) -> anyhow::Result<Option<String>> {
    let Some(path) = path else {
        return Ok(None);
    };
    let text = fs::read_to_string(path)
        .with_context(|| format!("cannot read the password in {}", path.display()))?;
    match text.lines().next() {
        Some(password) if !password.is_empty() => Ok(Some(password.to_owned())),
        _ => anyhow::bail!("the first line of {} is empty, expected a password", path.display()),
    }
}

/// Formats a number of bytes for display.
fn bytes(count: u64) -> String {
    const UNITS: [(&str, u64); 3] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    match UNITS.into_iter().find(|(_, size)| count >= *size) {
        Some((unit, size)) => {
            let tenths = (u128::from(count) * 10 + u128::from(size) / 2) / u128::from(size);
            format!("{}.{} {unit}", tenths / 10, tenths % 10)
        }
        None => format!("{count} B"),
    }
}

/// Describes a bundle in one line.
fn summary(manifest: &Manifest) -> String {
    let plural = |count: usize, noun: &str| match count {
        1 => format!("1 {noun}"),
        count => format!("{count} {noun}s"),
    };
    let (version, os) = (&manifest.kubernetes_version, manifest.os_family.as_str());
    format!(
        "Kubernetes {version} for {os} on {}: {}, {}, {}",
        manifest.architecture.as_str(),
        plural(manifest.files.len(), "file"),
        plural(manifest.images.len(), "image"),
        bytes(manifest.total_size()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_as_people_say_them() {
        let cases = [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (1 << 30, "1.0 GiB")];
        for (count, text) in cases {
            assert_eq!(bytes(count), text);
        }
    }

    #[test]
    fn every_architecture_and_family_has_a_flag_of_the_same_name() {
        let names =
            |value: Option<clap::builder::PossibleValue>| value.unwrap().get_name().to_owned();
        for value in ArchitectureName::value_variants() {
            assert_eq!(names(value.to_possible_value()), Architecture::from(*value).as_str());
        }
        for value in OsFamilyName::value_variants() {
            assert_eq!(names(value.to_possible_value()), OsFamily::from(*value).as_str());
        }
        assert_eq!(ArchitectureName::value_variants().len(), Architecture::ALL.len());
        assert_eq!(OsFamilyName::value_variants().len(), OsFamily::ALL.len());
    }
}
