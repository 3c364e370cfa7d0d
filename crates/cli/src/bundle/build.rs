//! `refit bundle build`.

use std::{path::PathBuf, process::ExitCode};

use refit_bundle::build::{self, FileSpec, ImageSpec, PackageSpec, SecretKey, Spec};
use refit_kinds::version::KubernetesVersion;
use serde_json::json;

use super::{ArchitectureName, OsFamilyName};
use crate::{
    global::GlobalArgs,
    printer::{Format, Printer},
};

/// Pack packages and images into a bundle and sign it.
///
/// List the contents in a file (--from), in flags, or in both. Refit reads the metadata inside each
/// package and refuses a package for another architecture or system. The same inputs give the same
/// bytes.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  refit bundle build --from bundle.yaml --key release.key v1.35.0
  refit bundle build --kubernetes-version v1.35.0 --architecture amd64 --os-family debian \\
    --package debs/ --image images/kube-apiserver.tar --key release.key bundle/

The file of --from, paths relative to it:
  kubernetesVersion: v1.35.0
  architecture: amd64
  osFamily: debian
  packages:                  # .deb, .rpm, tarballs, or directories of these
  - path: debs/
  images:                    # docker save archives, OCI archives or layouts
  - path: images/kube-apiserver.tar
  - path: images/pause
    name: registry.k8s.io/pause:3.10
  osImages:
  - path: azl3-v1.35.0.cosi
  files:
  - path: notes.txt

Exit codes:
  0  the bundle was created
  1  the bundle cannot be built; nothing was written
  2  the command line is invalid")]
pub(crate) struct Args {
    /// Create the bundle in this directory.
    #[arg(value_name = "OUTPUT")]
    path: PathBuf,
    /// Read the bundle contents from this file.
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
    /// Set the Kubernetes version that the bundle installs.
    #[arg(long, value_name = "VERSION", required_unless_present = "from")]
    kubernetes_version: Option<KubernetesVersion>,
    /// Set the processor architecture of the hosts.
    #[arg(long, value_enum, value_name = "ARCH", required_unless_present = "from")]
    architecture: Option<ArchitectureName>,
    /// Set the operating system of the hosts [default: any, without .deb and .rpm].
    #[arg(long, value_enum, value_name = "FAMILY")]
    os_family: Option<OsFamilyName>,
    /// Add a .deb, .rpm or tarball, or a directory that contains them; may be repeated.
    #[arg(long, value_name = "PATH")]
    package: Vec<PathBuf>,
    /// Add a `docker save` or OCI archive, or an OCI layout; may be repeated.
    #[arg(long, value_name = "PATH")]
    image: Vec<PathBuf>,
    /// Add an operating system image; may be repeated.
    #[arg(long, value_name = "PATH")]
    os_image: Vec<PathBuf>,
    /// Add any other file; may be repeated.
    #[arg(long, value_name = "PATH")]
    file: Vec<PathBuf>,
    /// Sign with this secret key, from `refit bundle keygen` or `minisign -G`.
    #[arg(long, value_name = "FILE")]
    key: PathBuf,
    /// Read the password of the key from the first line of this file.
    #[arg(long, value_name = "FILE")]
    password_file: Option<PathBuf>,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

/// Runs the command.
pub(super) fn run(args: &Args, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
    let printer = Printer::new(args.output, global);
    let spec = spec(args)?;
    let password = super::password(args.password_file.as_deref())?;
    let key = SecretKey::load(&args.key, password)?;
    let built = build::build(&spec, &key, &args.path)?;
    let (manifest, artifact) = (&built.manifest, built.artifact.to_oci());
    if printer.is_json() {
        let result = json!({
            "artifactDigest": artifact,
            "bytes": manifest.total_size(),
            "files": manifest.files.len(),
            "images": manifest.images.len(),
            "manifestSha256": built.manifest_sha256,
            "path": args.path,
        });
        printer.result(&serde_json::to_string_pretty(&result)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    printer.result(&format!("{}: {}", args.path.display(), super::summary(manifest)))?;
    printer.note(&format!("manifest sha256  {}", built.manifest_sha256))?;
    printer.note(&format!("in a registry    oci://REGISTRY/REPOSITORY@{artifact}"))?;
    Ok(ExitCode::SUCCESS)
}

fn spec(args: &Args) -> anyhow::Result<Spec> {
    let mut spec = match (&args.from, &args.kubernetes_version, args.architecture) {
        (Some(path), _, _) => Spec::load(path)?,
        (None, Some(version), Some(architecture)) => {
            Spec::new(version.clone(), architecture.into())
        }
        (None, _, _) => {
            anyhow::bail!("--kubernetes-version and --architecture are required without --from")
        }
    };
    if let Some(version) = &args.kubernetes_version {
        spec.kubernetes_version.clone_from(version);
    }
    if let Some(architecture) = args.architecture {
        spec.architecture = architecture.into();
    }
    if let Some(family) = args.os_family {
        spec.os_family = Some(family.into());
    }
    let package = |path: &PathBuf| PackageSpec { path: path.clone(), ..PackageSpec::default() };
    let image = |path: &PathBuf| ImageSpec { path: path.clone(), ..ImageSpec::default() };
    let file = |path: &PathBuf| FileSpec { path: path.clone(), ..FileSpec::default() };
    spec.packages.extend(args.package.iter().map(package));
    spec.images.extend(args.image.iter().map(image));
    spec.os_images.extend(args.os_image.iter().map(file));
    spec.files.extend(args.file.iter().map(file));
    Ok(spec)
}
