"""A key group in columns against the same group in rows: after any changes, their states, undo and stored forms are equal."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from udo_runtime.execution.keyed_columns import ColumnStates, _parts
from udo_runtime.state.codec import EXPIRES, TIMERS, unpack
from udo_runtime.state.columns import ColumnValues
from udo_runtime.state.groups import Group
from udo_runtime.state.label import Label
from udo_runtime.state.layout import Layout
from udo_runtime.state.session import Session
from udo_runtime.state.versions import Versions

from udo_protocol.formats.state_types import StateTypes
from udo_protocol.state.pieces import PiecePlace, StoredGroup

DECLARED = StateTypes({"n": "int64", "x": "double"})
LAYOUT = Layout.of(DECLARED)
assert LAYOUT is not None
ROWS, IN_COLUMNS = Versions(0), Versions(0, layout=LAYOUT)
Changes = dict[Any, tuple[int | None, float | None]]
KEYS: list[Any] = [0, 1, 2, "ü", None, (1, "a")]


def frame(group: Group, changes: Changes, only: str = "") -> None:
    """Set both state entries of these keys, or one of them, as a frame does."""
    names = [only] if only else ["n", "x"]
    if group.layout is None:
        for key, values in changes.items():
            state = group.open(key)
            for name, value in zip(("n", "x"), values, strict=True):
                if name in names:
                    state.pop(name, None) if value is None else state.update({name: value})
        group.pack(close=True)
        return
    states = opened(group, list(changes))
    for name, t, values in zip(("n", "x"), (pa.int64(), pa.float64()), zip(*changes.values(), strict=True), strict=True):
        if name in names:
            states.put(name, pa.array(values, t))
    states.store()


def opened(group: Group, keys: list[Any]) -> ColumnStates:
    assert LAYOUT is not None
    return ColumnStates(LAYOUT, _parts(Session("s", {0: group}), keys, pa.array([0] * len(keys), pa.int32())), len(keys))


def said(values: Any) -> Any:
    return None if values is None else {k: v if v is None else unpack(v) for k, v in values.items()}


def changed_undo(group: Group) -> Any:
    """The undo values of the keys whose state differs from them."""
    group.pack()
    return said({k: v for k, v in group.undo.items() if (v and unpack(v)) != ((now := group.values.get(k)) and unpack(now))})


def stored(group: Group, parts: StoredGroup | None, *, fold: bool) -> StoredGroup:
    """The group's stored form after one more checkpoint."""
    group.pack()
    before = parts or StoredGroup()
    made = StoredGroup(group.meta(), before.base, [*before.deltas])
    if fold:
        made.base, made.deltas = group.snapshot(), []
    elif group.changed:
        made.deltas.append(group.delta())
    group.saved()
    return made


Some = st.dictionaries(
    st.sampled_from(KEYS), st.tuples(st.none() | st.integers(-9, 1 << 40), st.none() | st.floats(allow_nan=False)), min_size=1
)
Step = (
    st.tuples(st.sampled_from(["frame", "n", "x", "tentative"]), Some)
    | st.tuples(st.sampled_from(["free", "expire", "clear", "timer"]), st.sampled_from(KEYS))
    | st.tuples(st.sampled_from(["newer", "epoch", "end", "void", "save", "fold", "crash", "other"]), st.none())
)


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(Step, max_size=30))
def test_columns_say_what_rows_say_whatever_is_done_to_both(steps: list[tuple[str, Any]]) -> None:
    rows, columns = Group(ROWS), Group(IN_COLUMNS)
    forms = [ROWS, IN_COLUMNS]
    saved: list[StoredGroup | None] = [None, None]
    label = Label(1, 0, 0)
    for step, what in steps:
        if step == "newer":
            label = label._replace(attempt=label.attempt + 1)
        elif step == "epoch":
            label = Label(1, label.epoch + 1, label.attempt + 1)
        elif step == "other":  # an update from one form of state to the other
            forms.reverse()
        groups = [rows, columns]
        for at, g in enumerate(groups):
            if step in ("frame", "n", "x"):
                g.touch(label, 0)
                frame(g, what, "" if step == "frame" else step)
            elif step in ("free", "expire", "clear"):
                g.touch(label, 0)
                state = g.open(what)
                state.clear() if step == "clear" else state.update({"free": "text"} if step == "free" else {EXPIRES: 5})
            elif step == "timer":
                g.touch(label, 0)
                g.open(TIMERS)["t"] = {b"\x01": [7]}
            elif step in ("end", "void") and g.label == label:
                g.pack(close=True)
                g.end(void=step == "void")
            elif step in ("save", "fold"):
                saved[at] = stored(g, saved[at], fold=step == "fold")
            elif step in ("crash", "other"):
                saved[at] = stored(g, saved[at], fold=False)
                groups[at] = Group.restore(saved[at] or StoredGroup(), forms[at])
            elif step == "tentative" and saved[at] is not None:
                standby(saved[at] or StoredGroup(), forms[at], what, label)
        rows, columns = groups
        rows.pack()
        columns.pack()
        assert said(columns.values) == said(rows.values)
        assert changed_undo(columns) == changed_undo(rows)
        assert (said(columns.candidate), columns.label, columns.ended) == (said(rows.candidate), rows.label, rows.ended)
        for g in (rows, columns):
            if isinstance(g.values, ColumnValues):
                assert list(g.values.values()) == list(map(g.values.__getitem__, g.values))
                whole = ColumnValues(g.values.layout)
                whole.update(g.values)
                assert (g.size, len(g.values)) == (whole.size, len(whole))
    final = Label(1, label.epoch + 1, label.attempt + 1)
    rows.touch(final, 0)
    columns.touch(final, 0)
    assert said(columns.values) == said(rows.values)


