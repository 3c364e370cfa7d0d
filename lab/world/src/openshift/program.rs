//! refit-managed in the process of a world. It can be killed, also at a write, and starts again.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use http::Request;
use jiff::{SignedDuration, Timestamp};
use lab_openshift::{Site, prometheus::Prometheus, site::API_HOST};
use refit_managed::{Compat, Process, Settings, run};
use refit_runtime::{
    Clock,
    client::ClientStack,
    gate::{Effect, Fate, Gate, Open},
    net::{Dialer, MemoryNetwork},
};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::world::{RESTART_DELAY, Side, lock};

/// Its user agent.
pub(super) const USER_AGENT: &str = "refit-managed/sandbox";
/// The host name of the program.
const HOST: &str = "refit-managed.test";
/// The ports of its metrics, which are read from the UpgradeConfig on the second.
const METRICS: u16 = 8383;
const CUSTOM_METRICS: u16 = 8089;
/// How often Prometheus scrapes.
const SCRAPE: Duration = Duration::from_secs(15);

/// The write of a run at which the program is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kill {
    /// Its number in the run, from 0.
    pub index: usize,
    /// Whether it still happens: before, or after.
    pub side: Side,
}

/// The writes of a run.
#[derive(Debug, Default)]
struct Writes {
    seen: Vec<Effect>,
    kill: Option<Kill>,
    fired: bool,
}

impl Writes {
    fn fires(&mut self, side: Side, is_it: impl FnOnce(&[Effect], usize) -> bool) -> Fate {
        let kill = self.kill.filter(|kill| kill.side == side);
        if !self.fired && kill.is_some_and(|kill| is_it(&self.seen, kill.index)) {
            self.fired = true;
            return Fate::Dead;
        }
        Fate::Alive
    }
}

/// The kill switch of one start of the program.
#[derive(Debug)]
struct Switch {
    writes: Arc<Mutex<Writes>>,
    is_dead: AtomicBool,
    killed: Notify,
}

impl Switch {
    fn kill(&self) {
        self.is_dead.store(true, Ordering::SeqCst);
        self.killed.notify_one();
    }

    fn judge(&self, judge: impl FnOnce(&mut Writes) -> Fate) -> Fate {
        if self.fate() == Fate::Alive && judge(&mut lock(&self.writes)) == Fate::Dead {
            self.kill();
        }
        self.fate()
    }
}

impl Gate for Switch {
    fn before(&self, effect: &Effect) -> Fate {
        self.judge(|writes| {
            writes.seen.push(effect.clone());
            writes.fires(Side::Before, |seen, index| seen.len() == index + 1)
        })
    }

    fn after(&self, effect: &Effect) -> Fate {
        self.judge(|writes| {
            writes.fires(Side::After, |seen, index| seen.get(index) == Some(effect))
        })
    }

    fn fate(&self) -> Fate {
        if self.is_dead.load(Ordering::SeqCst) { Fate::Dead } else { Fate::Alive }
    }
}

/// The program.
#[derive(Debug)]
pub(super) struct Program {
    network: MemoryNetwork,
    clock: Clock,
    compat: Compat,
    /// The authority of the cluster's services.
    authority: String,
    writes: Arc<Mutex<Writes>>,
    current: Mutex<Arc<Switch>>,
    /// When it starts at the earliest.
    not_before: Mutex<Timestamp>,
    starts: AtomicU32,
}

impl Program {
    pub(super) fn new(site: &Site, compat: Compat) -> anyhow::Result<Self> {
        let writes = Arc::default();
        let program = Self {
            network: site.network.clone(),
            clock: site.clock,
            compat,
            authority: site.authority.material().cert_pem.clone(),
            current: Mutex::new(switch(&writes)),
            writes,
            not_before: Mutex::new(Timestamp::MIN),
            starts: AtomicU32::new(0),
        };
        // What could fail fails here, and not at a later start.
        program.stack(&program.current())?;
        Ok(program)
    }

    fn current(&self) -> Arc<Switch> {
        lock(&self.current).clone()
    }

