"""Scale-outs that are prepared before they are needed: taken over, stood down, and continued whatever dies. Every event counts once."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from elasticity.scaling.journal_rows import rows_of
from node_manager.deployments import scale_out
from node_manager.manager import Manager
from node_manager.servers import access
from tests.conftest import wait_until
from tests.node_manager.conftest import Daemon, put_image
from tests.support.keyed_node import exported
from tests.support.keyed_slots import COUNT, Oracle, again_and_again, between, counted, events
from tests.support.split_attempt import Job
from udo_cli import state_file
from udo_cli.commands.events import replayed
from udo_protocol import ranges
from udo_protocol.errors import Conflict, UdoError, UsageError, WaitTimeout
from udo_protocol.queue import slot as log
from udo_protocol.queue.keys import SlotKeys
from udo_protocol.registry.wanted import WantedDeployment
from udo_protocol.state import moving

pytestmark = pytest.mark.long

BACKUP, CHECKPOINT = "active-backup", "checkpoint"


class Query:
    """Epochs of a query on deployment d; each answer is checked, and `during` is called in the middle of an attempt."""

    def __init__(self, daemon: Daemon, seed: int) -> None:
        self.daemon, self.orders = daemon, random.Random(seed)
        self._job, self._oracle, self._epoch = Job(str(daemon.home / "node.sock")), Oracle(), -1

    def epoch(self, during: Callable[[], object] = lambda: None, *, again: bool = False) -> bool:
        self._epoch += 1
        batches, acted = events(self.orders), list[bool]()

        def act() -> None:
            if not acted:
                acted.append(True)
                during()

        def attempt() -> list[int]:
            return self._job.epoch(self._epoch, between(batches, act, 2))

        answers = again_and_again(attempt) if again else attempt()
        assert counted(answers) == self._oracle.epoch(batches), f"epoch {self._epoch}"
        return True

    def goes_on_as(self, session: str) -> None:
        """Go on with the state of another session."""
        self._job = Job(str(self.daemon.home / "node.sock"), session=session)

    def judge(self) -> None:
        """Check that no key is in two slots."""
        (listed,) = self.daemon.api.sessions("d").sessions
        assert listed.keys == len(self._oracle.counts)


def keyed(daemon: Daemon, slots: int = 1, seed: int = 1, **config: Any) -> Query:
    daemon.deploy(COUNT.format(version=1), key=["a"], config_json=json.dumps(config))
    if slots > 1:
        daemon.api.scale("d", slots)
    query = Query(daemon, seed)
    query.epoch()
    return query


def standing(daemon: Daemon) -> dict[int, int]:
    """Return slot -> pid of the slots that stand ready."""
    return {s.slot: s.pid for s in daemon.api.status().slots if s.pinned == "prepared"}


def serving(daemon: Daemon) -> dict[int, int]:
    """Return slot -> pid of the slots that serve."""
    return {s.slot: s.pid for s in daemon.api.status().slots if not s.pinned}


def shares(daemon: Daemon) -> list[int]:
    return [len(ranges.parsed(s.groups, 128)) for s in daemon.api.status().slots if s.map_version]


def phase(daemon: Daemon) -> str:
    """Return the phase of the preparation that is noted on disk; '' if there is none."""
    (found,) = json.loads((daemon.home / "wanted.json").read_text())["deployments"]
    return str(found["preparation"]["phase"]) if found["preparation"] else ""


def left_of(daemon: Daemon, numbers: Sequence[int]) -> list[str]:
    """Return what is left of these slots: keys and users on the servers, and records of instances."""
    found = [str(record) for record in daemon.records() if record.get("slot") in numbers]
    for role in ("state", "queue"):
        with contextlib.closing(access.connect(daemon.home, role)) as conn:
            for number in numbers:
                found += map(str, conn.call("KEYS", f"{SlotKeys('d', number)}*"))
            own = [SlotKeys("d", n).prefix.encode() for n in numbers]
            found += [str(user) for user in conn.call("ACL", "LIST") if any(prefix in bytes(user) for prefix in own)]
    return found


def running(slots: dict[int, int]) -> list[int]:
    """Return the process ids of those that have not ended."""
    return [pid for pid in slots.values() if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE]


def base(daemon: Daemon, number: int) -> int:
    """Return the base of the slot's log, before which everything is covered by its checkpoints."""
    with contextlib.closing(access.connect(daemon.home, "queue")) as queue:
        return log.slot_stats(queue, SlotKeys("d", number)).base


