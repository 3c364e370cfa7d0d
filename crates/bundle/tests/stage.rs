//! Staging from every kind of location, and the bundles that are refused.

use std::{fs, os::unix::fs::PermissionsExt as _, time::Duration};

use crate::support::{
    Reply, Server, World, deb, from_directory, leftovers, limits, registry, text, tree,
};
use refit_bundle::{
    Digest, Error, PublicKeys,
    build::{self, SecretKey, Spec},
    fetch::{Limits, Wanted, find, prune},
    manifest::{Architecture, OsFamily, PackageFormat},
};

#[tokio::test]
async fn every_kind_of_location_gives_the_same_files() {
    let world = World::new();
    let (directory, built) = world.build("b");
    let server = Server::directory(world.directory.path().to_owned()).await;
    let registry = registry(&directory, None).await;
    let artifact = built.artifact.to_oci();
    let ways = [
        text(&directory),
        format!("file://{}", directory.display()),
        server.url("b"),
        format!("oci+http://{}/mirror/bundle@{artifact}", registry.address),
        format!("oci+http://{}/mirror/bundle:v1.35.0-debian-amd64", registry.address),
    ];
    let expected = world.stage(&ways[0], "s0").await.unwrap();
    let expected_tree = tree(&expected.directory);
    assert!(expected_tree.contains_key("images/index.json"));
    assert_eq!(
        expected_tree["packages/kubelet.deb"],
        fs::read(world.path("inputs/kubelet.deb")).unwrap()
    );
    for (number, way) in ways.iter().enumerate().skip(1) {
        let staged = world.stage(way, &format!("s{number}")).await.unwrap();
        assert_eq!(tree(&staged.directory), expected_tree, "{way}");
        assert_eq!(staged.manifest_sha256, built.manifest_sha256);
    }
}

#[tokio::test]
async fn a_staged_bundle_is_ready_for_the_steps() {
    let world = World::new();
    let (directory, _) = world.build("b");
    let staged = world.stage(&text(&directory), "s").await.unwrap();
    let packages = staged.packages(PackageFormat::Deb);
    let names: Vec<_> =
        packages.iter().map(|(package, path)| (package.name.as_str(), path.is_file())).collect();
    assert_eq!(names, [("kubeadm", true), ("kubelet", true)]);
    assert_eq!(staged.packages(PackageFormat::Rpm), []);
    assert_eq!(staged.image_names(), ["registry.example/app:1", "registry.example/other:1"]);
    assert_eq!(staged.os_images(), [staged.directory.join("os/os.cosi")]);
    let mode =
        fs::metadata(staged.package_directory().join("kubelet.deb")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o644);
    // The archive is used as an image input again, so image tools can read it.
    let archive = world.path("images.tar");
    let size = staged.write_image_archive(&archive, 0).await.unwrap();
    assert_eq!(size, fs::metadata(&archive).unwrap().len());
    let spec = Spec {
        images: vec![build::ImageSpec { path: archive, name: None }],
        ..Spec::new("v1.35.0".parse().unwrap(), Architecture::Amd64)
    };
    let built = build::build(&spec, &world.key, &world.path("c")).unwrap();
    assert_eq!(built.manifest.images, staged.manifest.images);
}

