//! Units of systemd that read changed files: they are reloaded or restarted (`docs/facts/hosts.md#systemd`).

use std::time::Duration;

use refit_kinds::refit::{UnitAction, UnitArgs, UnitVerb};

use super::{Program, Site, running::Patience, work::WorkError};

/// How long a unit may take until it runs, and the time between two looks: a service that ends soon after its start does
/// not count as running.
pub(super) const SETTLE: Patience =
    Patience { limit: Duration::from_mins(1), pause: Duration::from_secs(2) };

/// What systemd shows about a unit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct UnitView {
    load: String,
    active: String,
    at_boot: String,
    type_: String,
    result: String,
    condition: String,
    main: String,
    can_reload: String,
}

impl UnitView {
    async fn of(site: &Site, unit: &str) -> Result<Self, WorkError> {
        const SHOWN: &str = "--property=LoadState,ActiveState,UnitFileState,Type,Result,\
                             ConditionResult,MainPID,CanReload";
        let answer = site.ask(Program::Systemctl, ["show", SHOWN, "--", unit]).await?;
        let field = |name: &str| {
            let lines = answer.lines().filter_map(|line| line.split_once('='));
            let value = lines.into_iter().find(|(key, _)| *key == name);
            value.map_or_else(String::new, |(_, value)| value.trim().to_owned())
        };
        Ok(Self {
            load: field("LoadState"),
            active: field("ActiveState"),
            at_boot: field("UnitFileState"),
            type_: field("Type"),
            result: field("Result"),
            condition: field("ConditionResult"),
            main: field("MainPID"),
            can_reload: field("CanReload"),
        })
    }

    /// Whether the unit has no file on the host.
    fn is_unknown(&self) -> bool {
        self.load == "not-found"
    }

    /// Whether the unit is stopped, and not because it failed.
    fn is_stopped(&self) -> bool {
        self.active == "inactive"
    }

    /// Whether the unit starts at each boot.
    fn is_enabled(&self) -> bool {
        ["enabled", "enabled-runtime"].contains(&&*self.at_boot)
    }

    /// Whether the unit runs as it should: a service of the type `oneshot` ends by itself, and a unit whose condition does
    /// not hold does not start.
    fn is_well(&self) -> bool {
        let may_end = self.type_ == "oneshot" || self.condition == "no";
        self.active == "active" || self.is_stopped() && self.result == "success" && may_end
    }
}

/// Has systemd read its unit files again, then reloads or restarts the units.
pub(super) async fn apply(
    site: &Site,
    args: &UnitArgs,
    patience: Patience,
) -> Result<(), WorkError> {
    site.run(&site.call(Program::Systemctl, ["daemon-reload"])).await?;
    for action in &args.units {
        let found = UnitView::of(site, &action.unit).await?;
        if found.is_unknown() {
            return Err(WorkError::permanent(format!(
                "unit {} does not exist on the host; write its file in the step files, or remove the unit from the step",
                action.unit
            )));
        }
        act(site, action, &found, patience).await?;
    }
    Ok(())
}

/// As [`apply`], after the files of the units were restored. A unit that has no file any more is stopped.
pub(super) async fn put_back(
    site: &Site,
    args: &UnitArgs,
    patience: Patience,
) -> Result<(), WorkError> {
    site.run(&site.call(Program::Systemctl, ["daemon-reload"])).await?;
    for action in &args.units {
        let found = UnitView::of(site, &action.unit).await?;
        if !found.is_unknown() {
            act(site, action, &found, patience).await?;
        } else if !found.is_stopped() {
            site.run(&site.call(Program::Systemctl, ["stop", "--", &action.unit])).await?;
        }
    }
    Ok(())
}

/// Reloads or restarts a unit, and waits until it runs. A unit that is stopped, and that is not both enabled and to be
/// restarted, reads its files when it starts next.
async fn act(
    site: &Site,
    action: &UnitAction,
    found: &UnitView,
    patience: Patience,
) -> Result<(), WorkError> {
    let unit = &action.unit;
    let verb = match action.verb {
        UnitVerb::Reload => "reload",
        UnitVerb::Restart => "restart",
    };
    let starts = action.verb == UnitVerb::Restart && found.is_enabled();
    if found.is_stopped() && !starts {
        site.log(&format!("{unit} is stopped, and is left so"));
        return Ok(());
    }
    if action.verb == UnitVerb::Reload && found.can_reload == "no" {
        return Err(WorkError::permanent(format!(
            "unit {unit} cannot reload its configuration; use the verb Restart"
        )));
    }
    site.run(&site.call(Program::Systemctl, [verb, "--", unit])).await?;
    settle(site, unit, verb, patience).await
}

