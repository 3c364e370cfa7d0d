//! One golden file: reads the inputs from it, computes the rest, compares.
//!
//! | taken from the file | computed |
//! |---|---|
//! | title: sizes, limits, events during the rollout | every number of the `Rollout` line and of
//! the initial state |
//! | initial state: which machine is in which MachineSet | everything after it |
//! | order of the tasks, for `random(N)` only | the order of all others, and Go's order for seed N |

use refit_cluster_api::{IntOrPercent, rollout::Strategy};

use crate::gorand::GoRand;
use crate::simulator::{Order, Simulator, Task};
use crate::world::Setup;

/// The parameters in a title.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Title {
    machines: i64,
    strategy: Strategy,
    in_place: bool,
    max_user_unavailable: i64,
    scale_to: Option<i64>,
    change_spec: bool,
    unhealthy: Option<i64>,
    seed: Option<u32>,
}

impl Title {
    /// Parses a title; case does not matter, so that file names can be parsed too.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let lower = text.to_lowercase();
        let mut parts = lower.split(',').map(str::trim).peekable();
        let missing = |what: &str| format!("the title {text:?} does not say {what}");
        let number =
            |text: &str| text.parse::<i64>().map_err(|_| missing("a number where it must"));
        let rollout = match parts.peek() {
            Some(&"regular rollout") => Some(false),
            Some(&"in-place rollout") => Some(true),
            _ => None,
        };
        if rollout.is_some() {
            parts.next();
        }
        let mut field = |prefix: &str, suffix: &str| -> Result<String, String> {
            parts
                .next()
                .and_then(|part| part.strip_prefix(prefix)?.strip_suffix(suffix))
                .map(str::to_owned)
                .ok_or_else(|| missing(&format!("{prefix}...{suffix}")))
        };
        let machines = number(&field("", " replicas")?)?;
        let limit = |text: &str| text.parse::<IntOrPercent>().map_err(|error| error.to_string());
        let (strategy, max_user_unavailable) = if rollout.is_some() {
            let surge = limit(&field("maxsurge ", "")?)?;
            (Strategy::rolling_update(surge, limit(&field("maxunavailable ", "")?)?), 0)
        } else {
            (Strategy::OnDelete, number(&field("maxuserunavailable ", "")?)?)
        };
        let mut title = Self {
            machines,
            strategy,
            in_place: rollout == Some(true),
            max_user_unavailable,
            scale_to: None,
            change_spec: false,
            unhealthy: None,
            seed: None,
        };
        for part in parts {
            title.read_event(part).ok_or_else(|| format!("the title has {part:?}, not known"))?;
        }
        Ok(title)
    }

    fn read_event(&mut self, part: &str) -> Option<()> {
        if let Some(seed) = part.strip_prefix("random(") {
            self.seed = Some(seed.strip_suffix(')')?.parse().ok()?);
        } else if let Some(to) = part.strip_prefix("scale up to ") {
            self.scale_to = Some(to.parse().ok().filter(|to| *to > self.machines)?);
        } else if let Some(to) = part.strip_prefix("scale down to ") {
            self.scale_to = Some(to.parse().ok().filter(|to| *to < self.machines)?);
        } else if let Some(machine) = part.strip_suffix(" unhealthy") {
            self.unhealthy = Some(machine.strip_prefix('m')?.parse().ok()?);
        } else if part == "change spec" {
            self.change_spec = true;
        } else {
            return None;
        }
        Some(())
    }

    fn rollout_line(&self) -> String {
        let seed = self.seed.map(|seed| format!(", random({seed})")).unwrap_or_default();
        match &self.strategy {
            Strategy::OnDelete => {
                format!("[Test] Rollout {} replicas, onDeleteStrategy{seed}", self.machines)
            }
            Strategy::RollingUpdate { max_surge, max_unavailable } => format!(
                "[Test] Rollout {} replicas, MaxSurge={max_surge}, \
                 MaxUnavailable={max_unavailable}{seed}",
                self.machines
            ),
        }
    }

    fn setup(&self, sets: Vec<Vec<i64>>) -> Result<Setup, String> {
        let machines = sets.iter().map(Vec::len).sum::<usize>() as i64;
        if machines != self.machines {
            return Err(format!(
                "the title states {} machines, but the initial state has {machines}",
                self.machines
            ));
        }
        let replicas = self.scale_to.unwrap_or(self.machines);
        let started = self.scale_to.is_some() || self.change_spec;
        let fits = match sets.len() {
            1 => !started,
            2 => started,
            3 => self.change_spec && sets[2].is_empty(),
            _ => false,
        };
        if !fits {
            return Err(format!("{} MachineSets do not fit the title", sets.len()));
        }
        Ok(Setup {
            replicas,
            strategy: self.strategy.clone(),
            version: if self.change_spec { 3 } else { 2 },
            sets,
            in_place: self.in_place,
            max_user_unavailable: self.max_user_unavailable,
            tolerate_unavailable: replicas > self.machines || self.unhealthy.is_some(),
            tolerate_surge: replicas < self.machines,
            unhealthy: self.unhealthy,
        })
    }
}

