"""The registry and the node as the commands use them: addresses and token from the settings, references parsed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from udo_cli.settings import CliSettings
from udo_protocol.certificates import Tls
from udo_protocol.errors import Conflict, OperatorError, UsageError, WaitTimeout, by_code
from udo_protocol.lifecycle import REFUSED
from udo_protocol.registry.api import Registry

if TYPE_CHECKING:
    from udo_protocol.node.api import NodeClient

Json = dict[str, Any]
_LOOK_S = 0.1


@contextmanager
def registry(settings: CliSettings | None = None) -> Iterator[Registry]:
    """The registry in use, with the write token if one is known."""
    settings = settings or CliSettings()
    with Registry(settings.registry_url(), settings.write_token(), settings.user, tls=settings.certificates()) as found:
        yield found


def node(address: str | None = None) -> NodeClient:
    """The node manager at `address`, else the one in use; a node's name is reached through the one in use."""
    settings = CliSettings()
    if address and is_name(address):
        return connect(settings.node_address(), settings.certificates()).on(address)
    return connect(address or settings.node_address(), settings.certificates())


def connect(address: str | Path, certificates: Tls | None = None) -> NodeClient:
    """The client of the node manager at this address (udo_protocol.node.api.connect_node)."""
    from udo_protocol.node.api import connect_node  # gRPC: to import it takes longer than to ask the registry

    return connect_node(address, certificates)


def is_name(address: str | None) -> bool:
    """Whether `--node` names a node, and not a socket."""
    return bool(address) and "/" not in str(address) and not Path(str(address)).is_socket()


def reference(text: str) -> tuple[str, str]:
    """(name, version or digest) of NAME[@VERSION]; "latest" if no version is named."""
    name, sep, version = text.partition("@")
    if not name or (sep and not version):
        raise UsageError(f"expected NAME or NAME@VERSION, got {text!r}")
    return name, version or "latest"


def await_answering(api: Registry, name: str, timeout_s: float, say: Callable[[str], None]) -> Json:
    """Wait until the deployment answers on every live node; return it. OperatorError when a node cannot run it."""
    deadline = time.monotonic() + timeout_s
    told: dict[str, str] = {}
    while True:
        found = api.deployment(name)
        live = {n["node"] for n in api.nodes() if n["live"]}
        if not live:
            say("no node is live now: nodes start it when they connect")
            return found
        states = {n["node"]: n for n in found["nodes"] if n["node"] in live and n["digest"] == found["digest"]}
        for key, entry in states.items():
            if told.get(key) != entry["state"]:
                told[key] = entry["state"]
                say(f"{key}: {entry['state']}")
            if entry["state"] in ("failed", REFUSED):
                raise by_code(
                    entry.get("error_code") or OperatorError.code, f"node {key}: {entry['detail'] or 'failed without giving a reason'}"
                )
        if live <= {key for key, entry in states.items() if entry["state"] == "answering"}:
            return found
        if time.monotonic() > deadline:
            waiting = ", ".join(f"{n} ({told.get(n, 'nothing reported')})" for n in sorted(live))
            raise WaitTimeout(f"waited {timeout_s:.0f} s for {name} to answer on: {waiting}. See: udo status, udo logs {name}")
        time.sleep(_LOOK_S)


def await_replicas(api: Registry, name: str, timeout_s: float, say: Callable[[str], None]) -> Json:
    """Wait until each slot of the deployment has as many replicas as the live nodes allow, each with all ENDed state, and no more."""
    deadline, told = time.monotonic() + timeout_s, ""
    while True:
        found = api.deployment(name)
        copies = found["placement"].get("replication")
        if copies is None:
            return found
        most = sum(bool(n["live"] and n["listen"] and not n["drained"]) for n in api.nodes()) - 1
        have, wanted = [len(c) for c in copies["counted"]], min(copies["wanted"], most)
        now = f"{sum(have)} of {wanted * len(have)} replicas hold their slot's state"
        if not copies["wanted"]:
            now = f"{sum(have)} replicas are still to be given up" if any(have) else "there are no replicas"
        if now != told:
            say(now)
            told = now
        if min(have) >= wanted and max(have) <= copies["wanted"]:
            if wanted < copies["wanted"]:
                say(f"{copies['wanted']} replicas are wanted, and there are {most} other nodes for them: more are made when nodes join")
            return found
        if time.monotonic() > deadline:
            raise WaitTimeout(f"waited {timeout_s:.0f} s for the replicas of {name}: {now}. See: udo inspect {name}, and the nodes' logs")
        time.sleep(_LOOK_S)


def await_drained(api: Registry, node: str, emptied: list[str], timeout_s: float, say: Callable[[str], None]) -> list[Json]:
    """Wait until nothing is on its way from the node to other nodes; return what is still there. `emptied`: see Registry.drain."""
    deadline, told = time.monotonic() + timeout_s, dict[str, str]()
    while True:
        left = api.drain(node, emptied)
        waits = {d["deployment"]: str(d["why"]) for d in left if d["waits"]}
        for name, why in waits.items():
            if told.get(name) != why:
                say(f"{name}: {why}")
        told |= waits
        if not waits or time.monotonic() > deadline:
            return left
        time.sleep(_LOOK_S)


def reached(api: Registry, update_id: str) -> tuple[list[str], list[str]]:
    """The nodes that answer with the version of a finished update, and those that it did not reach because they are away."""
    nodes = api.update_status(update_id)["nodes"]
    return [n["node"] for n in nodes if n["state"] == "answering"], [n["node"] for n in nodes if n["state"] == "gone"]


def where(on: list[str], missed: list[str]) -> str:
    """The result of `reached` in a line."""
    there = f" on {', '.join(on)}" if on else ""
    return f"{there}, NOT on {', '.join(missed)}: away; checked and applied there when it returns" if missed else there


def follow(events: Iterator[Json], say: Callable[[str], None]) -> Json:
    """Report the events of an update as they come; return the last one, `done` or `rolled_back`. If the update ends otherwise, raise the
    error of its code, or OperatorError."""
    last: Json = {}
    for last in events:
        where = f" {last['node']}" if last.get("node") else ""
        detail = str(last.get("detail") or "").partition("\n")[0]
        if last["phase"] not in ("refused", "failed"):
            say(f"{last['at_ms']:8.1f} ms  {last['phase']}{where}{detail and ': '}{detail}")
    if last.get("phase") not in ("done", "rolled_back"):
        why = last.get("detail") or "the stream of events ended without a reason; see: udo status"
        code = last.get("error_code") or (Conflict if last.get("phase") == "refused" else OperatorError).code
        raise by_code(code, str(why))
    return last
