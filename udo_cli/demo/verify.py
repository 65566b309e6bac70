"""The strict count: compares the sink's rows with the input, row by row and in order. Reads files only."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlparse

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

OUTPUT = ["tx_id", "flagged", "rules"]


@dataclass(frozen=True)
class Quality:
    """The quality of one version's answers: counts of payments, frauds, flagged payments, and flagged frauds (`caught`)."""

    rows: int
    frauds: int
    flagged: int
    caught: int

    @property
    def precision(self) -> float | None:
        """Share of the flagged that are frauds."""
        return self.caught / self.flagged if self.flagged else None

    @property
    def recall(self) -> float | None:
        """Share of the frauds that are flagged."""
        return self.caught / self.frauds if self.frauds else None


@dataclass(frozen=True)
class Verification:
    """The comparison of output and input. `reordered` counts rows that follow a later row of the same partition."""

    events_out: int
    lost: int
    duplicated: int
    reordered: int
    unknown: int
    first_row: dict[str, int]  # by version: the first row it answered
    mixed_rows: int  # rows of an older version directly after a row of a newer one, within their partition
    quality: dict[str, Quality]  # by version

    @property
    def exact(self) -> bool:
        """Whether every event was answered once, in order, and by no older version after a newer one."""
        return not (self.lost or self.duplicated or self.reordered or self.unknown or self.mixed_rows)


def committed(sink: Path) -> list[Path]:
    """Files of Spark's file sink that its own log counts, in the log's order; none before the first commit."""
    log = sink / "_spark_metadata"
    entries = sorted((int(p.name.removesuffix(".compact")), p) for p in log.glob("*") if p.name.removesuffix(".compact").isdigit())
    compact = max((n for n, p in entries if p.suffix == ".compact"), default=-1)
    found = []
    for number, path in entries:
        # A compacted entry holds all entries before it, under the number of the last one.
        if number > compact or (number == compact and path.suffix == ".compact"):
            for line in path.read_text("utf-8").splitlines()[1:]:
                entry = json.loads(line)
                if entry.get("action", "add") == "add":
                    found.append(Path(unquote(urlparse(entry["path"]).path)))
    return found


def _answers(sink: Path) -> Iterator[pa.Table]:
    for path in committed(sink):
        yield pq.read_table(path, columns=OUTPUT, partitioning=None)


def verify(sink: Path, is_fraud: np.ndarray) -> Verification:
    """Compare the sink with the input, whose rows have the ids 0 .. len(is_fraud) - 1; `is_fraud` is the truth by row."""
    rows = len(is_fraud)
    seen = np.zeros(rows, dtype=np.int64)
    out = reordered = unknown = mixed = 0
    first: dict[str, int] = {}
    counts: dict[str, np.ndarray] = {}
    for part in _answers(sink):
        ids = part.column("tx_id").to_numpy()
        out += len(ids)
        reordered += int((np.diff(ids) < 0).sum())
        inside = (ids >= 0) & (ids < rows)
        unknown += int((~inside).sum())
        np.add.at(seen, ids[inside], 1)
        rules = part.column("rules").combine_chunks().dictionary_encode()
        version = rules.indices.to_numpy()
        mixed += _older_after_newer(version, rules.dictionary.to_pylist())
        flagged = part.column("flagged").to_numpy()
        for k, name in enumerate(rules.dictionary.to_pylist()):
            mine = (version == k) & inside
            if mine.any():
                first[name] = min(first.get(name, rows), int(ids[mine].min()))
            fraud = is_fraud[ids[mine]]
            counted = np.array([mine.sum(), fraud.sum(), flagged[mine].sum(), (fraud & flagged[mine]).sum()])
            counts[name] = counts.get(name, 0) + counted
    quality = {name: Quality(*map(int, c)) for name, c in sorted(counts.items())}
    return Verification(out, int((seen == 0).sum()), int(seen.sum() - (seen > 0).sum()), reordered, unknown, first, mixed, quality)


def _older_after_newer(version: np.ndarray, names: list[str]) -> int:
    """Number of rows answered by an older version directly after a row answered by a newer one, in one partition."""
    rank = np.argsort(np.argsort(np.array(names)))[version] if names else version
    return int((np.diff(rank) < 0).sum())
