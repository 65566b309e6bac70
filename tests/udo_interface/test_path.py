"""docs/design/path.md lists the files that a frame passes: those that it does pass, on both sides."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tests.conftest import bound
from udo_interface import connect
from udo_interface.lane.opening import KeyedCall, Request, conversations
from udo_interface.lane.split import SplitExchange
from udo_protocol.formats.schema import GROUP_COLUMN

if TYPE_CHECKING:
    from tests.udo_interface.conftest import Platform

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "design" / "path.md"
# The operator's process: the files passed between two of its calls, as its answer.
TELLS = """
passed = set()
def tell(frame, event, arg):
    if event == "call":
        passed.add(frame.f_code.co_filename.partition("/runtime/")[2])
def told():
    return " ".join(sorted(name for name in passed if name.startswith("udo_")))
"""
FRAMES = f"""
import sys
import pyarrow as pa
from udo_runtime import operator
{TELLS}
calls = 0
@operator
def run(batch):
    global calls
    calls += 1
    sys.setprofile(tell if 3 <= calls < 20 else None)
    return pa.record_batch({{"passed": [told()] * batch.num_rows}})
"""
EPOCHS = f"""
import sys
from udo_runtime import Operator
{TELLS}
class run(Operator):
    def process(self, event, ctx):
        n = ctx.state["n"] = ctx.state.get("n", 0) + 1
        sys.setprofile(tell if n == 3 else None)
        yield {{"passed": told()}}
"""


class Passed(set[str]):
    """The product's files in which a function was called, in any thread, while `on`."""

    on = False

    def tell(self, frame: FrameType, event: str, arg: Any) -> None:
        """The function to be given to sys.setprofile."""
        name = frame.f_code.co_filename
        if self.on and event == "call" and name.startswith(f"{ROOT}/udo_"):
            self.add(name[len(f"{ROOT}/") :])


@contextmanager
def profiled() -> Iterator[Passed]:
    passed = Passed()
    threading.setprofile(passed.tell)
    sys.setprofile(passed.tell)
    try:
        yield passed
    finally:
        threading.setprofile(None)  # type: ignore[arg-type]
        sys.setprofile(None)


def listed(heading: str) -> set[str]:
    """The files in the table below that heading of the page."""
    section = re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)
    (found,) = (part for part in section if part.startswith(f"{heading}\n"))
    return set(re.findall(r"^\| `([a-z_/]+\.py)` \|", found, re.MULTILINE))


def on_the_path(told: str, caller: set[str], heading: str, *others: str) -> None:
    """Compare the files passed by an instance, `told`, and its caller with the table below this heading of the page."""
    found = set(told.split()) | caller
    missing, more = listed(heading) - found, found.difference(*map(listed, (heading, *others, "Now and then")))
    assert not missing and not more, f"listed, and not passed: {sorted(missing)}; passed, and not listed: {sorted(more)}"


def test_a_frame_passes_the_files_that_the_page_lists(platform: Platform) -> None:
    name = platform.operator(FRAMES, output={"passed": "string"})
    answers: list[str] = []
    came = threading.Semaphore(0)

    def answered(answer: pa.RecordBatch) -> None:
        answers.extend(answer.column("passed").to_pylist())
        came.release()

    with profiled() as passed, connect(name, node=platform.node) as client:
        client.add_listener(answered, batches=True)
        for n in range(25):
            passed.on = 5 <= n < 20
            client.send({"id": n})
            assert came.acquire(timeout=bound(30))
    on_the_path(answers[-1], passed, "A frame of a stateless operator")


def test_the_end_of_an_epoch_passes_the_files_that_the_page_lists(platform: Platform) -> None:
    name = platform.operator(EPOCHS, key="id", output={"passed": "string"})
    sent = pa.schema([("id", pa.int64()), (GROUP_COLUMN, pa.int32())])
    back = pa.schema([("passed", pa.string())])
    answers: list[str] = []
    with profiled() as passed:
        for epoch in range(5):
            request = Request(name, "q", 0, epoch + 1, epoch, keyed=KeyedCall("r", "call", tuple(range(128))))
            with conversations(platform.node, request, sent, back) as (lanes, opened):
                batch = pa.record_batch([[7], pa.array([3], pa.int32())], schema=sent)
                split = SplitExchange(lanes, opened.group_slots or (0,), opened.place.window_frames, open_lane=opened.open_lane)
                passed.on = epoch == 3
                for _, answer in split.run(iter([(batch, None)])):
                    answers += answer.column("passed").to_pylist()
                passed.on = False
    on_the_path(answers[-1], passed, "What an END adds", "A frame of a stateless operator")
