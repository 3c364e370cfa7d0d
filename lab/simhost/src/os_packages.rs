//! Packages of a simulated host's operating system, and the boot that a kernel among them requires.
//!
//! Every package source has every version. A `*` stands for the newest one, `NEWEST`, and the security updates of all hosts
//! are `SECURITY`.

use std::collections::BTreeMap;

use refit_agent::host::{Command, Evidence};
use refit_kinds::refit::{HostStep, OsPackageArgs};

use crate::state::{HostState, package_path};

/// What `*` stands for in a version.
const NEWEST: &str = "9.9";
/// The security updates that the package sources have.
const SECURITY: [(&str, &str); 2] = [("libssl3t64", "3.5.4-1"), ("openssl", "3.5.4-1")];
/// Start of the names of packages that are kernels.
const KERNEL: &str = "linux-image-";
/// Why the host must boot.
const BOOT_REQUIRED: &str = "/run/reboot-required";
/// Versions to install, by package name: what was staged last.
const STAGED: &str = "/var/lib/refit/os-packages/staged/";
/// The versions before that, empty for a package that was not installed.
const BEFORE: &str = "/var/lib/refit/os-packages/before/";

impl HostState {
    /// Why the host must boot; `None` if it need not.
    pub fn boot_required(&self) -> Option<&str> {
        self.root.get(BOOT_REQUIRED).map(String::as_str)
    }

    /// Version of a package of the operating system; empty if it is not installed.
    pub fn os_package(&self, name: &str) -> &str {
        self.package(name)
    }

    /// Whether a command boots the host.
    pub(super) fn boots_for(&self, command: &Command) -> bool {
        match command {
            Command::Step(HostStep::Reboot {}) => true,
            Command::Step(HostStep::RebootIfRequired {}) => self.boot_required().is_some(),
            Command::Step(_) | Command::Undo(_) => false,
        }
    }

    /// Forgets what a boot brings into use.
    pub(super) fn boot_packages(&mut self) {
        self.root.remove(BOOT_REQUIRED);
    }

    pub(super) fn stage_os_packages(&mut self, args: &OsPackageArgs) -> String {
        let named = args.install.iter().map(|package| {
            let version = package.version.strip_suffix('*');
            let version =
                version.map_or_else(|| package.version.clone(), |start| format!("{start}{NEWEST}"));
            (package.name.clone(), version)
        });
        let security = SECURITY.into_iter().filter(|(name, _)| args.security && !args.keeps(name));
        let mut wanted: BTreeMap<String, String> =
            security.map(|(name, version)| (name.to_owned(), version.to_owned())).collect();
        wanted.extend(named);
        wanted.retain(|name, version| self.package(name) != version);
        self.root.retain(|path, _| !path.starts_with(STAGED) && !path.starts_with(BEFORE));
        for (name, version) in &wanted {
            let before = self.package(name).to_owned();
            self.root.insert(format!("{BEFORE}{name}"), before);
            self.root.insert(format!("{STAGED}{name}"), version.clone());
        }
        format!("{} packages fetched", wanted.len())
    }

    pub(super) fn install_os_packages(&mut self) -> String {
        let staged = self.list(STAGED);
        for (name, version) in &staged {
            self.root.insert(package_path(name), version.clone());
            if name.starts_with(KERNEL) {
                let why = format!("a newer kernel is installed: {name} {version}");
                self.root.insert(BOOT_REQUIRED.to_owned(), why);
            }
        }
        format!("{} packages installed", staged.len())
    }

    pub(super) fn os_packages_installed(&self) -> Evidence {
        self.are_at(&self.list(STAGED), "planned")
    }

    /// Restores previous versions. New packages stay.
    pub(super) fn restore_os_packages(&mut self) -> String {
        let before = self.replaced();
        let count = before.len();
        for (name, version) in before {
            self.root.insert(package_path(&name), version);
        }
        format!("{count} packages restored")
    }

    pub(super) fn os_packages_restored(&self) -> Evidence {
        self.are_at(&self.replaced(), "previous")
    }

