"""A keyed operator on the local platform, and its state as the command line shows it."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import Shell
from tests.support.attempt import Attempt
from udo_protocol.limits import KEY_GROUPS
from udo_protocol.node.api import NodeClient, connect_node

MANIFEST = """
name = "visits"
version = "{version}"
entry = "op:Count"
key = "a"
state_version = {state_version}
[input]
a = "int64"
[output]
b = "int64"
"""
COUNT = """
import datetime as dt
from udo_runtime import Operator
class Count(Operator):
    def process(self, event, ctx):
        n = ctx.state["n"] = ctx.state.get("n", 0) + 1
        if event["a"] == 7: ctx.expire(dt.datetime(2030, 1, 1))
        yield {"b": n}
"""
ONE, TWO = "11111111-aaaa", "22222222-bbbb"


def write(folder: Path, version: str = "1", state_version: int = 0) -> Path:
    folder.mkdir()
    (folder / "operator.toml").write_text(MANIFEST.format(version=version, state_version=state_version))
    (folder / "op.py").write_text(COUNT)
    return folder


def run(node: NodeClient, session: str, epoch: int, keys: list[int], run: str = "r1") -> list[int]:
    """Run an epoch of a query with a single partition, and return its answers."""
    return Attempt.at_node(node, "visits", session, epoch, epoch + 1, run, groups=range(KEY_GROUPS)).run(keys)


def sessions(platform: Shell) -> dict[str, dict[str, object]]:
    return {s["session"]: s for s in platform("state", "ls", "visits", "--json").json}


def show(platform: Shell, session: str, *args: str) -> dict[int, int]:
    return {e["key"]: e["state"]["n"] for e in platform("state", "show", "visits", session, "--json", *args).json["entries"]}


def deployed(platform: Shell, directory: Path) -> NodeClient:
    """Deploy `visits`, and run epochs 0 and 1 of session ONE, which is then not in use: it has no lane."""
    platform("push", write(directory))
    platform("deploy", "visits@1")
    node = connect_node(platform.home / "node" / "node.sock")
    run(node, ONE, 0, [1, 2, 7])
    run(node, ONE, 1, [1])
    return node
