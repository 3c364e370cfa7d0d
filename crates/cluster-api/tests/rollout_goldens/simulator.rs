//! The world of upstream's rollout logs: a MachineDeployment, its MachineSets and Machines, and
//! fake controllers around the real planner and MachineSet protocol
//! (`docs/facts/machine-deployment.md#rollout-simulator`).
//!
//! The peculiarities of that world are here, not in the planner: annotations are never cleared, all
//! objects have the same age, machines are deleted by number, an update takes one reconcile.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use jiff::Timestamp;
use refit_cluster_api::rollout::{
    self, Decisions, IntentInput, Machine, MachineDeployment, MachineSet, Role, RolloutIntent,
    Strategy, keys,
};

use crate::gorand::GoRand;
use crate::lines::{change_lines, reason_line, scale_line};
use crate::world::{Setup, SimMachine, SimSet, template};

/// One fake controller's turn.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Task {
    /// The MachineDeployment controller.
    Deployment,
    /// The MachineSet controller, for this MachineSet.
    Set(String),
    /// A user who may delete a machine; in a recorded order, the machine that was deleted.
    User(Option<String>),
    /// The Machine controller, for this Machine.
    Machine(String),
}

/// The source of the order of the tasks.
pub(crate) enum Order {
    /// Each task once, in a fixed order.
    Listed,
    /// As in upstream's random runs.
    Seeded(GoRand),
    /// As recorded in a log: `(iteration, task)`.
    Recorded(Vec<(u32, Task)>),
}

/// Iterations after which a rollout counts as stuck.
const MAX_ITERATIONS: u32 = 400;

/// A rollout in progress.
pub(crate) struct Simulator {
    pub(crate) setup: Setup,
    deployment: MachineDeployment,
    pub(crate) sets: Vec<SimSet>,
    sets_at_end: usize,
    pub(crate) last_machine: i64,
    status_replicas: i64,
    available_replicas: i64,
    up_to_date_replicas: i64,
    current_exists: bool,
    pub(crate) iteration: u32,
    log: String,
    /// The tasks that left a trace in the log.
    pub(crate) trace: Vec<(u32, Task)>,
}

impl Simulator {
    /// Creates the state before the first iteration.
    pub(crate) fn new(setup: &Setup) -> Self {
        let sets: Vec<SimSet> = setup
            .sets
            .iter()
            .enumerate()
            .map(|(index, machines)| {
                let machines: Vec<SimMachine> = machines
                    .iter()
                    .map(|number| SimMachine {
                        unhealthy: setup.unhealthy == Some(*number),
                        ..SimMachine::new(*number, index + 1)
                    })
                    .collect();
                let unhealthy = machines.iter().filter(|machine| machine.unhealthy).count();
                SimSet::new(index + 1, machines, unhealthy as i64)
            })
            .collect();
        let exists = sets.iter().any(|set| set.version == setup.version);
        let unhealthy: i64 =
            sets.iter().map(|set| set.set.status_replicas - set.set.available_replicas).sum();
        Self {
            deployment: MachineDeployment {
                name: "md".to_owned(),
                replicas: setup.replicas,
                strategy: setup.strategy.clone(),
                template: template(setup.version),
                rollout_after: None,
            },
            sets_at_end: sets.len() + usize::from(!exists),
            last_machine: setup.sets.iter().flatten().copied().max().unwrap_or(0),
            status_replicas: setup.replicas,
            available_replicas: setup.replicas - unhealthy,
            up_to_date_replicas: 0,
            current_exists: false,
            iteration: 0,
            log: String::new(),
            trace: Vec::new(),
            setup: setup.clone(),
            sets,
        }
    }

    /// Runs the rollout to the end; returns the log from the initial to the final state.
    pub(crate) fn run(&mut self, rollout_line: &str, order: Order) -> Result<String, String> {
        self.line("[Test] Initial state");
        self.log_state("    ");
        self.line(rollout_line);
        self.iterate(order)?;
        self.line("[Test] Final state");
        self.log_state("    ");
        Ok(std::mem::take(&mut self.log))
    }

