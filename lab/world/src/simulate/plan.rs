//! The script of a seed: a cluster, an upgrade, and a schedule of faults.

use strum::VariantArray as _;

use super::{
    fault::{FaultKind, Setting},
    fleet::{self, Fleet},
    held::Held,
    run::LEASE_RETRY,
    shape::{CLUSTER, Shape, Updater},
};
use crate::{random::Random, script::parse};

/// File name of the manifests that the script loads.
pub(super) const MANIFESTS: &str = "cluster.yaml";

/// One fault of the schedule.
#[derive(Clone, Debug)]
pub(super) struct Step {
    pub(super) kind: FaultKind,
    /// The lines of the script: a wait, then the fault.
    pub(super) lines: Vec<String>,
    /// What runs if the fault turns out to be impossible: the owners then request the version that
    /// later faults expect.
    pub(super) otherwise: Vec<String>,
}

/// Everything that happens in the run of a seed.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) seed: u64,
    pub(super) shape: Shape,
    /// The lines that wait for the cluster and request its first upgrade.
    pub(super) start: Vec<String>,
    pub(super) steps: Vec<Step>,
}

impl Plan {
    /// The plan of a seed with this number of faults, of these kinds or, if none is given, of all.
    pub(super) fn new(seed: u64, faults: usize, kinds: &[FaultKind]) -> Self {
        let mut random = Random::new(seed);
        let mut shape = Shape::of_seed(seed, &mut random);
        // Who wants faults of providers wants a provider in each cluster.
        if kinds.iter().any(|kind| kind.is_of_provider()) {
            shape.updater = Some(Updater::Provider);
            shape.tasks = None;
            shape.snaps = None;
        }
        if kinds.iter().any(|kind| kind.is_of_snaps()) {
            shape = shape.with_snaps(seed);
        }
        shape.fleet = match kinds.iter().find(|kind| kind.is_of_fleet()) {
            Some(_) => Some(Fleet::new(seed)),
            None if kinds.is_empty() => Fleet::of_seed(seed, &shape),
            None => None,
        };
        let wants_holds = kinds.iter().any(|kind| kind.is_of_holds());
        if let Some(held) =
            Held::of_seed(seed, &shape, wants_holds).filter(|_| kinds.is_empty() || wants_holds)
        {
            shape = held.shape(seed, shape);
        }
        let kinds = if kinds.is_empty() { FaultKind::VARIANTS } else { kinds };
        let suiting = kinds.iter().copied().filter(|kind| kind.suits(&shape));
        let (of_fleet, kinds): (Vec<_>, Vec<_>) = suiting.partition(|kind| kind.is_of_fleet());
        let mut version = Shape::versions();
        version.advance(random.chance(1, 2));
        let mut start = vec![format!("wait cluster/{CLUSTER} ready 15m")];
        start.extend(shape.updater());
        let request = shape.request(&version.now);
        let mut steps: Vec<Step> = Vec::new();
        let of_holds: Vec<_> = kinds.iter().copied().filter(|kind| kind.is_of_holds()).collect();
        let early: Vec<_> = kinds.iter().copied().filter(|kind| kind.may_precede()).collect();
        if faults > 0 && !early.is_empty() && random.chance(1, 4) {
            let kind = *random.pick(&early);
            let machine = random.pick(&shape.machines()).clone();
            let mut setting = Setting { shape: &shape, machine, version: &mut version };
            let mut lines = kind.script(&mut random, &mut setting);
            // Longer than a report of an agent counts as fresh, or not.
            lines.push(format!("wait {}s", random.between(1, 1800)));
            lines.extend(request.clone());
            steps.push(Step { kind, lines, otherwise: request });
        } else {
            start.extend(request);
        }
        let mut blind = false;
        while steps.len() < faults && !kinds.is_empty() {
            let (wait, found) = wait(&mut random, &shape, blind);
            let mut kind = *random.pick(&kinds);
            // There are dozens of other kinds.
            if !of_holds.is_empty() && random.chance(1, 2) {
                kind = *random.pick(&of_holds);
            }
            let follows = FaultKind::HostOff;
            if blind && kinds.contains(&follows) && random.chance(2, 3) {
                kind = follows;
            }
            // One host at most is lost for good: with more, etcd loses its quorum for good.
            let lost = steps.iter().any(|step| step.kind == FaultKind::HostLost);
            if kind == FaultKind::HostLost && lost {
                let others: Vec<_> = kinds.iter().filter(|other| **other != kind).collect();
                if others.is_empty() {
                    break;
                }
                kind = **random.pick(&others);
            }
            let machine = if found && !blind && random.chance(3, 4) {
                "$machine".to_owned()
            } else {
                random.pick(&shape.machines()).clone()
            };
            let before = version.now.clone();
            let mut setting = Setting { shape: &shape, machine, version: &mut version };
            let mut lines = vec![wait];
            lines.extend(kind.script(&mut random, &mut setting));
            // A default that a provider applied to some objects only is a change that nothing covers.
            let requests = version.now != before && kind != FaultKind::Default;
            let otherwise = if requests { shape.request(&version.now) } else { Vec::new() };
            steps.push(Step { kind, lines, otherwise });
            blind = kind.blinds();
        }
        if let Some(fleet) = &shape.fleet {
            start.extend(fleet.request());
            let most = if kinds.is_empty() { faults } else { faults.min(3) };
            fleet::insert(&mut steps, (seed, &shape), most, &of_fleet);
        }
        Self { seed, shape, start, steps }
    }