    fn replaced(&self) -> BTreeMap<String, String> {
        let mut before = self.list(BEFORE);
        before.retain(|_, version| !version.is_empty());
        before
    }

    fn are_at(&self, wanted: &BTreeMap<String, String>, which: &str) -> Evidence {
        let other = wanted.iter().find(|(name, version)| self.package(name) != version.as_str());
        Evidence::from_check(other.is_none(), || {
            let name = other.map_or("", |(name, _)| name);
            format!("package {name} is not at its {which} version")
        })
    }

    /// The files below a directory, by their names.
    fn list(&self, directory: &str) -> BTreeMap<String, String> {
        let files = self.root.iter();
        let named =
            files.filter_map(|(path, content)| Some((path.strip_prefix(directory)?, content)));
        named.map(|(name, content)| (name.to_owned(), content.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use refit_agent::host::{Job, Since, Undo};
    use refit_kinds::refit::OsPackage;

    use super::*;

    fn host() -> HostState {
        HostState::new("n-1", false, "v1.34.2", Timestamp::UNIX_EPOCH)
    }

    fn args(packages: &[(&str, &str)]) -> OsPackageArgs {
        let package = |(name, version): &(&str, &str)| OsPackage {
            name: (*name).to_owned(),
            version: (*version).to_owned(),
        };
        OsPackageArgs { install: packages.iter().map(package).collect(), ..Default::default() }
    }

    fn done(host: &mut HostState, step: &str, command: impl Into<Command>) -> Evidence {
        let unit = format!("{step}-{}", host.units.len());
        let job = Job::new("p", &unit, step, command);
        let since = Since { at: Timestamp::UNIX_EPOCH, boot_id: host.boot_id.clone() };
        let from = host.units.values().map(|unit| unit.ends).max().unwrap_or_default();
        host.start(&job, from);
        let end = host.units.get(&unit).unwrap().ends;
        host.tick(end);
        host.look(&job, &since)
    }

    fn install(host: &mut HostState, args: &OsPackageArgs) {
        let stage = HostStep::OsPackagesStage(args.clone());
        assert_eq!(done(host, "os-packages-stage", stage), Evidence::Done);
        let install = HostStep::OsPackagesInstall(args.clone());
        assert_eq!(done(host, "os-packages-install", install), Evidence::Done);
    }

    #[test]
    fn packages_without_a_kernel_boot_nothing() {
        let mut host = host();
        install(&mut host, &OsPackageArgs { security: true, ..args(&[("vim", "2:*")]) });
        assert_eq!((host.os_package("vim"), host.os_package("openssl")), ("2:9.9", "3.5.4-1"));
        assert_eq!(host.facts().reboot_required, None);
        assert_eq!(
            done(&mut host, "reboot-if-required", HostStep::RebootIfRequired {}),
            Evidence::Done
        );
        assert_eq!(host.boots, 1);
    }

    #[test]
    fn a_kernel_is_in_use_after_one_boot() {
        let mut host = host();
        install(&mut host, &args(&[("linux-image-amd64", "6.12.57-1")]));
        let why = host.facts().reboot_required.unwrap();
        assert_eq!(why, "a newer kernel is installed: linux-image-amd64 6.12.57-1");
        assert_eq!(
            done(&mut host, "reboot-if-required", HostStep::RebootIfRequired {}),
            Evidence::Done
        );
        assert_eq!((host.boots, host.facts().reboot_required), (2, None));
    }

    #[test]
    fn a_rollback_restores_what_was_replaced_and_leaves_what_is_new() {
        let mut host = host();
        install(&mut host, &args(&[("vim", "1")]));
        install(&mut host, &args(&[("vim", "2"), ("emacs", "1")]));
        assert_eq!(done(&mut host, "undo-os-packages-install", Undo::OsPackages), Evidence::Done);
        assert_eq!((host.os_package("vim"), host.os_package("emacs")), ("1", "1"));
    }
}
