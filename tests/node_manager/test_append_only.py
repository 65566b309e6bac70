"""A state server with a damaged file: unreadable bytes are cut off and a copy kept, or refused with a remedy; real servers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from node_manager.servers import append_only
from node_manager.servers.embedded import Servers
from node_manager.settings import NodeSettings
from udo_protocol.errors import Unavailable

GARBAGE = b"\x00\xff garbage *3\r\n$3\r\nS"


@contextlib.contextmanager
def servers(home: Path, *, cut_state: bool = False) -> Iterator[Servers]:
    """Run both servers of a node until the block ends."""
    wanted = NodeSettings(home, "n1", cut_state=cut_state)
    wanted.prepare()
    running = Servers(wanted, lambda _: None)
    try:
        running.start()
        yield running
    finally:
        running.stop()


def values(running: Servers) -> list[bytes | None]:
    """Return the three values of `written` on the state server; None for a missing one."""
    with contextlib.closing(running.connect("state")) as state:
        return list(state.call("MGET", *(f"udo:d:0:m:query{n}" for n in (1, 2, 3))))


@pytest.fixture
def written(home: Path) -> Path:
    """The file of a stopped state server, with three writes: one alone, one in a MULTI, one alone."""
    with servers(home) as running, contextlib.closing(running.connect("state")) as state:
        state.call("SET", "udo:d:0:m:query1", "one")
        state.call("MULTI")
        state.call("SET", "udo:d:0:m:query2", "two")
        state.call("SET", "udo:d:0:g:7.1", "label of two")
        state.call("EXEC")
        state.call("SET", "udo:d:0:m:query3", "three")
    return home / "servers" / "state" / "appendonlydir" / "appendonly.aof.1.incr.aof"


def test_garbage_behind_the_last_write_is_cut_off_and_a_copy_kept(home: Path, written: Path) -> None:
    whole = written.read_bytes()
    written.write_bytes(whole + GARBAGE)
    with servers(home) as running:
        assert values(running) == [b"one", b"two", b"three"]
        told = running.remark("state")
    assert f"{written} was unreadable from byte {len(whole)} on: the last {len(GARBAGE)} bytes were cut off" in told
    assert "no complete write among them" in told
    (copy,) = written.parent.glob("*.unreadable")
    assert copy.read_bytes() == whole + GARBAGE and str(copy) in told
    with servers(home) as running:  # the remark stays as long as the copy is there
        assert running.remark("state") == told
        copy.unlink()
        assert running.remark("state") == ""


@pytest.mark.parametrize(("behind", "left"), [(b"three", [b"one", b"two", None]), (b"label of two", [b"one", None, None])])
def test_a_write_or_a_transaction_cut_short_is_taken_off_whole(home: Path, written: Path, behind: bytes, left: list[bytes | None]) -> None:
    whole = written.read_bytes()
    written.write_bytes(whole[: whole.index(behind) + 2])
    with servers(home) as running:
        assert values(running) == left
        assert "d: query" in running.remark("state")


def test_garbage_in_the_middle_is_refused_until_somebody_gives_up_what_is_behind_it(home: Path, written: Path) -> None:
    whole = written.read_bytes()
    at = whole.index(b"*1\r\n$5\r\nMULTI")
    written.write_bytes(whole[:at] + GARBAGE + whole[at:])
    with pytest.raises(Unavailable) as refused, servers(home):
        pass
    for part in (f"unreadable bytes at {at}", "5 whole writes behind them", "d: query2, d: query3", "--cut-state", "backup", "store"):
        assert part in str(refused.value)
    assert written.read_bytes() == whole[:at] + GARBAGE + whole[at:]

    with servers(home, cut_state=True) as running:
        assert values(running) == [b"one", None, None]
        assert "5 whole writes among them" in running.remark("state")


def test_a_broken_snapshot_is_refused_with_the_servers_words_and_what_can_be_done(home: Path, written: Path) -> None:
    (base,) = written.parent.glob("*.base.rdb")
    base.write_bytes(b"\x00" * 64)
    with pytest.raises(Unavailable) as refused, servers(home):
        pass
    for part in ("the state server ended with status 1", base.name, "move it away", str(written.parent), "backup", "store"):
        assert part in str(refused.value)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.lists(st.tuples(st.integers(1, 3), st.integers(0, 40)), max_size=12),
    at=st.floats(0, 1),
    junk=st.binary(max_size=30).filter(lambda b: b"*" not in b),
)
def test_what_is_left_is_the_longest_beginning_of_whole_steps(tmp_path: Path, sizes: list[tuple[int, int]], at: float, junk: bytes) -> None:
    steps = [_step(count, size) for count, size in sizes]
    ends = [sum(map(len, steps[:n])) for n in range(len(steps) + 1)]
    keep = round(at * ends[-1])
    file = tmp_path / "appendonlydir" / "writes"
    file.parent.mkdir(exist_ok=True)
    (file.parent / "appendonly.aof.manifest").write_text("file base seq 1 type b\nfile writes seq 1 type i\n")
    file.write_bytes(b"".join(steps)[:keep] + junk)

    cut = append_only.mend(tmp_path)

    left = max(end for end in ends if end <= keep)
    assert len(file.read_bytes()) == left
    assert (cut.lost_bytes if cut else 0) == keep - left + len(junk)


def _step(count: int, size: int) -> bytes:
    """Return `count` commands, as one MULTI if there are several."""
    command = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$%d\r\n%s\r\n" % (size, b"v" * size)
    return command if count == 1 else b"*1\r\n$5\r\nMULTI\r\n" + command * count + b"*1\r\n$4\r\nEXEC\r\n"
