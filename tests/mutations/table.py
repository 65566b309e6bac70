"""The faults, by name. docs/guarantees.md says what each takes away, beside the promise, in a table that a test compares with this one."""

from __future__ import annotations

from tests.mutations.mutation import Mutation

_LOG = "udo_protocol/lua/log.lua"
_KEYED = "runtimes/python/udo_runtime/engine/keyed_engine.py"
# A new owner treats all frames in the log as answered.
_SKIPPED = (
    "  redis.call('SET', p .. 'owner', a[1])\n  ring(p, 'parked')\n  ring(p, 'waiting')\n",
    "  redis.call('SET', p .. 'owner', a[1])\n  local behind = num(p .. 'base', 1) - 1 + redis.call('LLEN', p .. 'in')\n"
    "  if owner > 0 then redis.call('SET', p .. 'emitted', behind) end\n  ring(p, 'parked')\n  ring(p, 'waiting')\n",
)

MUTATIONS = {
    "fence-off": Mutation(
        _LOG,
        "  if owner ~= a[1] then return refuse('FENCED', tonumber(owner)) end\n  if first <= emitted",
        "  if first <= emitted",
        "protocol/test_slot.py::test_only_the_owner_answers_and_a_fenced_answer_leaves_no_trace",
        quick=True,
    ),
    "answered-twice": Mutation(
        _LOG,
        "  if first <= emitted then return refuse('DUPLICATE', emitted) end\n  if first ~= emitted + 1",
        "  if first > emitted + 1",
        "protocol/test_slot.py::test_answers_out_of_turn_are_refused",
        quick=True,
    ),
    "pushed-twice": Mutation(
        _LOG,
        "  if n <= last then return refuse('DUPLICATE', last) end\n",
        "  if n <= last then prev = last end\n",
        "protocol/test_slot.py::test_push_refuses_duplicates_gaps_other_routes_and_unknown_lanes",
        quick=True,
    ),
    "trimmed-ahead": Mutation(
        _LOG,
        "  if seq > num(p .. 'emitted', 0) then return {'AHEAD', num(p .. 'emitted', 0)} end\n",
        "",
        "protocol/test_slot.py::test_checkpoint_and_trim_stay_behind_emitted",
        quick=True,
    ),
    "abandoned-lane-kept": Mutation(
        _LOG,
        "  redis.call('PEXPIRE', key, a[7])\n  ring(p, 'parked')\n",
        "  redis.call('PERSIST', key)\n  ring(p, 'parked')\n",
        "protocol/test_slot.py::test_what_is_left_behind_by_a_lane_that_is_not_used_any_more_expires",
        quick=True,
    ),
    "unanswered-skipped": Mutation(
        _LOG, *_SKIPPED, "node_manager/test_updates_under_load.py::test_an_update_with_unanswered_frames_answers_each_once_in_order"
    ),
    "unanswered-skipped-keyed": Mutation(
        _LOG,
        *_SKIPPED,
        "node_manager/test_updates_under_load.py::test_a_keyed_update_with_unanswered_frames_counts_each_event_once_in_order",
    ),
    "answers-leave-one-by-one": Mutation(
        "udo_interface/spark/task.py",
        "        yield from held(answers) if self.keyed and of and of.query else answers\n",
        "        yield from answers\n",
        "udo_interface/test_keyed.py::test_a_task_that_a_limit_reads_from_counts_whole_and_a_partition_that_spark_does_not_run_not_at_all",
    ),
    "own-time-at-each-slot": Mutation(
        "udo_interface/lane/split.py",
        "highest=ends.highest",
        "highest=collector.highest",
        "node_manager/test_keyed_slots.py::test_the_watermark_of_every_slot_is_that_of_all_events",
    ),
    "end-at-slots-with-events": Mutation(
        "udo_interface/lane/split.py",
        "            if not self._under_way[slot]:\n                collector.due()\n            sender.push_end(",
        "            if not sender.number:\n                continue\n            sender.push_end(",
        "node_manager/test_keyed_slots.py::test_the_watermark_of_every_slot_is_that_of_all_events",
    ),
    "fastest-input-counts": Mutation(
        "udo_protocol/queue/event_times.py",
        "return min(times[name] for name in wanted)",
        "return max(times[name] for name in wanted)",
        "protocol/test_inputs.py::test_event_times_go_by_the_input_that_is_behind_and_travel_as_they_are",
        quick=True,
    ),
    "answers-slot-by-slot": Mutation(
        "udo_interface/lane/split_parts.py",
        "pa.array(np.argsort(np.concatenate([part.rows for part in parts])))",
        "pa.array(np.arange(item.rows))",
        "node_manager/test_keyed_slots.py::test_answers_come_in_the_order_of_the_rows_and_a_session_is_one_over_all_slots",
    ),
    "move-frames-believed": Mutation(
        "runtimes/python/udo_runtime/engine/group_moves.py",
        "        if data != told or (isinstance(moving, HandOver) and seq != cut):\n",
        "        if not told:\n",
        "engine/test_moved_groups.py::test_a_frame_that_asks_for_a_move_and_is_not_the_node_managers_gets_an_error_and_nothing_moves",
        quick=True,
    ),
    "handed-over-kept": Mutation(
        "udo_protocol/lua/moving.lua",
        "        redis.call('HDEL', p .. 'm:' .. s, n)\n      elseif of_event_time",
        "      elseif of_event_time",
        "protocol/test_moving.py::test_groups_leave_the_one_state_and_become_part_of_the_other_each_in_one_step",
        quick=True,
    ),
    "adopted-left-out": Mutation(
        _KEYED,
        "        moving = moving or self._moves.taking\n",
        "",
        "engine/test_moved_groups.py::test_whatever_effect_an_owner_dies_at_while_a_group_moves_each_event_counts_once",
    ),
    "network-for-all": Mutation(
        "node_manager/instances/network_access.py",
        "if e not in allowed]",
        "if e == allowed]",
        "node_manager/test_network.py::test_an_operator_that_asks_for_what_the_node_does_not_allow_is_refused_with_what_to_do",
    ),
    "attempt-not-taken-back": Mutation(
        "runtimes/python/udo_runtime/state/groups.py",
        "        self._apply(self.undo)\n        return made\n",
        "        return made\n",
        "runtime/test_keyed.py::test_an_epoch_cut_short_leaves_no_trace",
        quick=True,
    ),
    "undo-of-no-checkpoint": Mutation(
        "runtimes/python/udo_runtime/state/groups.py",
        "None if self.changed or self.layout is not None else",
        "None if self.layout is not None else",
        "runtime/test_undo.py::test_whoever_reads_or_follows_the_stored_form_has_the_undo_of_one_that_was_never_stored",
    ),
    "undo-folded-away": Mutation(
        "runtimes/python/udo_runtime/state/undo.py",
        "for k, v in {**values, **before}.items() if v is not None}",
        "for k, v in values.items()}",
        "runtime/test_undo.py::test_whoever_reads_or_follows_the_stored_form_has_the_undo_of_one_that_was_never_stored",
    ),
    "empty-before-forgotten": Mutation(
        "runtimes/python/udo_runtime/state/stored_values.py",
        "noting(-1)) is not None:",
        "None) is not None:",
        "runtime/test_undo.py::test_whoever_reads_or_follows_the_stored_form_has_the_undo_of_one_that_was_never_stored",
    ),
    "older-changes-applied": Mutation(
        "runtimes/python/udo_runtime/durable/standby.py",
        "        if 0 < saves_in(meta) <= group.saves:",
        "        if False:",
        "runtime/test_undo.py::test_a_standby_does_not_apply_changes_that_the_state_it_has_read_includes",
    ),
    "columns-not-taken-back": Mutation(
        "runtimes/python/udo_runtime/state/groups.py",
        "        self._noted().note_block(block, self.layout, len(values))\n",
        "",
        "runtime/test_columns.py::test_columns_say_what_rows_say_whatever_is_done_to_both",
    ),
    "columns-tentative": Mutation(
        "runtimes/python/udo_runtime/state/noted.py",
        "            for block in reversed(self.blocks):\n                values.put(block)\n",
        "            pass\n",
        "runtime/test_columns.py::test_columns_say_what_rows_say_whatever_is_done_to_both",
    ),
    "older-attempt-counts": Mutation(
        "runtimes/python/udo_runtime/state/session.py",
        "    if mine is None:\n        return False\n    if label.run",
        "    return False\n    if label.run",
        "engine/test_keyed_engine.py::test_an_older_attempt_that_still_sends_is_stale_also_for_the_next_process",
    ),
    "durable-answer-forgotten": Mutation(
        _KEYED,
        "        if due:\n            self.waiting = due\n",
        "        if not due:\n            self.waiting = due\n",
        "engine/test_keyed_engine.py::test_whatever_effect_a_process_dies_at_the_next_goes_on_as_if_nothing_had_happened",
    ),
    "no-fsync": Mutation(
        "node_manager/servers/binaries.py",
        '"--appendfsync", "always"',
        '"--appendfsync", "no"',
        "node_manager/test_durability.py::test_an_acknowledged_epoch_was_synced_to_the_disk_and_survives_the_kill_of_both_servers",
    ),
    "disk-not-awaited": Mutation(
        "udo_protocol/state/checkpoints.py",
        '*steps, ("EXEC",), ("WAITAOF", 1, 0, WAIT_MS)])\n'
        "        replies = [state.receive(WAIT_MS / 1000 + state.default_timeout_s) for _ in range(len(steps) + 3)]\n",
        '*steps, ("EXEC",)])\n'
        "        replies = [*(state.receive(WAIT_MS / 1000 + state.default_timeout_s) for _ in range(len(steps) + 2)), [1]]\n",
        "node_manager/test_durability.py::test_an_acknowledged_epoch_was_synced_to_the_disk_and_survives_the_kill_of_both_servers",
    ),
    "stopped-slot-goes-on": Mutation(
        "node_manager/slots/engine.py",
        "yield from _end(s, event) if s.ending else _HANDLERS[type(event)](s, event)",
        "yield from _HANDLERS[type(event)](s, event)",
        "node_manager/test_slot_engine.py::test_whatever_happens_there_is_one_owner_and_each_request_is_told_once",
        quick=True,
    ),
    "former-owner-stays": Mutation(
        "node_manager/slots/engine.py",
        "    if former is not None:\n        yield do.Retire(former)\n",
        "",
        "node_manager/test_slot_engine.py::test_whatever_happens_there_is_one_owner_and_each_request_is_told_once",
        quick=True,
    ),
    "window-never-closes": Mutation(
        "node_manager/slots/state_rollback.py",
        "former.image.digest, time.time() + window_s",
        "former.image.digest, time.time() + 1e6 * window_s",
        "node_manager/test_going_back.py::test_when_the_rollback_window_has_passed_nothing_is_kept_and_the_former_version_is_refused",
    ),
    "speculation-allowed": Mutation(
        "udo_interface/spark/call.py",
        "        settings.check_keyed(conf)\n        inside =",
        "        inside =",
        "udo_interface/test_keyed.py::test_the_call_itself_refuses_speculation_for_a_keyed_operator_alone",
    ),
    "speculation-allowed-for-rdds": Mutation(
        "udo_interface/spark/call.py",
        "            settings.check_keyed(conf)\n            keys = Keys(0",
        "            keys = Keys(0",
        "udo_interface/test_keyed.py::test_the_call_itself_refuses_speculation_for_a_keyed_operator_alone",
    ),
    "answer-waits-for-an-event": Mutation(
        "udo_interface/jvm/Exchange.scala",
        " && (ahead == null || asked.isEmpty || ahead.ready)) {",
        ") {",
        "udo_interface/test_real_time.py::test_no_answer_waits_for_the_next_event_or_the_end_of_the_batch",
    ),
    "held-back-answers-not-told": Mutation(
        "udo_interface/spark/call.py",
        "            settings.check_python_path(conf, df.isStreaming)\n",
        "            pass\n",
        "udo_interface/test_streaming.py::test_a_call_on_the_python_path_alone_warns_of_real_time_mode",
    ),
    "asynchronous-progress-allowed": Mutation(
        "udo_interface/spark/progress.py",
        '    if marked or context.getLocalProperty(PROPERTY) == "true":\n',
        '    if context.getLocalProperty(PROPERTY) == "true":\n',
        "udo_interface/test_keyed.py::test_asynchronous_progress_tracking_is_refused_before_the_first_event",
    ),
    "asynchronous-progress-not-looked-for": Mutation(
        "udo_interface/spark/keyed_plan.py",
        "        progress.watch(df.sparkSession)\n",
        "        pass\n",
        "udo_interface/test_plans.py::test_without_the_jar_asynchronous_progress_tracking_is_refused_before_the_first_event",
    ),
    "mark-left-out": Mutation(
        "udo_interface/jvm/UdoKeyed.scala",
        "    } ++ rows\n",
        "    }.filter(_ => rows.hasNext) ++ rows\n",
        "udo_interface/test_plans.py::test_the_partitions_may_be_any_number_and_another_one_after_a_restart",
    ),
    "thread-takes-itself-for-a-job": Mutation(
        "udo_interface/jvm/UdoKeyed.scala",
        "      (session +: plan.collect { case rows: LogicalRDD => made(rows) })\n",
        "      Nil\n",
        "udo_interface/test_plans.py::test_a_call_that_is_made_in_another_thread_is_one_of_its_query",
    ),
    "partition-by-the-task": Mutation(
        "udo_interface/spark/evaluation.py",
        "    told = replace(of, partition=partition, since=-1)\n",
        "    told = replace(of, since=-1)\n",
        "udo_interface/test_plans.py::test_without_the_jar_the_rows_tell_the_partition",
    ),
    "former-deployment-stays": Mutation(
        "node_manager/manager.py",
        "            former = made is not None and made > (deployment.made or 0)\n",
        "            former = False\n",
        "node_manager/test_registry.py::test_a_deployment_that_takes_the_name_of_a_removed_one_has_none_of_its_state",
    ),
    "gap-is-a-loss": Mutation(
        "runtimes/python/udo_runtime/state/session.py",
        "        needed = label.epoch - 1 if since is None else since\n",
        "        needed = label.epoch - 1\n",
        "runtime/test_groups.py::test_a_session_names_both_epochs_when_state_is_missing",
        quick=True,
    ),
    "session-not-looked-at": Mutation(
        "runtimes/python/udo_runtime/main.py",
        "    if os.getsid(0) == os.getpid():  # else",
        "    if True:  # else",
        "runtime/test_instance.py::test_an_instance_that_was_replaced_does_not_slow_down_the_session_it_was_started_from",
    ),
    "restarts-are-retries": Mutation(
        "node_manager/rpc/metrics.py",
        '"udo_restarts": ("restarts"',
        '"udo_restarts": ("retries"',
        "node_manager/test_observe.py::test_each_metric_has_the_value_of_what_it_is_named_after",
    ),
    "collection-races-push": Mutation(
        "registry/http/web.py",
        "            unused = repositories.not_held(session, there)\n"
        "            for digest in unused:\n                self.blobs.remove(digest)\n",
        "            unused = repositories.not_held(session, there)\n"
        "        for digest in unused:\n            self.blobs.remove(digest)\n",
        "registry/test_safety.py::test_a_push_that_comes_between_a_collections_commit_and_its_removal_of_files_keeps_its_blobs",
        quick=True,
    ),
    "replicas-not-awaited": Mutation(
        "udo_protocol/state/checkpoints.py",
        "entry):\n        replicated()\n",
        "entry):\n        pass\n",
        "protocol/test_replication.py::test_an_end_waits_for_required_replicas_only_until_they_hold_it_or_are_given_up",
        quick=True,
    ),
    "layer-leaves-its-folder": Mutation(
        "udo_protocol/formats/strict_tar.py",
        '    if any(p in ("", ".", "..") for p in parts):',
        '    if any(p in ("", ".") for p in parts):',
        "node_manager/test_layers.py::test_a_hostile_layer_is_refused_with_its_reason_and_leaves_nothing_outside",
    ),
    "certificate-not-asked-by-the-relay": Mutation(
        "node_manager/servers/tls_relay_config.py",
        '"require_client_certificate": True',
        '"require_client_certificate": False',
        "node_manager/test_tls_relay.py::test_who_shows_no_certificate_of_the_authority_reaches_neither_node_manager_nor_queue_server",
    ),
    "certificate-not-asked-by-the-node-manager": Mutation(
        "node_manager/rpc/remote.py",
        "require_client_authentication=True",
        "require_client_authentication=False",
        "node_manager/test_tls_relay.py::test_who_shows_no_certificate_of_the_authority_reaches_neither_node_manager_nor_queue_server",
    ),
    "certificate-not-asked-by-the-registry": Mutation(
        "udo_protocol/serving_tls.py",
        "context.verify_mode = ssl.CERT_REQUIRED",
        "context.verify_mode = ssl.CERT_NONE",
        "registry/test_tls.py::test_over_https_the_registry_takes_pushes_updates_and_long_polls_of_those_who_show_a_certificate",
    ),
    "missing-figures-taken-for-a-good-response": Mutation(
        "elasticity/scaling/application.py",
        "    if missing:\n        return",
        "    if False:\n        return",
        "elasticity/test_application.py::test_missing_figures_grant_nothing_and_earn_no_token",
        quick=True,
    ),
    "a-grant-for-other-slots": Mutation(
        "node_manager/control/controllers.py",
        "if number > entry.number or now != before:",
        "if number > entry.number:",
        "node_manager/test_applications.py::test_a_grant_is_carried_out_once_and_only_for_the_slots_it_was_proposed_for",
    ),
    "disk-of-a-node-not-known": Mutation(
        "registry/domain/group_maps.py",
        "here = known.get(wish.node) == wish.incarnation",
        "here = wish.node in known",
        "registry/test_group_maps.py::test_over_nodes_each_serves_its_part_with_the_disk_that_it_had_and_a_release_is_of_all_parts",
        quick=True,
    ),
    "runs-of-a-lost-disk-not-counted": Mutation(
        "node_manager/deployments/lanes.py",
        "if asked.stored and placed is not None and not checkpoints.has_runs(state, slot.keys, session):",
        "if False:",
        "node_manager/test_spread_store.py::test_a_query_with_a_store_goes_on_when_a_node_has_lost_its_disk",
    ),
    "late-groups-replace-newer-ones": Mutation(
        "node_manager/deployments/taking.py",
        "if copy and route.version(queue, own.keys) >= version:",
        "if False:",
        "node_manager/test_spread_store.py::test_groups_that_are_brought_once_more_to_a_node_without_its_former_disk_replace_nothing_newer",
    ),
    "copy-completed-twice": Mutation(
        "udo_protocol/state/carrying.py",
        'staged.named("begun"), 1, "NX", "PX"',
        'staged.named("begun"), 1, "PX"',
        "protocol/test_carrying.py::test_a_copy_made_ahead_that_does_not_come_to_an_end_is_not_used_again_and_the_next_one_brings_all",
        quick=True,
    ),
    "any-copy-counts": Mutation(
        "runtimes/python/udo_runtime/durable/sessions.py",
        "if ahead is not None and ahead.copy != moving.copy_taken(self._state, self._keys, version):",
        "if False and ahead is not None:",
        "runtime/test_ahead.py::test_of_another_nodes_groups_the_copy_is_read_and_counts_only_if_it_is_the_one_that_brought_them",
    ),
    "shared-memory-not-copied": Mutation(
        "runtimes/python/udo_runtime/child/shared.py",
        "pa.py_buffer(bytes(self._incoming[at : at + size]))",
        "pa.py_buffer(self._incoming[at : at + size])",
        "operators/test_shared.py::test_what_one_end_puts_there_the_other_takes_and_it_stays_as_it_was",
        quick=True,
    ),
    "shared-memory-not-sealed": Mutation(
        "runtimes/python/udo_runtime/child/shared.py",
        "        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)\n",
        "",
        "operators/test_shared.py::test_the_file_cannot_be_cut_or_grown",
        quick=True,
    ),
    "place-in-shared-memory-not-checked": Mutation(
        "runtimes/python/udo_runtime/child/shared.py",
        "if at < 0 or offset % 8 or size > len(self._incoming) - at:",
        "if offset % 8:",
        "operators/test_shared.py::test_a_table_that_does_not_lie_in_the_other_ends_half_is_refused",
        quick=True,
    ),
    "writers-apart": Mutation(
        "registry/store/store.py",
        "                    postgresql.take_writers_lock(session)\n",
        "                    pass\n",
        "registry/test_two_processes.py::test_many_writers_at_both_processes_are_one_after_the_other",
    ),
}
