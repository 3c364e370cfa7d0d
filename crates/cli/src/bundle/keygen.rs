//! `refit bundle keygen`.

use std::{path::PathBuf, process::ExitCode};

use refit_bundle::build::key;

use crate::{
    global::GlobalArgs,
    printer::{Format, Printer},
};

/// Generate a key that signs bundles.
///
/// NAME.key is the secret key, readable only by you; keep it on the build host, or offline.
/// Copy NAME.pub to /etc/refit/keys on the hosts. Both are minisign files.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  refit bundle keygen release
  refit bundle keygen --password-file pass.txt release")]
pub(crate) struct Args {
    /// Name of the two files, without extension.
    #[arg(value_name = "NAME")]
    name: PathBuf,
    /// Encrypt the secret key with the password on the first line of this file.
    #[arg(long, value_name = "FILE")]
    password_file: Option<PathBuf>,
}

/// Runs the command.
pub(super) fn run(args: &Args, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
    let printer = Printer::new(Format::Text, global);
    let password = super::password(args.password_file.as_deref())?;
    let files = key::generate(&args.name, password)?;
    printer.result(&format!("{}  secret: signs bundles", files.secret.display()))?;
    printer
        .result(&format!("{}  public: for /etc/refit/keys on the hosts", files.public.display()))?;
    Ok(ExitCode::SUCCESS)
}
