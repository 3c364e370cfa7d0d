//! What two sources of one update must not both change on a host.

use refit_kinds::refit::HostPart;

use super::work::Work;
use crate::report::Refusal;

impl Work<'_> {
    /// Two sources must not install one OS image each.
    pub(super) fn two_os_images(&self) -> Option<Refusal> {
        let of_settings = self.s.settings.os_image.is_some();
        let sources = self.two_sources(|host| host.os_image().is_some(), of_settings)?;
        Some(Refusal::OsImageConflict { sources })
    }

    /// Nor packages of the operating system: they might contradict each other.
    pub(super) fn two_os_packages(&self) -> Option<Refusal> {
        let of_settings = self.s.settings.os_packages.is_some();
        let sources = self.two_sources(|host| host.os_packages().is_some(), of_settings)?;
        Some(Refusal::OsPackagesConflict { sources })
    }

    /// The Updaters with such a part, and a HostSettings, if they are more than one.
    fn two_sources(&self, is_such: fn(&HostPart) -> bool, of_settings: bool) -> Option<String> {
        let settings = of_settings.then(|| "a HostSettings".to_owned());
        let all: Vec<String> = self.updaters_with(is_such).chain(settings).collect();
        (all.len() > 1).then(|| all.join(" and "))
    }

    fn updaters_with(&self, is_such: fn(&HostPart) -> bool) -> impl Iterator<Item = String> {
        let parts = self.s.update.spec.host_parts().filter(move |(_, host)| is_such(host));
        parts.map(|(part, _)| format!("Updater {}", part.updater))
    }

    /// A new OS image has its own packages: those of an Updater would count as installed, and would not be.
    pub(super) fn packages_without_image(&self) -> Option<Refusal> {
        let image = self.workers.host.image_without_packages(self.s, self.role())?;
        let updater = self.updaters_with(|host| host.os_packages().is_some()).next()?;
        Some(Refusal::OsPackagesConflict { sources: format!("{updater} and the OS image {image}") })
    }

    /// Two sources must not set one thing each.
    pub(super) fn configuration_conflict(&self) -> Option<Refusal> {
        let what = self.workers.host.set_twice(self.s)?;
        Some(Refusal::ConfigurationConflict { what })
    }
}
