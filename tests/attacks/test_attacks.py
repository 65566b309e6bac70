"""Attacks by a hostile operator on a real platform, with every driver: each attack that the driver claims to prevent is prevented."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.verification import attacks
from node_manager.drivers.base import Capabilities
from node_manager.drivers.sandbox import PROGRAM
from node_manager.servers.binaries import find_server
from tests.conftest import bound, require
from tests.support.docker_daemon import Daemon
from udo_cli.commands.node import CAPABILITIES
from udo_protocol.errors import Unavailable

pytestmark = pytest.mark.long
# The first attack on each driver capability. Attacks on the caller are left out: their answers are refused under every driver.
_FIRST = {by: name for name, by in reversed(attacks.ATTACKS.items()) if by != attacks.CALLER}
SANDBOX = tuple(name for name in attacks.NAMES if name in _FIRST.values())

ROOT = Path(__file__).parents[2]


def attack(*options: str, **environment: str) -> dict[str, Any]:
    """Return the record of a run, which must be valid."""
    try:
        find_server(os.environ.get("UDO_SERVER"))
    except Unavailable as e:
        require("queue server", str(e))
    command = [sys.executable, "-m", "benchmarks", "attacks", "--quick", "--json", *options]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=bound(500), env={**os.environ, **environment}, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return dict(json.loads(done.stdout.splitlines()[-1]))


def only(names: Iterable[str]) -> list[str]:
    """Return the benchmark's options that select these attacks: the others are tried elsewhere here, or do not depend on the driver."""
    return [f"--only={name}" for name in names]


@pytest.mark.parametrize("names", [pytest.param(SANDBOX, marks=pytest.mark.short), attacks.NAMES], ids=["sandbox", "all"])
def test_a_sandboxed_process_gets_nowhere(names: Sequence[str]) -> None:
    if shutil.which(PROGRAM) is None:
        require("bubblewrap", "apt-get install -y --no-install-recommends bubblewrap")
    found = attack(*only(names))
    assert (found["blocked"], found["achieved"]) == (list(names), {}), found["capabilities"]["remark"]


def test_landlock_keeps_a_process_from_files_and_from_other_peoples_keys() -> None:
    claimed = ("write_root", "read_host_files", "other_keys", "config", "flushall", "memory_bomb", *attacks.OWN_KEYS)
    found = attack(*only(claimed), PATH=str(Path(sys.executable).parent))  # where there is no bubblewrap
    if "sandbox: Landlock" not in found["capabilities"]["remark"]:
        require("Landlock", found["capabilities"]["remark"])
    assert sorted(found["blocked"]) == sorted(claimed), found["achieved"]


def test_a_process_without_a_sandbox_is_as_open_as_its_driver_says() -> None:
    # other_keys: with passwords from files that its user may read; its own login opens nothing.
    open_to_it = ("tcp_socket", "write_root", "read_host_files", "kill_neighbour", "other_keys")
    kept_from_it = ("memory_bomb", *attacks.OWN_KEYS)
    found = attack("--sandbox", "none", *only((*open_to_it, *kept_from_it)))
    assert sorted(found["blocked"]) == sorted(kept_from_it), found["achieved"]
    assert sorted(found["not_isolated"]) == sorted(open_to_it)
    assert not any(found["capabilities"][attacks.ATTACKS[a]] for a in found["not_isolated"])


def test_a_container_gets_nowhere(docker: Daemon, runtime_image: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", docker.host)
    found = attack("--driver", "docker")
    assert (found["blocked"], found["achieved"]) == (list(attacks.NAMES), {})


def own_process(*options: str) -> None:
    """Try the driver's limits, UDP, and lies to the caller, by an operator in a process of its own; test_own_process.py tries the rest."""
    tried = [a for a, by in attacks.ATTACKS.items() if by == attacks.CALLER or by.endswith("_limit") or a == "udp_socket"]
    found = attack("--isolation", "process", *only(tried), *options)
    assert (found["blocked"], found["achieved"]) == (tried, {}), found["capabilities"]["remark"]


def test_a_sandboxed_process_of_its_own_gets_nowhere_and_lies_to_its_engine_in_vain() -> None:
    if shutil.which(PROGRAM) is None:
        require("bubblewrap", "apt-get install -y --no-install-recommends bubblewrap")
    own_process()


def test_a_container_of_its_own_gets_nowhere_and_lies_to_its_engine_in_vain(
    docker: Daemon, runtime_image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", docker.host)
    own_process("--driver", "docker")


@pytest.mark.short
def test_every_attack_is_about_a_capability_and_every_capability_has_words() -> None:
    known = set(Capabilities.__dataclass_fields__)
    assert set(attacks.ATTACKS.values()) - {attacks.CALLER} <= known
    assert set(CAPABILITIES) == known - {"remark"}


def test_a_driver_that_claims_what_it_does_not_do_is_caught() -> None:
    assert attacks._state("it reached 127.0.0.1", True) == "succeeded"
    assert attacks._state("it reached 127.0.0.1", False) == "not_isolated"
    assert attacks._state("", True) == attacks._state("", False) == "blocked"
