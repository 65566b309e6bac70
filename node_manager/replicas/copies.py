"""The replica's node: keeps copies of other nodes' slots, and makes one of them a slot of its own when the registry says so.

Each copy has a number of its own, as a slot has, so that nothing has to be renamed or converted when it becomes one. A hash on the state
server maps slots to copies; it is lost with the copies. If a slot has to be copied again, the former copy is kept until the new one is
whole: it may be the only one that holds what was ENDed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Lock, RLock

import structlog

from node_manager.deployments.across import Across
from node_manager.deployments.deployments import Deployments, NodeDeployment
from node_manager.homes import incarnation
from node_manager.slots.loading import NodeParts
from udo_protocol import supervised
from udo_protocol.errors import Conflict, UdoError, Unavailable
from udo_protocol.node import replica_calls
from udo_protocol.node.api import NodeClient
from udo_protocol.queue import slot
from udo_protocol.queue.connection import Connection
from udo_protocol.queue.keys import REPLICA_NUMBERS, REPLICAS, SlotKeys
from udo_protocol.state import replica_copies
from udo_protocol.state.group_map import FIRST_VERSION
from udo_protocol.state.replication import LoggedWrites, ReplicaName

# Slots have lower numbers; copies of other nodes' slots are numbered from here on.
COPIES_FROM = 100_000
# How long the owner's node waits for new writes before it answers: an idle replica costs one call in this time.
_WAIT_MS = 5_000
_AGAIN_S = 0.2
_log = structlog.get_logger()
# (deployment, made, place)
Key = tuple[str, int, int]


class Copies:
    """The copies of one node. Methods may be called from any thread."""

    def __init__(self, node: NodeParts, deployments: Deployments, across: Across) -> None:
        self._node, self._deployments, self._across = node, deployments, across
        self._following: dict[Key, Follower] = {}
        self._stopping = Event()
        # A thread that holds it may also take the deployments' lock, not the other way round.
        self.lock = RLock()

    def keep_wanted(self) -> None:
        """Keep the copies that the registry wants here, and no others."""
        with self.lock, self.state() as state:
            me, wanted = incarnation(state), set[Key]()
            for name, placed in self._across.placements():
                copies = placed.replication
                if copies is None or copies.disks.get(self._across.node) != me:
                    continue
                wanted |= {(name, placed.made, p) for p in range(len(placed.nodes)) if self._across.node in copies.named(p)}
            for key in [key for key, follower in self._following.items() if key not in wanted or follower.over]:
                self._following.pop(key).stop()
            for key in wanted - self._following.keys():
                if not self._stopping.is_set():
                    self._following[key] = Follower(self, self._across, key, me)
            for key, number in numbers(state).items():
                if key not in wanted and key not in self._mine():
                    self._drop(state, key, number)

    def _mine(self) -> set[Key]:
        """The slots that this node has, or is going to make of its copies."""
        found = set[Key]()
        for name, placed in self._across.placements():
            found |= {(name, placed.made, place) for place in placed.of(self._across.node)}
        return found

    def _drop(self, state: Connection, key: Key, number: int) -> None:
        if not self.in_use(key[0], number):
            with contextlib.closing(self._node.servers.connect("queue")) as queue:
                slot.drop_slot(state, queue, SlotKeys(key[0], number))
        state.call("HDEL", REPLICAS, _field(key))

    def in_use(self, name: str, number: int) -> bool:
        """Whether a slot of this node has that number."""
        deployment = self._deployments.get(name)
        return deployment is not None and number in [own.number for own in deployment.own]

    def discard(self, name: str, number: int) -> None:
        """Remove a copy that is not whole, or that a newer one has replaced."""
        with self.state() as state, contextlib.closing(self._node.servers.connect("queue")) as queue:
            slot.drop_slot(state, queue, SlotKeys(name, number))

    def slots(self, name: str, deployment: NodeDeployment | None) -> list[tuple[int | None, int]]:
        """The slots that this node has to have beside those of `deployment`, in their order: (number, term).

        The number is that of a copy, which is no longer followed from here on; None: a new slot. Conflict if `deployment` has slots of an
        earlier term. Unavailable if this node does not have the state that it is to serve: nothing begins anew.
        """
        placed = self._across.find(name)
        if placed is None or placed.replication is None:
            return []
        copies, mine = placed.replication, placed.of(self._across.node)
        own = deployment.own if deployment else []
        terms = [copies.terms[place] for place in mine]
        if any(deployment.term(slot.number) != term for slot, term in zip(own, terms, strict=False) if deployment):
            raise Conflict(f"deployment {name!r} has slots on node {self._across.node} that were given to other nodes since")
        found = list[tuple[int | None, int]]()
        with self.lock, self.state() as state:
            lost = copies.disks.get(self._across.node) != incarnation(state)
            there = numbers(state)
            for place in mine[len(own) :]:
                key = (name, placed.made, place)
                if lost or (copies.terms[place] != FIRST_VERSION and key not in there):
                    raise Unavailable(
                        f"node {self._across.node} is to have slot {place} of deployment {name!r}, and has lost the disk with its state. "
                        "If no replica is left, the query cannot go on: undeploy it (udo undeploy --drop-state), deploy it again, and "
                        "restart the query with a new checkpoint; a query with store= goes on from its store"
                    )
                if copies.terms[place] != FIRST_VERSION and (follower := self._following.pop(key, None)) is not None:
                    follower.stop()
                found.append((None if copies.terms[place] == FIRST_VERSION else there[key], copies.terms[place]))
        return found

    def taken(self, deployment: NodeDeployment) -> None:
        """Forget the copies that have become slots of the deployment, now that these are saved."""
        own = {slot.number for slot in deployment.own}
        with self.lock, self.state() as state:
            for key, number in numbers(state).items():
                if key[0] == deployment.name and number in own:
                    state.call("HDEL", REPLICAS, _field(key))

    def stop(self) -> None:
        """Follow nothing any more; the next manager goes on."""
        self._stopping.set()
        with self.lock:
            for follower in self._following.values():
                follower.stop()

    @contextmanager
    def state(self) -> Iterator[Connection]:
        """A connection to the node's state server."""
        with contextlib.closing(self._node.servers.connect("state")) as state:
            yield state


