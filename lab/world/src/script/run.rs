//! Runs the commands of a script.

use std::{io::Write, path::PathBuf, time::Duration};

use jiff::{SignedDuration, Timestamp};
use refit_kinds::refit::Until;
use refit_manifests::LoadError;
use serde_json::Value;

use super::{
    HELP, Problem, ScriptError, ScriptOutcome,
    command::{
        Action, CanonicalAnnotations, Command, Condition, Goal, Load, Place, Show, Statement,
        Wrong, wrong,
    },
    files, look, objects, parse, request,
    session::{Later, Session},
    show,
    trouble::{self, Due},
    words,
};
use crate::{
    manifests,
    world::{World, WorldOptions},
};

/// Stands for the machine that the last wait found.
const MACHINE: &str = "$machine";
/// Interval between two checks of a wait.
const LOOK: Duration = Duration::from_secs(1);

/// Why a command was not completed.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The script is invalid, or names something that does not exist.
    Wrong(Wrong),
    /// Manifests are invalid.
    Load(LoadError),
    /// An invariant is broken.
    Violated(Vec<String>),
    /// A wait timed out.
    RanOut(String),
    /// The output cannot be written.
    Output(std::io::Error),
    /// The world cannot be created.
    World(crate::world::WorldError),
}

impl Stop {
    /// The error of a script at a line. A function gives texts the names of the script.
    pub(super) fn at(self, file: &str, line: usize, shown: impl Fn(&str) -> String) -> ScriptError {
        let file = file.to_owned();
        match self {
            Self::Wrong((what, got, want)) => ScriptError::Wrong(vec![Problem {
                file,
                line,
                what,
                got: shown(&got),
                want: shown(&want),
            }]),
            Self::Violated(violations) => ScriptError::Violated { file, line, violations },
            Self::Load(source) => ScriptError::Load { file, line, source },
            Self::World(source) => ScriptError::World { file, line, source: Box::new(source) },
            Self::Output(source) => ScriptError::Output(source),
            Self::RanOut(what) => ScriptError::Wrong(vec![Problem {
                file,
                line,
                what: "wait".to_owned(),
                got: what,
                want: "it to hold in time".to_owned(),
            }]),
        }
    }

    /// What stopped the script.
    #[cfg(feature = "sabotage")]
    pub(crate) fn cause(&self) -> String {
        match self {
            Self::Wrong((what, got, want)) => format!("{what}: got {got}, want {want}"),
            Self::Load(error) => error.to_string(),
            Self::Violated(violations) => violations.join("; "),
            Self::RanOut(what) => what.clone(),
            Self::Output(error) => error.to_string(),
            Self::World(error) => error.to_string(),
        }
    }
}

impl From<Wrong> for Stop {
    fn from(wrong: Wrong) -> Self {
        Self::Wrong(wrong)
    }
}

impl From<std::io::Error> for Stop {
    fn from(error: std::io::Error) -> Self {
        Self::Output(error)
    }
}

/// Runs a script.
pub(crate) struct Runner<'a> {
    pub(crate) file: String,
    /// Directories in which files are searched, in this order.
    pub(crate) directories: Vec<PathBuf>,
    pub(crate) out: &'a mut dyn Write,
    pub(crate) session: Option<Session>,
}

