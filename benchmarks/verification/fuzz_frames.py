"""Mutated frames against their decoder, in processes of their own: a crash is detected and reported with its seed and number.

The criterion of benchmarks/fuzz/frames.py: a typed error, or a batch of the frame's own bytes.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass

from benchmarks.fuzz.frames import NOTE, Portion
from benchmarks.fuzz.samples import samples
from benchmarks.harness.bringup import say
from benchmarks.harness.rules import InvalidRun
from benchmarks.harness.tables import Section

FULL, QUICK = 400_000, 100_000
# The number of mutations per process; a crash costs no more than these.
PORTION = 25_000
# The most time for one mutation, however busy the machine is: the slowest takes some ms of processor time.
HANG_S = 120.0


@dataclass(frozen=True)
class Figures:
    """The numbers of mutations by verdict."""

    mutations: int
    refused: int
    right: int
    crashed: int
    foreign: int
    slowest_ms: float
    peak_mb: int
    samples: int
    by_mutation: dict[str, int]


def portion(seed: int, first: int, count: int) -> Portion:
    """Try `count` mutations in a child process; InvalidRun names the one that it died of, hung on, or got wrong."""
    with tempfile.NamedTemporaryFile() as note:
        note.write(NOTE.pack(-1))
        note.flush()
        command = [sys.executable, "-m", "benchmarks.fuzz.frames", str(seed), str(first), str(count), note.name]
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            child = subprocess.Popen(command, stdout=out, stderr=err, text=True)
            status, last, since = None, -1, time.monotonic()
            try:
                while status is None and time.monotonic() - since < HANG_S:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        status = child.wait(1)
                    note.seek(0)
                    if (now := NOTE.unpack(note.read(NOTE.size))[0]) != last:
                        last, since = now, time.monotonic()
            finally:  # it hangs, or this process is to end
                child.kill()
                child.wait()
            if status is None:
                raise InvalidRun(f"seed {seed}, number {last}: decoding did not end within {HANG_S:g} s")
            for stream in (out, err):
                stream.seek(0)
            printed, said = out.read(), err.read()
    if status:
        how = f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}: {said[-2000:]}"
        raise InvalidRun(f"seed {seed}, number {last}: the process that decoded it ended with {how}")
    found = Portion(**json.loads(printed))
    if found.wrong:
        raise InvalidRun("; ".join(found.wrong[:10]))
    return found


def run(*, quick: bool, driver: str, seed: int) -> Figures:
    """Try all mutations of this seed."""
    total = QUICK if quick else FULL
    by_mutation: Counter[str] = Counter()
    parts = []
    for first in range(0, total, PORTION):
        say(f"mutations {first + 1} to {first + PORTION} of {total}")
        parts.append(portion(seed, first, PORTION))
        by_mutation.update(parts[-1].by_mutation)
    return Figures(
        mutations=total,
        refused=sum(p.refused for p in parts),
        right=sum(p.right for p in parts),
        crashed=0,
        foreign=0,
        slowest_ms=max(p.slowest_ms for p in parts),
        peak_mb=max(p.peak_mb for p in parts),
        samples=len(samples()),
        by_mutation=dict(by_mutation),
    )


def sections(f: Figures) -> list[Section]:
    """The tables of a run."""
    names = {"mutated frames": f.mutations, "refused with a typed error": f.refused, "still a batch, of its own bytes": f.right}
    rows = [[text, f"{number:,}"] for text, number in names.items()]
    rows += [["crashes", "0"], ["foreign bytes", "0"], ["slowest, ms", f"{f.slowest_ms:.1f}"]]
    remark = (
        f"Of {f.samples} frames, one for each layout of columns, and some with many rows; each also as a stream, and with its text left "
        f"to the reader. Peak memory {f.peak_mb} MB."
    )
    return [Section("Mutated frames", ("", "frames"), rows, remark)]
