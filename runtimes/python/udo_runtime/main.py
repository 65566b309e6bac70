"""The life of an instance's process: wait for an assignment, load the operator, report, serve, exit with a meaningful status."""

from __future__ import annotations

import gc
import json
import logging
import os
import resource
import sys
import time
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import Protocol

from udo_protocol.assignment import Assignment, MirrorRole
from udo_protocol.errors import Fenced, ServerLost, Unavailable
from udo_protocol.limits import SlotLimits
from udo_protocol.queue.connection import Connection, Login
from udo_protocol.queue.keys import HEARTBEAT, warm
from udo_protocol.queue.slot import ABILITIES, report_ready
from udo_protocol.queue.slot_reader import SlotReader
from udo_runtime import absent, children
from udo_runtime.drivers.link import Link
from udo_runtime.drivers.stateless_instance import StatelessInstance
from udo_runtime.execution.load import Processor
from udo_runtime.failure import ProcessingError, failed
from udo_runtime.output import by_lines
from udo_runtime.processors import load
from udo_runtime.sdk.api import Context

EXIT_LEFT, EXIT_LOAD_FAILED, EXIT_NO_MANAGER, EXIT_SERVER_LOST = 0, 1, 3, 4
# A replaced instance exits after this delay, at the lowest priority, so that its successor's first answers get the processor.
_LEAVING_S, _LEAVING_NICE = 0.25, 19
# How often a waiting warm instance checks whether its node manager still lives.
_WARM_POLL_S = 5


def _login(instance: str) -> Login | None:
    """Read the login: the password is in a file for this process only, which is read once; None for servers without users."""
    path = os.environ.pop("UDO_PASSWORD_FILE", "")
    if not path:
        return None
    with open(path, encoding="utf-8") as f:
        password = f.read()
    with suppress(OSError):  # in a sandbox it may be on a read-only file system; then the node manager removes it
        os.unlink(path)
    return Login(instance, password)


def _assignment(conn: Connection, instance: str) -> Assignment:
    while True:
        reply = conn.call("BLPOP", warm(instance), _WARM_POLL_S, timeout_s=_WARM_POLL_S + conn.default_timeout_s)
        if reply is not None:
            return Assignment.parse(json.loads(bytes(reply[1])))
        if not conn.call("EXISTS", HEARTBEAT):
            raise Unavailable("no heartbeat from the node manager: a warm instance stops itself")


def _preload() -> None:
    """Import the modules for keyed operators while there is time. Not in a cold instance: its operator may bring its own MessagePack."""
    import_module("udo_runtime.drivers.keyed_instance")
    gc.collect()
    gc.freeze()


def _yield_to_others(nice: int) -> None:
    """Lower this process's priority; it cannot be raised again."""
    os.nice(nice)
    if os.getsid(0) == os.getpid():  # else the parent is in this session too, and would share the lower priority
        with suppress(OSError), open("/proc/self/autogroup", "w") as f:  # for kernels that schedule by session
            f.write(str(nice))


class Assigned(Protocol):
    """An instance that serves an assignment."""

    link: Link

    def serve(self) -> None:
        """Serve until told to stop (returns), fenced (Fenced) or left without a node manager (Unavailable)."""


def _instance(conn: Connection, a: Assignment, processor: Processor, ctx: Context) -> Assigned:
    limits = SlotLimits.of(a.limits)
    link = Link(conn, SlotReader(conn, a.place.keys, a.place.instance, a.place.token, limits), limits)
    if isinstance(a.role, MirrorRole):
        _yield_to_others(a.role.nice)
    if a.program.keyed is None:
        return StatelessInstance(link, a, processor, ctx)
    # Imported only here: the operator of a stateless cold instance may bring a MessagePack with which keyed state would not work.
    from udo_runtime.drivers.keyed_instance import KeyedInstance

    return KeyedInstance(link, a, a.program.keyed, processor, ctx)


def _serve(conn: Connection, a: Assignment) -> int:
    place, program = a.place, a.program
    if files := a.open_files:
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        files = files if most == resource.RLIM_INFINITY else min(files, most)
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))  # soft and hard: the operator cannot raise it again
    if not program.command:  # else they are for the operator's own process
        os.environ.update(program.env)
        os.environ.update(program.secrets)
        time.tzset()
    ctx = Context(a.operator, a.version, place.instance)
    started = time.perf_counter()
    try:
        processor = load(program, (a.input, a.output), ctx)
        if program.keyed:
            processor.per_event  # noqa: B018 (says now that it cannot be keyed)
        imported = time.perf_counter()
        try:
            processor.open()
        except ProcessingError as e:  # from an operator in a process of its own
            raise ProcessingError(f"open() of {ctx.operator}@{ctx.version} failed: {e}", e.traceback, code=e.wire_code) from e
        except BaseException as e:
            raise failed(e, before=f"open() of {ctx.operator}@{ctx.version} failed: ") from e
    except ProcessingError as e:
        print(e.traceback or e, file=sys.stderr, flush=True)
        error = {"code": e.wire_code, "message": str(e), "traceback": e.traceback}
        report_ready(conn, place.keys, place.instance, {"ok": False, "error": error})
        return EXIT_LOAD_FAILED
    instance = _instance(conn, a, processor, ctx)
    instance.link.look_after = partial(processor.look_after, instance.link.counters)

    children.answer_signals(instance.link.stop)
    gc.collect()
    gc.freeze()  # loaded objects stay: later collections need not scan them
    times = {"import_ms": (imported - started) * 1000, "open_ms": (time.perf_counter() - imported) * 1000}
    report_ready(conn, place.keys, place.instance, {"ok": True, "follows": a.follows, "abilities": ABILITIES, **times})
    try:
        instance.serve()
    except Fenced as e:
        _yield_to_others(_LEAVING_NICE)  # freeing much state takes long
        time.sleep(_LEAVING_S)
        ctx.log.info("%s: leaving", e)
    finally:
        processor.close()
    return EXIT_LEFT


def main() -> int:
    """Run one instance; the environment names it and the queue server."""
    by_lines()
    absent.remember()
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(levelname)s %(name)s %(message)s")
    log = logging.getLogger("udo_runtime")
    children.answer_signals(lambda: children.end(EXIT_LEFT))
    try:
        instance = os.environ["UDO_INSTANCE"]
        conn = Connection(os.environ["UDO_QUEUE_SOCKET"], login=_login(instance))
        if os.environ.pop("UDO_WARM", ""):
            _preload()
        return _serve(conn, _assignment(conn, instance))
    except Unavailable as e:
        log.warning("%s", e)
        return EXIT_NO_MANAGER
    except ServerLost as e:
        log.warning("%s", e)
        return EXIT_SERVER_LOST
