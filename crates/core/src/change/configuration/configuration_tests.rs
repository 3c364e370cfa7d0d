use refit_kinds::refit::{
    ConfigurationField, HostPart, KubeletArg, NodeAction, RevokedKeys, SecretSum, UnitAction,
    UnitVerb,
};
use serde_json::{Value, json};

use super::*;
use crate::change::{
    Coverage, Level, Objects, Updater, cover,
    testing::leaving,
    {Claim, ClaimPath},
};

const SUM: &str = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";

fn machine(bootstrap: &Value) -> Objects {
    let object = |group: &str, kind: &str, spec: &Value| {
        json!({"apiVersion": format!("{group}/v1beta2"), "kind": kind,
               "metadata": {"name": "m"}, "spec": spec})
    };
    Objects {
        owner: object("cluster.x-k8s.io", "Machine", &json!({"version": "v1.35.0"})),
        infrastructure: object("infrastructure.cluster.x-k8s.io", "M", &json!({})),
        bootstrap: Some(object("bootstrap.cluster.x-k8s.io", "KubeadmConfig", bootstrap)),
    }
}

fn set(bootstrap: &Value) -> Objects {
    let wrap = |group: &str, kind: &str, spec: &Value| {
        json!({"apiVersion": format!("{group}/v1beta2"), "kind": kind,
               "metadata": {"name": "s"}, "spec": {"template": {"spec": spec}}})
    };
    Objects {
        owner: wrap("cluster.x-k8s.io", "MachineSet", &json!({"version": "v1.35.0"})),
        infrastructure: wrap("infrastructure.cluster.x-k8s.io", "MTemplate", &json!({})),
        bootstrap: Some(wrap("bootstrap.cluster.x-k8s.io", "KubeadmConfigTemplate", bootstrap)),
    }
}

fn updater(rules: ConfigurationRules) -> Updater {
    Updater::Configuration(ConfigurationUpdater { rules, ..ConfigurationUpdater::default() })
}

/// What becomes of a change of the KubeadmConfig of a Machine.
fn covered(from: &Value, to: &Value, rules: &ConfigurationRules) -> Coverage {
    let updaters = [&Updater::Kubeadm, &updater(rules.clone())];
    cover(Level::Machine, &machine(from), &machine(to), false, &updaters)
}

/// What is applied of a change that is covered whole.
fn applied(from: &Value, to: &Value, rules: &ConfigurationRules) -> ChangedConfiguration {
    let coverage = covered(from, to, rules);
    assert!(coverage.is_complete(), "{:?}", coverage.lines());
    coverage.configuration.unwrap()
}

/// The reason why a change of a field is uncovered.
fn refused(from: &Value, to: &Value, rules: &ConfigurationRules) -> String {
    let lines = covered(from, to, rules).lines();
    let (_, why) = lines[0].rsplit_once("(kubeadm-config: ").unwrap_or_else(|| panic!("{lines:?}"));
    why.trim_end_matches(')').to_owned()
}

fn file(path: &str, content: &str) -> Value {
    json!({"path": path, "content": content})
}

fn files(all: &[Value]) -> Value {
    json!({"files": all})
}

#[test]
fn a_file_is_written_without_any_disruption() {
    let rules = ConfigurationRules::default();
    let motd = |content: &str| files(&[file("/etc/motd", content), file("/etc/other", "x")]);
    let changed = applied(&motd("a"), &motd("b"), &rules);
    assert_eq!(changed.part.files, ["/etc/motd"]);
    assert_eq!(changed.disruption, Disruption::None);
    // A new one, too, also where there were none.
    let changed = applied(&json!({}), &files(&[file("/etc/new", "x")]), &rules);
    assert_eq!(
        (changed.part.files.as_slice(), changed.disruption),
        (&["/etc/new".to_owned()][..], Disruption::None)
    );
}

#[test]
fn files_of_a_template_are_written_to_the_machines_of_a_set() {
    let side = |content: &str| set(&files(&[file("/etc/motd", content)]));
    let updaters = [&Updater::Kubeadm, &updater(ConfigurationRules::default())];
    let coverage = cover(Level::MachineSet, &side("a"), &side("b"), false, &updaters);
    assert!(coverage.is_complete(), "{:?}", coverage.lines());
    assert_eq!(coverage.configuration.unwrap().part.files, ["/etc/motd"]);
    assert!(
        !coverage.claimed.is_empty()
            && coverage.claimed.iter().all(|one| one.updater == "kubeadm-config")
    );
}