/// A parsed golden file.
#[derive(Debug)]
pub(crate) struct Golden {
    heading: String,
    title: Title,
    setup: Setup,
}

impl Golden {
    /// Parses the heading and the initial state.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut lines = text.lines();
        let heading = lines.next().unwrap_or_default().to_owned();
        let title =
            heading.strip_prefix("## ").ok_or("the first line is not a title: \"## ...\"")?;
        let title = Title::parse(title)?;
        if lines.next() != Some("") || lines.next() != Some("[Test] Initial state") {
            return Err("the initial state does not follow the title".to_owned());
        }
        let mut sets = Vec::new();
        for line in lines.take_while(|line| line.starts_with("    ")) {
            let line = line.trim_start();
            if line.starts_with("md:") {
                continue;
            }
            let expected = format!("ms{}: ", sets.len() + 1);
            let machines = line
                .strip_prefix(&expected)
                .and_then(|rest| rest.split_once('(')?.1.strip_suffix(')'))
                .ok_or_else(|| format!("the initial state has {line:?}, want {expected}..."))?;
            let machines: Vec<i64> = machines
                .split(',')
                .filter(|name| !name.is_empty())
                .map(|name| name.strip_prefix('m').and_then(|number| number.parse().ok()))
                .collect::<Option<_>>()
                .ok_or_else(|| format!("the initial state has a machine without number: {line}"))?;
            sets.push(machines);
        }
        let mut all: Vec<i64> = sets.iter().flatten().copied().collect();
        all.sort_unstable();
        all.dedup();
        if all.len() != sets.iter().map(Vec::len).sum::<usize>() {
            return Err("the initial state has a machine twice".to_owned());
        }
        let setup = title.setup(sets)?;
        Ok(Self { heading, title, setup })
    }

    /// Renders the log of this rollout in its own order: the listed one, or that of its seed.
    pub(crate) fn render(&self) -> Result<String, String> {
        let order = self.own_order();
        self.run(&self.setup, order).0
    }

    fn own_order(&self) -> Order {
        self.title.seed.map_or(Order::Listed, |seed| Order::Seeded(GoRand::new(seed)))
    }

    fn run(&self, setup: &Setup, order: Order) -> (Result<String, String>, Vec<(u32, Task)>) {
        let mut simulator = Simulator::new(setup);
        let heading = format!("{}\n\n", self.heading);
        let result = simulator.run(&self.title.rollout_line(), order);
        let result = match result {
            Ok(log) => Ok(heading + &log),
            Err(error) => {
                let log = heading + simulator.log_so_far();
                let last = log.lines().rev().find(|line| line.starts_with('['));
                Err(format!("{error}\n    last line computed: {}", last.unwrap_or_default()))
            }
        };
        (result, simulator.trace)
    }

    /// Compares the file with the computed log.
    pub(crate) fn check(&self, text: &str) -> Result<(), String> {
        let (own, own_trace) = self.run(&self.setup, self.own_order());
        if self.title.seed.is_none() {
            return compare(&own?, text);
        }
        if own.as_ref().is_ok_and(|own| own == text) {
            return Ok(());
        }
        // It is not Go's order for this seed: use the file's order and compute everything else.
        let recorded = recorded_order(text);
        let (replayed, _) = self.run(&self.setup, Order::Recorded(recorded.clone()));
        compare(&replayed?, text)?;
        // The log is consistent. An order that differs from Go's in only one place was edited.
        if is_nearly(&own_trace, &recorded) {
            return Err(format!(
                "the order is that of its seed but for the tasks from {:?} on",
                recorded.iter().zip(&own_trace).find(|(a, b)| a != b).map(|(a, _)| a)
            ));
        }
        if self.title.strategy == Strategy::OnDelete {
            return self.check_other_limits(text);
        }
        Ok(())
    }

    /// Fails if the title has a changed user limit, so that the order is that of another log.
    fn check_other_limits(&self, text: &str) -> Result<(), String> {
        for max_user_unavailable in 0..=self.setup.replicas {
            let setup = Setup { max_user_unavailable, ..self.setup.clone() };
            if self.run(&setup, self.own_order()).0.is_ok_and(|log| log == text) {
                return Err(format!(
                    "this is the order for maxUserUnavailable {max_user_unavailable}"
                ));
            }
        }
        Ok(())
    }
}

