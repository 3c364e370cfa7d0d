use std::path::Path;

use refit_bundle::build::{FileSpec, PackageSpec, SecretKey, Spec, build, key};
use refit_kinds::refit::FailureKind;

use super::*;

fn site() -> (tempfile::TempDir, Site) {
    let directory = tempfile::tempdir().unwrap();
    let site = Site::at(directory.path().join("root"), directory.path().join("state"));
    fs::create_dir_all(site.state()).unwrap();
    (directory, site)
}

#[tokio::test]
async fn a_host_that_trusts_no_key_takes_no_bundle() {
    let (_directory, site) = site();
    let bundle = BundleRef { location: "/srv/bundle".to_owned(), ..BundleRef::default() };
    let error = stage(&site, "p", &bundle, None).await.unwrap_err();
    assert_eq!(error.kind, FailureKind::NeedsPerson, "{error}");
    assert!(error.message.contains("no bundle is trusted"), "{error}");
    let odd = BundleRef { location: "srv/bundle".to_owned(), ..BundleRef::default() };
    let error = stage(&site, "p", &odd, None).await.unwrap_err();
    assert_eq!(error.kind, FailureKind::Final);
}

/// A bundle for this kind of host, and the public key of its signer.
fn make_bundle(directory: &Path, version: &str, files: &[&str]) -> (PathBuf, String) {
    let architecture = Architecture::of_this_host().unwrap_or(Architecture::Amd64);
    let mut spec = Spec::new(version.parse().unwrap(), architecture);
    for name in files {
        let path = directory.join(name);
        fs::write(&path, version).unwrap();
        if path.extension().is_some_and(|ending| ending == "cosi") {
            let file = FileSpec { path, name: None };
            spec.os_images.push(file);
        } else {
            spec.packages.push(PackageSpec { path, ..PackageSpec::default() });
        }
    }
    let files = key::generate(&directory.join(version), None).unwrap();
    let output = directory.join(format!("bundle-{version}"));
    let key = SecretKey::load(&files.secret, None).unwrap();
    build(&spec, &key, &output).unwrap();
    (output, fs::read_to_string(files.public).unwrap())
}

fn trust(site: &Site, name: &str, key: &str) {
    fs::create_dir_all(site.path(KEYS)).unwrap();
    fs::write(site.path(KEYS).join(name), key).unwrap();
}

const TARBALL: &str = "kubernetes-node.tar.gz";

fn by_tarball() -> PackageArgs {
    PackageArgs { driver: PackageDriver::Tarball, ..PackageArgs::default() }
}

#[tokio::test]
async fn only_a_bundle_of_the_planned_version_is_staged() {
    let (directory, site) = site();
    let (path, public_key) = make_bundle(directory.path(), "v1.35.0", &[TARBALL]);
    let bundle = BundleRef {
        location: path.display().to_string(),
        public_key: public_key.clone(),
        ..BundleRef::default()
    };
    trust(&site, "own.pub", &public_key);
    let version = "v1.35.0".parse::<KubernetesVersion>().unwrap();
    let staged = stage(&site, "p", &bundle, Some(&version)).await.unwrap();
    let from = packages(&site, "p", &by_tarball()).unwrap();
    let tarball = staged.package_directory().join(TARBALL);
    assert_eq!(Path::new(&from.path), tarball, "a file, not its directory");
    assert_eq!(fs::read_to_string(&tarball).unwrap(), "v1.35.0");
    assert_eq!(from.sha256, Digest::of(b"v1.35.0").as_str());
    let newer = "v1.36.0".parse::<KubernetesVersion>().unwrap();
    let error = stage(&site, "q", &bundle, Some(&newer)).await.unwrap_err();
    assert_eq!(error.kind, FailureKind::NeedsPerson, "{error}");
    assert!(error.message.contains("Kubernetes version is v1.35.0, expected v1.36.0"), "{error}");
    assert_eq!(packages(&site, "q", &by_tarball()).unwrap().path, "");
    // A plan cannot add a key that the host's administrator did not choose.
    let (_, other) = make_bundle(directory.path(), "v1.34.0", &[TARBALL]);
    trust(&site, "own.pub", &other);
    let error = stage(&site, "p", &bundle, Some(&version)).await.unwrap_err();
    assert_eq!(error.kind, FailureKind::NeedsPerson, "{error}");
    assert!(error.message.contains("does not trust"), "{error}");
}

