"""Cases: greeting, start, requests beside the events, the end."""

from __future__ import annotations

import os
import signal

import psutil

from udo_cli.conformance.cases import Open, case
from udo_cli.conformance.player import KEYED, STOP_S, AnsweredFailure, Mismatch, require
from udo_cli.conformance.schemas import EVENTS, KEYED_BOTH, N, events
from udo_protocol.proto import operator_pb2 as pb

# Field 1000, a number, which no version of the protocol has.
_UNKNOWN = bytes([0xC0, 0x3E, 0x07])
BOTH = (EVENTS, N)


@case("handshake", "Hello says version 1, its SDK, and what it can do")
def hello(open_: Open) -> None:
    keyed = {"forward": [], "keyed": ["keyed", "timers", "migrate"], "keyed_batches": ["keyed", "timers"]}
    for role, has in keyed.items():
        with open_(role) as p:
            said = p.hello()
            require(f"{role}: versions include 1", True, said.oldest <= 1 <= said.newest)
            require(f"{role}: says its SDK", True, bool(said.sdk))
            require(f"{role}: capabilities that it lacks", [], [c for c in (*has, "rehearse") if c not in said.capabilities])
            require(f"{role}: claims to be keyed", bool(has), "keyed" in said.capabilities)


@case("handshake", "fields that it does not know are ignored")
def unknown_fields(open_: Open) -> None:
    with open_("events") as p:
        p.start(BOTH, unknown=_UNKNOWN)
        request = pb.Message(data=pb.Data())
        request.MergeFromString(_UNKNOWN)
        request.data.MergeFromString(_UNKNOWN)
        reply = p.ask(request, [(pb.Part.EVENTS, events(("add", 1)))])
        require("the reply", "answer", reply.message.WhichOneof("kind"))


@case("handshake", "a check before a push opens nothing")
def check(open_: Open) -> None:
    with open_("events", UDO_CONFORMANCE_OPEN="fails") as p:
        p.start(BOTH, check=True)


@case("handshake", "an open that fails is a Failure with message and trace")
def open_fails(open_: Open) -> None:
    for role, schemas, keyed in (("events", BOTH, None), ("keyed", KEYED_BOTH, KEYED)):
        with open_(role, UDO_CONFORMANCE_OPEN="fails") as p:
            try:
                p.start(schemas, keyed)
            except AnsweredFailure as e:
                require("its message", True, "no model" in e.failure.message)
                require("has a trace", True, bool(e.failure.trace))
            else:
                raise Mismatch(f"role {role}: expected Failure to Start, got Ready")


@case("requests", "Ping is answered")
def ping(open_: Open) -> None:
    with open_("events", BOTH) as p:
        require("the reply", "ping", p.ask(pb.Message(ping=pb.Ping())).message.WhichOneof("kind"))


@case("requests", "a request of an unknown kind is a Failure, and it goes on")
def unknown_request(open_: Open) -> None:
    with open_("events", BOTH) as p:
        request = pb.Message()
        request.MergeFromString(_UNKNOWN)
        try:
            reply = p.ask(request)
            raise Mismatch(f"expected Failure, got {reply.message.WhichOneof('kind')}")
        except AnsweredFailure:
            pass
        require("the next answer", [2], p.data(events(("add", 1))).column(0).to_pylist())


@case("requests", "Rehearse is answered as Data is, and what fails in it is a Failure")
def rehearse(open_: Open) -> None:
    with open_("events", BOTH) as p:
        require("its rows", [2], p.rehearsed([(pb.Part.EVENTS, events(("add", 1)))], 0).rows.column(0).to_pylist())
        try:
            p.rehearsed([(pb.Part.EVENTS, events(("add", 1), ("raise", 7)))], 0)
        except AnsweredFailure as e:
            require("its message", True, "raise 7" in e.failure.message)
            require("its row", 1, e.failure.row if e.failure.HasField("row") else None)
        else:
            raise Mismatch("expected Failure, got an answer")
        require("the next answer", [2], p.data(events(("add", 1))).column(0).to_pylist())


@case("end", "Stop is answered with Bye, then it ends with status 0")
def stop(open_: Open) -> None:
    with open_("events", BOTH) as p:
        p.data(events(("add", 1)))
        p.stop()


@case("end", "Stop closes the operator, once")
def close(open_: Open) -> None:
    with open_("events", BOTH) as p:
        p.ask(pb.Message(stop=pb.Stop(deadline_ms=int(STOP_S * 1000))))
        p.process.end(STOP_S)
        require("lines that its close printed", 1, p.process.last_lines.split().count("closed"))


@case("end", "Stop that comes during a frame waits for the frame's answer")
def stop_in_frame(open_: Open) -> None:
    with open_("events", BOTH) as p:
        p.send(pb.Message(data=pb.Data()), [(pb.Part.EVENTS, events(("sleep", 300)))])
        p.send(pb.Message(stop=pb.Stop(deadline_ms=int(STOP_S * 1000))))
        require("the first reply", "answer", p.reply(number=2).message.WhichOneof("kind"))
        require("the second", "bye", p.reply(number=3).message.WhichOneof("kind"))
        require("how it ended", "ended with exit status 0", p.process.end(STOP_S))


@case("end", "it ends when the connection does, idle or during a frame")
def hang_up(open_: Open) -> None:
    for frame in (None, events(("sleep", 300))):
        with open_("events", BOTH) as p:
            if frame is not None:
                p.send(pb.Message(data=pb.Data()), [(pb.Part.EVENTS, frame)])
            p.hang_up()
            if "killed" in (how := p.process.end(STOP_S)):
                raise Mismatch(f"expected it to end by itself within {STOP_S:g} s, it {how}")


@case("end", "SIGINT and SIGTERM do not end it")
def signals(open_: Open) -> None:
    with open_("events", BOTH) as p:
        for pid in leaves(p.process.pid):
            for number in (signal.SIGINT, signal.SIGTERM):
                os.kill(pid, number)
        require("the next answer", [2], p.data(events(("add", 1))).column(0).to_pylist())


def leaves(pid: int) -> list[int]:
    """The processes without children: a shell around them need not ignore signals."""
    first = psutil.Process(pid)
    return [p.pid for p in (first, *first.children(recursive=True)) if not p.children()]