/// Returns the tasks that a log names, in its order.
fn recorded_order(text: &str) -> Vec<(u32, Task)> {
    text.lines().filter_map(recorded_task).collect()
}

fn recorded_task(line: &str) -> Option<(u32, Task)> {
    let (who, rest) = line.strip_prefix('[')?.split_once("] Iteration ")?;
    let (iteration, what) = rest.split_once(", ")?;
    let iteration = iteration.parse().ok()?;
    let task = match (who, what.split_once(' ')?) {
        ("MD controller", ("Reconcile", "md")) => Task::Deployment,
        ("MS controller", ("Reconcile", rest)) => Task::Set(rest.split_once(": ")?.0.to_owned()),
        ("M controller", ("Reconcile", machine)) => Task::Machine(machine.to_owned()),
        ("User", ("Deleting", rest)) => Task::User(Some(rest.strip_prefix("machine ")?.to_owned())),
        _ => return None,
    };
    Some((iteration, task))
}

/// Reports whether two orders share so much at both ends that one must be an edit of the other.
fn is_nearly(own: &[(u32, Task)], recorded: &[(u32, Task)]) -> bool {
    let same = |pairs: &mut dyn Iterator<Item = bool>| pairs.take_while(|same| *same).count();
    let from_start = same(&mut own.iter().zip(recorded).map(|(a, b)| a == b));
    let from_end = same(&mut own.iter().rev().zip(recorded.iter().rev()).map(|(a, b)| a == b));
    let longer = own.len().max(recorded.len());
    longer > 4 && (from_start + from_end) * 4 >= longer * 3
}

/// Compares byte for byte; the error shows the first line that differs, with context.
pub(crate) fn compare(computed: &str, golden: &str) -> Result<(), String> {
    if computed == golden {
        return Ok(());
    }
    let (computed_lines, golden_lines): (Vec<&str>, Vec<&str>) =
        (computed.split('\n').collect(), golden.split('\n').collect());
    let at = computed_lines.iter().zip(&golden_lines).take_while(|(a, b)| a == b).count();
    let before =
        computed_lines[at.saturating_sub(3)..at].iter().map(|line| format!("      {line}\n"));
    let show = |lines: &[&str]| match lines.get(at) {
        None | Some(&"") if at + 1 >= lines.len() => "(end of log)".to_owned(),
        Some(line) => (*line).to_owned(),
        None => "(end of log)".to_owned(),
    };
    Err(format!(
        "line {} differs\n{}    - golden:   {}\n    + computed: {}",
        at + 1,
        before.collect::<String>(),
        show(&golden_lines),
        show(&computed_lines)
    ))
}