#[tokio::test]
async fn no_content_of_an_untrusted_or_unwanted_bundle_is_fetched() {
    let mut world = World::new();
    let (directory, built) = world.build("b");
    let server = Server::directory(directory.clone()).await;
    let wanted = [
        Wanted { kubernetes_version: "v1.36.0".parse().ok(), ..Wanted::default() },
        Wanted { architecture: Some(Architecture::Arm64), ..Wanted::default() },
        Wanted { os_family: Some(OsFamily::Rhel), ..Wanted::default() },
        Wanted { manifest_sha256: Some(Digest::of(b"")), ..Wanted::default() },
    ];
    for wanted in wanted {
        let error = world.stage_wanted(&server.url(""), "s", &wanted, &limits()).await.unwrap_err();
        assert_eq!(error.reason(), "BundleUnexpected", "{error}");
    }
    let small = Limits { max_bytes: 1000, ..limits() };
    let error =
        world.stage_wanted(&server.url(""), "s", &Wanted::default(), &small).await.unwrap_err();
    assert_eq!(error.reason(), "BundleTooLarge", "{error}");
    let full = Limits { keep_free: u64::MAX, ..limits() };
    let error =
        world.stage_wanted(&server.url(""), "s", &Wanted::default(), &full).await.unwrap_err();
    assert_eq!(error.reason(), "DiskSpace", "{error}");
    let other = build::key::generate(&world.path("other"), None).unwrap();
    let own = std::mem::replace(&mut world.keys, PublicKeys::load(&other.public).unwrap());
    let error = world.stage(&server.url(""), "s").await.unwrap_err();
    assert_eq!(error.reason(), "BundleUntrusted", "{error}");
    world.keys = PublicKeys::default();
    let error = world.stage(&server.url(""), "s").await.unwrap_err();
    assert!(error.to_string().contains("no public key is trusted"), "{error}");
    // The bundle was changed and then signed with another key.
    world.keys = own;
    let forger = SecretKey::load(&other.secret, None).unwrap();
    let manifest = fs::read(directory.join("refit-bundle.json")).unwrap();
    fs::write(directory.join("refit-bundle.json.minisig"), forger.sign(&manifest, "forged"))
        .unwrap();
    let error = world.stage(&server.url(""), "s").await.unwrap_err();
    assert_eq!(error.reason(), "BundleUntrusted", "{error}");
    let blobs = server.requests().iter().filter(|request| request.path.contains("blobs")).count();
    assert_eq!(blobs, 0);
    assert_eq!(leftovers(&world, "s"), [""; 0]);
    assert_eq!(built.manifest.kubernetes_version.to_string(), "v1.35.0");
}

#[tokio::test]
async fn a_directory_that_others_can_change_is_refused() {
    let world = World::new();
    let (directory, _) = world.build("b");
    let shared = world.path("shared");
    fs::create_dir(&shared).unwrap();
    fs::set_permissions(&shared, fs::Permissions::from_mode(0o777)).unwrap();
    let error = world.stage(&text(&directory), "shared").await.unwrap_err();
    assert!(error.to_string().contains("chmod go-w"), "{error}");
    fs::create_dir(world.path("real")).unwrap();
    std::os::unix::fs::symlink(world.path("real"), world.path("link")).unwrap();
    let error = world.stage(&text(&directory), "link").await.unwrap_err();
    assert_eq!(error.reason(), "StagingDirectoryUnsafe", "{error}");
}

#[tokio::test]
async fn links_in_a_bundle_or_a_staging_directory_lead_nowhere() {
    let world = World::new();
    let (directory, built) = world.build("b");
    let blob = built.manifest.blobs().remove(0);
    let path = directory.join("blobs/sha256").join(blob.sha256.as_str());
    fs::rename(&path, world.path("moved")).unwrap();
    std::os::unix::fs::symlink(world.path("moved"), &path).unwrap();
    let error = world.stage(&text(&directory), "s").await.unwrap_err();
    assert_eq!(error.reason(), "StagingFailed", "{error}");
    fs::remove_file(&path).unwrap();
    fs::rename(world.path("moved"), &path).unwrap();
    // An attacker who could write there earlier left a link in place of a download.
    let victim = world.path("victim");
    fs::write(&victim, "precious").unwrap();
    let partial = world.path("s/partial").join(blob.sha256.as_str());
    let _ = fs::remove_file(&partial);
    std::os::unix::fs::symlink(&victim, &partial).unwrap();
    assert!(world.stage(&text(&directory), "s").await.is_err());
    fs::remove_file(&partial).unwrap();
    fs::hard_link(&victim, &partial).unwrap();
    assert!(world.stage(&text(&directory), "s").await.is_err());
    assert_eq!(fs::read_to_string(victim).unwrap(), "precious");
}

#[tokio::test]
async fn concurrent_stages_do_not_interfere() {
    let world = World::new();
    let (directory, _) = world.build("b");
    let root = directory.clone();
    let server = Server::new(move |request| {
        let stall = request.path.contains("blobs");
        Reply { stall, ..from_directory(&root, request) }
    })
    .await;
    let (slow_url, quick_path) = (server.url(""), text(&directory));
    let slow = world.stage(&slow_url, "s");
    let quick = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        world.stage(&quick_path, "s").await
    };
    let (_, second) = tokio::join!(slow, quick);
    let error = second.unwrap_err();
    assert!(matches!(error, Error::Busy { .. }) && error.is_retriable(), "{error}");
}

