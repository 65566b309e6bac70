"""python -m tests.packaging.spark40: calls of each kind on the oldest supported Spark, in an environment of its own."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.packaging.interpreters import run

PYSPARK = "pyspark[sql]==4.0.*"
# Calls on the Python path, and keyed calls on the JVM path, too. The jar compiles against this Spark; without the jar the keyed calls in
# another thread would be refused.
CALLS = [
    "test_batch.py::test_every_event_goes_through_the_operator_once[python]",
    "test_batch.py::test_timestamps_keep_their_instant_in_any_session_zone",
    "test_jvm_columns.py::test_rows_of_all_types_come_back_whatever_their_number_and_nulls",
    "test_jvm_gather.py",
    "test_rdd.py",
    "test_streaming.py::test_a_live_update_during_the_query_loses_and_doubles_nothing[python]",
    "test_keyed.py::test_counts_go_on_over_epochs_and_over_a_restart_of_the_query",
    "test_keyed.py::test_a_batch_job_starts_empty_and_drops_its_state",
    "test_plans.py::test_in_foreach_batch_it_is_evaluated_in_any_way[in a thread-stream]",
    "test_plans.py::test_in_foreach_batch_it_is_evaluated_in_any_way[in a thread-inside]",
    "test_plans.py::test_a_window_behind_the_call_closes_in_micro_batches_without_data",
]

# This PySpark leaves sockets to the garbage collector; the tests treat such a warning as an error.
WARNINGS = ["-W", "ignore::ResourceWarning", "-W", "ignore::pytest.PytestUnraisableExceptionWarning"]

if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="udo-spark40-") as made:
        sys.exit(run(PYSPARK, sys.executable, Path(made), [*WARNINGS, *(f"tests/udo_interface/{c}" for c in CALLS)], pyspark=PYSPARK))
