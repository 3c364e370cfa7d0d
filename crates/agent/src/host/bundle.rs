//! A signed bundle on a host: verified before anything of it is used, and remembered for the steps
//! after the one that staged it.

use std::{
    fs,
    num::NonZeroU64,
    path::{Path, PathBuf},
};

use refit_api::refit::{BundleRef, PackageArgs};
use refit_bundle::{
    digest::Digest,
    fetch::{self, Limits, Location, Request, Staged, Wanted},
    keys::PublicKeys,
    manifest::{Architecture, OsFamily},
};

use super::{
    KubernetesVersion, Program, Site,
    files::atomic::{self, Access},
    images,
    work::WorkError,
};

/// Public keys of those who may sign a bundle for this host: its own administrator's choice.
pub const KEYS: &str = "/etc/refit/keys";

/// Credentials for registries that the kubelet of a host has, and we with it.
const CREDENTIALS: &str = "/var/lib/kubelet/config.json";
/// Bundles that stay on a host: the plan's, and the one before it, to whose packages it may go back.
const KEPT: usize = 2;

/// Fetches and verifies a bundle for this host, and remembers its packages for the plan.
pub async fn stage(
    site: &Site,
    plan: &str,
    bundle: &BundleRef,
    version: Option<&KubernetesVersion>,
) -> Result<Staged, WorkError> {
    let staged = fetch(site, bundle, version).await?;
    let folder = staged.package_folder();
    let text = folder.display().to_string();
    atomic::replace(
        &remembered(site, plan),
        text.as_bytes(),
        Access::of_mode(0o600),
    )?;
    site.say(&format!(
        "bundle {} is verified, signed by {}",
        staged.manifest_sha256.as_str(),
        staged.signed.key
    ));
    import(site, &staged).await?;
    if let Err(error) = fetch::prune(&site.state().join("bundle"), KEPT).await {
        // Old bundles take room and nothing else.
        site.say(&format!("older bundles could not be removed: {error}"));
    }
    Ok(staged)
}

async fn fetch(
    site: &Site,
    bundle: &BundleRef,
    version: Option<&KubernetesVersion>,
) -> Result<Staged, WorkError> {
    let refused = |what: &str, error: &dyn std::fmt::Display| {
        WorkError::last(format!("bundle.{what} of the plan is of no use: {error}"))
    };
    let location: Location = bundle
        .location
        .parse()
        .map_err(|error| refused("location", &error))?;
    let manifest_sha256 = match bundle.manifest_sha256.as_str() {
        "" => None,
        text => Some(
            Digest::try_from(text.to_lowercase())
                .map_err(|error| refused("manifestSha256", &error))?,
        ),
    };
    let keys = keys(site, &bundle.public_key)?;
    let limits = Limits {
        bytes_per_second: u64::try_from(bundle.bytes_per_second)
            .ok()
            .and_then(NonZeroU64::new),
        credentials_file: Some(site.path(CREDENTIALS)),
        ..Limits::default()
    };
    let folder = site.state().join("bundle");
    let wanted = Wanted {
        manifest_sha256,
        kubernetes_version: version.map(|version| version.as_str().to_owned()),
        architecture: Architecture::of_this_host(),
        os_family: fs::read_to_string(site.path("/etc/os-release"))
            .ok()
            .and_then(|text| OsFamily::of_os_release(&text)),
    };
    let request = Request {
        location: &location,
        keys: &keys,
        folder: &folder,
        limits: &limits,
        wanted: &wanted,
        progress: None,
    };
    Box::pin(fetch::stage(&request)).await.map_err(|error| {
        let message = format!("the bundle cannot be used: {error}");
        if error.is_retriable() {
            WorkError::retriable(message)
        } else {
            WorkError::needs_person(message)
        }
    })
}

/// The keys that the host trusts; of them, the one that a plan names.
fn keys(site: &Site, named: &str) -> Result<PublicKeys, WorkError> {
    let of_host = |error: &dyn std::fmt::Display| {
        WorkError::needs_person(format!("the host's keys in {KEYS} are of no use: {error}"))
    };
    let folder = site.path(KEYS);
    let keys = if folder.exists() {
        PublicKeys::load(&folder).map_err(|error| of_host(&error))?
    } else {
        PublicKeys::default()
    };
    if named.is_empty() {
        if keys.is_empty() {
            return Err(of_host(
                &"there is none, so no bundle is trusted: put a .pub file there",
            ));
        }
        return Ok(keys);
    }
    let named = PublicKeys::parse("bundle.publicKey", named)
        .map_err(|error| WorkError::last(error.to_string()))?;
    keys.narrowed_to(&named).map_err(|error| of_host(&error))
}

/// Imports the images of a bundle that the runtime does not have.
async fn import(site: &Site, staged: &Staged) -> Result<(), WorkError> {
    let names: Vec<String> = staged
        .image_names()
        .into_iter()
        .map(str::to_owned)
        .collect();
    if names.is_empty() || images::are_there(site, &names).await? {
        return Ok(());
    }
    if !site.has(Program::Ctr) {
        return Err(WorkError::needs_person(
            "the bundle has images, but the host has no `ctr` to import them: install containerd",
        ));
    }
    let archive = site.state().join("bundle").join("images.tar");
    let outcome = match staged.write_image_archive(&archive).await {
        Ok(_) => images::import(site, &archive).await,
        Err(error) => Err(WorkError::needs_person(error.to_string())),
    };
    // As large as all images together, also where the disk was full before its end.
    let _ = fs::remove_file(&archive);
    outcome
}

