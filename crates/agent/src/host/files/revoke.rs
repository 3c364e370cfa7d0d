//! Public keys that are removed from a user's `authorized_keys`.

use refit_kinds::refit::{KeyArgs, RevokedKeys};

use super::{Access, Evidence, Site, atomic, is_seen, keep, restore_labels, users};
use crate::host::work::WorkError;

/// Start of the names of key types, those of hardware keys included.
const KEY_TYPES: [&str; 3] = ["ssh-", "ecdsa-", "sk-"];

/// Removes the keys. A user or a file that does not exist has none.
pub(crate) async fn apply(
    site: &Site,
    plan: &str,
    step: &str,
    args: &KeyArgs,
) -> Result<(), WorkError> {
    for RevokedKeys { user, keys } in &args.users {
        let Some(home) = users::home(site, user) else {
            site.log(&format!("user {user} does not exist, and so has no keys"));
            continue;
        };
        let (path, Some((text, file))) = users::key_file(site, &home)? else { continue };
        let left = without(&text, keys);
        if left == text {
            continue;
        }
        keep::keep(site, plan, step, &path)?;
        let on_host = site.path(&path);
        atomic::replace(&on_host, left.as_bytes(), Access::of(&file))?;
        restore_labels(site, &on_host).await;
        site.log(&format!("removed keys from {path}"));
    }
    Ok(())
}

/// Whether the keys are removed, as far as the agent's service sees the files.
pub(crate) fn check(site: &Site, args: &KeyArgs) -> Evidence {
    let left = args.users.iter().find(|RevokedKeys { user, keys }| {
        let home = users::home(site, user).filter(|home| is_seen(site, home.as_ref()));
        let file = home.and_then(|home| users::key_file(site, &home).ok()?.1);
        file.is_some_and(|(text, _)| without(&text, keys) != text)
    });
    Evidence::from_check(left.is_none(), || {
        let user = left.map_or("", |left| left.user.as_str());
        format!("user {user} still has a key that the plan revokes")
    })
}

/// The text of `authorized_keys` without some keys.
fn without(text: &str, keys: &[String]) -> String {
    let is_revoked = |line: &str| keys.iter().any(|key| is_same(line, key));
    text.split_inclusive('\n').filter(|line| !is_revoked(line)).collect()
}

/// Whether two lines hold the same key. Lines without one are compared as they are.
fn is_same(line: &str, key: &str) -> bool {
    match (key_of(line), key_of(key)) {
        (Some(found), Some(key)) => found == key,
        (None, None) => !key.trim().is_empty() && line.trim() == key.trim(),
        (Some(_), None) | (None, Some(_)) => false,
    }
}

/// Type and base64 text of the key in a line of `authorized_keys` (sshd(8)): options may precede it, and a comment may
/// follow.
fn key_of(line: &str) -> Option<(&str, &str)> {
    fn at_start(text: &str) -> Option<(&str, &str)> {
        let mut words = text.split_whitespace();
        let type_ = words.next()?;
        let is_type = KEY_TYPES.iter().any(|start| type_.starts_with(start));
        is_type.then_some(())?;
        Some((type_, words.next()?))
    }
    let line = line.trim();
    if line.starts_with('#') {
        return None;
    }
    at_start(line).or_else(|| at_start(after_options(line)))
}

