"""The contenders' own code, as far as it runs without Spark."""

from __future__ import annotations

import io

import numpy as np
import pyarrow as pa
import pytest

from benchmarks.contenders.functions import FUNCTIONS
from benchmarks.contenders.http_batch import pack, unpack, wsgi
from benchmarks.harness.openloop import Arrivals, Sent

BATCH = pa.RecordBatch.from_pydict({"id": [1, 2, 3], "card": [1, 1, 1], "amount": [100.0, 600.0, 500.0], "at": [0, 0, 0]})


@pytest.mark.parametrize(("name", "ids"), [("filter", [2]), ("forward", [1, 2, 3])])
def test_http_answers_what_the_function_answers(name: str, ids: list[int]) -> None:
    body = pack(BATCH).to_pybytes()
    environ = {"wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body)), "PATH_INFO": f"/{name}"}
    answer = unpack(b"".join(wsgi(environ, lambda *_: None)))
    assert answer.equals(FUNCTIONS[name](BATCH))
    assert answer.column("id").to_pylist() == ids


def test_latency_counts_from_the_intended_time_not_from_the_sending() -> None:
    # given ten events a second from t0 = 100 s on, in two batches, the second of which is late
    arrivals = Arrivals([100.05, 100.5], [BATCH.slice(0, 1), BATCH.slice(1, 2)])
    due = Sent(events=4, rate=10.0, started=100.0, ended=100.4).due(arrivals.column("id"))
    assert arrivals.at() - due == pytest.approx(np.array([-0.05, 0.3, 0.2]))
