//! Which users of a KubeadmConfig a running host can get.

use std::collections::{BTreeMap, BTreeSet};

use refit_cluster_api::host_configuration::ConfigUser;
use refit_kinds::refit::{ChangedConfiguration, ConfigurationPart, RevokedKeys};

use super::{ConfigurationRules, with_actions};
use crate::node::actions_of_user;

/// The users that differ, or why the host cannot get them.
pub(super) fn changed(
    from: &[ConfigUser],
    to: &[ConfigUser],
    rules: &ConfigurationRules,
) -> Result<ChangedConfiguration, String> {
    let (before, after) = (by_name(from)?, by_name(to)?);
    if let Some(name) = before.keys().find(|name| !after.contains_key(*name)) {
        return Err(format!(
            "files and processes of user {name} may remain, so the user is not removed"
        ));
    }
    let differs = |user: &&ConfigUser| before.get(user.name.as_str()) != Some(user);
    let mut users: Vec<&ConfigUser> = to.iter().filter(differs).collect();
    if users.is_empty() {
        users = to.iter().collect();
    }
    let mut part = ConfigurationPart::default();
    for user in users {
        match before.get(user.name.as_str()) {
            None => is_new(user)?,
            Some(old) => part.revoked_keys.extend(updated(old, user)?),
        }
        part.users.push(user.name.clone());
    }
    part.users.sort();
    with_actions(part, actions_of_user(rules.policy.as_ref()))
}

fn by_name(users: &[ConfigUser]) -> Result<BTreeMap<&str, &ConfigUser>, String> {
    let mut all = BTreeMap::new();
    for user in users {
        if all.insert(user.name.as_str(), user).is_some() {
            return Err(format!("user {} is listed twice", user.name));
        }
    }
    Ok(all)
}

/// A new user has only what the agent sets.
fn is_new(user: &ConfigUser) -> Result<(), String> {
    match user.others.keys().next() {
        Some(field) => Err(only_new_machines(user, field)),
        None => Ok(()),
    }
}

fn only_new_machines(user: &ConfigUser, field: &str) -> String {
    format!("user {} has {field}, which only a new machine gets", user.name)
}

/// The keys that an existing user loses; the error is a change that cannot be made.
fn updated(old: &ConfigUser, new: &ConfigUser) -> Result<Option<RevokedKeys>, String> {
    let name = &new.name;
    let fields: BTreeSet<&String> = old.others.keys().chain(new.others.keys()).collect();
    if let Some(field) =
        fields.into_iter().find(|field| old.others.get(*field) != new.others.get(*field))
    {
        return Err(only_new_machines(new, field));
    }
    let groups = |user: &ConfigUser| groups_of(user).map(str::to_owned).collect::<BTreeSet<_>>();
    let is_kept = |old: &String, new: &String| old == new || !new.is_empty();
    let refused = [
        (!is_kept(&old.gecos, &new.gecos), "its gecos field is not removed"),
        (!is_kept(&old.shell, &new.shell), "the shell that it had before is not known"),
        (old.home_dir != new.home_dir, "its home directory is not moved"),
        (
            old.lock_password == Some(true) && new.lock_password != Some(true),
            "its password is not unlocked",
        ),
        (
            old.sudo != new.sudo && !old.sudo.is_empty(),
            "its old rule for sudo is in a file of its image, and would still apply",
        ),
        (
            !groups(old).is_subset(&groups(new)),
            "it is not removed from groups, which other programs may have put it in",
        ),
    ];
    if let Some((_, why)) = refused.into_iter().find(|(is_refused, _)| *is_refused) {
        return Err(format!("user {name}: {why}"));
    }
    let keys = old.ssh_authorized_keys.iter().filter(|key| !new.ssh_authorized_keys.contains(key));
    let keys: Vec<String> = keys.cloned().collect();
    Ok((!keys.is_empty()).then(|| RevokedKeys { user: name.clone(), keys }))
}

/// The groups of a user.
pub(super) fn groups_of(user: &ConfigUser) -> impl Iterator<Item = &str> {
    user.groups.split(',').map(str::trim).filter(|group| !group.is_empty())
}