#[test]
fn a_file_disturbs_by_its_path_and_by_the_policy() {
    let rules = ConfigurationRules::default();
    let change = |path: &str, rules: &ConfigurationRules| {
        applied(&files(&[file(path, "a")]), &files(&[file(path, "b")]), rules)
    };
    let unit = change("/etc/systemd/system/exporter.service", &rules);
    let restart = UnitAction { unit: "exporter.service".to_owned(), verb: UnitVerb::Restart };
    assert_eq!((unit.part.units, unit.disruption), (vec![restart], Disruption::Restart));
    let kubelet = change("/var/lib/kubelet/config.yaml", &rules);
    assert!(kubelet.part.restarts_kubelet && kubelet.disruption == Disruption::Restart);
    let policy = serde_json::from_value(json!({
        "appliesTo": {"all": {}},
        "files": [{"path": "/etc/motd", "actions": [{"drain": {}}, {"reload": "exporter.service"}]}],
    }));
    let strict = ConfigurationRules { policy: Some(policy.unwrap()), ..rules };
    let reload = UnitAction { unit: "exporter.service".to_owned(), verb: UnitVerb::Reload };
    let motd = change("/etc/motd", &strict);
    assert_eq!((motd.part.units, motd.disruption), (vec![reload], Disruption::Drain));
    assert!(matches!(&strict.policy.unwrap().files[0].actions[0], NodeAction::Drain {}));
}

#[test]
fn files_that_no_running_host_can_get_are_uncovered_with_the_reason() {
    let rules = ConfigurationRules::default();
    let was = files(&[file("/etc/a", "x")]);
    let with = |more: &Value| {
        let mut changed = file("/etc/a", "y");
        json_patch::merge(&mut changed, more);
        files(&[changed])
    };
    for (to, why) in [
        (files(&[]), "what a host had at /etc/a before is not known"),
        (with(&json!({"append": true})), "file /etc/a is appended to what its image has"),
        (
            with(&json!({"contentFormat": "go-template"})),
            "the content of file /etc/a is a template",
        ),
        (with(&json!({"encoding": "rot13"})), "file /etc/a has an unknown encoding"),
        (
            with(&json!({"content": null, "contentFrom": {"secret": {"name": "s", "key": "k"}}})),
            "file /etc/a has the content of Secret s, and nothing shows whether a host has it: annotate the owner with \
             refit.dev/secret-sha256: s/k=SHA256",
        ),
        (files(&[file("/etc/a", "x"), file("/etc/a", "z")]), "file /etc/a is listed twice"),
        (files(&[file("/etc/a", "x"), file("etc/b", "z")]), "\"etc/b\" is not the absolute path"),
    ] {
        let got = refused(&was, &to, &rules);
        assert!(got.starts_with(why), "{got}");
    }
    let ignition = |content: &str| {
        let mut config = files(&[file("/etc/a", content)]);
        config["format"] = json!("ignition");
        config
    };
    let got = refused(&ignition("x"), &ignition("y"), &rules);
    assert_eq!(got, "Ignition writes to a host only when it is created");
}

#[test]
fn a_file_gets_the_content_of_a_secret_whose_sum_is_stated() {
    let secrets = BTreeMap::from([(("s".to_owned(), "k".to_owned()), SUM.to_owned())]);
    let rules = ConfigurationRules { secrets, ..ConfigurationRules::default() };
    let to =
        files(&[json!({"path": "/etc/a", "contentFrom": {"secret": {"name": "s", "key": "k"}}})]);
    let part = applied(&json!({}), &to, &rules).part;
    let sum = SecretSum { name: "s".to_owned(), key: "k".to_owned(), sha256: SUM.to_owned() };
    assert_eq!(part.secrets, [sum]);
    let file = planned(&to, &part).unwrap().files.unwrap().files.remove(0);
    assert_eq!((file.content.as_str(), file.sha256.as_str()), ("", SUM));
}

