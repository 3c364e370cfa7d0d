//! Generates docs/cli.md from the definition of the command line.

use std::fmt::Write as _;

use clap::{Arg, Command};

use crate::global;

/// Generates docs/cli.md.
pub(super) fn markdown() -> String {
    let mut command = crate::command(global::PROGRAM).term_width(100);
    command.build();
    let mut text =
        String::from("<!-- Written by `cargo xtask docs`. Do not edit. -->\n# Command line\n\n");
    let about = command.get_long_about().or(command.get_about());
    if let Some(about) = about {
        let _ = writeln!(text, "{about}\n");
    }
    text.push_str(
        "`refit` works on the cluster that the kubeconfig names, as kubectl does. As `kubectl-refit` on the PATH it is \
         `kubectl refit`.\n\n`refit demo` and `refit sandbox` simulate clusters and exist only in a build with the feature `sandbox`, \
         which `cargo run` has and the released program does not.\n\n| command | does |\n|---|---|\n",
    );
    let subs: Vec<&Command> =
        command.get_subcommands().filter(|sub| sub.get_name() != "help").collect();
    for sub in &subs {
        let name = sub.get_name();
        let about = sub.get_about().map(ToString::to_string).unwrap_or_default();
        let _ = writeln!(text, "| [`refit {name}`](#refit-{name}) | {about} |");
    }
    text.push_str("\n## Options of every command\n\n");
    options(&mut text, command.get_arguments().filter(|arg| arg.is_global_set()));
    for sub in subs {
        describe(&mut text, sub, &format!("refit {}", sub.get_name()), 2);
    }
    text
}

fn describe(text: &mut String, command: &Command, name: &str, depth: usize) {
    let _ = writeln!(text, "\n{} {name}\n", "#".repeat(depth));
    if let Some(about) = command.get_long_about().or(command.get_about()) {
        let _ = writeln!(text, "{about}\n");
    }
    let usage = command.clone().render_usage().to_string();
    let _ = writeln!(text, "```\n{}\n```\n", usage.trim_start_matches("Usage: ").trim());
    let is_own = |arg: &&Arg| !arg.is_global_set() && !arg.is_hide_set() && arg.get_id() != "help";
    let own: Vec<&Arg> =
        command.get_arguments().filter(|arg| is_own(arg) && arg.get_id() != "version").collect();
    if !own.is_empty() {
        options(text, own.into_iter());
    }
    if let Some(after) = command.get_after_help() {
        let _ = writeln!(text, "\n```\n{}\n```", after.to_string().trim_end());
    }
    for sub in command.get_subcommands().filter(|sub| sub.get_name() != "help") {
        let name = format!("{name} {}", sub.get_name());
        describe(text, sub, &name, depth + 1);
    }
}

/// Writes a table of options and arguments.
fn options<'a>(text: &mut String, args: impl Iterator<Item = &'a Arg>) {
    text.push_str("| option | is for |\n|---|---|\n");
    for arg in args.filter(|arg| arg.get_id() != "help" && arg.get_id() != "version") {
        let _ = writeln!(text, "| {} | {} |", spelling(arg), cell(&meaning(arg)));
    }
}

/// Returns the notation of an option.
fn spelling(arg: &Arg) -> String {
    let values: Vec<String> =
        arg.get_value_names().unwrap_or_default().iter().map(|name| format!("<{name}>")).collect();
    let takes = arg.get_action().takes_values();
    let value = if takes { values.join(" ") } else { String::new() };
    let mut forms = Vec::new();
    if let Some(short) = arg.get_short() {
        forms.push(format!("-{short}"));
    }
    if let Some(long) = arg.get_long() {
        forms.push(format!("--{long}"));
    }
    if forms.is_empty() {
        return format!("`{value}`");
    }
    let text = format!("{} {value}", forms.join(", "));
    format!("`{}`", text.trim())
}

/// Returns the help of an option, with its values and default.
fn meaning(arg: &Arg) -> String {
    let help = arg.get_long_help().or(arg.get_help());
    let mut text = help.map(ToString::to_string).unwrap_or_default();
    if !text.is_empty() && !text.ends_with('.') {
        text.push('.');
    }
    let values: Vec<String> = arg
        .get_possible_values()
        .iter()
        .filter(|value| !value.is_hide_set())
        .map(|value| format!("`{}`", value.get_name()))
        .collect();
    if arg.get_action().takes_values() && !values.is_empty() {
        let _ = write!(text, " One of {}.", values.join(", "));
    }
    let defaults: Vec<String> =
        arg.get_default_values().iter().map(|value| value.to_string_lossy().into_owned()).collect();
    if arg.get_action().takes_values() && !defaults.is_empty() {
        let _ = write!(text, " Default: `{}`.", defaults.join(" "));
    }
    text
}

/// Escapes text for a table cell.
fn cell(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|").replace('<', "&lt;")
}
