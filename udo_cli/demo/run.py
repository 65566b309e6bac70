"""The whole demo, from nothing to nothing: platform, operators, stream, update, count; all of it stopped and removed again."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pyarrow.parquet as pq

from udo_cli.demo import history, platform, source, spark
from udo_cli.demo.plan import DemoPlan
from udo_cli.demo.probe import Probe
from udo_cli.demo.report import DemoReport, DemoUpdate
from udo_cli.demo.show import Screen
from udo_cli.demo.stream import LiveFigures, Stream, stopping
from udo_cli.demo.verify import verify
from udo_cli.home import Home
from udo_cli.options.daemons import UpOptions
from udo_cli.platform import throwaway
from udo_interface import udo
from udo_protocol.node.api import connect_node
from udo_protocol.registry.api import Registry


def run(plan: DemoPlan, driver: str, say: Callable[[str], None], screen: Screen) -> DemoReport:
    """Run `plan` on a node with this driver; return the report. Whatever happens, no process and no file is left behind."""
    began = time.monotonic()
    with throwaway.workspace("udo-demo-") as work, contextlib.ExitStack() as parts:
        say(f"{plan.table.num_rows:,} card payments ({plan.origin})")
        home = Home(work / "udo")
        started = parts.enter_context(throwaway.platform(home, UpOptions(node="demo", driver=driver), say))
        api = parts.enter_context(Registry(started.registry, home.token_file.read_text("utf-8").strip(), "demo"))
        platform.prepare(api, home.dependencies, say)
        say("starting Spark")
        session = parts.enter_context(spark.session(started.registry, started.node, work))
        say("computing the history of cards and terminals")
        pq.write_table(plan.table, work / "payments.parquet")
        known = history.enriched(session.read.parquet(str(work / "payments.parquet")))
        known.write.parquet(str(work / "known"))  # not collected: that would take Java's memory for all rows
        chunks = source.split(pq.read_table(work / "known"), work / "chunks", plan.batch_rows)
        feeder = source.Feeder(chunks, work / "landing", plan.rate)
        scored = udo("fraud")(udo("forward")(spark.payments(session, known.schema, work / "landing")))
        probe = Probe("fraud", started.node)
        parts.callback(probe.close)
        say(f"streaming in {chunks.batches} micro-batches; fraud@1 is replaced by fraud@2 at row {plan.update_at:,}")
        query = parts.enter_context(stopping(spark.query(session, scored, work)))
        stream = Stream(query, feeder, connect_node(started.node), api, LiveFigures(plan.table.num_rows, plan.update_at), probe)
        watched = stream.run(screen)
        query.stop()
        verdict = verify(work / "sink", plan.table.column("is_fraud").to_numpy())
        trips = probe.trips_ms()
        during = probe.trips_ms(watched.update_began - 0.1, watched.update_ended + 0.1)
    return DemoReport(
        origin=plan.origin,
        events_in=plan.table.num_rows,
        micro_batches=watched.batches,
        steps_ms=_medians(watched.durations),
        stream_s=watched.elapsed_s,
        total_s=time.monotonic() - began,
        round_trip_p50_ms=float(np.percentile(trips, 50)) if len(trips) else None,
        round_trip_p99_ms=float(np.percentile(trips, 99)) if len(trips) else None,
        round_trips=len(trips),
        update=DemoUpdate(
            asked_row=plan.update_at,
            requested_row=watched.requested_row,
            first_row=verdict.first_row.get("2"),
            took_ms=watched.took_ms,
            longest_round_trip_ms=float(during.max()) if len(during) else None,
        ),
        verdict=verdict,
    )


def _medians(durations: Sequence[Mapping[str, int]]) -> dict[str, float]:
    """The median of each step; a micro-batch without the step is left out of its median."""
    steps = sorted({step for d in durations for step in d})
    return {step: float(np.median([d[step] for d in durations if step in d])) for step in steps}