#[test]
fn users_are_made_and_keys_are_revoked() {
    let rules = ConfigurationRules::default();
    let user = |more: &Value| {
        let mut user = json!({"name": "ops", "groups": "adm, wheel", "sshAuthorizedKeys": ["ssh-ed25519 A", "ssh-ed25519 B"]});
        json_patch::merge(&mut user, more);
        json!({"users": [user]})
    };
    let was = user(&json!({}));
    let changed = applied(
        &was,
        &user(&json!({"sshAuthorizedKeys": ["ssh-ed25519 B", "ssh-ed25519 C"]})),
        &rules,
    );
    let revoked = RevokedKeys { user: "ops".to_owned(), keys: vec!["ssh-ed25519 A".to_owned()] };
    assert_eq!(
        (changed.part.users, changed.part.revoked_keys),
        (vec!["ops".to_owned()], vec![revoked])
    );
    assert_eq!(changed.disruption, Disruption::None);
    for (to, why) in [
        (json!({}), "files and processes of user ops may remain"),
        (user(&json!({"passwd": "x"})), "user ops has passwd, which only a new machine gets"),
        (user(&json!({"groups": "adm"})), "user ops: it is not removed from groups"),
        (user(&json!({"homeDir": "/x"})), "user ops: its home directory is not moved"),
    ] {
        let got = refused(&was, &to, &rules);
        assert!(got.starts_with(why), "{got}");
    }
    let sudo = user(&json!({"sudo": "ALL=(ALL) ALL"}));
    assert_eq!(applied(&was, &sudo, &rules).part.users, ["ops"]);
    assert!(refused(&sudo, &was, &rules).contains("its old rule for sudo"));
}

#[test]
fn time_servers_are_replaced_without_any_disruption() {
    let rules = ConfigurationRules::default();
    let ntp = |servers: &[&str]| json!({"ntp": {"servers": servers}});
    let changed = applied(&ntp(&["a"]), &ntp(&["b", "c"]), &rules);
    assert_eq!(
        (changed.part.fields.as_slice(), changed.disruption),
        (&[ConfigurationField::Ntp][..], Disruption::None)
    );
    let wanted = planned(&ntp(&["b"]), &changed.part).unwrap().ntp.unwrap();
    assert!(wanted.enabled && wanted.servers == ["b"]);
    assert!(refused(&ntp(&["a"]), &json!({}), &rules).contains("are not known"));
}

/// Flags of the kubelet of a machine that joined its cluster.
fn flags(all: &[(&str, &str)]) -> Value {
    let args: Vec<Value> =
        all.iter().map(|(name, value)| json!({"name": name, "value": value})).collect();
    json!({"joinConfiguration": {"nodeRegistration": {"kubeletExtraArgs": args, "name": "n"}}})
}

#[test]
fn flags_of_the_kubelet_are_set_and_removed_with_a_restart() {
    let rules = ConfigurationRules::default();
    let to = flags(&[("v", "4"), ("max-pods", "50")]);
    let changed = applied(&flags(&[("v", "2"), ("feature-gates", "A=true")]), &to, &rules);
    assert_eq!(changed.part.kubelet_args, ["feature-gates", "max-pods", "v"]);
    assert_eq!(changed.disruption, Disruption::Restart);
    let planned = planned(&to, &changed.part).unwrap().kubelet.unwrap();
    assert_eq!(planned.remove_args, ["feature-gates"]);
    let set = |name: &str, value: &str| KubeletArg { name: name.into(), value: value.into() };
    assert_eq!(planned.extra_args, [set("v", "4"), set("max-pods", "50")]);
    for (to, why) in [
        (
            flags(&[("node-labels", "a=b")]),
            "a kubelet uses its flag node-labels only when it registers",
        ),
        (flags(&[("v", "a b")]), "the flag \"v\" of the kubelet, or its value, cannot be written"),
        (flags(&[("v", "1"), ("v", "2")]), "a flag of the kubelet is listed twice"),
    ] {
        let got = refused(&flags(&[]), &to, &rules);
        assert!(got.starts_with(why), "{got}");
    }
}

#[test]
fn flags_of_a_machine_that_initialised_its_cluster_are_compared_with_those_of_the_join() {
    let from = json!({"initConfiguration": {"nodeRegistration": {
        "kubeletExtraArgs": [{"name": "v", "value": "2"}, {"name": "max-pods", "value": "50"}], "name": "n"}}});
    let changed = applied(&from, &flags(&[("v", "4")]), &ConfigurationRules::default());
    assert_eq!(changed.part.kubelet_args, ["max-pods", "v"]);
}

