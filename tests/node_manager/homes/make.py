"""Make a home as this release leaves it: python -m tests.node_manager.homes.make FILE.tar.xz. Run it before the format changes.

The home has a stateless deployment, and a keyed one with three sessions (one in the middle of an epoch, one with a space in its name), a
dead letter and an update to another state version. Files that are secret or bound to this machine are left out.
"""

from __future__ import annotations

import json
import sys
import tarfile
import tempfile
from itertools import count
from pathlib import Path

from tests.node_manager.conftest import Daemon, put_image
from tests.support.attempt import Attempt
from tests.support.keyed_node import KEYED, imported

COUNT = """
from udo_runtime import Operator
class Count(Operator):
    def migrate(self, state, from_version):
        return {{"count": state["n"]}}
    def process(self, event, ctx):
        if event["a"] == 13: raise ValueError("unlucky")
        n = ctx.state["{name}"] = ctx.state.get("{name}", 0) + 1
        yield {{"b": n}}
"""
DOUBLE = """
from udo_runtime import operator
@operator
def run(batch):
    return {"b": [2 * a for a in batch.column("a").to_pylist()]}
"""
POLICY = json.dumps({"policy": "dead-letter"})
_KEPT = ("home/images", "home/servers/state/appendonlydir", "home/wanted.json", "home/format.json")


def fill(daemon: Daemon) -> None:
    """Use the node as its callers would."""
    numbers = count(1)

    def attempt(session: str, epoch: int, run: str = "r1") -> Attempt:
        return Attempt.at_node(daemon.api, "d", session, epoch, next(numbers), run)

    digest = put_image(daemon.home, DOUBLE, name="double")
    daemon.api.deploy("s", "double", "1", digest, "{}", 30_000)
    daemon.deploy(COUNT.format(name="n"), config_json=POLICY, **KEYED)
    imported(daemon, "moved", {1: 100, 2: 200}, 6)
    imported(daemon, "two words", {4: 40}, 6)
    assert attempt("moved", 7).run([1, 2, 3]) == [101, 201, 1]
    for epoch, keys in enumerate(([1, 2, 1], [1, 5, 13], [1])):
        attempt("q1", epoch).run(keys)
    attempt("q1", 3, "r2").run([2])
    newer = put_image(daemon.home, COUNT.format(name="count"), version="2", state_version=1, migrates_from=[0], **KEYED)
    assert [step.phase for step in daemon.api.update("d", "2", newer, POLICY, 60_000)][-1] == "done"
    attempt("q1", 4, "r2").run([1, 2])
    attempt("q1", 5, "r2").run([1, 9])
    assert attempt("two words", 7).run([4]) == [41]
    unfinished = attempt("q1", 6, "r2")
    unfinished.send([1, 1])
    assert unfinished.answers() == [7, 8]
    unfinished.close()


def main(file: str) -> None:
    """Write the archive."""
    with tempfile.TemporaryDirectory(prefix="udo-") as top:
        daemon = Daemon(Path(top) / "h").start("--session-idle-s", "0")
        try:
            fill(daemon)
        finally:
            daemon.stop()
        with tarfile.open(file, "w:xz") as archive:
            for name in _KEPT:
                if (path := daemon.home / name.removeprefix("home/")).exists():
                    archive.add(path, name)


if __name__ == "__main__":
    main(sys.argv[1])
