use std::{fs, io::Write as _, os::unix::fs::MetadataExt as _};

use futures::future::BoxFuture;
use refit_kinds::refit::{FailureKind, SecretKey};

use super::{secret::Secret, *};

const USERS: &str = "root:x:0:0:root:/root:/bin/bash\nme:x:UID:GID::/home/me:/bin/sh\n";

struct World {
    _directory: tempfile::TempDir,
    site: Site,
}

struct Vault(&'static str);

impl SecretSource for Vault {
    fn fetch<'a>(&'a self, _: &'a SecretKey) -> BoxFuture<'a, Result<Secret, WorkError>> {
        Box::pin(async { Ok(Secret::new(self.0)) })
    }
}

impl World {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let site = Site::at(directory.path().join("root"), directory.path().join("state"));
        fs::create_dir_all(site.path("/etc")).unwrap();
        fs::create_dir_all(site.state()).unwrap();
        // Files belong to the user who runs the tests.
        let own = fs::metadata(directory.path()).unwrap();
        let users =
            USERS.replace("UID", &own.uid().to_string()).replace("GID", &own.gid().to_string());
        fs::write(site.path("/etc/passwd"), users).unwrap();
        fs::write(site.path("/etc/group"), "root:x:0:\n").unwrap();
        Self { _directory: directory, site }
    }

    async fn apply(
        &self,
        files: Vec<PlannedFile>,
        secret: &'static str,
    ) -> Result<FileArgs, WorkError> {
        let users = Vec::new();
        let args = FileArgs { files, users };
        apply(&self.site, "p", "files", &args, &OwnPaths::default(), &Vault(secret)).await?;
        Ok(args)
    }
}

fn file(path: &str, content: &str) -> PlannedFile {
    PlannedFile {
        path: path.to_owned(),
        owner: "me".to_owned(),
        content: content.to_owned(),
        ..PlannedFile::default()
    }
}

#[tokio::test]
async fn files_have_their_content_permissions_and_owner_and_go_back() {
    let world = World::new();
    fs::write(world.site.path("/etc/old"), "before").unwrap();
    let mut new = file("/etc/deep/new.conf", "hello\n");
    new.permissions = "0600".to_owned();
    let args = world.apply(vec![file("/etc/old", "after"), new], "").await.unwrap();
    assert_eq!(check(&world.site, &args), Evidence::Done);
    let written = fs::metadata(world.site.path("/etc/deep/new.conf")).unwrap();
    assert_eq!(written.mode() & 0o7777, 0o600);
    assert_eq!(fs::metadata(world.site.path("/etc/old")).unwrap().mode() & 0o7777, 0o644);
    fs::write(world.site.path("/etc/old"), "changed later").unwrap();
    assert!(matches!(check(&world.site, &args), Evidence::Missing { .. }));
    keep::put_back(&world.site, "p", "files").unwrap();
    assert_eq!(world.site.read("/etc/old"), "before");
    assert!(!world.site.path("/etc/deep/new.conf").exists());
}

#[tokio::test]
async fn every_encoding_yields_the_same_file() {
    let world = World::new();
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packer.write_all(b"hello\n").unwrap();
    let packed = STANDARD.encode(packer.finish().unwrap());
    for (encoding, content) in [
        (FileEncoding::Plain, "hello\n".to_owned()),
        (FileEncoding::Base64, "aGVs\n bG8K".to_owned()),
        (FileEncoding::GzipBase64, packed),
    ] {
        let mut file = file("/etc/x", &content);
        file.encoding = encoding;
        let _ = fs::remove_file(world.site.path("/etc/x"));
        world.apply(vec![file], "").await.unwrap();
        assert_eq!(world.site.read("/etc/x"), "hello\n", "{encoding:?}");
    }
}

#[tokio::test]
async fn undecodable_content_is_not_logged() {
    let world = World::new();
    for encoding in [FileEncoding::Base64, FileEncoding::Gzip, FileEncoding::GzipBase64] {
        let mut file = file("/etc/x", "");
        file.encoding = encoding;
        file.content_from = Some(SecretKey::default());
        let error = world.apply(vec![file], "hunter2!").await.unwrap_err();
        assert_eq!(error.kind, FailureKind::Final);
        assert!(!error.message.contains("hunter2"), "{error}");
    }
    let log = fs::read_to_string(world.site.state().join("host.log")).unwrap_or_default();
    assert!(!log.contains("hunter2"));
}

