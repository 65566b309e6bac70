"""Decides whether this node may serve a keyed session: a session whose state began on one node never begins empty on another.

The registry decides once for each session (registry/domain/group_maps.py); its answer is kept beside the state, so it is lost with it, and
no registry is needed for a session that this node knows. Deployments without the registry have no other node.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from udo_protocol.errors import Conflict, StateElsewhere, StateLost, Unavailable
from udo_protocol.queue.connection import Arg, Connection
from udo_protocol.queue.keys import INCARNATION, SlotKeys
from udo_protocol.registry.wanted import MovedSession

# The kinds of a session's data on this node: all of its state; only what its store needs; old state from before its release; what an
# import into several slots has brought so far.
HOME, STORED, FORMER, IMPORTING = "home", "stored", "former", "importing"
# Import numbers are below this. An import's mark has its number in place of a version of the session's map.
_NUMBERS = 1 << 62


class GroupMaps(Protocol):
    """The part of udo_protocol.registry.api.Registry that is used here."""

    def claim(
        self, deployment: str, session: str, node: str, incarnation: str, *, stored: bool = False, start_empty: bool = False
    ) -> Mapping[str, Any]:
        """The session's map, and whether this node may serve it: `granted`."""

    def release(
        self, deployment: str, session: str, *, node: str = "", incarnation: str = "", version: int | None = None, force: bool = False
    ) -> Any:
        """End the session's home, so that any node may claim it."""


@dataclass(frozen=True)
class SessionRequest:
    """A session that a task wants served, or an import wants to write."""

    deployment: str
    session: str
    epoch: int | None = None
    stored: bool = False
    start_empty: bool = False

    def __str__(self) -> str:
        epoch = "" if self.epoch is None else f" (epoch {self.epoch})"
        return f"session {self.session} of {self.deployment!r}{epoch}"


class Homes:
    """The sessions' homes, as one node knows them. Methods may be called from any thread."""

    def __init__(self, node: str, maps: GroupMaps | None, connect: Callable[[], Connection]) -> None:
        self._node, self._maps, self._connect = node, maps, connect

    def require(self, state: Connection, keys: SlotKeys, asked: SessionRequest) -> int:
        """The version of the session's map by which this node may serve it: all of it, or the part that its slots have.

        StateElsewhere if it may not; Unavailable if the session is new here and the registry is away.
        """
        wanted = STORED if asked.stored else HOME
        version, kind = _mark(state, keys, asked.session)
        if version is not None and kind == wanted:
            return version
        found = self._claim(state, asked)
        if wanted == HOME and version not in (None, found):
            raise StateElsewhere(
                f"{asked} was released, and node {self._node} still has its state from before: remove that with udo state drop "
                f"{asked.deployment} {asked.session}, or replace it with udo state import --replace"
            )
        state.call(*_noted(keys, asked.session, found, wanted))
        return found

    def taken(self, keys: SlotKeys, asked: SessionRequest) -> list[Arg]:
        """Make this node the home of an import; return the command that notes it, to be written together with the state."""
        with contextlib.closing(self._connect()) as state:
            return _noted(keys, asked.session, self._claim(state, asked), HOME)

    def importing(self, keys: SlotKeys, asked: SessionRequest, number: int, *, registered: bool) -> list[Arg]:
        """Return the command that stops serving the session until that of `taken`. `registered`: first call `taken`, which may raise."""
        if registered:
            self.taken(keys, asked)
        return _noted(keys, asked.session, number, IMPORTING)

    def release(self, deployment: str, session: str, keys: SlotKeys) -> None:
        """Let another node begin the session, whose state is about to be dropped here."""
        if self._maps is not None:
            with contextlib.closing(self._connect()) as state:
                version, _ = _mark(state, keys, session)
                self._maps.release(deployment, session, node=self._node, incarnation=incarnation(state), version=version)

    def moved(self, first: Mapping[str, SlotKeys], moved: Iterable[MovedSession]) -> None:
        """Mark what this node remembers of maps that have a newer version by now: it is not to be served."""
        known = [(keys, m.session, m.version) for m in moved if (keys := first.get(m.deployment)) is not None]
        if not known:
            return
        with contextlib.closing(self._connect()) as state:
            for keys, session, newest in known:
                version, kind = _mark(state, keys, session)
                if version is not None and version < newest and kind not in (FORMER, IMPORTING):
                    state.call(*_noted(keys, session, version, FORMER))

    def _claim(self, state: Connection, asked: SessionRequest) -> int:
        """The version of the session's map by which this node may serve it, from the registry."""
        me = incarnation(state)
        if self._maps is None:
            raise Unavailable(f"{asked} is new on node {self._node}, which has no registry: start the node manager with --registry")
        try:
            found = self._maps.claim(asked.deployment, asked.session, self._node, me, stored=asked.stored, start_empty=asked.start_empty)
        except Unavailable as e:
            raise Unavailable(
                f"{asked} is new on node {self._node}, and only the registry knows whether its state lies elsewhere: {e}"
            ) from e
        if not found["granted"]:
            raise StateElsewhere(self._refusal(asked, found))
        return int(found["version"])

    def _refusal(self, asked: SessionRequest, found: Mapping[str, Any]) -> str:
        home = found["node"]
        if found["spread"]:
            return (
                f"{asked} has run with a store on several nodes, {home} among them, and node {self._node} alone does not have all of its "
                "state: call the operator with the same store= as before"
            )
        if found.get("part"):
            return (
                f"{asked} had a part of its state on node {home}, which has lost its disk since, or is another node of that name. If that "
                "disk is lost for good, the query cannot go on without store=: restart it with a new checkpoint, and remove what is left "
                f"of the session on the other nodes (udo state release {asked.deployment} {asked.session} --force, then udo state drop on "
                "each of them)"
            )
        force = " --force" if home == self._node else ""
        gone = (
            f"if that state is lost for good: udo state release {asked.deployment} {asked.session}{force}, then import a backup (udo state "
            'import), or restart the query with a new checkpoint (docs/state.md, "A session\'s home")'
        )
        if home == self._node:
            return f"{asked} has its state on node {home}, which has lost its disk since, or is another node of that name: {gone}"
        if asked.epoch is None:
            return (
                f"{asked} has its state on node {home}: drop it there before it is imported on node {self._node} (udo state drop); {gone}"
            )
        return (
            f"{asked} has its state on node {home}, and this task was sent to node {self._node}, where its keys would have no "
            "state. Either call the operator with store= in a location that all nodes can reach (then any node may serve the session), "
            f"or run the query's executors on one node, {home}; {gone}"
        )