fn remembered(site: &Site, plan: &str) -> PathBuf {
    site.snapshot(plan).join("bundle-packages")
}

/// Where the packages of a plan's steps come from: from its bundle, once that is staged, unless the
/// step says otherwise.
pub fn packages(site: &Site, plan: &str, from: &PackageArgs) -> PackageArgs {
    let mut from = from.clone();
    if from.path.is_empty() && from.url.is_empty() && from.repository.is_empty() {
        let folder = fs::read_to_string(remembered(site, plan)).unwrap_or_default();
        if has_packages(Path::new(&folder)) {
            from.path = folder;
        }
    }
    from
}

fn has_packages(folder: &Path) -> bool {
    folder.is_absolute() && fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_some())
}

#[cfg(test)]
mod tests {
    use refit_api::refit::FailureKind;
    use refit_bundle::build::{PackageSpec, SecretKey, Spec, build, key};

    use super::*;

    fn site() -> (tempfile::TempDir, Site) {
        let folder = tempfile::tempdir().unwrap();
        let site = Site::at(folder.path().join("root"), folder.path().join("state"));
        fs::create_dir_all(site.state()).unwrap();
        (folder, site)
    }

    #[tokio::test]
    async fn a_host_that_trusts_no_key_takes_no_bundle() {
        let (_folder, site) = site();
        let bundle = BundleRef {
            location: "/srv/bundle".to_owned(),
            ..BundleRef::default()
        };
        let error = stage(&site, "p", &bundle, None).await.unwrap_err();
        assert_eq!(error.kind, FailureKind::NeedsPerson);
        assert!(error.message.contains("no bundle is trusted"), "{error}");
        let odd = BundleRef {
            location: "srv/bundle".to_owned(),
            ..BundleRef::default()
        };
        let error = stage(&site, "p", &odd, None).await.unwrap_err();
        assert_eq!(error.kind, FailureKind::Final);
    }

    /// A signed bundle with a tarball, for this kind of host.
    fn make_bundle(folder: &Path, version: &str) -> (PathBuf, String) {
        let architecture = Architecture::of_this_host().unwrap_or(Architecture::Amd64);
        let tarball = folder.join("kubernetes-node.tar.gz");
        fs::write(&tarball, version).unwrap();
        let files = key::generate(&folder.join(version), None).unwrap();
        let mut spec = Spec::new(version.to_owned(), architecture);
        spec.packages.push(PackageSpec {
            path: tarball,
            ..PackageSpec::default()
        });
        let output = folder.join(format!("{version}.tar"));
        build(
            &spec,
            &SecretKey::load(&files.secret, None).unwrap(),
            &output,
        )
        .unwrap();
        (output, fs::read_to_string(files.public).unwrap())
    }

    #[tokio::test]
    async fn a_signed_bundle_of_the_version_is_staged_and_another_is_not() {
        let (folder, site) = site();
        let (path, public_key) = make_bundle(folder.path(), "v1.35.0");
        let bundle = BundleRef {
            location: path.display().to_string(),
            public_key: public_key.clone(),
            ..BundleRef::default()
        };
        let version = KubernetesVersion::parse("v1.35.0").unwrap();
        let staged = stage(&site, "p", &bundle, Some(&version)).await.unwrap();
        let from = packages(&site, "p", &PackageArgs::default());
        assert_eq!(Path::new(&from.path), staged.package_folder());
        let tarball = staged.package_folder().join("kubernetes-node.tar.gz");
        assert_eq!(fs::read_to_string(tarball).unwrap(), "v1.35.0");
        let newer = KubernetesVersion::parse("v1.36.0").unwrap();
        let error = stage(&site, "q", &bundle, Some(&newer)).await.unwrap_err();
        assert_eq!(error.kind, FailureKind::NeedsPerson);
        assert!(
            error
                .message
                .contains("Kubernetes version is v1.35.0, not v1.36.0"),
            "{error}"
        );
        assert_eq!(packages(&site, "q", &PackageArgs::default()).path, "");
        // A plan cannot bring a key that the host's administrator did not choose.
        let (_, other) = make_bundle(folder.path(), "v1.34.0");
        fs::create_dir_all(site.path(KEYS)).unwrap();
        fs::write(site.path(KEYS).join("release.pub"), other).unwrap();
        let error = stage(&site, "p", &bundle, Some(&version))
            .await
            .unwrap_err();
        assert_eq!(error.kind, FailureKind::NeedsPerson);
        assert!(error.message.contains("does not trust"), "{error}");
    }

    #[test]
    fn later_steps_take_the_packages_of_the_plans_bundle() {
        let (folder, site) = site();
        let none = PackageArgs::default();
        assert_eq!(packages(&site, "p", &none).path, "");
        let text = folder.path().display().to_string();
        atomic::replace(
            &remembered(&site, "p"),
            text.as_bytes(),
            Access::of_mode(0o600),
        )
        .unwrap();
        assert_eq!(packages(&site, "p", &none).path, text);
        assert_eq!(packages(&site, "another", &none).path, "");
        let said = PackageArgs {
            repository: "https://repo.example/".to_owned(),
            ..none
        };
        assert_eq!(packages(&site, "p", &said), said);
    }
}