/// Waits until two looks in a row see the unit run, with the same process.
async fn settle(site: &Site, unit: &str, verb: &str, patience: Patience) -> Result<(), WorkError> {
    let mut state = String::new();
    let settled = async {
        let mut before = None;
        loop {
            match UnitView::of(site, unit).await {
                Ok(now) => {
                    state.clone_from(&now.active);
                    if now.is_well() && before.as_ref() == Some(&now) {
                        return;
                    }
                    before = Some(now);
                }
                Err(error) => state = error.message,
            }
            tokio::time::sleep(patience.pause).await;
        }
    };
    let settled = tokio::time::timeout(patience.limit, settled).await;
    settled.map_err(|_| {
        WorkError::retriable(format!(
            "unit {unit} does not run {} s after its {verb}, its state is {state:?}; see journalctl -u {unit} on the host",
            patience.limit.as_secs()
        ))
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use refit_kinds::refit::FailureKind;

    use super::*;
    use crate::host::scripted::ScriptedHost;

    const QUICK: Patience =
        Patience { limit: Duration::from_secs(3), pause: Duration::from_millis(5) };
    const UNIT: &str = "app.service";

    /// A host whose systemd shows the text of a file about the unit. A restart replaces the text by that of another file.
    fn host(before: &str, after: &str) -> ScriptedHost {
        let mut host = ScriptedHost::with_directories(&["/etc"]);
        let directory = host.directory.path().display().to_string();
        fs::write(host.directory.path().join("now"), before).unwrap();
        fs::write(host.directory.path().join("after"), after).unwrap();
        let script = format!(
            "case $1 in show) cat {directory}/now;; restart) cp {directory}/after {directory}/now;; esac"
        );
        host.script(Program::Systemctl, &script);
        host
    }

    fn shown(active: &str, at_boot: &str, more: &str) -> String {
        format!(
            "LoadState=loaded\nActiveState={active}\nUnitFileState={at_boot}\nResult=success\n\
             CanReload=yes\nMainPID=7\n{more}"
        )
    }

    fn args(verb: UnitVerb) -> UnitArgs {
        UnitArgs { units: vec![UnitAction { unit: UNIT.to_owned(), verb }] }
    }

    fn verbs(host: &ScriptedHost) -> Vec<String> {
        let calls = host.log();
        let calls = calls.lines().filter_map(|line| line.split("Systemctl ").nth(1));
        calls.map(str::to_owned).collect()
    }

    #[tokio::test]
    async fn units_that_run_or_start_at_boot_get_their_action() {
        use UnitVerb::{Reload, Restart};
        let runs = shown("active", "enabled", "");
        for (before, verb, action) in [
            (runs.clone(), Reload, Some("reload")),
            (runs.clone(), Restart, Some("restart")),
            (shown("active", "static", ""), Restart, Some("restart")),
            (shown("inactive", "enabled", ""), Restart, Some("restart")),
            (shown("failed", "static", ""), Restart, Some("restart")),
            (shown("inactive", "enabled", ""), Reload, None),
            (shown("inactive", "disabled", ""), Restart, None),
            (shown("inactive", "static", ""), Restart, None),
        ] {
            let host = host(&before, &runs);
            apply(&host.site, &args(verb), QUICK).await.unwrap();
            let action = action.map(|action| format!("{action} -- {UNIT}"));
            let expected: Vec<_> = ["daemon-reload".to_owned()].into_iter().chain(action).collect();
            assert_eq!(verbs(&host), expected, "{verb:?} {before}");
        }
    }

    #[tokio::test]
    async fn a_unit_that_does_not_exist_or_cannot_reload_ends_the_plan() {
        let missing = host("LoadState=not-found\nActiveState=inactive\n", "");
        let fixed = host(&shown("active", "enabled", "").replace("yes", "no"), "");
        for (host, remedy) in [(missing, "write its file"), (fixed, "use the verb Restart")] {
            let error = apply(&host.site, &args(UnitVerb::Reload), QUICK).await.unwrap_err();
            assert_eq!(error.kind, FailureKind::Final);
            assert!(error.message.contains(remedy) && error.message.contains(UNIT), "{error}");
            assert_eq!(verbs(&host), ["daemon-reload"]);
        }
    }

    #[tokio::test]
    async fn a_unit_that_does_not_run_after_its_restart_is_reported() {
        let runs = shown("active", "enabled", "");
        for (after, good) in [
            (shown("failed", "enabled", ""), false),
            (shown("activating", "enabled", ""), false),
            (shown("inactive", "enabled", "Type=simple\n"), false),
            (shown("inactive", "enabled", "Type=oneshot\n"), true),
            (shown("inactive", "enabled", "ConditionResult=no\n"), true),
        ] {
            let host = host(&runs, &after);
            let patience = Patience { limit: Duration::from_millis(500), ..QUICK };
            let patience = if good { QUICK } else { patience };
            let outcome = apply(&host.site, &args(UnitVerb::Restart), patience).await;
            assert_eq!(outcome.is_ok(), good, "{after}");
            let Err(error) = outcome else { continue };
            assert_eq!(error.kind, FailureKind::Retriable);
            assert!(error.message.contains("journalctl -u app.service"), "{error}");
        }
    }

    #[tokio::test]
    async fn a_rollback_repeats_the_action_and_stops_a_unit_without_a_file() {
        let runs = shown("active", "enabled", "");
        let gone = "LoadState=not-found\nActiveState=active\n";
        let stopped = "LoadState=not-found\nActiveState=inactive\n";
        for (before, expected) in [
            (&*runs, &["daemon-reload", "restart -- app.service"][..]),
            (gone, &["daemon-reload", "stop -- app.service"]),
            (stopped, &["daemon-reload"]),
        ] {
            let host = host(before, &runs);
            put_back(&host.site, &args(UnitVerb::Restart), QUICK).await.unwrap();
            assert_eq!(verbs(&host), expected, "{before}");
        }
    }
}
