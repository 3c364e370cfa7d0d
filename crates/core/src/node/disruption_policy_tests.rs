use proptest::prelude::*;
use refit_kinds::refit::{AppliesTo, FilePolicy, Owner, OwnerName, UnitPolicy, UserPolicy};

use super::*;

fn restart(unit: &str) -> NodeAction {
    NodeAction::Restart(unit.to_owned())
}

fn reload(unit: &str) -> NodeAction {
    NodeAction::Reload(unit.to_owned())
}

fn file(path: &str, action: NodeAction) -> FilePolicy {
    FilePolicy { path: path.to_owned(), actions: vec![action] }
}

fn policy(files: Vec<FilePolicy>, units: &[(&str, NodeAction)]) -> NodeDisruptionPolicySpec {
    let unit = |(name, action): &(&str, NodeAction)| UnitPolicy {
        name: (*name).to_owned(),
        actions: vec![action.clone()],
    };
    NodeDisruptionPolicySpec {
        applies_to: AppliesTo::All {},
        files,
        units: units.iter().map(unit).collect(),
        users: None,
    }
}

fn units(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

#[test]
fn the_longest_path_that_matches_decides() {
    let files =
        ["/", "/etc/", "/etc/app*", "/etc/app/", "/etc/app/a", "/etc/app/a*", "/etc/app/sub/"];
    let policy = policy(files.map(|path| file(path, restart(path))).to_vec(), &[]);
    for (path, expected) in [
        ("/opt/x", "/"),
        ("/etc", "/"),
        ("/etc/x", "/etc/"),
        ("/etc/app", "/etc/app*"),
        ("/etc/apps.conf", "/etc/app*"),
        ("/etc/app/b", "/etc/app/"),
        // An exact path precedes a prefix of the same length.
        ("/etc/app/a", "/etc/app/a"),
        ("/etc/app/ab", "/etc/app/a*"),
        ("/etc/app/sub/x/y", "/etc/app/sub/"),
    ] {
        let actions = actions_of_file(Some(&policy), path);
        assert_eq!(actions.restart, units(&[expected]), "{path}");
    }
}

#[test]
fn a_path_precedes_a_unit_and_both_precede_the_default() {
    let dropin = "/etc/systemd/system/containerd.service.d/proxy.conf";
    let drained = actions_of_file(None, dropin);
    assert_eq!(drained.disruption, Disruption::Drain);
    let by_unit = [("containerd.service", restart("containerd.service"))];
    let restarted = actions_of_file(Some(&policy(vec![], &by_unit)), dropin);
    assert_eq!(restarted, Actions::restart("containerd.service"));
    // The shortest path precedes a unit, too.
    let both = policy(vec![file("/etc/", NodeAction::Reboot {})], &by_unit);
    assert_eq!(actions_of_file(Some(&both), dropin), Actions::disturb(Disruption::Reboot));
    // A policy without an entry for the path leaves the default.
    let other = policy(
        vec![file("/etc/app", NodeAction::None {})],
        &[("crio.service", NodeAction::None {})],
    );
    assert_eq!(actions_of_file(Some(&other), dropin), drained);
    // A unit without a file of its own has no other files.
    let config = "/etc/containerd/config.toml";
    let none = policy(vec![], &[("containerd.service", NodeAction::None {})]);
    assert_eq!(actions_of_file(Some(&none), dropin), Actions::none());
    assert_eq!(actions_of_file(Some(&none), config), actions_of_file(None, config));
    let quiet = policy(vec![file(config, NodeAction::None {})], &[]);
    assert_eq!(actions_of_file(Some(&quiet), config), Actions::none());
}

#[test]
fn each_action_disturbs_as_documented() {
    for (actions, disruption, reloaded, restarted, kubelet) in [
        (vec![NodeAction::None {}], Disruption::None, vec![], vec![], false),
        (vec![reload("a.service")], Disruption::None, vec!["a.service"], vec![], false),
        (vec![restart("a.service")], Disruption::Restart, vec![], vec!["a.service"], false),
        (
            vec![restart("systemd-sysctl.service")],
            Disruption::None,
            vec![],
            vec!["systemd-sysctl.service"],
            false,
        ),
        (vec![NodeAction::RestartKubelet {}], Disruption::Restart, vec![], vec![], true),
        (vec![restart("kubelet.service")], Disruption::Restart, vec![], vec![], true),
        (vec![NodeAction::Drain {}], Disruption::Drain, vec![], vec![], false),
        (vec![NodeAction::Reboot {}], Disruption::Reboot, vec![], vec![], false),
        (
            vec![NodeAction::Drain {}, restart("a.service"), reload("b.service")],
            Disruption::Drain,
            vec!["b.service"],
            vec!["a.service"],
            false,
        ),
        // A restart reads the configuration, too, in whatever order.
        (
            vec![reload("a.service"), restart("a.service"), reload("a.service")],
            Disruption::Restart,
            vec![],
            vec!["a.service"],
            false,
        ),
        (
            vec![NodeAction::RestartKubelet {}, reload("kubelet.service")],
            Disruption::Restart,
            vec![],
            vec![],
            true,
        ),
        // A reboot replaces them all.
        (
            vec![restart("a.service"), NodeAction::Reboot {}, reload("b.service")],
            Disruption::Reboot,
            vec![],
            vec![],
            false,
        ),
    ] {
        let expected = Actions {
            reload: units(&reloaded),
            restart: units(&restarted),
            restart_kubelet: kubelet,
            disruption,
        };
        assert_eq!(Actions::of(&actions), expected, "{actions:?}");
    }
}

#[test]
fn users_need_nothing_unless_the_policy_demands_it() {
    assert_eq!(actions_of_user(None), Actions::none());
    let mut policy = policy(vec![file("/", NodeAction::Reboot {})], &[]);
    assert_eq!(actions_of_user(Some(&policy)), Actions::none());
    policy.users = Some(UserPolicy { actions: vec![reload("sshd.service")] });
    assert_eq!(actions_of_user(Some(&policy)), Actions::reload("sshd.service"));
}

/// The path of the first file of the policy that is chosen, or the reason and object of the refusal.
fn chosen(objects: &[Arc<NodeDisruptionPolicy>], unreadable: &BTreeMap<String, String>) -> String {
    let owner =
        GroupOwner { kind: "MachineDeployment".into(), name: "md".into(), ..GroupOwner::default() };
    let policies = NodePolicies { objects, unreadable, owner: &owner, cluster: "edge-1" };
    match node_disruption_policy(policies) {
        Ok(policy) => policy.map_or("none".to_owned(), |policy| policy.files[0].path.clone()),
        Err(refusal) => format!("{} {}", refusal.reason(), refusal.object()),
    }
}

#[test]
fn the_most_specific_policy_applies_and_two_of_a_kind_are_refused() {
    let object = |name: &str, applies_to| {
        let spec = policy(vec![file(name, NodeAction::None {})], &[]);
        let spec = NodeDisruptionPolicySpec { applies_to, ..spec };
        Arc::new(NodeDisruptionPolicy::new(name, spec))
    };
    let all = |name| object(name, AppliesTo::All {});
    let cluster = |name| object(name, AppliesTo::Clusters(vec!["edge-1".into()]));
    let owner = |name| {
        let named = OwnerName { kind: Owner::Deployment, name: "md".into() };
        object(name, AppliesTo::Owners(vec![named]))
    };
    let none = BTreeMap::new();
    let conflict = |names| format!("DisruptionPolicyConflict NodeDisruptionPolicy {names}");
    assert_eq!(chosen(&[], &none), "none");
    assert_eq!(chosen(&[all("a"), owner("o"), cluster("c")], &none), "o");
    assert_eq!(chosen(&[all("a"), all("b"), cluster("c")], &none), "c");
    assert_eq!(chosen(&[all("b"), all("a")], &none), conflict("a, b"));
    assert_eq!(chosen(&[owner("p"), all("a"), owner("o")], &none), conflict("o, p"));
    let broken = BTreeMap::from([("x".to_owned(), "unknown field actoins".to_owned())]);
    let unreadable = "DisruptionPolicyUnreadable NodeDisruptionPolicy x";
    assert_eq!(chosen(&[owner("o")], &broken), unreadable);
}

/// Paths with few names, so that entries match often.
fn a_path() -> impl Strategy<Value = String> {
    proptest::collection::vec(prop_oneof!["a", "b", "ab"], 1..5)
        .prop_map(|names| format!("/{}", names.join("/")))
}

/// A path of a policy.
fn a_pattern() -> impl Strategy<Value = String> {
    (a_path(), prop_oneof![Just(""), Just("/"), Just("*")])
        .prop_map(|(path, end)| format!("{path}{end}"))
}

fn some_actions() -> impl Strategy<Value = Vec<NodeAction>> {
    let action = prop_oneof![
        "[ab]\\.service".prop_map(NodeAction::Reload),
        "[ab]\\.service".prop_map(NodeAction::Restart),
        Just(NodeAction::RestartKubelet {}),
        Just(NodeAction::Drain {}),
        Just(NodeAction::Reboot {}),
    ];
    proptest::collection::vec(action, 1..5)
}

proptest! {
    #[test]
    fn a_longer_matching_entry_decides_once_it_is_added(
        path in a_path(),
        patterns in proptest::collection::btree_set(a_pattern(), 0..8),
        at in 0..8_usize,
        cut in 1..16_usize,
    ) {
        let mut files: Vec<_> = patterns.iter().map(|path| file(path, restart(path))).collect();
        let before = actions_of_file(Some(&policy(files.clone(), &[])), &path);
        let decided = before.restart.first().cloned().unwrap_or_default();
        // A prefix of the path, down to one that is as long as what decided.
        let longer = format!("{}*", &path[..path.len().saturating_sub(cut).max(2)]);
        prop_assume!(!patterns.contains(&longer));
        let is_longer = longer.len() - 1 > decided.trim_end_matches('*').len();
        files.insert(at.min(files.len()), file(&longer, restart("new.service")));
        let after = actions_of_file(Some(&policy(files, &[])), &path);
        let expected = if is_longer { Actions::restart("new.service") } else { before };
        prop_assert_eq!(after, expected);
    }

    #[test]
    fn actions_are_the_same_in_whatever_order_they_are_merged(
        one in some_actions(),
        other in some_actions(),
    ) {
        let together = Actions::of(&[one.clone(), other.clone()].concat());
        let (one, other) = (Actions::of(&one), Actions::of(&other));
        prop_assert_eq!(&one.clone().merge(other.clone()), &together);
        prop_assert_eq!(&other.clone().merge(one.clone()), &together);
        prop_assert!(together.disruption >= one.disruption.max(other.disruption));
        prop_assert_eq!(together.clone().merge(together.clone()), together);
    }
}
