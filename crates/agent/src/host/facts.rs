//! Facts of the host. Each is read on its own: one that cannot be read does not hide the others.

use refit_kinds::refit::{HostFacts, UnreadFact};

use super::HostError;

/// A fact that can be unreadable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr, strum::VariantArray)]
#[strum(serialize_all = "camelCase")]
pub enum Fact {
    /// Version of the running kubelet.
    KubeletVersion,
    /// ID that changes with each boot.
    #[strum(serialize = "bootID")]
    BootId,
    /// Name of the operating system.
    OsImage,
    /// Versions of the installed packages.
    Packages,
    /// Why the host must boot.
    RebootRequired,
}

impl Fact {
    /// The name of its field in a report.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// Collects the facts that cannot be read.
#[derive(Debug, Default)]
pub(super) struct Unread(Vec<UnreadFact>);

impl Unread {
    /// The value of a fact; the default if it cannot be read.
    pub(super) fn or_note<T: Default>(&mut self, fact: Fact, read: Result<T, HostError>) -> T {
        read.unwrap_or_else(|error| {
            self.0.push(UnreadFact { fact: fact.name().to_owned(), message: error.to_string() });
            T::default()
        })
    }

    /// All that could not be read.
    pub(super) fn into_list(self) -> Vec<UnreadFact> {
        self.0
    }
}

/// The facts as they were read now, with the values of `last` for those that were not.
pub(crate) fn merged(mut now: HostFacts, last: &HostFacts) -> HostFacts {
    for fact in <Fact as strum::VariantArray>::VARIANTS {
        if check(&now, *fact).is_ok() {
            continue;
        }
        match fact {
            Fact::KubeletVersion => now.kubelet_version.clone_from(&last.kubelet_version),
            Fact::BootId => now.boot_id.clone_from(&last.boot_id),
            Fact::OsImage => now.os_image.clone_from(&last.os_image),
            Fact::Packages => now.packages.clone_from(&last.packages),
            Fact::RebootRequired => now.reboot_required.clone_from(&last.reboot_required),
        }
    }
    now
}

/// Checks that a fact was read.
///
/// # Errors
/// The fact is among the unread ones.
pub(crate) fn check(facts: &HostFacts, fact: Fact) -> Result<(), HostError> {
    match facts.unread.iter().find(|unread| unread.fact == fact.name()) {
        Some(unread) => {
            Err(HostError::Unread { fact: fact.name(), message: unread.message.clone() })
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, io};

    use super::*;

    fn all() -> HostFacts {
        HostFacts {
            kubelet_version: "v1.34.2".parse().ok(),
            boot_id: "boot-1".to_owned(),
            os_image: "os-1".to_owned(),
            packages: BTreeMap::from([("kubelet".to_owned(), "1.34.2-1.1".to_owned())]),
            reboot_required: Some("a newer kernel is installed".to_owned()),
            ..HostFacts::default()
        }
    }

    fn broken() -> HostError {
        HostError::File { path: "/x".to_owned(), source: io::ErrorKind::TimedOut.into() }
    }

    #[test]
    fn a_fact_that_is_not_read_keeps_its_last_value_and_is_marked() {
        let nothing = |facts: &[Fact]| {
            let mut unread = Unread::default();
            for fact in facts {
                unread.or_note::<()>(*fact, Err(broken()));
            }
            HostFacts { unread: unread.into_list(), ..HostFacts::default() }
        };
        let none_read = <[Fact; 5]>::try_from(<Fact as strum::VariantArray>::VARIANTS).unwrap();
        let kept = merged(nothing(&none_read), &all());
        assert_eq!(HostFacts { unread: Vec::new(), ..kept.clone() }, all());
        let names: Vec<&str> = kept.unread.iter().map(|unread| &*unread.fact).collect();
        assert_eq!(names, ["kubeletVersion", "bootID", "osImage", "packages", "rebootRequired"]);
        for fact in none_read {
            let error = check(&kept, fact).unwrap_err().to_string();
            assert!(error.contains(fact.name()) && error.contains("/x"), "{error}");
        }
        // A fact that was read is as it was read, even if it is empty.
        let only = HostFacts { unread: nothing(&[Fact::Packages]).unread, ..HostFacts::default() };
        let kept = merged(only, &all());
        assert_eq!((kept.kubelet_version, &*kept.boot_id, &*kept.os_image), (None, "", ""));
        assert_eq!(kept.packages, all().packages);
    }

    #[test]
    fn a_fact_that_is_read_again_is_not_marked() {
        let mut unread = Unread::default();
        assert_eq!(unread.or_note(Fact::OsImage, Ok("os-2".to_owned())), "os-2");
        let now = HostFacts { unread: unread.into_list(), os_image: "os-2".to_owned(), ..all() };
        let marked = UnreadFact { fact: "osImage".to_owned(), message: String::new() };
        let last = HostFacts { unread: vec![marked], ..all() };
        assert_eq!(merged(now.clone(), &last), now);
        assert!(check(&now, Fact::OsImage).is_ok());
    }
}
