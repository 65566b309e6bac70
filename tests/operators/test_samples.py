"""The sample operators are the same in all languages: each is compared with Python in the engine's own process, while its process is killed
at random and updates change the language under its state."""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from threading import Thread, Timer
from typing import Any

import psutil
import pyarrow as pa
import pytest
from udo_runtime.child.process import Launch
from udo_runtime.child.processor import ChildProcessor
from udo_runtime.execution.keyed_processor import KeyedConfig
from udo_runtime.execution.load import Processor, find
from udo_runtime.sdk.api import Context
from udo_runtime.served import start
from udo_runtime.state.codec import TIMERS, unpack
from udo_runtime.state.session import Session

from tests.operators.sdks import Sdk
from udo_protocol.formats import manifest
from udo_protocol.proto.frame_pb2 import Label
from udo_protocol.queue.frame import Header

TOP = Path(__file__).parents[2]
EXAMPLES = TOP / "examples" / "operators"
# Operators with two inputs: examples in Python, and samples in the other languages.
TWO_INPUTS = {name: manifest.load(EXAMPLES / name) for name in ("trade_quotes", "news_moves")}
PYTHON = [str(TOP / "runtimes" / "python" / "samples"), *(str(EXAMPLES / name) for name in TWO_INPUTS)]
ENTRY = {"forward": "forward:forward", "fraud": "fraud:Fraud", "count": "count:Count", "sessionise": "sessionise:Sessionise"} | {
    name: made.entry for name, made in TWO_INPUTS.items()
}
_UTC = pa.timestamp("us", "UTC")
Schemas = tuple[pa.Schema, pa.Schema]
EVENTS = pa.schema([("id", pa.int64()), ("value", pa.float64())])
FRAUD = (EVENTS, pa.schema([("id", pa.int64()), ("flagged", pa.bool_())]))
COUNT = (pa.schema([("id", pa.int64()), ("k", pa.int64())]), pa.schema([("id", pa.int64()), ("k", pa.int64()), ("n", pa.int64())]))
VISITS = (pa.schema([("k", pa.string()), ("t", _UTC)]), pa.schema([("k", pa.string()), ("n", pa.int64()), ("ended", _UTC)]))
SEED = 7
SECOND_US = 1_000_000
MINUTE_US = 60 * SECOND_US
Commands = dict[str, Callable[[str], Sequence[str]]]


def commands(sdk: Sdk) -> Commands:
    """Language -> the program of a sample, for this SDK and for Python in a process of its own."""

    def python(sample: str) -> list[str]:
        return [sys.executable, "-I", "-S", start.__file__, ENTRY[sample], sample, "1"]

    return {sdk.name: lambda sample: [f"{sdk.bin}/{word[4:]}" if word.startswith("bin/") else word for word in sdk.starting(sample)]} | {
        "python": python
    }


def child(command: Sequence[str], work: Path, schemas: Schemas, keyed: dict[str, Any] | None) -> ChildProcessor:
    env = {**os.environ, "UDO_PYTHONPATH": os.pathsep.join([*PYTHON, *filter(None, sys.path)])}
    made = ChildProcessor(Launch(tuple(command), str(work), str(work), env), schemas, keyed, Context("t", "1"))
    made.open()
    return made


def in_process(sample: str, output: pa.Schema) -> Processor:
    """The sample in this process: the oracle."""
    ctx = Context("t", "1")
    made = Processor(find(ENTRY[sample], PYTHON, ctx), output, ctx)
    made.open()
    return made


def killed_soon(made: ChildProcessor, chance: random.Random) -> Thread:
    """Kill the process within the next few milliseconds: before, during or after a frame."""
    process = made._child._process
    assert process is not None
    first = psutil.Process(process.pid)
    timer = Timer(chance.uniform(0, 0.004), lambda: first.is_running() and first.send_signal(signal.SIGKILL))
    timer.start()
    return timer


class Epochs:
    """Epochs of one session of a keyed sample, all of its keys in group 0."""

    def __init__(self, keyed: KeyedConfig) -> None:
        self.keyed, self.session, self._epoch = keyed, Session("s"), 0

    def run(self, processor: Processor, batches: Sequence[pa.RecordBatch]) -> list[dict[str, Any]]:
        """Run one more epoch, and return its answers."""
        by, header = processor.keyed(self.keyed), Header(label=Label(run=1, epoch=self._epoch, attempt=1), groups=[0])
        rows = []
        for batch in batches:
            done = by.events(self.session, header, batch, pa.array([0] * batch.num_rows, pa.int32()))
            assert done is not None
            rows += done.answer.to_pylist()
        ended = by.end(self.session, header)
        assert ended is not None
        by.complete(self.session, header)
        self._epoch += 1
        return rows + ended.answer.to_pylist()

    @property
    def states(self) -> dict[Any, Any]:
        """The states in their stored form, without timers."""
        return {key: unpack(value) for key, value in self.session.groups[0].values.items() if key != TIMERS}