@pytest.mark.short
def test_slots_that_stand_ready_take_over_in_the_middle_of_an_attempt_and_others_are_removed_without_a_trace(daemon: Daemon) -> None:
    query, api = keyed(daemon), daemon.api
    api.prepare_scale_out("d", 3, BACKUP, 0.2)
    ready = standing(daemon)
    assert len(ready) == 2 and len(serving(daemon)) == 1 and shares(daemon) == [128], "they are no part of the map"
    for _ in range(3):
        query.epoch()
    query.epoch(lambda: api.scale("d", 3))
    assert not standing(daemon) and ready.items() <= serving(daemon).items(), "the instances that stood ready serve"
    assert sorted(shares(daemon)) == [42, 43, 43] and phase(daemon) == ""
    assert daemon.log().count("key groups moved") == 2

    query.epoch(lambda: api.prepare_scale_out("d", 6, BACKUP, 0.2))
    ready, before = standing(daemon), shares(daemon)
    assert len(ready) == 3
    query.epoch(lambda: api.prepare_scale_out("d", 0))
    assert not standing(daemon) and shares(daemon) == before and left_of(daemon, list(ready)) == []
    assert running(ready) == []
    query.epoch()
    query.judge()


def test_a_take_over_that_fails_again_and_again_is_gone_on_with_by_one_thread(manager: Manager, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = put_image(manager.settings.home, COUNT.format(version=1), key=["a"])
    manager.deploy(WantedDeployment("d", "t", "1", digest), 30)
    kept, tries = list[Callable[[], None]](), list[int]()

    def scale(name: str, slots: int, *_: object) -> None:
        tries.append(slots)
        if len(tries) < 4:
            raise WaitTimeout("its slots are still loading")

    monkeypatch.setattr(scale_out, "_AGAIN_S", 0.0)
    monkeypatch.setattr(manager.scaling, "scale", scale)
    monkeypatch.setattr(scale_out, "supervised", SimpleNamespace(keep=lambda kind, work, over, about: kept.append(work)))
    with pytest.raises(WaitTimeout):
        manager.scale_outs.scale("d", 2, 10)
    (going_on,) = kept
    going_on()
    assert tries == [2] * 4 and len(kept) == 1
    assert manager.deployments.find("d").preparation is None


def test_a_slot_that_stands_ready_may_read_what_it_is_going_to_have_and_no_longer_than_that(daemon: Daemon) -> None:
    """The copy is complete before the take-over is asked for, and the right to read ends with the take-over."""
    query, api = keyed(daemon), daemon.api
    api.prepare_scale_out("d", 2, BACKUP, 0.1)
    (number,) = standing(daemon)
    with contextlib.closing(access.connect(daemon.home, "state")) as state:
        wait_until(lambda: moving.is_prepared(state, SlotKeys("d", number), 2), 20, "the copy to be complete")
        rules = b" ".join(map(bytes, state.call("ACL", "LIST")))
    assert f"%R~{SlotKeys('d', 0)}g:*".encode() in rules, "it may read what it is going to have"
    query.epoch(lambda: api.scale("d", 2))
    with contextlib.closing(access.connect(daemon.home, "state")) as state:
        assert f"%R~{SlotKeys('d', 0)}g:*".encode() not in b" ".join(map(bytes, state.call("ACL", "LIST"))), "and no longer than that"
    query.epoch()
    query.judge()


def test_by_checkpoints_no_slot_stands_ready_and_a_long_epoch_is_covered_again_and_again(daemon: Daemon) -> None:
    query, api = keyed(daemon), daemon.api
    query.epoch()
    seen: list[int] = []

    def during() -> None:
        seen.append(base(daemon, 0))
        api.prepare_scale_out("d", 2, CHECKPOINT, 0.2)
        wait_until(lambda: base(daemon, 0) > seen[0] + 2, 20, "checkpoints within the epoch")
        assert not standing(daemon)
        api.scale("d", 2)

    query.epoch(during)
    assert shares(daemon) == [64, 64] and len(serving(daemon)) == 2 and phase(daemon) == ""
    query.epoch()
    query.judge()


def test_a_preparation_follows_groups_that_are_moved_by_hand_and_ends_with_a_change_of_version(daemon: Daemon) -> None:
    query, api = keyed(daemon, slots=2), daemon.api
    api.prepare_scale_out("d", 3, BACKUP, 0.1)
    first, second = [s.slot for s in daemon.api.status().slots if not s.pinned]
    query.epoch(lambda: list(api.move_groups("d", range(20), second)))
    query.epoch()
    query.epoch(lambda: api.scale("d", 3))
    assert sorted(shares(daemon)) == [42, 43, 43]

    api.prepare_scale_out("d", 4, BACKUP, 0.1)
    ready = list(standing(daemon))
    daemon.deploy(COUNT.format(version=1) + "\n", name="other", version="2", key=["a"])
    assert list(api.update("d", "2"))[-1].phase == "done"
    wait_until(lambda: not standing(daemon) and left_of(daemon, ready) == [], 30, "what stood ready to be given up")
    query.epoch()
    query.judge()


def test_a_slot_that_stands_ready_and_dies_reads_everything_again(daemon: Daemon) -> None:
    query, api = keyed(daemon), daemon.api
    api.prepare_scale_out("d", 2, BACKUP, 0.1)
    ((number, pid),) = standing(daemon).items()
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: standing(daemon).get(number) not in (pid, 0, None), 30, "another instance")
    query.epoch()
    query.epoch(lambda: api.scale("d", 2))
    assert number in serving(daemon) and shares(daemon) == [64, 64]
    query.epoch()
    query.judge()


