//! All flows, one file each.

mod configuration;
mod contract;
mod control_plane_in_place;
mod discovery;
mod extra;
mod failing;
mod gates;
mod health_check;
mod holds;
mod holds_alone;
mod holds_control_plane;
mod holds_midway;
mod killed;
mod kubeadm_config;
mod look;
mod member_deleted;
mod midway;
mod new_default;
mod planned;
mod providers;
mod single;
mod surge;
mod taken_back;
mod tasks;
mod topology;
mod uncovered;
mod updaters;

use lab_testbed::Line;

use crate::suite::{Flow, On};

const BOTH: &[Line] = &[Line::V1_12, Line::V1_14];

/// All flows. The longest come first, because they run in parallel. Those without a line are left to `cargo xtask
/// testbed all`: a check of every change would take too long with them.
pub(crate) const ALL: &[Flow] = &[
    Flow {
        name: "a_run_with_killed_components_ends_in_the_same_state",
        lines: &[Line::V1_14],
        on: On::Own,
        run: |bed| Box::pin(killed::run(bed)),
    },
    Flow {
        name: "changes_during_an_update_succeed",
        lines: &[],
        on: On::Shared,
        run: |bed| Box::pin(midway::run(bed)),
    },
    Flow {
        name: "tasks_upgrade_machines_in_place_where_cluster_api_would_replace_them",
        lines: &[Line::V1_14],
        on: On::WithoutInPlace,
        run: |bed| Box::pin(tasks::run(bed)),
    },
    // On a bed of its own, because alerts are about all clusters of a controller.
    Flow {
        name: "a_closed_gate_or_window_holds_a_rollout_midway_until_it_opens_again",
        lines: &[],
        on: On::Own,
        run: |bed| Box::pin(gates::run(bed)),
    },
    // Rare, and on a bed of its own because it changes definitions: not in every run.
    Flow {
        name: "machines_are_updated_again_after_a_provider_started_to_default_a_field",
        lines: &[],
        on: On::Own,
        run: |bed| Box::pin(new_default::run(bed)),
    },
    // On a bed of its own, because it changes definitions.
    Flow {
        name: "updaters_change_or_leave_infrastructure_in_place_where_the_provider_accepts_it",
        lines: &[],
        on: On::Own,
        run: |bed| Box::pin(updaters::run(bed)),
    },
    Flow {
        name: "a_provider_brings_machines_to_versions_in_place_of_the_agent",
        lines: &[],
        on: On::Shared,
        run: |bed| Box::pin(providers::run(bed)),
    },
    // Each example has tests of its own: not in every run.
    Flow {
        name: "both_examples_of_a_provider_keep_the_contract_in_the_sandbox",
        lines: &[],
        on: On::Shared,
        run: |bed| Box::pin(contract::in_sandbox(bed)),
    },
    Flow {
        name: "an_update_that_is_aborted_and_reverted_leaves_every_machine_as_before",
        lines: &[],
        on: On::Shared,
        run: |bed| Box::pin(taken_back::run(bed)),
    },
    Flow {
        name: "a_deleted_control_plane_machine_is_created_again_before_the_next_update",
        lines: &[],
        on: On::Shared,
        run: |bed| Box::pin(member_deleted::run(bed)),
    },
    Flow {
        name: "a_cluster_upgrade_through_the_hooks_deletes_exactly_its_extra_machines",
        lines: &[],
        on: On::Shared,
        run: |bed| Box::pin(extra::by_clones(bed)),
    },
    Flow {
        name: "surge_creates_and_deletes_the_planned_machines",
        lines: &[],
        on: On::Shared,
        run: |bed| Box::pin(surge::run(bed)),
    },
    Flow {
        name: "one_change_of_a_topology_updates_the_control_plane_and_then_the_workers",
        lines: &[],
        on: On::Shared,
        run: |bed| Box::pin(topology::run(bed)),
    },
    Flow {
        name: "a_failing_host_is_seen_and_recovers_and_one_that_failed_for_good_is_replaced",
        lines: &[Line::V1_14],
        on: On::Shared,
        run: |bed| Box::pin(failing::run(bed)),
    },
    Flow {
        name: "holds_refuse_a_second_machine_in_groups_of_one_until_the_policy_is_replace",
        lines: &[Line::V1_14],
        on: On::Shared,
        run: |bed| Box::pin(holds::of_one(bed)),
    },
    Flow {
        name: "holds_leave_what_owners_declare_and_plan_predicts",
        lines: &[],
        on: On::Shared,
        run: |bed| Box::pin(holds::declared(bed)),
    },
    Flow {
        name: "holds_keep_control_plane_machines_that_cluster_api_replaces_without_asking",
        lines: &[Line::V1_14],
        on: On::Shared,
        run: |bed| Box::pin(holds_control_plane::run(bed)),
    },
    Flow {
        name: "a_file_and_a_kubelet_flag_of_a_kubeadm_config_change_in_place",
        lines: &[Line::V1_14],
        on: On::Shared,
        run: |bed| Box::pin(configuration::run(bed)),
    },
    // Several minutes in which hosts are held: too slow for every run.
    Flow {
        name: "holds_keep_workers_when_the_goal_changes_in_the_middle_of_a_rollout",
        lines: &[],
        on: On::Shared,
        run: |bed| Box::pin(holds_midway::run(bed)),
    },
    // On a bed of its own, because its controller stops.
    Flow {
        name: "holds_count_while_the_controller_does_not_run_and_without_their_object",
        lines: &[],
        on: On::Own,
        run: |bed| Box::pin(holds_alone::run(bed)),
    },
    Flow {
        name: "a_health_check_ignores_a_machine_that_is_restarting",
        lines: &[],
        on: On::Shared,
        run: |bed| Box::pin(health_check::run(bed)),
    },
    Flow {
        name: "the_only_machine_of_a_control_plane_is_updated_in_place_on_request",
        lines: BOTH,
        on: On::Shared,
        run: |bed| Box::pin(single::run(bed)),
    },
    // Some forty updates, one after another: too slow for every run.
    Flow {
        name: "the_only_machine_of_a_control_plane_survives_a_crash_at_each_write",
        lines: &[],
        on: On::Own,
        run: |bed| Box::pin(single::crashed(bed)),
    },
    // Fourteen verdicts, one after another: too slow for every run.
    Flow {
        name: "the_model_judges_changes_of_a_kubeadm_config_as_cluster_api_does",
        lines: &[],
        on: On::Shared,
        run: |bed| Box::pin(kubeadm_config::run(bed)),
    },
    Flow {
        name: "a_control_plane_without_surge_is_updated_in_place_one_at_a_time",
        lines: BOTH,
        on: On::Shared,
        run: |bed| Box::pin(control_plane_in_place::run(bed)),
    },
    Flow {
        name: "an_uncovered_change_is_held_or_replaced_by_policy",
        lines: BOTH,
        on: On::Shared,
        run: |bed| Box::pin(uncovered::run(bed)),
    },
    Flow {
        name: "a_discovery_with_an_unknown_hook_is_rejected_and_ours_is_accepted",
        lines: BOTH,
        on: On::Shared,
        run: |bed| Box::pin(discovery::run(bed)),
    },
];
