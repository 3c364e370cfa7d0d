//! Parses scripts. Every error in a script is found before it runs.

pub(super) mod trouble;

use refit_kinds::refit::Until;
use strum::VariantArray as _;

use self::trouble::{place, trouble};
use super::{
    Problem,
    command::{
        Action, CanonicalAnnotations, Command, Condition, Goal, Load, Process, Reference, Show,
        Source, Statement, Table, Wrong, wrong,
    },
    field::Setting,
    rest::Rest,
    words::{self, Word},
};

/// The steps of a host that a script can break.
pub(crate) const STEPS: [&str; 9] = [
    "preflight",
    "stage",
    "snapshot",
    "kubeadm-install",
    "kubeadm-upgrade",
    "kubelet-install",
    "kubelet-restart",
    "reboot",
    "verify",
];

/// Parses a script.
pub(crate) fn script(file: &str, text: &str) -> Result<Vec<Statement>, Vec<Problem>> {
    statements(file, text, false)
}

/// Parses lines for a world that is loaded.
#[cfg(feature = "sabotage")]
pub(crate) fn lines(text: &str) -> Result<Vec<Statement>, Vec<Problem>> {
    statements("", text, true)
}

fn statements(file: &str, text: &str, mut loaded: bool) -> Result<Vec<Statement>, Vec<Problem>> {
    statements_of(file, text, |words, here, line| {
        let command = command(words, here, line)?;
        in_order(command.as_ref(), &mut loaded)?;
        Ok(command)
    })
}

/// Parses a script whose commands a function reads: from the words of a line, its here-document and its number.
pub(super) fn statements_of<C>(
    file: &str,
    text: &str,
    mut command: impl FnMut(&[Word], Option<String>, usize) -> Result<Option<C>, Wrong>,
) -> Result<Vec<Statement<C>>, Vec<Problem>> {
    let mut lines = text.lines().enumerate();
    let (mut statements, mut problems) = (Vec::new(), Vec::new());
    while let Some((index, text)) = lines.next() {
        let mut statement =
            Statement { line: index + 1, text: text.trim_end().to_owned(), command: None };
        let rest = lines.by_ref().map(|(_, line)| line);
        if let Err((what, got, want)) = read(&mut statement, rest, &mut command) {
            problems.push(Problem { file: file.to_owned(), line: statement.line, what, got, want });
        }
        statements.push(statement);
    }
    if problems.is_empty() { Ok(statements) } else { Err(problems) }
}

/// Parses a statement. Its here-document is in the lines that follow.
fn read<'a, C>(
    statement: &mut Statement<C>,
    following: impl Iterator<Item = &'a str>,
    command: impl FnOnce(&[Word], Option<String>, usize) -> Result<Option<C>, Wrong>,
) -> Result<(), Wrong> {
    let words = words::split(&statement.text)?;
    let mut here = None;
    if let Some(end) = words.last().and_then(Word::here_document) {
        let mut body = String::new();
        let mut ended = false;
        for line in following {
            statement.text.push('\n');
            statement.text.push_str(line);
            if line.trim() == end {
                ended = true;
                break;
            }
            body.push_str(line);
            body.push('\n');
        }
        if !ended {
            let want = format!("a line {end}");
            return Err(wrong("here-document", "the end of the script", want));
        }
        here = Some(body);
    }
    statement.command = command(&words, here, statement.line)?;
    Ok(())
}

/// Parses a statement again after its text has changed.
pub(super) fn again(line: usize, text: &str) -> Result<Statement, Wrong> {
    let mut lines = text.lines();
    let mut statement =
        Statement { line, text: lines.next().unwrap_or_default().to_owned(), command: None };
    read(&mut statement, lines, command)?;
    Ok(statement)
}

/// Requires exactly one `load`, before any other command except `help`.
fn in_order(command: Option<&Command>, loaded: &mut bool) -> Result<(), Wrong> {
    match command {
        Some(Command::Load(..)) if *loaded => {
            Err(wrong("load", "a second load", "apply, which adds objects to the existing world"))
        }
        Some(Command::Load(..)) => {
            *loaded = true;
            Ok(())
        }
        None | Some(Command::Now(Action::Help)) => Ok(()),
        Some(_) if !*loaded => {
            Err(wrong("script", "a command before any load", "load FILE... first"))
        }
        Some(_) => Ok(()),
    }
}

const COMMANDS: &str = "load, apply, change, delete, update, upgrade, wait, at, break, mend, kill, repeat, show or help";

