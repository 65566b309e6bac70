"""Background threads: an unexpected error is logged and counted, the work goes on, and no thread is started in another way."""

from __future__ import annotations

import ast
import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import bound, wait_until
from udo_protocol import supervised

ROOT = Path(__file__).parent.parent.parent
PRODUCT = ("node_manager", "registry", "udo_interface", "udo_protocol", "udo_cli", "elasticity", "runtimes/python/udo_runtime")
STARTS = {"Thread", "Timer", "ThreadPoolExecutor", "ProcessPoolExecutor", "start_new_thread", "start_new"}
# Files that start threads in another way, each with the reason why no such thread can end silently.
OTHERWISE = {
    "udo_protocol/supervised.py": "the mechanism itself",
    "node_manager/reconcile/reconcile.py": "bounds how many deployments are worked on at once; what it runs is supervised.run",
    "node_manager/rpc/service.py": "of gRPC: what a call raises goes to its caller (wire.py)",
    "node_manager/rpc/remote.py": "of gRPC: what a call raises goes to its caller (wire.py)",
    "node_manager/rpc/lane_door.py": "answers its client, or logs why it did not",
    "registry/console/asking.py": "its owner waits for the result of each piece of work",
    "udo_interface/store/store.py": "its owner waits for the result of each piece of work",
    "udo_protocol/pouring.py": "its owner waits for the result of each piece of work",
    "udo_cli/conformance/events.py": "part of one case of a command; without it the operator runs into a limit of its own",
    "udo_cli/demo/stream.py": "its owner waits for the result",
    "udo_cli/demo/probe.py": "keeps its error, which the demo raises; the demo lasts a minute",
}
# For each kind of supervised thread: the test that makes it raise, or the reason why nothing has to go on.
KINDS = {
    "server": "tests/node_manager/test_supervised.py::test_the_one_who_looks_after_a_server_goes_on_when_it_raises",
    "relay": "tests/node_manager/test_tls_relay.py::test_who_looks_after_the_relay_goes_on_when_it_raises",
    "slot": "tests/node_manager/test_supervised.py::test_a_slot_goes_on_when_a_step_and_what_follows_it_raise",
    "worker": "tests/node_manager/test_supervised.py::test_a_slot_goes_on_when_a_step_and_what_follows_it_raise",
    "beside": "tests/node_manager/test_supervised.py::test_work_beside_a_slot_that_raises_is_counted",
    "monitor": "tests/node_manager/test_supervised.py::test_slots_are_looked_at_after_looking_at_them_raised",
    "scale-out": "tests/node_manager/test_supervised.py::test_what_stands_prepared_is_kept_fresh_after_a_round_raised",
    "scaling": "what it has not done is decided again",
    "trial": "what it has not shown of an operator's output is shown in the next round",
    "warm-pool": "tests/node_manager/test_supervised.py::test_the_pool_is_filled_after_it_raised",
    "wanted": "tests/node_manager/test_supervised.py::test_each_loop_of_the_reconciler_goes_on_when_it_raises",
    "registry-heartbeat": "tests/node_manager/test_supervised.py::test_each_loop_of_the_reconciler_goes_on_when_it_raises",
    "canaries": "tests/node_manager/test_supervised.py::test_each_loop_of_the_reconciler_goes_on_when_it_raises",
    "conditions": "tests/node_manager/test_supervised.py::test_each_loop_of_the_reconciler_goes_on_when_it_raises",
    "retries": "tests/node_manager/test_supervised.py::test_each_loop_of_the_reconciler_goes_on_when_it_raises",
    "replicas": "tests/node_manager/test_supervised.py::test_each_loop_of_the_reconciler_goes_on_when_it_raises",
    "replica": "tests/node_manager/test_supervised.py::test_a_replica_follows_its_slot_on_when_following_it_raises",
    "reconcile": "tests/node_manager/test_supervised.py::test_each_loop_of_the_reconciler_goes_on_when_it_raises",
    "ahead-of-move": "what it has not read is read when the groups are adopted",
    "free-groups": "memory that it has not freed is freed with its list",
    "move": "tests/node_manager/test_supervised.py::test_a_move_of_key_groups_goes_on_when_a_step_raises",
    "canary": "tests/node_manager/test_supervised.py::test_a_keyed_canary_goes_on_when_it_raises",
    "watch": "tests/node_manager/test_supervised.py::test_an_instance_whose_watching_raises_is_still_reported_when_it_ends",
    "usage": "tests/node_manager/test_drivers.py::test_a_container_whose_sampling_raises_is_sampled_again",
    "logs": "tests/node_manager/test_supervised.py::test_a_slots_log_is_followed_on_when_following_it_raises",
    "diff": "tests/node_manager/test_supervised.py::test_what_one_slots_comparison_raises_ends_the_diff_with_it",
    "record": "tests/node_manager/test_recording_slots.py::test_what_one_slots_stream_raises_ends_the_recording_with_it",
    "state-export": "tests/node_manager/test_state_across.py::test_what_one_nodes_part_raises_ends_the_export_with_it",
    "operator-output": "tests/operators/test_host.py::test_output_is_read_on_after_reading_it_raised",
    "update-deadlines": "tests/registry/test_safety.py::test_deadlines_are_kept_after_looking_after_them_raised",
    "lane-door": "tests/node_manager/test_lane_door.py::test_the_door_is_served_on_after_serving_it_raised",
    "channel": "tests/udo_interface/test_client.py::test_a_channel_that_raises_what_nobody_expected_tells_its_callers",
    "reap": "waits for a child that another thread looks after",
    "asking": "tests/node_manager/test_applications.py::test_asking_and_measuring_go_on_after_they_raised",
    "neighbours": "tests/node_manager/test_applications.py::test_asking_and_measuring_go_on_after_they_raised",
    "applications": "tests/registry/test_safety.py::test_applications_are_decided_about_after_deciding_raised",
    "database-notifications": "tests/registry/test_two_processes.py::test_who_waits_hears_of_commits_after_listening_raised",
    "leave": "a courtesy to the registry at the end, bounded",
    "stop": "lets long polls go at the end; gunicorn's own time-out ends them otherwise",
}


