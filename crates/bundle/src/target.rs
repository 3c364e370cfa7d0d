//! The hosts that a bundle is for.

use serde::{Deserialize, Serialize};

use crate::manifest::PackageFormat;

/// Processor architecture, in the notation of Kubernetes and OCI.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Architecture {
    /// 64-bit x86.
    Amd64,
    /// 64-bit ARM.
    Arm64,
    /// 64-bit POWER, little endian.
    Ppc64le,
    /// 64-bit RISC-V.
    Riscv64,
    /// IBM Z.
    S390x,
}

impl Architecture {
    /// All supported architectures.
    pub const ALL: [Self; 5] =
        [Self::Amd64, Self::Arm64, Self::Ppc64le, Self::Riscv64, Self::S390x];

    /// Returns the Kubernetes notation.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Amd64 => "amd64",
            Self::Arm64 => "arm64",
            Self::Ppc64le => "ppc64le",
            Self::Riscv64 => "riscv64",
            Self::S390x => "s390x",
        }
    }

    /// Returns the rpm notation.
    pub fn rpm(self) -> &'static str {
        match self {
            Self::Amd64 => "x86_64",
            Self::Arm64 => "aarch64",
            Self::Ppc64le | Self::Riscv64 | Self::S390x => self.as_str(),
        }
    }

    /// Returns the dpkg notation.
    pub fn deb(self) -> &'static str {
        match self {
            Self::Ppc64le => "ppc64el",
            Self::Amd64 | Self::Arm64 | Self::Riscv64 | Self::S390x => self.as_str(),
        }
    }

    /// Returns the architecture of this process.
    pub fn of_this_host() -> Option<Self> {
        let name = std::env::consts::ARCH;
        let by_kernel = |arch: &Self| arch.rpm() == name;
        match name {
            "powerpc64" if cfg!(target_endian = "little") => Some(Self::Ppc64le),
            _ => Self::ALL.into_iter().find(by_kernel),
        }
    }
}

/// A family of operating systems that use the same packages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OsFamily {
    /// Any Linux: tarballs and images only.
    Any,
    /// Azure Linux: .rpm.
    AzureLinux,
    /// Debian, Ubuntu and their derivatives: .deb.
    Debian,
    /// Red Hat, Rocky, Alma, Fedora, Amazon Linux: .rpm.
    Rhel,
}

impl OsFamily {
    /// All supported families.
    pub const ALL: [Self; 4] = [Self::Any, Self::AzureLinux, Self::Debian, Self::Rhel];

    /// Returns the notation of manifests.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Any => "any",
            Self::AzureLinux => "azurelinux",
            Self::Debian => "debian",
            Self::Rhel => "rhel",
        }
    }

    /// Detects the family from `/etc/os-release`; returns `None` if it is not known.
    pub fn of_os_release(text: &str) -> Option<Self> {
        let value = |key: &str| {
            let mut lines = text.lines().filter_map(|line| line.split_once('='));
            let value = lines.find(|(found, _)| *found == key).map(|(_, value)| value);
            value.map(|value| value.trim().trim_matches(['"', '\'']))
        };
        let names = [value("ID"), value("ID_LIKE")].into_iter().flatten();
        // The first known name wins: `ID` comes before `ID_LIKE`.
        names.flat_map(str::split_whitespace).find_map(|name| match name {
            "azurelinux" | "mariner" => Some(Self::AzureLinux),
            "debian" | "ubuntu" => Some(Self::Debian),
            "rhel" | "fedora" | "centos" | "amzn" => Some(Self::Rhel),
            _ => None,
        })
    }

    /// Reports whether hosts of this family can install packages of this format.
    pub fn takes(self, format: PackageFormat) -> bool {
        match format {
            PackageFormat::Tarball => true,
            PackageFormat::Deb => self == Self::Debian,
            PackageFormat::Rpm => matches!(self, Self::Rhel | Self::AzureLinux),
        }
    }
}