#[tokio::test]
async fn a_second_bundle_fetches_only_new_contents() {
    let world = World::new();
    let (directory, first) = world.build("b");
    let staged = world.stage(&text(&directory), "s").await.unwrap();
    fs::write(world.path("inputs/kubeadm.deb"), deb("kubeadm", 5)).unwrap();
    let (directory, second) = world.build("c");
    assert_ne!(first.manifest_sha256, second.manifest_sha256);
    let server = Server::directory(directory).await;
    let newer = world.stage(&server.url(""), "s").await.unwrap();
    let blobs = server.requests().iter().filter(|request| request.path.contains("blobs")).count();
    assert_eq!(blobs, 1);
    let freed = prune(&world.path("s"), 1, None).await.unwrap();
    let old = first.manifest.files.iter().find(|file| file.path.contains("kubeadm")).unwrap();
    assert_eq!(freed, old.size);
    assert!(!staged.directory.exists());
    assert!(find(&world.path("s"), &world.keys, &Wanted::default()).await.unwrap().is_some());
    let before = tree(&newer.directory);
    prune(&world.path("s"), 1, None).await.unwrap();
    assert_eq!(tree(&newer.directory), before);
}

/// A bundle in use counts as the newest, even if staging found it complete without asking a server,
/// or if the clock was set back.
#[tokio::test]
async fn pruning_never_takes_the_bundle_that_was_staged_last() {
    let world = World::new();
    let (directory, first) = world.build("b");
    let older = world.stage(&text(&directory), "s").await.unwrap();
    let wanted =
        Wanted { manifest_sha256: Some(first.manifest_sha256.clone()), ..Wanted::default() };
    fs::write(world.path("inputs/kubeadm.deb"), deb("kubeadm", 5)).unwrap();
    let (directory, _) = world.build("c");
    let newer = world.stage(&text(&directory), "s").await.unwrap();
    let again = world.stage_wanted("http://127.0.0.1:1/b", "s", &wanted, &limits()).await.unwrap();
    assert_eq!(again.directory, older.directory);
    prune(&world.path("s"), 1, None).await.unwrap();
    assert!(older.directory.exists() && !newer.directory.exists());
    let newer = world.stage(&text(&directory), "s").await.unwrap();
    let in_use = Some(&older.manifest_sha256);
    prune(&world.path("s"), 1, in_use).await.unwrap();
    assert!(older.directory.exists() && !newer.directory.exists());
}

/// A disk without room for the image archive is reported before it fills up, even if nothing is
/// downloaded. If nothing is written, no space is checked.
#[tokio::test]
async fn space_is_checked_only_for_what_is_written() {
    let world = World::new();
    let (directory, _) = world.build("b");
    let staged = world.stage(&text(&directory), "s").await.unwrap();
    let full = Limits { keep_free: u64::MAX, ..limits() };
    let again =
        world.stage_wanted(&text(&directory), "s", &Wanted::default(), &full).await.unwrap();
    assert_eq!(again.directory, staged.directory);
    let archive = world.path("images.tar");
    let error = staged.write_image_archive(&archive, u64::MAX).await.unwrap_err();
    assert_eq!(error.reason(), "DiskSpace", "{error}");
    assert!(!archive.exists());
}

#[tokio::test]
async fn a_complete_bundle_needs_no_server() {
    let world = World::new();
    let (directory, built) = world.build("b");
    world.stage(&text(&directory), "s").await.unwrap();
    let wanted = Wanted { manifest_sha256: Some(built.manifest_sha256), ..Wanted::default() };
    let gone = "http://127.0.0.1:1/b";
    let staged = world.stage_wanted(gone, "s", &wanted, &limits()).await.unwrap();
    // A byte that changed on the disk is detected and repaired from the bundle.
    let victim = staged.directory.join("packages/kubelet.deb");
    fs::write(&victim, "x").unwrap();
    assert!(find(&world.path("s"), &world.keys, &wanted).await.unwrap().is_none());
    assert!(world.stage_wanted(gone, "s", &wanted, &limits()).await.is_err());
    world.stage_wanted(&text(&directory), "s", &wanted, &limits()).await.unwrap();
    assert_eq!(fs::read(&victim).unwrap(), fs::read(world.path("inputs/kubelet.deb")).unwrap());
    // The same holds for a file that was removed or replaced only in the directory.
    fs::remove_file(&victim).unwrap();
    fs::write(&victim, "y").unwrap();
    world.stage_wanted(&text(&directory), "s", &wanted, &limits()).await.unwrap();
    assert_eq!(fs::read(&victim).unwrap(), fs::read(world.path("inputs/kubelet.deb")).unwrap());
}
