use std::{collections::BTreeMap, os::unix::fs::PermissionsExt as _};

use refit_kinds::{
    refit::{
        BundleRef, CommandArgs, KeyArgs, OsImageArgs, PackageArgs, PlannedFile, RevokedKeys,
        SecretKey,
    },
    version::KubernetesVersion,
};

use super::*;

/// A host with these links from a directory to another one, and homes of users.
#[derive(Default)]
pub(super) struct FakeHost {
    links: BTreeMap<&'static str, &'static str>,
    homes: BTreeMap<&'static str, &'static str>,
}

impl FakeHost {
    pub(super) fn with_links(links: &[(&'static str, &'static str)]) -> Self {
        Self { links: links.iter().copied().collect(), ..Self::default() }
    }
}

impl HostView for FakeHost {
    fn resolved(&self, path: &Path) -> PathBuf {
        let link = self.links.iter().find_map(|(from, to)| {
            let rest = path.strip_prefix(from).ok()?;
            Some(Path::new(to).components().chain(rest.components()).collect())
        });
        link.unwrap_or_else(|| path.to_owned())
    }

    fn home(&self, user: &str) -> Option<String> {
        self.homes.get(user).map(|home| (*home).to_owned())
    }
}

fn policy(text: &str) -> HostPolicy {
    toml::from_str(text).unwrap()
}

/// The key that does not allow the step, and what it does not allow.
fn forbidden(policy_text: &str, step: &HostStep, host: &FakeHost) -> Option<String> {
    policy(policy_text).forbids(step, host).map(|(key, what)| format!("{key} {what}"))
}

pub(super) fn file_args(path: &str) -> FileArgs {
    let file = PlannedFile { path: path.to_owned(), ..PlannedFile::default() };
    FileArgs { files: vec![file], users: Vec::new() }
}

fn file(path: &str) -> HostStep {
    HostStep::Files(file_args(path))
}

fn user(name: &str, sudo: &str, keys: &[&str]) -> HostStep {
    let user = PlannedUser {
        name: name.to_owned(),
        sudo: sudo.to_owned(),
        ssh_authorized_keys: keys.iter().map(|&key| key.to_owned()).collect(),
        ..PlannedUser::default()
    };
    HostStep::Files(FileArgs { files: Vec::new(), users: vec![user] })
}

fn packages(packages: PackageArgs) -> HostStep {
    HostStep::KubeadmInstall { version: KubernetesVersion::new(1, 35, 0), packages }
}

fn repository(url: &str) -> HostStep {
    packages(PackageArgs { repository: url.to_owned(), ..PackageArgs::default() })
}

fn bundle(location: &str) -> HostStep {
    HostStep::Stage {
        version: KubernetesVersion::new(1, 35, 0),
        packages: PackageArgs::default(),
        images: None,
        bundle: Some(BundleRef { location: location.to_owned(), ..BundleRef::default() }),
    }
}

fn os_image(url: &str) -> HostStep {
    let os_image = OsImageArgs { url: url.to_owned(), ..OsImageArgs::default() };
    HostStep::OsImageFinalize { os_image }
}

#[test]
fn only_the_listed_types_of_steps_run() {
    let host = FakeHost::default();
    let listed = r#"steps = ["preflight", "kubelet-restart"]"#;
    assert_eq!(forbidden(listed, &HostStep::KubeletRestart {}, &host), None);
    let reboot = forbidden(listed, &HostStep::Reboot {}, &host);
    assert_eq!(reboot.as_deref(), Some("steps \"reboot\""));
    assert!(forbidden("steps = []", &HostStep::Snapshot {}, &host).is_some());
    for other in ["", "paths = []\nrepositories = []"] {
        assert_eq!(forbidden(other, &HostStep::Reboot {}, &host), None, "{other}");
    }
}