@pytest.fixture
def over(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """An event that ends what a test leaves running."""
    monkeypatch.setattr(supervised, "PAUSE_FIRST_S", 0.001)
    event = threading.Event()
    yield event
    event.set()


def test_work_that_raises_is_begun_again_until_it_returns_and_each_error_is_counted(
    over: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    raised: list[BaseException] = [RuntimeError("first"), SystemExit(3), KeyError("third")]
    before = supervised.errors().get("test-kept", 0)

    def work() -> None:
        if raised:
            raise raised.pop(0)

    with caplog.at_level(logging.ERROR):
        thread = supervised.keep("test-kept", work, over, "d:0")
        thread.join(bound(10))

    assert not thread.is_alive() and thread.name == "test-kept-d:0"
    assert supervised.errors()["test-kept"] - before == 3
    assert "test-kept d:0" in caplog.text and "RuntimeError: first" in caplog.text and "Traceback" in caplog.text


def test_work_that_raises_for_ever_ends_when_it_is_over(over: threading.Event) -> None:
    def work() -> None:
        raise RuntimeError("again")

    thread = supervised.keep("test-ending", work, over)
    wait_until(lambda: supervised.errors().get("test-ending", 0) > 2, 10, "some errors")
    over.set()
    thread.join(bound(20))
    assert not thread.is_alive()


def test_work_that_is_done_once_is_counted_when_it_raises() -> None:
    supervised.once("test-once", lambda: 1 / 0).join(bound(10))
    assert supervised.errors()["test-once"] == 1


def _calls(path: Path) -> Iterator[tuple[str, ast.Call]]:
    """(name of the function called, without its module; the call)."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            yield node.func.id if isinstance(node.func, ast.Name) else node.func.attr, node


def _product() -> list[Path]:
    return [p for top in PRODUCT for p in (ROOT / top).rglob("*.py") if "templates" not in p.parts]


def test_every_thread_of_the_product_is_supervised_or_has_a_reason() -> None:
    found = {str(p.relative_to(ROOT)) for p in _product() if any(name in STARTS for name, _ in _calls(p))}
    derived = [p for p in _product() if "(Thread)" in p.read_text("utf-8") or "(threading.Thread)" in p.read_text("utf-8")]
    assert found == set(OTHERWISE)
    assert derived == []


def test_every_kind_of_supervised_thread_is_made_to_raise() -> None:
    kinds: set[str] = set()
    for path in _product():
        for name, call in _calls(path):
            if name in ("keep", "once", "run") and isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value) == "supervised":
                kinds.add(call.args[0].value if isinstance(call.args[0], ast.Constant) else "")
    # Not constants of a call: the names of the reconciler's threads, in a loop, and of a worker, in its class.
    kinds = (kinds - {""}) | {"wanted", "registry-heartbeat", "canaries", "conditions", "retries", "replicas", "reconcile"}
    kinds |= {"slot", "worker"}
    assert kinds == set(KINDS)
    for test in KINDS.values():
        if "::" in test:
            file, name = test.split("::")
            assert f"def {name}(" in (ROOT / file).read_text("utf-8"), test
