"""Abandoned work: frames of closed lanes are not processed, and other lanes' frames are answered."""

from __future__ import annotations

from collections.abc import Callable

from tests.conftest import Servers, wait_until
from tests.runtime.conftest import Process
from tests.support.counters import an_attempt, counter
from tests.support.stateless import collect, lane, send
from udo_protocol.queue.frame import ANSWER

Start = Callable[..., Process]
# Logs its events, and works until `go` exists, and for longer than an instance considers a lane open without a check.
NOTES = """
import time
from pathlib import Path
from udo_runtime import Operator
class run(Operator):
    def process(self, event, ctx):
        with open("seen", "a") as f: f.write(f"{list(event.values())[0]}\\n")
        began = time.monotonic()
        while not Path("go").exists() or time.monotonic() - began < 0.12: time.sleep(0.005)
        yield {"b": event["a"]} if "a" in event else {"k": event["k"], "n": 1}
"""


def seen(process: Process) -> list[str]:
    file = process.log.parent / "seen"
    return file.read_text().split() if file.exists() else []


def go(process: Process) -> None:
    (process.log.parent / "go").touch()


def test_frames_of_a_lane_that_was_closed_are_not_processed_and_others_are_answered(start: Start, servers: Servers) -> None:
    process = start(NOTES, "op:run")
    cancelled, other = lane(servers, "cancelled"), lane(servers, "other")
    for n in range(1, 6):
        send(cancelled, n, [n])
    send(other, 1, [100])
    wait_until(lambda: seen(process) == ["1"], 20, "the first frame to be under way")
    cancelled.close()
    go(process)
    [answer] = collect(other, 1)
    assert answer.header.kind == ANSWER
    assert seen(process) == ["1", "100"]


def test_a_keyed_attempt_whose_lane_was_closed_is_not_processed_and_the_next_one_counts(start: Start, servers: Servers) -> None:
    process = counter(start, NOTES, "op:run")
    cancelled, again = an_attempt(servers, 0, 0), an_attempt(servers, 0, 1)
    for key in "abc":
        cancelled.send([key])
    cancelled.end()
    wait_until(lambda: seen(process) == ["a"], 20, "the first frame to be under way")
    cancelled.lane.close()
    again.send(["d"])
    again.end()
    go(process)
    assert again.answers() == [("d", 1)]
    assert seen(process) == ["a", "d"]
