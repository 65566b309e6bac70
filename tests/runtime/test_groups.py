"""The rules of a key group and of a session, one by one; tests/model checks their combinations."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from udo_runtime.engine.content import FOLD, FOLD_BEFORE_CUT, Piece, changed
from udo_runtime.engine.content import stored as are_stored
from udo_runtime.state.codec import TIMERS, pack, unpack
from udo_runtime.state.groups import Group
from udo_runtime.state.label import Label
from udo_runtime.state.session import Session, time_group
from udo_runtime.state.stored_session import restored
from udo_runtime.state.stored_values import packed_rows

from udo_protocol.errors import StateLost, TwoProducers
from udo_protocol.queue.event_times import ONLY
from udo_protocol.state.pieces import StoredGroup
from udo_protocol.state.session_record import SessionRecord


def count(group: Group, label: Label, times: int = 1, partition: int = 0) -> int:
    """Count in the group as an operator does: touch, then add."""
    assert group.touch(label, partition)
    state = group.open("k")
    state["n"] = state.get("n", 0) + times
    return int(state["n"])


def test_a_later_epoch_continues_with_what_was_ended() -> None:
    g = Group()
    count(g, Label(1, 0, 10), 3)
    g.end()
    assert count(g, Label(1, 1, 11)) == 4


def test_a_later_epoch_takes_back_what_was_never_ended() -> None:
    g = Group()
    count(g, Label(1, 0, 10), 3)
    g.end()
    count(g, Label(1, 1, 11), 100)
    assert count(g, Label(1, 2, 12)) == 4


def test_a_newer_attempt_starts_from_before_the_epoch_and_an_older_one_is_stale() -> None:
    g = Group()
    count(g, Label(1, 0, 10), 3)
    g.end()
    count(g, Label(1, 1, 11), 5)
    assert count(g, Label(1, 1, 12)) == 4
    assert not g.touch(Label(1, 1, 11), 0)
    assert not g.touch(Label(1, 0, 99), 0)


def test_an_ended_attempt_stays_the_answer_if_the_newer_one_never_ends() -> None:
    g = Group()
    count(g, Label(1, 0, 10), 3)
    g.end()
    count(g, Label(1, 0, 11), 100)
    assert count(g, Label(1, 1, 12)) == 4


def test_a_newer_attempt_that_ends_replaces_the_candidate() -> None:
    g = Group()
    count(g, Label(1, 0, 10), 3)
    g.end()
    count(g, Label(1, 0, 11), 7)
    g.end()
    assert count(g, Label(1, 1, 12)) == 8


def test_a_new_run_replays_an_ended_epoch_and_the_old_run_is_stale_for_ever() -> None:
    g = Group()
    count(g, Label(1, 0, 10), 3)
    g.end()
    assert count(g, Label(2, 0, 1), 5) == 5
    assert not g.touch(Label(1, 0, 99), 0)
    assert not g.touch(Label(1, 1, 99), 0)


def test_a_void_end_leaves_no_trace_and_completes_the_epoch() -> None:
    g = Group()
    count(g, Label(1, 0, 10), 3)
    g.end()
    count(g, Label(1, 1, 11), 5)
    g.end(void=True)
    assert count(g, Label(1, 2, 12)) == 4


def test_a_void_end_after_an_attempt_that_ended_leaves_that_one_standing() -> None:
    """A query's answers are written, then shown through a limit: this second evaluation must not undo the first."""
    g = Group()
    count(g, Label(1, 0, 10), 3)
    g.end()
    count(g, Label(1, 0, 11), 5)
    g.end(void=True)
    assert g.touch(Label(1, 0, 12), 0)
    g.end(void=True)
    assert count(g, Label(1, 1, 13)) == 4
    g.end()
    assert count(g, Label(2, 1, 1), 2) == 5


def test_two_partitions_for_one_group_in_one_epoch_are_an_error() -> None:
    g = Group()
    count(g, Label(1, 0, 10), partition=0)
    with pytest.raises(TwoProducers, match="partitions 0 and 1"):
        g.touch(Label(1, 0, 11), 1)
    assert g.touch(Label(2, 0, 1), 1)


def test_an_empty_state_is_no_state() -> None:
    g = Group()
    count(g, Label(1, 0, 10))
    g.live["k"].clear()
    g.end()
    g.pack(close=True)
    assert (g.values, g.size) == ({}, 0)


Steps = st.lists(
    st.tuples(st.sampled_from(["count", "newer", "epoch", "end", "void", "save", "crash", "fold"]), st.integers(0, 2), st.integers(1, 9)),
    max_size=40,
)


