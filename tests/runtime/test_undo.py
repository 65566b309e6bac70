"""The undo of an attempt that is stored by the place of the values before its epoch: read, followed and folded, it is what it was."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from udo_runtime.durable.standby import StandbyState
from udo_runtime.engine import content
from udo_runtime.engine.content import Piece
from udo_runtime.state.codec import unpack
from udo_runtime.state.groups import Group
from udo_runtime.state.label import Label
from udo_runtime.state.layout import Layout
from udo_runtime.state.session import Session
from udo_runtime.state.stored_values import saves_in
from udo_runtime.state.versions import Versions

from tests.conftest import Servers
from tests.runtime.conftest import P
from tests.support.attempt import group_of
from tests.support.counters import Start, an_attempt, counter
from tests.support.stored_groups import checkpoint
from udo_protocol.formats.state_types import StateTypes
from udo_protocol.state.pieces import StoredGroup

KEYS = "abcdef"
# A change: for each key the number to add to its count; None removes its state.
Change = dict[str, int | None]
Changes = st.dictionaries(st.sampled_from(KEYS), st.none() | st.integers(1, 9), min_size=1)
OTHERS = ("newer", "epoch", "end", "void", "fold", "crash", "promote", "tentative")
# `next`: END, its checkpoint, and the next epoch.
Step = st.sampled_from(("change", "save", "next", "tentative")) | st.sampled_from(OTHERS)
Steps = st.lists(st.tuples(Step, Changes), min_size=5, max_size=60)


def do(group: Group, label: Label, step: str, what: Change) -> None:
    """Take a step of a query; those that are none leave the group as it is."""
    if step == "change" and group.touch(label, 0):
        for key, n in what.items():
            state = group.open(key)
            if n is None:
                state.clear()
            else:
                state["n"] = state.get("n", 0) + n
        group.pack()
    elif step in ("end", "void") and group.label == label:
        group.pack(close=True)
        group.end(void=step == "void")


def known(group: Group) -> Any:
    """All that a group knows: its values, those before the epoch, and those of an attempt that has ENDed."""
    group.pack()
    values = dict(group.values)
    before = values | group.undo
    candidate = None if group.candidate is None else before | group.candidate
    states = [{k: unpack(v) for k, v in some.items() if v is not None} for some in (values, before, candidate or {})]
    return states, group.candidate is None, group.label, group.ended, group.size


def following(saved: StoredGroup) -> Group:
    """A standby's group."""
    group = Group.restore(saved)
    group.follow()
    return group


@settings(deadline=None, max_examples=400, suppress_health_check=[HealthCheck.too_slow])
@given(Steps)
def test_whoever_reads_or_follows_the_stored_form_has_the_undo_of_one_that_was_never_stored(steps: list[tuple[str, Change]]) -> None:
    plain, owner, saved, entries = Group(), Group(), StoredGroup(), list[Piece]()
    follower, since = following(saved), list[tuple[Label, str, Change]]()  # steps since the last checkpoint
    label = Label(1, 0, 0)
    each = ((part, what) for step, what in steps for part in (("end", "save", "epoch") if step == "next" else (step,)))
    for step, what in each:
        if step == "newer":
            label = label._replace(attempt=label.attempt + 1)
        elif step == "epoch":
            label = Label(1, label.epoch + 1, label.attempt + 1)
        elif step == "tentative":
            do(follower, label, "change", what)
        elif step == "promote":
            if saved.meta:
                follower.take_back(saved.meta)
            else:
                follower = following(saved)
            for done in since:
                do(follower, *done)
            follower.originals = None
            owner, follower = follower, following(saved)
        elif step == "crash":
            owner = Group.restore(saved)
            for done in since:
                do(owner, *done)
        elif step in ("save", "fold"):
            before = saved.meta
            saved, made = checkpoint(owner, saved, fold=step == "fold")
            since = []
            if made is not None:
                if before:
                    follower.take_back(before)
                else:
                    follower = following(StoredGroup())
                follower.adopt(made.meta, made.delta, made.place)
                assert known(follower) == known(Group.restore(saved)) == known(owner)
                follower.take_back(made.meta)
                entries.append(made)
                late = following(saved)  # has joined the changelog's readers before it read the state
                for entry in entries[-1 - len(what) :]:
                    if saves_in(entry.meta) > late.saves:
                        late.adopt(entry.meta, entry.delta, entry.place)
                assert known(late) == known(owner)
        else:
            for group in (plain, owner):
                do(group, label, step, what)
            since.append((label, step, what))
        assert known(owner) == known(plain)
    for group in (plain, owner):
        group.touch(Label(1, label.epoch, label.attempt + 1), 0)
    assert known(owner) == known(plain)


def epoch_of(group: Group, epoch: int, saved: StoredGroup, keys: str, checkpoints: int) -> tuple[StoredGroup, list[int]]:
    """One epoch with several checkpoints: the stored form, and the bytes that each of these wrote."""
    written = []
    for n in range(checkpoints):
        do(group, Label(1, epoch, epoch), "change", dict.fromkeys(keys[n::checkpoints], 1))
        saved, made = checkpoint(group, saved)
        assert made is not None
        written.append(len(made.meta) + len(made.delta or b""))
    do(group, Label(1, epoch, epoch), "end", {})
    return checkpoint(group, saved)[0], written