    /// Returns the log so far, for a run that failed.
    pub(crate) fn log_so_far(&self) -> &str {
        &self.log
    }

    fn iterate(&mut self, mut order: Order) -> Result<(), String> {
        let mut next = 0;
        for iteration in 1..=MAX_ITERATIONS {
            self.iteration = iteration;
            let listed = self.task_list();
            match &mut order {
                Order::Listed => {
                    for task in &listed {
                        self.perform(task, None)?;
                    }
                }
                Order::Seeded(random) => {
                    for index in random_order(listed.len(), random) {
                        self.perform(&listed[index], Some(random))?;
                    }
                }
                Order::Recorded(tasks) => {
                    while let Some((at, task)) = tasks.get(next).filter(|(at, _)| *at <= iteration)
                    {
                        if *at < iteration {
                            return Err(format!("iteration {at} comes after {iteration}"));
                        }
                        check_listed(&listed, task)?;
                        self.perform(task, None)?;
                        next += 1;
                    }
                }
            }
            if self.is_finished() {
                return Ok(());
            }
            if matches!(&order, Order::Recorded(tasks) if next == tasks.len()) {
                return Err("the log ends before the rollout does".to_owned());
            }
        }
        Err(format!("the rollout is not finished after {MAX_ITERATIONS} iterations"))
    }

    fn task_list(&self) -> Vec<Task> {
        let mut tasks = vec![Task::Deployment];
        tasks.extend(self.sets.iter().map(|set| Task::Set(set.set.name.clone())));
        tasks.push(Task::Set(format!("ms{}", self.sets.len() + 1)));
        if self.setup.strategy == Strategy::OnDelete {
            tasks.push(Task::User(None));
            let machines = self.sets.iter().flat_map(|set| &set.machines);
            tasks.extend(machines.map(|machine| Task::Machine(machine.name())));
        }
        tasks
    }

    fn perform(&mut self, task: &Task, random: Option<&mut GoRand>) -> Result<(), String> {
        match task {
            Task::Deployment => self.reconcile_deployment(),
            Task::Set(name) => match self.sets.iter().position(|set| set.set.name == *name) {
                Some(index) => self.reconcile_set(index),
                None => Ok(()),
            },
            Task::User(choice) => self.delete_one_machine(choice.as_deref(), random),
            Task::Machine(name) => {
                self.reconcile_machine(name);
                Ok(())
            }
        }
    }

    // --- MachineDeployment -------------------------------------------------------------------

    fn reconcile_deployment(&mut self) -> Result<(), String> {
        self.trace(Task::Deployment);
        self.line(&format!("[MD controller] Iteration {}, Reconcile md", self.iteration));
        let plan = self.plan();
        let results = self.apply(&plan);
        self.current_exists = true;
        self.status_replicas = self.sets.iter().map(|set| set.set.status_replicas).sum();
        self.available_replicas = self.sets.iter().map(|set| set.set.available_replicas).sum();
        if self.setup.strategy != Strategy::OnDelete {
            self.up_to_date_replicas =
                self.sets.iter().map(|set| set.set.up_to_date_replicas).sum();
        }
        self.line("[MD controller] - Result of rollout planner");
        self.line(&format!("    md: {}", self.deployment_summary()));
        self.log.push_str(&results);
        self.check_constraints()
    }

    fn plan(&self) -> RolloutIntent {
        let machine_sets: Vec<MachineSet> = self.sets.iter().map(|set| set.set.clone()).collect();
        let machines: Vec<Machine> = self.sets.iter().flat_map(SimSet::snapshots).collect();
        let new_name = format!("ms{}", self.sets.len() + 1);
        let mut decisions = Decisions::new();
        // As in production: plan, call the extension for the pairs that the plan needs, plan again.
        loop {
            let plan = rollout::intend(&IntentInput {
                deployment: &self.deployment,
                machine_sets: &machine_sets,
                machines: &machines,
                in_place_updates: true,
                decisions: &decisions,
                new_name: &new_name,
                now: Timestamp::default(),
            });
            if plan.is_complete() {
                return plan;
            }
            let answers = plan.pairs_to_ask.into_iter().map(|pair| (pair, self.setup.in_place));
            decisions.extend(answers);
        }
    }