    /// The plan with only its first faults.
    pub(super) fn prefix(&self, faults: usize) -> Self {
        let mut plan = self.clone();
        plan.steps.truncate(faults);
        plan
    }

    /// The first lines of the plan's script.
    pub(super) fn head(&self) -> String {
        let standby = if self.shape.standby { " standby" } else { "" };
        let updater = match self.shape.updater {
            None => "",
            Some(Updater::Hook(_)) => " updater",
            Some(Updater::Provider) => " provider",
        };
        let canonical = if self.shape.snaps.is_some() { " canonical" } else { "" };
        let (seed, lease) = (self.seed, LEASE_RETRY.as_secs());
        format!(
            "# Seed {seed}.\nload {MANIFESTS} with{standby}{updater}{canonical} seed {seed} lease {lease}s\n"
        )
    }
}

/// The wait before a fault, and whether it finds a machine. Soon after a fault that hides the world,
/// the next one happens unseen.
fn wait(random: &mut Random, shape: &Shape, blind: bool) -> (String, bool) {
    if blind {
        return (format!("wait {}s", random.between(1, 30)), false);
    }
    let owner = shape.owner(random);
    match random.between(0, 9) {
        0..=3 => (format!("wait {}s", random.between(1, 180)), false),
        4..=7 => {
            let phases = [
                "Pending",
                "Staging",
                "Staging",
                "Waiting",
                "Upgrading",
                "Draining",
                "Disrupting",
                "Verifying",
                "Uncordoning",
                "Stopping",
            ];
            (format!("wait {owner} phase={} 4m", random.pick(&phases)), true)
        }
        _ => (format!("wait {owner} step={} 4m", random.pick(&parse::STEPS)), true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script(seed: u64) -> String {
        let plan = Plan::new(seed, 8, &[]);
        let faults = plan.steps.iter().flat_map(|step| &step.lines);
        let lines: Vec<&str> = plan.start.iter().chain(faults).map(String::as_str).collect();
        plan.head() + &lines.join("\n")
    }

    #[test]
    fn a_seed_always_has_the_same_script() {
        assert_eq!(script(17), script(17));
        assert_ne!(script(17), script(18));
    }

    #[test]
    fn every_script_can_be_parsed() {
        for seed in 0..300 {
            let script = script(seed);
            let parsed = parse::script("seed", &script);
            assert!(parsed.is_ok(), "{script}\\n{:?}", parsed.err());
        }
    }

    #[test]
    fn every_cluster_can_be_loaded() {
        for seed in 0..100 {
            let manifests = Plan::new(seed, 0, &[]).shape.manifests();
            let loaded = crate::manifests::parse([(MANIFESTS, manifests.as_bytes())]);
            assert!(loaded.is_ok(), "{manifests}\n{:?}", loaded.err());
        }
    }

    #[test]
    fn only_the_wanted_kinds_of_faults_occur() {
        for wanted in FaultKind::VARIANTS {
            for seed in 0..10 {
                let plan = Plan::new(seed, 20, &[*wanted]);
                assert!(plan.steps.iter().all(|step| step.kind == *wanted), "{wanted}");
                assert!(!plan.steps.is_empty() || !wanted.suits(&plan.shape), "{wanted}");
            }
        }
        let wanted = [FaultKind::Outage, FaultKind::Kill];
        assert_eq!(Plan::new(5, 20, &wanted).steps.len(), 20);
    }
}