#[test]
fn a_registration_that_changes_more_than_flags_is_not_covered() {
    let mut to = flags(&[("v", "4")]);
    to["joinConfiguration"]["nodeRegistration"]["taints"] = json!([]);
    let lines = covered(&flags(&[("v", "2")]), &to, &ConfigurationRules::default()).lines();
    assert_eq!(
        lines,
        [
            "KubeadmConfig/m spec.joinConfiguration.nodeRegistration.taints: (absent) -> (hidden) (no updater)"
        ]
    );
    // The whole object is new: its flags alone would not make it what is asked for.
    let lines = covered(&json!({}), &to, &ConfigurationRules::default()).lines();
    assert_eq!(lines.len(), 1);
    assert!(lines[0].ends_with("(no updater)"), "{lines:?}");
}

#[test]
fn etcd_gets_another_image_on_members_of_a_control_plane() {
    let rules = ConfigurationRules::default();
    let etcd = |tag: &str| json!({"clusterConfiguration": {"etcd": {"local": {"imageTag": tag}}}});
    let changed = applied(&etcd("3.6.4-0"), &etcd("3.6.5-0"), &rules);
    assert_eq!(
        (changed.part.fields.as_slice(), changed.disruption),
        (&[ConfigurationField::Etcd][..], Disruption::Restart)
    );
    assert!(refused(&etcd("3.6.4-0"), &json!({}), &rules).starts_with("without a tag"));
    let updaters = [&updater(rules)];
    let (from, to) = (set(&etcd("a")), set(&etcd("b")));
    let lines = cover(Level::MachineSet, &from, &to, false, &updaters).lines();
    assert!(lines[0].ends_with("(kubeadm-config: workers have no etcd)"), "{lines:?}");
}

#[test]
fn commands_run_again_only_where_an_annotation_declares_them_safe() {
    let commands = |all: &[&str]| json!({"postKubeadmCommands": all, "preKubeadmCommands": ["x"]});
    let (from, to) = (commands(&["a"]), commands(&["a", "b"]));
    assert!(
        refused(&from, &to, &ConfigurationRules::default()).contains("refit.dev/rerun-commands")
    );
    let rules =
        ConfigurationRules { rerun: Some(Disruption::Drain), ..ConfigurationRules::default() };
    let changed = applied(&from, &to, &rules);
    assert_eq!(
        (changed.part.fields.as_slice(), changed.disruption),
        (&[ConfigurationField::PostKubeadmCommands][..], Disruption::Drain)
    );
    assert_eq!(planned(&to, &changed.part).unwrap().commands.unwrap().commands, ["a", "b"]);
}

#[test]
fn an_added_updater_that_claims_a_file_comes_first() {
    let path: ClaimPath = "/spec/files[path=/etc/a]/content".parse().unwrap();
    let claim = Claim {
        group: "bootstrap.cluster.x-k8s.io".into(),
        kind: "KubeadmConfig".into(),
        paths: vec![path],
    };
    let side = |content: &str| machine(&files(&[file("/etc/a", content), file("/etc/b", content)]));
    let updaters =
        [&Updater::Kubeadm, &leaving("a", &[claim]), &updater(ConfigurationRules::default())];
    let coverage = cover(Level::Machine, &side("1"), &side("2"), false, &updaters);
    assert!(coverage.is_complete(), "{:?}", coverage.lines());
    assert_eq!(coverage.configuration.unwrap().part.files, ["/etc/b"]);
}

#[test]
fn a_config_without_a_named_file_gives_no_plan() {
    let part = ConfigurationPart { files: vec!["/etc/a".into()], ..ConfigurationPart::default() };
    assert_eq!(planned(&json!({}), &part), Err("it has no file /etc/a".to_owned()));
}

