"""Events in JSON: from a file with one object in each line, or made from a seed, with an attack in them."""

from __future__ import annotations

import datetime as dt
import json
import random
from pathlib import Path

import pyarrow as pa

from udo_protocol.errors import NotFound

COUNTRIES, DEVICES = ("DE", "FR", "US", "JP", "BR"), ("phone", "tablet", "desktop")
EVENTS_PER_S, LATE_S = 5, 8  # an event arrives up to LATE_S after its time: less than frequent/operator.toml allows
BEGIN = dt.datetime(2026, 3, 2, 9, tzinfo=dt.UTC)


def read(path: Path, rows: int | None) -> pa.Table:
    """Read the lines of a file, each an object with `at`, a time with its zone, and any other fields."""
    if not path.is_file():
        raise NotFound(f"there is no file {path}")
    lines = [line for line in path.read_text("utf-8").splitlines() if line.strip()]
    return pa.table({"body": pa.array(lines[:rows], pa.string())})


def generated(rows: int, seed: int) -> pa.Table:
    """Logins and payments; in the middle third, a script tries passwords from one country."""
    draw = random.Random(seed)
    made = []
    for i in range(rows):
        seconds = i / EVENTS_PER_S
        attack = rows // 3 <= i < 2 * rows // 3 and draw.random() < 0.4
        event = {
            "at": (BEGIN + dt.timedelta(seconds=seconds)).isoformat(),
            "country": "XX" if attack else draw.choices(COUNTRIES, (5, 3, 3, 2, 1))[0],
            "device": "script" if attack else draw.choice(DEVICES),
            "action": "login" if attack or draw.random() < 0.3 else "pay",
            "result": "failed" if draw.random() < (0.95 if attack else 0.05) else "ok",
        }
        made.append((seconds + draw.uniform(0, LATE_S), json.dumps(event)))
    return pa.table({"body": pa.array([body for _, body in sorted(made)], pa.string())})
