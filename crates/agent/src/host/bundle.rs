//! A signed bundle on a host. It is verified before any part of it is used, and recorded for the
//! steps after the one that staged it.

use std::{collections::BTreeMap, fs, num::NonZeroU64, path::PathBuf};

use refit_bundle::{
    digest::Digest,
    fetch::{self, Limits, Location, Request, Staged, Wanted},
    keys::PublicKeys,
    manifest::{Architecture, FileKind, OsFamily, PackageFormat},
};
use refit_kinds::refit::{BundleRef, OsImageArgs, PackageArgs, PackageDriver};
use refit_kinds::version::KubernetesVersion;
use serde::{Deserialize, Serialize};

use super::{
    Program, Site,
    files::atomic::{self, Access},
    images, packages,
    work::WorkError,
};

/// Public keys that may sign a bundle for this host. The host's administrator chooses them.
pub(crate) const KEYS: &str = "/etc/refit/keys";

/// The kubelet's registry credentials, which Refit uses too.
const CREDENTIALS: &str = "/var/lib/kubelet/config.json";
/// How many bundles stay on a host: the plan's, and the previous one, whose packages a rollback may
/// need.
const KEPT: usize = 2;

/// URL prefix of an OS image in the plan's bundle. The path in the bundle follows.
const IN_BUNDLE: &str = "bundle:///";

/// Data about a plan's bundle for later steps. All of it was verified.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Remembered {
    directory: PathBuf,
    /// Whether the bundle has packages for a package manager.
    has_packages: bool,
    /// The sha256 of each tarball of binaries, by its path in the bundle.
    #[serde(default)]
    tarballs: BTreeMap<String, String>,
    /// Paths of OS images in the bundle.
    #[serde(default)]
    os_images: Vec<String>,
}

impl Remembered {
    fn of(staged: &Staged) -> Self {
        let files = &staged.manifest.files;
        let is_tarball = |file: &&refit_bundle::manifest::File| {
            let package = file.package.as_ref();
            package.is_some_and(|package| package.format == PackageFormat::Tarball)
        };
        let tarballs: BTreeMap<_, _> = files
            .iter()
            .filter(is_tarball)
            .map(|file| (file.path.clone(), file.sha256.as_str().to_owned()))
            .collect();
        let of_kind = |kind| files.iter().filter(move |file| file.kind == kind);
        Self {
            directory: staged.directory.clone(),
            has_packages: of_kind(FileKind::Package).count() > tarballs.len(),
            tarballs,
            os_images: of_kind(FileKind::OsImage).map(|file| file.path.clone()).collect(),
        }
    }

    /// The record of a plan, if its bundle was staged.
    fn load(site: &Site, plan: &str) -> Option<Self> {
        let text = fs::read(remembered(site, plan)).ok()?;
        serde_json::from_slice(&text).ok()
    }

    fn save(&self, site: &Site, plan: &str) -> Result<(), WorkError> {
        let text = serde_json::to_vec(self).expect("plain data serialises to JSON");
        atomic::replace(&remembered(site, plan), &text, Access::of_mode(0o600)).map(|_| ())
    }

    /// The tarball with the Kubernetes programs, and its sha256.
    fn tarball(&self) -> Result<Option<(String, String)>, WorkError> {
        let named = |path: &&String| path.starts_with("packages/kubernetes");
        let all: Vec<&String> = self.tarballs.keys().collect();
        let kubernetes: Vec<&String> = all.iter().copied().filter(named).collect();
        match (kubernetes.as_slice(), all.as_slice()) {
            (_, []) => Ok(None),
            ([path], _) | ([], [path]) => {
                let sum = self.tarballs.get(*path).cloned().unwrap_or_default();
                Ok(Some((self.directory.join(path).display().to_string(), sum)))
            }
            _ => Err(WorkError::permanent(format!(
                "the bundle has several tarballs that may contain kubeadm, kubelet and kubectl \
                 ({}); build it with only one",
                self.tarballs.keys().cloned().collect::<Vec<_>>().join(", ")
            ))),
        }
    }
}

/// Fetches and verifies a bundle for this host, and records its content for the plan.
pub async fn stage(
    site: &Site,
    plan: &str,
    bundle: &BundleRef,
    version: Option<&KubernetesVersion>,
) -> Result<Staged, WorkError> {
    let staged = fetch(site, bundle, version).await?;
    Remembered::of(&staged).save(site, plan)?;
    site.log(&format!(
        "verified bundle {}, signed by {}",
        staged.manifest_sha256.as_str(),
        staged.signed.key
    ));
    import(site, &staged).await?;
    if let Err(error) =
        fetch::prune(&site.state().join("bundle"), KEPT, Some(&staged.manifest_sha256)).await
    {
        // Old bundles only take disk space.
        site.log(&format!("cannot remove older bundles: {error}"));
    }
    Ok(staged)
}

