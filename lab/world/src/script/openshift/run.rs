//! Runs the commands of a script.

use std::{io::Write, path::PathBuf, time::Duration};

use jiff::{SignedDuration, Timestamp};
use refit_kinds::json::{text, whole_condition};
use refit_managed::Compat;
use refit_openshift::{
    config::{CONFIG_KEY, CONFIG_MAP, Platform},
    upgrade_config::NAMESPACE,
};
use serde_json::Value;

use super::{
    command::{Action, Command, Trouble},
    history::History,
    show,
};
use crate::{
    openshift::{World, WorldOptions},
    script::{
        HELP, ScriptError, ScriptOutcome,
        command::{Condition, Reference, Statement, wrong},
        field::Setting,
        names::Names,
        objects::{self, Found},
        run::{Stop, describe, unreached},
        words,
    },
};

/// Interval between two checks of a wait.
const LOOK: Duration = Duration::from_secs(1);

/// An action that happens while the script waits.
struct Later {
    due: Timestamp,
    line: usize,
    /// Its source; `None` for the end of a failure, which a script need not reach.
    text: Option<String>,
    action: Action,
}

/// A world, and the script's own state.
pub(super) struct Session {
    pub(super) world: World,
    pub(super) names: Names,
    pub(super) history: History,
    /// In order of time.
    later: Vec<Later>,
    /// How many policies were scheduled.
    policies: usize,
}

pub(super) struct Runner<'a> {
    file: String,
    directories: Vec<PathBuf>,
    out: &'a mut dyn Write,
    pub(super) session: Option<Session>,
}

fn refused(what: &str, error: &kube::Error) -> Stop {
    wrong(what, error.to_string(), "a request that the API server accepts").into()
}

impl<'a> Runner<'a> {
    pub(super) fn new(file: String, directories: Vec<PathBuf>, out: &'a mut dyn Write) -> Self {
        Self { file, directories, out, session: None }
    }

    pub(super) async fn run(
        &mut self,
        script: &[Statement<Command>],
    ) -> Result<ScriptOutcome, ScriptError> {
        for statement in script {
            let mark = if statement.command.is_some() { "> " } else { "" };
            let line = statement.line;
            writeln!(self.out, "{mark}{}", statement.text)?;
            let outcome = match &statement.command {
                Some(command) => self.command(command, line).await,
                None => Ok(()),
            };
            match outcome {
                Ok(()) => {}
                Err(Stop::RanOut(what)) => return Ok(ScriptOutcome::WaitRanOut { line, what }),
                Err(stop) => return Err(self.error(line, stop)),
            }
        }
        let left = self.session.as_ref().and_then(|session| {
            let later = session.later.iter().find(|later| later.text.is_some())?;
            let now = session.names.offset(session.world.now());
            Some((later.line, unreached(&session.names.offset(later.due), &now)))
        });
        match left {
            None => Ok(ScriptOutcome::Passed),
            Some((line, stop)) => Err(self.error(line, stop)),
        }
    }

    fn error(&self, line: usize, stop: Stop) -> ScriptError {
        stop.at(&self.file, line, |text| match &self.session {
            Some(session) => session.names.shown(text),
            None => text.to_owned(),
        })
    }

    fn session(&mut self) -> Result<&mut Session, Stop> {
        self.session.as_mut().ok_or_else(|| {
            wrong("script", "a command before any load", "load openshift first").into()
        })
    }

    /// Prints a line, prefixed with the time.
    fn print_line(&mut self, what: &str) -> Result<(), Stop> {
        let session = self.session()?;
        let (at, what) = (session.names.offset(session.world.now()), session.names.shown(what));
        writeln!(self.out, "{at}  {what}")?;
        Ok(())
    }

    async fn command(&mut self, command: &Command, line: usize) -> Result<(), Stop> {
        match command {
            Command::Load(platform, compat) => self.load(*platform, *compat).await,
            Command::Pass(time) => {
                let end = self.session()?.world.now() + *time;
                while self.session()?.world.now() < end {
                    self.tick(end).await?;
                }
                self.due().await
            }
            Command::Wait(object, condition, time) => self.wait(object, condition, *time).await,
            Command::At(time, text, action) => {
                let (text, action) = (Some(text.clone()), action.clone());
                self.later(*time, line, text, action)
            }
            Command::Now(action) => self.action(action, line).await,
        }
    }

