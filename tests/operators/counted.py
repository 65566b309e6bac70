"""The sample `count` of an SDK on a node, and the same operator in Python: it counts by key."""

from __future__ import annotations

import json

import pyarrow as pa

from tests.node_manager.conftest import Daemon, put_image
from tests.operators.sdks import Sdk
from tests.support.attempt import Attempt, group_of
from udo_protocol.queue.frame import DATA

COUNT = {"input": {"id": "int64", "k": "int64"}, "output": {"id": "int64", "k": "int64", "n": "int64"}, "key": ["k"]}
PYTHON_COUNT = """
from udo_runtime import Operator
class Count(Operator):
    def process(self, event, ctx):
        n = ctx.state["n"] = ctx.state.get("n", 0) + 1
        yield {**event, "n": n}
"""


def put(daemon: Daemon, sdk: Sdk, sample: str, *arguments: str, rehearsed: object = None, **manifest: object) -> str:
    """Put an operator that is a command, with these events for its rehearsal if any, into the node's image cache; return its digest."""
    more = {"rehearse": "events.json"} if rehearsed else {}
    command = [*sdk.starting(sample), *arguments]
    digest = put_image(daemon.home, "", entry="", runtime="exec", command=command, **more, **manifest)  # type: ignore[arg-type]
    code = daemon.home / "images" / digest.replace(":", "-") / "code"
    sdk.put(code)
    if rehearsed:
        (code / "events.json").write_text(json.dumps(rehearsed))
    return digest


def counted(daemon: Daemon, epoch: int, keys: list[int]) -> list[int]:
    attempt = Attempt.at_node(daemon.api, "d", "s", epoch, epoch)
    groups = pa.array(map(group_of, keys), pa.int32())
    attempt.push(DATA, pa.record_batch([range(len(keys)), keys, groups], schema=attempt.input), rows=len(keys))
    attempt.end()
    answers = attempt.answers()
    attempt.close()
    assert [(i, k) for i, k, _ in answers] == list(enumerate(keys))
    return [n for _, _, n in answers]