#[tokio::test]
async fn a_secret_is_written_only_if_its_checksum_matches() {
    let world = World::new();
    let mut secret = file("/etc/key", "");
    secret.permissions = "0600".to_owned();
    secret.content_from = Some(SecretKey::default());
    secret.sha256 = hex_sum(b"hunter2");
    let error = world.apply(vec![secret.clone()], "other").await.unwrap_err();
    assert_eq!(error.kind, FailureKind::Retriable);
    assert!(!world.site.path("/etc/key").exists());
    let args = world.apply(vec![secret], "hunter2").await.unwrap();
    assert_eq!(world.site.read("/etc/key"), "hunter2");
    assert_eq!(check(&world.site, &args), Evidence::Done);
}

#[tokio::test]
async fn content_is_appended_once() {
    let world = World::new();
    fs::write(world.site.path("/etc/hosts"), "127.0.0.1 localhost\n").unwrap();
    let mut more = file("/etc/hosts", "10.0.0.7 api\n");
    more.append = true;
    for _ in 0..2 {
        let args = world.apply(vec![more.clone()], "").await.unwrap();
        assert_eq!(check(&world.site, &args), Evidence::Done);
    }
    assert_eq!(world.site.read("/etc/hosts"), "127.0.0.1 localhost\n10.0.0.7 api\n");
}

#[tokio::test]
async fn wrong_paths_modes_and_owners_are_refused() {
    let world = World::new();
    for path in ["etc/x", "/etc/../x", "/etc/"] {
        assert!(world.apply(vec![file(path, "")], "").await.is_err(), "{path}");
    }
    let mut odd = file("/etc/x", "");
    odd.permissions = "rw".to_owned();
    assert!(world.apply(vec![odd], "").await.is_err());
    let mut unknown = file("/etc/x", "");
    unknown.owner = "missing-user:root".to_owned();
    let error = world.apply(vec![unknown], "").await.unwrap_err();
    assert_eq!(error.kind, FailureKind::NeedsPerson);
}

#[tokio::test]
async fn nothing_of_a_step_is_written_if_one_file_belongs_to_the_agent() {
    let world = World::new();
    fs::create_dir_all(world.site.path("/etc/refit/keys")).unwrap();
    std::os::unix::fs::symlink("refit/keys", world.site.path("/etc/more")).unwrap();
    let files = vec![file("/etc/x", "x"), file("/etc/more/mine.pub", "key")];
    let error = world.apply(files, "").await.unwrap_err();
    assert_eq!(error.kind, FailureKind::NeedsPerson);
    assert!(error.message.starts_with("/etc/more/mine.pub belongs to the agent"), "{error}");
    assert!(!world.site.path("/etc/x").exists());
    assert_eq!(fs::read_dir(world.site.path("/etc/refit/keys")).unwrap().count(), 0);
}

#[test]
fn files_that_the_service_does_not_see_are_proven_by_the_mark() {
    let world = World::new();
    for (path, seen) in [
        ("/home/me/.bashrc", false),
        ("/root/.kube/config", false),
        ("/tmp/x", false),
        ("/var/tmp/x", false),
        ("/etc/x", true),
        ("/homes/x", true),
        ("/var/x", true),
    ] {
        let args = FileArgs { files: vec![file(path, "x")], users: Vec::new() };
        let found = check(&world.site, &args);
        assert_eq!(found == Evidence::Done, !seen, "{path}: {found:?}");
        keep::keep(&world.site, path, "files", path).unwrap();
        fs::create_dir_all(world.site.path(path)).unwrap();
        let left = keep::is_back(&world.site, path, "files").unwrap();
        assert_eq!(left.is_some(), seen, "{path}");
    }
}

