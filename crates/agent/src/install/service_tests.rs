use std::sync::Mutex;

use tokio::sync::watch;

use super::*;
use crate::install::exchange::{confirmed, end_trial, exchanged, guard};

/// systemd as far as the service is concerned.
#[derive(Default)]
struct FakeUnits {
    calls: Mutex<Vec<String>>,
    active: Mutex<bool>,
    /// What `--version` of a program says.
    broken: bool,
}

impl FakeUnits {
    fn note(&self, call: &str) -> BoxFuture<'_, Result<(), ProgramError>> {
        self.calls.lock().unwrap().push(call.to_owned());
        Box::pin(async { Ok(()) })
    }

    fn taken(&self) -> Vec<String> {
        std::mem::take(&mut *self.calls.lock().unwrap())
    }

    fn set_active(&self, active: bool) {
        *self.active.lock().unwrap() = active;
    }
}

impl Units for FakeUnits {
    fn reload(&self) -> BoxFuture<'_, Result<(), ProgramError>> {
        self.note("reload")
    }
    fn enable(&self) -> BoxFuture<'_, Result<(), ProgramError>> {
        self.set_active(true);
        self.note("enable")
    }
    fn disable(&self) -> BoxFuture<'_, Result<(), ProgramError>> {
        self.set_active(false);
        self.note("disable")
    }
    fn restart(&self) -> BoxFuture<'_, Result<(), ProgramError>> {
        self.set_active(true);
        self.note("restart")
    }
    fn is_active(&self) -> BoxFuture<'_, Result<bool, ProgramError>> {
        Box::pin(async { Ok(*self.active.lock().unwrap()) })
    }
    fn watch_trial<'a>(
        &'a self,
        program: &'a Path,
        seconds: u64,
    ) -> BoxFuture<'a, Result<(), ProgramError>> {
        self.note(&format!("watch {} {seconds}", id_at(program)))
    }
    fn forget_trial(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }
    fn run<'a>(
        &'a self,
        _: &'a Path,
        _: &'a [&'a str],
    ) -> BoxFuture<'a, Result<String, ProgramError>> {
        let said = if self.broken { "no such library" } else { "refit-agent 0.1.0\n" };
        Box::pin(async move { Ok(said.to_owned()) })
    }
}

fn id_at(program: &Path) -> String {
    let folder = program.parent().and_then(Path::file_name);
    folder.unwrap_or_default().to_string_lossy().into_owned()
}

struct Lab {
    folder: tempfile::TempDir,
    units: FakeUnits,
}

impl Lab {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), units: FakeUnits::default() }
    }

    fn layout(&self) -> Layout {
        Layout::new(self.folder.path().join("opt/refit/agent"))
    }

    fn installation(&self) -> Installation<'_> {
        Installation {
            layout: self.layout(),
            root: self.folder.path().to_owned(),
            units: &self.units,
        }
    }

    async fn install(&self, program: &[u8]) -> Result<ExchangeOutcome, InstallError> {
        self.install_at(program, Timestamp::UNIX_EPOCH).await
    }

    async fn install_at(
        &self,
        program: &[u8],
        now: Timestamp,
    ) -> Result<ExchangeOutcome, InstallError> {
        let settings = BTreeMap::from([("NODE_NAME".to_owned(), "n1".to_owned())]);
        self.installation().install(program, &settings, now).await
    }

    fn unit(&self) -> PathBuf {
        self.folder.path().join(&UNIT_FILE[1..])
    }

    fn settings(&self) -> PathBuf {
        self.folder.path().join(&INSTALLED_SETTINGS[1..])
    }

    fn current(&self) -> Option<String> {
        self.layout().get(Link::Current)
    }
}

fn told(value: bool) -> (watch::Sender<bool>, watch::Receiver<bool>) {
    watch::channel(value)
}

