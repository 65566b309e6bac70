"""What the guides say that cannot be done, and what shows it; test_limits.py finds the statements.

Guide -> a few words of the statement's line -> the tests that show it, below tests/, or a reason why none of ours can or need show it.
"""

from __future__ import annotations

_SEVERAL_SLOTS = "node_manager/test_keyed_slots.py::test_what_several_keyed_slots_do_not_do_yet_is_refused_with_what_to_do"
_OVER_NODES = "node_manager/test_across.py::test_what_slots_over_nodes_do_not_do_yet_is_refused_with_what_to_do"
_STATELESS_SLOTS = "node_manager/test_slots.py::test_what_cannot_be_scaled_is_refused_with_the_reason"
_LANDLOCK = "node_manager/test_sandbox.py::test_landlock_keeps_a_process_from_tcp_and_from_signals_and_not_from_udp_nor_sockets_with_a_path"
_CANARY_BY_HAND = "registry/test_canaries.py::test_a_canary_is_promoted_by_hand_before_its_time_is_over_once_all_nodes_have_begun"
_MISSED = "node_manager/test_diff.py::test_a_version_slower_than_the_bound_allows_loses_frames_and_holds_up_nobody"
_WRITES_TOO_LATE = "registry/test_two_processes.py::test_who_cannot_write_for_ten_seconds_answers_503_and_may_be_asked_again"

LIMITS: dict[str, dict[str, list[str] | str]] = {
    "README.md": {
        "Not yet over several slots": [_SEVERAL_SLOTS, _STATELESS_SLOTS, _OVER_NODES],
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
    },
    "connect.md": {
        "it cannot see whether the query is started": [
            "udo_interface/test_connect.py::test_what_a_connect_session_cannot_promise_is_refused_with_the_remedy",
        ],
    },
    "console.md": {
        "whatever it has counted so far (`udo update NAME --promote`)": [_CANARY_BY_HAND],
        "the console shows what it has found so far": "what a running diff has found until then, not a limit",
        "cannot be framed, are not cached": [
            "registry/test_console.py::test_everybody_reads_what_the_api_shows_and_nobody_without_a_token_more",
        ],
    },
    "docker.md": {
        "memory that cannot be reclaimed": "of the kernel: which memory counts",
        "server gave HTTP response to HTTPS client": "of the Docker daemon",
    },
    "elasticity.md": {
        "to the engine with the least so far": "how it is done, not a limit",
        "a saturated operator that cannot scale out": [
            "elasticity/test_flink_lessons.py::test_nothing_grows_in_front_of_a_bottleneck_that_cannot",
        ],
        "a scale-out that any policy wants cannot be made yet": [
            "elasticity/test_scale_out.py::test_a_take_over_that_is_declined_for_a_while_keeps_what_stands_prepared",
        ],
    },
    "executors.md": {
        "its home has mode 700, so that other users cannot": [
            "node_manager/test_recovery.py::test_servers_listen_on_private_unix_sockets_only_and_know_the_slot_log",
        ],
        "a key that does not fit its certificate, change nothing": [
            "node_manager/test_tls_relay.py::test_certificates_that_cannot_be_used_are_told_and_the_former_ones_stay",
            "registry/test_tls.py::test_new_certificates_take_effect_with_the_next_connection",
        ],
        "also where it has none so far": [
            "node_manager/test_replicas_changed.py"
            "::test_without_replicas_key_groups_move_and_slots_come_and_go_and_with_replicas_again_all_of_that_survives",
        ],
        "Not supported so far, and refused: canaries and recordings": [_OVER_NODES],
        "a version that cannot read the newer one's state": [_SEVERAL_SLOTS],
        "cannot listen on ... without TLS": [
            "node_manager/test_tls_relay.py::test_listening_without_certificates_or_on_what_is_no_address_is_refused",
            "cli/test_certs.py::test_what_cannot_be_by_tls_is_said_before_anything_starts",
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
        "With several slots of a keyed operator these are refused so far": [_SEVERAL_SLOTS],
        "a version that cannot read the newer one's state. Without state only": [_SEVERAL_SLOTS, _STATELESS_SLOTS],
        "cannot be imported here, so the push does not check it": [
            "cli/test_packing.py::test_packaging_for_another_platform_is_not_checked_here",
        ],
    },
    "record.md": {
        "at most half of the queue's capacity. If the recording cannot": [
            "node_manager/test_recording.py::test_a_recorder_that_does_not_keep_up_holds_nothing_back_and_says_what_is_missing",
            "node_manager/test_recording.py::test_a_keyed_recording_ends_where_its_recorder_did_not_keep_up",
        ],
        "A truncated file cannot be opened": ["node_manager/test_recording.py::test_a_damaged_file_is_refused"],
    },
    "registry.md": {
        "A version cannot be deleted while a deployment runs it": [
            "registry/test_content.py::test_a_version_in_use_is_not_deleted_and_an_unused_one_takes_its_own_blobs_along",
            "registry/test_content.py::test_the_version_that_a_deployment_would_go_back_to_is_deleted_by_force_only",
        ],
        "its transaction is ended after 5 s. Who cannot": [
            "registry/test_two_processes.py::test_a_writer_that_stands_still_loses_its_turn_and_writes_nothing",
            _WRITES_TOO_LATE,
        ],
        "write within 10 s, or cannot reach the database": [_WRITES_TOO_LATE],
        "A proxy that cannot be used, or does not answer": [
            "registry/test_proxies.py::test_a_proxy_of_no_kind_that_is_known_is_refused_by_its_variable",
            "registry/test_proxies.py::test_a_proxy_that_does_not_answer_is_named_with_its_variable",
        ],
    },
    "sandbox.md": {
        "From Linux 6.7 on it cannot use": [_LANDLOCK],
        "from 6.12 on it cannot signal other processes": [_LANDLOCK],
        "cannot be resolved, the connection is reset": [
            "node_manager/test_network.py::test_a_service_that_is_down_or_has_no_address_resets_the_connection_and_the_log_says_why",
        ],
        "Keyed state that an operator has corrupted cannot be repaired": [
            "node_manager/test_broken_keys.py::test_a_manager_that_starts_on_broken_keys_serves_all_the_same",
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
    },
    "sql.md": {
        "permanent view cannot refer to it": [
            "udo_interface/test_sql.py::test_a_temporary_view_names_an_operators_answers_batch_and_streaming_and_a_permanent_one_does_not",
        ],
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
        "whatever it has counted so far, once all nodes have begun it": [_CANARY_BY_HAND],
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
    },
}
