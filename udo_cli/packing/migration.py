"""Tests a new version's migrate() on a copy of a deployment's present state, before anything is pushed."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import msgpack

from udo_cli import state_file
from udo_cli.packing import isolated
from udo_cli.packing.build import UnpackedOperator
from udo_cli.platform import remote, sessions
from udo_protocol.errors import SchemaError, StateLost, UsageError


def check(operator: UnpackedOperator, deployment: str, say: Callable[[str], None]) -> int:
    """Migrate a copy of all sessions' states on this node (over nodes: on all), as they are and as they were before their last epoch.

    Returns the number of keys. A session whose state is not whole, so that no query can use it, is named and left out.

    SchemaError if the operator does not migrate from the state's version, OperatorError with migrate()'s traceback and the key if it fails.
    """
    manifest = operator.manifest
    if not manifest.key:
        raise UsageError(f"{manifest.reference} keeps no state (it declares no key): there is nothing to check against {deployment}")
    keys, node = 0, remote.node()
    for s in sessions.there(deployment, None)[0]:
        if s.last_ended is None:
            continue
        parts = node.export_state(deployment, s.name)
        try:
            header = next(parts).header
        except StateLost as e:
            say(f"session {s.name}: not checked, since its state is not whole: {e}")
            continue
        if header.state_version == manifest.state_version:
            say(f"session {s.name}: state version {header.state_version}, nothing to migrate")
            continue
        if header.state_version not in manifest.migrates_from:
            takes = ", ".join(map(str, manifest.migrates_from)) or "nothing"
            raise SchemaError(
                f"session {s.name} of {deployment} has state of version {header.state_version}; {manifest.reference} reads "
                f"{manifest.state_version} and migrates from {takes} (migrates_from in operator.toml)"
            )
        with tempfile.NamedTemporaryFile(prefix="udo-state-") as file:
            for group in state_file.ended_groups(parts, header.state_version):
                if group.group < 0:
                    continue
                before = {k: v for k, v in group.undo.items() if v is not None}
                for key, value in (*group.values.items(), *before.items()):
                    file.write(msgpack.packb(key) + msgpack.packb(value))
                keys += group.keys
            file.flush()
            isolated.migrate(operator, header.state_version, Path(file.name))
        say(f"session {s.name}: {s.keys} keys migrate from state version {header.state_version} to {manifest.state_version}")
    return keys
