"""The faults, by name. What each takes away is told beside the promise in docs/guarantees.md, in a table that a test compares with this."""

from __future__ import annotations

from tests.mutations.mutation import Mutation

_LUA = "udo_protocol/udo.lua"
_KEYED = "runtimes/python/udo_runtime/engine/keyed.py"
# A new owner takes what is in the log for answered.
_SKIPPED = (
    "  redis.call('SET', p .. 'owner', a[1])\n  ring(p, 'parked')\n  ring(p, 'waiting')\n",
    "  redis.call('SET', p .. 'owner', a[1])\n  local behind = num(p .. 'base', 1) - 1 + redis.call('LLEN', p .. 'in')\n"
    "  if owner > 0 then redis.call('SET', p .. 'emitted', behind) end\n  ring(p, 'parked')\n  ring(p, 'waiting')\n",
)

MUTATIONS = {
    "fence-off": Mutation(
        _LUA,
        "  if owner ~= a[1] then return refuse('FENCED', tonumber(owner)) end\n  if first <= emitted",
        "  if first <= emitted",
        "protocol/test_slot.py::test_only_the_owner_answers_and_a_fenced_answer_leaves_no_trace",
        quick=True,
    ),
    "answered-twice": Mutation(
        _LUA,
        "  if first <= emitted then return refuse('DUPLICATE', emitted) end\n  if first ~= emitted + 1",
        "  if first > emitted + 1",
        "protocol/test_slot.py::test_answers_out_of_turn_are_refused",
        quick=True,
    ),
    "pushed-twice": Mutation(
        _LUA,
        "  if n <= last then return refuse('DUPLICATE', last) end\n",
        "  if n <= last then prev = last end\n",
        "protocol/test_slot.py::test_push_refuses_duplicates_gaps_other_routes_and_unknown_lanes",
        quick=True,
    ),
    "trimmed-ahead": Mutation(
        _LUA,
        "  if seq > num(p .. 'emitted', 0) then return {'AHEAD', num(p .. 'emitted', 0)} end\n",
        "",
        "protocol/test_slot.py::test_checkpoint_and_trim_stay_behind_emitted",
        quick=True,
    ),
    "abandoned-lane-kept": Mutation(
        _LUA,
        "  redis.call('PEXPIRE', key, a[7])\n  ring(p, 'parked')\n",
        "  redis.call('PERSIST', key)\n  ring(p, 'parked')\n",
        "protocol/test_slot.py::test_what_is_left_behind_by_a_lane_that_is_not_used_any_more_expires",
        quick=True,
    ),
    "unanswered-skipped": Mutation(
        _LUA, *_SKIPPED, "node_manager/test_updates_under_load.py::test_an_update_with_unanswered_frames_answers_each_once_in_order"
    ),
    "unanswered-skipped-keyed": Mutation(
        _LUA,
        *_SKIPPED,
        "node_manager/test_updates_under_load.py::test_a_keyed_update_with_unanswered_frames_counts_each_event_once_in_order",
    ),
    "answers-leave-one-by-one": Mutation(
        "udo_interface/task.py",
        "        return held(answers) if self.keyed and _query(TaskContext.get()) else answers\n",
        "        return answers\n",
        "udo_interface/test_keyed.py::test_a_task_that_a_limit_reads_from_counts_whole_and_a_partition_that_spark_does_not_run_not_at_all",
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
    "older-attempt-counts": Mutation(
        "runtimes/python/udo_runtime/state/session.py",
        "    if mine is None:\n        return False\n    if label.run",
        "    return False\n    if label.run",
        "engine/test_keyed_engine.py::test_an_older_attempt_that_still_sends_is_stale_also_for_the_next_process",
    ),
    "durable-answer-forgotten": Mutation(
        _KEYED,
        "        if due:\n            self._waiting = due\n",
        "        if not due:\n            self._waiting = due\n",
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
        '*steps, ("EXEC",), ("WAITAOF", 1, 0, wait_ms)])\n'
        "        replies = [state.receive(wait_ms / 1000 + state.default_timeout_s) for _ in range(len(steps) + 3)]\n",
        '*steps, ("EXEC",)])\n'
        "        replies = [*(state.receive(wait_ms / 1000 + state.default_timeout_s) for _ in range(len(steps) + 2)), [1]]\n",
        "node_manager/test_durability.py::test_an_acknowledged_epoch_was_synced_to_the_disk_and_survives_the_kill_of_both_servers",
    ),
    "window-never-closes": Mutation(
        "node_manager/slots/state_rollback.py",
        '"until": time.time() + window_s}',
        '"until": time.time() + 1e6 * window_s}',
        "node_manager/test_going_back.py::test_when_the_rollback_window_has_passed_nothing_is_kept_and_the_former_version_is_refused",
    ),
    "speculation-allowed": Mutation(
        "udo_interface/call.py",
        "            settings.check_keyed(conf)\n            if df.isStreaming:\n",
        "            if df.isStreaming:\n",
        "udo_interface/test_keyed.py::test_the_call_itself_refuses_speculation_for_a_keyed_operator_alone",
    ),
    "speculation-allowed-for-rdds": Mutation(
        "udo_interface/call.py",
        "            settings.check_keyed(conf)\n            keys = Keys(0",
        "            keys = Keys(0",
        "udo_interface/test_keyed.py::test_the_call_itself_refuses_speculation_for_a_keyed_operator_alone",
    ),
    "held-back-answers-not-told": Mutation(
        "udo_interface/call.py",
        "        settings.check(conf, df.isStreaming)\n",
        "",
        "udo_interface/test_streaming.py::test_the_call_itself_warns_of_settings_that_hold_answers_back",
    ),
    "asynchronous-progress-allowed": Mutation(
        "udo_interface/call.py",
        "                progress.watch(df.sparkSession)\n",
        "                pass\n",
        "udo_interface/test_keyed.py::test_asynchronous_progress_tracking_is_refused_before_the_first_event",
    ),
    "restarts-are-retries": Mutation(
        "node_manager/rpc/metrics.py",
        '"udo_restarts": ("restarts"',
        '"udo_restarts": ("retries"',
        "node_manager/test_observe.py::test_each_metric_has_the_value_of_what_it_is_named_after",
    ),
    "collection-races-push": Mutation(
        "registry/http/web.py",
        "            # Still the only writer: no manifest can come to refer to these blobs between the commit and here.\n"
        "            for digest in unused:\n                self.blobs.remove(digest)\n",
        "        for digest in unused:\n            self.blobs.remove(digest)\n",
        "registry/test_safety.py::test_a_push_that_comes_between_a_collections_commit_and_its_removal_of_files_keeps_its_blobs",
        quick=True,
    ),
    "layer-leaves-its-folder": Mutation(
        "udo_protocol/formats/strict_tar.py",
        '    if any(p in ("", ".", "..") for p in parts):',
        '    if any(p in ("", ".") for p in parts):',
        "node_manager/test_layers.py::test_a_hostile_layer_is_refused_with_its_reason_and_leaves_nothing_outside",
    ),
}
