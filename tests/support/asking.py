"""A call of a deployment on a local platform."""

from __future__ import annotations

import threading

from tests.cli.conftest import Shell
from udo_interface import connect


def ask(platform: Shell, deployment: str, a: int) -> int:
    """Send one event to the deployment, and return its answer."""
    answers: list[dict[str, int]] = []
    came = threading.Event()
    with connect(deployment, node=str(platform.home / "node" / "node.sock")) as client:
        client.add_listener(lambda answer: (answers.append(answer), came.set()))
        client.send({"a": a})
        client.flush(30)
    return answers[0]["b"]
