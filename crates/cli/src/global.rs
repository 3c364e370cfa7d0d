//! Flags that every command takes, and the name that the program was called by.

use std::{ffi::OsStr, path::PathBuf};

/// The program's name.
pub(crate) const PROGRAM: &str = "refit";
/// What a person types who calls the program as a plugin of kubectl.
pub(crate) const PLUGIN: &str = "kubectl refit";
/// File name under which kubectl finds the program.
const PLUGIN_FILE: &str = "kubectl-refit";

/// Flags of every command.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct GlobalArgs {
    /// Kubeconfig file [default: the files in KUBECONFIG, else ~/.kube/config, else the pod's own
    /// service account].
    #[arg(long, value_name = "FILE", global = true)]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig [default: its current one].
    #[arg(long, value_name = "NAME", global = true)]
    pub(crate) context: Option<String>,
    /// Namespace [default: the context's, else default].
    #[arg(short, long, value_name = "NAME", global = true)]
    pub(crate) namespace: Option<String>,
    /// Tell only the result and what went wrong.
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,
    /// No colours. NO_COLOR does the same.
    #[arg(long, alias = "no-colour", global = true)]
    pub(crate) no_color: bool,
    /// Tell more about what goes on, on stderr (-v: info, -vv: debug). REFIT_LOG sets filters.
    #[arg(short, long, action = clap::ArgAction::Count, global = true)]
    pub(crate) verbose: u8,
}

/// What a person types to call this program, as it was called.
pub(crate) fn program() -> &'static str {
    let file = std::env::args_os().next().map(PathBuf::from);
    named(file.as_deref().and_then(std::path::Path::file_stem))
}

fn named(file: Option<&OsStr>) -> &'static str {
    // kubectl finds kubectl_refit, too, for `kubectl refit`'s sake on systems without dashes.
    match file.and_then(OsStr::to_str) {
        Some(name) if name.replace('_', "-") == PLUGIN_FILE => PLUGIN,
        _ => PROGRAM,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_binary_s_name_tells_the_plugin() {
        assert_eq!(named(Some(OsStr::new("kubectl-refit"))), PLUGIN);
        assert_eq!(named(Some(OsStr::new("refit"))), PROGRAM);
        assert_eq!(named(None), PROGRAM);
    }
}
