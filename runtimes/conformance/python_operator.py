"""The conformance operator in Python (docs/operator-protocol.md, Conformance): `udo conformance python python_operator.py`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from udo_runtime import FrameKeys, FrameStates, Operator
from udo_runtime.served.serve import serve


class ConformanceOperator(Operator):
    """Fails to open if UDO_CONFORMANCE_OPEN says so."""

    def open(self, ctx: Any) -> None:
        if os.environ.get("UDO_CONFORMANCE_OPEN") == "fails":
            raise RuntimeError("no model")


class Forward(ConformanceOperator):
    def process_batch(self, batch: pa.RecordBatch, ctx: Any) -> pa.RecordBatch:
        return batch


class Each(ConformanceOperator):
    def process(self, event: dict[str, Any], ctx: Any) -> Iterable[dict[str, Any]]:
        yield dict(event)


class Events(ConformanceOperator):
    def process(self, event: dict[str, Any], ctx: Any) -> Iterable[dict[str, Any]]:
        do, n = event["do"], event["n"]
        match do:
            case "none":
                return
            case "twice":
                yield {"n": n + 1}
            case "log":
                for log in (ctx.log.debug, ctx.log.info, ctx.log.warning, ctx.log.error):
                    log("log %d", n)
            case "print":
                print("print", n, flush=True)
            case "raise":
                raise ValueError(f"raise {n}")
            case "endless":
                while True:
                    yield {"n": n + 1}
            case "wrong":
                yield {"n": "text"}
            case "sleep":
                time.sleep(n / 1000)
            case "hang":
                while True:
                    time.sleep(60)
            case "exit":
                os._exit(3)
            case "abort":
                os.abort()
            case "memory":
                taken = []
                while True:
                    taken.append(b"x" * (1 << 24))
        yield {"n": n + 1}

    def close(self) -> None:
        print("closed", flush=True)


class Keyed(ConformanceOperator):
    def process(self, event: dict[str, Any], ctx: Any) -> Iterable[dict[str, Any]]:
        state, n, at = ctx.state, event["n"], event["at"]
        match event["do"]:
            case "count":
                state["n"] = state.get("n", 0) + n
                yield {"k": event["k"], "n": state["n"], "at": None}
            case "get":
                yield {"k": event["k"], "n": state.get("n"), "at": None}
            case "clear":
                state.clear()
            case "timer":
                ctx.timer(at)
            case "expire":
                ctx.expire(at)
            case "watermark":
                yield {"k": event["k"], "n": None, "at": ctx.watermark}
            case "raise":
                state["n"] = state.get("n", 0) + 1000
                ctx.timer(at)
                raise ValueError(f"raise {n}")

    def on_timer(self, key: Any, at: Any, ctx: Any) -> Iterable[dict[str, Any]]:
        ctx.state["n"] = ctx.state.get("n", 0) + 1
        yield {"k": key, "n": ctx.state["n"], "at": at}

    def migrate(self, old: dict[str, Any], from_version: int) -> dict[str, Any]:
        return {**old, "n": old.get("n", 0) * 10, "from": from_version}


class KeyedBatches(ConformanceOperator):
    def process_keys(self, keys: FrameKeys, events: pa.RecordBatch, states: FrameStates, ctx: Any) -> dict[str, Any]:
        sums, answers = states.column("n", pa.int64(), 0).to_pylist(), []
        for number, n in zip(keys.index.to_pylist(), events.column("n").to_pylist(), strict=True):
            sums[number] += n
            answers.append(sums[number])
        states.put("n", sums)
        for number, do, at in zip(keys.index.to_pylist(), *(events.column(name).to_pylist() for name in ("do", "at")), strict=True):
            if do == "timer":
                keys.timer(number, at)
            elif do == "expire":
                keys.expire(number, at)
        return {"k": events.column("k"), "n": answers, "at": pa.nulls(len(answers), events.schema.field("at").type)}

    on_timer = Keyed.on_timer


class Filter(ConformanceOperator):
    def process_batch(self, batch: pa.RecordBatch, ctx: Any) -> pa.RecordBatch:
        return batch.filter(pc.greater(batch.column("amount"), 500.0))


class FilterEach(ConformanceOperator):
    def process(self, event: dict[str, Any], ctx: Any) -> Iterable[dict[str, Any]]:
        if event["amount"] > 500.0:
            yield event


class Tally(ConformanceOperator):
    def process(self, event: dict[str, Any], ctx: Any) -> Iterable[dict[str, Any]]:
        n = ctx.state["n"] = ctx.state.get("n", 0) + 1
        yield {"id": event["id"], "card": event["card"], "n": n}


class TallyBatches(ConformanceOperator):
    def process_keys(self, keys: FrameKeys, events: pa.RecordBatch, states: FrameStates, ctx: Any) -> dict[str, Any]:
        counts, answers = states.column("n", pa.int64(), 0).to_pylist(), []
        for number in keys.index.to_pylist():
            counts[number] += 1
            answers.append(counts[number])
        states.put("n", counts)
        return {"id": events.column("id"), "card": events.column("card"), "n": answers}


BENCHMARKED = {"filter": Filter, "filter_each": FilterEach, "tally": Tally, "tally_batches": TallyBatches}
ROLES = {**BENCHMARKED, "forward": Forward, "each": Each, "events": Events, "keyed": Keyed, "keyed_batches": KeyedBatches}
# The entry of a pushed operator in a process of its own: entry = "python_operator:Chosen".
Chosen = ROLES.get(os.environ.get("UDO_CONFORMANCE", ""), Forward)

if __name__ == "__main__":
    serve(ROLES[os.environ.get("UDO_CONFORMANCE") or sys.argv[-1]]())
