//! Changes of the configuration of a host in place: units, etcd's image, commands and keys.

use std::collections::BTreeMap;

use refit_agent::host::Evidence;
use refit_kinds::refit::{EtcdArgs, KeyArgs, PlannedUser, UnitArgs, UnitVerb};
use serde::{Deserialize, Serialize};

use crate::state::{HostState, manifest, manifest_path};

/// What such changes did that no file shows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InPlace {
    /// How often each unit was restarted, by its name.
    #[serde(default)]
    pub restarts: BTreeMap<String, u32>,
    /// How often each unit was reloaded, by its name.
    #[serde(default)]
    pub reloads: BTreeMap<String, u32>,
    /// The commands that ran, in order.
    #[serde(default)]
    pub commands: Vec<String>,
}

/// Path of the file with the public keys of a user.
pub fn keys_path(user: &str) -> String {
    format!("/home/{user}/.ssh/authorized_keys")
}

/// Type and text of a key, without its comment.
fn key_of(line: &str) -> Vec<&str> {
    line.split_whitespace().take(2).collect()
}

impl HostState {
    pub(super) fn act_on_units(&mut self, args: &UnitArgs) -> String {
        for action in &args.units {
            let counts = match action.verb {
                UnitVerb::Reload => &mut self.in_place.reloads,
                UnitVerb::Restart => &mut self.in_place.restarts,
            };
            *counts.entry(action.unit.clone()).or_default() += 1;
        }
        format!("{} units acted on", args.units.len())
    }

    /// The image that etcd is to have; `None` without a static pod of etcd.
    fn etcd_image(&self, args: &EtcdArgs) -> Option<String> {
        let found = self.static_pod_image("etcd")?;
        let name = match &*args.image_repository {
            "" => found.rsplit_once(':').map_or(found.clone(), |(name, _)| name.to_owned()),
            repository => format!("{repository}/etcd"),
        };
        Some(format!("{name}:{}", args.image_tag))
    }

    pub(super) fn upgrade_etcd(&mut self, args: &EtcdArgs) -> Result<String, String> {
        let image = self.etcd_image(args).ok_or("etcd is not a static pod of this host")?;
        self.root.insert(manifest_path("etcd"), manifest("etcd", &image));
        Ok(format!("etcd runs with {image}"))
    }

    pub(super) fn has_etcd(&self, args: &EtcdArgs) -> Evidence {
        let wanted = self.etcd_image(args);
        let has_it = wanted.is_some() && self.static_pod_image("etcd") == wanted;
        Evidence::from_check(has_it, || "etcd does not have the planned image".to_owned())
    }

    /// Adds the public keys of a user of a step `files`.
    pub(super) fn add_keys(&mut self, step: &str, user: &PlannedUser) {
        if user.ssh_authorized_keys.is_empty() {
            return;
        }
        let path = keys_path(&user.name);
        self.keep(step, &path);
        let text = self.root.entry(path).or_default();
        for key in &user.ssh_authorized_keys {
            if !text.lines().any(|line| line == key) {
                text.push_str(key);
                text.push('\n');
            }
        }
    }

    pub(super) fn revoke_keys(&mut self, step: &str, args: &KeyArgs) -> String {
        for revoked in &args.users {
            let path = keys_path(&revoked.user);
            let Some(text) = self.root.get(&path).cloned() else { continue };
            let is_revoked = |line: &&str| revoked.keys.iter().any(|k| key_of(k) == key_of(line));
            let left = text.split_inclusive('\n').filter(|line| !is_revoked(line)).collect();
            self.keep(step, &path);
            self.root.insert(path, left);
        }
        format!("keys of {} users revoked", args.users.len())
    }

