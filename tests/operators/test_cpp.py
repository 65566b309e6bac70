"""Operators in C++: an error in their code is one event's failure, which says what the error was, and the process goes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
import pytest
from udo_runtime.child.wire import Gone

from tests.operators.sdks import Sdk
from udo_cli.conformance.player import Player, starting
from udo_cli.conformance.schemas import EVENTS, N, events

pytestmark = [pytest.mark.long, pytest.mark.parametrize("sdk", ["cpp"], indirect=True)]
TEXT = pa.schema([("text", pa.string())])
# Text longer than a message's header may be.
LONG = 2 << 20
REPLY_S = 30.0


@contextmanager
def opened(sdk: Sdk, role: str, schemas: tuple[pa.Schema, pa.Schema]) -> Iterator[Player]:
    command = [word.replace("bin/", f"{sdk.bin}/") for word in sdk.starting("conformance")]
    player = Player(starting(command), role, {}, REPLY_S)
    try:
        player.start(schemas)
        yield player
    finally:
        player.close()


@pytest.fixture
def faulty(sdk: Sdk) -> Iterator[Player]:
    """The conformance operator's role for tests of the C++ SDK; it still answers after the test."""
    with opened(sdk, "faulty", (EVENTS, TEXT)) as player:
        yield player
        assert answered(player, ("text", 0)) == ["text"]


def answered(player: Player, *rows: tuple[str, int]) -> list[str]:
    return player.data(events(*rows)).column(0).to_pylist()  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("made", "got"),
    [
        ("fewer", "a: int64\nb: (no column)"),
        ("more", "a: int64\nb: string\n(no name): string"),
        ("another type", "a: string\nb: string"),
        ("another length", "a: int64\nb: string of 2 rows in a batch of 3"),
        ("another name", "a: int64\nc: string"),
    ],
)
def test_a_batch_of_other_columns_than_its_schema_says_is_refused(sdk: Sdk, made: str, got: str) -> None:
    given, answers = pa.schema([(made, pa.int64())]), pa.schema([("a", pa.int64()), ("b", pa.string())])
    with opened(sdk, "misfits", (given, answers)) as player:
        failure = player.fails(pa.record_batch([[1, 2, 3]], schema=given))
    assert (failure.code, failure.message.partition("expected ")[2]) == ("schema", f"a: int64\nb: string, got {got}")


def test_a_message_of_any_length_arrives_with_its_beginning_and_its_end(faulty: Player) -> None:
    long = faulty.fails(events(("raise long", LONG))).message
    assert len(long) < 20_000 and "bytes cut" in long
    assert long.startswith("begins éé") and long.endswith("éé ends") and "�" not in long


def test_a_message_of_any_bytes_arrives(faulty: Player) -> None:
    assert faulty.fails(events(("raise bytes", 0))).message == "caf� au lait"


def test_a_line_of_the_log_of_any_length_arrives_with_its_beginning_and_its_end(faulty: Player) -> None:
    assert answered(faulty, ("log long", LONG)) == ["log long"]
    [(_, long)] = faulty.logs
    assert len(long) < 70_000 and long.startswith("begins éé") and long.endswith("éé ends") and "�" not in long


def test_a_line_of_the_log_of_any_bytes_arrives(faulty: Player) -> None:
    assert answered(faulty, ("log bytes", 0)) == ["log bytes"]
    assert [line for _, line in faulty.logs] == ["caf� au lait"]


def test_text_that_is_not_utf_8_names_its_column(faulty: Player) -> None:
    long = faulty.fails(events(("answer bytes", LONG)))
    assert (long.code, len(long.message) < 20_000) == ("schema", True)
    refused = faulty.fails(events(("text", 0), ("answer bytes", 1)))
    assert (refused.code, refused.row) == ("schema", 1)
    assert refused.message == 'column "text": expected string, the operator answered bytes that are not UTF-8, "begins � ends"'


def test_an_answer_that_was_refused_and_caught_leaves_the_others_as_they_were(faulty: Player) -> None:
    assert answered(faulty, ("a", 0), ("catch", 0), ("b", 0), ("catch", 0)) == ["a", "caught", "b", "caught"]


def test_a_failure_has_the_trace_of_its_own_exception(faulty: Player) -> None:
    assert "Faulty::process(" in faulty.fails(events(("raise", 0))).trace
    elsewhere = faulty.fails(events(("raise elsewhere", 0)))
    assert elsewhere.message == "raised elsewhere" and elsewhere.trace.strip().startswith("thrown in another thread")


@pytest.mark.parametrize(("do", "status"), [("fork and raise", 1), ("fork and return", 0)])
def test_a_process_that_an_operator_forks_does_not_answer_for_it(sdk: Sdk, do: str, status: int) -> None:
    with opened(sdk, "faulty", (EVENTS, TEXT)) as player:
        assert answered(player, (do, 0), ("text", 0)) == [f"the child ended with {status}", "text"]
        assert (player.logs, answered(player, ("text", 0))) == ([], ["text"])
        player.stop()
        lines = player.process.last_lines
    assert ("in the child" in lines, "raised in the child" in lines) == (True, status == 1)


def test_a_line_that_was_printed_is_kept_if_the_process_is_killed_then(sdk: Sdk) -> None:
    with opened(sdk, "events", (EVENTS, N)) as player:
        with pytest.raises(Gone):
            player.data(events(("print", 7), ("abort", 1)))
        player.process.end(REPLY_S)
        assert "print 7" in player.process.last_lines
