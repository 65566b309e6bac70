"""The places where an operator runs: a trial with `udo test`, and an instance on a node."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tests.cli.conftest import Done, Shell
from tests.node_manager.conftest import Daemon, put_image
from udo_interface import connect

Event = Mapping[str, Any]
OPERATOR_FAILED = 6


class Place(Protocol):
    """Somewhere that the operator in a folder runs; the rest of its manifest is given as keywords."""

    def answers(self, code: Path, events: Sequence[Event], env: Mapping[str, str] | None = None, **manifest: Any) -> list[Any]:
        """Return the answers to the events; the operator's process must not have ended."""

    def failures(self, code: Path, good: Event, bad: Sequence[Event], **manifest: Any) -> list[str]:
        """Return the reason why each bad event failed; between them and after them, `good` must have been answered."""


def python(folder: Path, source: str) -> Path:
    """Write an operator in Python into a folder."""
    folder.mkdir(exist_ok=True)
    (folder / "op.py").write_text(source)
    return folder


@dataclass(frozen=True)
class Trial:
    """A trial with `udo test`, in the operator's folder."""

    home: Path

    def answers(self, code: Path, events: Sequence[Event], env: Mapping[str, str] | None = None, **manifest: Any) -> list[Any]:
        given = [word for name, value in (env or {}).items() for word in ("--env", f"{name}={value}")]
        return self._tried(code, events, manifest, *given, "--json").json["answers"]  # type: ignore[no-any-return]

    def failures(self, code: Path, good: Event, bad: Sequence[Event], **manifest: Any) -> list[str]:
        return [self._tried(code, [good, event], manifest, code=OPERATOR_FAILED).err for event in bad]

    def _tried(self, folder: Path, events: Sequence[Event], manifest: Mapping[str, Any], *options: str, code: int = 0) -> Done:
        (folder / "operator.toml").write_text(_toml({"name": "t", "version": "1", **manifest}))
        (folder / "events.json").write_text(json.dumps(events))
        return Shell(self.home)("test", folder, *options, code=code)


@dataclass(frozen=True)
class Node:
    """An instance on a node; an operator is deployed as `d`."""

    daemon: Daemon

    def answers(self, code: Path, events: Sequence[Event], env: Mapping[str, str] | None = None, **manifest: Any) -> list[Any]:
        self._deploy(code, manifest, env=dict(env or {}))
        return self._sent(events)

    def failures(self, code: Path, good: Event, bad: Sequence[Event], **manifest: Any) -> list[str]:
        self._deploy(code, manifest, policy="dead-letter")
        answered = self._sent([event for one in bad for event in (good, one)] + [good])
        assert len(answered) == len(bad) + 1, answered
        letters = {letter.event: letter.reason for letter in self.daemon.api.dead_letters("d", whole=True)}
        return [letters[json.dumps(event)] for event in bad]

    def _deploy(self, code: Path, manifest: Mapping[str, Any], **config: Any) -> None:
        digest = put_image(self.daemon.home, "", **manifest)
        shutil.copytree(code, self.daemon.home / "images" / digest.replace(":", "-") / "code", dirs_exist_ok=True)
        self.daemon.api.deploy("d", "t", "1", digest, json.dumps(config), 60_000)

    def _sent(self, events: Sequence[Event]) -> list[Any]:
        got: list[Any] = []
        with connect("d", node=str(self.daemon.home / "node.sock")) as client:
            client.add_listener(got.append)
            for event in events:
                client.send(dict(event))
        assert self.daemon.slot().restarts == 0, self.daemon.slot().last_error
        return got


def _toml(fields: Mapping[str, Any]) -> str:
    """Write fields as TOML: strings, numbers and lists as JSON has them, a mapping as a table."""
    plain = "".join(f"{name} = {json.dumps(value)}\n" for name, value in fields.items() if not isinstance(value, Mapping))
    return plain + "".join(f"[{name}]\n{_toml(value)}" for name, value in fields.items() if isinstance(value, Mapping))
