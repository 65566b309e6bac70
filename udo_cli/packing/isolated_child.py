"""Program of the child (isolated.py), run with `python -s -P -S`: loads an operator as an instance would, does one thing, reports.

It can import only the runtime's packages, the operator's code and its dependencies; it never imports udo_cli. Argument: a directory with
`request.json`. That directory may not be writable, so results go to file descriptors that the request names.
"""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path
from typing import Any

# Number of states that are migrated at a time.
_MIGRATED = 10_000


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
    from udo_runtime.processors import load
    from udo_runtime.sdk.api import Context

    from udo_protocol.assignment import Program
    from udo_protocol.formats.schema import parse_schema

    schemas = parse_schema(request["input"]), parse_schema(request["output"])
    ctx = Context(request["operator"], request["version"])
    processor = load(Program.parse(request), schemas, ctx)
    if "state" in request:
        processor.open()
        _migrate(processor, request)
        processor.close()
    if "replay" in request:
        from udo_runtime.drivers.replay_report import run

        return run(Path(request["replay"]), request, processor, schemas[1], ctx, work / "answers.arrow")
    processor.check()
    return {"ok": True}


def main() -> None:
    """Carry out the request; errors of the operator become part of the outcome."""
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
    from udo_runtime.failure import KeyboardStop

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
