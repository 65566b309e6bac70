"""The conformance operator in Python with a lie for every case, to show that each case of the conformance suite can fail.

LIES holds, for each lie told here, the cases that must notice it, and the message of each.
"""

from __future__ import annotations

import os
import signal
import sys
import unicodedata
from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
from udo_runtime.child.shared import Half, SharedMemory
from udo_runtime.child.wire import Received
from udo_runtime.served import serve as served
from udo_runtime.served import touched_keys as keyed
from udo_runtime.served.touched_keys import TouchedKeys

from udo_cli.conformance.schemas import N
from udo_protocol.errors import ProtocolError
from udo_protocol.proto import operator_pb2 as pb

sys.path.insert(0, str(Path(__file__).parents[2] / "runtimes" / "conformance"))
import python_operator as honest


def of_types(group: str, why: str) -> dict[str, str]:
    """The entries for the two cases of these types."""
    return {f"{group}: in batches": why, f"{group}: event by event": why}


LIES = {
    "its child dies of SIGTERM": {"SIGINT and SIGTERM do not end it": "it ended, or closed its connection"},
    "it does not say that it rehearses": {
        "Hello says version 1, its SDK, and what it can do": "that it lacks: expected [], got ['rehearse']"
    },
    "it refuses fields that it does not know": {"fields that it does not know are ignored": "Failure : a field that nobody knows"},
    "it opens when it is only checked": {"a check before a push opens nothing": "Failure : no model"},
    "its open does not fail": {
        "an open that fails is a Failure with message and trace": "role keyed: expected Failure to Start, got Ready"
    },
    "it answers a request that it does not know": {"a request of an unknown kind is a Failure, and it goes on": "got answer"},
    "it answers Ping with another id": {"Ping is answered": "the id of the reply"},
    "it does not rehearse": {"Rehearse is answered as Data is, and what fails in it is a Failure": "Failure : later"},
    "what was rehearsed is counted": {"a Rehearse is answered as Data is, and nothing of it stays": "got [('r', 6, None)"},
    "it ends with status 1": {
        "Stop is answered with Bye, then it ends with status 0": "got 'ended with exit status 1'",
        "Stop that comes during a frame waits for the frame's answer": "got 'ended with exit status 1'",
    },
    "it does not close": {"Stop closes the operator, once": "expected 1, got 0"},
    "it is killed when nobody is there any more": {"it ends when the connection does, idle or during a frame": "SIGKILL"},
    "it exits with status 0": {"one that exits is gone, with its status, and a new one answers": "got 'ended with exit status 0'"},
    "a signal is an exit status": {
        "one that a signal ends is gone, with its signal, and a new one answers": "expected a signal, it ended with exit status 4"
    },
    "it neither hangs nor takes memory": {
        "one that hangs is ended, and a new one answers": "expected no reply, got answer",
        "one that takes too much memory fails its frame or is killed, and a new one answers": "expected Failure, got an answer",
    },
    "integers pass through floats": {
        **of_types("integers and booleans", "expected 9007199254740993, got 9007199254740992"),
        **of_types("unsigned integers", "expected 9007199254740993, got 9007199254740992"),
        "10,000 rows of all types: event by event": "column i64 (int64), row",
    },
    "it has no -0.0": {
        **of_types("floats with NaN, infinities and -0.0", "expected -0.0, got 0.0"),
        "a map with a key twice, or with the key -0.0, is a Failure or answered as it came: event by event": "row 0: expected -0.0",
    },
    "text is normalised": of_types("text and binary", "column text (string), row 10"),
    "decimals lose a digit": of_types("decimals", "expected -12.50, got -12.49"),
    "times lose their microseconds": of_types("dates and times, with and without zone", "23:59:59.999999, got 2024-02-29 23:59:59"),
    "a struct that is null becomes a struct of nulls": of_types("lists, structs and maps", "row 1: expected None, got [('x', None)"),
    "a null beside a column of nulls becomes 0": of_types("columns without values (null)", "row 1: expected None, got 0"),
    "the last row of many is lost": {"a batch of 100,000 rows": "expected 100000, got 99999"},
    "a large table is taken for the one before it": {
        "large batches come and go as they are, with shared memory and without": "30000 rows in shared memory: expected True, got False"
    },
    "one large table is written over the other": {
        "several large tables of a request, and of an answer, come and go as they are": "its table ROWS",
        "10,000 keys in one frame, each with its own state": "its table ROWS",
    },
    "a table outside of the shared memory is taken for an empty one": {
        "a table outside of the shared memory, or in memory that was not agreed on, is refused": "expected a Failure, got answer"
    },
    "a wrong type has no code": {
        "a value of another type in an answered event is a Failure of code schema, and it goes on": "the code: expected 'schema', got ''",
        "a number beyond its column is a Failure of code schema, and it goes on": "the code: expected 'schema', got ''",
        "an answer with other columns than the output schema is a Failure of code schema": "['n', 'm']: expected 'schema', got ''",
        "an integer beyond 2^53 answered in a column of doubles is a Failure of code schema": "the code: expected 'schema', got ''",
        "a text of 2,000,000 characters answered in a column of integers is a Failure of code schema, and it goes on": "got ''",
    },
    "an event is answered as often as one like it has come": {
        "each event is answered with any number of events, in order": "expected [2, 4, 4, 5], got [2, 4, 5]",
        "the same request twice has the same answer": "expected [2, 3], got [2, 3, 3]",
    },
    "all is logged as a warning": {
        "logs come before the answer, each with its level; only those of DEBUG may stay away": "expected [2, 3, 4], got [3]"
    },
    "nothing is printed": {"what it prints is kept": "printed: expected True, got False"},
    "a failure says no class": {
        "an exception is a Failure with class, message, trace and row; nothing of its frame is answered; it goes on": "says its class"
    },
    "a new key is one that was there": {
        "a count goes on from the state, in the order of each key's events": "keyed: answers: expected [('a', 11, None), ('ü', 5, None)"
    },
    "states are kept between requests": {
        "the same request twice has the same answer: nothing is kept between requests": "keyed: answers: expected [('a', 8, None)"
    },
    "a state that is cleared stays": {
        "what is only read has no state afterwards, what is cleared has none any more": "('b', 3, None), ('c', 4, None)]"
    },
    "1.0 is written as 1": {"values of every type are read and written as they were (golden states)": "expected 'True', got '1'"},
    "a keyed failure says no row": {
        "a keyed event that fails names itself and leaves no state and no timer": "its row: expected 1, got None"
    },
    "the second timer of a key is lost": {
        "timers are set for their keys": "(1, 1700000000000001)], got [(0, 1700000000000000)]",
        "timers and expirations are set from whole batches, and timers fire there": "got [(1, 1700000000000000)]",
    },
    "timers fire backwards": {"timers that are due fire in order, with key, time, state and watermark": "got [('ü', 6, 1700000000000002)"},
    "a timer beyond the years is not set, and nothing is said": {
        "a timer or expiration beyond the years 1 to 9999 is a Failure, and it goes on": "timer at 253402300800000000: expected Failure"
    },
    "an expiration is lost with a change": {"an expiration is set, and kept when the state changes": "1: ({'n': 2}, None)"},
    "a watermark of 0 is none": {
        "the watermark is that of the request, or there is none": "expected [('a', None, 0)], got [('a', None, None)]"
    },
    "migration drops what it does not know": {
        "states of another version are migrated, all that were asked for, and nothing in them is lost": "1: {'n': 20, 'from': 1}, 2: {"
    },
    "it takes half of the bound for all of it": {
        "an answer just below the bound is answered, and any if there is none": "the bound is 131072",
        "a batch above the bound is a Failure that tells the bound, wherever the tables lie, and it goes on": "the bound is 131072",
        "an event that is answered without end is a Failure that names it, in little memory, and it goes on": "the bound is 131072",
    },
    "it knows no bound": {
        "answers above the bound are a Failure that names the event where they reach it, and it goes on": "got an answer of 2064 rows",
        "states count: an answer that is too large with them is a Failure, and it goes on": "expected Failure, got an answer",
    },
}