fn command(words: &[Word], here: Option<String>, line: usize) -> Result<Option<Command>, Wrong> {
    let Some((first, rest)) = words.split_first() else {
        return Ok(None);
    };
    let mut rest = Rest::new(first.text.clone(), rest);
    let command = match first.text.as_str() {
        "load" => load(&mut rest)?,
        "wait" => wait(&mut rest)?,
        "at" => {
            let time = rest.time("TIME")?;
            let inner = rest.rest();
            let Some(now @ Command::Now(_)) = command(inner, here, line)? else {
                let want = "a command that does not wait: apply, change, delete, break, mend, kill, \
                            repeat or show";
                return Err(wrong("at", words::join(inner), want));
            };
            let statement = Statement { line, text: words::join(inner), command: Some(now) };
            Command::At(time, Box::new(statement))
        }
        "apply" => Command::Now(apply(&mut rest, here)?),
        "change" => Command::Now(change(&mut rest)?),
        "delete" => Command::Now(Action::Delete(rest.reference()?)),
        "break" => Command::Now(trouble(&mut rest)?),
        "mend" => Command::Now(Action::Mend(place(&mut rest)?)),
        "kill" => Command::Now(kill(&mut rest)?),
        "update" => {
            let machine = rest.next("MACHINE")?.text.clone();
            rest.next("to")?;
            let version = rest.next("VERSION")?.text.clone();
            let until = if rest.skip("until") { until(&mut rest)? } else { Until::Disrupt };
            Command::Now(Action::Update { machine, version, until })
        }
        "upgrade" => {
            let node = rest.next("NODE")?.text.clone();
            rest.next("to")?;
            let version = rest.next("VERSION")?.text.clone();
            Command::Now(Action::Upgrade { node, version })
        }
        "repeat" => Command::Now(Action::Repeat(rest.next("MACHINE")?.text.clone())),
        "show" => Command::Now(Action::Show(show(&mut rest)?)),
        "help" => Command::Now(Action::Help),
        other => return Err(wrong("command", other, COMMANDS)),
    };
    rest.end()?;
    Ok(Some(command))
}

fn until(rest: &mut Rest<'_>) -> Result<Until, Wrong> {
    let word = &rest.next("STAGE")?.text;
    let named = Until::VARIANTS.iter().find(|until| until.to_string() == *word);
    named.copied().ok_or_else(|| wrong("until", word, "Stage, Upgrade or Disrupt"))
}

const OPTIONS: &str = "standby, updater, provider, version-provider, receivers, canonical, canonical-strict, \
                       canonical-controllers, version-graph, seed N or lease TIME";

fn load(rest: &mut Rest<'_>) -> Result<Command, Wrong> {
    let mut load = Load::default();
    let mut has_options = false;
    while !rest.is_over() && !has_options {
        has_options = rest.skip("with");
        if !has_options {
            load.files.push(rest.next("FILE...")?.text.clone());
        }
    }
    if load.files.is_empty() {
        return Err(wrong("load", words::join(rest.rest()), "FILE... first"));
    }
    while has_options {
        let option = rest.next(OPTIONS)?;
        match option.text.as_str() {
            "standby" => load.standby = true,
            "updater" => load.updater = true,
            "provider" => load.provider = true,
            "version-provider" => load.version_provider = true,
            "receivers" => load.receivers = true,
            "canonical" => load.canonical = CanonicalAnnotations::Corrected,
            "canonical-strict" => load.canonical = CanonicalAnnotations::Strict,
            "canonical-controllers" => load.canonical = CanonicalAnnotations::ByCanonical,
            "version-graph" => load.version_graph = true,
            "seed" => load.seed = Some(rest.whole_number("N")?),
            "lease" => load.lease = Some(rest.time("TIME")?).filter(|time| !time.is_zero()),
            other => return Err(wrong("load", other, format!("{OPTIONS} after with"))),
        }
        has_options = !rest.is_over();
    }
    Ok(Command::Load(load))
}

fn wait(rest: &mut Rest<'_>) -> Result<Command, Wrong> {
    let first = rest.next("OBJECT, quiet or TIME")?;
    if first.text == "quiet" {
        return Ok(Command::Wait(Goal::Quiet, rest.time("TIME")?));
    }
    if !first.text.contains('/') {
        return Ok(Command::Pass(words::time(&first.text)?));
    }
    let object = reference(&first.text)?;
    let condition = condition(&rest.next("CONDITION")?.text)?;
    Ok(Command::Wait(Goal::Object(object, condition), rest.time("TIME")?))
}

pub(super) fn condition(word: &str) -> Result<Condition, Wrong> {
    let unknown = || {
        let want = "ready, available, updated, gone, blocked, blocked=REASON, phase=PHASE, step=STEP, \
                    FIELD=VALUE or the type of a condition";
        wrong("condition", word, want)
    };
    let Some((left, right)) = words::split_outside_quotes(word, '=') else {
        return Ok(match word {
            "ready" | "available" => Condition::Ready,
            "updated" => Condition::Updated,
            "gone" => Condition::Gone,
            "blocked" => Condition::Blocked(None),
            _ if word.starts_with(|c: char| c.is_ascii_uppercase()) => {
                Condition::Status(word.to_owned(), "True".to_owned())
            }
            _ => return Err(unknown()),
        });
    };
    Ok(match left {
        "blocked" => Condition::Blocked(Some(right.to_owned())),
        "phase" => Condition::Phase(right.to_owned()),
        "step" => Condition::Step(right.to_owned()),
        _ if left.contains('.') => Condition::Field(Setting::new(left, right)?),
        _ if left.starts_with(|c: char| c.is_ascii_uppercase()) => {
            Condition::Status(left.to_owned(), right.to_owned())
        }
        _ => return Err(unknown()),
    })
}

