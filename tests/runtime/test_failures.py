"""The failure that an operator's process reports when user code fails: bounded and readable, whatever the exception is like."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from udo_runtime.engine.replies import failure
from udo_runtime.execution.load import Processor
from udo_runtime.failure import ProcessingError, event_text, own_traceback, rows_to_batch, said
from udo_runtime.sdk.api import Context, Operator

from udo_protocol.cut import cut
from udo_protocol.limits import EVENT_CHARS, HEADER_BYTES, MESSAGE_CHARS, SHOWN_CAUSES, TRACEBACK_CHARS
from udo_protocol.queue.frame import Failure, Header, bounded, decode, encode

GIANT = 200_000_000


def raised(e: BaseException) -> BaseException:
    try:
        raise e
    except BaseException as caught:
        return caught


def chain(length: int) -> BaseException:
    """An exception at the end of a chain of that length, each raised from the one before."""
    last: BaseException = ValueError("the first")
    for n in range(1, length):
        e = ValueError(f"number {n}")
        e.__cause__, last = last, e
    return raised(last)


def test_a_cut_text_keeps_its_ends_and_says_what_is_missing() -> None:
    assert cut("short", 5) == "short"
    assert cut("a" * 50 + "b" * 950 + "c" * 50, 100) == "a" * 50 + " … 950 characters cut … " + "c" * 50


def test_a_giant_message_is_cut_before_a_frame_is_made_of_it() -> None:
    e = raised(ValueError("<" + "x" * GIANT + ">"))
    error = ProcessingError(said(e), own_traceback(e), event_text({"text": "y" * GIANT}))

    assert str(error).startswith("ValueError: <xxx") and "characters cut" in str(error) and str(error).endswith("x>")
    assert "characters cut" in error.traceback and error.traceback.endswith("x>")
    assert len(str(error)) < MESSAGE_CHARS + 200 and len(error.traceback) < TRACEBACK_CHARS + 200 and len(error.event) < EVENT_CHARS + 200
    failure = Failure(message=str(error), traceback=error.traceback, event=error.event)
    assert len(decode(b"".join(map(bytes, encode(Header(failure=failure))))).header.failure.message) == len(str(error))


def test_the_greatest_failure_fits_into_a_header() -> None:
    longest = Failure(message="𝄞" * 10**6, traceback="𝄞" * 10**6, event="𝄞" * 10**6, code="𝄞" * 10**6, operator="𝄞" * 10**6)

    assert bounded(longest).ByteSize() < HEADER_BYTES // 2


class Unsayable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")

    __repr__ = __str__


class NoText(Exception):
    def __str__(self) -> str:
        return 7  # type: ignore[return-value]


@pytest.mark.parametrize(("e", "why"), [(Unsayable(), "RuntimeError"), (NoText(), "TypeError")])
def test_an_exception_that_cannot_say_what_it_is_is_named(e: Exception, why: str) -> None:
    e = raised(e)  # type: ignore[assignment]

    assert said(e) == f"{type(e).__name__}: (its __str__ raised {why})"
    assert type(e).__name__ in own_traceback(e)


def test_a_chain_of_ten_thousand_causes_is_shown_from_both_ends() -> None:
    text = own_traceback(chain(10_000))

    assert "the first" in text and "number 9999" in text and text.index("the first") < text.index("number 9999")
    assert f"{10_000 - SHOWN_CAUSES:,} exceptions of the chain cut" in text
    assert len(ProcessingError("", text).traceback) <= TRACEBACK_CHARS + 100


def test_a_circular_chain_comes_to_an_end() -> None:
    a, b = ValueError("a"), ValueError("b")
    a.__context__, b.__context__ = b, a

    assert "b" in own_traceback(raised(a))


def test_a_short_chain_is_shown_as_python_shows_it() -> None:
    def fail() -> None:
        try:
            raise KeyError("cause")
        except KeyError as e:
            raise ValueError("effect") from e

    with pytest.raises(ValueError, match="effect") as info:
        fail()
    lines = own_traceback(info.value).splitlines()
    first, joint, last = lines.index("KeyError: 'cause'"), "The above exception was the direct cause of the following exception:", "effect"
    assert first < lines.index(joint) < lines.index(f"ValueError: {last}")


class Shy:
    def __repr__(self) -> str:
        raise RuntimeError("no")

    __str__ = __repr__


def test_a_value_that_cannot_be_shown_is_a_failure_of_its_event() -> None:
    with pytest.raises(ProcessingError, match=r"column 'n': expected int64, the operator answered \(a value whose __repr__ raised"):
        rows_to_batch([(Shy(),)], pa.schema([("n", pa.int64())]))
    itself: dict[str, Any] = {}
    itself["again"] = itself
    assert event_text({"n": Shy()}) == "(cannot be shown: RuntimeError)"
    assert event_text(itself).startswith("(cannot be shown")


def test_half_a_surrogate_pair_in_an_error_can_be_sent() -> None:
    class Fails(Operator):
        def process(self, event: Any, ctx: Any) -> Any:
            raise ValueError("half \ud800 of a pair")

    with pytest.raises(ProcessingError) as info:
        Processor(Fails(), pa.schema([("n", pa.int64())]), Context("t", "1")).once(pa.record_batch({"n": [1]}))
    sent = failure(info.value)
    assert sent.message == "ValueError: half \\ud800 of a pair" and "half \\ud800 of a pair" in sent.traceback