    /// Writes the plan like upstream's simulator: annotations are added and never removed.
    fn apply(&mut self, plan: &RolloutIntent) -> String {
        let mut results = String::new();
        for set in &mut self.sets {
            let Some(planned) = plan.machine_sets.get(&set.set.name) else {
                continue;
            };
            let before = set.set.clone();
            set.set.spec_replicas = planned.replicas;
            set.set.annotations.extend(planned.annotations.clone());
            let name = &set.set.name;
            let _ = writeln!(results, "    {name}: {}", set.summary_from(planned.replicas_before));
            results.push_str(&change_lines(&before, &set.set, planned.role, &planned.notes));
        }
        if let Some(created) = &plan.create {
            let mut set = SimSet::new(self.sets.len() + 1, Vec::new(), 0);
            set.version = self.setup.version;
            set.set.template = template(self.setup.version);
            set.set.name.clone_from(&created.name);
            set.set.spec_replicas = created.replicas;
            set.set.annotations.clone_from(&created.annotations);
            let name = &created.name;
            let _ = writeln!(results, "    {name}: {}", set.summary());
            let _ = writeln!(
                results,
                "      - MachineSet {name} created, it is now the current MachineSet"
            );
            if created.replicas > 0 {
                let line = scale_line(Role::Current, name, 0, created.replicas);
                results.push_str(&line);
                results.push_str(&reason_line(&created.notes));
            }
            self.sets.push(set);
        }
        results
    }

    fn check_constraints(&mut self) -> Result<(), String> {
        let Strategy::RollingUpdate { .. } = self.setup.strategy else {
            return Ok(());
        };
        let posts = self.deployment.fenceposts();
        let minimum = self.setup.replicas - posts.unavailable;
        if self.available_replicas < minimum {
            if !self.setup.tolerate_unavailable {
                return Err(format!(
                    "{} available machines are fewer than {minimum}",
                    self.available_replicas
                ));
            }
            self.line("[Toleration] tolerate maxUnavailable breach");
        }
        let maximum = self.setup.replicas + posts.surge;
        let sets = self.sets.iter();
        let total: i64 = sets.map(|set| set.set.spec_replicas.max(set.set.status_replicas)).sum();
        if total > maximum {
            if !self.setup.tolerate_surge {
                return Err(format!("{total} machines are more than {maximum}"));
            }
            self.line("[Toleration] tolerate maxSurge breach");
        }
        Ok(())
    }

    // --- user and Machine --------------------------------------------------------------------

    fn delete_one_machine(
        &mut self,
        choice: Option<&str>,
        random: Option<&mut GoRand>,
    ) -> Result<(), String> {
        let machines = self.sets.iter().flat_map(|set| &set.machines);
        let remaining = machines.filter(|machine| !machine.deleting).count() as i64;
        let minimum = (self.setup.replicas - self.setup.max_user_unavailable).max(0);
        let may = remaining > minimum && self.current_exists;
        let version = self.setup.version;
        let outdated: Vec<String> = self
            .sets
            .iter()
            .flat_map(|set| &set.machines)
            .filter(|machine| machine.version != version)
            .map(SimMachine::name)
            .collect();
        if !may || outdated.is_empty() {
            return choice.map_or(Ok(()), |name| {
                Err(format!("the user may not delete {name} in iteration {}", self.iteration))
            });
        }
        let name = match (choice, random) {
            (Some(name), _) => outdated
                .iter()
                .find(|outdated| *outdated == name)
                .ok_or_else(|| format!("the user has no reason to delete {name}"))?,
            (None, Some(random)) => &outdated[random.below(outdated.len())],
            (None, None) => &outdated[0],
        }
        .clone();
        let mut machines = self.sets.iter_mut().flat_map(|set| &mut set.machines);
        let machine = machines.find(|machine| machine.name() == name).ok_or("just found")?;
        if machine.deleting {
            return choice.map_or(Ok(()), |name| Err(format!("{name} is deleted already")));
        }
        machine.deleting = true;
        self.trace(Task::User(Some(name.clone())));
        self.line(&format!("[User] Iteration {}, Deleting machine {name}", self.iteration));
        Ok(())
    }

