"""The slot log as a state machine on real servers: producers, readers, promotions, crashes, against a plain oracle.

The operator is the hardest one to fake: its answer to frame i is the running count, so a lost, doubled or reordered
frame, a state ahead of the answers or a second owner shows in the answers. The broken builds below each lack one rule.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.conftest import Servers
from udo_protocol.errors import Fenced
from udo_protocol.limits import SlotLimits
from udo_protocol.queue import lane_end, slot, slot_reader
from udo_protocol.queue.connection import Connection
from udo_protocol.queue.frame import ANSWER, DATA, Bytes, Header, decode, encode
from udo_protocol.queue.keys import SlotKeys
from udo_protocol.state import checkpoints

P = SlotKeys("m", 0)
LANES = ("a", "b")


@dataclass
class Instance:
    """An instance: cursor, running state, answers computed but not yet emitted."""

    reader: slot_reader.SlotReader
    token: int
    cursor: int = 1
    count: int = 0
    emitted: int = 0
    owner: bool = False
    pending: list[tuple[int, str, list[Bytes]]] = field(default_factory=list)


def answer_frame(lane: str, number: int, count: int) -> list[Bytes]:
    return encode(Header(lane=lane, number=number, kind=ANSWER, rows=count))


class SlotMachine(RuleBasedStateMachine):
    """Every interleaving that the rules allow must leave each lane with exactly the oracle's answers, in order."""

    servers: ClassVar[Servers]
    connections: ClassVar[dict[str, Connection]] = {}
    limits = SlotLimits(retained_bytes=4_000)

    def __init__(self) -> None:
        super().__init__()
        self.log: list[tuple[str, int]] = []  # the oracle: accepted frames in order
        self.sent = dict.fromkeys(LANES, 0)
        self.got: dict[str, list[tuple[int, int]]] = {lane: [] for lane in LANES}
        self.instances: dict[int, Instance] = {}

    def connection(self, name: str) -> Connection:
        """The connection of a party; connections are kept over all runs."""
        if name not in self.connections:
            self.connections[name] = Connection(self.servers.state_socket if name == "state" else self.servers.queue_socket)
        return self.connections[name]

    @initialize()
    def empty(self) -> None:
        self.state, self.queue = self.connection("state"), self.connection("queue")
        self.state.call("FLUSHALL")
        self.queue.call("FLUSHALL")
        self.ends = {lane: lane_end.LaneEnd(self.connection(f"lane-{lane}"), P, lane, self.limits) for lane in LANES}
        for end in self.ends.values():
            end.open(b"schema")
        self.start()
        self.promote(0)

    # --- producers

    @rule(lane=st.sampled_from(LANES), count=st.integers(1, 3))
    def push(self, lane: str, count: int) -> None:
        """Push several frames at once, pipelined."""
        end, first = self.ends[lane], self.sent[lane] + 1
        for n in range(first, first + count):
            end.send_push(n, n - 1, encode(Header(lane=lane, number=n, kind=DATA)))
        refused = False
        for n in range(first, first + count):
            status = end.push_reply().status
            if refused:
                assert status in (lane_end.Push.GAP, lane_end.Push.BUSY), status
            elif status is lane_end.Push.ACCEPTED:
                self.log.append((lane, n))
                self.sent[lane] = n
            else:
                assert status is lane_end.Push.BUSY, status
                refused = True

    @rule(lane=st.sampled_from(LANES), back=st.integers(0, 3))
    def push_again(self, lane: str, back: int) -> None:
        """A producer that lost a reply sends the frame again."""
        n = self.sent[lane] - back
        if n >= 1:
            assert self.ends[lane].push(n, n - 1, encode(Header(lane=lane, number=n, kind=DATA))).status is lane_end.Push.DUPLICATE

    @rule(lane=st.sampled_from(LANES))
    def push_past_a_gap(self, lane: str) -> None:
        n = self.sent[lane] + 2
        assert self.ends[lane].push(n, n - 1, encode(Header(lane=lane, number=n, kind=DATA))).status is lane_end.Push.GAP

    @rule(lane=st.sampled_from(LANES))
    def collect(self, lane: str) -> None:
        for frame in self.ends[lane].poll():
            self.got[lane].append((frame.header.number, frame.header.rows))
        expected = self.expected(lane)
        assert self.got[lane] == expected[: len(self.got[lane])], f"lane {lane}: {self.got[lane]} is no prefix of {expected}"

    def expected(self, lane: str) -> list[tuple[int, int]]:
        return [(n, i) for i, (which, n) in enumerate(self.log, 1) if which == lane]

    # --- instances

    @rule()
    def start(self) -> None:
        if len(self.instances) == 4:
            del self.instances[min(self.instances)]  # the oldest dies
        token = slot.next_token(self.state, P)
        name = f"i{token % 5}"
        reader = slot_reader.SlotReader(self.connection(name), P, name, token, self.limits)
        self.instances[token] = self.load(Instance(reader, token))

    def load(self, instance: Instance) -> Instance:
        covered = checkpoints.load_checkpoint(self.state, P).seq
        instance.cursor, instance.count, instance.pending = covered + 1, int(self.state.call("GET", f"{P}g:count") or 0), []
        return instance

    def pick(self, choice: int) -> Instance | None:
        return list(self.instances.values())[choice % len(self.instances)] if self.instances else None

    @rule(choice=st.integers(0, 3))
    def promote(self, choice: int) -> None:
        if (instance := self.pick(choice)) is not None:
            try:
                slot.promote(self.state, self.queue, P, instance.token)
            except Fenced:
                del self.instances[instance.token]

    @rule()
    def take_over(self) -> None:
        """A newer instance is promoted and answers at once, while the others do not know it yet and a producer goes on."""
        self.start()
        newest = len(self.instances) - 1
        self.read(newest)
        self.promote(newest)
        self.push(LANES[0], 1)
        self.read(newest)
        self.emit(newest)

    @rule(choice=st.integers(0, 3))
    def answer_late(self, choice: int) -> None:
        """An instance is paused between reading and answering; meanwhile a newer one takes over."""
        paused = self.pick(choice)
        self.read(choice)
        self.checkpoint(choice)
        self.take_over()
        if paused is not None and paused.token in self.instances:
            self.emit(list(self.instances).index(paused.token))

    @rule(choice=st.integers(0, 3))
    def promote_halfway(self, choice: int) -> None:
        """The node manager dies between the promotions on the two servers."""
        if (instance := self.pick(choice)) is not None:
            self.state.call("FCALL", "udo_promote", 1, P.prefix, instance.token)

    @rule(choice=st.integers(0, 3))
    def crash(self, choice: int) -> None:
        if (instance := self.pick(choice)) is not None:
            del self.instances[instance.token]

    @rule(choice=st.integers(0, 3))
    def read(self, choice: int) -> None:
        """Read and process, without answering yet."""
        instance = self.pick(choice)
        if instance is None:
            return
        read = instance.reader.read(instance.cursor)
        instance.emitted = read.emitted
        if instance.owner and read.owner != instance.token:
            del self.instances[instance.token]  # fenced
            return
        instance.owner = read.owner == instance.token
        if read.first > instance.cursor:
            self.load(instance)
            return
        for seq, data in enumerate(self.visible(read, instance), read.first):
            header = decode(data).header
            instance.count += 1
            instance.cursor = seq + 1
            if seq > read.emitted and instance.owner:
                instance.pending.append((seq, header.lane, answer_frame(header.lane, header.number, instance.count)))

    def visible(self, read: slot_reader.Read, instance: Instance) -> list[bytes | bytearray]:
        return list(read.frames)

    @rule(choice=st.integers(0, 3))
    def emit(self, choice: int) -> None:
        instance = self.pick(choice)
        if instance is None or not instance.pending:
            return
        try:
            outcome = self.send_answers(instance)
        except Fenced:
            del self.instances[instance.token]
            return
        assert outcome is slot_reader.Emit.EMITTED, f"an owner's answers were refused: {outcome}"
        instance.emitted = instance.pending[-1][0]
        instance.pending = []

    def send_answers(self, instance: Instance) -> slot_reader.Emit:
        """Emit in two pipelined halves, the second of which is sent before the outcome of the first is known."""
        first, answers = instance.pending[0][0], [(lane, frame) for _, lane, frame in instance.pending]
        half = len(answers) // 2
        if not half:
            return instance.reader.emit(first, answers, trim=False)
        instance.reader.send_emit(first, answers[:half], trim=False)
        sent = instance.reader._emit_commands
        instance.reader.send_emit(first + half, answers[half:], trim=False)
        last, instance.reader._emit_commands = instance.reader._emit_commands, sent
        outcomes = []
        for commands in (sent, last):
            instance.reader._emit_commands = commands
            try:
                outcomes.append(instance.reader.emit_reply())
            except Fenced:
                outcomes.append(slot_reader.Emit.FENCED)
        if slot_reader.Emit.FENCED in outcomes:
            raise Fenced
        return outcomes[-1]

    @rule(choice=st.integers(0, 3))
    def checkpoint(self, choice: int) -> None:
        instance = self.pick(choice)
        if instance is None or not instance.owner:
            return
        try:
            if self.store(instance) is slot_reader.Emit.STORED:
                instance.reader.trim(instance.cursor - 1)
        except Fenced:
            del self.instances[instance.token]

    def store(self, instance: Instance) -> slot_reader.Emit:
        if instance.pending:
            return slot_reader.Emit.AHEAD
        return self.write(instance, instance.emitted)

    def write(self, instance: Instance, emitted: int) -> slot_reader.Emit:
        covers = checkpoints.Checkpoint(instance.cursor - 1)
        owned = checkpoints.OwnedState(self.state, P, instance.token)
        return checkpoints.checkpoint(owned, covers, emitted, [("SET", f"{P}g:count", instance.count)])

    @rule(choice=st.integers(0, 3), hold=st.booleans())
    def pin(self, choice: int, hold: bool) -> None:
        if (instance := self.pick(choice)) is not None:
            instance.reader.pin(instance.cursor, 60_000 if hold else 0)

    # --- the end: whatever happened, a fresh instance finishes the work

    def teardown(self) -> None:
        if not hasattr(self, "ends"):
            return
        self.instances.clear()
        self.start()
        self.promote(0)
        while len(self.instances):
            self.read(0)
            [instance] = self.instances.values()
            if not instance.pending and instance.cursor == slot.slot_stats(self.queue, P).emitted + 1 == len(self.log) + 1:
                break
            assert instance.pending or instance.cursor <= len(self.log), "the last instance is stuck"
            self.emit(0)
        for lane in LANES:
            while len(self.got[lane]) < len(self.expected(lane)):
                before = len(self.got[lane])
                self.collect(lane)
                assert len(self.got[lane]) > before, f"lane {lane}: answers after {self.got[lane]} are lost"
            self.collect(lane)