def test_a_checkpoint_writes_what_changed_since_the_last_one_however_much_the_epoch_has_changed() -> None:
    keys, group, saved = "".join(map(chr, range(256, 1256))), Group(), StoredGroup()
    saved, _ = epoch_of(group, 0, saved, keys, 1)
    saved, written = epoch_of(group, 1, saved, keys, 10)
    assert max(written) < 1.1 * min(written)
    again = Group.restore(saved)
    assert len(again.undo) == 1000
    again.touch(Label(1, 1, 2), 0)
    assert {unpack(v)["n"] for v in again.values.values()} == {1}


def test_a_group_that_was_empty_before_the_epoch_is_folded_into_a_base_alone() -> None:
    """Bases are read faster than changes, and what a query begins with is most of what it has for a while."""
    group, saved = Group(), StoredGroup()
    for keys in ("abc", "cd"):
        do(group, Label(1, 0, 0), "change", dict.fromkeys(keys, 1))
        saved, _ = checkpoint(group, saved, fold=True)
        assert saved.base and not saved.deltas
        group = Group.restore(saved)
    assert group.undo == dict.fromkeys("abcd")
    do(group, Label(1, 0, 0), "end", {})
    saved, _ = epoch_of(group, 1, saved, "ae", 1)
    group = Group.restore(saved)
    assert {k: v and unpack(v) for k, v in group.undo.items()} == {"a": {"n": 1}, "e": None}


@pytest.mark.parametrize("folds", [(True, False), (False, True), (True, True), (False, False)])
@pytest.mark.parametrize("epoch", [0, 1])
def test_a_version_that_keeps_columns_has_the_undo_of_the_rows_that_it_reads(epoch: int, folds: tuple[bool, bool]) -> None:
    layout = Layout.of(StateTypes({"n": "int64"}))
    group, saved = Group(Versions(0)), StoredGroup()
    for at in range(epoch):
        do(group, Label(1, at, 0), "change", {"a": 1, "d": 1})
        saved, _ = checkpoint(group, saved)
        do(group, Label(1, at, 0), "end", {})
    for keys, fold in zip(("abc", "ce"), folds, strict=True):
        do(group, Label(1, epoch, 0), "change", dict.fromkeys(keys, 1))
        saved, _ = checkpoint(group, saved, fold=fold)
    columns = Group.restore(saved, Versions(0, layout=layout))
    assert known(columns)[:-1] == known(group)[:-1], "all but the size"
    columns.touch(Label(1, epoch, 1), 0)
    assert {k: unpack(v) for k, v in columns.values.items()} == {k: {"n": 1} for k in "ad" if epoch}


def test_what_an_epoch_has_changed_is_folded_a_part_at_a_time() -> None:
    """Folded within the epoch, it is written once more; all groups outgrow their bases at the same checkpoint."""
    session, names, folded = Session("s"), (f"p{n}" for n in itertools.count()), []
    for key, size in (("a", 1000), ("b", 900), ("c", 200)):
        assert session.touch(range(20), Label(1, 0, 0), 0)
        keys = [f"{key}{n}" for n in range(20)]
        session.open(keys, range(20))
        for one in keys:
            session.states[one]["held"] = bytes(size << 10)
        session.unsaved.update(range(20))
        pieces, _ = content.changed([session], names)
        content.stored([session], pieces)
        folded.append(sum(piece.base is not None for piece in pieces))
    assert folded[:2] == [20, 0], "at first all has to be written in any case"
    assert 0 < folded[2] < 10


def test_a_standby_does_not_apply_changes_that_the_state_it_has_read_includes(start: Start, servers: Servers) -> None:
    counter(start)
    x, y = [k for k in map(str, range(100)) if group_of(k) == 1][:2]
    for epoch in (0, 1):
        an_attempt(servers, epoch, epoch).run([x])

    class Late(StandbyState):
        def _load_all(self) -> None:  # when it has joined the changelog's readers
            an_attempt(servers, 2, 2).run([y])
            an_attempt(servers, 3, 3).run([x])
            super()._load_all()

    late = Late(servers.state(), P, "late", "run")
    late.load()
    group = late.sessions["q"].groups[1]
    assert {k: v and unpack(v) for k, v in group.undo.items()} == {x: {"n": 2}}
    assert {k: unpack(v) for k, v in group.values.items()} == {x: {"n": 3}, y: {"n": 1}}


@pytest.mark.parametrize("fold", [False, True])
def test_an_attempt_that_undid_an_older_one_is_undone_too(fold: bool) -> None:
    group = Group()
    do(group, Label(1, 0, 0), "change", {"a": 1})
    do(group, Label(1, 0, 0), "end", {})
    saved, _ = checkpoint(group, StoredGroup())
    for attempt, change in enumerate(({"a": 5, "b": 1}, {"b": 7}, {"a": 3})):
        do(group, Label(1, 1, attempt), "change", change)
        saved, _ = checkpoint(group, saved, fold=fold)
        group = Group.restore(saved)
    assert {k: unpack(v) for k, v in group.values.items()} == {"a": {"n": 4}}
    group.touch(Label(1, 1, 9), 0)
    assert {k: unpack(v) for k, v in group.values.items()} == {"a": {"n": 1}}
