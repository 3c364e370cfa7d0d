use refit_kinds::refit::PlannedUser;

use super::{
    super::tests::{FakeHost, file_args},
    *,
};

/// What the step writes of the agent, on a host that keeps some files at other places.
fn of_the_agent(args: &FileArgs) -> Option<String> {
    let host = FakeHost::with_links(&[
        ("/etc/app/keys", "/etc/refit/keys"),
        ("/etc/app/agent.conf", "/etc/systemd/system/refit-agent.service"),
        ("/etc/systemd/system/refit-agent.service.d", "/etc/drop-ins"),
        ("/var/lib/refit-agent", "/data/agent"),
        ("/srv/data", "/data"),
    ]);
    let chosen = ["/srv/policy.toml", "/opt/keys/plan.pem"].map(PathBuf::from);
    OwnPaths::new(chosen).written_by(args, &host)
}

#[test]
fn no_plan_writes_what_belongs_to_the_agent() {
    for (path, own) in [
        ("/etc/refit-agent/policy.toml", true),
        ("/etc/refit-agent/plan-keys.pem", true),
        ("/etc/refit-agent", true),
        ("/etc/refit/keys/release.pub", true),
        ("//etc/./refit//keys/release.pub", true),
        ("/var/lib/refit-agent/journal.jsonl", true),
        ("/var/cache/refit-agent/p/kubeadm.rpm", true),
        ("/opt/refit/agent/current", true),
        ("/usr/bin/refit-agent", true),
        ("/etc/systemd/system/refit-agent.service", true),
        ("/run/systemd/system/refit-agent.service.d/x.conf", true),
        ("/usr/lib/systemd/system/refit-agent.service", true),
        ("/lib/systemd/system/refit-agent.service", true),
        ("/etc/systemd/system.control/refit-agent.service.d/50-x.conf", true),
        ("/etc/systemd/system/multi-user.target.wants/refit-agent.service", true),
        ("/etc/systemd/system/refit-.service.d/x.conf", true),
        ("/usr/local/lib/systemd/system/service.d/x.conf", true),
        // Chosen on this host.
        ("/srv/policy.toml", true),
        ("/opt/keys/plan.pem", true),
        // Through links.
        ("/etc/app/keys/release.pub", true),
        ("/etc/app/agent.conf", true),
        ("/srv/data/agent/journal.jsonl", true),
        ("/data/agent/journal.jsonl", true),
        // Everything else is for the policy to forbid.
        ("/etc/refit-agent2/x", false),
        ("/etc/refitted", false),
        ("/var/cache/refit-agents", false),
        ("/srv/policy.toml.old", false),
        ("/opt/keys/other.pem", false),
        ("/srv/data/x", false),
        ("/etc/systemd/system/kubelet.service.d/x.conf", false),
        ("/srv/service.d/x.conf", false),
        ("/etc/passwd", false),
    ] {
        let found = of_the_agent(&file_args(path));
        assert_eq!(found, own.then(|| path.to_owned()), "{path}");
    }
}

#[test]
fn no_user_lives_in_a_directory_of_the_agent() {
    let user = |home: &str, key: &str| {
        let ssh_authorized_keys = Some(key.to_owned()).into_iter().filter(|key| !key.is_empty());
        let user = PlannedUser {
            name: "ops".to_owned(),
            home_dir: home.to_owned(),
            ssh_authorized_keys: ssh_authorized_keys.collect(),
            ..PlannedUser::default()
        };
        FileArgs { files: Vec::new(), users: vec![user] }
    };
    for key in ["", "ssh-ed25519 AAAA"] {
        assert!(of_the_agent(&user("/etc/refit/keys", key)).is_some(), "{key}");
        assert_eq!(of_the_agent(&user("/home/ops", key)), None, "{key}");
    }
}