/// A command could do what another key of the policy forbids.
#[test]
fn commands_run_only_if_the_policy_names_them() {
    let step = HostStep::Commands(CommandArgs { commands: vec!["true".to_owned()] });
    for (text, is_allowed) in [
        (r#"paths = ["/"]"#, false),
        ("repositories = []", false),
        (r#"steps = ["files"]"#, false),
        (r#"steps = ["files", "commands"]"#, true),
    ] {
        let refused = forbidden(text, &step, &FakeHost::default());
        let expected = (!is_allowed).then_some("steps \"commands\"");
        assert_eq!(refused.as_deref(), expected, "{text}");
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("missing.toml");
    let absent = PolicyFile { may_be_absent: true, ..PolicyFile::new(path) };
    assert_eq!(absent.read(), Ok(None), "without a policy everything is allowed");
    assert_eq!(absent.never_allows(&PlannedStep::new(step)), None);
}

#[test]
fn keys_are_revoked_below_the_listed_paths() {
    let host = FakeHost { homes: BTreeMap::from([("root", "/root")]), ..FakeHost::default() };
    for (user, path) in [("ops", "/home/ops"), ("root", "/root")] {
        let users = vec![RevokedKeys { user: user.to_owned(), keys: Vec::new() }];
        let step = HostStep::KeysRevoke(KeyArgs { users });
        assert_eq!(forbidden(&format!("paths = [{path:?}]"), &step, &host), None);
        let refused = forbidden(r#"paths = ["/etc"]"#, &step, &host);
        assert_eq!(refused, Some(format!("paths \"{path}/.ssh/authorized_keys\"")));
    }
}

#[test]
fn the_agents_own_files_are_refused_with_and_without_a_policy() {
    let directory = tempfile::tempdir().unwrap();
    let absent = PolicyFile {
        may_be_absent: true,
        ..PolicyFile::new(directory.path().join("missing.toml"))
    };
    let allows_all = in_file(directory.path(), r#"paths = ["/"]"#, 0o600);
    let step = PlannedStep::new(file("/etc/refit/keys/release.pub"));
    for policy in [absent, allows_all] {
        let Some(PolicyRefusal::AgentPath { path, .. }) = policy.never_allows(&step) else {
            panic!("{policy:?}");
        };
        assert_eq!(path, "/etc/refit/keys/release.pub");
        assert_eq!(policy.never_allows(&PlannedStep::new(file("/etc/motd"))), None);
    }
}

#[test]
fn with_signed_plans_a_content_from_a_secret_needs_its_checksum() {
    let secret = SecretKey { name: "app".to_owned(), key: "token".to_owned() };
    for (signed_plans, sha256, content_from, refused) in [
        (true, "", Some(&secret), true),
        (true, "9c41d7", Some(&secret), false),
        (true, "", None, false),
        (false, "", Some(&secret), false),
    ] {
        let mut args = file_args("/etc/app/token");
        args.files[0].sha256 = sha256.to_owned();
        args.files[0].content_from = content_from.cloned();
        let policy = PolicyFile::new("/missing").with_signed_plans(signed_plans);
        let found = policy.never_allows(&PlannedStep::new(HostStep::Files(args)));
        let expected = refused.then(|| PolicyRefusal::ContentNotSigned {
            step: "files".to_owned(),
            path: "/etc/app/token".to_owned(),
            secret: "app".to_owned(),
        });
        assert_eq!(found, expected, "{signed_plans} {sha256:?} {content_from:?}");
    }
}

#[test]
fn a_policy_without_a_key_refuses_everything() {
    let directory = tempfile::tempdir().unwrap();
    for text in ["", "# soon\n"] {
        let error = in_file(directory.path(), text, 0o600).read().unwrap_err().to_string();
        assert!(error.contains("it has no key"), "{error}");
    }
}

#[test]
fn files_stay_below_the_listed_paths_with_links_resolved() {
    let host = FakeHost {
        links: BTreeMap::from([
            ("/etc/app/more", "/etc/sudoers.d"),
            ("/lib", "/usr/lib"),
            ("/etc/app/link.conf", "/etc/shadow"),
            ("/srv/out.conf", "/etc/app/in.conf"),
        ]),
        ..FakeHost::default()
    };
    let text = r#"paths = ["/etc/app/", "/lib/modules", "/etc/motd"]"#;
    for (path, allowed) in [
        ("/etc/app/x.conf", true),
        ("/etc/app/deep/x.conf", true),
        ("/etc//app/./x.conf", true),
        ("/etc/motd", true),
        ("/etc/motd2", false),
        ("/etc/application/x.conf", false),
        ("/etc/passwd", false),
        ("/etc/app/../passwd", false),
        ("etc/app/x.conf", false),
        ("/", false),
        ("", false),
        // Its directory is a link out of the prefix, or into it.
        ("/etc/app/more/x", false),
        ("/lib/modules/x", true),
        ("/usr/lib/modules/x", true),
        // The file itself is a link out of the prefix, or into it.
        ("/etc/app/link.conf", false),
        ("/srv/out.conf", false),
    ] {
        let refused = forbidden(text, &file(path), &host);
        assert_eq!(refused.is_none(), allowed, "{path}: {refused:?}");
    }
    let refused = forbidden(text, &file("/etc/passwd"), &host);
    assert_eq!(refused.as_deref(), Some("paths \"/etc/passwd\""));
    assert!(forbidden("paths = []", &file("/etc/motd"), &host).is_some());
}

#[test]
fn users_need_the_paths_that_they_write() {
    let host = FakeHost { homes: BTreeMap::from([("root", "/root")]), ..FakeHost::default() };
    let ops = user("ops", "ALL=(ALL) NOPASSWD:ALL", &["ssh-ed25519 AAAA"]);
    let mut paths = vec!["/etc/app"];
    for missing in ["/etc/passwd", "/etc/sudoers.d/refit-ops", "/home/ops/.ssh/authorized_keys"] {
        let refused = forbidden(&format!("paths = {paths:?}"), &ops, &host);
        assert_eq!(refused, Some(format!("paths {missing:?}")));
        paths.push(missing);
    }
    assert_eq!(forbidden(&format!("paths = {paths:?}"), &ops, &host), None);
    // The home of an existing user is the host's, whatever the plan names.
    let root = user("root", "", &["ssh-ed25519 AAAA"]);
    let refused = forbidden(r#"paths = ["/etc/passwd", "/home"]"#, &root, &host);
    assert_eq!(refused.as_deref(), Some("paths \"/root/.ssh/authorized_keys\""));
}

#[test]
fn sources_are_compared_by_scheme_host_and_whole_path_segments() {
    let host = FakeHost {
        links: BTreeMap::from([("/mnt/images/out", "/home/app")]),
        ..FakeHost::default()
    };
    let text = r#"repositories = [
        "https://pkgs.k8s.io/core:/stable:/",
        "HTTPS://Mirror.example:8443/refit",
        "oci://registry.example/refit/bundle",
        "/mnt/images",
        "file:///srv/os",
    ]"#;
    for (source, allowed) in [
        ("https://pkgs.k8s.io/core:/stable:/v1.35/deb/", true),
        ("https://pkgs.k8s.io/core:/stable:", true),
        ("https://PKGS.k8s.io/core:/stable:/v1.35/deb/?x=/../y#z", true),
        ("https://pkgs.k8s.io/core:/stable:evil/v1.35/deb/", false),
        ("https://pkgs.k8s.io/core:/stable:/../prerelease:/", false),
        ("https://pkgs.k8s.io/core:/stable:/%2E%2e/prerelease:/", false),
        ("https://pkgs.k8s.io/core:/stable:/..%2fprerelease:/", false),
        ("https://pkgs.k8s.io//core:/stable:/v1.35/", false),
        ("https://pkgs.k8s.io", false),
        ("http://pkgs.k8s.io/core:/stable:/v1.35/deb/", false),
        ("https://pkgs.k8s.io.evil.example/core:/stable:/", false),
        ("https://pkgs.k8s.io@evil.example/core:/stable:/", false),
        ("https://evil.example\\@pkgs.k8s.io/core:/stable:/", false),
        ("https://pkgs.k8s.io:444/core:/stable:/", false),
        ("https://mirror.example:8443/refit/v1.35.0/", true),
        ("https://mirror.example/refit/v1.35.0/", false),
        ("oci://registry.example/refit/bundle@sha256:9c41d7", true),
        ("oci://registry.example/refit/bundle:v1.35.0", true),
        ("oci://registry.example/refit/bundles:v1.35.0", false),
        ("oci+http://registry.example/refit/bundle:v1.35.0", false),
        ("/mnt/images/v1.35.0", true),
        ("file:///mnt/images/v1.35.0", true),
        ("file:///mnt/images/v1.35.0?/../../../home/app", false),
        ("file:///mnt/images?/x", false),
        ("/mnt/images/out/x", false),
        ("/mnt/images/../x", false),
        ("/srv/os/os-2.cosi", true),
        ("file://elsewhere/srv/os/os-2.cosi", false),
        ("mnt/images", false),
        ("https://", false),
    ] {
        for step in [repository(source), bundle(source), os_image(source)] {
            let refused = forbidden(text, &step, &host);
            assert_eq!(refused.is_none(), allowed, "{source}: {refused:?}");
        }
    }
}

#[test]
fn every_source_of_a_step_is_compared() {
    let host = FakeHost::default();
    let none = "repositories = []";
    let of = |args: PackageArgs| forbidden(none, &packages(args), &host);
    let url = || "https://evil.example/x".to_owned();
    assert_eq!(of(PackageArgs::default()), None);
    assert!(of(PackageArgs { repository: url(), ..PackageArgs::default() }).is_some());
    assert!(of(PackageArgs { path: "/tmp/x".to_owned(), ..PackageArgs::default() }).is_some());
    let refused = of(PackageArgs { url: url(), ..PackageArgs::default() });
    assert_eq!(refused.as_deref(), Some("repositories \"https://evil.example/x\""));
    assert!(forbidden(none, &bundle("/tmp/x"), &host).is_some());
    assert!(forbidden(none, &os_image(&url()), &host).is_some());
    // Part of a bundle, whose location was compared when it was staged.
    assert_eq!(forbidden(none, &os_image("bundle:///os/os-2.cosi"), &host), None);
    assert_eq!(forbidden(none, &HostStep::Reboot {}, &host), None);
}

#[test]
fn an_invalid_policy_is_refused_with_its_line() {
    for (text, line, wrong) in [
        ("path = []", 1, "path"),
        ("\nsteps = [\"reboots\"]", 2, "unknown step \"reboots\", expected one of preflight"),
        ("steps = \"reboot\"", 1, "invalid type"),
        ("paths = [\"etc\"]", 1, "invalid path \"etc\""),
        ("paths = [\"/etc/../root\"]", 1, "without `..`"),
        ("repositories = [\"pkgs.k8s.io\"]", 1, "invalid source"),
        ("repositories = [\"https://u@h/\"]", 1, "invalid source"),
        ("steps = [", 1, ""),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let error = in_file(directory.path(), text, 0o600).read().unwrap_err();
        let PolicyRefusal::Unusable { why, .. } = error else { panic!("{error}") };
        assert!(why.starts_with(&format!("line {line}: ")) && why.contains(wrong), "{text}: {why}");
    }
}

fn in_file(directory: &Path, text: &str, mode: u32) -> PolicyFile {
    let path = directory.join("policy.toml");
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    PolicyFile::new(path)
}

#[test]
fn without_the_usual_file_everything_is_allowed_and_without_a_chosen_one_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("policy.toml");
    let usual = PolicyFile { may_be_absent: true, ..PolicyFile::new(&path) };
    assert_eq!(usual.read(), Ok(None));
    let error = PolicyFile::new(&path).read().unwrap_err().to_string();
    assert!(error.contains("No such file"), "{error}");
    std::os::unix::fs::symlink("/nonexistent/policy.toml", &path).unwrap();
    assert!(usual.read().is_err(), "a dangling link");
    assert!(PolicyFile::new(DEFAULT_POLICY).may_be_absent);
}

#[test]
fn a_policy_that_others_may_write_refuses_everything() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("policy.toml");
    for mode in [0o600, 0o644] {
        let found = in_file(directory.path(), "steps = []", mode).read().unwrap();
        assert_eq!(found.unwrap().steps, Some(BTreeSet::new()));
    }
    for mode in [0o602, 0o620, 0o666] {
        let error = in_file(directory.path(), "", mode).read().unwrap_err().to_string();
        assert!(error.contains("others than root may write to it; correct it"), "{error}");
    }
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert!(PolicyFile::new(&path).read().is_err(), "a directory");
    // Only root can give a file away.
    fs::remove_dir(&path).unwrap();
    let file = in_file(directory.path(), "", 0o600);
    if std::os::unix::fs::chown(&path, Some(12_345), None).is_ok() {
        let error = file.read().unwrap_err().to_string();
        assert!(error.contains("it does not belong to root"), "{error}");
    }
}

#[test]
fn the_host_resolves_links_and_paths_that_do_not_exist() {
    let directory = tempfile::tempdir().unwrap();
    let root = fs::canonicalize(directory.path()).unwrap();
    fs::create_dir(root.join("real")).unwrap();
    std::os::unix::fs::symlink("real", root.join("link")).unwrap();
    let site = Site::new("/state");
    for (path, resolved) in
        [("link/x/y", "real/x/y"), ("link", "real"), ("real", "real"), ("none/x", "none/x")]
    {
        let found = HostView::resolved(&site, &root.join(path));
        assert_eq!(found, root.join(resolved), "{path}");
    }
}