impl Runner<'_> {
    /// Runs all statements.
    pub(super) async fn run(&mut self, script: &[Statement]) -> Result<ScriptOutcome, ScriptError> {
        for statement in script {
            let (mark, line) = match statement.command {
                Some(_) => ("> ", statement.line),
                None => ("", statement.line),
            };
            let outcome = match writeln!(self.out, "{mark}{}", statement.text) {
                Ok(()) => self.statement(statement).await,
                Err(error) => Err(error.into()),
            };
            match outcome {
                Ok(()) => {}
                Err(Stop::RanOut(what)) => return Ok(ScriptOutcome::WaitRanOut { line, what }),
                Err(stop) => return Err(self.error(line, stop)),
            }
        }
        self.end()
    }

    fn end(&self) -> Result<ScriptOutcome, ScriptError> {
        let left = self.session.as_ref().and_then(|session| {
            let later = session.later.iter().find(|later| later.must)?;
            Some((later.line, session.names.offset(later.due), session.offset()))
        });
        match left {
            None => Ok(ScriptOutcome::Passed),
            Some((line, due, now)) => Err(self.error(line, unreached(&due, &now))),
        }
    }

    fn error(&self, line: usize, stop: Stop) -> ScriptError {
        stop.at(&self.file, line, |text| match &self.session {
            Some(session) => session.names.shown(text),
            None => text.to_owned(),
        })
    }

    /// The statement with `$machine` replaced by the machine that the last wait found.
    fn bound(&self, statement: &Statement) -> Result<Statement, Wrong> {
        if statement.command.is_none() || !statement.text.contains(MACHINE) {
            return Ok(statement.clone());
        }
        let found = self.session.as_ref().and_then(|session| session.names.found.as_deref());
        let Some(found) = found else {
            let want = "a wait with phase=, step= or blocked before it, which finds a machine";
            return Err(wrong("script", MACHINE, want));
        };
        parse::again(statement.line, &statement.text.replace(MACHINE, found))
    }

    /// A line with the machine that the last wait found.
    #[cfg(feature = "sabotage")]
    pub(crate) fn named(&self, line: &str) -> String {
        let found = self.session.as_ref().and_then(|session| session.names.found.as_deref());
        line.replace(MACHINE, found.unwrap_or(MACHINE))
    }

    pub(crate) async fn statement(&mut self, statement: &Statement) -> Result<(), Stop> {
        let statement = &self.bound(statement)?;
        match &statement.command {
            None => return Ok(()),
            Some(Command::Load(load)) => self.load(load).await?,
            Some(Command::Pass(time)) => self.pass(*time).await?,
            Some(Command::Wait(goal, time)) => self.wait(goal, *time).await?,
            Some(Command::At(time, inner)) => {
                let session = self.session()?;
                let due = session.world.now() + *time;
                session.later(due, statement.line, Due::Statement(inner.clone()), true);
            }
            Some(Command::Now(action)) => self.action(action, statement.line).await?,
        }
        self.check()
    }

    pub(crate) fn session(&mut self) -> Result<&mut Session, Stop> {
        self.session.as_mut().ok_or_else(|| {
            let missing = ("script", "a command before any load", "load FILE... first");
            Stop::Wrong((missing.0.to_owned(), missing.1.to_owned(), missing.2.to_owned()))
        })
    }

    /// Prints a line, prefixed with the time.
    pub(crate) fn print_line(&mut self, what: &str) -> Result<(), Stop> {
        let (at, what) = match &mut self.session {
            Some(session) => {
                session.names.learn_all(&session.world);
                (session.offset(), session.names.shown(what))
            }
            None => ("+0s".to_owned(), what.to_owned()),
        };
        writeln!(self.out, "{at}  {what}")?;
        Ok(())
    }

    async fn load(&mut self, load: &Load) -> Result<(), Stop> {
        let paths = load
            .files
            .iter()
            .map(|file| files::find(&self.directories, file))
            .collect::<Result<Vec<_>, _>>()?;
        let texts = paths
            .iter()
            .zip(&load.files)
            .map(|(path, file)| Ok((file.as_str(), files::read(path, file)?)))
            .collect::<Result<Vec<_>, Wrong>>()?;
        let named = texts.iter().map(|(name, text)| (*name, text.as_bytes()));
        let loaded = manifests::parse(named).map_err(Stop::Load)?;
        manifests::rehearse(&loaded).await.map_err(Stop::Load)?;
        let objects: Vec<Value> = loaded.into_iter().map(|manifest| manifest.object).collect();
        let count = objects.len();
        let defaults = WorldOptions::new(objects);
        let options = WorldOptions {
            two_controllers: load.standby,
            updater: load.updater,
            provider: load.provider,
            version_provider: load.version_provider,
            receivers: load.receivers,
            canonical_controllers: load.canonical == CanonicalAnnotations::ByCanonical,
            settings: load.settings(defaults.settings),
            seed: load.seed.unwrap_or(defaults.seed),
            lease_retry: load.lease.and_then(|time| time.try_into().ok()),
            ..defaults
        };
        let world = World::new(options).await.map_err(Stop::World)?;
        self.session = Some(Session::new(world));
        self.print_line(&format!("{count} objects"))
    }

    pub(crate) async fn pass(&mut self, time: SignedDuration) -> Result<(), Stop> {
        let end = self.session()?.world.now() + time;
        while self.session()?.world.now() < end {
            self.tick(end).await?;
        }
        self.due().await
    }

    async fn wait(&mut self, goal: &Goal, time: SignedDuration) -> Result<(), Stop> {
        let start = self.session()?.world.now();
        let end = start + time;
        // Resolve the kind only once: that reads all CRDs, and a wait checks thousands of times.
        let mut found = match goal {
            Goal::Quiet => None,
            Goal::Object(object, _) => Some(self.session()?.find(object)?),
        };
        let mut seen = None;
        loop {
            self.due().await?;
            let session = self.session()?;
            let now = session.world.now();
            // Only a change can meet a condition of objects.
            let sees = found.as_ref().map(|found| (session.world.revision(), found.get()));
            let is_same = sees.is_some() && seen == sees;
            let look = if is_same { false.into() } else { session.look(goal, found.as_mut()) };
            seen = sees;
            let waited = words::shown(now.duration_since(start));
            if look.holds {
                let machine = look.machine.map(|machine| {
                    session.names.learn(&session.world);
                    session.names.given(&machine).to_owned()
                });
                return self.met(goal, machine, &waited);
            }
            if now >= end {
                return self.ran_out(goal, &waited);
            }
            self.tick(end).await?;
        }
    }

    fn met(&mut self, goal: &Goal, machine: Option<String>, waited: &str) -> Result<(), Stop> {
        let session = self.session()?;
        let what = match goal {
            Goal::Quiet => {
                let broken = session.world.violations_at_rest();
                if !broken.is_empty() {
                    return Err(session.violated());
                }
                "the world is quiet".to_owned()
            }
            Goal::Object(object, condition) => {
                let found = machine.as_ref().map(|machine| format!(": {machine}"));
                format!("{object} {}{}", describe(condition), found.unwrap_or_default())
            }
        };
        if machine.is_some() {
            self.session()?.names.found = machine;
        }
        self.print_line(&format!("{what}, after {waited}"))
    }

    fn ran_out(&mut self, goal: &Goal, waited: &str) -> Result<(), Stop> {
        let session = self.session()?;
        session.names.learn_all(&session.world);
        let (what, object) = match goal {
            Goal::Quiet => ("the world is not quiet".to_owned(), None),
            Goal::Object(object, condition) => {
                (format!("condition not met: {object} {}", describe(condition)), Some(object))
            }
        };
        let why = look::obstacles(&session.world, &session.names, object);
        let what = format!("{what}, after {waited}");
        self.print_line(&what)?;
        for line in why {
            writeln!(self.out, "  {line}")?;
        }
        Err(Stop::RanOut(what))
    }

    /// Lets a short time pass, but not beyond `end`.
    pub(crate) async fn tick(&mut self, end: Timestamp) -> Result<(), Stop> {
        let session = self.session()?;
        let rest = Duration::try_from(end.duration_since(session.world.now())).unwrap_or(LOOK);
        session.world.pass(rest.min(LOOK)).await;
        session.observe();
        self.due().await?;
        self.check()
    }

    /// Runs everything that is due.
    async fn due(&mut self) -> Result<(), Stop> {
        loop {
            let session = self.session()?;
            let now = session.world.now();
            let Some(next) = session.later.iter().position(|later| later.due <= now) else {
                return Ok(());
            };
            let Later { line, what, .. } = session.later.remove(next);
            match what {
                Due::Statement(statement) => {
                    self.print_line(&format!("> {}", statement.text))?;
                    if let Some(Command::Now(action)) = &statement.command {
                        self.action(action, line).await?;
                    }
                }
                Due::Mend(place) => self.mend(&place, line)?,
                Due::Start(actor) => trouble::start(&session.world, &actor),
            }
            self.check()?;
        }
    }

    /// Fails if an invariant is broken.
    fn check(&mut self) -> Result<(), Stop> {
        let Some(session) = &mut self.session else {
            return Ok(());
        };
        let found = session.world.violations().len();
        if found == session.seen_violations {
            return Ok(());
        }
        session.seen_violations = found;
        Err(session.violated())
    }

    async fn action(&mut self, action: &Action, line: usize) -> Result<(), Stop> {
        match action {
            Action::Help => {
                write!(self.out, "{HELP}")?;
                Ok(())
            }
            Action::Apply(cluster, source) => {
                let mut objects = source.objects(&self.directories)?;
                let session = self.session()?;
                session.observe();
                for object in &mut objects {
                    session.names.make_real(object);
                }
                let lines = objects::apply(&session.world, cluster.as_deref(), objects).await?;
                self.print_lines(&lines)
            }
            Action::Change(object, settings) => {
                let session = self.session()?;
                session.observe();
                let settings: Vec<_> = settings.iter().map(|s| s.named(&session.names)).collect();
                let lines = session.find(object)?.change(&settings).await?;
                self.print_lines(&lines)
            }
            Action::Delete(object) => {
                let session = self.session()?;
                session.find(object)?.delete().await?;
                let name = session.names.real(&object.name);
                self.print_line(&format!("{}/{name} deleted", object.kind))
            }
            Action::Break(trouble, time) => {
                let what = trouble::make(self.session()?, trouble, *time)?;
                #[cfg(feature = "sabotage")]
                if trouble::impairs(trouble) {
                    self.session()?.impair(time.unwrap_or(trouble::LINGERS));
                }
                self.print_line(&what)?;
                if let (Some(time), Some(place)) = (time, trouble::place(trouble)) {
                    trouble::mend_later(self.session()?, place, *time, line);
                }
                Ok(())
            }
            Action::Mend(place) => self.mend(place, line),
            Action::Kill(process, time) => {
                let session = self.session()?;
                let (what, actor) = trouble::kill(session, process, time.is_some())?;
                #[cfg(feature = "sabotage")]
                session.impair(time.unwrap_or_default());
                if let Some(time) = time {
                    let due = session.world.now() + *time;
                    session.later(due, line, Due::Start(actor), false);
                }
                self.print_line(&what)
            }
            Action::Update { machine, version, until } => {
                request::update_by_hand(self.session()?, machine, version, *until).await?;
                let until = match until {
                    Until::Stage | Until::Upgrade => format!(", until {until}"),
                    Until::Disrupt => String::new(),
                };
                let what = format!("NodeUpdate of {machine} to {version} created by hand{until}");
                self.print_line(&what)
            }
            Action::Upgrade { node, version } => {
                trouble::upgrade(self.session()?, node, version)?;
                self.print_line(&format!("{node} is upgraded to {version} by hand"))
            }
            Action::Repeat(machine) => {
                let session = self.session()?;
                let real = session.names.real(machine);
                let answer = session.requests.repeat(&session.world, &real).await?;
                self.print_line(&format!("UpdateMachine of {machine} again: {answer}"))
            }
            Action::Show(what) => self.show(what),
        }
    }

    fn mend(&mut self, place: &Place, line: usize) -> Result<(), Stop> {
        let session = self.session()?;
        let (what, boot) = trouble::mend(session, place)?;
        if let Some((due, actor)) = boot {
            session.later(due, line, Due::Start(actor), false);
        }
        self.print_line(&what)
    }

    fn show(&mut self, what: &Show) -> Result<(), Stop> {
        let session = self.session()?;
        session.names.learn_all(&session.world);
        session.observe();
        let text = show::show(session, what)?;
        let text = session.names.shown(&text);
        write!(self.out, "{text}")?;
        Ok(())
    }

    fn print_lines(&mut self, lines: &[String]) -> Result<(), Stop> {
        lines.iter().try_for_each(|line| self.print_line(line))
    }
}

/// A command that is due only after the end of the script.
pub(super) fn unreached(due: &str, end: &str) -> Stop {
    let got = format!("a command for {due} in a script that ends at {end}");
    wrong("at", got, "a wait that lasts until then").into()
}

pub(super) fn describe(condition: &Condition) -> String {
    match condition {
        Condition::Ready => "is ready".to_owned(),
        Condition::Updated => "is updated".to_owned(),
        Condition::Gone => "is gone".to_owned(),
        Condition::Blocked(None) => "is blocked".to_owned(),
        Condition::Blocked(Some(reason)) => format!("is blocked by {reason}"),
        Condition::Phase(phase) => format!("is in phase {phase}"),
        Condition::Step(step) => format!("is at step {step}"),
        Condition::Field(setting) => format!("has {}={}", setting.field.text, setting.shown()),
        Condition::Status(kind, status) => format!("has condition {kind}={status}"),
    }
}