    fn reconcile_machine(&mut self, name: &str) {
        let iteration = self.iteration;
        let found = self.sets.iter().enumerate().find_map(|(set, candidate)| {
            let machines = candidate.machines.iter();
            machines
                .enumerate()
                .find(|(_, machine)| machine.name() == name)
                .map(|(at, _)| (set, at))
        });
        let Some((set, at)) = found else { return };
        self.trace(Task::Machine(name.to_owned()));
        self.line(&format!("[M controller] Iteration {iteration}, Reconcile {name}"));
        if self.sets[set].machines[at].deleting {
            self.line(&format!("[M controller] - {name} finalizer removed"));
            self.sets[set].machines.remove(at);
        }
    }

    // --- state -------------------------------------------------------------------------------

    fn is_finished(&self) -> bool {
        let replicas = self.setup.replicas;
        if (self.status_replicas, self.available_replicas) != (replicas, replicas)
            || self.sets.len() != self.sets_at_end
        {
            return false;
        }
        self.sets.iter().all(|set| {
            let wanted = if set.version == self.setup.version { replicas } else { 0 };
            let MachineSet { spec_replicas, status_replicas, available_replicas, .. } = set.set;
            let updating = set.machines.iter().any(|machine| machine.has(keys::UPDATE_IN_PROGRESS));
            let rolling = self.setup.strategy != Strategy::OnDelete;
            (spec_replicas, status_replicas, available_replicas) == (wanted, wanted, wanted)
                && set.machines.len() as i64 == wanted
                && !(rolling && updating)
        })
    }

    /// Returns the names of the machines of the current MachineSet.
    #[allow(dead_code, reason = "only the property tests call it")]
    pub(crate) fn machine_names(&self) -> Vec<String> {
        self.sets.iter().flat_map(|set| &set.machines).map(SimMachine::name).collect()
    }

    fn deployment_summary(&self) -> String {
        format!(
            "md: {}/{} replicas, {} available, {} upToDate",
            self.status_replicas,
            self.setup.replicas,
            self.available_replicas,
            self.up_to_date_replicas
        )
    }

    fn log_state(&mut self, indent: &str) {
        let mut lines = format!("{indent}{}\n", self.deployment_summary());
        for set in &self.sets {
            let _ = writeln!(lines, "{indent}{}: {}", set.set.name, set.summary());
        }
        self.log.push_str(&lines);
    }

    pub(crate) fn line(&mut self, line: &str) {
        self.log.push_str(line);
        self.log.push('\n');
    }

    pub(crate) fn trace(&mut self, task: Task) {
        self.trace.push((self.iteration, task));
    }
}

fn check_listed(listed: &[Task], task: &Task) -> Result<(), String> {
    let fits = match task {
        Task::User(_) => listed.contains(&Task::User(None)),
        other => listed.contains(other),
    };
    if fits { Ok(()) } else { Err(format!("{task:?} is not among the tasks of its iteration")) }
}

/// Draws the tasks of one iteration: three in ten are skipped, and three in ten of the others are
/// repeated.
fn random_order(count: usize, random: &mut GoRand) -> Vec<usize> {
    let mut order = Vec::new();
    let mut drawn = BTreeSet::new();
    while drawn.len() < count {
        let task = loop {
            let task = random.below(count);
            if drawn.insert(task) {
                break task;
            }
        };
        if random.below(10) < 3 {
            continue;
        }
        order.push(task);
        if random.below(10) < 3 {
            drawn.remove(&task);
        }
    }
    order
}
