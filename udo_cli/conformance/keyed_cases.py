"""Cases: keyed operators: states, timers, expirations, migration."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

from udo_runtime.state.codec import pack, unpack

from udo_cli.conformance.cases import Open, case
from udo_cli.conformance.player import KEYED, AnsweredFailure, Known, Mismatch, keyed_tables, require
from udo_cli.conformance.schemas import KEYED_BOTH, answers, keyed

_AT = 1_700_000_000_000_000
_SECOND = 1_000_000
# The first time after the year 9999, and the last one before the year 1.
_BEYOND, _BEFORE = 253_402_300_800_000_000, -62_135_596_800_000_001
_TEN_THOUSAND = 10_000
_LARGE = 2**40


def _n(n: int, **more: Any) -> bytes:
    return pack({"n": n, **more})


@case("keyed", "a count goes on from the state, in the order of each key's events")
def count(open_: Open) -> None:
    for role in ("keyed", "keyed_batches"):
        with open_(role, KEYED_BOTH, KEYED if role == "keyed" else {"columns": ["k"]}) as p:
            rows = keyed(("a", "count", 1, None), ("ü", "count", 5, None), ("a", "count", 2, None), ("b", "count", 1, None))
            got = p.keyed(rows, [Known("a", _n(10)), Known("ü"), Known("b", _n(_LARGE))])
            require(f"{role}: answers", [("a", 11, None), ("ü", 5, None), ("a", 13, None), ("b", _LARGE + 1, None)], answers(got.rows))
            require(f"{role}: states", {0: {"n": 13}, 1: {"n": 5}, 2: {"n": _LARGE + 1}}, got.values)
            require(f"{role}: timers", [], got.timers)


@case("keyed", "10,000 keys in one frame, each with its own state")
def ten_thousand(open_: Open) -> None:
    names = [f"key {n}" for n in range(_TEN_THOUSAND)]
    rows = keyed(*((name, "count", n, None) for n, name in enumerate(names)))
    for role in ("keyed", "keyed_batches"):
        with open_(role, KEYED_BOTH, {"columns": ["k"]}) as p:
            got = p.keyed(rows, [Known(k, _n(n) if n % 2 else None) for n, k in enumerate(names)])
            want = [n + (n if n % 2 else 0) for n in range(len(names))]
            require(f"{role}: answers", want, got.rows.column("n").to_pylist())
            require(f"{role}: states", [{"n": n} for n in want], list(got.values.values()))


@case("keyed", "the same request twice has the same answer: nothing is kept between requests")
def twice(open_: Open) -> None:
    for role in ("keyed", "keyed_batches"):
        with open_(role, KEYED_BOTH, {"columns": ["k"]}) as p:
            rows, keys = keyed(("a", "count", 1, None), ("b", "count", 1, None)), [Known("a", _n(7)), Known("b")]
            first, second = p.keyed(rows, keys), p.keyed(rows, keys)
            require(f"{role}: answers", answers(first.rows), answers(second.rows))
            require(f"{role}: states", first.values, second.values)
            require(f"{role}: the count of another state", [("a", 2, None)], answers(p.keyed(rows.slice(0, 1), [Known("a", _n(1))]).rows))


@case("keyed", "a Rehearse is answered as Data is, and nothing of it stays")
def rehearse(open_: Open) -> None:
    for role in ("keyed", "keyed_batches"):
        with open_(role, KEYED_BOTH, {"columns": ["k"]}) as p:
            rows, keys = keyed(("r", "count", 1, None), ("s", "count", 2, None)), [Known("r", _n(4)), Known("s")]
            tables = keyed_tables(rows, keys)
            for asked in ("rehearsed", "rehearsed", "then asked"):
                got = p.rehearsed(tables, len(keys)) if asked == "rehearsed" else p.keyed(rows, keys)
                require(f"{role}: answers when {asked}", [("r", 5, None), ("s", 2, None)], answers(got.rows))
                require(f"{role}: states when {asked}", {0: {"n": 5}, 1: {"n": 2}}, got.values)


@case("keyed", "what is only read has no state afterwards, what is cleared has none any more")
def get_and_clear(open_: Open) -> None:
    with open_("keyed", KEYED_BOTH, KEYED) as p:
        rows = keyed(("a", "get", 0, None), ("b", "get", 0, None), ("c", "clear", 0, None), ("c", "get", 0, None))
        got = p.keyed(rows, [Known("a"), Known("b", _n(3)), Known("c", _n(4), _AT)])
        require("answers", [("a", None, None), ("b", 3, None), ("c", None, None)], answers(got.rows))
        require("the state that was cleared", (None, None), got.states.get(2))
        kept = {row: state for row, state in got.states.items() if row < 2 and state != ((None, None), (_n(3), None))[row]}
        require("states that were only read, and changed", {}, kept)


@case("states", "values of every type are read and written as they were (golden states)")
def golden(open_: Open) -> None:
    states = [(g["name"], bytes.fromhex(g["packed"]), g["python"]) for g in _golden()]
    with open_("keyed", KEYED_BOTH, KEYED) as p:
        rows = keyed(*((name, "copy", 0, None) for name, _, _ in states))
        got = p.keyed(rows, [Known(name, packed) for name, packed, _ in states])
        for row, (name, packed, shown) in enumerate(states):
            state, _ = got.states.get(row, (packed, None))
            require(name, shown, None if state is None else repr(unpack(state)["v"]))


def _golden() -> list[dict[str, str]]:
    """The golden states, from the installed package or from the sources beside it."""
    installed = resources.files("udo_cli") / "_conformance" / "state.json"
    source = Path(__file__).parents[2] / "runtimes" / "conformance" / "state.json"
    return json.loads((installed if installed.is_file() else source).read_text("utf-8"))  # type: ignore[no-any-return]


@case("failures", "a keyed event that fails names itself and leaves no state and no timer")
def raises(open_: Open) -> None:
    with open_("keyed", KEYED_BOTH, KEYED) as p:
        try:
            p.keyed(keyed(("a", "count", 1, None), ("a", "raise", 7, _AT)), [Known("a", _n(1))])
        except AnsweredFailure as e:
            require("its message", True, "raise 7" in e.failure.message)
            require("its row", 1, e.failure.row if e.failure.HasField("row") else None)
        else:
            raise Mismatch("expected Failure, got an answer")
        got = p.keyed(keyed(("b", "count", 1, None)), [Known("b")])
        require("the next answer", [("b", 1, None)], answers(got.rows))
        require("its states and timers", ({0: {"n": 1}}, []), (got.values, got.timers))


@case("timers", "timers are set for their keys")
def set_timers(open_: Open) -> None:
    with open_("keyed", KEYED_BOTH, KEYED) as p:
        rows = keyed(("a", "timer", 0, _AT), ("b", "timer", 0, _AT + 1), ("a", "timer", 0, -_SECOND))
        require("timers", [(0, -_SECOND), (0, _AT), (1, _AT + 1)], sorted(p.keyed(rows, [Known("a"), Known("b")]).timers))


@case("timers", "a timer or expiration beyond the years 1 to 9999 is a Failure, and it goes on")
def beyond(open_: Open) -> None:
    with open_("keyed", KEYED_BOTH, KEYED) as p:
        for do, at in (("timer", _BEYOND), ("expire", _BEYOND), ("timer", _BEFORE)):
            try:
                p.keyed(keyed(("a", "count", 1, None), ("a", do, 0, at)), [Known("a")])
            except AnsweredFailure as e:
                # An SDK that cannot even read such a column, like Python's, does not know the row.
                require(f"{do} at {at}: its row, if it says one", 1, e.failure.row if e.failure.HasField("row") else 1)
            else:
                raise Mismatch(f"{do} at {at}: expected Failure, got an answer")
        got = p.keyed(keyed(("b", "count", 1, None)), [Known("b")])
        require("the next answer", [("b", 1, None)], answers(got.rows))
        require("its states and timers", ({0: {"n": 1}}, []), (got.values, got.timers))


@case("timers", "timers that are due fire in order, with key, time, state and watermark")
def fire(open_: Open) -> None:
    with open_("keyed", KEYED_BOTH, KEYED) as p:
        due = [(1, _AT), (0, _AT + 1), (1, _AT + 2)]
        got = p.timers(due, [Known("a"), Known("ü", _n(5))], _AT + _SECOND)
        require("answers", [("ü", 6, _AT), ("a", 1, _AT + 1), ("ü", 7, _AT + 2)], answers(got.rows))
        require("states", {0: {"n": 1}, 1: {"n": 7}}, got.values)


@case("timers", "an expiration is set, and kept when the state changes")
def expire(open_: Open) -> None:
    with open_("keyed", KEYED_BOTH, KEYED) as p:
        rows = keyed(("a", "expire", 0, _AT), ("b", "count", 1, None), ("c", "expire", 0, _AT))
        got = p.keyed(rows, [Known("a", _n(1)), Known("b", _n(1), _AT), Known("c", _n(1), _AT - 1)])
        want = {0: ({"n": 1}, _AT), 1: ({"n": 2}, _AT), 2: ({"n": 1}, _AT)}
        require("states and when they expire", want, {row: (got.values[row], at) for row, (_, at) in got.states.items()})


@case("timers", "timers and expirations are set from whole batches, and timers fire there")
def in_batches(open_: Open) -> None:
    with open_("keyed_batches", KEYED_BOTH, {"columns": ["k"], "time_column": "at"}) as p:
        rows = keyed(("a", "count", 1, None), ("b", "timer", 0, _AT), ("a", "expire", 2, _AT + 1), ("b", "timer", 3, -_SECOND))
        got = p.keyed(rows, [Known("a", _n(1)), Known("b")])
        require("answers", [("a", 2, None), ("b", 0, None), ("a", 4, None), ("b", 3, None)], answers(got.rows))
        require("timers", [(1, -_SECOND), (1, _AT)], sorted(got.timers))
        expires = {row: (got.values[row], at) for row, (_, at) in got.states.items()}
        require("states and when they expire", {0: ({"n": 4}, _AT + 1), 1: ({"n": 3}, None)}, expires)
        fired = p.timers([(1, _AT), (0, _AT + 1)], [Known("a"), Known("ü", _n(5))], _AT + _SECOND)
        require("answers to timers", [("ü", 6, _AT), ("a", 1, _AT + 1)], answers(fired.rows))
        require("states after timers", {0: {"n": 1}, 1: {"n": 6}}, fired.values)


@case("timers", "the watermark is that of the request, or there is none")
def watermark(open_: Open) -> None:
    with open_("keyed", KEYED_BOTH, KEYED) as p:
        rows = keyed(("a", "watermark", 0, None))
        for at in (None, _AT, 0):
            require("the watermark", [("a", None, at)], answers(p.keyed(rows, [Known("a")], at).rows))


@case("migration", "states of another version are migrated, all that were asked for, and nothing in them is lost")
def migrate(open_: Open) -> None:
    with open_("keyed", KEYED_BOTH, KEYED) as p:
        got = p.migrate([Known("a", _n(1)), Known("b", _n(2, note="ü", more=[1, None])), Known("only expires", None, _AT)], 1)
        want = {0: {"n": 10, "from": 1}, 1: {"n": 20, "note": "ü", "more": [1, None], "from": 1}, 2: {"n": 0, "from": 1}}
        require("states", want, got.values)
