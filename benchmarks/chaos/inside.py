"""Start of an instance under chaos: it dies or stops at armed points of the runtime, and a broken build lacks one rule.

Runs in place of udo_runtime/bootstrap.py, so that none of this is in the product. The directory `chaos` beside the
queue server's socket says what to do: `broken` names the rule to leave out, `armed.<deployment>` holds "point action".
"""

import os
import signal
import sys
from contextlib import suppress

# RESTORED is passed only by the instance that replaces a dead owner, CHANGE_POINTS only by an update's standby.
RESTORED, CHANGE_POINTS = "restored", ("loaded", "promoted")
POINTS = (RESTORED, "before_emit", "after_emit", "before_checkpoint", "after_checkpoint", *CHANGE_POINTS)
# Around the checkpoint by which key groups leave a slot, or become part of another.
MOVE_POINTS = ("before_hand_over", "after_hand_over", "before_take_in", "after_take_in")
_ACTIONS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}


def at(directory, keys, point):
    """Carry out the order armed for this point of this deployment, if any: once, by the instance that first renames its file."""
    deployment = keys.deployment
    armed = os.path.join(directory, f"armed.{deployment}")
    try:
        with open(armed) as f:
            wanted, action = f.read().split()
        if wanted != point:
            return
        taken = os.path.join(directory, f"taken.{deployment}.{os.getpid()}")
        os.rename(armed, taken)
    except (OSError, ValueError):
        return
    os.rename(taken, os.path.join(directory, f"fired.{deployment}.{os.getpid()}"))
    os.kill(os.getpid(), _ACTIONS[action])


def install_points(directory):
    """Wrap the steps of a keyed instance, and of the standby that it was, so that they pass the points."""
    from udo_runtime.drivers.keyed_owner import KeyedOwner
    from udo_runtime.durable.standby import RewoundState, StandbyState

    def around(cls, name, before, after, keys=lambda self: self._link.keys):
        original = getattr(cls, name)

        def passing(self, *args, **kwargs):
            if before:
                at(directory, keys(self), before)
            result = original(self, *args, **kwargs)
            if after:
                at(directory, keys(self), after)
            return result

        setattr(cls, name, passing)

    around(KeyedOwner, "begin", None, "restored")
    around(KeyedOwner, "send", "before_emit", "after_emit")
    around(KeyedOwner, "store", "before_checkpoint", "after_checkpoint")
    install_move_points(directory)
    for state in (StandbyState, RewoundState):
        around(state, "load", None, "loaded", lambda self: self._keys)
    around(StandbyState, "promoted", None, "promoted", lambda self: self._keys)


def install_move_points(directory):
    """Wrap the checkpoints of a move in a slot's owner, so that they pass the points around them."""
    from udo_runtime.drivers.keyed_owner import KeyedOwner
    from udo_runtime.engine.effects import HandOver, TakeIn

    store, names = KeyedOwner.store, {HandOver: "hand_over", TakeIn: "take_in"}

    def passing(self, effect):
        name = names.get(type(effect.moving))
        if name:
            at(directory, self._link.keys, f"before_{name}")
        store(self, effect)
        if name:
            at(directory, self._link.keys, f"after_{name}")

    KeyedOwner.store = passing


def lack_fence(directory):
    """An instance emits and checkpoints with the current owner's token, whether or not it is its own."""
    from dataclasses import replace

    from udo_runtime.drivers.keyed_owner import KeyedOwner
    from udo_runtime.durable import sessions as durable

    send, store = KeyedOwner.send, durable.store

    def owner(conn, keys):
        return int(conn.call("GET", keys.owner) or 0)

    def take_token(self, cursor=0):
        self._link.reader.token = owner(self._link.conn, self._link.keys)

    def unfenced_send(self, effect):
        take_token(self)
        send(self, effect)

    def unfenced_checkpoint(owned, *rest):
        return store(replace(owned, token=owner(owned.server, owned.keys)), *rest)

    # The loop calls `expected_base` before each read.
    KeyedOwner.expected_base, KeyedOwner.send, durable.store = take_token, unfenced_send, unfenced_checkpoint


def lack_undo(directory):
    """The changes of an attempt are not undone when another begins."""
    from udo_runtime.state.groups import Group

    def kept(self):
        self.pack(close=True)
        return {k: self.values.get(k) for k in self.undo}

    Group._taken_back = kept