/// What follows the options of a line: they end with the first blank outside of quotes. A backslash escapes a quote.
fn after_options(line: &str) -> &str {
    let (mut is_quoted, mut before) = (false, ' ');
    let end = line.find(|c: char| {
        is_quoted ^= c == '"' && before != '\\';
        before = c;
        !is_quoted && (c == ' ' || c == '\t')
    });
    end.map_or("", |end| &line[end..])
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _};

    use super::*;
    use crate::host::scripted::ScriptedHost;

    const ALICE: &str = "ssh-ed25519 AAAAalice alice@old";
    const BOB: &str = "ssh-rsa AAAAbob bob";
    const KEYS: &str = "/home/deploy/.ssh/authorized_keys";

    /// A host with the user `deploy`, who has these lines of keys.
    fn host(home: &str, text: &str) -> ScriptedHost {
        let host = ScriptedHost::with_directories(&["/etc", &format!("{home}/.ssh")]);
        host.write("/etc/passwd", format!("deploy:x:1000:1000::{home}:/bin/sh\n"));
        host.write(&format!("{home}/.ssh/authorized_keys"), text);
        host
    }

    fn args(user: &str, key: &str) -> KeyArgs {
        let keys = vec![key.to_owned()];
        KeyArgs { users: vec![RevokedKeys { user: user.to_owned(), keys }] }
    }

    #[tokio::test]
    async fn a_key_is_removed_whatever_its_options_and_comment_and_comes_back_on_rollback() {
        let options = "from=\"10.0.0.0/8, \\\" x\",no-pty ssh-ed25519 AAAAalice another comment";
        let text = format!("# {ALICE}\n{ALICE}\n\n{options}\n{BOB}\nssh-rsa AAAAalice\n");
        let host = host("/home/deploy", &text);
        fs::set_permissions(host.site.path(KEYS), fs::Permissions::from_mode(0o640)).unwrap();
        let revoked = args("deploy", "ssh-ed25519 AAAAalice");
        // Twice: a retry does not keep what the first attempt has changed.
        for _ in 0..2 {
            apply(&host.site, "p", "keys-revoke", &revoked).await.unwrap();
            let left = format!("# {ALICE}\n\n{BOB}\nssh-rsa AAAAalice\n");
            assert_eq!(host.site.read(KEYS), left);
        }
        let mode = fs::metadata(host.site.path(KEYS)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o640);
        keep::put_back(&host.site, "p", "keys-revoke").unwrap();
        assert_eq!(host.site.read(KEYS), text);
    }

    #[tokio::test]
    async fn a_user_without_keys_has_none_to_remove() {
        let host = host("/home/deploy", BOB);
        apply(&host.site, "p", "s", &args("nosuch", BOB)).await.unwrap();
        apply(&host.site, "p", "s", &args("deploy", ALICE)).await.unwrap();
        assert_eq!(host.site.read(KEYS), BOB);
        fs::remove_file(host.site.path(KEYS)).unwrap();
        apply(&host.site, "p", "s", &args("deploy", BOB)).await.unwrap();
        assert!(!host.site.path(KEYS).exists());
    }

    #[tokio::test]
    async fn the_service_checks_only_the_homes_that_it_sees() {
        for (home, is_seen) in [("/home/deploy", false), ("/srv/deploy", true)] {
            let host = host(home, BOB);
            let found = check(&host.site, &args("deploy", BOB));
            assert_eq!(found != Evidence::Done, is_seen, "{home}: {found:?}");
            apply(&host.site, "p", "s", &args("deploy", BOB)).await.unwrap();
            assert_eq!(check(&host.site, &args("deploy", BOB)), Evidence::Done);
        }
    }

    #[tokio::test]
    async fn keys_are_not_removed_through_a_link() {
        let host = host("/home/deploy", BOB);
        host.write("/etc/keys", BOB);
        fs::remove_file(host.site.path(KEYS)).unwrap();
        std::os::unix::fs::symlink(host.site.path("/etc/keys"), host.site.path(KEYS)).unwrap();
        let error = apply(&host.site, "p", "s", &args("deploy", BOB)).await.unwrap_err();
        assert!(error.message.contains("is a symbolic link"), "{error}");
        assert_eq!(host.site.read("/etc/keys"), BOB);
    }

    #[test]
    fn a_line_that_is_no_key_is_compared_as_it_is() {
        let without = |text: &str, key: &str| without(text, &[key.to_owned()]);
        assert_eq!(without("rubbish\nmore\n", " rubbish "), "more\n");
        assert_eq!(without("\n\n", ""), "\n\n");
        assert_eq!(without("ssh-rsa\n", ALICE), "ssh-rsa\n");
    }
}
