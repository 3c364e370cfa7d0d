use std::sync::Mutex;

use tokio::sync::watch;

use super::*;
use crate::install::exchange::{confirmed, end_trial, exchanged, guard};

/// A fake systemd for the service.
#[derive(Default)]
struct FakeUnits {
    calls: Mutex<Vec<String>>,
    active: Mutex<bool>,
    /// Whether `--version` of a program prints an error.
    broken: bool,
    /// What `systemctl --version` prints.
    version: &'static str,
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
    fn version(&self) -> BoxFuture<'_, Result<String, ProgramError>> {
        Box::pin(async { Ok(self.version.to_owned()) })
    }
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
        let output = if self.broken { "no such library" } else { "refit-agent 0.1.0\n" };
        Box::pin(async move { Ok(output.to_owned()) })
    }
}

fn id_at(program: &Path) -> String {
    let directory = program.parent().and_then(Path::file_name);
    directory.unwrap_or_default().to_string_lossy().into_owned()
}

struct Lab {
    directory: tempfile::TempDir,
    units: FakeUnits,
}

impl Lab {
    fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap(), units: FakeUnits::default() }
    }

    fn layout(&self) -> Layout {
        Layout::new(self.directory.path().join("opt/refit/agent"))
    }

    fn installation(&self) -> Installation<'_> {
        Installation {
            layout: self.layout(),
            root: self.directory.path().to_owned(),
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
        self.directory.path().join(&UNIT_FILE[1..])
    }

    fn settings(&self) -> PathBuf {
        self.directory.path().join(&INSTALLED_SETTINGS[1..])
    }

    fn current(&self) -> Option<String> {
        self.layout().get(Link::Current)
    }
}

fn flag(value: bool) -> (watch::Sender<bool>, watch::Receiver<bool>) {
    watch::channel(value)
}

