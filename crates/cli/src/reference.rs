//! Output generated from the definition of the command line: completions, man pages and, in a test,
//! docs/cli.md.

use std::{fs, io, path::PathBuf, process::ExitCode};

use anyhow::Context as _;

use crate::{
    global::{self, GlobalArgs},
    printer::{Format, Printer},
};

/// Flags of `refit completions`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  refit completions bash > /etc/bash_completion.d/refit
  refit completions zsh > \"${fpath[1]}/_refit\"
  refit completions fish > ~/.config/fish/completions/refit.fish")]
pub(crate) struct Completions {
    /// Generate completions for this shell.
    #[arg(value_enum)]
    shell: clap_complete::Shell,
}

/// Flags of `refit man`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  refit man | man -l -
  refit man --dir /usr/local/share/man/man1    one page per command")]
pub(crate) struct Man {
    /// Write one page per command to this directory, instead of the first page to stdout.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// Runs `refit completions`.
pub(crate) fn completions(args: &Completions) -> anyhow::Result<ExitCode> {
    let mut command = crate::command(global::PROGRAM);
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut command, global::PROGRAM, &mut text);
    io::Write::write_all(&mut io::stdout().lock(), &text)?;
    Ok(ExitCode::SUCCESS)
}

/// Runs `refit man`.
pub(crate) fn man(args: &Man, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
    let mut command = crate::command(global::PROGRAM);
    command.build();
    let Some(dir) = &args.dir else {
        clap_mangen::Man::new(command).render(&mut io::stdout().lock())?;
        return Ok(ExitCode::SUCCESS);
    };
    fs::create_dir_all(dir)
        .with_context(|| format!("cannot create the directory {}", dir.display()))?;
    let mut pages = vec![(global::PROGRAM.to_owned(), command.clone())];
    for sub in command.get_subcommands().filter(|sub| sub.get_name() != "help") {
        let name = format!("{}-{}", global::PROGRAM, sub.get_name());
        pages.push((name.clone(), sub.clone().display_name(name.clone())));
        for nested in sub.get_subcommands().filter(|sub| sub.get_name() != "help") {
            let name = format!("{name}-{}", nested.get_name());
            pages.push((name.clone(), nested.clone().display_name(name)));
        }
    }
    let printer = Printer::new(Format::Text, global);
    for (name, page) in pages {
        let mut text = Vec::new();
        clap_mangen::Man::new(page).render(&mut text)?;
        let path = dir.join(format!("{name}.1"));
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        printer.note(&path.display().to_string())?;
    }
    Ok(ExitCode::SUCCESS)
}

// docs/cli.md describes the command line with all its features.
#[cfg(all(test, feature = "sandbox"))]
mod markdown;

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(feature = "sandbox")]
    fn path() -> PathBuf {
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/cli.md")
    }

    #[test]
    #[cfg(feature = "sandbox")]
    fn the_reference_in_docs_matches_the_command_line() {
        let text = markdown::markdown();
        if std::env::var_os("UPDATE_DOCS").is_some() {
            fs::write(path(), &text).unwrap();
        }
        let there = fs::read_to_string(path()).unwrap_or_default();
        assert!(there == text, "docs/cli.md is stale: run `cargo xtask docs`");
    }

    #[test]
    fn every_command_has_examples() {
        let command = crate::command(global::PROGRAM);
        for sub in command.get_subcommands().filter(|sub| sub.get_name() != "help") {
            let help = sub.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("Examples:\n  refit "), "{}", sub.get_name());
        }
    }

    #[test]
    fn completions_exist_for_every_shell() {
        use clap::ValueEnum as _;
        for shell in clap_complete::Shell::value_variants() {
            let mut text = Vec::new();
            let mut command = crate::command(global::PROGRAM);
            clap_complete::generate(*shell, &mut command, global::PROGRAM, &mut text);
            let text = String::from_utf8(text).unwrap();
            assert!(text.contains("upgrade"), "{shell}");
        }
    }
}
