//! Global flags, and the name under which the program was called.

use std::{ffi::OsStr, path::PathBuf};

/// The program's name.
pub(crate) const PROGRAM: &str = "refit";
/// How users call the program as a kubectl plugin.
pub(crate) const PLUGIN: &str = "kubectl refit";
/// File name under which kubectl finds the plugin.
const PLUGIN_FILE: &str = "kubectl-refit";

/// Flags of every command.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct GlobalArgs {
    /// Use this kubeconfig file [default: the files in KUBECONFIG, else ~/.kube/config, else the
    /// pod's own service account].
    #[arg(long, value_name = "FILE", global = true)]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Use this context of the kubeconfig [default: its current context].
    #[arg(long, value_name = "NAME", global = true)]
    pub(crate) context: Option<String>,
    /// Use this namespace [default: the context's, else default].
    #[arg(short, long, value_name = "NAME", global = true)]
    pub(crate) namespace: Option<String>,
    /// Print only results and errors.
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,
    /// Disable colours, as NO_COLOR does.
    #[arg(long, alias = "no-colour", global = true)]
    pub(crate) no_color: bool,
    /// Log to stderr (-v: info, -vv: debug). REFIT_LOG sets filters.
    #[arg(short, long, action = clap::ArgAction::Count, global = true)]
    pub(crate) verbose: u8,
}

/// Returns the command that the user typed to call this program.
pub(crate) fn program() -> &'static str {
    let file = std::env::args_os().next().map(PathBuf::from);
    named(file.as_deref().and_then(std::path::Path::file_stem))
}

fn named(file: Option<&OsStr>) -> &'static str {
    // kubectl also finds `kubectl_refit`, for systems that do not allow dashes.
    match file.and_then(OsStr::to_str) {
        Some(name) if name.replace('_', "-") == PLUGIN_FILE => PLUGIN,
        _ => PROGRAM,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_binary_name_identifies_the_plugin() {
        assert_eq!(named(Some(OsStr::new("kubectl-refit"))), PLUGIN);
        assert_eq!(named(Some(OsStr::new("refit"))), PROGRAM);
        assert_eq!(named(None), PROGRAM);
    }
}