class Follower:
    """Keeps one copy up to date, in a thread of its own."""

    def __init__(self, copies: Copies, across: Across, key: Key, disk: str) -> None:
        self._copies, self._across, self._key = copies, across, key
        name, made, place = key
        self._me = ReplicaName(name, made, place, across.node, disk)
        self._again = False
        self._read: list[LoggedWrites] = []  # writes of a transaction that is not whole yet
        self._over, self._lock = Event(), Lock()
        self._trouble = ""  # the last error that was logged
        supervised.keep("replica", self._run, self._over, f"{name}-{place}")

    def stop(self) -> None:
        """End it. Once this returns, nothing more is written or acknowledged."""
        self._over.set()
        with self._lock:
            pass

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self._over.is_set()

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                owner = self._owner()
                if owner is None:
                    self._over.set()
                    return
                with self._copies.state() as state:
                    self._step(state, owner)
            except UdoError as e:
                self._read.clear()
                if self._trouble != str(e):
                    self._trouble = str(e)
                    _log.warning("a replica does not get on", deployment=self._key[0], slot=self._key[2], error=str(e))
                self._over.wait(_AGAIN_S)

    def _owner(self) -> NodeClient | None:
        """The node that has the slot; None if this node is no replica of it any more."""
        name, made, place = self._key
        placed = self._across.find(name)
        if placed is None or placed.made != made or placed.replication is None or self._across.node not in placed.replication.named(place):
            return None
        return self._across.connect(placed.nodes[place])

    def _step(self, state: Connection, owner: NodeClient) -> None:
        number = numbers(state).get(self._key)
        if number is None or self._again:
            self._copy(state, owner, number)
            return
        keys = SlotKeys(self._key[0], number)
        held = replica_copies.held(state, keys)
        after = self._read[-1].position if self._read else held.position
        found = replica_calls.follow_slot(owner, self._me, held.log, held.position, after, _WAIT_MS)
        if found is None:
            self._again = True
            return
        self._trouble, (source, writes) = "", found
        self._read += writes
        whole = next((at for at in range(len(self._read), 0, -1) if self._read[at - 1].whole), 0)
        if whole:
            with self._until_over():
                try:
                    replica_copies.execute(state, keys, source, self._read[:whole])
                except Conflict as e:
                    _log.info("a replica copies its slot again", deployment=self._key[0], slot=self._key[2], why=str(e))
                    self._again = True
            del self._read[:whole]

    def _copy(self, state: Connection, owner: NodeClient, former: int | None) -> None:
        name = self._key[0]
        number = COPIES_FROM + int(state.call("INCR", REPLICA_NUMBERS))
        state.call("HSET", REPLICAS, f"copying {number}", name)
        self._read.clear()
        try:
            replica_copies.received(state, SlotKeys(name, number), replica_calls.copy_slot(owner, self._me))
            with self._until_over():
                state.transaction([("HSET", REPLICAS, _field(self._key), number), ("HDEL", REPLICAS, f"copying {number}")])
                self._again = False
        except UdoError:
            self._copies.discard(name, number)
            state.call("HDEL", REPLICAS, f"copying {number}")
            raise
        _log.info("replica of a slot", deployment=name, slot=self._key[2])
        if former is not None:
            self._copies.discard(name, former)

    @contextmanager
    def _until_over(self) -> Iterator[None]:
        """Run the block, for which `stop` waits; Unavailable instead once this replica has ended."""
        with self._lock:
            if self._over.is_set():
                raise Unavailable("this replica has ended")
            yield


def _field(key: Key) -> str:
    return f"{key[1]} {key[2]} {key[0]}"


def numbers(state: Connection) -> dict[Key, int]:
    """The copies that are whole: key -> number."""
    flat, found = state.call("HGETALL", REPLICAS), dict[Key, int]()
    for field, number in zip(flat[::2], flat[1::2], strict=True):
        made, _, rest = bytes(field).decode().partition(" ")
        if made.isdecimal():
            place, _, name = rest.partition(" ")
            found[name, int(made), int(place)] = int(number)
    return found


def clean(state: Connection, drop: Callable[[str, int], None]) -> None:
    """When a manager starts: remove copies that its predecessor had not made whole."""
    flat = state.call("HGETALL", REPLICAS)
    for field, name in zip(flat[::2], flat[1::2], strict=True):
        word, _, number = bytes(field).decode().partition(" ")
        if word == "copying":
            drop(bytes(name).decode(), int(number))
            state.call("HDEL", REPLICAS, field)
