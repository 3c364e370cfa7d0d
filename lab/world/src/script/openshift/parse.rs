//! Parses the commands of a script.

use refit_managed::Compat;
use refit_openshift::{config::Platform, upgrade_config::NAME};

use super::{
    OPENSHIFT,
    command::{Action, Command, Show, Trouble},
};
use crate::script::{
    Problem,
    command::{Condition, Reference, Statement, Wrong, wrong},
    field::Setting,
    parse::{self, statements_of},
    rest::Rest,
    words::{self, Word},
};

const COMMANDS: &str = "load, apply, change, delete, schedule, cancel, request, configure, wait, at, break, mend, \
                        kill, show or help";
const TROUBLES: &str = "alert, operator, upgradeable, ocm, dependency, capacity, graph, version, registry, release, \
                        update, control-plane, node, prometheus or alertmanager";
/// The name of the program that `kill` kills.
const PROGRAM: &str = "refit-managed";
/// Stands for the UpgradeConfig.
const UPGRADE: &str = "upgrade";

pub(super) fn script(file: &str, text: &str) -> Result<Vec<Statement<Command>>, Vec<Problem>> {
    let mut loaded = false;
    statements_of(file, text, |words, here, _| {
        let command = command(words, here)?;
        in_order(command.as_ref(), &mut loaded)?;
        Ok(command)
    })
}

/// Requires exactly one `load`, before any other command except `help`.
fn in_order(command: Option<&Command>, loaded: &mut bool) -> Result<(), Wrong> {
    match command {
        Some(Command::Load(..)) if *loaded => {
            Err(wrong("load", "a second load", "one load, at the start of the script"))
        }
        Some(Command::Load(..)) => {
            *loaded = true;
            Ok(())
        }
        None | Some(Command::Now(Action::Help)) => Ok(()),
        Some(_) if !*loaded => {
            Err(wrong("script", "a command before any load", "load openshift first"))
        }
        Some(_) => Ok(()),
    }
}

fn command(words: &[Word], here: Option<String>) -> Result<Option<Command>, Wrong> {
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
            let Some(Command::Now(action)) = command(inner, here)? else {
                let want = "a command that does not wait, such as change, cancel, break or kill";
                return Err(wrong("at", words::join(inner), want));
            };
            Command::At(time, words::join(inner), action)
        }
        word => match action(word, &mut rest, here)? {
            Some(action) => Command::Now(action),
            None => return Err(wrong("command", word, COMMANDS)),
        },
    };
    rest.end()?;
    Ok(Some(command))
}

fn action(word: &str, rest: &mut Rest<'_>, here: Option<String>) -> Result<Option<Action>, Wrong> {
    Ok(Some(match word {
        "apply" => Action::Apply(parse::source(rest, here)?),
        "change" => Action::Change(reference(rest)?, parse::settings(rest)?),
        "delete" => Action::Delete(reference(rest)?),
        "schedule" | "request" => {
            let version = rest.next("VERSION")?.text.clone();
            if !rest.skip("in") {
                return Err(wrong(word, words::join(rest.rest()), "in TIME after the version"));
            }
            let time = rest.time("TIME")?;
            if word == "schedule" {
                Action::Schedule(version, time)
            } else {
                Action::Request(version, time)
            }
        }
        "cancel" => Action::Cancel,
        "configure" => {
            Action::Configure(Setting::new(&rest.next("FIELD")?.text, &rest.next("VALUE")?.text)?)
        }
        "break" => Action::Break(trouble(rest)?, rest.optional_time("for")?),
        "mend" => Action::Mend(trouble(rest)?),
        "kill" => {
            let program = &rest.next(PROGRAM)?.text;
            if program != PROGRAM {
                return Err(wrong("process", program, PROGRAM));
            }
            Action::Kill(rest.optional_time("for")?)
        }
        "show" => Action::Show(show(rest)?),
        "help" => Action::Help,
        _ => return Ok(None),
    }))
}