#[test]
fn a_machine_gets_what_its_own_config_has_of_what_a_rollout_changes() {
    let unit = UnitAction { unit: "chrony.service".into(), verb: UnitVerb::Restart };
    let part = ConfigurationPart {
        files: vec!["/etc/a".into(), "/etc/b".into()],
        users: vec!["ops".into()],
        fields: vec![ConfigurationField::Ntp, ConfigurationField::PreKubeadmCommands],
        units: vec![unit],
        restarts_kubelet: true,
        ..ConfigurationPart::default()
    };
    let updater = ConfigurationUpdater {
        changed: Some(ChangedConfiguration { part, disruption: Disruption::Restart }),
        ..ConfigurationUpdater::default()
    };
    let of = |spec: &Value| updater.part(spec).map(|part| part.host.unwrap());
    let Some(HostPart::Configuration(first)) = of(&files(&[file("/etc/a", "x")])) else {
        panic!("it gets a file")
    };
    assert_eq!((first.files, first.users.len(), first.fields.len()), (vec!["/etc/a".into()], 0, 0));
    // Units are restarted for what changes only.
    assert_eq!((first.units.len(), first.restarts_kubelet), (0, false));
    assert_eq!(of(&json!({})), None);
    let Some(HostPart::Configuration(second)) = of(&json!({"ntp": {}, "users": [{"name": "ops"}]}))
    else {
        panic!("it gets a user and time servers")
    };
    assert_eq!((second.users.len(), second.fields), (1, vec![ConfigurationField::Ntp]));
}

#[test]
fn a_unit_of_a_file_that_a_config_lacks_is_not_restarted() {
    let unit = "/etc/systemd/system/exporter.service";
    let motd = file("/etc/motd", "x");
    let to = files(&[motd.clone(), file(unit, "[Service]")]);
    let changed = applied(&json!({}), &to, &ConfigurationRules::default());
    assert_eq!(changed.part.units.len(), 1);
    let updater =
        ConfigurationUpdater { changed: Some(changed), ..ConfigurationUpdater::default() };
    let units = |spec: &Value| match updater.part(spec).unwrap().host {
        Some(HostPart::Configuration(part)) => part.units.len(),
        other => panic!("{other:?}"),
    };
    assert_eq!((units(&to), units(&files(&[motd]))), (1, 0));
}

#[test]
fn the_hash_of_a_configuration_follows_what_hosts_get_and_nothing_else() {
    let with = |more: &Value| {
        let mut spec = flags(&[("v", "4")]);
        json_patch::merge(&mut spec, more);
        hash_of_configuration(&spec)
    };
    let plain = with(&json!({}));
    let token = json!({"joinConfiguration": {"discovery": {"bootstrapToken": {"token": "t"}}}});
    assert_eq!(with(&token), plain);
    for more in [
        files(&[file("/etc/a", "x")]),
        json!({"ntp": {"servers": ["a"]}}),
        json!({"users": [{"name": "a"}]}),
        json!({"preKubeadmCommands": ["a"]}),
        json!({"postKubeadmCommands": ["a"]}),
        flags(&[("v", "5")]),
        json!({"clusterConfiguration": {"etcd": {"local": {"imageTag": "a"}}}}),
    ] {
        assert_ne!(with(&more), plain, "{more}");
    }
}

#[test]
fn a_plan_without_values_has_the_steps_of_the_plan_with_values() {
    let spec = json!({
        "files": [file("/etc/a", "x")], "users": [{"name": "u"}], "ntp": {"servers": ["a"]},
        "preKubeadmCommands": ["a"],
        "joinConfiguration": {"nodeRegistration": {"kubeletExtraArgs": [{"name": "v", "value": "4"}]}},
        "clusterConfiguration": {"etcd": {"local": {"imageTag": "3.6.5-0"}}},
    });
    let part = ConfigurationPart {
        files: vec!["/etc/a".into()],
        users: vec!["u".into()],
        kubelet_args: vec!["v".into()],
        fields: vec![
            ConfigurationField::Ntp,
            ConfigurationField::Etcd,
            ConfigurationField::PreKubeadmCommands,
        ],
        ..ConfigurationPart::default()
    };
    let shape = |plan: &PlannedConfiguration| {
        [
            plan.files.is_some(),
            plan.keys.is_some(),
            plan.ntp.is_some(),
            plan.units.is_some(),
            plan.commands.is_some(),
            plan.kubelet.is_some(),
            plan.etcd.is_some(),
        ]
    };
    let with = planned(&spec, &part).unwrap();
    assert_eq!(shape(&with), shape(&PlannedConfiguration::without_values(&part)));
    assert_eq!(shape(&with), [true, false, true, false, true, true, true]);
}