    fn later(
        &mut self,
        after: SignedDuration,
        line: usize,
        text: Option<String>,
        action: Action,
    ) -> Result<(), Stop> {
        let session = self.session()?;
        let due = session.world.now() + after;
        session.later.push(Later { due, line, text, action });
        // The sort is stable: actions of the same time stay in the order of their requests.
        session.later.sort_by_key(|later| later.due);
        Ok(())
    }

    async fn load(&mut self, platform: Platform, compat: Compat) -> Result<(), Stop> {
        let options = WorldOptions { compat, ..WorldOptions::new(platform) };
        let world = World::new(options).await.map_err(|error| {
            Stop::from(wrong("load", format!("{error:#}"), "a world that can be created"))
        })?;
        let names = Names::new(world.now());
        let (history, later) = (History::default(), Vec::new());
        self.session = Some(Session { world, names, history, later, policies: 0 });
        self.print_line(&format!(
            "a cluster of {platform}, and refit-managed --muo-compat={compat}"
        ))
    }

    async fn wait(
        &mut self,
        object: &Reference,
        condition: &Condition,
        time: SignedDuration,
    ) -> Result<(), Stop> {
        let session = self.session()?;
        let start = session.world.now();
        let end = start + time;
        // Resolve the kind only once: that reads all CRDs, and a wait checks thousands of times.
        let found = Found::on(session.world.server().clone(), object, NAMESPACE)?;
        loop {
            self.due().await?;
            let session = self.session()?;
            let waited = words::shown(session.world.now().duration_since(start));
            if is_met(&found, condition) {
                let what = describe(condition);
                return self.print_line(&format!("{object} {what}, after {waited}"));
            }
            if session.world.now() >= end {
                let why = show::obstacles(session);
                let what = describe(condition);
                let what = format!("condition not met: {object} {what}, after {waited}");
                self.print_line(&what)?;
                for line in why {
                    writeln!(self.out, "  {line}")?;
                }
                return Err(Stop::RanOut(what));
            }
            self.tick(end).await?;
        }
    }

    /// Lets a short time pass, but not beyond `end`.
    async fn tick(&mut self, end: Timestamp) -> Result<(), Stop> {
        let session = self.session()?;
        let rest = Duration::try_from(end.duration_since(session.world.now())).unwrap_or(LOOK);
        session.world.pass(rest.min(LOOK)).await;
        session.history.observe(&session.world);
        self.due().await
    }

    async fn due(&mut self) -> Result<(), Stop> {
        loop {
            let session = self.session()?;
            let now = session.world.now();
            let Some(next) = session.later.iter().position(|later| later.due <= now) else {
                return Ok(());
            };
            let Later { line, text, action, .. } = session.later.remove(next);
            if let Some(text) = text {
                self.print_line(&format!("> {text}"))?;
            }
            Box::pin(self.action(&action, line)).await?;
        }
    }

    async fn action(&mut self, action: &Action, line: usize) -> Result<(), Stop> {
        match action {
            Action::Help => Ok(write!(self.out, "{HELP}")?),
            Action::Apply(source) => {
                let objects = source.objects(&self.directories)?;
                let server = self.session()?.world.server();
                let lines = objects::apply_to(server, objects, NAMESPACE).await?;
                lines.iter().try_for_each(|line| self.print_line(line))
            }
            Action::Change(object, settings) => {
                let lines = self.find(object)?.change(settings).await?;
                lines.iter().try_for_each(|line| self.print_line(line))
            }
            Action::Delete(object) => {
                self.find(object)?.delete().await?;
                self.print_line(&format!("{object} deleted"))
            }
            Action::Schedule(version, time) => self.schedule(version, *time),
            Action::Cancel => {
                let ocm = self.session()?.world.ocm();
                let Some((id, _)) = ocm.policies().pop_first() else {
                    let want = "an upgrade that is scheduled: schedule VERSION in TIME";
                    return Err(wrong("cancel", "a policy that does not exist", want).into());
                };
                ocm.delete(&id);
                self.print_line(&format!("{id} is deleted"))
            }
            Action::Request(version, time) => {
                let world = &self.session()?.world;
                world.request(version, *time).await.map_err(|error| refused("request", &error))?;
                self.print_line(&format!("UpgradeConfig to {version} created"))
            }
            Action::Configure(setting) => self.configure(setting).await,
            Action::Break(trouble, time) => {
                let what = trouble.set(&self.session()?.world, true).await?;
                self.print_line(&what)?;
                match time {
                    Some(time) => self.later(*time, line, None, Action::Mend(trouble.clone())),
                    None => Ok(()),
                }
            }
            Action::Mend(trouble) => self.mend(trouble).await,
            Action::Kill(time) => {
                self.session()?.world.kill(time.unwrap_or_default());
                self.print_line("refit-managed is killed")
            }
            Action::Show(what) => {
                let session = self.session()?;
                session.history.observe(&session.world);
                let text = show::show(session, what)?;
                let text = session.names.shown(&text);
                write!(self.out, "{text}")?;
                Ok(())
            }
        }
    }

