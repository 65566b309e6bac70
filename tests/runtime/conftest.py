"""Starts real operator processes without a node manager: bootstrap, assignment, promotion."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import udo_runtime

import udo_protocol
from tests.conftest import Servers
from tests.support import forked
from tests.support.forked import Forked
from udo_protocol.formats.schema import to_ipc
from udo_protocol.queue import keys, slot
from udo_protocol.queue.keys import SlotKeys

P = SlotKeys("t", 0)
IN = pa.schema([("a", pa.int64())])
OUT = pa.schema([("b", pa.int64())])


@dataclass
class Process:
    """A started instance and its ready report."""

    process: Forked
    token: int
    report: dict[str, Any] | None
    log: Path = field(repr=False)


@pytest.fixture
def start(servers: Servers, tmp_path: Path) -> Iterator[Callable[..., Process]]:
    """start(source, entry=..., promote=True) runs an operator given as source text."""
    queue, state = servers.queue(), servers.state()
    queue.call("SET", keys.HEARTBEAT, 1, "PX", 600_000)  # long enough for a busy machine
    started: list[Process] = []

    def run(
        source: str,
        entry: str = "op:flag",
        promote: bool = True,
        schemas: tuple[pa.Schema, pa.Schema] = (IN, OUT),
        keyed: dict[str, Any] | None = None,
        follow: str = "",  # a StateSource
        policy: str = "fail",
        session: bool = True,  # a session of its own, as under a node manager: an instance may lower the priority of its session
        **limits: int,
    ) -> Process:
        name = f"i{len(started)}"
        code = tmp_path / name
        code.mkdir()
        (code / "op.py").write_text(source)
        paths = {str(Path(m.__file__ or "").parent.parent) for m in (udo_runtime, udo_protocol, pa)}
        env = {
            "PATH": os.environ["PATH"],
            "UDO_INSTANCE": name,
            "UDO_QUEUE_SOCKET": servers.queue_socket,
            "UDO_PYTHONPATH": os.pathsep.join(sorted(paths)),
        }
        with (code / "log").open("ab") as log:
            p = forked.start(forked.INSTANCE, environment=env, directory=code, output=(log.fileno(), log.fileno()), session=session)
        token = slot.next_token(state, P)
        assignment = {
            "instance": name,
            "token": token,
            "prefix": P.prefix,
            "queue_socket": servers.queue_socket,
            "state_socket": servers.state_socket,
            "operator": "t",
            "version": str(len(started) + 1),
            "digest": "sha256:0",
            "entry": entry,
            "path": [str(code)],
            "input": base64.b64encode(to_ipc(schemas[0])).decode(),
            "output": base64.b64encode(to_ipc(schemas[1])).decode(),
            "keyed": keyed,
            "follow": follow,
            "policy": policy,
            "env": {"GREETING": "hello"},
            "secrets": {},
            "limits": limits,
        }
        queue.call("RPUSH", keys.warm(name), json.dumps(assignment))
        result = Process(p, token, None, code / "log")
        started.append(result)
        result.report = slot.ready(queue, P, name, 30_000)
        if follow and result.report and result.report["ok"]:
            result.report = slot.ready(queue, P, name, 30_000)  # the first report: loaded; this one: has the state
        if promote and result.report and result.report["ok"]:
            slot.promote(state, queue, P, token)
        return result

    yield run
    for s in started:
        s.process.kill()
        s.process.wait()
