//! `refit bundle inspect`.

use std::process::ExitCode;

use refit_bundle::{Digest, Manifest, fetch};
use serde_json::json;

use super::{SourceArgs, bytes};
use crate::{
    exit,
    global::GlobalArgs,
    printer::{Format, Printer, columns},
};

/// Number of digits that identify a digest in the output.
const SHORT: usize = 12;

/// Show the contents of a bundle.
///
/// Reads only the manifest and does not verify it; use `refit bundle verify` for that.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  refit bundle inspect v1.35.0
  refit bundle inspect -o json https://mirror.example/v1.35.0/

Exit codes:
  0  the bundle is shown
  1  the bundle cannot be read, or its manifest is invalid
  2  the command line is invalid")]
pub(crate) struct Args {
    #[command(flatten)]
    source: SourceArgs,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

/// Runs the command.
pub(super) fn run(args: &Args, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
    let printer = Printer::new(args.output, global);
    let (location, limits) = (args.source.location()?, args.source.limits());
    exit::run(async {
        let (manifest, digest) = fetch::peek(&location, &limits).await?;
        if printer.is_json() {
            let result = json!({"manifest": manifest, "manifestSha256": digest});
            printer.result(&serde_json::to_string_pretty(&result)?)?;
        } else {
            for line in table(&manifest, &digest) {
                printer.result(&line)?;
            }
        }
        Ok(ExitCode::SUCCESS)
    })
}

fn table(manifest: &Manifest, digest: &Digest) -> Vec<String> {
    let short = |digest: &Digest| digest.as_str().chars().take(SHORT).collect::<String>();
    let mut lines =
        vec![super::summary(manifest), format!("manifest sha256 {digest}, not verified")];
    if !manifest.files.is_empty() {
        let heading = ["FILE", "PACKAGE", "VERSION", "SIZE", "SHA256"];
        let mut rows = vec![heading.map(str::to_owned).to_vec()];
        for file in &manifest.files {
            let (name, version) = match &file.package {
                Some(package) => (package.name.clone(), package.version.clone()),
                None => ("-".to_owned(), "-".to_owned()),
            };
            let (size, digest) = (bytes(file.size), short(&file.sha256));
            rows.push(vec![file.path.clone(), name, version, size, digest]);
        }
        lines.push(String::new());
        lines.extend(columns(&rows));
    }
    if !manifest.images.is_empty() {
        let mut rows = vec![["IMAGE", "BLOBS", "SIZE", "DIGEST"].map(str::to_owned).to_vec()];
        for image in &manifest.images {
            let size: u64 = image.blobs.iter().map(|blob| blob.size).sum();
            let (count, digest) = (image.blobs.len().to_string(), short(&image.manifest));
            rows.push(vec![image.name.clone(), count, bytes(size), digest]);
        }
        lines.push(String::new());
        lines.extend(columns(&rows));
    }
    lines
}