#[tokio::test]
async fn a_plan_cannot_make_a_key_trusted() {
    let (directory, site) = site();
    let (path, public_key) = make_bundle(directory.path(), "v1.35.0", &[TARBALL]);
    let bundle =
        BundleRef { location: path.display().to_string(), public_key, ..BundleRef::default() };
    let error = stage(&site, "p", &bundle, None).await.unwrap_err();
    assert_eq!(error.kind, FailureKind::NeedsPerson, "{error}");
    assert!(
        error.message.contains("whichever key a plan names; put the signer's .pub file"),
        "{error}"
    );
    assert!(!site.state().join("bundle").exists(), "nothing was fetched");
}

#[tokio::test]
async fn a_bundled_os_image_resolves_to_its_verified_file() {
    let (directory, site) = site();
    let (path, key) = make_bundle(directory.path(), "v1.35.0", &[TARBALL, "azl-3.cosi"]);
    trust(&site, "own.pub", &key);
    let bundle = BundleRef { location: path.display().to_string(), ..BundleRef::default() };
    let image = |url: &str| OsImageArgs {
        url: url.to_owned(),
        sha384: "ab".repeat(48),
        ..OsImageArgs::default()
    };
    let wanted = image("bundle:///os/azl-3.cosi");
    let error = os_image(&site, "p", &wanted).unwrap_err();
    assert!(error.message.contains("names no bundle"), "{error}");
    let staged = stage(&site, "p", &bundle, None).await.unwrap();
    let found = os_image(&site, "p", &wanted).unwrap();
    let file = found.url.strip_prefix("file://").unwrap();
    assert_eq!(Path::new(file), staged.os_images()[0]);
    assert_eq!(fs::read_to_string(file).unwrap(), "v1.35.0");
    assert_eq!(found.sha384, wanted.sha384);
    for other in ["os/azl-4.cosi", "packages/kubernetes-node.tar.gz", "../x"] {
        let error = os_image(&site, "p", &image(&format!("{IN_BUNDLE}{other}")));
        let error = error.unwrap_err();
        assert_eq!(error.kind, FailureKind::Final);
        assert!(error.message.contains("os/azl-3.cosi"), "{error}");
    }
    let elsewhere = image("https://images.example/x.cosi");
    assert_eq!(os_image(&site, "p", &elsewhere).unwrap(), elsewhere);
}

#[test]
fn later_steps_use_the_packages_of_the_bundle() {
    let (directory, site) = site();
    let args = |driver| PackageArgs { driver, ..PackageArgs::default() };
    let path = |plan: &str, driver| packages(&site, plan, &args(driver)).unwrap().path;
    assert_eq!(path("p", PackageDriver::Dnf), "");
    let mut bundle = Remembered {
        directory: directory.path().to_owned(),
        has_packages: true,
        ..Remembered::default()
    };
    bundle.save(&site, "p").unwrap();
    let inside = directory.path().join("packages").display().to_string();
    assert_eq!(path("p", PackageDriver::Dnf), inside);
    assert_eq!(path("p", PackageDriver::Apt), inside);
    assert_eq!(path("p", PackageDriver::Tarball), "", "it has none");
    assert_eq!(path("another", PackageDriver::Dnf), "");
    let explicit =
        PackageArgs { repository: "https://repo.example/".to_owned(), ..args(PackageDriver::Dnf) };
    assert_eq!(packages(&site, "p", &explicit).unwrap(), explicit);
    // Of several tarballs, the Kubernetes tarball is used, if there is exactly one.
    let tarball = |name: &str| (format!("packages/{name}"), "00".repeat(32));
    bundle.tarballs = [tarball("cni.tgz"), tarball(TARBALL)].into();
    bundle.save(&site, "p").unwrap();
    assert!(path("p", PackageDriver::Tarball).ends_with(TARBALL));
    bundle.tarballs.extend([tarball("kubernetes-server.tar.gz")]);
    bundle.save(&site, "p").unwrap();
    let error = packages(&site, "p", &args(PackageDriver::Tarball)).unwrap_err();
    assert!(error.message.contains("build it with only one"), "{error}");
}
