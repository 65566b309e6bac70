"""The numbers that bound every queue, loop and wait, each with its reason. The unit stands last in the name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

# Bucket bounds of the histogram of a frame's time inside the operator, in ms: from a vectorised filter to a model that is called per event.
FRAME_TIMES_MS = (0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0, 2500.0, 10_000.0)
# Key groups (units of state, routing and migration) of a keyed deployment by default: usually many more than slots, few enough that
# listing them in END costs nothing. Balancing needs thousands. At most as many as END can list in a header, at 3 bytes each.
KEY_GROUPS, MOST_KEY_GROUPS = 128, 1 << 15
# Slots of one deployment on a node; each is a process of its own.
MOST_SLOTS = 64
# Replicas of a slot; each has to hold an epoch before its END is answered.
MOST_REPLICAS = 5
# A session's runs are ordered by the numbers of their plans. This many runs of one plan can be told apart: a query restarted from the
# same DataFrame is another run of its plan. With 2048 the order is exact in Lua and in JSON (below 2^53) until the year 2109.
RUNS_OF_A_PLAN = 2048
# A request for a lane waits this long for an instance that is just being started (first deployment, crash, cold version pin).
OPEN_WAIT_MS = 30_000
# Frames below this size travel as an argument of the deciding function: one command instead of four (measured: benchmarks latency).
INLINE_BYTES = 8192
# SERVER_HANG_S, SERVER_WAIT_S and heartbeat_grace_ms belong together (docs/design/waits.md): a hang shorter than
# the first costs only time; the node manager ends a longer one; and a watchdog gives up only after both have elapsed.
# The node manager ends and restarts a server that has not answered it for this long: much longer than a stalled disk or a
# machine short of processor time takes, well below the time that Spark tolerates (network time-out 120 s).
SERVER_HANG_S = 60.0
# The wait for a server's reply is longer than SERVER_HANG_S, so that the node manager alone decides that a server is lost; the bound
# matters only when there is no node manager.
SERVER_WAIT_S = 75.0

# Bounds on input from the other side. The size of a frame's header: failures are cut far below it (cut.py), and key groups,
# epochs and labels need a few KB.
HEADER_BYTES = 1 << 20
# The texts of a failure, each cut in the middle by the sender and again by the receiver: a screen or two of each, and below
# HEADER_BYTES even at four bytes per character. A message may end with the last lines of a log.
MESSAGE_CHARS, TRACEBACK_CHARS, EVENT_CHARS = 16_000, 32_000, 2_000
LOG_END_CHARS = 8_000
# Exceptions shown of one chain of causes, half of them from each end.
SHOWN_CAUSES = 10
# The length of a log line; longer lines were not written to be read.
LOG_LINE_BYTES = 8192
# An answer may be larger than its frame, but a receiver need not hold more than this.
ANSWER_BYTES = 256 << 20
# A schema of thousands of columns.
SCHEMA_BYTES = 1 << 20
# Rows of columns that take no bytes (type null): more than a batch has, and few enough to hold as Python objects.
BYTELESS_ROWS = 1 << 20
# Levels of lists in structs in maps; Arrow itself writes no more than 64.
NESTED_TYPES = 32


# Enough frames of a lane under way to hide the round trip, however many lanes share its slot.
LEAST_SHARE = 2


@dataclass(frozen=True)
class SlotLimits:
    """Bounds of one slot and its lanes; a deployment may override them."""

    # Eight frames of 10,000 rows hide the round trip; more frames only add memory (measured: benchmarks throughput).
    window_frames: int = 8
    # Several windows of large frames; small compared with a node's memory.
    retained_bytes: int = 256 << 20
    # END and other control frames may exceed the bound by this much, so that an epoch can always finish.
    reserve_bytes: int = 1 << 20
    # Redis refuses bulks above 512 MiB; a frame near that size is a mistake in batching.
    frame_bytes: int = 64 << 20
    # The node manager closes the lane of a producer whose connection is gone within seconds. This bound is for lanes whose producer
    # announced no connection: a day, since the server uses its machine's clock, which may be set while a producer waits.
    lane_ttl_ms: int = 86_400_000
    # An operator that does not answer a frame for this long counts as hung.
    answer_timeout_ms: int = 60_000
    # Linear back-off of an empty poll: one step, and the ceiling at which the reader parks on its doorbell. The ceiling is
    # below one step, so readers park at once: parking, waking and reading are one round trip, only two small commands more
    # than an empty poll, and the wake comes with the frames (measured: benchmarks latency).
    backoff_increment_us: int = 20
    # A deployment may set a ceiling (udo deploy --poll-us): benchmarks backoff shows its costs and savings.
    backoff_ceiling_us: int = 0
    # A parked reader wakes up after this time, to notice a vanished node manager and to renew its lease.
    park_ms: int = 2_000
    # Chosen when the deployment is made, and stored with each session: another number would move every key to another group.
    key_groups: int = KEY_GROUPS
    # Frames fetched by one range read; bounds the reader's memory.
    read_frames: int = 16
    # Instances and embedded servers stop themselves after this long without the node manager's heartbeat. A node manager that
    # is paused for 90 s finds all of them running, and a server that hangs has been replaced long before.
    heartbeat_grace_ms: int = 120_000
    # How often user code is given a batch again after failing on it, before the deployment's policy applies. Most failures
    # recur, so the default is no retry; more than ten, with the pauses in between, would look like a hang.
    retries: int = 0
    # Dead letters kept per slot, by number and by size on the state server; above either bound the policy `fail` applies.
    dead_letters: int = 10_000
    dead_letter_bytes: int = 64 << 20

    @classmethod
    def of(cls, overrides: Mapping[str, Any]) -> SlotLimits:
        """The limits of a deployment that overrides some of them; entries that are not a slot's, such as memory_mb, are ignored."""
        return cls(**{f.name: int(overrides[f.name]) for f in fields(cls) if f.name in overrides})

    def share(self, lanes: int) -> int:
        """The frames that each of the `lanes` of a slot may have under way: all while it is alone, else its fair part.

        Frames are answered in order of arrival, so a small lane's frame waits for all frames that the other lanes keep under way.
        """
        return self.window_frames if lanes <= 1 else max(LEAST_SHARE, self.window_frames // lanes)

    @property
    def answer_bytes(self) -> int:
        """The bound of one answer."""
        return max(ANSWER_BYTES, self.frame_bytes)


MOST_RETRIES = 10
# Pauses of up to c µs, each 20 µs longer than the last, add up to c²/40 µs of polling before a reader parks: 2.5 s at this ceiling.
MOST_BACKOFF_US = 10_000
DEFAULT = SlotLimits()
