"""A Spark application on a cluster in which one host has no node manager; run by test_node_away.py. Prints one JSON line."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from udo_interface import udo
from udo_interface.java import QUIET, spark_session


def main(master: str, name: str, registry: str) -> None:
    """Send events through operator `name`, as docs/executors.md says for hosts that may lose their node manager."""
    with tempfile.TemporaryDirectory() as events:
        conf = {
            "spark.udo.registry": registry,
            "spark.udo.nodeWaitS": 1,
            "spark.excludeOnFailure.enabled": True,
            "spark.executor.memory": "512m",
            "spark.executor.cores": 1,
            # Wait for both executors before the first task, so that the host without a node manager certainly gets one.
            "spark.scheduler.minRegisteredResourcesRatio": 1.0,
            "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
            "spark.cores.max": 2,
            "spark.eventLog.enabled": True,
            "spark.eventLog.dir": f"file://{events}",
            "spark.eventLog.rolling.enabled": False,
            "spark.eventLog.compress": False,
        }
        spark = spark_session("away", master=master, **QUIET, **conf)
        spark.sparkContext.setLogLevel("OFF")
        rows = udo(name)(spark.range(0, 4000, 1, 8)).collect()
        spark.stop()
        ended = [json.loads(line) for file in Path(events).iterdir() for line in file.read_text().splitlines() if "TaskEnd" in line]
        failed = sorted({e["Task Info"]["Host"] for e in ended if e["Task Info"]["Failed"]})
        print(json.dumps({"ids": sorted(r.id for r in rows) == list(range(4000)), "failed_on": failed}))


if __name__ == "__main__":
    main(*sys.argv[1:])