fn load(rest: &mut Rest<'_>) -> Result<Command, Wrong> {
    rest.next(OPENSHIFT)?;
    let (mut platform, mut compat) = (Platform::Osd, Compat::Repaired);
    if rest.skip("with") {
        for option in rest.all("aro or strict")? {
            match option.as_str() {
                "aro" => platform = Platform::Aro,
                "strict" => compat = Compat::Strict,
                other => return Err(wrong("load", other, "aro or strict after with")),
            }
        }
    }
    Ok(Command::Load(platform, compat))
}

/// An object; `upgrade` alone is the UpgradeConfig.
fn reference(rest: &mut Rest<'_>) -> Result<Reference, Wrong> {
    object(&rest.next("OBJECT")?.text)
}

fn object(word: &str) -> Result<Reference, Wrong> {
    let whole = if word == UPGRADE { format!("{UPGRADE}/{NAME}") } else { word.to_owned() };
    let reference = parse::reference(&whole)?;
    if reference.cluster.is_some() {
        return Err(wrong(
            "object",
            word,
            "KIND/NAME or KIND/NAMESPACE/NAME: there is one cluster",
        ));
    }
    Ok(reference)
}

fn wait(rest: &mut Rest<'_>) -> Result<Command, Wrong> {
    let first = &rest.next("OBJECT or TIME")?.text;
    if first != UPGRADE && !first.contains('/') {
        return Ok(Command::Pass(words::time(first)?));
    }
    let object = object(first)?;
    let word = &rest.next("CONDITION")?.text;
    let condition = match parse::condition(word)? {
        Condition::Ready | Condition::Updated | Condition::Blocked(_) | Condition::Step(_) => {
            let want = "gone, phase=PHASE, FIELD=VALUE or the type of a condition";
            return Err(wrong("condition", word, want));
        }
        known @ (Condition::Gone
        | Condition::Phase(_)
        | Condition::Field(_)
        | Condition::Status(..)) => known,
    };
    Ok(Command::Wait(object, condition, rest.time("TIME")?))
}

fn trouble(rest: &mut Rest<'_>) -> Result<Trouble, Wrong> {
    Ok(match rest.next(TROUBLES)?.text.as_str() {
        "alert" => {
            let name = rest.next("NAME")?.text.clone();
            let mut labels = parse::trouble::labels(rest)?;
            labels.entry("namespace".to_owned()).or_insert("openshift-monitoring".to_owned());
            Trouble::Alert(name, labels)
        }
        "operator" => Trouble::Operator(rest.next("NAME")?.text.clone()),
        "upgradeable" => Trouble::Upgradeable,
        "ocm" if rest.skip("states") => Trouble::OcmStates,
        "ocm" => Trouble::Ocm,
        "dependency" => Trouble::Dependency,
        "capacity" => Trouble::Capacity,
        "graph" => Trouble::Graph,
        "version" => Trouble::Version(rest.next("VERSION")?.text.clone()),
        "registry" => Trouble::Registry,
        "release" => Trouble::Release,
        "update" => Trouble::Update,
        "control-plane" => Trouble::ControlPlane,
        "node" => Trouble::Node(rest.next("NODE")?.text.clone()),
        "prometheus" => Trouble::Prometheus,
        "alertmanager" if rest.skip("silences") => Trouble::AlertmanagerSilences,
        "alertmanager" => Trouble::Alertmanager,
        other => return Err(wrong("trouble", other, TROUBLES)),
    })
}

fn show(rest: &mut Rest<'_>) -> Result<Show, Wrong> {
    let want =
        "upgrade, policies, logs, silences, metrics [NAME], history, KIND FIELD... or OBJECT";
    let first = rest.next(want)?.text.as_str();
    Ok(match first {
        UPGRADE if rest.is_over() => Show::Upgrade,
        UPGRADE => Show::Object(object(first)?, rest.fields()?),
        "policies" => Show::Policies,
        "logs" => Show::Logs,
        "silences" => Show::Silences,
        "metrics" if rest.is_over() => Show::Metrics(String::new()),
        "metrics" => Show::Metrics(rest.next("NAME")?.text.clone()),
        "history" => Show::History,
        one if one.contains('/') => Show::Object(object(one)?, rest.fields()?),
        kind => Show::Kind(kind.to_owned(), rest.fields()?),
    })
}