def keyed_as_python_does(
    sdk: Sdk,
    work: Path,
    sample: str,
    schemas: Schemas,
    keyed: dict[str, Any],
    frame: Callable[..., Any],
    languages: Sequence[str],
    kills: int,
) -> None:
    """Run epochs of random frames, each in the next one of these languages, and compare them with the oracle."""
    chance = random.Random(f"{SEED} {sample} {sdk.name}")
    config, found = KeyedConfig.of(keyed), commands(sdk)
    mine, oracle, python = Epochs(config), Epochs(config), in_process(sample, schemas[1])
    killed = set(chance.sample(range(len(languages)), kills))
    running, made, answered = "", None, 0
    for epoch, language in enumerate(languages):
        if language != running:  # as in an update: the state stays, another process goes on
            if made is not None:
                made.close()
            running, made = language, child(found[language](sample), work, schemas, keyed)
        assert made is not None
        batches = [frame(chance, epoch) for _ in range(chance.randint(1, 3))]
        timer = killed_soon(made, chance) if epoch in killed else None
        got = mine.run(made, batches)
        if timer is not None:
            timer.join()
        assert got == oracle.run(python, batches), (epoch, language)
        assert mine.states == oracle.states, (epoch, language)
        answered += len(got)
    assert made is not None and answered
    made.close()


def counted(chance: random.Random, epoch: int) -> pa.RecordBatch:
    rows = chance.choice([0, 1, 40, 4_000])
    return pa.record_batch([[chance.randrange(10**9) for _ in range(rows)], [chance.randrange(50) for _ in range(rows)]], schema=COUNT[0])


def visited(chance: random.Random, epoch: int) -> pa.RecordBatch:
    """Visits of a few out of many keys, so that the sessions of other keys end."""
    rows, keys = chance.choice([0, 1, 30, 2_000]), chance.sample(["a", "ü", "日本", *map(str, range(40))], 8)
    times = [epoch * MINUTE_US // 2 + chance.randrange(MINUTE_US) for _ in range(rows)]
    return pa.record_batch([[chance.choice(keys) for _ in times], times], schema=VISITS[0])


def of_two_inputs(chance: random.Random, epoch: int, of: manifest.Manifest) -> pa.RecordBatch:
    """Ten seconds of both inputs, unordered, with events at the same moment, missing values, and late events."""
    drawn: dict[str, Callable[[], object]] = {
        "at": lambda: (10 * epoch - 3) * SECOND_US + chance.randrange(200) * 50_001,
        "symbol": lambda: chance.choice(["UDO", "ü", f"new in {epoch}: {chance.randrange(20)}"]),
        "headline": lambda: chance.choice([None, "", "ü", "日本", str(chance.random())]),
        "price": lambda: chance.choice([None, 100, chance.uniform(95, 105)]),
        "bid": lambda: chance.choice([None, chance.uniform(90, 100)]),
        "ask": lambda: chance.uniform(100, 110),
    }
    inputs = chance.choices(list(of.inputs), k=chance.choice([0, 1, 30, 90]))
    rows = [{"input": one} | {column: drawn[column]() for column in of.inputs[one]} for one in inputs]
    return pa.RecordBatch.from_pylist(rows, of.input_schema)


def all_samples(sdk: Sdk, work: Path) -> None:
    """Check all six samples."""
    stateless_as_python_does(sdk, work)
    keyed_as_python_does(sdk, work, "count", COUNT, {"columns": ["k"]}, counted, [sdk.name] * 3, 1)
    updates = [sdk.name, sdk.name, "python", sdk.name, sdk.name, sdk.name]
    keyed_as_python_does(sdk, work, "sessionise", VISITS, {"columns": ["k"], "time_column": "t"}, visited, updates, 2)
    for sample, of in TWO_INPUTS.items():
        assert of.keyed is not None
        frame = partial(of_two_inputs, of=of)
        updates = ["python", sdk.name, sdk.name, sdk.name, sdk.name, "python"]
        keyed_as_python_does(sdk, work, sample, (of.input_schema, of.output_schema), of.keyed, frame, updates, 2)


def stateless_as_python_does(sdk: Sdk, work: Path) -> None:
    """Compare the answers to random frames with those of the oracle."""
    chance, command = random.Random(f"{SEED} {sdk.name}"), commands(sdk)[sdk.name]
    for sample, schemas in (("forward", (EVENTS, EVENTS)), ("fraud", FRAUD)):
        oracle, made = in_process(sample, schemas[1]), child(command(sample), work, schemas, None)
        for turn in range(6):
            values = [chance.choice([None, 100.0, chance.uniform(0, 200)]) for _ in range(chance.choice([0, 1, 20, 6_000]))]
            batch = pa.record_batch([range(len(values)), pa.array(values, pa.float64())], schema=EVENTS)
            timer = killed_soon(made, chance) if turn == 3 else None
            assert made.once(batch).equals(oracle.once(batch)), (sample, turn)
            if timer is not None:
                timer.join()
        made.close()


@pytest.mark.long
def test_the_samples_answer_as_in_python_under_kills_and_updates_between_languages(sdk: Sdk, tmp_path: Path) -> None:
    all_samples(sdk, tmp_path)


@pytest.mark.long
def test_the_samples_in_go_answer_as_in_python_under_kills_and_updates_between_languages(programs: Path, tmp_path: Path) -> None:
    all_samples(Sdk("go", programs, ("bin/{}",)), tmp_path)


def test_the_stateless_samples_in_a_python_process_answer_as_in_the_engines_own(tmp_path: Path) -> None:
    stateless_as_python_does(Sdk("python", tmp_path, ()), tmp_path)