def test_a_manager_that_is_killed_while_a_scale_out_stands_prepared_goes_on_with_it(daemon: Daemon) -> None:
    query, api = keyed(daemon), daemon.api
    api.prepare_scale_out("d", 3, BACKUP, 0.1)
    ready = standing(daemon)
    query.epoch(daemon.kill)
    daemon.start()
    assert standing(daemon) == ready and phase(daemon) == "prepared"
    before = base(daemon, 0)
    wait_until(lambda: base(daemon, 0) > before + 2, 20, "it to be kept fresh")
    query.epoch(lambda: daemon.api.scale("d", 3))
    assert ready.items() <= serving(daemon).items() and sorted(shares(daemon)) == [42, 43, 43]
    query.epoch()
    query.judge()


@pytest.mark.parametrize("strategy", [BACKUP, CHECKPOINT])
def test_a_manager_that_is_killed_while_it_takes_over_goes_on_with_it(daemon: Daemon, strategy: str) -> None:
    """There is no registry that would ask for the number of slots again."""
    query, api = keyed(daemon), daemon.api
    api.prepare_scale_out("d", 3, strategy, 0.1)
    ready = standing(daemon)
    source = serving(daemon)[0]
    os.kill(source, signal.SIGSTOP)  # so that it does not hand over its groups
    asking = threading.Thread(target=_scale, args=(api,))
    asking.start()
    wait_until(lambda: phase(daemon) == "taking over", 30, "the take-over to begin")
    daemon.kill()
    os.kill(source, signal.SIGCONT)
    asking.join()
    daemon.start()
    query.epoch()
    wait_until(lambda: phase(daemon) == "", 60, "the take-over to be over")
    assert sorted(shares(daemon)) == [42, 43, 43] and ready.items() <= serving(daemon).items() and not standing(daemon)
    query.epoch()
    query.judge()


def _scale(api: Any) -> None:
    with contextlib.suppress(UdoError):
        api.scale("d", 3)


def test_a_manager_that_is_killed_while_it_stands_down_removes_what_is_left(daemon: Daemon) -> None:
    query, api = keyed(daemon), daemon.api
    api.prepare_scale_out("d", 3, BACKUP, 0.1)
    ready = standing(daemon)
    for pid in ready.values():
        os.kill(pid, signal.SIGSTOP)  # so that they take a while to end
    asking = threading.Thread(target=_stand_down, args=(api,))
    asking.start()
    wait_until(lambda: phase(daemon) == "standing down", 30, "the stand-down to begin")
    daemon.kill()
    asking.join()
    daemon.start()
    wait_until(lambda: phase(daemon) == "", 60, "the stand-down to be over")
    assert not standing(daemon) and left_of(daemon, list(ready)) == [] and shares(daemon) == [128]
    assert running(ready) == []
    query.epoch()
    query.judge()


def _stand_down(api: Any) -> None:
    with contextlib.suppress(UdoError):
        api.prepare_scale_out("d", 0)


@pytest.mark.parametrize("seed", [1, 2])
def test_epochs_count_once_whatever_is_prepared_taken_over_stood_down_or_dies(daemon: Daemon, seed: int) -> None:
    query, orders, log_of = keyed(daemon, seed=seed), random.Random(seed), list[str]()

    def act(what: str) -> None:
        with contextlib.suppress(UdoError):  # the manager was killed meanwhile, or the number of slots cannot be prepared for
            slots = len(serving(daemon))
            if what == "prepare":
                daemon.api.prepare_scale_out("d", min(slots + orders.randint(1, 2), 5), orders.choice([BACKUP, CHECKPOINT]), 0.1, 20)
            elif what == "take over":
                daemon.api.scale("d", min(slots + 1, 5), 20)
            elif what == "stand down":
                daemon.api.prepare_scale_out("d", 0)
            elif what == "scale in":
                daemon.api.scale("d", max(slots - 2, 1), 20)

    def during() -> None:
        first = orders.choice(["prepare", "take over", "stand down", "prepare", "scale in"])
        kill = orders.choice(["", "", "owner", "manager"])
        log_of.append(f"{first} {kill}")
        beside = threading.Thread(target=act, args=(first,))
        beside.start()
        if kill == "owner":
            with contextlib.suppress(ProcessLookupError):
                os.kill(orders.choice([s.pid for s in daemon.api.status().slots if s.pid]), signal.SIGKILL)
        elif kill == "manager":
            threading.Event().wait(orders.uniform(0, 0.3))
            daemon.kill()
            daemon.start()
        beside.join()

    for _ in range(7):
        query.epoch(during, again=True)
    query.epoch(again=True)
    query.judge()
    assert sum(shares(daemon)) == 128, log_of


