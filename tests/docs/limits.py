"""The limitations that the guides state, and the tests that show them; test_limits.py finds the statements.

Guide -> a few words of the statement's line -> the tests that show it, below tests/, or the reason why no test can or need show it.
"""

from __future__ import annotations

from tests.docs.limits_of_nodes import CANARY_BY_HAND, OF_NODES, OVER_NODES, SANDBOXED

_MISSED = "node_manager/test_diff.py::test_a_version_slower_than_the_bound_allows_loses_frames_and_holds_up_nobody"
_TRIAL = "cli/test_init_and_test.py::test_a_trial_has_the_sandbox_and_the_limits_of_production"
_LIMITED = (
    "udo_interface/test_keyed.py::test_a_task_that_a_limit_reads_from_counts_whole_and_a_partition_that_spark_does_not_run_not_at_all"
)
_ADVICE = "elasticity/test_managed.py::test_an_overloaded_node_is_told_of_as_advice_with_a_neighbour_and_missing_figures_ask_for_nothing"
_SAMPLES_ALONE = "cli/test_dev.py::test_samples_alone_need_no_platform"

LIMITS: dict[str, dict[str, list[str] | str]] = {
    **OF_NODES,
    "README.md": {
        "Not yet over several nodes": [OVER_NODES],
        "Only the instance that *owns* the queue": [
            "protocol/test_slot.py::test_only_the_owner_answers_and_a_fenced_answer_leaves_no_trace",
        ],
    },
    "allocation.md": {
        "It only computes plans; nothing places checkpoints": "no part of the product calls it but udo rebalance, for its rounds",
        "Useful only with a limit on fairness": [
            "elasticity/test_allocation.py::test_without_a_limit_it_is_the_optimum",
            "elasticity/test_allocation.py::test_under_a_limit_it_comes_close_to_the_optimum_and_refined_within_five_percent",
        ],
    },
    "applications.md": {
        "`first_stories` only: replace the keyed operator": "an option of an example's command; no other example defines it",
    },
    "applications_sla.md": {
        "is undeployed only when it belongs to none": [
            "registry/test_applications.py::test_an_application_is_named_changed_handed_out_and_removed_and_the_audit_trail_has_it",
        ],
        "advice only: its callers are on that node": [
            _ADVICE,
        ],
        "carries one out only if the deployment still has": [
            "node_manager/test_applications.py::test_a_grant_is_carried_out_once_and_only_for_the_slots_it_was_proposed_for",
        ],
    },
    "bad_events.md": {
        "leaves a value in `ctx.state` that cannot be stored": [
            "runtime/test_bad_events.py::test_state_timers_watermark_and_answers_are_those_of_a_run_without_the_bad_events",
            "runtime/test_keyed.py::test_state_that_cannot_be_stored_fails_its_own_attempt_and_no_other",
        ],
        "cannot be replayed: a batch job's state": [
            "node_manager/test_dead_letters.py::test_letters_of_timers_and_of_batch_jobs_are_not_sent_again",
        ],
        "the event cannot become a dead letter": [
            "node_manager/test_dead_letters.py::test_a_rollback_to_a_version_that_fails_on_what_was_answered_is_refused_with_the_event",
            "runtime/test_letters_going_back.py::test_a_version_that_fails_on_what_was_answered_and_cannot_put_it_aside_does_not_come_back",
        ],
        "There is extra cost only for a batch that fails": "a cost, not a limit",
        "may only change within its query's micro-batches": [
            "cli/test_dead.py::test_letters_of_a_keyed_operator_take_part_in_the_next_micro_batch",
            "runtime/test_dead_letters.py::test_letters_sent_again_take_part_in_the_next_epoch_and_go_with_the_one_after_it",
        ],
    },
    "cli.md": {
        "without a platform: `udo dev DIR --samples-only`": [
            _SAMPLES_ALONE,
        ],
        "reachable on that host only) and its metrics": "of Unix sockets",
    },
    "connect.md": {
        "it cannot see whether the query is started": [
            "udo_interface/test_connect.py::test_what_a_connect_session_cannot_promise_is_refused_with_the_remedy",
        ],
    },
    "elasticity.md": {
        "to the engine with the least so far": "how it is done, not a limit",
        "a saturated operator that cannot scale out": [
            "elasticity/test_flink_lessons.py::test_nothing_grows_in_front_of_a_bottleneck_that_cannot",
        ],
        "a scale-out that any policy wants cannot be made yet": [
            "elasticity/test_scale_out.py::test_a_take_over_that_is_declined_for_a_while_keeps_what_stands_prepared",
        ],
        "of others that is advice only": [
            _ADVICE,
            "registry/test_applications.py::test_a_step_is_refused_where_slots_have_replicas_or_its_target_is_away",
        ],
        "only the load of its other keys is counted": "how it is done, not a limit",
        "a key moves only if its": [
            "elasticity/test_balance.py::test_state_to_carry_is_weighed_against_load",
        ],
        "is cancelled only at 5 below": [
            "elasticity/test_bottleneck.py::test_it_prepares_takes_over_stops_and_scales_in",
        ],
        "auto's steps are recorded only": [
            "node_manager/test_controllers.py::test_in_mode_advise_the_same_is_decided_and_nothing_is_done",
        ],
        "get advice only, except for the steps": [
            OVER_NODES,
            "node_manager/test_application_over_nodes.py::test_a_replica_moves_to_the_other_node_comes_and_goes_while_lanes_are_answered",
        ],
        "Only when that was the last thing tried does": [
            "elasticity/test_balancing.py::test_when_balancing_is_not_enough_it_scales_out_after_it",
            "elasticity/test_balancing.py::test_an_overloaded_replica_is_relieved_by_balancing_and_no_replica_is_added",
        ],
        "reached only once work queues, and δ2′ only then": [
            "elasticity/test_bottleneck.py"
            "::test_without_a_queue_nothing_is_taken_over_and_it_is_prepared_for_memory_that_is_nearly_full_alone",
        ],
        "Only `--least` and `--most` are brought about at": [
            "elasticity/test_local.py::test_whatever_is_measured_a_step_back_comes_late_and_all_stay_within_bounds",
            "elasticity/test_local.py::test_a_step_takes_a_token_and_they_come_back",
        ],
        "only, and its journal says why": [
            "node_manager/test_modes_keyed.py::test_a_node_balances_by_a_policy_from_a_file_of_its_own",
        ],
    },
    "notebooks.md": {
        "only the operator's is shown, with the event": [
            "udo_interface/test_notebook.py::test_an_operators_failure_is_shown_without_sparks_frames",
        ],
    },
    "operators.md": {
        "An update cannot change the names of the inputs": [
            "udo_interface/test_inputs.py::test_an_update_keeps_the_inputs",
            "protocol/test_inputs.py::test_a_version_with_other_inputs_does_not_fit_the_queries_that_run",
        ],
        "The operator cannot tell a rehearsal from events": [
            "operators/test_rehearsal.py::test_what_an_operator_keeps_in_variables_of_its_own_stays_after_the_rehearsal",
            "operators/test_rehearsal.py::test_what_was_rehearsed_has_left_no_state",
        ],
        "cannot be imported here, so the push does not check it": [
            "cli/test_packing.py::test_packaging_for_another_platform_is_not_checked_here",
        ],
        "imports only its own code, its dependencies and": [
            "node_manager/test_images.py::test_the_runtime_base_links_only_what_an_operator_may_see",
            "cli/test_packing.py::test_a_package_of_this_environment_is_not_the_operators",
        ],
        "in pip's syntax; wheels only": [
            "cli/test_packing.py::test_nothing_is_built_from_source_for_an_operator",
        ],
        "the sandbox shows an operator only what lies below": [
            SANDBOXED,
        ],
        "`udo test --replay --pdb` debugs Python only": "the debugger is Python's own",
        "no warm process for it, only for its engine": [
            "operators/test_isolation.py::test_an_update_takes_a_warm_engine_also_one_that_a_former_manager_has_started",
        ],
        "no files except its own and the system's, writes only": [
            _TRIAL,
        ],
        "`--samples-only` needs no platform": [
            _SAMPLES_ALONE,
        ],
        "Then, and without `events.json`, it is only": [
            "cli/test_samples.py::test_what_fails_on_its_samples_is_pushed_only_if_they_are_left_out",
        ],
        "read-only where the node isolates operators": [
            _TRIAL,
        ],
        "An operator whose `open` needs what only its": "whom it is for, not a limit",
    },
    "record.md": {
        "at most half of the queue's capacity. If the recording cannot": [
            "node_manager/test_recording.py::test_a_recorder_that_does_not_keep_up_holds_nothing_back_and_says_what_is_missing",
            "node_manager/test_recording.py::test_a_keyed_recording_ends_where_its_recorder_did_not_keep_up",
        ],
        "A truncated file cannot be opened": ["node_manager/test_recording.py::test_a_damaged_file_is_refused"],
        "or fails, in production only": "what it is for, not a limit",
        "variables and secrets it contains only the names": [
            "node_manager/test_recording.py::test_a_stateless_recording_replays_to_the_answers_that_were_served",
        ],
        "writes answers for 4711 only": [
            "node_manager/test_recording.py::test_a_keyed_recording_in_the_middle_of_a_query_replays_to_the_answers_that_were_served",
        ],
    },
    "spark.md": {
        "so an event cannot become a dead letter either": [
            "udo_interface/test_bad_events.py::test_keep_names_the_policy_when_an_event_has_no_answer",
        ],
        "nanoseconds cannot hold it": ["udo_interface/test_values.py::test_a_time_that_nanoseconds_cannot_hold_is_refused_by_its_column"],
        "an error at the call says what it cannot do": [
            "udo_interface/test_jvm_path.py::test_what_the_jvm_path_cannot_do_is_refused_with_the_reason",
        ],
        "only holds a name and options; it contacts nothing": [
            "udo_interface/test_batch.py::test_a_registry_that_is_away_is_told_at_the_call_with_its_address",
        ],
        "where only the executors know it,": [
            "udo_interface/test_jvm_path.py::test_a_node_manager_that_only_executors_know_to_be_elsewhere_is_an_error_with_the_remedy",
        ],
        "columns that only the new version has do not appear": [
            "udo_interface/test_lane.py::test_an_answer_of_a_wider_version_is_conformed_to_the_planned_columns",
        ],
    },
    "sql.md": {
        "permanent view cannot refer to it": [
            "udo_interface/test_sql.py::test_a_temporary_view_names_an_operators_answers_batch_and_streaming_and_a_permanent_one_does_not",
        ],
        "Who only reads the answers need not know": "whom it is for, not a limit",
    },
    "state.md": {
        "An update cannot change the type of a key column": [
            "udo_interface/test_keys.py::test_a_version_with_another_type_of_key_is_refused_and_the_query_goes_on",
        ],
        'Java\'s `(long) state.get("n")` cannot take': [
            "operators/test_state_types.py::test_a_state_has_its_declared_types_in_each_sdk",
            "node_manager/test_state_types.py::test_an_update_that_cannot_go_on_from_the_state_is_refused_and_the_owner_goes_on",
        ],
        "to a version that cannot read the new format": [
            "node_manager/test_going_back.py::test_when_the_rollback_window_has_passed_nothing_is_kept_and_the_former_version_is_refused",
            "runtime/test_going_back.py::test_the_former_version_goes_on_as_if_it_had_answered_all_along",
        ],
        "cannot know, so it never removes a session by itself": [
            "node_manager/test_state.py::test_sessions_are_listed_with_keys_epoch_and_whether_a_query_uses_them",
            "udo_interface/test_keyed.py::test_two_queries_on_one_deployment_do_not_see_each_other",
        ],
        "Without a backup the query cannot continue from its checkpoint": [
            "udo_interface/test_keyed.py::test_state_that_is_older_than_the_query_is_an_error_that_names_both_epochs",
        ],
        "If the server cannot read it at startup": [
            "node_manager/test_append_only.py::test_garbage_behind_the_last_write_is_cut_off_and_a_copy_kept",
            "node_manager/test_append_only.py::test_garbage_in_the_middle_is_refused_until_somebody_gives_up_what_is_behind_it",
            "node_manager/test_append_only.py::test_a_broken_snapshot_is_refused_with_the_servers_words_and_what_can_be_done",
        ],
        "An earlier release cannot use a converted home": [
            "node_manager/test_home_format.py::test_a_format_of_a_later_release_is_refused_and_nothing_is_touched",
        ],
        "highest event time so far) and a `checksum`": "what a file holds, not a limit",
        "several timers, but only one per time": [
            "operators/test_keyed_host.py::test_timers_and_expirations_of_a_key_take_effect_in_their_order",
        ],
        "are for Python only: other languages may refuse": "that depends on each language's types",
        "Only `ctx.state` is kept: attributes of": "an attribute of any object ends with its process",
        "a consumer that wants the latest total only": "of an example's consumer, not a limit",
        "`on_timer` gets a dict of its key only": "what becomes a dict: a cost, not a limit",
        "checkpoint within a micro-batch handles changed groups only": [
            "runtime/test_groups.py::test_a_checkpoint_of_few_touched_groups_does_not_look_at_the_others",
        ],
        "only a part of it counts: Spark runs partitions": [
            _LIMITED,
        ],
        "passes its answers on only when all of them have": [
            "udo_interface/test_held.py::test_all_has_come_before_the_first_leaves_and_the_order_is_kept",
            _LIMITED,
        ],
        "keeps only the ten latest small payments": "what an example does, not a limit",
        "If a session were only removed on the server": "a reason: what would be without it",
        "is used literally (`%20` is three characters": [
            "udo_interface/test_store.py::test_locations_are_made_absolute_and_sparks_spelling_is_known",
            "udo_interface/test_store_s3.py::test_a_path_is_that_of_spark_whatever_is_in_it",
        ],
        "counts only if there is no other": [
            "udo_interface/test_store_lane.py"
            "::test_an_epoch_that_a_limit_cut_short_on_one_node_and_another_evaluated_in_full_counts_in_full",
            "udo_interface/test_store_lane.py::test_an_epoch_that_was_cut_short_on_every_node_leaves_no_trace",
        ],
    },
    "glossary.md": {
        "whose answers are not yet covered by durable state": ["protocol/test_slot.py::test_checkpoint_and_trim_stay_behind_emitted"],
        "the instance whose token the slot holds": [
            "protocol/test_slot.py::test_only_the_owner_answers_and_a_fenced_answer_leaves_no_trace",
        ],
        "an instance whose answers are only compared": ["node_manager/test_diff.py::test_a_diff_tells_what_differs_and_changes_no_answer"],
        "a number that only grows": ["protocol/test_slot.py::test_a_token_older_than_the_owner_is_not_promoted"],
    },
    "updates.md": {
        "cannot be identified. If both versions fail": ["node_manager/test_diff.py::test_a_diff_tells_what_differs_and_changes_no_answer"],
        "Ctrl-C; the findings so far are printed": [
            "cli/test_trials.py::test_a_diff_without_events_and_one_that_is_interrupted_have_their_own_exit_codes",
        ],
        "frames that it cannot keep up with are counted as": [_MISSED],
        "state it cannot read. Other updates": [
            "node_manager/test_diff_keyed.py::test_a_diff_goes_on_while_the_serving_version_is_replaced_by_one_whose_state_it_can_read",
        ],
        "whatever it has counted so far, once all nodes have begun it": [CANARY_BY_HAND],
        "continues with that node's counts so far": [
            "registry/test_canaries.py::test_a_node_that_leaves_is_not_waited_for_and_one_that_comes_back_counts_again",
        ],
        "version cannot answer a part of its keys": [
            "node_manager/test_canary_keyed.py::test_a_canary_that_holds_serves_nobody_and_is_promoted_with_the_state_carried_over",
            "node_manager/test_canary_keyed.py::test_a_share_of_the_key_groups_is_tried_and_no_event_of_others",
        ],
        "it cannot keep up | frames are missed": [_MISSED],
        "if it cannot restart within about twenty seconds": [
            "node_manager/test_canary_keyed.py::test_one_that_does_not_begin_anew_is_given_up_after_about_twenty_seconds_with_the_reason",
            "registry/test_canaries.py::test_a_node_whose_canary_cannot_go_on_rolls_back_with_its_reason",
        ],
        "on every live node; if it cannot load": [
            "node_manager/test_registry.py::test_an_update_changes_variables_secrets_and_files_and_all_others_stay",
        ],
        "is evaluated at the end only. The final evaluation": [
            "protocol/test_canary.py::test_too_few_events_mean_something_only_at_the_end",
        ],
        "reads and migrates only that share of the state": [
            "node_manager/test_canary_keyed.py::test_a_canary_is_sent_the_state_and_the_changelog_of_its_key_groups_only",
            "node_manager/test_canary_keyed.py::test_state_of_other_groups_that_cannot_be_migrated_fails_the_update_after_the_canary",
        ],
        "and only while the queue server is not": [
            "node_manager/test_going_back.py::test_when_the_rollback_window_has_passed_nothing_is_kept_and_the_former_version_is_refused",
            "node_manager/test_going_back.py::test_without_the_queue_server_the_input_since_is_gone_and_the_newer_version_goes_on",
            "runtime/test_going_back.py::test_when_the_input_since_is_not_in_the_log_any_more_it_is_too_late",
            "protocol/test_savepoints.py::test_a_rollback_whose_savepoint_was_given_up_says_why",
        ],
        "A rollback changes the version only, not the values": [
            "node_manager/test_registry.py::test_a_rollback_changes_the_version_and_not_the_values",
        ],
    },
}