    fn find(&mut self, object: &Reference) -> Result<Found, Stop> {
        Ok(Found::on(self.session()?.world.server().clone(), object, NAMESPACE)?)
    }

    /// OCM has one policy of a cluster at a time.
    fn schedule(&mut self, version: &str, time: SignedDuration) -> Result<(), Stop> {
        let session = self.session()?;
        for id in session.world.ocm().policies().keys() {
            session.world.ocm().delete(id);
        }
        session.policies += 1;
        let id = format!("policy-{}", session.policies);
        session.world.schedule(&id, version, time);
        let when = session.names.offset(session.world.now() + time);
        self.print_line(&format!("{id} to {version} at {when}"))
    }

    async fn configure(&mut self, setting: &Setting) -> Result<(), Stop> {
        let world = &self.session()?.world;
        let stored = world.server().get_value("", "configmaps", NAMESPACE, CONFIG_MAP);
        let stored = stored.unwrap_or_default();
        let yaml = stored["data"][CONFIG_KEY].as_str().unwrap_or_default();
        let mut config: Value = serde_saphyr::from_str(yaml).map_err(|error| {
            wrong("configure", format!("{CONFIG_MAP}: {error}"), "a configuration in YAML")
        })?;
        let before = setting.field.shown(&config);
        if !setting.apply(&mut config) {
            let want = "a field of an existing object or list";
            return Err(wrong("configure", setting.field.text.as_str(), want).into());
        }
        world.set_config(&config).await.map_err(|error| refused("configure", &error))?;
        let Setting { field, .. } = setting;
        self.print_line(&format!("{CONFIG_MAP}: {} {before} -> {}", field.text, setting.shown()))
    }

    async fn mend(&mut self, trouble: &Trouble) -> Result<(), Stop> {
        let session = self.session()?;
        // A failure that was mended does not end again later.
        session.later.retain(|later| match &later.action {
            Action::Mend(other) => later.text.is_some() || !trouble.is_same(other),
            _ => true,
        });
        let what = trouble.set(&session.world, false).await?;
        self.print_line(&what)
    }
}

/// Whether an object meets a condition. The conditions of an UpgradeConfig are those of its newest entry.
fn is_met(found: &Found, condition: &Condition) -> bool {
    let Some(object) = found.get() else {
        return matches!(condition, Condition::Gone);
    };
    let is_upgrade = found.kind.kind == "UpgradeConfig";
    let entry = &object["status"]["history"][0];
    match condition {
        Condition::Gone
        | Condition::Ready
        | Condition::Updated
        | Condition::Blocked(_)
        | Condition::Step(_) => false,
        Condition::Phase(phase) if is_upgrade => text(entry, "/phase") == phase,
        Condition::Phase(phase) => text(&object, "/status/phase") == phase,
        Condition::Field(setting) => setting.holds(&object),
        Condition::Status(kind, status) if is_upgrade => {
            let conditions = entry["conditions"].as_array().into_iter().flatten();
            conditions.into_iter().any(|one| one["type"] == **kind && one["status"] == **status)
        }
        Condition::Status(kind, status) => {
            whole_condition(&object, kind).is_some_and(|one| one["status"] == **status)
        }
    }
}
