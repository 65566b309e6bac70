"""Program of the child (isolated.py), run with `python -s -P -S`: loads an operator as an instance would, answers sample events, reports.

It can import the runtime's packages, the operator's code and its dependencies only; it never imports udo_cli. Argument: a directory with
`request.json` and maybe `events.arrow`. It may not be able to write there, so results go to file descriptors that the request names.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Number of states that are migrated at a time.
_MIGRATED = 10_000


def _keyed(processor: Any, request: dict[str, Any], output: Any, ctx: Any, batches: Any) -> Iterator[Any]:
    """Answers to all events as epoch 0 of one session, to its END, and to that of an epoch without events, at which due timers fire."""
    import pyarrow as pa
    from udo_runtime.execution.keyed import KeyedConfig
    from udo_runtime.state.session import Session

    from udo_protocol.proto.frame_pb2 import Label
    from udo_protocol.queue.frame import Header

    keyed: Any = processor.keyed(KeyedConfig.of(request["keyed"]))
    session = Session("udo test")
    first, second = (Header(label=Label(run=1, epoch=epoch, attempt=1), groups=[0]) for epoch in (0, 1))
    for batch in batches:
        yield keyed.events(session, first, batch, pa.array([0] * batch.num_rows, pa.int32())).answer
    for header in (first, second):
        yield keyed.end(session, header).answer
        keyed.complete(session, header)


def _migrate(processor: Any, request: dict[str, Any]) -> None:
    """Run the operator's migrate() on every state in the file."""
    import msgpack
    from udo_runtime.state.codec import PACKED_TIMERS, migrated, unpack_key
    from udo_runtime.state.versions import Versions

    keyed = request["keyed"]
    versions = Versions(keyed["state_version"], keyed["migrates_from"], processor.per_event.migrate, processor.migrate_all)
    with open(request["state"], "rb") as file:
        stream = msgpack.Unpacker(file, max_buffer_size=0)
        some: dict[Any, bytes | None] = {}
        for packed, value in zip(stream, stream, strict=True):
            if packed == PACKED_TIMERS:
                continue
            key = unpack_key(packed)
            if key in some or len(some) == _MIGRATED:  # a key may come twice: now, and before the last epoch
                migrated(versions, some, request["state_version"])
                some = {}
            some[key] = value
        migrated(versions, some, request["state_version"])


def _run(work: Path, request: dict[str, Any]) -> dict[str, Any]:
    import pyarrow as pa
    from udo_runtime import children
    from udo_runtime.loading import load
    from udo_runtime.sdk.api import Context

    from udo_protocol.formats.body import read_stream
    from udo_protocol.formats.schema import parse_schema

    schemas = parse_schema(request["input"]), parse_schema(request["output"])
    output = schemas[1]
    ctx = Context(request["operator"], request["version"])
    processor = load(request, schemas, ctx)
    if "state" in request:
        processor.open()
        _migrate(processor, request)
        processor.close()
    if "replay" in request:
        from udo_runtime.drivers.replay_report import run

        return run(Path(request["replay"]), request, processor, output, ctx, work / "answers.arrow")
    if not request["events"]:
        processor.check()
        return {"ok": True}
    processor.open()
    started = time.perf_counter()
    answered = 0
    with (
        os.fdopen(request["answers_fd"], "wb") as sink,
        pa.ipc.new_stream(sink, output) as writer,
        pa.OSFile(str(work / "events.arrow"), "rb") as source,
    ):
        _, events = read_stream(source)
        for answer in _keyed(processor, request, output, ctx, events) if request["keyed"] else map(processor.named, events):
            children.end_if_forked()
            answered += answer.num_rows
            writer.write_batch(answer)
    took_ms = (time.perf_counter() - started) * 1000
    processor.close()
    return {"ok": True, "answers": answered, "took_ms": round(took_ms, 3)}


def main() -> None:
    """Do what the request says; errors of the operator become part of the outcome."""
    work = Path(sys.argv[1])
    request = json.loads((work / "request.json").read_text("utf-8"))
    sys.path[:] = [*request["base"], *(p for p in sys.path if Path(p).resolve() != Path(__file__).resolve().parent)]
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = request["open_files"] if most == resource.RLIM_INFINITY else min(request["open_files"], most)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    import logging
    import signal
    import traceback

    from udo_runtime import children
    from udo_runtime.execution.failure import KeyboardStop

    def interrupt(*_: Any) -> None:
        raise KeyboardStop

    signal.signal(signal.SIGINT, interrupt)
    children.begin()

    for stream in (sys.stdout, sys.stderr):  # so that output is seen even if the operator then hangs or dies
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(levelname)s %(name)s %(message)s")
    try:
        outcome = _run(work, request)
    except BaseException as e:
        children.end_if_forked(e)
        own = getattr(e, "traceback", None)
        text = own if own is not None else traceback.format_exc()
        message = str(e) if own is not None else f"{type(e).__name__}: {e}"
        outcome = {
            "ok": False,
            "message": message,
            "traceback": text,
            "event": getattr(e, "event", ""),
            "code": getattr(e, "wire_code", "operator"),
            "interrupted": isinstance(e, KeyboardInterrupt),
        }
    with open(request["outcome_fd"], "w", encoding="utf-8") as file:
        json.dump(outcome, file)


if __name__ == "__main__":
    main()