def bent(event: dict[str, Any]) -> dict[str, Any]:
    """The event with slightly changed values."""
    bending = {name: bent_value(value) for name, value in event.items()}
    if "struct" in bending:
        bending["struct"] = bending["struct"] or {"x": None, "y": None}
    if "nothing" in bending:
        bending["n"] = bending["n"] or 0
    return bending


def bent_value(value: Any) -> Any:
    match value:
        case bool() | None:
            return value
        case int():
            return min(int(float(value)), 2**63 - 1) if abs(value) == 2**53 + 1 else value
        case float():
            return value + 0.0
        case dict():
            return {bent_value(k): v for k, v in value.items()}
        case str():
            return unicodedata.normalize("NFC", value)
        case Decimal():
            return Decimal("-12.5") + Decimal("0.01") if value == Decimal("-12.50") else value
    return value.replace(microsecond=0) if hasattr(value, "microsecond") else value


class Each(honest.Each):
    def process(self, event: dict[str, Any], ctx: Any) -> Iterable[dict[str, Any]]:
        yield bent(event)


class Forward(honest.Forward):
    def process_batch(self, batch: pa.RecordBatch, ctx: Any) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist(list(map(bent, batch.to_pylist()[:99_999])), schema=batch.schema)


class Events(honest.Events):
    twice = 0  # the number of these requests so far

    def process(self, event: dict[str, Any], ctx: Any) -> Iterable[dict[str, Any]]:
        match event["do"]:
            case "log":
                ctx.log.warning("log %d", event["n"])
                return [{"n": event["n"] + 1}]
            case "exit":
                os._exit(0)
            case "abort":
                os._exit(4)
            case "twice":
                self.twice += 1
                return [{"n": event["n"] + 1}] * self.twice
            case "print" | "hang" | "memory":
                return [{"n": event["n"] + 1}]
        return super().process(event, ctx)

    def close(self) -> None:
        pass


