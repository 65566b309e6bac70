"""`udo dev`: the steps on each save of an operator's folder. Its samples are run first; a save that fails them is not deployed.

A save becomes a version of its own, named by its content (`1-dev.1f0c3a9b`), and goes live as every update does: queries run on, and if
the version does not load, the former one continues to answer. Versions of this run that are no longer needed are deleted.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from udo_cli import events as samples
from udo_cli.exits import exit_for
from udo_cli.options.given import OperatorConfig
from udo_cli.packing import bases, build, layers, provenance, tried
from udo_cli.packing.upload import upload
from udo_cli.platform import remote, throwaway
from udo_cli.settings import CliSettings
from udo_protocol.errors import Conflict, NotFound, UdoError
from udo_protocol.formats import manifest as manifests
from udo_protocol.registry.api import Registry

Say = Callable[[str], None]
# Quicker than a user moves from the editor to the other window, and negligible for a disk.
LOOK_S = 0.25
WAIT_S = 120.0
BATCH_ROWS = 10_000
# The manifest's version is cut to this length: with the suffix `-dev....` a version may have 63 characters.
_MOST_NAME = 48


@dataclass(frozen=True)
class Given:
    """The configuration that the deployment gets in addition to the code."""

    env: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, Path] = field(default_factory=dict)

    def contents(self) -> dict[str, bytes]:
        """Read the files anew, so that an edited model takes effect at once. NotFound for a missing file."""
        try:
            return {inside: path.read_bytes() for inside, path in self.files.items()}
        except FileNotFoundError as e:
            raise NotFound(f"there is no file {e.filename}") from None


Seen = tuple[tuple[str, int, int], ...]


def look(directory: Path, given: Given) -> Seen:
    """(path, time in ns, bytes) of each file that a version is made of. A file that vanishes meanwhile is left out."""
    found = []
    for name, path in [*layers.files_of(directory, command=True), *((str(p), p) for p in given.files.values())]:
        with suppress(FileNotFoundError):
            stat = path.stat()
            found.append((name, stat.st_mtime_ns, stat.st_size))
    return tuple(found)


def changed(directory: Path, given: Given, before: Seen, pause: Callable[[float], None] = time.sleep) -> Seen:
    """Wait until the folder differs from `before` and is the same in two looks: editors write a file in several steps."""
    last = before
    while True:
        pause(LOOK_S)
        now = look(directory, given)
        if now == last != before:
            return now
        last = now


class DevRound:
    """Tests the folder, and deploys it on the local platform."""

    def __init__(self, directory: Path, events: Path | None, name: str | None, given: Given, *, live: bool, say: Say) -> None:
        self._directory, self._events, self._name, self._given, self._live, self._say = directory, events, name, given, live, say
        self._made: list[str] = []  # versions of this run that may still be in the registry

    def run(self) -> dict[str, Any]:
        """{ok, operator, events, answers, took_ms, deployment, version, outcome} of one save, or {ok, error: {code, message, exit}}."""
        try:
            return {"ok": True, **self._run()}
        except UdoError as e:
            return {"ok": False, "error": {"code": e.code, "message": str(e), "exit": int(exit_for(e))}}

    def _run(self) -> dict[str, Any]:
        target, settings = build.Target.of(None, None), CliSettings()
        folder = build.load(self._directory, None, target)
        manifest = folder.manifest
        content = _content(self._directory, command=bool(manifest.command))
        files = self._given.contents()
        batches = samples.read(self._events or self._directory / "events.json", manifest.input_schema, BATCH_ROWS)
        with throwaway.workspace("udo-dev-") as work:
            packed = build.build(folder, work, settings.local.dependencies, self._say, lasting=False)
            trial = tried.answer(packed, batches, OperatorConfig(self._given.env, self._given.secrets, files))
        count = sum(b.num_rows for b in batches)
        told = {"operator": manifest.reference, "events": count, "answers": trial.answers.to_pylist(), "took_ms": trial.took_ms}
        if self._live:
            with remote.registry(settings) as api:
                told |= self._answer_with(api, folder, content, settings, files)
        return told

    def _answer_with(
        self, api: Registry, folder: build.OperatorFolder, content: str, settings: CliSettings, files: dict[str, bytes]
    ) -> dict[str, Any]:
        manifest = folder.manifest
        name, version = self._name or manifest.name, self._push(api, folder, content, settings)
        try:
            serving = api.deployment(name)
        except NotFound:
            api.deploy(name, manifest.name, version, env=self._given.env, secrets=self._given.secrets, files=files)
            remote.await_answering(api, name, WAIT_S, self._say)
            return {"deployment": name, "version": version, "outcome": "deployed"}
        if serving["operator"] != manifest.name:
            raise Conflict(
                f"{name} is a deployment of {serving['operator']}, and the folder is {manifest.name}: name another one with --name"
            )
        config = {"env": dict(self._given.env), "secrets": dict(self._given.secrets), "files": files}
        given = any(config.values())
        if serving["version"] == version and not given:
            return {"deployment": name, "version": version, "outcome": "unchanged"}
        remote.follow(api.update(name, version, WAIT_S, config=config if given else None), self._say)
        self._tidy(api, manifest.name, name)
        return {"deployment": name, "version": version, "outcome": "updated"}

    def _push(self, api: Registry, folder: build.OperatorFolder, content: str, settings: CliSettings) -> str:
        """Push the folder as a version named by its `content`; layers that the registry has are not sent again. Conflict if the folder has
        another content by now, which has not been tested."""
        manifest, target = folder.manifest, folder.target
        version = f"{manifest.version[:_MOST_NAME]}-dev.{content}"
        named = manifests.parse(manifest.model_dump() | {"version": version}, str(self._directory / manifests.FILE_NAME))
        below = bases.find(api, "python", target.python_tag, target.platform)
        with throwaway.workspace("udo-dev-") as work:
            made = build.build(replace(folder, manifest=named), work, settings.local.dependencies, lambda _: None, below).image
            if content != _content(self._directory, command=bool(manifest.command)):
                raise Conflict(f"{self._directory} changed while it was being tested, so nothing was deployed; it is tested again")
            origin = provenance.of(self._directory, made, settings.user, "udo dev")
            try:
                upload(api, named, made, lambda _: None, origin)
            except Conflict:
                # The same files, packed by another release of a library: the version in the registry has the same content.
                api.version(manifest.name, version)
        if version not in self._made:
            self._made.append(version)
        return version

    def _tidy(self, api: Registry, operator: str, name: str) -> None:
        """Delete this run's versions except the last two: a rollback may go to the last but one."""
        kept = api.deployment(name)["version"]
        for version in [v for v in self._made[:-2] if v != kept]:
            with suppress(Conflict, NotFound):  # a deployment may go back to it
                api.delete_version(operator, version)
                self._made.remove(version)


def _content(directory: Path, *, command: bool) -> str:
    """Eight digits that stand for the packed files: their names, their contents, and whether they are programs."""
    digest = hashlib.blake2b(digest_size=4)
    for inside, path in layers.files_of(directory, command=command):
        content = path.read_bytes()
        digest.update(f"{len(inside)} {inside} {len(content)} {path.stat().st_mode & 0o111:o}\n".encode())
        digest.update(content)
    return digest.hexdigest()
