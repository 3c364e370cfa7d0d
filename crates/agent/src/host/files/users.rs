//! Users of the host, as declared in a KubeadmConfig. Users are created and updated, never removed:
//! a rollback leaves a user, because files may belong to it by then.

use std::{
    fs::Metadata,
    path::{Path, PathBuf},
};

use refit_kinds::refit::PlannedUser;

use super::{
    atomic::{self, Access},
    keep, restore_labels,
};
use crate::host::{Program, Site, work::WorkError};

/// uid and gid of a user, if it exists.
pub(super) fn find(site: &Site, name: &str) -> Option<(u32, u32)> {
    let text = site.read("/etc/passwd");
    let mut fields = text.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(name)).then_some(fields)
    })?;
    Some((fields.nth(1)?.parse().ok()?, fields.next()?.parse().ok()?))
}

/// gid of a group, if it exists.
pub(super) fn group(site: &Site, name: &str) -> Option<u32> {
    let text = site.read("/etc/group");
    text.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(name)).then(|| fields.nth(1)?.parse().ok())?
    })
}

/// Home directory of a user, if it exists.
pub(crate) fn home(site: &Site, name: &str) -> Option<String> {
    let text = site.read("/etc/passwd");
    text.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(name)).then(|| fields.nth(4).map(str::to_owned))?
    })
}

/// Creates a user, or updates an existing one.
pub(super) async fn make(
    site: &Site,
    plan: &str,
    step: &str,
    user: &PlannedUser,
) -> Result<(), WorkError> {
    check(user)?;
    for name in &user.groups {
        if group(site, name).is_none() {
            site.run(&site.call(Program::Groupadd, [name])).await?;
        }
    }
    let mut arguments = Vec::new();
    let mut option = |name: &str, value: &str| {
        if !value.is_empty() {
            arguments.push(format!("{name}={value}"));
        }
    };
    option("--comment", &user.gecos);
    option("--shell", &user.shell);
    option("--groups", &user.groups.join(","));
    let there = find(site, &user.name).is_some();
    if there {
        if !user.groups.is_empty() {
            arguments.push("--append".to_owned());
        }
        if !arguments.is_empty() {
            arguments.push(user.name.clone());
            site.run(&site.call(Program::Usermod, arguments)).await?;
        }
    } else {
        option("--home-dir", &user.home_dir);
        // A new user has no password, so password login is disabled regardless of lockPassword.
        arguments.push("--create-home".to_owned());
        arguments.push(user.name.clone());
        site.run(&site.call(Program::Useradd, arguments)).await?;
    }
    if user.lock_password && there {
        site.run(&site.call(Program::Usermod, ["--lock", &user.name])).await?;
    }
    sudo(site, plan, step, user)?;
    if let Some(directory) = keys(site, plan, step, user)? {
        restore_labels(site, &directory).await;
    }
    Ok(())
}

fn check(user: &PlannedUser) -> Result<(), WorkError> {
    let word = |text: &str| {
        text.starts_with(|c: char| c.is_ascii_lowercase() || c == '_')
            && text
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_' || b == b'-')
    };
    let path =
        |text: &str| text.is_empty() || (text.starts_with('/') && !text.contains([':', '\n']));
    let line = |text: &str| !text.contains(['\n', '\r', '\0', ':']);
    let key = |text: &String| !text.contains(['\n', '\r', '\0']);
    let good = word(&user.name)
        && user.groups.iter().all(|name| word(name))
        && path(&user.home_dir)
        && path(&user.shell)
        && line(&user.gecos)
        && !user.sudo.contains(['\n', '\r', '\0'])
        && user.ssh_authorized_keys.iter().all(key);
    if good {
        Ok(())
    } else {
        Err(WorkError::permanent(format!(
            "user {:?} has a field that /etc/passwd, sudoers or authorized_keys cannot contain",
            user.name
        )))
    }
}

fn sudo(site: &Site, plan: &str, step: &str, user: &PlannedUser) -> Result<(), WorkError> {
    if user.sudo.is_empty() {
        return Ok(());
    }
    let path = format!("/etc/sudoers.d/refit-{}", user.name);
    let text = format!("{} {}\n", user.name, user.sudo);
    keep::keep(site, plan, step, &path)?;
    atomic::replace(&site.path(&path), text.as_bytes(), Access::of_mode(0o440))?;
    Ok(())
}

/// Adds keys that may log in, and returns the directory of keys if there are any.
fn keys(
    site: &Site,
    plan: &str,
    step: &str,
    user: &PlannedUser,
) -> Result<Option<PathBuf>, WorkError> {
    if user.ssh_authorized_keys.is_empty() {
        return Ok(None);
    }
    let (Some((uid, gid)), Some(home)) = (find(site, &user.name), home(site, &user.name)) else {
        let name = &user.name;
        return Err(WorkError::retriable(format!("created user {name}, but it does not exist")));
    };
    let (path, found) = key_file(site, &home)?;
    let file = site.path(&path);
    let mut text = found.map_or_else(String::new, |(text, _)| text);
    for key in &user.ssh_authorized_keys {
        if !text.lines().any(|line| line == key) {
            if !text.is_empty() && !text.ends_with('\n') {
                text.push('\n');
            }
            text.push_str(key);
            text.push('\n');
        }
    }
    keep::keep(site, plan, step, &path)?;
    let access = Access { mode: 0o600, uid: Some(uid), gid: Some(gid) };
    atomic::replace(&file, text.as_bytes(), access)?;
    let directory = Access { mode: 0o700, ..access };
    if let Some(parent) = file.parent() {
        atomic::own_directory(parent, directory)?;
    }
    Ok(file.parent().map(Path::to_owned))
}

/// Path of the file with a user's public keys, with its text and metadata if it exists.
pub(super) fn key_file(
    site: &Site,
    home: &str,
) -> Result<(String, Option<(String, Metadata)>), WorkError> {
    let path = format!("{home}/.ssh/authorized_keys");
    // The owner of the home directory can create links in it, which root must not follow.
    for place in [format!("{home}/.ssh"), path.clone()] {
        if std::fs::symlink_metadata(site.path(&place)).is_ok_and(|meta| meta.is_symlink()) {
            return Err(WorkError::needs_person(format!(
                "{place} is a symbolic link, and keys are not changed through a link; remove it"
            )));
        }
    }
    let Some((text, file)) = atomic::read(&site.path(&path))? else {
        return Ok((path, None));
    };
    match String::from_utf8(text) {
        Ok(text) => Ok((path, Some((text, file)))),
        Err(_) => Err(WorkError::needs_person(format!(
            "{path} is not a text file, so its keys cannot be changed; replace it"
        ))),
    }
}
