//! The fake MachineSet controller: the real protocol, but machines are selected by number.

use refit_cluster_api::rollout::machine_set::{
    Trigger, check_target, not_acknowledged, surplus, trigger_in_place,
};
use refit_cluster_api::rollout::{MachineSet, keys};

use crate::lines::sorted_names;
use crate::simulator::{Simulator, Task};
use crate::world::{SimMachine, SimSet};

impl Simulator {
    pub(crate) fn reconcile_set(&mut self, index: usize) -> Result<(), String> {
        let summary = self.sets[index].summary();
        let name = self.sets[index].set.name.clone();
        self.trace(Task::Set(name.clone()));
        let iteration = self.iteration;
        self.line(&format!("[MS controller] Iteration {iteration}, Reconcile {name}: {summary}"));
        self.complete_updates(index);
        self.drop_pending_acknowledge(index);
        self.sync_replicas(index)?;
        self.update_status(index);
        Ok(())
    }

    fn complete_updates(&mut self, index: usize) {
        let mut completed = Vec::new();
        for machine in &mut self.sets[index].machines {
            if !machine.has(keys::PENDING_ACKNOWLEDGE_MOVE)
                && machine.annotations.remove(keys::UPDATE_IN_PROGRESS).is_some()
            {
                completed.push(machine.name());
            }
        }
        if !completed.is_empty() {
            let names = sorted_names(completed);
            self.line(&format!("[MS controller] - Replicas {names} completed in-place update"));
        }
    }

    fn drop_pending_acknowledge(&mut self, index: usize) {
        let set = &mut self.sets[index];
        for trigger in trigger_in_place(&set.set, &set.snapshots()) {
            if let Trigger::CompleteMove { machine, drop_pending_acknowledge: true } = trigger {
                for found in set.machines.iter_mut().filter(|found| found.name() == machine) {
                    found.annotations.remove(keys::PENDING_ACKNOWLEDGE_MOVE);
                }
            }
        }
    }

    fn sync_replicas(&mut self, index: usize) -> Result<(), String> {
        let set = &self.sets[index];
        let name = set.set.name.clone();
        let spec = set.set.spec_replicas;
        let count = set.machines.len() as i64;
        if count < spec {
            if set.set.annotation(keys::DISABLE_MACHINE_CREATE) != Some("true") {
                self.create_machines(index, spec - count);
            }
            return Ok(());
        }
        if count == spec {
            return Ok(());
        }
        let snapshots = set.snapshots();
        let pending = not_acknowledged(&set.set, &snapshots);
        let surplus = surplus(&set.set, &snapshots);
        let move_to = set.set.annotation(keys::MOVE_MACHINES).map(str::to_owned);
        if !pending.is_empty() {
            let names = sorted_names(pending.into_iter().map(str::to_owned).collect());
            self.line(&format!(
                "[MS controller] - Replicas {names} moved from an old MachineSet still pending \
                 acknowledge from machine deployment md"
            ));
        }
        if surplus == 0 {
            return Ok(());
        }
        let surplus = usize::try_from(surplus).unwrap_or(0);
        if let Some(target) = move_to {
            return self.move_machines(index, &target, surplus);
        }
        let deleted = self.delete_machines(index, surplus);
        self.line(&format!(
            "[MS controller] - {name} scale down to {spec}/{spec} replicas ({deleted} deleted)"
        ));
        Ok(())
    }

    fn create_machines(&mut self, index: usize, count: i64) {
        let mut names = Vec::new();
        for _ in 0..count {
            self.last_machine += 1;
            let set = &mut self.sets[index];
            let machine = SimMachine::new(self.last_machine, set.version);
            names.push(machine.name());
            set.machines.push(machine);
        }
        let set = &mut self.sets[index];
        set.machines.sort_by_key(|machine| machine.index);
        let (name, spec) = (set.set.name.clone(), set.set.spec_replicas);
        self.line(&format!(
            "[MS controller] - {name} scale up to {spec}/{spec} replicas ({} created)",
            names.join(",")
        ));
    }

    fn move_machines(&mut self, index: usize, to: &str, count: usize) -> Result<(), String> {
        let target = self.sets.iter().position(|set| set.set.name == to);
        let target_set = target.map(|target| &self.sets[target].set);
        check_target(&self.sets[index].set, to, target_set).map_err(|error| error.to_string())?;
        let target = target.ok_or("the target was checked")?;
        let (mut moved, mut kept) = (Vec::new(), Vec::new());
        for mut machine in std::mem::take(&mut self.sets[index].machines) {
            let stays = machine.deleting || machine.has(keys::UPDATE_IN_PROGRESS);
            if stays || moved.len() >= count {
                kept.push(machine);
                continue;
            }
            for key in [keys::PENDING_ACKNOWLEDGE_MOVE, keys::UPDATE_IN_PROGRESS] {
                machine.annotations.insert(key.to_owned(), String::new());
            }
            moved.push(machine);
        }
        let left = kept.len();
        self.sets[index].machines = kept;
        let names: Vec<String> = moved.iter().map(SimMachine::name).collect();
        self.sets[target].machines.extend(moved);
        self.sets[target].machines.sort_by_key(|machine| machine.index);
        let MachineSet { name, spec_replicas, .. } = &self.sets[index].set;
        let line = format!(
            "[MS controller] - {name} scale down to {left}/{spec_replicas} replicas ({} moved to \
             {to})",
            names.join(",")
        );
        self.line(&line);
        Ok(())
    }

    /// Deletes updating machines first, by descending number; then the unhealthy; then by ascending
    /// number.
    fn delete_machines(&mut self, index: usize, count: usize) -> String {
        let set = &mut self.sets[index];
        let mut order: Vec<(u8, i64)> = set
            .machines
            .iter()
            .map(|machine| match machine {
                updating if updating.has(keys::UPDATE_IN_PROGRESS) => (0, -machine.index),
                unhealthy if unhealthy.unhealthy => (1, machine.index),
                _ => (2, machine.index),
            })
            .collect();
        order.sort_unstable();
        let gone: Vec<i64> = order.into_iter().take(count).map(|(_, index)| index.abs()).collect();
        set.machines.retain(|machine| !gone.contains(&machine.index));
        gone.iter().map(|index| format!("m{index}")).collect::<Vec<_>>().join(",")
    }

    fn update_status(&mut self, index: usize) {
        let current = self.sets[index].version == self.setup.version;
        let SimSet { set, machines, .. } = &mut self.sets[index];
        let in_use = |machine: &&SimMachine| !machine.has(keys::UPDATE_IN_PROGRESS);
        let available =
            machines.iter().filter(in_use).filter(|machine| !machine.unhealthy).count() as i64;
        set.status_replicas = machines.len() as i64;
        set.available_replicas = available;
        set.up_to_date_replicas = if current { available } else { 0 };
    }
}
