"""The conformance operator in Python with a lie for nearly every case: a conformance suite that cannot fail is none.

LIES holds, for each lie told here, the cases that are to notice it.
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
from udo_runtime.served import keyed
from udo_runtime.served import serve as served
from udo_runtime.served.keyed import TouchedKeys

from udo_cli.conformance.schemas import N
from udo_protocol.errors import ProtocolError
from udo_protocol.proto import operator_pb2 as pb

sys.path.insert(0, str(Path(__file__).parents[2] / "runtimes" / "conformance"))
import python_operator as honest

LIES = {
    "its child dies of SIGTERM": ["SIGINT and SIGTERM do not end it"],
    "it opens when it is only checked": ["a check before a push opens nothing"],
    "it answers a request that it does not know": ["a request of an unknown kind is a Failure, and it goes on"],
    "it answers Ping with another id": ["Ping is answered"],
    "it does not rehearse": ["Rehearse is answered as Data is, and what fails in it is a Failure"],
    "what was rehearsed is counted": ["a Rehearse is answered as Data is, and nothing of it stays"],
    "it ends with status 1": [
        "Stop is answered with Bye, then it ends with status 0",
        "Stop that comes during a frame waits for the frame's answer",
    ],
    "it exits with status 0": ["one that exits is gone, with its status, and a new one answers"],
    "integers pass through floats": ["integers and booleans: event by event"],
    "it has no -0.0": ["floats with NaN, infinities and -0.0: event by event"],
    "text is normalised": ["text and binary: event by event"],
    "decimals lose a digit": ["decimals: event by event"],
    "times lose their microseconds": ["dates and times, with and without zone: event by event"],
    "a struct that is null becomes a struct of nulls": ["lists, structs and maps: event by event"],
    "the last row of many is lost": ["a batch of 100,000 rows"],
    "a large table is taken for the one before it": ["large batches come and go as they are, with shared memory and without"],
    "one large table is written over the other": [
        "several large tables of a request, and of an answer, come and go as they are",
        "10,000 keys in one frame, each with its own state",
    ],
    "a table outside of the shared memory is taken for an empty one": [
        "a table outside of the shared memory, or in memory that was not agreed on, is refused"
    ],
    "a wrong type has no code": ["a value of another type in an answered event is a Failure of code schema, and it goes on"],
    "it answers each event once": ["each event is answered with any number of events, in order"],
    "all is logged as a warning": ["logs come before the answer, with their level"],
    "a failure says no class": [
        "an exception is a Failure with class, message, trace and row; nothing of its frame is answered; it goes on"
    ],
    "states are kept between requests": ["the same request twice has the same answer: nothing is kept between requests"],
    "a state that is cleared stays": ["what is only read has no state afterwards, what is cleared has none any more"],
    "1.0 is written as 1": ["values of every type are read and written as they were (golden states)"],
    "a keyed failure says no row": ["a keyed event that fails names itself and leaves no state and no timer"],
    "the second timer of a key is lost": ["timers are set for their keys"],
    "timers fire backwards": ["timers that are due fire in order, with key, time, state and watermark"],
    "an expiration is lost with a change": ["an expiration is set, and kept when the state changes"],
    "a watermark of 0 is none": ["the watermark is that of the request, or there is none"],
    "migration drops what it does not know": [
        "states of another version are migrated, all that were asked for, and nothing in them is lost"
    ],
}


def bent(value: Any) -> Any:
    """One column's value, a little changed."""
    match value:
        case bool() | None:
            return value
        case int():
            return min(int(float(value)), 2**63 - 1) if abs(value) == 2**53 + 1 else value
        case float():
            return value + 0.0
        case str():
            return unicodedata.normalize("NFC", value)
        case Decimal():
            return Decimal("-12.5") + Decimal("0.01") if value == Decimal("-12.50") else value
    return value.replace(microsecond=0) if hasattr(value, "microsecond") else value


class Each(honest.Each):
    def process(self, event: dict[str, Any], ctx: Any) -> Iterable[dict[str, Any]]:
        bending = {name: bent(value) for name, value in event.items()}
        if "struct" in bending:
            bending["struct"] = bending["struct"] or {"x": None, "y": None}
        yield bending


class Forward(honest.Forward):
    def process_batch(self, batch: pa.RecordBatch, ctx: Any) -> pa.RecordBatch:
        return batch.slice(0, min(batch.num_rows, 99_999))


class Events(honest.Events):
    def process(self, event: dict[str, Any], ctx: Any) -> Iterable[dict[str, Any]]:
        match event["do"]:
            case "log":
                ctx.log.warning("log %d", event["n"])
                return [{"n": event["n"] + 1}]
            case "exit":
                os._exit(0)
            case "twice":
                return [{"n": event["n"] + 1}]
        return super().process(event, ctx)


class Keyed(honest.Keyed):
    more = 0  # what an earlier request has left
    rehearsed = 0

    def process(self, event: dict[str, Any], ctx: Any) -> Iterable[dict[str, Any]]:
        if event["k"] == "a" and event["do"] == "count":
            ctx.state["n"] = ctx.state.get("n", 0) + self.more
            self.more = int(ctx.state["n"] == 7)
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

    def migrate(self, old: dict[str, Any], from_version: int) -> dict[str, Any]:
        return {"n": old["n"] * 10, "from": from_version}


class Changes(TouchedKeys):
    def due(self, request: Received) -> Any:
        return super().due(request)[::-1]

    def changes(self, *, everything: bool = False) -> list[tuple[int, pa.RecordBatch]]:
        for state, packed in zip(self.states, self._packed, strict=True):
            if packed is not None and state.get("n") == 2:
                state.pop("\0expires", None)
        return super().changes(everything=everything)


class Server(served.Server):
    def answer(self, request: Received) -> Any:
        kind = request.message.WhichOneof("kind")
        if kind == "start" and request.message.start.check:
            request.message.start.check = False
        if kind is None:
            return pb.Message(answer=pb.Answer()), ()
        if kind == "rehearse" and not self._is_keyed:
            return pb.Message(failure=pb.Failure(message="later")), ()
        reply, tables = super().answer(request)
        if kind == "rehearse" and isinstance(self._target, Keyed):
            self._target.rehearsed += 1
        if kind == "ping":
            request.message.id += 1
        if reply.HasField("failure"):
            if self._is_keyed:
                reply.failure.ClearField("row")
            elif "n" in self._input.names and "do" in self._input.names:
                reply.failure.ClearField("type")
                reply.failure.ClearField("code")
        return reply, tables


class Memory:
    """What is done to shared memory, in place of the methods of that name."""

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
    roles = {"forward": Forward, "each": Each, "events": Events, "keyed": Keyed, "keyed_batches": honest.Keyed}
    served.serve(roles[os.environ["UDO_CONFORMANCE"]]())
    sys.exit(1)
