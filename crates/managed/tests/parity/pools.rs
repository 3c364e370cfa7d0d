//! Rows of the MachineConfigPools.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use refit_openshift::{
    Compat,
    kinds::MachineConfigPool,
    pools::{WorkerCount, note_worker_times},
    upgrade_config::{Phase, UpgradeHistory},
};
use serde_json::{Value, json};

use crate::{
    Row,
    nodes::{BOTH, after_minutes, from, paused, pool},
};

pub(crate) const ROWS: &[Row] = &[Row {
    number: 101,
    name: "workerStartTime and workerCompleteTime follow the pools",
    test: worker_times_follow_the_pools,
}];

/// An upgrade whose named steps are done.
fn entry(steps: &[&str]) -> UpgradeHistory {
    let condition = |step: &&str| json!({"type": step, "status": "True"});
    let conditions: Vec<Value> = steps.iter().map(condition).collect();
    from(json!({"version": "4.16.3", "phase": "Upgrading", "conditions": conditions}))
}

/// The minutes of both times, after looks at pools, one each minute from 1.
fn times(
    mut entry: UpgradeHistory,
    looks: &[&[MachineConfigPool]],
    compat: Compat,
) -> (Option<i64>, Option<i64>) {
    for (pools, minute) in looks.iter().zip(1..) {
        note_worker_times(&mut entry, pools, after_minutes(minute), compat);
    }
    let minute = |time: Option<Time>| Some(time?.0.duration_since(after_minutes(0)).as_mins());
    (minute(entry.worker_start_time), minute(entry.worker_complete_time))
}

fn worker_times_follow_the_pools() {
    let workers = |updated| [pool("worker", 3, updated)];
    let commenced = || entry(&["UpgradeCommenced"]);
    let upgraded = || entry(&["UpgradeCommenced", "ControlPlaneUpgraded"]);
    for compat in BOTH {
        let whole =
            [&workers(3)[..], &workers(0), &workers(0), &workers(2), &workers(3), &workers(3)];
        assert_eq!(times(commenced(), &whole, compat), (Some(2), Some(5)), "{compat}");
        for phase in [Phase::New, Phase::Pending, Phase::Upgraded, Phase::Failed] {
            let entry = UpgradeHistory { phase, ..commenced() };
            assert_eq!(times(entry, &whole, compat), (None, None), "{phase}");
        }
        let done =
            UpgradeHistory { worker_start_time: Some(Time(after_minutes(0))), ..commenced() };
        let other = times(done, &[&workers(0), &workers(3)], compat);
        assert_eq!(other, (Some(0), Some(2)), "times that are set stay");
    }
    let cases: [(&str, UpgradeHistory, Vec<Vec<MachineConfigPool>>, _, _); 6] = [
        // The first worker was updated between two looks.
        (
            "fast",
            upgraded(),
            vec![workers(1).into(), workers(3).into()],
            (Some(1), Some(2)),
            (None, None),
        ),
        (
            "a new node",
            commenced(),
            vec![workers(2).into(), workers(3).into()],
            (None, None),
            (None, None),
        ),
        (
            "no workers",
            upgraded(),
            vec![vec![pool("worker", 0, 0)]],
            (None, None),
            (Some(1), Some(1)),
        ),
        ("not commenced", entry(&[]), vec![workers(0).into()], (None, None), (Some(1), None)),
        (
            // M14
            "a custom pool",
            commenced(),
            vec![
                vec![pool("worker", 3, 3), pool("infra", 2, 0)],
                vec![pool("worker", 3, 0), pool("infra", 2, 2)],
                vec![pool("worker", 3, 3), pool("infra", 2, 1)],
                vec![pool("worker", 3, 3), pool("infra", 2, 2), pool("master", 3, 1)],
            ],
            (Some(1), Some(4)),
            (Some(2), Some(3)),
        ),
        (
            "a paused custom pool",
            commenced(),
            vec![
                vec![pool("worker", 3, 0), paused(pool("infra", 2, 0))],
                vec![pool("worker", 3, 3), paused(pool("infra", 2, 0))],
            ],
            (Some(1), Some(2)),
            (Some(1), Some(2)),
        ),
    ];
    for (name, entry, looks, repaired, strict) in cases {
        let looks: Vec<&[MachineConfigPool]> = looks.iter().map(Vec::as_slice).collect();
        assert_eq!(times(entry.clone(), &looks, Compat::Repaired), repaired, "{name}");
        assert_eq!(times(entry, &looks, Compat::Strict), strict, "{name}, strict");
    }
    let pools = [pool("master", 3, 0), paused(pool("worker", 3, 1)), pool("infra", 2, 0)];
    let counts = [(Compat::Repaired, 5, 1), (Compat::Strict, 3, 1)];
    for (compat, machines, updated) in counts {
        let workers = WorkerCount::of(&pools, compat).unwrap();
        assert_eq!((workers.machines, workers.updated), (machines, updated), "{compat}");
        assert_eq!(WorkerCount::of(&pools[..1], compat), None, "no pool worker");
    }
}