    pub(super) fn has_revoked(&self, args: &KeyArgs) -> Evidence {
        let has_key = |user: &str, key: &str| {
            let text = self.root.get(&keys_path(user));
            text.is_some_and(|text| text.lines().any(|line| key_of(line) == key_of(key)))
        };
        let left = args.users.iter().find(|one| one.keys.iter().any(|k| has_key(&one.user, k)));
        Evidence::from_check(left.is_none(), || {
            format!("user {} still has a key", left.map_or("", |left| left.user.as_str()))
        })
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use refit_agent::host::{Command, Job, Since, Undo};
    use refit_kinds::refit::{CommandArgs, FileArgs, HostStep, RevokedKeys, UnitAction};

    use super::*;

    fn host(control_plane: bool) -> HostState {
        HostState::new("n", control_plane, "v1.34.2", Timestamp::UNIX_EPOCH)
    }

    fn look(host: &HostState, step: &str, command: &Command) -> Evidence {
        let since = Since { at: Timestamp::UNIX_EPOCH, boot_id: host.boot_id.clone() };
        host.look(&Job::new("p", "u", step, command.clone()), &since)
    }

    /// Carries out a step from its start to its end, and asserts that its work is detected afterwards only.
    fn done(host: &mut HostState, step: impl Into<Command>) {
        let command = step.into();
        let id = command.name();
        assert_ne!(look(host, id, &command), Evidence::Done, "{id}");
        host.start(&Job::new("p", id, id, command.clone()), Timestamp::UNIX_EPOCH);
        host.tick(host.units[id].ends);
        assert_eq!(look(host, id, &command), Evidence::Done, "{id}: {:?}", host.poll(id));
    }

    #[test]
    fn actions_on_units_and_commands_are_recorded() {
        let action = |unit: &str, verb| UnitAction { unit: unit.to_owned(), verb };
        let units = vec![
            action("a.service", UnitVerb::Reload),
            action("b.service", UnitVerb::Restart),
            action("b.service", UnitVerb::Restart),
        ];
        let mut host = host(false);
        done(&mut host, HostStep::UnitActions(UnitArgs { units: units.clone() }));
        assert_eq!(host.in_place.reloads, BTreeMap::from([("a.service".to_owned(), 1)]));
        assert_eq!(host.in_place.restarts, BTreeMap::from([("b.service".to_owned(), 2)]));
        done(&mut host, Undo::Units(UnitArgs { units }));
        assert_eq!(host.in_place.restarts, BTreeMap::from([("b.service".to_owned(), 4)]));
        let commands = vec!["echo a".to_owned(), "echo b".to_owned()];
        done(&mut host, HostStep::Commands(CommandArgs { commands: commands.clone() }));
        assert_eq!(host.in_place.commands, commands);
    }

    #[test]
    fn etcd_is_reported_with_its_new_image() {
        let etcd = |repository: &str| {
            let (image_repository, image_tag) = (repository.to_owned(), "3.6.7-0".to_owned());
            HostStep::EtcdUpgrade(EtcdArgs { image_repository, image_tag })
        };
        for (repository, image) in
            [("", "registry.k8s.io/etcd:3.6.7-0"), ("r.example", "r.example/etcd:3.6.7-0")]
        {
            let mut host = host(true);
            done(&mut host, etcd(repository));
            assert_eq!(host.facts().static_pods["etcd"], image);
        }
        let mut worker = host(false);
        let error = worker.carry_out("etcd-upgrade", &etcd("").into()).unwrap_err();
        assert!(error.contains("not a static pod"), "{error}");
    }

    #[test]
    fn keys_are_added_revoked_and_restored() {
        let user = "deploy".to_owned();
        let added = PlannedUser {
            name: user.clone(),
            ssh_authorized_keys: vec!["ssh-rsa A a".to_owned(), "ssh-rsa B b".to_owned()],
            ..PlannedUser::default()
        };
        let mut host = host(false);
        let files = FileArgs { users: vec![added], ..FileArgs::default() };
        host.carry_out("files", &HostStep::Files(files).into()).unwrap();
        let keys = vec!["ssh-rsa A other-comment".to_owned()];
        done(&mut host, HostStep::KeysRevoke(KeyArgs { users: vec![RevokedKeys { user, keys }] }));
        assert_eq!(host.root[&keys_path("deploy")], "ssh-rsa B b\n");
        let step = "keys-revoke".to_owned();
        host.carry_out("undo", &Undo::Files { step }.into()).unwrap();
        assert_eq!(host.root[&keys_path("deploy")], "ssh-rsa A a\nssh-rsa B b\n");
    }
}
