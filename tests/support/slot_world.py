"""Everything around a slot's engine, in memory: its driver, the tokens of the servers, and the instances. It fails when it is told to."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from node_manager.config import InstanceConfig
from node_manager.drivers.base import Allowance, Exit
from node_manager.images.images import OperatorImage
from node_manager.instances.instances import Instance
from node_manager.instances.record import InstanceRecord
from node_manager.slots import effects as do
from node_manager.slots import engine
from node_manager.slots import events as on
from node_manager.slots.loading import Wanted
from node_manager.slots.state import SlotState
from udo_protocol.errors import Fenced, SlotBroken, UdoError
from udo_protocol.formats.manifest import Manifest
from udo_protocol.lifecycle import INSTANCE
from udo_protocol.queue.slot import SlotStats

# Every effect that asks a server.
ASKING = (
    *(do.PassOwnership, do.AnnounceOwner, do.ReadStats, do.WatchOwner, do.SetStatus, do.FailHead, do.BeginLogAnew, do.NextToken),
    *(do.ChangeState, do.AwaitTurn, do.CanGoBack, do.KeptFor, do.ForgetKept),
)
QUIET = SlotStats(base=1, emitted=0, owner=0, depth_frames=0, retained_bytes=0, lanes=0)


def version(number: str, *, keyed: bool = False, column: str = "b", state_version: int = 0) -> Wanted:
    """A version of the operator `t`; with another output `column` it cannot replace others."""
    key = {"key": ("a",), "state_version": state_version} if keyed else {}
    manifest = Manifest(name="t", version=number, entry="t:run", input={"a": "int64"}, output={column: "int64"}, **key)
    return Wanted(OperatorImage(f"sha256:{number}", manifest, Path("/nowhere")), InstanceConfig())


class SlotWorld:
    """One slot. `happens` lets its engine handle an event; `faults` are errors of the next effects of a kind, each once."""

    def __init__(self) -> None:
        self.state = SlotState("d", 0, "n1")
        self.now = 100.0
        self.stats = QUIET
        self.stuck_s = 0.0
        self.kept_s: float | None = None
        self.faults: dict[type[do.SlotEffect], UdoError] = {}
        self.raised: Exception | None = None  # by the last event
        self.outcomes: dict[on.SlotRequest, list[Any]] = {}  # the replies to each request: instances, errors
        self.loads: list[on.SlotLoad] = []  # under way
        self.cancelled: list[on.SlotLoad] = []
        self.tokens = self.owner_token = 0
        self.token: dict[on.SlotLoad, int] = {}
        self.former: list[on.SlotLoad] = []  # loads beside a queue server that was lost
        self.attended: list[Instance] = []
        self.retired: list[Instance] = []
        self.dead: list[Instance] = []
        self.due: list[on.SlotEvent] = []  # what follows from effects
        self.broken = self.finished = False
        engine.plan(self.state)

    # -- what happens ------------------------------------------------------------------------------------------------

    def happens(self, event: on.SlotEvent) -> list[do.SlotEffect]:
        """Let the engine handle the event, and what follows at once; return all effects that were performed."""
        done, self.raised, events = [], None, [event]
        while events:
            done += self._decide(events.pop(0))
            events += self.due
            self.due = []
        engine.plan(self.state)
        return done

    def _decide(self, event: on.SlotEvent) -> list[do.SlotEffect]:
        if isinstance(event, on.SlotRequest):
            self.outcomes[event] = []
        elif isinstance(event, on.QueueLost):
            self.owner_token, self.former = 0, list(self.loads)
        done: list[do.SlotEffect] = []
        self.state.now = self.now
        steps, result, error = engine.decide(self.state, event), None, None
        try:
            while True:
                effect = steps.throw(error) if error else steps.send(result)
                result = error = None
                done.append(effect)
                try:
                    if (fault := self.faults.pop(type(effect), None)) is not None:
                        raise fault
                    result = self._perform(effect)
                except AssertionError:  # of this world
                    raise
                except Exception as e:
                    error = e
        except StopIteration:
            pass
        except UdoError as e:  # the step failed
            self.raised = e
        return done

    def loaded(self, load: on.SlotLoad | None = None, error: UdoError | None = None, *, started: bool = True) -> list[do.SlotEffect]:
        """End a load, by default the last one; after an error it has an instance all the same if it was `started`."""
        load = load or self.loads[-1]
        self.loads.remove(load)
        instance = self.instance(load.wanted, self.token[load]) if started else None
        assert load not in self.former or load in self.cancelled
        return self.happens(on.LoadEnded(load, instance, error))

    def dies(self, instance: Instance, reason: str = "") -> list[do.SlotEffect]:
        """Let an instance end."""
        self.dead.append(instance)
        instance.died(Exit(1, reason))
        return self.happens(on.InstanceExited(instance)) if instance in self.attended else []

    def passes(self, seconds: float) -> list[do.SlotEffect]:
        """Let time pass, with all timers that are due."""
        done, until = [], self.now + seconds
        while not self.finished:
            name, when = min(self.state.timers.items(), key=lambda timer: timer[1])
            if when > until:
                break
            self.now = max(self.now, when)
            done += self.happens(on.TimerDue(name))
        self.now = until
        return done

    def serving(self, wanted: Wanted) -> Instance:
        """Let the slot serve this version; return the owner."""
        self.happens(on.ServeAsked(wanted))
        self.loaded()
        assert self.state.owner is not None
        return self.state.owner

    def instance(self, wanted: Wanted, token: int) -> Instance:
        """An instance that has just loaded this version."""
        manifest = wanted.image.manifest
        record = InstanceRecord("d", 0, manifest.name, manifest.version, wanted.image.digest, token, False, Allowance())
        instance = Instance(f"i{token}", Path("/nowhere"), "warm", record)
        instance.life.state = "loading"
        return instance

    def next_token(self) -> int:
        """A token newer than all before."""
        self.tokens += 1
        return self.tokens

    # -- the driver --------------------------------------------------------------------------------------------------

    def _perform(self, effect: do.SlotEffect) -> Any:
        match effect:
            case do.Tell(request, instance, error):
                if request is not None:
                    self.outcomes[request].append(error or instance)
            case do.StartLoad(load):
                assert load not in self.token, "each load is another one"
                self.token[load] = self.next_token()
                self.loads.append(load)
            case do.CancelLoad(load):
                assert load in self.loads
                self.cancelled.append(load)
            case do.Attend(instance, adopted):
                if adopted:
                    instance.life.state = "owner"
                else:
                    instance.life.move("standby")
                self.attended.append(instance)
                if instance in self.dead:
                    self.due.append(on.InstanceExited(instance))
            case do.PassOwnership(instance):
                assert instance.life.state == "standby", "a retired instance is never promoted"
                self._own(instance.token)
            case do.AnnounceOwner(owner):
                owner.life.move("owner")
            case do.Retire(instance, why):
                assert instance not in self.retired
                self.retired.append(instance)
                if why != "server lost" and "leaving" in INSTANCE[instance.life.state]:
                    instance.life.move("leaving")
            case do.Remove(instance):
                instance.life.move("failed")
                return "\nlast lines of its log:\nbye"
            case do.Kill(instance, reason):
                if instance not in self.dead:
                    self.dead.append(instance)
                    instance.died(Exit(-9, reason))
                    self.due.append(on.InstanceExited(instance))
            case do.ReadStats():
                if self.broken:
                    raise SlotBroken("in: expected a list, found a string")
                return self.stats
            case do.WatchOwner():
                return self.stuck_s
            case do.FailHead():
                self._own(self.next_token())
                self.stats = replace(self.stats, emitted=self.stats.emitted + 1, depth_frames=self.stats.depth_frames - 1)
                return True
            case do.BeginLogAnew():
                self._own(self.next_token())
                self.broken = False
            case do.NextToken():
                return self.next_token()
            case do.ChangeState(work, token):
                self._own(token)
                work(None, None, token)  # type: ignore[arg-type]
            case do.CanGoBack():
                return self.kept_s is not None
            case do.KeptFor():
                return self.kept_s
            case do.Finish():
                assert not self.finished
                self.finished = True
        return None

    def _own(self, token: int) -> None:
        if token < self.owner_token:
            raise Fenced(f"token {token} is older than the owner {self.owner_token}")
        self.owner_token = token