    fn stack(&self, switch: &Arc<Switch>) -> anyhow::Result<ClientStack> {
        let dialer = Dialer::Memory(self.network.clone(), switch.clone());
        let stack = ClientStack::new(dialer, switch.clone(), USER_AGENT);
        Ok(stack.with_extra_roots(self.authority.as_bytes())?)
    }

    /// Runs the program, and starts it again whenever it has ended.
    pub(super) async fn run(self: Arc<Self>) {
        loop {
            let switch = self.current();
            self.starts.fetch_add(1, Ordering::SeqCst);
            match self.start(&switch) {
                Ok(process) => tokio::select! {
                    biased;
                    () = switch.killed.notified() => tracing::debug!("refit-managed killed"),
                    outcome = process => tracing::warn!(?outcome, "refit-managed ended"),
                },
                Err(error) => tracing::warn!("failed to start refit-managed: {error:#}"),
            }
            switch.kill();
            for port in [METRICS, CUSTOM_METRICS] {
                self.network.close(HOST, port);
            }
            tokio::time::sleep(RESTART_DELAY).await;
            let due = *lock(&self.not_before);
            self.clock.sleep_until(due).await;
            *lock(&self.current) = self::switch(&self.writes);
        }
    }

    fn start(
        &self,
        switch: &Arc<Switch>,
    ) -> anyhow::Result<futures::future::BoxFuture<'static, anyhow::Result<()>>> {
        // Without a Lease, whose renewals would be writes at which it is killed.
        let process = Process {
            lease: None,
            probes: None,
            stop: CancellationToken::new(),
            drain_delay: Duration::ZERO,
        };
        let settings = Settings {
            compat: self.compat,
            metrics: Some(self.network.listen(HOST, METRICS)),
            custom_metrics: Some(self.network.listen(HOST, CUSTOM_METRICS)),
            ..Settings::default()
        };
        let config = kube::Config::new(format!("http://{API_HOST}:80").parse()?);
        Ok(run(self.stack(switch)?, config, self.clock, process, settings))
    }

    /// Kills the program. It starts again after a time.
    pub(super) fn kill(&self, after: SignedDuration) {
        *lock(&self.not_before) = self.clock.now().checked_add(after).unwrap_or(Timestamp::MAX);
        self.current().kill();
    }

    /// How often it was started.
    pub(super) fn starts(&self) -> u32 {
        self.starts.load(Ordering::SeqCst)
    }

    /// Kills the program at a write that is to come.
    pub(super) fn arm(&self, kill: Kill) {
        lock(&self.writes).kill = Some(kill);
    }

    /// Whether it was killed at that write.
    pub(super) fn has_fired(&self) -> bool {
        lock(&self.writes).fired
    }

    /// The writes so far, also those that were prevented.
    pub(super) fn writes(&self) -> Vec<Effect> {
        lock(&self.writes).seen.clone()
    }

    /// A client of the port with the metrics of the steps.
    pub(super) fn metrics(&self) -> anyhow::Result<kube::Client> {
        let gate = Arc::new(Open);
        let dialer = Dialer::Memory(self.network.clone(), gate.clone());
        let stack = ClientStack::new(dialer, gate, "prometheus");
        Ok(stack.client(&kube::Config::new(format!("http://{HOST}:{METRICS}").parse()?))?)
    }
}

fn switch(writes: &Arc<Mutex<Writes>>) -> Arc<Switch> {
    let (is_dead, killed) = (AtomicBool::new(false), Notify::new());
    Arc::new(Switch { writes: writes.clone(), is_dead, killed })
}

/// The metrics of the steps in the text format.
async fn read_metrics(client: &kube::Client) -> anyhow::Result<String> {
    Ok(client.request_text(Request::get("/metrics").body(Vec::new())?).await?)
}

/// Lets Prometheus scrape the program without end. It keeps what it has if the program does not answer.
pub(super) async fn scrape(client: kube::Client, prometheus: Prometheus) {
    loop {
        tokio::time::sleep(SCRAPE).await;
        if let Ok(text) = read_metrics(&client).await {
            prometheus.scraped(&text);
        }
    }
}
