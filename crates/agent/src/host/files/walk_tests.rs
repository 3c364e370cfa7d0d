use std::{
    fs,
    os::unix::fs::{chown, lchown, symlink},
};

use super::*;
use crate::host::{files::atomic, work::WorkError};
use refit_kinds::refit::FailureKind;

/// A user who is neither root nor the user who runs the tests.
const OTHER_USER: u32 = 12_345;

/// A host with `etc`, which is root's, and `home`, which is another user's; `None` if the tests are
/// not allowed to create one.
fn host() -> Option<tempfile::TempDir> {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    for name in ["etc", "etc/sudoers.d", "home", "home/conf"] {
        fs::create_dir(at(name)).unwrap();
    }
    fs::write(at("etc/shadow"), "root's").unwrap();
    for name in ["home", "home/conf"] {
        chown(at(name), Some(OTHER_USER), None).ok()?;
    }
    Some(directory)
}

/// Replaces a file of the host.
fn replace(host: &tempfile::TempDir, path: &str) -> Result<bool, WorkError> {
    atomic::replace(&host.path().join(path), b"new", Access::of_mode(0o600))
}

#[test]
fn a_link_of_root_to_a_link_of_a_user_is_not_followed() {
    for (links, path, refused) in [
        // A file, and a directory, of the user that root's link leads to is exchanged for a link.
        (
            &[("etc/app.conf", "../home/app.conf"), ("home/app.conf", "../etc/shadow")][..],
            "etc/app.conf",
            "home/app.conf",
        ),
        (&[("etc/app.d", "../home/d"), ("home/d", "../etc/sudoers.d")], "etc/app.d/x", "home/d"),
        (
            &[("etc/app.d", "../home/conf"), ("home/conf/x", "../../etc/shadow")],
            "etc/app.d/x",
            "home/conf/x",
        ),
        // The user's link is not the first one, and dangles.
        (&[("etc/a", "b"), ("etc/b", "../home/c"), ("home/c", "../etc/new")], "etc/a", "home/c"),
    ] {
        let Some(host) = host() else { return };
        for (link, target) in links {
            symlink(target, host.path().join(link)).unwrap();
        }
        let error = replace(&host, path).unwrap_err();
        assert_eq!(error.kind, FailureKind::NeedsPerson, "{error}");
        let named = host.path().join(refused);
        assert!(
            error.message.contains(&format!("{} is a symbolic link", named.display())),
            "{error}"
        );
        assert_eq!(fs::read_to_string(host.path().join("etc/shadow")).unwrap(), "root's");
        assert_eq!(fs::read_dir(host.path().join("etc/sudoers.d")).unwrap().count(), 0);
        assert!(!host.path().join("etc/new").exists());
    }
}

#[test]
fn links_of_root_are_followed_to_their_end() {
    let Some(host) = host() else { return };
    let at = |name: &str| host.path().join(name);
    symlink("../etc/sudoers.d", at("etc/more")).unwrap();
    symlink(at("etc/more/second"), at("etc/first")).unwrap();
    symlink("real", at("etc/sudoers.d/second")).unwrap();
    fs::write(at("etc/sudoers.d/real"), "old").unwrap();
    assert_eq!(atomic::resolved(&at("etc/first")), fs::canonicalize(at("etc/first")).unwrap());
    replace(&host, "etc/first").unwrap();
    assert_eq!(fs::read_to_string(at("etc/sudoers.d/real")).unwrap(), "new");
    for link in ["etc/first", "etc/more", "etc/sudoers.d/second"] {
        assert!(fs::symlink_metadata(at(link)).unwrap().is_symlink(), "{link}");
    }
    // A link that leads nowhere is replaced itself.
    symlink("missing/x", at("etc/dangling")).unwrap();
    replace(&host, "etc/dangling").unwrap();
    assert!(fs::symlink_metadata(at("etc/dangling")).unwrap().is_file());
    assert!(!at("etc/missing").exists());
    // A write into a user's directory needs no link.
    replace(&host, "home/conf/new/x").unwrap();
    assert_eq!(fs::read_to_string(at("home/conf/new/x")).unwrap(), "new");
}

#[test]
fn a_link_of_another_user_in_a_directory_of_root_is_not_followed() {
    let Some(host) = host() else { return };
    let link = host.path().join("etc/theirs");
    symlink("shadow", &link).unwrap();
    lchown(&link, Some(OTHER_USER), None).unwrap();
    let error = replace(&host, "etc/theirs").unwrap_err();
    assert!(error.message.contains("etc/theirs is a symbolic link"), "{error}");
    assert_eq!(fs::read_to_string(host.path().join("etc/shadow")).unwrap(), "root's");
}

#[test]
fn links_that_lead_in_a_circle_or_to_the_root_are_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    symlink("b", at("a")).unwrap();
    symlink("a", at("b")).unwrap();
    symlink("/", at("root")).unwrap();
    for name in ["a", "b/x", "root"] {
        let written = atomic::replace(&at(name), b"new", Access::of_mode(0o600));
        assert!(written.is_err(), "{name}");
    }
}