class Keyed(honest.Keyed):
    more = 0  # left over from an earlier request
    rehearsed = 0

    def process(self, event: dict[str, Any], ctx: Any) -> Iterable[dict[str, Any]]:
        if event["k"] == "a" and event["do"] == "count":
            ctx.state["n"] = ctx.state.get("n", 0) + self.more
            self.more = int(ctx.state["n"] == 7)
        if event["k"] == "ü" and event["do"] == "count":
            ctx.state["n"] = 1
        if event["k"] == "r":
            ctx.state["n"] = ctx.state.get("n", 0) + self.rehearsed
        if event["do"] == "copy" and ctx.state.get("v") == 1.0:
            ctx.state["v"] = 1
        if event["do"] == "clear":
            return []
        if event["do"] == "timer" and ctx._set:
            return []
        if event["do"] == "watermark" and ctx._watermark_us == 0:
            ctx._watermark_us = None
        return super().process(event, ctx)

    def open(self, ctx: Any) -> None:
        pass

    def migrate(self, old: dict[str, Any], from_version: int) -> dict[str, Any]:
        return {"n": old.get("n", 0) * 10, "from": from_version}


class KeyedBatches(honest.KeyedBatches):
    def process_keys(self, keys: Any, events: pa.RecordBatch, states: Any, ctx: Any) -> dict[str, Any]:
        answer = super().process_keys(keys, events, states, ctx)
        del ctx._set[1:]
        return answer


class Changes(TouchedKeys):
    def due(self, request: Received) -> Any:
        return super().due(request)[::-1]

    def changes(self, *, everything: bool = False) -> list[tuple[int, pa.RecordBatch]]:
        for state, packed in zip(self.states, self._packed, strict=True):
            if packed is not None and state.get("n") == 2:
                state.pop("\0expires", None)
        return super().changes(everything=everything)


class Server(served.Server):
    stopped = False

    def answer(self, request: Received) -> Any:
        kind = request.message.WhichOneof("kind")
        Server.stopped = kind == "stop"
        known = pb.Message.FromString(request.message.SerializeToString())
        known.DiscardUnknownFields()  # type: ignore[attr-defined]
        if kind is not None and known.ByteSize() != request.message.ByteSize():
            return pb.Message(failure=pb.Failure(message="a field that nobody knows")), ()
        if kind == "start" and request.message.start.check:
            request.message.start.check = False
        if kind == "start":
            request.message.start.answer_bytes //= 2
            if isinstance(self._target, (Each, Keyed)):
                request.message.start.answer_bytes = 0
        if kind is None:
            return pb.Message(answer=pb.Answer()), ()
        if kind == "rehearse" and not self._is_keyed:
            return pb.Message(failure=pb.Failure(message="later")), ()
        reply, tables = super().answer(request)
        if kind == "rehearse" and isinstance(self._target, Keyed):
            self._target.rehearsed += 1
        if kind == "ping":
            request.message.id += 1
        if reply.failure.type == "OverflowError":
            return pb.Message(answer=pb.Answer()), ()
        if reply.HasField("failure"):
            if kind != "start" and self._is_keyed:
                reply.failure.ClearField("row")
            if isinstance(self._target, Events):
                reply.failure.ClearField("type")
            reply.failure.ClearField("code")
        return reply, tables


class Memory:
    """False replacements for the shared memory methods of the same names."""

    honest_take, honest_put = SharedMemory.take, Half.put
    last = pa.py_buffer(b"")

    @staticmethod
    def take(self: SharedMemory, offset: int, size: int) -> pa.Buffer:
        try:
            found = Memory.honest_take(self, offset, size)
        except ProtocolError:
            return pa.RecordBatch.from_pylist([], schema=N).serialize()
        before, Memory.last = Memory.last, found
        return before if len(before) == size else found

    @staticmethod
    def put(self: Half, data: pa.Buffer) -> int | None:
        self.begin()
        return Memory.honest_put(self, data)


if __name__ == "__main__":
    SharedMemory.take, Half.put = Memory.take, Memory.put  # type: ignore[method-assign]
    served.Server = Server  # type: ignore[misc]
    keyed.TouchedKeys = Changes  # type: ignore[misc]
    ignore = signal.signal
    signal.signal = lambda number, how: ignore(number, how) if number == signal.SIGINT else None  # type: ignore[assignment]
    roles = {"forward": Forward, "each": Each, "events": Events, "keyed": Keyed, "keyed_batches": KeyedBatches}
    capabilities = served._capabilities
    served._capabilities = lambda target: [c for c in capabilities(target) if c != "rehearse"]
    served.serve(roles[os.environ["UDO_CONFORMANCE"]]())
    if not Server.stopped:
        os.kill(os.getpid(), signal.SIGKILL)
    sys.exit(1)