/// Regression: a plan with the unchanged manifest of kube-vip removed the annotation by which the agent had restarted it,
/// so that the pod was restarted by the plan and again after the next renewal.
#[tokio::test]
async fn the_manifest_of_a_static_pod_keeps_the_annotation_of_its_restart() {
    let pod = |image: &str| {
        format!("kind: Pod\nmetadata:\n  name: vip\nspec:\n  containers:\n  - image: {image}\n")
    };
    let annotated = |image: &str| {
        let list = "  annotations:\n    refit.dev/certificates: \"ab12\"\n";
        pod(image).replace("metadata:\n", &format!("metadata:\n{list}"))
    };
    let own = pod("old").replace("name: vip", "annotations: {refit.dev/certificates: mine}");
    let manifest = "/etc/kubernetes/manifests/vip.yaml";
    for (path, found, planned, written) in [
        (manifest, annotated("old"), pod("old"), annotated("old")),
        (manifest, annotated("old"), pod("new"), annotated("new")),
        (manifest, pod("old"), pod("new"), pod("new")),
        (manifest, annotated("old"), own.clone(), own),
        (manifest, annotated("old"), "no: pod\n".to_owned(), "no: pod\n".to_owned()),
        (manifest, "not: [yaml".to_owned(), pod("new"), pod("new")),
        ("/etc/kubernetes/vip.yaml", annotated("old"), pod("old"), pod("old")),
        ("/etc/kubernetes/manifests/x/vip.yaml", annotated("old"), pod("old"), pod("old")),
    ] {
        let world = World::new();
        let place = world.site.path(path);
        fs::create_dir_all(place.parent().unwrap()).unwrap();
        fs::write(&place, &found).unwrap();
        let args = world.apply(vec![file(path, &planned)], "").await.unwrap();
        assert_eq!(world.site.read(path), written, "{path} {planned}");
        assert_eq!(check(&world.site, &args), Evidence::Done, "{path} {planned}");
        keep::put_back(&world.site, "p", "files").unwrap();
        assert_eq!(world.site.read(path), found, "{path} {planned}");
        fs::write(&place, "changed later").unwrap();
        assert!(matches!(check(&world.site, &args), Evidence::Missing { .. }), "{path}");
    }
}

#[tokio::test]
async fn a_manifest_from_a_secret_is_written_as_its_checksum_demands() {
    let world = World::new();
    let path = "/etc/kubernetes/manifests/vip.yaml";
    fs::create_dir_all(world.site.path("/etc/kubernetes/manifests")).unwrap();
    let annotated = "metadata:\n  annotations:\n    refit.dev/certificates: \"ab12\"\n";
    fs::write(world.site.path(path), annotated).unwrap();
    let mut secret = file(path, "");
    secret.content_from = Some(SecretKey::default());
    secret.sha256 = hex_sum(b"metadata:\n  name: vip\n");
    let args = world.apply(vec![secret], "metadata:\n  name: vip\n").await.unwrap();
    assert_eq!(world.site.read(path), "metadata:\n  name: vip\n");
    assert_eq!(check(&world.site, &args), Evidence::Done);
}

#[test]
fn files_that_a_link_of_root_leads_to_are_proven_by_the_mark_where_the_service_sees_nothing() {
    let world = World::new();
    for (link, target) in [
        ("/etc/app.conf", "/home/me/app.conf"),
        ("/etc/app.d", "../home/me/app.d"),
        ("/etc/twice", "app.d"),
        ("/etc/seen", "/srv/app.conf"),
        ("/etc/round", "round"),
    ] {
        std::os::unix::fs::symlink(target, world.site.path(link)).unwrap();
    }
    for (path, seen) in [
        ("/etc/app.conf", false),
        ("/etc/app.d/x", false),
        ("/etc/twice/x", false),
        ("/etc/seen", true),
        ("/etc/round", true),
    ] {
        let args = FileArgs { files: vec![file(path, "x")], users: Vec::new() };
        let found = check(&world.site, &args);
        assert_eq!(found == Evidence::Done, !seen, "{path}: {found:?}");
    }
    // The link itself is seen.
    keep::keep_itself(&world.site, "p", "files", "/etc/app.conf").unwrap();
    assert_eq!(keep::is_back(&world.site, "p", "files").unwrap(), None);
    fs::remove_file(world.site.path("/etc/app.conf")).unwrap();
    let left = keep::is_back(&world.site, "p", "files").unwrap();
    assert_eq!(left.as_deref(), Some("/etc/app.conf"));
}
