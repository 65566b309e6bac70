"""The Node SDK, seen from the engine: answers in another form than emit, migrations, long errors, times that no language has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from udo_runtime.state.codec import pack

from tests.operators.sdks import Sdk
from udo_cli.conformance.player import KEYED, AnsweredFailure, Known, Player, starting
from udo_cli.conformance.schemas import EVENTS, KEYED_BOTH, N, answers, events, keyed
from udo_protocol.limits import MESSAGE_CHARS, TRACEBACK_CHARS
from udo_protocol.proto import operator_pb2 as pb

# The gate tries Node with the tests of all SDKs (test_sdks.py).
pytestmark = [pytest.mark.long, pytest.mark.parametrize("sdk", ["node"], indirect=True)]
REPLY_S = 30.0
AT = 1_700_000_000_000_000
Schemas = tuple[pa.Schema, pa.Schema]
ONE: dict[str, Any] = {"columns": ["k"]}
TIMED: dict[str, Any] = {**ONE, "time_column": "at"}


class Operator:
    """Starts operators whose source is an object in JavaScript."""

    def __init__(self, sdk: Sdk, folder: Path) -> None:
        self._folder = folder
        (folder / "node_modules").symlink_to(sdk.bin / "node_modules")

    @contextmanager
    def __call__(self, source: str, schemas: Schemas = (EVENTS, N), keyed: dict[str, Any] | None = None) -> Iterator[Player]:
        program = self._folder / "operator.mjs"
        program.write_text(f'import {{Instant, run}} from "udo-operator";\nrun({source});\n')
        player = Player(starting(["node", str(program)]), "", {}, REPLY_S)
        try:
            player.start(schemas, keyed)
            yield player
        finally:
            player.close()


@pytest.fixture
def operator(sdk: Sdk, tmp_path: Path) -> Operator:
    return Operator(sdk, tmp_path)


def row_of(failure: pb.Failure) -> int | None:
    return failure.row if failure.HasField("row") else None


@pytest.mark.parametrize(
    "body",
    [
        "*process({n}) { yield {n}; }",
        "async *process({n}) { yield {n}; }",
        "process: ({n}) => ({n})",
        "process: async ({n}) => ({n})",
        "process: (event) => [event]",
        "process: (event, ctx) => { ctx.emit({n: 0n}); return Object.create(null, {n: {value: 1n}}); }",
    ],
)
def test_an_answer_that_is_returned_or_yielded_is_refused(operator: Operator, body: str) -> None:
    with operator(f"{{{body}}}") as player:
        failure = player.fails(events(("add", 1), ("add", 2)))
        assert "call emit(row) for each answer" in failure.message and row_of(failure) == 0


def test_an_answer_that_a_keyed_method_or_a_timer_returns_is_refused(operator: Operator) -> None:
    source = "{processKeyed: ({k, n}) => ({k, n, at: null}), *onTimer(at, key) { yield {k: key.value, n: 1n, at}; }}"
    with operator(source, KEYED_BOTH, TIMED) as player:
        with pytest.raises(AnsweredFailure, match="it returned an answer: call emit"):
            player.keyed(keyed(("a", "", 1, None)), [Known("a")])
        with pytest.raises(AnsweredFailure, match="it returned a generator: call emit"):
            player.timers([(0, AT)], [Known("a")], AT)


def test_other_values_of_arrow_functions_are_no_answers(operator: Operator) -> None:
    bodies = ["{sum: n}", "[n]", "[undefined]", "new Map([[1, n]])", "new Set()", "(key.state = {k, n})", "n", "null", "'n'"]
    functions = ", ".join(f"() => {body}" for body in bodies)
    source = f"{{processKeyed: ({{k, n, do: what}}, key) => (key.emit({{k, n, at: null}}), [{functions}][what]())}}"
    with operator(source, KEYED_BOTH, ONE) as player:
        got = player.keyed(keyed(*(("a", str(n), n, None) for n in range(len(bodies)))), [Known("a")])
        assert [n for _, n, _ in answers(got.rows)] == list(range(len(bodies)))
        assert got.values == {0: {"k": "a", "n": 5}}


@pytest.mark.parametrize(
    "body", ["processBatch(batch, ctx) { ctx.emit({n: 1n}); }", "processBatch(batch, ctx) { ctx.emit({n: 1n}); return batch; }"]
)
def test_emit_in_a_vectorised_method_is_refused(operator: Operator, body: str) -> None:
    with operator(f"{{{body}}}", (N, N)) as player:
        failure = player.fails(pa.record_batch([[1]], schema=N))
        assert "a vectorised method returns its answer" in failure.message and row_of(failure) is None
        assert "operator.mjs:2" in failure.trace


def test_emit_in_a_vectorised_keyed_method_is_refused_and_no_timer_answers_for_it(operator: Operator) -> None:
    source = (
        "{processKeys(batch, keys) { keys[0].emit({k: 'a', n: 1n, at: null}); }, onTimer(at, key) { key.emit({k: key.value, n: 2n, at}); }}"
    )
    with operator(source, KEYED_BOTH, TIMED) as player:
        with pytest.raises(AnsweredFailure, match="a vectorised method returns its answer"):
            player.keyed(keyed(("a", "", 1, None)), [Known("a")])
        assert answers(player.timers([(0, AT)], [Known("b")], AT).rows) == [("b", 2, AT)]


def test_emit_while_it_opens_is_refused(operator: Operator) -> None:
    with pytest.raises(AnsweredFailure, match=r"emit\(row\) is for process"), operator("{open(ctx) { ctx.emit({n: 1n}); }, process() {}}"):
        pass


@pytest.mark.parametrize("body", ["old.n *= 10n;", "return null;", "await 0; old.n *= 10n;", "return undefined;", "return [old];"])
def test_a_migration_that_returns_no_state_fails_and_drops_none(operator: Operator, body: str) -> None:
    source = f"{{processKeyed() {{}}, async migrate(old) {{ if (old.n === 1n) return {{...old, n: 10n}}; {body} }}}}"
    with operator(source, KEYED_BOTH, KEYED) as player:
        with pytest.raises(AnsweredFailure, match=r"expected (the new|a) state as an object, got (undefined|null|Array)") as caught:
            player.migrate([Known("a", pack({"n": 1})), Known("b", pack({"n": 2}))], 1)
        assert row_of(caught.value.failure) == 1
        assert player.migrate([Known("a", pack({"n": 1}))], 1).values == {0: {"n": 10}}


def test_a_migration_may_leave_nothing_of_a_state(operator: Operator) -> None:
    with operator("{processKeyed() {}, migrate: () => ({})}", KEYED_BOTH, KEYED) as player:
        assert player.migrate([Known("a", pack({"n": 1}))], 1).states == {0: (None, None)}


@pytest.mark.parametrize("text", ["'x'.repeat(3_000_000)", "'😀'.repeat(1_500_000)", "'half a pair: \\ud83d'"])
def test_errors_and_logs_of_any_text_arrive_cut(operator: Operator, text: str) -> None:
    source = (
        f"{{process({{do: what, n}}, ctx) {{ if (what === 'raise') throw new Error({text}); ctx.log.error({text}); ctx.emit({{n}}); }}}}"
    )
    with operator(source) as player:
        failure = player.fails(events(("add", 1), ("raise", 2)))
        assert row_of(failure) == 1 and "operator.mjs" in failure.trace
        assert len(f"{failure.type}: {failure.message}") <= MESSAGE_CHARS and len(failure.trace) <= TRACEBACK_CHARS
        assert player.data(events(("add", 1))).column(0).to_pylist() == [1]
        [_, (level, logged)] = player.logs
        assert level == pb.Log.ERROR and len(logged) <= 64_000
        for told in (failure.message, logged):
            assert told == "half a pair: \ufffd" or " characters cut … " in told
            assert told.count("\ufffd") == ("half" in text)


def test_a_time_beyond_the_years_is_a_failure_of_its_event(sdk: Sdk) -> None:
    """The sample sets a timer half a minute after the event."""
    visits = pa.schema([("k", pa.string()), ("t", pa.timestamp("us", "UTC"))])
    ended = pa.schema([("k", pa.string()), ("n", pa.int64()), ("ended", pa.timestamp("us", "UTC"))])
    player = Player(starting(["node", str(sdk.bin / "sessionise.js")]), "", {}, REPLY_S)
    try:
        player.start((visits, ended), {"columns": ["k"], "time_column": "t"})
        with pytest.raises(AnsweredFailure, match="beyond the years 1 to 9999") as caught:
            player.keyed(pa.record_batch([["a", "b"], [AT, 253_402_300_799_000_000]], schema=visits), [Known("a"), Known("b")])
        assert row_of(caught.value.failure) == 1
        assert player.keyed(pa.record_batch([["a"], [AT]], schema=visits), [Known("a")]).timers == [(0, AT + 30_000_000)]
    finally:
        player.close()


def test_a_timer_may_be_a_date_and_what_is_no_time_fails_its_event(operator: Operator) -> None:
    source = "{processKeyed({do: what, n}, key) { key[what]([new Date(5), 5, null][n]); }, onTimer() {}}"
    with operator(source, KEYED_BOTH, TIMED) as player:
        got = player.keyed(keyed(("a", "timer", 0, None), ("b", "expire", 0, None)), [Known("a"), Known("b", pack({"n": 1}))])
        assert (got.timers, got.states[1]) == ([(0, 5_000)], (pack({"n": 1}), 5_000))
        for what, n in (("timer", 1), ("timer", 2), ("expire", 1), ("expire", 2)):
            with pytest.raises(AnsweredFailure, match="expected an Instant, got"):
                player.keyed(keyed(("a", what, n, None)), [Known("a")])


@pytest.mark.parametrize("state", ["'a\\ud83d'", "new Instant(253402300800000000000n)"])
def test_a_state_that_python_could_not_read_fails_its_event(operator: Operator, state: str) -> None:
    source = f"{{processKeyed({{n}}, key) {{ key.state = n === 2n ? {{v: {state}}} : {{v: [n, , n]}}; }}}}"
    with operator(source, KEYED_BOTH, ONE) as player:
        with pytest.raises(AnsweredFailure) as caught:
            player.keyed(keyed(("a", "", 1, None), ("b", "", 2, None)), [Known("a"), Known("b")])
        assert row_of(caught.value.failure) == 1
        assert player.keyed(keyed(("a", "", 1, None)), [Known("a")]).values == {0: {"v": [1, None, 1]}}


COLUMNS: dict[str, tuple[pa.DataType, Sequence[Any]]] = {
    "hundreds": (pa.decimal128(5, -2), [Decimal("12300"), Decimal("-9999900"), Decimal(0), None]),
    "ns": (pa.timestamp("ns", "UTC"), [1, -1, 2**63 - 1, None]),
    "day_ms": (pa.date64(), [0, -86_400_000, 86_400_000, None]),
    "of_day": (pa.time64("ns"), [0, 86_399_999_999_999, 1, None]),
}


def test_columns_that_spark_has_not_are_answered_as_they_came(operator: Operator) -> None:
    schema = pa.schema([(name, t) for name, (t, _) in COLUMNS.items()])
    sent = pa.RecordBatch.from_arrays([pa.array(values, t) for t, values in COLUMNS.values()], schema=schema)
    with operator("{process: (event, ctx) => ctx.emit(event)}", (schema, schema)) as player:
        assert player.data(sent).equals(sent)
