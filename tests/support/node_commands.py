"""Commands on a platform of several nodes."""

from __future__ import annotations

import json
from typing import Any

from click.testing import CliRunner, Result

from tests.support.nodes import Nodes
from udo_cli.main import cli


def udo(c: Nodes, *words: object, code: int = 0) -> Any:
    """Run a command that asks node a; return its JSON, or its output if the expected exit code is not 0."""
    json_too = [] if code else ["--json"]
    done = _run(c, *words, *json_too)
    assert done.exit_code == code, done.output
    return done.output if code else json.loads(done.stdout)


def told(c: Nodes, *words: object) -> str:
    """Run a command that asks node a; return all that it prints."""
    done = _run(c, *words)
    assert done.exit_code == 0, done.output
    return done.output


def _run(c: Nodes, *words: object) -> Result:
    env = {"REGISTRY": c.registry.url, "TOKEN_FILE": str(c.registry.data / "token"), "NODE": c.address("a"), "TLS": str(c.tls.ca.parent)}
    return CliRunner().invoke(cli, [*map(str, words)], env={f"UDO_{name}": value for name, value in env.items()})