class PipelinedRearm(SlotMachine):
    """Broken: the fence is WATCH + GET owner, re-armed in the pipeline, and the next MULTI is sent before the GET is read."""

    def send_answers(self, instance: Instance) -> slot_reader.Emit:
        conn, first = self.connection(f"fence-{instance.reader.name}"), instance.pending[0][0]
        if not getattr(instance, "armed", False):
            conn.call("UNWATCH")  # left over from an earlier run
            conn.call("WATCH", f"{P}owner")
            if int(conn.call("GET", f"{P}owner") or 0) != instance.token:
                conn.call("UNWATCH")
                raise Fenced
            instance.armed = True  # type: ignore[attr-defined]
        for i, (_, lane, frame) in enumerate(instance.pending):
            conn.send([("MULTI",), ("RPUSH", f"{P}out:{lane}", frame), ("SET", f"{P}emitted", first + i), ("EXEC",)])
            conn.send([("WATCH", f"{P}owner"), ("GET", f"{P}owner")])
        replies = [[conn.receive() for _ in range(6)] for _ in instance.pending]
        if replies[-1][3] is None or int(replies[-1][5] or 0) != instance.token:
            conn.call("UNWATCH")
            raise Fenced
        return slot_reader.Emit.EMITTED


class StandbyReadsAhead(SlotMachine):
    """Broken: a standby processes frames after `emitted`, so that nobody answers them once it is promoted."""

    def visible(self, read: slot_reader.Read, instance: Instance) -> list[bytes | bytearray]:
        return list(instance.reader.conn.call("LRANGE", f"{P}in", read.first - read.base, -1))


class CheckpointAhead(SlotMachine):
    """Broken: a checkpoint covers frames whose answers have not been emitted."""

    def store(self, instance: Instance) -> slot_reader.Emit:
        seq = instance.cursor - 1
        return self.write(instance, seq)


class EmitOverwrites(SlotMachine):
    """Broken: answers are appended without a check of who owns the slot."""

    def send_answers(self, instance: Instance) -> slot_reader.Emit:
        for seq, lane, frame in instance.pending:
            instance.reader.conn.transaction([("RPUSH", f"{P}out:{lane}", frame), ("SET", f"{P}emitted", seq)])
        return slot_reader.Emit.EMITTED