@given(Steps)
def test_whatever_is_restored_from_its_durable_form_goes_on_as_if_it_had_never_stopped(steps: list[tuple[str, int, int]]) -> None:
    """Two groups take the same steps; one of them is stored in deltas and restored at random."""
    mirror, stored = Group(), Group()
    base: bytes | None = None
    deltas, meta = list[bytes](), None
    label = Label(1, 0, 0)

    def save(folding: bool) -> None:
        nonlocal base, meta
        stored.pack()
        meta = stored.meta()
        if folding:
            base = stored.snapshot()
            deltas.clear()
        elif stored.dirty:
            deltas.append(stored.delta())
        stored.dirty.clear()

    for step, key, times in steps:
        if step == "newer":
            label = label._replace(attempt=label.attempt + 1)
        elif step == "epoch":
            label = Label(label.run, label.epoch + 1, label.attempt + 1)
        for g in (mirror, stored):
            if step == "count":
                g.touch(label, 0)
                state = g.open(key)
                if times == 9:
                    state.clear()
                else:
                    state["n"] = state.get("n", 0) + times
            elif step in ("end", "void") and g.label == label:
                g.end(void=step == "void")
                g.pack(close=True)
        if step in ("save", "fold"):
            save(step == "fold")
        elif step == "crash":
            save(False)
            stored = Group.restore(StoredGroup(meta, base, list(deltas)))
    mirror.pack()
    stored.pack()
    assert stored.values == mirror.values
    final = Label(1, label.epoch + 1, label.attempt + 1)
    mirror.touch(final, 0)
    stored.touch(final, 0)
    assert stored.values == mirror.values
    assert stored.size == mirror.size == sum(len(pack(k)) + len(v) for k, v in mirror.values.items())
    assert Group.restore(StoredGroup(base=mirror.snapshot())).values == mirror.values


@pytest.mark.parametrize(
    "value",
    [1, 1.5, "x", b"y", None, [1, [2]], {"a": {"b": 1}}, dt.datetime(2020, 1, 2, 3, 4, 5, 6), dt.date(1999, 12, 31), Decimal("1.10")],
)
def test_state_values_read_back(value: Any) -> None:
    assert unpack(pack(value)) == value


def test_a_time_with_zone_reads_back_in_utc_and_an_unknown_type_is_refused() -> None:
    zone = dt.timezone(dt.timedelta(hours=2))
    assert unpack(pack(dt.datetime(2020, 1, 1, 2, tzinfo=zone))) == dt.datetime(2020, 1, 1, 0, tzinfo=dt.UTC)
    with pytest.raises(TypeError, match="state holds a object"):
        pack(object())