/// Lets the running agent replace itself with the wanted version.
async fn exchange(lab: &Lab, own: &str) -> String {
    let ((_a, reported), (_b, between)) = (flag(true), flag(true));
    exchanged(&lab.layout(), own, reported, between).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn installing_twice_changes_nothing_the_second_time() {
    let lab = Lab::new();
    assert_eq!(lab.install(b"one").await.unwrap(), ExchangeOutcome::Installed);
    assert_eq!(lab.units.taken(), ["reload", "enable"]);
    let unit = fs::read_to_string(lab.directory.path().join(&UNIT_FILE[1..])).unwrap();
    assert!(unit.contains("ExecStart=/opt/refit/agent/current/refit-agent"));
    assert_eq!(lab.current(), Some(id_of(b"one")));
    assert_eq!(lab.layout().trial(), None);
    assert!(lab.installation().is_settled(b"one").await);

    assert_eq!(lab.install(b"one").await.unwrap(), ExchangeOutcome::Unchanged);
    assert_eq!(lab.units.taken(), ["enable"]);
}

#[tokio::test(start_paused = true)]
async fn a_new_version_waits_for_idle_and_stays_once_it_reported() {
    let lab = Lab::new();
    let (old, new) = (id_of(b"one"), id_of(b"two"));
    lab.install(b"one").await.unwrap();
    let running = old.clone();
    assert_eq!(lab.install(b"two").await.unwrap(), ExchangeOutcome::Wanted { running });
    assert_eq!(lab.current(), Some(old.clone()));
    assert!(!lab.installation().is_settled(b"two").await);

    let layout = lab.layout();
    let ((_sender, reported), (steps, between)) = (flag(true), flag(false));
    let waiting = exchanged(&layout, &old, reported, between);
    tokio::pin!(waiting);
    let soon = tokio::time::timeout(Duration::from_hours(1), &mut waiting);
    assert!(soon.await.is_err(), "a step is in progress");
    assert_eq!(lab.current(), Some(old.clone()));
    steps.send_replace(true);
    assert_eq!(waiting.await.unwrap(), new);
    assert_eq!(lab.current(), Some(new.clone()));
    assert_eq!(layout.get(Link::Previous), Some(old.clone()));
    assert_eq!(layout.get(Link::Wanted), None);

    lab.units.taken();
    guard(&layout, &lab.units).await.unwrap();
    assert_eq!(lab.units.taken(), [format!("watch {old} 600")]);
    let (_sender, reported) = flag(true);
    confirmed(&layout, &new, reported, &lab.units).await.unwrap();
    assert!(lab.installation().is_settled(b"two").await);
    assert!(
        !end_trial(&layout, lab.directory.path(), &lab.units, Timestamp::UNIX_EPOCH).await.unwrap()
    );
    assert_eq!(lab.current(), Some(new));
}

#[tokio::test(start_paused = true)]
async fn a_silent_version_is_rolled_back_and_rejected_for_an_hour() {
    let lab = Lab::new();
    let (old, new) = (id_of(b"one"), id_of(b"two"));
    lab.install(b"one").await.unwrap();
    lab.install(b"two").await.unwrap();
    assert_eq!(exchange(&lab, &old).await, new);
    let layout = lab.layout();
    let at = Timestamp::from_second(600).unwrap();
    lab.units.taken();
    assert!(end_trial(&layout, lab.directory.path(), &lab.units, at).await.unwrap());
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
async fn a_power_failure_during_an_exchange_leaves_a_working_version() {
    let lab = Lab::new();
    let (old, new) = (id_of(b"one"), id_of(b"two"));
    lab.install(b"one").await.unwrap();
    lab.install(b"two").await.unwrap();
    let layout = lab.layout();
    // The trial is recorded, the links still name the previous version.
    layout.begin_trial(&new).unwrap();
    layout.set(Link::Previous, &old).unwrap();
    lab.units.taken();
    guard(&layout, &lab.units).await.unwrap();
    assert!(lab.units.taken().is_empty());
    assert_eq!((lab.current(), layout.trial()), (Some(old.clone()), None));
    // The exchange then continues.
    assert_eq!(exchange(&lab, &old).await, new);
    assert_eq!(layout.trial(), Some(new));
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_has_not_reported_does_not_exchange_itself() {
    let lab = Lab::new();
    lab.install(b"one").await.unwrap();
    lab.install(b"two").await.unwrap();
    let (layout, old) = (lab.layout(), id_of(b"one"));
    let ((_sender, reported), (_steps, between)) = (flag(false), flag(true));
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
async fn a_program_that_cannot_run_on_the_host_is_never_started() {
    let mut lab = Lab::new();
    lab.units.broken = true;
    let error = lab.install(b"one").await.unwrap_err().to_string();
    assert!(error.contains("does not run on this host"), "{error}");
    assert_eq!(lab.current(), None);
    assert!(lab.units.taken().is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_agent_is_not_installed_where_systemd_is_too_old() {
    let old = "systemd 239 (239-82.el8)\n+PAM +AUDIT\n";
    let mut lab = Lab::new();
    lab.units.version = old;
    let error = lab.install(b"one").await.unwrap_err().to_string();
    assert!(error.contains("has systemd 239") && error.contains("240 or newer"), "{error}");
    assert!(!lab.layout().base().exists(), "nothing was written");
    let works = ["systemd 240\n", "systemd 247 (247.3-7+deb11u7)\n", "systemd 258~rc1\n"];
    for version in works {
        assert_eq!(too_old(version), None, "{version}");
    }
}

#[tokio::test(start_paused = true)]
async fn removing_keeps_the_journal_unless_purged() {
    let lab = Lab::new();
    lab.install(b"one").await.unwrap();
    let state = lab.directory.path().join("var/lib/refit-agent");
    let fetched = lab.directory.path().join("var/cache/refit-agent");
    for directory in [&state, &fetched] {
        fs::create_dir_all(directory).unwrap();
    }
    lab.units.taken();
    lab.installation().uninstall(None).await.unwrap();
    assert_eq!(lab.units.taken(), ["disable", "reload"]);
    assert!(!lab.layout().base().exists() && state.exists());
    assert!(!lab.directory.path().join(&UNIT_FILE[1..]).exists());
    let purged = Some(Path::new("/var/lib/refit-agent"));
    lab.installation().uninstall(purged).await.unwrap();
    assert!(!state.exists() && !fetched.exists());
}

#[tokio::test(start_paused = true)]
async fn installing_and_removing_leave_the_hosts_policy_in_place() {
    let lab = Lab::new();
    let policy = lab.settings().with_file_name("policy.toml");
    fs::create_dir_all(policy.parent().unwrap()).unwrap();
    fs::write(&policy, "steps = []").unwrap();
    for program in [b"one", b"two"] {
        lab.install(program).await.unwrap();
    }
    lab.installation().uninstall(None).await.unwrap();
    assert_eq!(fs::read_to_string(&policy).unwrap(), "steps = []");
    assert!(!lab.settings().exists());
}

#[tokio::test(start_paused = true)]
async fn new_settings_or_a_new_unit_restart_the_service() {
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

/// A packaged service has the same name and no version links: it is running, and Refit replaces it.
#[tokio::test(start_paused = true)]
async fn a_running_packaged_agent_is_replaced() {
    let lab = Lab::new();
    lab.units.set_active(true);
    assert_eq!(lab.install(b"one").await.unwrap(), ExchangeOutcome::Replaced);
    assert_eq!(lab.units.taken(), ["reload", "enable", "restart"]);
    assert_eq!(lab.current(), Some(id_of(b"one")));
    assert_eq!(lab.layout().trial(), None, "there is no previous version to roll back to");
}

#[tokio::test(start_paused = true)]
async fn a_restored_version_gets_its_unit_back() {
    let lab = Lab::new();
    lab.install(b"one").await.unwrap();
    // The unit of an older version.
    let old = "[Service]\nExecStart=/opt/refit/agent/current/refit-agent --old\n";
    fs::write(lab.unit(), old).unwrap();
    lab.install(b"two").await.unwrap();
    assert_ne!(fs::read_to_string(lab.unit()).unwrap(), old);
    exchange(&lab, &id_of(b"one")).await;
    let (layout, at) = (lab.layout(), Timestamp::UNIX_EPOCH);
    lab.units.taken();
    let root = lab.directory.path();
    assert!(end_trial(&layout, root, &lab.units, at).await.unwrap());
    assert_eq!(lab.units.taken(), ["reload", "restart"]);
    assert_eq!(fs::read_to_string(lab.unit()).unwrap(), old);
    assert!(!layout.previous_unit().exists());
    // A version that has reported no longer needs the old unit.
    lab.install(b"three").await.unwrap();
    assert!(layout.previous_unit().exists());
    let new = exchange(&lab, &id_of(b"one")).await;
    let (_sender, reported) = flag(true);
    confirmed(&layout, &new, reported, &lab.units).await.unwrap();
    assert!(!layout.previous_unit().exists());
}

#[tokio::test(start_paused = true)]
async fn a_rejection_in_the_future_blocks_nothing() {
    let lab = Lab::new();
    lab.install(b"one").await.unwrap();
    let new = lab.layout().put(b"two").unwrap();
    fs::write(lab.layout().rejection(&new), "2031-01-01T00:00:00Z\nwhy\n").unwrap();
    let outcome = lab.install(b"two").await.unwrap();
    assert!(matches!(outcome, ExchangeOutcome::Wanted { .. }), "{outcome:?}");
    assert!(!lab.layout().rejection(&new).exists());
}

#[tokio::test(start_paused = true)]
async fn an_installation_waits_for_another_then_reports_busy() {
    let lab = Lab::new();
    let held = lab.layout().lock().unwrap();
    let error = lab.install(b"one").await.unwrap_err();
    assert!(matches!(error, InstallError::Busy), "{error}");
    assert_eq!(lab.current(), None);
    drop(held);
    assert_eq!(lab.install(b"one").await.unwrap(), ExchangeOutcome::Installed);
}

#[test]
fn bundle_keys_are_installed_where_bundles_are_checked() {
    let lab = Lab::new();
    let keys = BTreeMap::from([("release.pub".to_owned(), "a key\n".to_owned())]);
    lab.installation().trust(&keys).unwrap();
    let file = lab.directory.path().join("etc/refit/keys/release.pub");
    assert_eq!(fs::read_to_string(file).unwrap(), "a key\n");
}