def test_a_session_that_was_imported_is_prepared_for_and_taken_over_before_its_query_goes_on(daemon: Daemon, tmp_path: Path) -> None:
    """The record of an imported session holds less than one that an instance has written."""
    query, api, file = keyed(daemon), daemon.api, tmp_path / "q.state"
    api.import_state(state_file.parts(file, exported(api, file), "d", "another", None, False))
    api.prepare_scale_out("d", 2, BACKUP, 0.1)
    api.scale("d", 2)
    query.goes_on_as("another")
    query.epoch()
    assert shares(daemon) == [64, 64]


def test_what_cannot_be_prepared_is_refused_with_what_to_do(daemon: Daemon) -> None:
    keyed(daemon, slots=2)
    api = daemon.api
    with pytest.raises(UsageError, match="'d' has 2 slots: expected more than that to prepare for, got 2"):
        api.prepare_scale_out("d", 2)
    with pytest.raises(UsageError, match="expected a strategy of active-backup, checkpoint, got 'hope'"):
        api.prepare_scale_out("d", 3, "hope")
    with pytest.raises(UsageError, match="expected at least 0.1 s between refreshes, got 0.05"):
        api.prepare_scale_out("d", 3, BACKUP, 0.05)
    daemon.deploy("def run(event):\n    yield {'b': 1}\n", name="plain")
    with pytest.raises(UsageError, match="'plain' keeps no state, so there is nothing to prepare: udo scale plain 3"):
        api.prepare_scale_out("plain", 3)
    daemon.deploy(COUNT.format(version=3), name="auto", version="3", key=["a"], config_json=json.dumps({"elasticity": {"mode": "auto"}}))
    with pytest.raises(Conflict, match="'auto' is in mode auto, where its load decides: udo scale auto --mode advise"):
        api.prepare_scale_out("auto", 3)
    assert phase_of(daemon.home, "d") is None


def phase_of(home: Path, name: str) -> Any:
    found = json.loads((home / "wanted.json").read_text())["deployments"]
    return next(d["preparation"] for d in found if d["name"] == name)


@pytest.fixture
def deciding(home_daemon: Daemon) -> Iterator[Daemon]:
    """A node that decides every second."""
    yield home_daemon.start("--decide-s", "1")


def test_in_mode_auto_a_load_is_prepared_for_taken_over_and_its_end_stands_down(deciding: Daemon) -> None:
    text = (files("elasticity") / "bottleneck" / "rules.toml").read_text("utf-8")
    daemon = deciding
    slow = COUNT.format(version=1).replace("class run", "import time\nclass run")
    slow = slow.replace("        n =", "        time.sleep(0.004)\n        n =")
    quick = {"confirm": 1, "settle": 0, "hold_s": 2.0, "balance": "", "token_s": 1.0, "refresh_s": 0.2, "calm": 1000}
    wish = {"mode": "auto", "most": 2, "settings": {**quick, "rules": _with(text, 25, 95)}}
    daemon.deploy(slow, key=["a"], config_json=json.dumps({"elasticity": wish}))
    query = Query(daemon, 1)

    def kinds() -> list[tuple[str, str]]:
        return [(row["kind"], row["result"]) for row in rows_of(daemon.api.decisions("d"), False) if row["result"] != "declined"]

    wait_until(lambda: query.epoch() and ("prepare", "done") in kinds(), 60, "a preparation")
    assert len(standing(daemon)) == 1 and len(serving(daemon)) == 1
    wait_until(lambda: ("stand_down", "done") in kinds(), 60, "the end of the load to be noticed")
    assert not standing(daemon)
    daemon.deploy(slow, key=["a"], config_json=json.dumps({"elasticity": {**wish, "settings": {**quick, "rules": _with(text, 25, 45)}}}))
    wait_until(lambda: query.epoch() and ("scale_out", "done") in kinds(), 60, "a take-over")
    assert len(serving(daemon)) == 2 and shares(daemon) == [64, 64]
    query.epoch()
    query.judge()
    assert replayed(daemon.api.decisions("d"))["same"]
    assert [kind for kind, _ in kinds()][:2] == ["prepare", "stand_down"]


def _with(text: str, alarming: float, scale_out: float) -> str:
    head, _, rest = text.partition("[thresholds]")
    assert rest
    return head + f"[thresholds]\nscale_in = 5\nalarming = {alarming}\nscale_out = {scale_out}\n"