def require_whole(state: Connection, keys: SlotKeys, asked: SessionRequest) -> None:
    """StateLost if an import of the session has not been completed."""
    if is_importing(state, keys, asked.session):
        raise StateLost(
            f"{asked} is being imported, or its import was interrupted: repeat udo state import, or remove what there is of it with udo "
            f"state drop {asked.deployment} {asked.session}"
        )


def is_importing(state: Connection, keys: SlotKeys, session: str) -> bool:
    """Whether an import of the session into the slots of this node has begun and not ended."""
    return _mark(state, keys, session)[1] == IMPORTING


def require_import(state: Connection, keys: SlotKeys, asked: SessionRequest, number: int) -> None:
    """Conflict unless the import with that number is under way."""
    if _mark(state, keys, asked.session) != (number, IMPORTING):
        raise Conflict(f"{asked} was dropped meanwhile, or another import of it has begun: import it again")


def import_number() -> int:
    """A random number for an import, different from all others."""
    return secrets.randbelow(_NUMBERS)


def forgetting(keys: SlotKeys, session: str) -> list[Arg]:
    """The command that removes this node's note about the session."""
    return ["HDEL", keys.homes, session]


def _noted(keys: SlotKeys, session: str, version: int, kind: str) -> list[Arg]:
    return ["HSET", keys.homes, session, f"{version} {kind}"]


def _mark(state: Connection, keys: SlotKeys, session: str) -> tuple[int | None, str]:
    """This node's note about the session: (version of its map, kind), or (number, IMPORTING); (None, '') if nothing."""
    found = state.call("HGET", keys.homes, session)
    if found is None:
        return None, ""
    version, _, kind = bytes(found).decode().partition(" ")
    return int(version), kind


def incarnation(state: Connection) -> str:
    """The identity of this state server, which lasts as long as its file."""
    state.call("SET", INCARNATION, secrets.token_hex(8), "NX")
    return bytes(state.call("GET", INCARNATION)).decode()
