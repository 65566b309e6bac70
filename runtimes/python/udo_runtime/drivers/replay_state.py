"""The state of a slot's recording: a keyed engine begins with it; nothing is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa

from udo_protocol.formats.recording_file import SlotRecording
from udo_protocol.limits import DEFAULT, KEY_GROUPS
from udo_protocol.state.pieces import StoredGroup
from udo_protocol.state.session_record import SessionRecord
from udo_runtime.counters import Counters
from udo_runtime.engine.effects import LoadSession, Trim, WriteCheckpoint
from udo_runtime.engine.keyed_engine import Engine, Start
from udo_runtime.engine.letters import KeyedLetters
from udo_runtime.engine.replies import Replies
from udo_runtime.execution.keyed_processor import KeyedConfig
from udo_runtime.execution.load import Processor
from udo_runtime.sdk.api import Context
from udo_runtime.state.session import Session
from udo_runtime.state.stored_session import restored
from udo_runtime.state.versions import Versions


def engine(
    recording: SlotRecording,
    processor: Processor,
    keyed: Mapping[str, Any],
    schemas: tuple[pa.Schema, pa.Schema],
    replies: Replies,
    ctx: Context,
) -> Engine:
    """An engine in the state before the first frame. It keeps no dead letters: a bad event fails its frame, where it can be examined."""
    groups = {SessionRecord.of(record).key_groups or KEY_GROUPS for record, _ in recording.sessions().values()}
    running = Engine(
        processor.keyed(KeyedConfig.of(keyed)),
        schemas,
        replies,
        KeyedLetters("replay", replace(DEFAULT, key_groups=max(groups, default=KEY_GROUPS)), clock=lambda: 0.0),
        Counters(),
    )
    header = recording.header
    running.restart(Start({}, header["failed"], header["cuts"]))
    running.emitted = header["first_seq"] - 1
    return running


def effects(recording: SlotRecording, processor: Processor, keyed: Mapping[str, Any]) -> dict[type, Callable[[Any], Any]]:
    """Functions for the effects that a keyed engine requests in addition to those of a stateless one."""
    sessions = recording.sessions()
    version, sources = keyed.get("state_version", 0), keyed.get("migrates_from", ())
    versions = Versions(version, sources, processor.per_event.migrate, processor.migrate_all, processor.layout)

    def load(effect: LoadSession) -> Session:
        if effect.name not in sessions:
            return Session(effect.name, versions=versions)
        record, folder = sessions[effect.name]
        groups = ((n, StoredGroup(*found)) for n, found in recording.groups(folder).items())
        return restored(effect.name, SessionRecord.of(record), groups, versions)

    def store(effect: WriteCheckpoint) -> None:
        for name in effect.content.dropped:
            sessions.pop(name, None)

    return {LoadSession: load, WriteCheckpoint: store, Trim: lambda e: None}