def test_keys_are_closed_when_more_than_the_bound_are_open_and_opened_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("udo_runtime.state.session._OPEN_KEYS", 3)
    s, expected = Session("s"), dict.fromkeys(range(10), 0)
    for epoch in range(3):
        label = Label(1, epoch, epoch)
        assert s.touch([0, 1], label, 0)
        for key in [*range(10), *range(5)] * 2:
            if key not in s.states:
                s.open([key], [key % 2])
            s.states[key]["n"] = s.states[key].get("n", 0) + 1
            expected[key] += 1
            assert len(s.states) <= 4
        s.close([0, 1])
        s.end([0, 1], label)
    values = s.groups[0].values | s.groups[1].values
    assert {k: unpack(v)["n"] for k, v in values.items()} == expected
    before = {k: v for g in s.groups.values() for k, v in g.undo.items()}
    assert {k: unpack(v or pack({"n": 0}))["n"] for k, v in before.items()} == {k: n * 2 // 3 for k, n in expected.items()}


def test_a_session_names_both_epochs_when_state_is_missing() -> None:
    with pytest.raises(StateLost, match="epoch 4, found none"):
        Session("s").admit(Label(1, 5, 1))
    assert Session("s").admit(Label(1, 5, 1), start_empty=True)
    s = Session("s", {})
    s.renew(SessionRecord(last_ended=5, run=1))
    assert s.admit(Label(1, 5, 9))
    assert s.admit(Label(1, 6, 9))
    for epoch in (4, 7):
        with pytest.raises(StateLost, match=f"epoch {epoch}, but its state reaches up to epoch 5"):
            s.admit(Label(1, epoch, 9))
    assert s.admit(Label(1, 9, 9), since=5) and s.admit(Label(1, 9, 9), since=3), "nothing has happened in between"
    with pytest.raises(StateLost, match="continues with epoch 9, but its state reaches up to epoch 5"):
        s.admit(Label(1, 9, 9), since=6)
    assert s.admit(Label(2, 5, 1))
    assert not s.admit(Label(1, 6, 99))
    assert Session("s").admit(Label(1, 5, 1), since=-1)
    with pytest.raises(StateLost, match="expected state up to epoch 2, found none"):
        Session("s").admit(Label(1, 5, 1), since=2)


def test_the_watermark_is_the_highest_time_of_ended_epochs_and_the_same_on_a_retry() -> None:
    s = Session("s")

    def epoch(label: Label, partition: int, highest: int, end: bool = True) -> int | None:
        assert s.admit(label)
        assert s.touch([time_group(partition)], label, partition)
        mark = s.watermark_us(label.epoch, 10)
        s.saw({ONLY: highest}, partition)
        if end:
            s.end([time_group(partition)], label)
            s.groups[time_group(partition)].pack(close=True)
        return mark

    assert epoch(Label(1, 0, 1), 0, 100) is None
    assert epoch(Label(1, 0, 2), 1, 300) is None
    assert epoch(Label(1, 1, 3), 0, 900, end=False) == 290
    assert epoch(Label(1, 1, 4), 0, 500) == 290
    assert epoch(Label(1, 1, 5), 1, 50) == 290
    assert epoch(Label(2, 1, 1), 0, 500) == 290
    assert epoch(Label(2, 1, 2), 1, 50) == 290
    assert epoch(Label(2, 2, 3), 0, 1) == 490


def test_an_attempt_that_met_an_error_is_remembered_until_its_epoch_is_over() -> None:
    s = Session("s")
    s.admit(Label(1, 0, 1))
    s.touch([0], Label(1, 0, 1), 0)
    s.fail(Label(1, 0, 1), 0)
    assert s.changed
    s.touch([0], Label(1, 0, 2), 0)
    s.end([0], Label(1, 0, 2))
    assert s.failed == {(0, 1, 0, 1)}
    s.touch([0], Label(1, 1, 3), 0)
    s.end([0], Label(1, 1, 3))
    assert s.failed == set()


def test_a_key_with_a_timer_and_no_state_counts_wherever_the_group_comes_from() -> None:
    g = Group()
    label = Label(1, 0, 1)
    g.touch(label, 0)
    g.open(("a", 1))["n"] = 1
    g.open(TIMERS)["t"] = {pack(("a", 1)): [5], pack(("b", 2)): [5], pack(("c", 3)): [7]}
    g.pack(close=True)
    g.end()
    assert g.keys == 3
    again = Group.restore(StoredGroup(g.meta(), g.snapshot()))
    assert again.keys == 3
    again.open(TIMERS)  # as each END does
    again.pack(close=True)
    assert again.keys == 3
    assert Group.imported(*g.last_ended()).keys == 3
    g.touch(Label(1, 1, 2), 0)
    g.open(TIMERS).clear()
    g.pack(close=True)
    assert g.keys == 1


def test_a_checkpoint_of_few_touched_groups_does_not_look_at_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    session, key_groups = Session("s"), 1 << 15
    session.touch(range(key_groups), Label(1, 0, 0), 0)
    session.end(range(key_groups), Label(1, 0, 0))
    pieces, _ = changed([session], map(str, itertools.count()))
    assert len(pieces) == key_groups
    are_stored([session], pieces)

    session.touch([3, 7], Label(1, 1, 0), 0)
    session.open(["x"], [7])
    session.states["x"]["n"] = 1
    looked: list[Group] = []
    pack = Group.pack
    monkeypatch.setattr(Group, "pack", lambda self, **more: (looked.append(self), pack(self, **more)))
    pieces, _ = changed([session], map(str, itertools.count()))

    assert [p.number for p in pieces] == [3, 7] and pieces[1].delta is not None
    assert len(looked) == 2


def test_a_checkpoint_before_a_cut_folds_only_what_has_outgrown_its_base_several_times() -> None:
    session, names = Session("s"), map(str, itertools.count())

    def written(epoch: int, kb: int, fold: int | None) -> Piece:
        """The piece of an epoch that gives the key a state of so many kB."""
        session.touch([7], Label(1, epoch, 0), 0)
        session.open(["x"], [7])
        session.states["x"]["held"] = bytes([epoch]) * (kb << 10)
        session.end([7], Label(1, epoch, 0))
        (piece,), _ = changed([session], names, fold=fold)
        are_stored([session], [piece])
        return piece

    assert written(0, 100, FOLD).base is not None  # the changes are larger than no base
    for epoch in range(1, 5):
        assert written(epoch, 99, FOLD_BEFORE_CUT).base is None
    assert written(5, 99, None).base is None
    assert written(6, 99, FOLD_BEFORE_CUT).base is not None  # changes of 500 kB, and the base has 100
    assert [written(epoch, 99, FOLD).base is not None for epoch in range(7, 10)] == [False, False, True]


@pytest.mark.parametrize("decode", [False, True])
def test_a_session_that_is_decoded_at_once_holds_the_stored_form_of_few_groups_at_a_time(decode: bool) -> None:
    dropped: list[int] = []

    class Base(bytes):
        number: int

        def __del__(self) -> None:
            dropped.append(self.number)

    def base(number: int) -> Base:
        made = Base(packed_rows(None, {f"k{number}": pack({"n": number})}))
        made.number = number
        return made

    def stored() -> Iterator[tuple[int, StoredGroup]]:
        for number in range(10):
            assert len(dropped) >= number - 2 if decode else not dropped
            yield number, StoredGroup(base=base(number))

    session = restored("q", SessionRecord(), stored(), decode=decode)
    assert {n: group.open(f"k{n}") for n, group in session.groups.items()} == {n: {"n": n} for n in range(10)}
