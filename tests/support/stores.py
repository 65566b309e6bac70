"""Changes for a state store, and the state that it should then hold."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from udo_interface.store.store import File, SessionStore
from udo_protocol.limits import KEY_GROUPS
from udo_protocol.state.stored import Rows

KEY = (("k", "string"),)
State = dict[int, dict[bytes, bytes]]
ABOUT = {"operator": "t", "version": "1", "highest_us": None}


def write(
    s: SessionStore,
    epoch: int,
    changes: State,
    *,
    partition: int = 0,
    partitions: int = 1,
    run: int = 1,
    attempt: int = 1,
    version: int = 0,
    full: bool = False,
    **about: Any,
) -> Path:
    file = File(epoch, partition, partitions, run, attempt, version, full, key_groups=s.stored.key_groups)
    of_file = Rows()
    for n in sorted(file.groups):
        of_file.add(n, changes.get(n, {}))
    s.write(file, [of_file.batch()], {**ABOUT, **about})
    return Path(s.directory) / file.name


class History:
    """A query's life: epochs of changes, each processed by one or more runs in varying numbers of partitions; the last run is complete."""

    def __init__(self, s: SessionStore, draw: Callable[..., Any]) -> None:
        self.states: list[State] = [{}]
        run = 0
        for epoch in range(draw(st.integers(1, 7))):
            groups = draw(st.lists(st.integers(0, KEY_GROUPS - 1), max_size=5))
            changes: State = {n: {draw(st.binary(min_size=1, max_size=1)): draw(st.binary(max_size=2))} for n in groups}
            after = {n: {**self.states[-1].get(n, {}), **changes.get(n, {})} for n in range(KEY_GROUPS)}
            for complete in [*draw(st.lists(st.just(False), max_size=2)), True]:
                run += 1
                partitions = draw(st.integers(1, 4))
                for p in range(partitions):
                    for attempt in range(draw(st.integers(int(complete), 2))):
                        full = epoch == 0 or draw(st.booleans())
                        write(s, epoch, after if full else changes, partition=p, partitions=partitions, run=run, attempt=attempt, full=full)
            self.states.append(after)
