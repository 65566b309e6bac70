"""The assignment, which tells an instance what to run; docs/protocol.md describes its fields one by one."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from udo_protocol.formats.manifest import Manifest
from udo_protocol.formats.schema import to_ipc

if TYPE_CHECKING:
    from node_manager.config import InstanceConfig


@dataclass(frozen=True)
class InstancePlace:
    """The slot and servers of an instance, its name and token; the paths are those that it sees itself."""

    instance: str
    token: int
    prefix: str
    queue_socket: str
    state_socket: str


def assignment(
    place: InstancePlace,
    manifest: Manifest,
    digest: str,
    config: InstanceConfig,
    *,
    path: Sequence[str],
    open_files: int,
    follow: str,
    command: Mapping[str, Any] | None,
    comparing: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """The assignment as JSON; it holds secrets. `command`: node_manager.instances.commands.launch; `comparing`: `compared`."""
    return {
        "instance": place.instance,
        "token": place.token,
        "prefix": place.prefix,
        "queue_socket": place.queue_socket,
        "state_socket": place.state_socket,
        "operator": manifest.name,
        "version": manifest.version,
        "digest": digest,
        "entry": manifest.entry,
        "path": list(path),
        **({"command": dict(command)} if command else {}),
        "input": base64.b64encode(to_ipc(manifest.input_schema)).decode(),
        "output": base64.b64encode(to_ipc(manifest.output_schema)).decode(),
        "env": dict(config.env),
        "secrets": dict(config.secrets),
        "keyed": manifest.keyed,
        **({"state_types": dict(manifest.state)} if manifest.state else {}),
        "follow": follow,
        "policy": config.policy,
        "limits": dict(config.limits),
        "open_files": open_files,
        **({"comparing": dict(comparing)} if comparing else {}),
    }


def compared(examples: int, nice: int, groups: Sequence[int] | None) -> dict[str, Any]:
    """The part of an assignment for an instance that compares: how many differences to report in full, its niceness, and the key groups
    that it tries (None: all)."""
    return {"examples": examples, "nice": nice, "groups": None if groups is None else list(groups)}
