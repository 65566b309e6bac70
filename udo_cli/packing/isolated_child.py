"""Runs in a bare interpreter (`python -I -S`): loads an operator as an instance would, answers sample events, reports.

Sees only the runtime's own packages, the operator's code and its dependencies; never imports udo_cli. Argument: a
directory with `request.json` and perhaps `events.arrow`; leaves `outcome.json` and perhaps `answers.arrow` there.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any


def _run(work: Path, request: dict[str, Any]) -> dict[str, Any]:
    import pyarrow as pa
    from udo_runtime.api import Context
    from udo_runtime.load import load

    from udo_protocol.schema import parse_schema

    output = parse_schema(request["output"])
    ctx = Context(request["operator"], request["version"])
    processor = load(request["entry"], request["path"], output, ctx)
    if not request["events"]:
        return {"ok": True}
    processor.open()
    started = time.perf_counter()
    answered = 0
    with (
        pa.OSFile(str(work / "answers.arrow"), "wb") as sink,
        pa.ipc.new_stream(sink, output) as writer,
        pa.OSFile(str(work / "events.arrow"), "rb") as source,
        pa.ipc.open_stream(source) as reader,
    ):
        for batch in reader:
            answer = processor(batch)
            answered += answer.num_rows
            writer.write_batch(answer)
    took_ms = (time.perf_counter() - started) * 1000
    processor.close()
    return {"ok": True, "answers": answered, "took_ms": round(took_ms, 3)}


def main() -> None:
    """Answer the request; whatever goes wrong inside the operator becomes part of the outcome."""
    work = Path(sys.argv[1])
    request = json.loads((work / "request.json").read_text("utf-8"))
    sys.path[:] = [*request["base"], *(p for p in sys.path if Path(p).resolve() != Path(__file__).resolve().parent)]
    os.environ.update(request["env"])
    import logging
    import traceback

    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(levelname)s %(name)s %(message)s")
    try:
        outcome = _run(work, request)
    except BaseException as e:  # an operator may even call sys.exit()
        own = getattr(e, "traceback", None)
        text = own if own is not None else traceback.format_exc()
        message = str(e) if own is not None else f"{type(e).__name__}: {e}"
        outcome = {
            "ok": False,
            "message": message,
            "traceback": text,
            "event": getattr(e, "event", ""),
            "code": getattr(e, "wire_code", "operator"),
        }
    (work / "outcome.json").write_text(json.dumps(outcome), "utf-8")


if __name__ == "__main__":
    main()
