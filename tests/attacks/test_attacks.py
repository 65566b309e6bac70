"""A hostile operator on a real platform: what a driver claims to prevent is prevented, with every driver there is."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import attacks, pushed
from node_manager.drivers.base import Capabilities
from node_manager.drivers.sandbox import PROGRAM
from node_manager.servers.binaries import find_server
from tests.conftest import require
from tests.support.docker_daemon import Daemon
from udo_cli.commands.node import CAPABILITIES
from udo_protocol.errors import Unavailable

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]


def attack(*options: str, **environment: str) -> dict[str, Any]:
    """The record of a run, which must be valid."""
    try:
        find_server(os.environ.get("UDO_SERVER"))
    except Unavailable as e:
        require("queue server", str(e))
    command = [sys.executable, "-m", "benchmarks", "attacks", "--quick", "--json", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, env={**os.environ, **environment}, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.short
def test_a_sandboxed_process_gets_nowhere() -> None:
    if shutil.which(PROGRAM) is None:
        require("bubblewrap", "apt-get install -y --no-install-recommends bubblewrap")
    found = attack()
    assert (found["blocked"], found["achieved"]) == (list(attacks.NAMES), {}), found["capabilities"]["remark"]


def test_landlock_keeps_a_process_from_files_and_from_other_peoples_keys() -> None:
    found = attack(PATH=str(Path(sys.executable).parent))  # where there is no bubblewrap
    if "sandbox: Landlock" not in found["capabilities"]["remark"]:
        require("Landlock", found["capabilities"]["remark"])
    blocked = {"write_root", "read_host_files", "other_keys", "config", "flushall", "memory_bomb", *attacks.OWN_KEYS}
    assert blocked <= set(found["blocked"]), found["achieved"]


def test_a_process_without_a_sandbox_is_as_open_as_its_driver_says() -> None:
    found = attack("--sandbox", "none")
    caller = {a for a, by in attacks.ATTACKS.items() if by == attacks.CALLER}
    assert {"memory_bomb", *attacks.OWN_KEYS, *pushed.WORDS, *caller} <= set(found["blocked"]), found["achieved"]
    # By the passwords that its user may read; its own opens nothing.
    assert {"tcp_socket", "write_root", "read_host_files", "kill_neighbour", "other_keys"} <= set(found["not_isolated"])
    assert not any(found["capabilities"][attacks.ATTACKS[a]] for a in found["not_isolated"])


def test_a_container_gets_nowhere(docker: Daemon, runtime_image: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", docker.host)
    found = attack("--driver", "docker")
    assert (found["blocked"], found["achieved"]) == (list(attacks.NAMES), {})


@pytest.mark.short
def test_every_attack_is_about_a_capability_and_every_capability_has_words() -> None:
    known = set(Capabilities.__dataclass_fields__)
    assert set(attacks.ATTACKS.values()) - {attacks.CALLER} <= known
    assert set(CAPABILITIES) == known - {"remark"}


def test_a_driver_that_claims_what_it_does_not_do_is_caught() -> None:
    assert attacks._state("it reached 127.0.0.1", True) == "succeeded"
    assert attacks._state("it reached 127.0.0.1", False) == "not_isolated"
    assert attacks._state("", True) == attacks._state("", False) == "blocked"
