"""Declared types of a keyed state, in every language: a value that an SDK reads and writes keeps its type, and a state of another type is a
bad event. No SDK knows the declared types: the engine checks them (docs/design/languages.md)."""

from __future__ import annotations

import json
import os
import sys
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from udo_runtime.child.process import Launch
from udo_runtime.child.processor import ChildProcessor
from udo_runtime.execution.keyed_bad_events import Policy
from udo_runtime.execution.keyed_processor import KeyedConfig
from udo_runtime.failure import ProcessingError
from udo_runtime.sdk.api import Context
from udo_runtime.state.codec import unpack
from udo_runtime.state.session import Session

from tests.operators.sdks import RUNTIMES, Sdk
from tests.support.selection import long
from udo_cli.conformance.player import KEYED, AnsweredFailure, Known, Player, starting
from udo_cli.conformance.schemas import KEYED_BOTH, answers, keyed
from udo_protocol.formats.state_types import StateTypes
from udo_protocol.proto.frame_pb2 import Label
from udo_protocol.queue.frame import Header

GOLDEN = json.loads((RUNTIMES / "conformance" / "state_types.json").read_text("utf-8"))
# A map with a key that is not text, and a decimal that is not a number, exist in Python only.
PYTHONS = [g for g in GOLDEN if g["python"] in ("{1: 1.0}", "{None: 1}", "{b'k': 2}", "Decimal('NaN')")]
PYTHON = RUNTIMES / "conformance" / "python_operator.py"
REPLY_S = 30.0


def checked(command: list[str], work: Path, *, python: bool = False) -> None:
    values_keep_their_types(command, python=python)
    made = ChildProcessor(
        Launch(tuple(command), str(work), str(work), {**os.environ, "UDO_CONFORMANCE": "keyed"}),
        KEYED_BOTH,
        KEYED,
        Context("t", "1"),
        StateTypes({"n": "int8"}),
    )
    made.open()
    try:
        what_does_not_fit_is_a_bad_event(made)
        with pytest.raises(ProcessingError, match=r"state entry 'n': expected int8, the operator left 130 \(int\)"):
            made.per_event.migrate({"n": 13}, 1)
    finally:
        made.close()


def values_keep_their_types(command: list[str], *, python: bool) -> None:
    player = Player(starting(command), "keyed", {}, REPLY_S)
    try:
        player.start(KEYED_BOTH, KEYED)
        copied(player, [g for g in GOLDEN if python or g not in PYTHONS])
        for golden in PYTHONS:
            with nullcontext() if python else suppress(AnsweredFailure):  # refused, or unchanged
                copied(player, [golden])
    finally:
        player.close()


def copied(player: Player, golden: list[dict[str, Any]]) -> None:
    """Check that states that pass through the operator fit their declared types, or not, as before."""
    known = [Known(str(n), bytes.fromhex(g["packed"])) for n, g in enumerate(golden)]
    got = player.keyed(keyed(*((k.key, "copy", 0, None) for k in known)), known).states
    states = [unpack(got.get(row, (k.state, None))[0]) for row, k in enumerate(known)]
    fits = [StateTypes({"v": g["type"]}).problem(state) == "" for g, state in zip(golden, states, strict=True)]
    assert fits == [g["fits"] for g in golden]


def what_does_not_fit_is_a_bad_event(made: ChildProcessor) -> None:
    run, session = made.keyed(KeyedConfig(("k",), "at")), Session("s")
    run.policy = Policy(dead_letter=True)
    rows = keyed(("a", "count", 100, None), ("a", "count", 100, None), ("b", "count", 1, None), ("a", "count", 27, None))
    header = Header(label=Label(run=1, epoch=0, attempt=1), groups=[0])
    done = run.events(session, header, rows, pa.array([0] * 4, pa.int32()))
    assert done is not None and answers(done.answer) == [("a", 100, None), ("b", 1, None), ("a", 127, None)]
    assert [(b.row, "state entry 'n': expected int8, the operator left 200 (int)" in str(b.error)) for b in done.bad] == [(1, True)]


@pytest.mark.parametrize("sdk", [long("cpp"), long("java"), "node", long("rust")], indirect=True)
def test_a_state_has_its_declared_types_in_each_sdk(sdk: Sdk, tmp_path: Path) -> None:
    checked([word.replace("bin/", f"{sdk.bin}/") for word in sdk.starting("conformance")], tmp_path)


def test_a_state_has_its_declared_types_in_go(programs: Path, tmp_path: Path) -> None:
    checked([str(programs / "conformance")], tmp_path)


def test_a_state_has_its_declared_types_in_a_python_process(tmp_path: Path) -> None:
    checked([sys.executable, str(PYTHON)], tmp_path, python=True)