async fn fetch(
    site: &Site,
    bundle: &BundleRef,
    version: Option<&KubernetesVersion>,
) -> Result<Staged, WorkError> {
    let refused = |what: &str, error: &dyn std::fmt::Display| {
        WorkError::permanent(format!("invalid bundle.{what} in the plan: {error}"))
    };
    let location: Location =
        bundle.location.parse().map_err(|error| refused("location", &error))?;
    let manifest_sha256 = match bundle.manifest_sha256.as_str() {
        "" => None,
        text => Some(
            Digest::try_from(text.to_lowercase())
                .map_err(|error| refused("manifestSha256", &error))?,
        ),
    };
    let keys = keys(site, &bundle.public_key)?;
    let limits = Limits {
        bytes_per_second: u64::try_from(bundle.bytes_per_second).ok().and_then(NonZeroU64::new),
        credentials_file: Some(site.path(CREDENTIALS)),
        proxies: site.proxies().clone(),
        ..Limits::default()
    };
    let directory = site.state().join("bundle");
    let wanted = Wanted {
        manifest_sha256,
        kubernetes_version: version.cloned(),
        architecture: Architecture::of_this_host(),
        os_family: fs::read_to_string(site.path("/etc/os-release"))
            .ok()
            .and_then(|text| OsFamily::of_os_release(&text)),
    };
    let request = Request {
        location: &location,
        keys: &keys,
        directory: &directory,
        limits: &limits,
        wanted: &wanted,
        progress: None,
    };
    Box::pin(fetch::stage(&request)).await.map_err(|error| {
        let message = format!("cannot stage the bundle: {error}");
        if error.is_retriable() {
            WorkError::retriable(message)
        } else {
            WorkError::needs_person(message)
        }
    })
}

/// The keys that the host trusts, narrowed to the key that the plan names. A plan cannot make a key
/// trusted: the author of a plan could otherwise sign its content too.
fn keys(site: &Site, named: &str) -> Result<PublicKeys, WorkError> {
    let of_host = |error: &dyn std::fmt::Display| {
        WorkError::needs_person(format!("invalid bundle keys in {KEYS} on the host: {error}"))
    };
    let directory = site.path(KEYS);
    let keys = if directory.exists() {
        PublicKeys::load(&directory).map_err(|error| of_host(&error))?
    } else {
        PublicKeys::default()
    };
    if keys.is_empty() {
        return Err(of_host(
            &"the directory has no key, so no bundle is trusted, whichever key a plan names; put \
              the signer's .pub file there when you set up the host, or with `refit-agent install \
              --bundle-key FILE`",
        ));
    }
    if named.is_empty() {
        return Ok(keys);
    }
    let named = PublicKeys::parse("bundle.publicKey", named)
        .map_err(|error| WorkError::permanent(error.to_string()))?;
    keys.narrowed_to(&named).map_err(|error| of_host(&error))
}

/// Imports the images of a bundle if the runtime does not have all of them.
async fn import(site: &Site, staged: &Staged) -> Result<(), WorkError> {
    let names: Vec<String> = staged.image_names().into_iter().map(str::to_owned).collect();
    if names.is_empty() || images::are_there(site, &names).await? {
        return Ok(());
    }
    if !site.has(Program::Ctr) {
        return Err(WorkError::needs_person(
            "the bundle has images, but the host has no `ctr` to import them: install containerd",
        ));
    }
    let archive = site.state().join("bundle").join("images.tar");
    let keep_free = Limits::default().keep_free;
    let outcome = match staged.write_image_archive(&archive, keep_free).await {
        Ok(_) => images::import(site, &archive).await,
        Err(error) => Err(WorkError::needs_person(error.to_string())),
    };
    // The archive is as large as all images together. It is removed even if the disk was full.
    let _ = fs::remove_file(&archive);
    outcome
}

fn remembered(site: &Site, plan: &str) -> PathBuf {
    site.snapshot(plan).join("bundle.json")
}

/// The package source of a step: the plan's bundle once it is staged, unless the step sets another
/// source.
pub fn packages(site: &Site, plan: &str, from: &PackageArgs) -> Result<PackageArgs, WorkError> {
    let mut from = from.clone();
    if !(from.path.is_empty() && from.url.is_empty() && from.repository.is_empty()) {
        return Ok(from);
    }
    let Some(bundle) = Remembered::load(site, plan) else {
        return Ok(from);
    };
    let driver = match from.driver {
        PackageDriver::Auto => packages::detect(site),
        named @ (PackageDriver::Apt | PackageDriver::Dnf | PackageDriver::Tarball) => Some(named),
    };
    if driver == Some(PackageDriver::Tarball) {
        if let Some((path, sha256)) = bundle.tarball()? {
            (from.path, from.sha256) = (path, sha256);
        }
    } else if bundle.has_packages {
        let directory = bundle.directory.join(FileKind::Package.directory());
        from.path = directory.display().to_string();
    }
    Ok(from)
}

/// Whether an OS image is in the plan's bundle.
pub(crate) fn has_os_image(image: &OsImageArgs) -> bool {
    image.url.starts_with(IN_BUNDLE)
}

/// Resolves an OS image for Trident: an image in the plan's bundle gets the URL of its verified
/// file.
pub(crate) fn os_image(
    site: &Site,
    plan: &str,
    image: &OsImageArgs,
) -> Result<OsImageArgs, WorkError> {
    let Some(path) = image.url.strip_prefix(IN_BUNDLE) else {
        return Ok(image.clone());
    };
    let refused = |problem: String| {
        WorkError::permanent(format!("invalid osImage.url {:?}: {problem}", image.url))
    };
    let bundle = Remembered::load(site, plan)
        .ok_or_else(|| refused("the plan names no bundle; set bundle.location".to_owned()))?;
    if !bundle.os_images.iter().any(|known| known == path) {
        return Err(refused(match bundle.os_images.join(", ") {
            names if names.is_empty() => "the bundle has no OS image".to_owned(),
            names => format!("the bundle has these OS images: {names}"),
        }));
    }
    let file = bundle.directory.join(path).display().to_string();
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-+~".contains(&byte);
    if !file.bytes().all(plain) {
        return Err(refused(format!(
            "the file name {file} changes in a URL; use only letters, digits and ._-+~"
        )));
    }
    Ok(OsImageArgs { url: format!("file://{file}"), ..image.clone() })
}

#[cfg(test)]
#[path = "bundle_tests.rs"]
mod tests;