def standby(saved: StoredGroup, versions: Versions, changes: Changes, label: Label) -> None:
    """Check that a standby can take back what it processed tentatively, and follows the owner's next checkpoint."""
    follower, owner = Group.restore(saved, versions), Group.restore(saved, versions)
    follower.follow()
    before = said(follower.values), said(follower.undo)
    for by_event in (False, True):
        if not follower.touch(label, 0):
            return
        frame(follower, changes)
        if by_event:
            follower.open(KEYS[0])["free"] = 1
            follower.pack(close=True)
        frame(follower, {k: (1, None) for k in changes})
        follower.take_back(saved.meta)
        assert (said(follower.values), said(follower.undo)) == before
    owner.touch(label, 0)
    frame(owner, changes)
    behind = stored(owner, saved, fold=False)
    follower.adopt(behind.meta, behind.deltas[-1] if len(behind.deltas) > len(saved.deltas) else None, PiecePlace())
    assert (said(follower.values), changed_undo(follower)) == (said(owner.values), changed_undo(owner))


def test_an_epoch_of_many_frames_over_few_keys_keeps_one_undo_of_each_key() -> None:
    g = Group(IN_COLUMNS)
    g.touch(Label(1, 0, 0), 0)
    frame(g, {k: (0, 0.5) for k in range(50)})
    g.end()
    g.touch(Label(1, 1, 1), 0)
    for n in range(1, 400):
        frame(g, {k: (n, None) for k in range(50)})
    assert sum(len(keys) for keys, _ in g._noted().blocks) < 5_000
    assert said(g.undo) == {k: {"n": 0, "x": 0.5} for k in range(50)}


TIMES = [dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59, 999_999), dt.datetime(2020, 1, 2, 3, 4, 5, 6)]
ZONED = [t.replace(tzinfo=dt.UTC) for t in TIMES]


@pytest.mark.parametrize(
    ("declared", "values"),
    [
        ("int8", [-128, 127]),
        ("uint16", [0, 65_535]),
        ("int32", [-(1 << 31), (1 << 31) - 1]),
        ("int64", [-(1 << 63), (1 << 63) - 1]),
        ("uint64", [0, (1 << 64) - 1]),
        ("double", [0.1, float("inf"), -0.0]),
        ("float", [0.1, 1e300]),
        ("bool", [True, False]),
        ("timestamp[us]", TIMES),
        ("timestamp[us, tz=UTC]", ZONED),
    ],
)
def test_values_of_each_type_come_back_as_they_were(declared: str, values: list[Any]) -> None:
    layout = Layout.of(StateTypes({"v": declared}))
    assert layout is not None
    group = Group(Versions(3, layout=layout))
    group.touch(Label(1, 0, 0), 0)
    keys = list(range(len(values)))
    column = layout.columns[0]
    for put in (values, pa.array(values, column.declared)):
        states = ColumnStates(layout, _parts(Session("s", {0: group}), keys, pa.array([0] * len(keys), pa.int32())), len(keys))
        states.put("v", put)
        assert not states.opened()
        assert states.column("v", column.declared).to_pylist() == values
        states.store()
    expected = {k: {"v": v} for k, v in zip(keys, values, strict=True)}
    assert said(group.values) == expected
    for versions in (Versions(3, layout=layout), Versions(3), None):
        assert said(Group.restore(StoredGroup(base=group.snapshot()), versions).values) == expected
    assert isinstance(group.values, ColumnValues) and not group.values.others


@pytest.mark.parametrize("declared", ["string", "list<int64>", "decimal128(9, 2)", "timestamp[ms]", "date32"])
def test_a_state_with_an_entry_of_another_type_is_kept_in_rows(declared: str) -> None:
    assert Layout.of(StateTypes({"n": "int64", "v": declared})) is None


@pytest.mark.parametrize(
    "given", [[1.0, 2.0], [True, 2], ["a", "b"], [1 << 63, 0], pa.array([1.0, 2.0]), pa.array([1 << 63, 0], pa.uint64())]
)
def test_a_column_that_is_not_of_the_declared_type_is_seen_as_a_state_of_another_type(given: Any) -> None:
    group = Group(IN_COLUMNS)
    group.touch(Label(1, 0, 0), 0)
    states = opened(group, [1, 2])
    states.put("n", given)
    assert any("state entry 'n': expected int64, the operator left" in DECLARED.problem(state) for state in states.opened())


def test_states_are_read_and_written_as_dicts_and_as_columns_in_turn() -> None:
    group = Group(IN_COLUMNS)
    group.touch(Label(1, 0, 0), 0)
    frame(group, {1: (1, 0.5), 2: (None, 2.5)})
    states = opened(group, [1, 2, 3])
    assert states.column("n", pa.int64(), 7).to_pylist() == [1, 7, 7]
    assert states.column("x", pa.float64()).to_pylist() == [0.5, 2.5, None]
    states.put("x", [None, 1.5, 2.5])
    assert list(states) == [{"n": 1}, {"x": 1.5}, {"x": 2.5}] and len(states) == 3
    states[0]["free"] = "text"
    states.put("n", pa.array([None, 2, 3]))
    assert states[1:] == [{"n": 2, "x": 1.5}, {"n": 3, "x": 2.5}]
    with pytest.raises(ValueError, match="expected 3 values, one for each key, got 2"):
        states.put("n", [1, 2])
    states.store()
    assert said(group.values) == {1: {"free": "text"}, 2: {"n": 2, "x": 1.5}, 3: {"n": 3, "x": 2.5}}
    assert opened(group, [1, 2]).opened() == [{"free": "text"}, {"n": 2, "x": 1.5}]
