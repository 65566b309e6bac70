"""A keyed operator on a node, and imports of state."""

from __future__ import annotations

from pathlib import Path

from udo_runtime.state.codec import pack
from udo_runtime.state.groups import Group

from tests.node_manager.conftest import Daemon
from tests.support.attempt import GROUPS
from udo_cli import state_file
from udo_protocol.node.api import NodeClient
from udo_protocol.proto import node_manager_pb2 as pb

COUNT = """
from udo_runtime import Operator
class Count(Operator):
    def process(self, event, ctx):
        n = ctx.state["n"] = ctx.state.get("n", 0) + 1
        yield {"b": n}
"""
KEYED = {"entry": "op:Count", "input": {"a": "int64"}, "output": {"b": "int64"}, "key": ["a"]}


def imported(daemon: Daemon, session: str, values: dict[int, int], last_ended: int, **header: object) -> pb.StateImportReply:
    """Import counts as the state after epoch `last_ended`."""
    fields = {"key": [pb.KeyColumn(name="a", type="int64")], "key_groups": 128, "deployment": "d", **header}
    yielded = [pb.StatePart(header=pb.StateHeader(session=session, last_ended=last_ended, **fields))]  # type: ignore[arg-type]
    for n in GROUPS:
        mine = {pack(k): pack({"n": v}) for k, v in values.items() if k % len(GROUPS) == n}
        group = Group.imported(last_ended, True, mine, {})
        for kind, data in ((pb.StatePiece.META, group.meta()), (pb.StatePiece.BASE, group.snapshot())):
            yielded += [
                pb.StatePart(piece=pb.StatePiece(group=n, kind=kind, data=data[:3], more=True)),
                pb.StatePart(piece=pb.StatePiece(group=n, kind=kind, data=data[3:])),
            ]
    return daemon.api.import_state(iter(yielded))


def exported(api: NodeClient, file: Path, deployment: str = "d", session: str = "q") -> state_file.Summary:
    """Write a session to a file, as `udo state export` does."""
    parts = api.export_state(deployment, session)
    header = next(parts).header
    return state_file.write(file, header, state_file.ended_groups(parts, header.state_version))