/// Has the running agent exchange itself for the wanted version.
async fn exchange(lab: &Lab, own: &str) -> String {
    let ((_a, reported), (_b, between)) = (told(true), told(true));
    exchanged(&lab.layout(), own, reported, between).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn installing_twice_changes_nothing_the_second_time() {
    let lab = Lab::new();
    assert_eq!(lab.install(b"one").await.unwrap(), ExchangeOutcome::Installed);
    assert_eq!(lab.units.taken(), ["reload", "enable"]);
    let unit = fs::read_to_string(lab.folder.path().join(&UNIT_FILE[1..])).unwrap();
    assert!(unit.contains("ExecStart=/opt/refit/agent/current/refit-agent"));
    assert_eq!(lab.current(), Some(id_of(b"one")));
    assert_eq!(lab.layout().trial(), None);
    assert!(lab.installation().is_settled(b"one").await);

    assert_eq!(lab.install(b"one").await.unwrap(), ExchangeOutcome::Unchanged);
    assert_eq!(lab.units.taken(), ["enable"]);
}

#[tokio::test(start_paused = true)]
async fn a_new_version_waits_until_no_step_is_under_way_and_stays_once_it_has_reported() {
    let lab = Lab::new();
    let (old, new) = (id_of(b"one"), id_of(b"two"));
    lab.install(b"one").await.unwrap();
    let running = old.clone();
    assert_eq!(lab.install(b"two").await.unwrap(), ExchangeOutcome::Wanted { running });
    assert_eq!(lab.current(), Some(old.clone()));
    assert!(!lab.installation().is_settled(b"two").await);

    let layout = lab.layout();
    let ((_told, reported), (steps, between)) = (told(true), told(false));
    let waiting = exchanged(&layout, &old, reported, between);
    tokio::pin!(waiting);
    let soon = tokio::time::timeout(Duration::from_hours(1), &mut waiting);
    assert!(soon.await.is_err(), "a step is under way");
    assert_eq!(lab.current(), Some(old.clone()));
    steps.send_replace(true);
    assert_eq!(waiting.await.unwrap(), new);
    assert_eq!(lab.current(), Some(new.clone()));
    assert_eq!(layout.get(Link::Previous), Some(old.clone()));
    assert_eq!(layout.get(Link::Wanted), None);

    lab.units.taken();
    guard(&layout, &lab.units).await.unwrap();
    assert_eq!(lab.units.taken(), [format!("watch {old} 600")]);
    let (_told, reported) = told(true);
    confirmed(&layout, &new, reported, &lab.units).await.unwrap();
    assert!(lab.installation().is_settled(b"two").await);
    assert!(
        !end_trial(&layout, lab.folder.path(), &lab.units, Timestamp::UNIX_EPOCH).await.unwrap()
    );
    assert_eq!(lab.current(), Some(new));
}

#[tokio::test(start_paused = true)]
async fn a_version_that_does_not_report_gives_way_to_the_one_before_and_rests_for_an_hour() {
    let lab = Lab::new();
    let (old, new) = (id_of(b"one"), id_of(b"two"));
    lab.install(b"one").await.unwrap();
    lab.install(b"two").await.unwrap();
    assert_eq!(exchange(&lab, &old).await, new);
    let layout = lab.layout();
    let at = Timestamp::from_second(600).unwrap();
    lab.units.taken();
    assert!(end_trial(&layout, lab.folder.path(), &lab.units, at).await.unwrap());
    assert_eq!(lab.units.taken(), ["restart"]);
    assert_eq!((lab.current(), layout.trial()), (Some(old.clone()), None));
    guard(&layout, &lab.units).await.unwrap();
    assert!(lab.units.taken().is_empty(), "the old one is on no trial");

    let soon = Timestamp::from_second(1200).unwrap();
    let error = lab.install_at(b"two", soon).await.unwrap_err().to_string();
    assert!(error.contains("rejected on this host 10 min ago"), "{error}");
    assert_eq!(lab.install_at(b"one", soon).await.unwrap(), ExchangeOutcome::Unchanged);
    let later = Timestamp::from_second(600 + 3600).unwrap();
    let outcome = lab.install_at(b"two", later).await.unwrap();
    assert_eq!(outcome, ExchangeOutcome::Wanted { running: old });
}

#[tokio::test(start_paused = true)]
async fn power_that_goes_during_an_exchange_leaves_a_host_with_a_version_that_runs() {
    let lab = Lab::new();
    let (old, new) = (id_of(b"one"), id_of(b"two"));
    lab.install(b"one").await.unwrap();
    lab.install(b"two").await.unwrap();
    let layout = lab.layout();
    // The trial is noted, the links are those of before.
    layout.begin_trial(&new).unwrap();
    layout.set(Link::Previous, &old).unwrap();
    lab.units.taken();
    guard(&layout, &lab.units).await.unwrap();
    assert!(lab.units.taken().is_empty());
    assert_eq!((lab.current(), layout.trial()), (Some(old.clone()), None));
    // And then the exchange goes on.
    assert_eq!(exchange(&lab, &old).await, new);
    assert_eq!(layout.trial(), Some(new));
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_has_not_reported_itself_exchanges_itself_for_nothing() {
    let lab = Lab::new();
    lab.install(b"one").await.unwrap();
    lab.install(b"two").await.unwrap();
    let (layout, old) = (lab.layout(), id_of(b"one"));
    let ((_told, reported), (_steps, between)) = (told(false), told(true));
    let waiting = exchanged(&layout, &old, reported, between);
    let soon = tokio::time::timeout(Duration::from_hours(1), waiting);
    assert!(soon.await.is_err());
    assert_eq!(lab.current(), Some(old));
}

#[tokio::test(start_paused = true)]
async fn a_version_that_is_down_is_replaced_at_once() {
    let lab = Lab::new();
    lab.install(b"one").await.unwrap();
    lab.units.set_active(false);
    assert_eq!(lab.install(b"two").await.unwrap(), ExchangeOutcome::Replaced);
    assert_eq!(lab.current(), Some(id_of(b"two")));
    assert_eq!(lab.layout().trial(), Some(id_of(b"two")));
}

#[tokio::test(start_paused = true)]
async fn a_program_that_does_not_run_here_is_never_started() {
    let mut lab = Lab::new();
    lab.units.broken = true;
    let error = lab.install(b"one").await.unwrap_err().to_string();
    assert!(error.contains("does not run on this host"), "{error}");
    assert_eq!(lab.current(), None);
    assert!(lab.units.taken().is_empty());
}

#[tokio::test(start_paused = true)]
async fn removing_leaves_the_journal_unless_it_is_asked_for() {
    let lab = Lab::new();
    lab.install(b"one").await.unwrap();
    let state = lab.folder.path().join("var/lib/refit-agent");
    fs::create_dir_all(&state).unwrap();
    lab.units.taken();
    lab.installation().uninstall(None).await.unwrap();
    assert_eq!(lab.units.taken(), ["disable", "reload"]);
    assert!(!lab.layout().base().exists() && state.exists());
    assert!(!lab.folder.path().join(&UNIT_FILE[1..]).exists());
    let purged = Some(Path::new("/var/lib/refit-agent"));
    lab.installation().uninstall(purged).await.unwrap();
    assert!(!state.exists());
}

#[tokio::test(start_paused = true)]
async fn other_settings_or_another_unit_reach_the_service_that_runs() {
    let lab = Lab::new();
    lab.install(b"one").await.unwrap();
    lab.units.taken();
    fs::write(lab.unit(), "[Service]\n").unwrap();
    assert_eq!(lab.install(b"one").await.unwrap(), ExchangeOutcome::Reconfigured);
    assert_eq!(lab.units.taken(), ["reload", "enable", "restart"]);
    let other = BTreeMap::from([("REFIT_LOG".to_owned(), "debug".to_owned())]);
    let install = || async {
        let at = Timestamp::UNIX_EPOCH;
        lab.installation().install(b"one", &other, at).await.unwrap()
    };
    assert_eq!(install().await, ExchangeOutcome::Reconfigured);
    lab.units.taken();
    assert_eq!(install().await, ExchangeOutcome::Unchanged);
    assert_eq!(lab.units.taken(), ["enable"]);
    let text = fs::read_to_string(lab.settings()).unwrap();
    assert!(
        text.ends_with("NODE_NAME=\"n1\"\nREFIT_LOG=\"debug\"\n"),
        "what was set before stays: {text}"
    );
}

/// A package's service has the same name and no links of ours: it runs, and ours takes its place.
#[tokio::test(start_paused = true)]
async fn a_packaged_agent_that_runs_gives_way() {
    let lab = Lab::new();
    lab.units.set_active(true);
    assert_eq!(lab.install(b"one").await.unwrap(), ExchangeOutcome::Replaced);
    assert_eq!(lab.units.taken(), ["reload", "enable", "restart"]);
    assert_eq!(lab.current(), Some(id_of(b"one")));
    assert_eq!(lab.layout().trial(), None, "there is none to go back to");
}

#[tokio::test(start_paused = true)]
async fn a_version_that_is_put_back_has_the_unit_that_it_ran_by() {
    let lab = Lab::new();
    lab.install(b"one").await.unwrap();
    // As an older version had it.
    let old = "[Service]\nExecStart=/opt/refit/agent/current/refit-agent --old\n";
    fs::write(lab.unit(), old).unwrap();
    lab.install(b"two").await.unwrap();
    assert_ne!(fs::read_to_string(lab.unit()).unwrap(), old);
    exchange(&lab, &id_of(b"one")).await;
    let (layout, at) = (lab.layout(), Timestamp::UNIX_EPOCH);
    lab.units.taken();
    let root = lab.folder.path();
    assert!(end_trial(&layout, root, &lab.units, at).await.unwrap());
    assert_eq!(lab.units.taken(), ["reload", "restart"]);
    assert_eq!(fs::read_to_string(lab.unit()).unwrap(), old);
    assert!(!layout.previous_unit().exists());
    // One that has reported needs the old unit no more.
    lab.install(b"three").await.unwrap();
    assert!(layout.previous_unit().exists());
    let new = exchange(&lab, &id_of(b"one")).await;
    let (_told, reported) = told(true);
    confirmed(&layout, &new, reported, &lab.units).await.unwrap();
    assert!(!layout.previous_unit().exists());
}

#[tokio::test(start_paused = true)]
async fn a_rejection_of_the_future_holds_nothing_up() {
    let lab = Lab::new();
    lab.install(b"one").await.unwrap();
    let new = lab.layout().put(b"two").unwrap();
    fs::write(lab.layout().rejection(&new), "2031-01-01T00:00:00Z\nwhy\n").unwrap();
    let outcome = lab.install(b"two").await.unwrap();
    assert!(matches!(outcome, ExchangeOutcome::Wanted { .. }), "{outcome:?}");
    assert!(!lab.layout().rejection(&new).exists());
}

#[tokio::test(start_paused = true)]
async fn one_installation_waits_for_another_and_says_so_in_the_end() {
    let lab = Lab::new();
    let held = lab.layout().lock().unwrap();
    let error = lab.install(b"one").await.unwrap_err();
    assert!(matches!(error, InstallError::Busy), "{error}");
    assert_eq!(lab.current(), None);
    drop(held);
    assert_eq!(lab.install(b"one").await.unwrap(), ExchangeOutcome::Installed);
}

#[test]
fn keys_of_bundles_are_where_bundles_are_checked() {
    let lab = Lab::new();
    let keys = BTreeMap::from([("release.pub".to_owned(), "a key\n".to_owned())]);
    lab.installation().trust(&keys).unwrap();
    let file = lab.folder.path().join("etc/refit/keys/release.pub");
    assert_eq!(fs::read_to_string(file).unwrap(), "a key\n");
}