def lack_emit(directory):
    """Answers and the counter of answered frames are two steps."""
    from udo_runtime.drivers.keyed_owner import KeyedOwner

    def two_steps(self, effect):
        link = self._link
        lanes = list(dict.fromkeys(lane for lane, _ in effect.answers))
        for lane, frame in effect.answers:
            link.conn.call("RPUSH", link.keys.out(lane), frame)
        at(directory, link.keys, "after_emit")  # an instance armed to die after its answers dies between the two steps
        last = effect.first + len(effect.answers) - 1
        counts = [x for lane in lanes for x in (lane, 0)]
        bounds = (link.limits.retained_bytes, link.limits.lane_ttl_ms)
        reply = link.conn.call("FCALL", "udo_emit", 1, link.keys.prefix, link.reader.token, effect.first, last, 0, *bounds, *counts)
        link.reader._outcome(reply)

    KeyedOwner.send = two_steps


def lack_end_groups(directory):
    """END completes only the groups that had events."""
    from udo_runtime.engine.keyed_engine import Engine
    from udo_runtime.state.label import label_of

    end = Engine._end

    def only_touched(self, session, header):
        label = label_of(header)
        touched = [n for n in header.groups if n in session.groups and session.groups[n].label == label]
        del header.groups[:]
        header.groups.extend(touched)
        return end(self, session, header)

    Engine._end = only_touched


def lack_late_label(directory):
    """Frames with an older label than their group's are processed all the same."""
    import udo_runtime.state.session as session

    session._stale = lambda mine, label: False


def lack_riding(directory):
    """The checkpoint at END contains END's changes, but neither the frame nor its answer."""
    from dataclasses import replace

    from udo_runtime.drivers.keyed_owner import KeyedOwner

    store = KeyedOwner.store

    def without_answer(self, effect):
        store(self, replace(effect, seq=effect.seq - len(effect.riding), riding=()))

    KeyedOwner.store = without_answer


def lack_commit_frame(directory):
    """commit = "frame" is treated as "epoch": frames answered since the last END are processed again after a crash."""
    from udo_runtime.execution.keyed_processor import KeyedProcessor

    begin = KeyedProcessor.__init__

    def epoch_only(self, *args):
        begin(self, *args)
        self.commit_frame = False

    KeyedProcessor.__init__ = epoch_only


def lack_changelog(directory):
    """An update's standby keeps the state that it has loaded, without the owner's later changes."""
    from udo_runtime.durable.standby import StandbyState

    StandbyState.sync = lambda self: None


def lack_handover(directory):
    """A slot hands over the values of its groups without the undo information that leads back to those before the epoch."""
    from udo_runtime.engine.effects import HandOver
    from udo_runtime.engine.keyed_engine import Engine

    checkpoint = Engine.checkpoint

    def values_only(self, seq, riding=(), *, ends=False, moving=None):
        if isinstance(moving, HandOver):
            for session in self.sessions.values():
                for n in session.groups.keys() & set(moving.groups):
                    group = session.groups[n]
                    group.pack()
                    group.undo, group.candidate, group.touched = {}, None, True
                    session.unsaved.add(n)
        return checkpoint(self, seq, riding, ends=ends, moving=moving)

    Engine.checkpoint = values_only


def lack_cut(directory):
    """After the cut the slot still takes frames by an older map: the rule is the queue server's (benchmarks/chaos/manager.py)."""


LACKS = {
    "fence": lack_fence,
    "undo": lack_undo,
    "emit": lack_emit,
    "end_groups": lack_end_groups,
    "late_label": lack_late_label,
    "riding": lack_riding,
    "commit_frame": lack_commit_frame,
    "changelog": lack_changelog,
    "handover": lack_handover,
    "cut": lack_cut,
}


# The rules that matter only where key groups move.
OF_MOVES = ("handover", "cut")


def main():
    """Start the runtime as bootstrap.py does, with the points and without the broken rule."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = os.environ["UDO_PYTHONPATH"].split(os.pathsep) + [p for p in sys.path if os.path.abspath(p) != here]
    directory = os.path.join(os.path.dirname(os.environ["UDO_QUEUE_SOCKET"]), "..", "chaos")
    with suppress(FileNotFoundError), open(os.path.join(directory, "broken")) as f:
        LACKS[f.read().strip()](directory)
    install_points(directory)
    from udo_runtime.main import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main())
