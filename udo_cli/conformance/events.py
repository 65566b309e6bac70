"""Cases: stateless operators event by event, failures, and processes that end, hang or take all memory."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread

import psutil
from udo_runtime.child.wire import Gone

from udo_cli.conformance.cases import Open, case
from udo_cli.conformance.player import STOP_S, Mismatch, Player, require
from udo_cli.conformance.schemas import EVENTS, N, events
from udo_protocol.errors import WaitTimeout
from udo_protocol.proto import operator_pb2 as pb

BOTH = (EVENTS, N)
# Time after which a hanging frame is given up.
_HANGS_S = 1.0
# Memory that the operator may take in addition; far below the memory of a machine for tests.
_MEMORY_BYTES = 256 << 20
_LOOK_S = 0.02


def _n(p: Player, *rows: tuple[str, int]) -> list[int]:
    return p.data(events(*rows)).column(0).to_pylist()  # type: ignore[no-any-return]


@case("events", "each event is answered with any number of events, in order")
def any_number(open_: Open) -> None:
    with open_("events", BOTH) as p:
        require("answers", [2, 4, 4, 5], _n(p, ("add", 1), ("none", 2), ("twice", 3), ("add", 4)))
        require("answers to none", [], _n(p, ("none", 1)))
        require("answers to no events", [], _n(p))


@case("events", "logs come before the answer, each with its level; only those of DEBUG may stay away")
def logs(open_: Open) -> None:
    with open_("events", BOTH) as p:
        require("answers", [8], _n(p, ("log", 7)))
        logged = [level for level, text in p.logs if "log 7" in text and level != pb.Log.DEBUG]
        require("levels", [pb.Log.INFO, pb.Log.WARNING, pb.Log.ERROR], logged)


@case("events", "what it prints is kept")
def prints(open_: Open) -> None:
    with open_("events", BOTH) as p:
        require("answers", [8], _n(p, ("print", 7)))
        p.hang_up()
        p.process.end(STOP_S)
        require("printed", True, "print 7" in p.process.last_lines)


@case("failures", "an exception is a Failure with class, message, trace and row; nothing of its frame is answered; it goes on")
def raises(open_: Open) -> None:
    with open_("events", BOTH) as p:
        failure = p.fails(events(("add", 1), ("twice", 2), ("raise", 7), ("add", 4)))
        require("its message", True, "raise 7" in failure.message)
        require("says its class", True, bool(failure.type))
        require("has a trace", True, bool(failure.trace))
        require("its row", 2, failure.row if failure.HasField("row") else None)
        require("its code", "", failure.code)
        require("the next answer", [2], _n(p, ("add", 1)))


@case("failures", "the same request twice has the same answer")
def twice(open_: Open) -> None:
    with open_("events", BOTH) as p:
        rows = [("add", 1), ("twice", 2)]
        require("the second answer", _n(p, *rows), _n(p, *rows))


@case("processes", "one that exits is gone, with its status, and a new one answers")
def exits(open_: Open) -> None:
    with open_("events", BOTH) as p:
        require("the frame", "gone", _lost(p, "exit"))
        require("how it ended", "ended with exit status 3", p.process.end(10.0))
    _answers(open_)


@case("processes", "one that a signal ends is gone, with its signal, and a new one answers")
def aborts(open_: Open) -> None:
    with open_("events", BOTH) as p:
        require("the frame", "gone", _lost(p, "abort"))
        if not (how := p.process.end(10.0)).startswith("was killed by signal"):
            raise Mismatch(f"expected a signal, it {how}")
    _answers(open_)


@case("processes", "one that hangs is ended, and a new one answers")
def hangs(open_: Open) -> None:
    with open_("events", BOTH) as p:
        require("the frame", "no answer", _lost(p, "hang"))
        require("how it ended", "was killed", p.process.end())
    _answers(open_)


@case("processes", "one that takes too much memory fails its frame or is killed, and a new one answers")
def memory(open_: Open) -> None:
    with open_("events", BOTH) as p:
        _n(p, ("add", 1))
        with limited(p):
            try:
                failure = p.fails(events(("memory", 0)))
            except Gone:
                pass
            else:
                require("a Failure with a message", True, bool(failure.message or failure.type))
    _answers(open_)


@contextmanager
def limited(p: Player) -> Iterator[None]:
    """Kill the player's process if it takes much memory, as a node kills an operator beyond its limit."""
    over = Event()
    watch = Thread(target=_kill_above, args=(p, over), daemon=True)
    watch.start()
    try:
        yield
    finally:
        over.set()
        watch.join()


def _kill_above(p: Player, over: Event) -> None:
    first = psutil.Process(p.process.pid)

    def taken() -> int:
        return sum(process.memory_info().rss for process in (first, *first.children(recursive=True)))

    try:
        bound = taken() + _MEMORY_BYTES
        while not over.wait(_LOOK_S):
            if taken() > bound:
                p.process.end()
                return
    except psutil.NoSuchProcess:
        return


def _lost(p: Player, do: str) -> str:
    p.send(pb.Message(data=pb.Data()), [(pb.Part.EVENTS, events((do, 1)))])
    try:
        reply = p.reply(time.monotonic() + (_HANGS_S if do == "hang" else 30.0))
    except Gone:
        return "gone"
    except WaitTimeout:
        return "no answer"
    raise Mismatch(f"expected no reply, got {reply.message.WhichOneof('kind')}")


def _answers(open_: Open) -> None:
    with open_("events", BOTH) as p:
        require("the answer of a new process", [2], _n(p, ("add", 1)))