fn apply(rest: &mut Rest<'_>, here: Option<String>) -> Result<Action, Wrong> {
    let cluster = if rest.skip("to") { Some(rest.next("CLUSTER")?.text.clone()) } else { None };
    Ok(Action::Apply(cluster, source(rest, here)?))
}

pub(super) fn source(rest: &mut Rest<'_>, here: Option<String>) -> Result<Source, Wrong> {
    Ok(match here {
        Some(body) => {
            rest.next("<<END")?;
            Source::Here(body)
        }
        None => Source::Files(rest.all("FILE... or <<END")?),
    })
}

fn change(rest: &mut Rest<'_>) -> Result<Action, Wrong> {
    let object = rest.reference()?;
    Ok(Action::Change(object, settings(rest)?))
}

/// `FIELD VALUE...`, at least one.
pub(super) fn settings(rest: &mut Rest<'_>) -> Result<Vec<Setting>, Wrong> {
    let mut settings = Vec::new();
    loop {
        let field = rest.next("FIELD")?.text.clone();
        let value = rest.next("VALUE")?.text.clone();
        settings.push(Setting::new(&field, &value)?);
        if rest.is_over() {
            return Ok(settings);
        }
    }
}

fn process(rest: &mut Rest<'_>) -> Result<Process, Wrong> {
    let want = "controller, standby, capi, updater, provider, version-provider, canonical-controllers \
                or agent NODE";
    Ok(match rest.next(want)?.text.as_str() {
        "controller" => Process::Controller,
        "standby" => Process::Standby,
        "capi" => Process::Capi,
        "updater" => Process::Updater,
        "provider" => Process::Provider,
        "version-provider" => Process::VersionProvider,
        "canonical-controllers" => Process::CanonicalControllers,
        "agent" => Process::Agent(rest.next("NODE")?.text.clone()),
        other => return Err(wrong("process", other, want)),
    })
}

fn kill(rest: &mut Rest<'_>) -> Result<Action, Wrong> {
    Ok(Action::Kill(process(rest)?, rest.optional_time("for")?))
}

fn show(rest: &mut Rest<'_>) -> Result<Show, Wrong> {
    let want = "machines, nodes, hosts, snaps, pods, updates, groups, plans, received, silences, events, processes, \
                steps NODE, KIND FIELD... or OBJECT";
    let first = rest.next(want)?.text.clone();
    let table = match first.as_str() {
        "machines" => Table::Machines,
        "nodes" => Table::Nodes,
        "hosts" => Table::Hosts,
        "snaps" => Table::Snaps,
        "pods" => Table::Pods,
        "updates" => Table::Updates,
        "groups" => Table::Groups,
        "plans" => Table::Plans,
        "received" => Table::Received,
        "silences" => Table::Silences,
        "processes" => Table::Processes,
        "steps" => return Ok(Show::Steps(rest.next("NODE")?.text.clone())),
        "events" if rest.is_over() => return Ok(Show::Events(None)),
        "events" => return Ok(Show::Events(Some(rest.reference()?))),
        object if object.contains('/') => {
            return Ok(Show::Object(reference(object)?, rest.fields()?));
        }
        kind => return kind_of(kind, rest),
    };
    // `show machines FIELD...` shows fields, not the table.
    if rest.is_over() { Ok(Show::Table(table)) } else { kind_of(&first, rest) }
}

pub(super) fn kind_of(word: &str, rest: &mut Rest<'_>) -> Result<Show, Wrong> {
    let (cluster, kind) = match word.split_once(':') {
        Some((cluster, kind)) => (Some(cluster.to_owned()), kind),
        None => (None, word),
    };
    Ok(Show::Kind(cluster, kind.to_owned(), rest.fields()?))
}

/// `[CLUSTER:]KIND/[NAMESPACE/]NAME`.
pub(super) fn reference(word: &str) -> Result<Reference, Wrong> {
    let want = "KIND/NAME or KIND/NAMESPACE/NAME, optionally after CLUSTER:";
    let (cluster, rest) = match word.split_once(':') {
        Some((cluster, rest)) => (Some(cluster.to_owned()), rest),
        None => (None, word),
    };
    let parts: Vec<&str> = rest.split('/').collect();
    let (kind, namespace, name) = match parts.as_slice() {
        [kind, name] => (kind, None, name),
        [kind, namespace, name] => (kind, Some((*namespace).to_owned()), name),
        _ => return Err(wrong("object", word, want)),
    };
    if kind.is_empty() || name.is_empty() || cluster.as_deref() == Some("") {
        return Err(wrong("object", word, want));
    }
    Ok(Reference { cluster, kind: (*kind).to_owned(), namespace, name: (*name).to_owned() })
}
