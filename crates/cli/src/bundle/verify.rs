//! `refit bundle verify`.

use std::{path::PathBuf, process::ExitCode};

use refit_bundle::{
    Digest, Error, PublicKeys,
    fetch::{self, Wanted},
};
use refit_kinds::version::KubernetesVersion;
use serde_json::json;

use super::{ArchitectureName, OsFamilyName, SourceArgs};
use crate::{
    exit,
    global::GlobalArgs,
    printer::{Format, Printer},
};

/// Exit code if no trusted key signed the bundle.
const EXIT_UNTRUSTED: u8 = 3;
/// Exit code if the contents differ from what was signed.
const EXIT_DAMAGED: u8 = 4;
/// Exit code if the bundle is valid but not the requested one.
const EXIT_OTHER: u8 = 5;

/// Verify the signature of a bundle and every byte in it.
///
/// Reads the whole bundle from any location and keeps nothing. Hosts make the same checks before
/// they use a bundle.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  refit bundle verify --public-key release.pub v1.35.0
  refit bundle verify --public-key keys/ --kubernetes-version v1.35.0 https://mirror.example/v1.35.0/
  refit bundle verify --public-key release.pub -o json oci://registry.example/refit/bundle:v1.35.0

Exit codes:
  0  the holder of the key signed it, and every byte is unchanged
  1  the bundle cannot be read
  2  the command line is invalid
  3  the bundle is not signed by any of the keys
  4  a part is missing or changed, or the manifest is invalid; the error names it
  5  the bundle is valid, but has another version, architecture, system or manifest than required
  130, 143  interrupted by Ctrl-C or SIGTERM")]
pub(crate) struct Args {
    #[command(flatten)]
    source: SourceArgs,
    /// Trust this public key, or all public keys in this directory; may be repeated.
    #[arg(long, value_name = "PATH", required = true)]
    public_key: Vec<PathBuf>,
    /// Require this Kubernetes version.
    #[arg(long, value_name = "VERSION")]
    kubernetes_version: Option<KubernetesVersion>,
    /// Require this processor architecture.
    #[arg(long, value_enum, value_name = "ARCH")]
    architecture: Option<ArchitectureName>,
    /// Require this operating system; a bundle for any system is accepted too.
    #[arg(long, value_enum, value_name = "FAMILY")]
    os_family: Option<OsFamilyName>,
    /// Require this sha256 of the manifest.
    #[arg(long, value_name = "DIGEST")]
    manifest_sha256: Option<Digest>,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

/// Runs the command.
pub(super) fn run(args: &Args, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
    let printer = Printer::new(args.output, global);
    let mut keys = PublicKeys::default();
    for path in &args.public_key {
        let loaded = PublicKeys::load(path)?;
        if loaded.is_empty() {
            anyhow::bail!("{} contains no public key, expected .pub files", path.display());
        }
        keys.extend(loaded);
    }
    let wanted = Wanted {
        manifest_sha256: args.manifest_sha256.clone(),
        kubernetes_version: args.kubernetes_version.clone(),
        architecture: args.architecture.map(Into::into),
        os_family: args.os_family.map(Into::into),
    };
    let (location, limits) = (args.source.location()?, args.source.limits());
    exit::run(async {
        let verified = fetch::verify(&location, &keys, &limits, &wanted).await;
        let head = verified.map_err(coded)?;
        let manifest = &head.manifest;
        if printer.is_json() {
            let result = json!({
                "bytes": manifest.total_size(),
                "comment": head.signed.comment,
                "files": manifest.files.len(),
                "images": manifest.images.len(),
                "key": head.signed.key,
                "manifestSha256": head.manifest_sha256,
                "verified": true,
            });
            printer.result(&serde_json::to_string_pretty(&result)?)?;
        } else {
            let good = printer.good("good");
            printer.result(&format!("{good}: {}", super::summary(manifest)))?;
            printer.note(&format!("signed with      {}", head.signed.key))?;
            printer.note(&format!("signer's comment {}", head.signed.comment))?;
            printer.note(&format!("manifest sha256  {}", head.manifest_sha256))?;
        }
        Ok(ExitCode::SUCCESS)
    })
}

fn coded(error: Error) -> anyhow::Error {
    let code = match &error {
        Error::Signature { .. } => EXIT_UNTRUSTED,
        Error::Content { .. }
        | Error::Size { .. }
        | Error::Large { .. }
        | Error::Missing { .. }
        | Error::Manifest { .. } => EXIT_DAMAGED,
        Error::Other { .. } => EXIT_OTHER,
        Error::Location { .. }
        | Error::Url { .. }
        | Error::Unreachable { .. }
        | Error::Silent { .. }
        | Error::Refused { .. }
        | Error::Answer { .. }
        | Error::Torn { .. }
        | Error::Limit { .. }
        | Error::Space { .. }
        | Error::Directory { .. }
        | Error::Busy { .. }
        | Error::File { .. }
        | Error::Key(_) => return error.into(),
    };
    exit::error(code, error.to_string())
}
