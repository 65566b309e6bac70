"""The console's pages of a deployment's data on nodes: slots and rates, dead letters, state sessions, logs, decisions."""

from __future__ import annotations

from collections import deque
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from flask import Response, request

from elasticity.scaling.journal_rows import result_of, rows_of, step_of
from registry.console import signing_in
from registry.console.asking import ANSWER_S, ask_node, ask_nodes
from registry.console.framing import page, routes, to
from registry.domain import audit, deployments
from registry.http.web import services
from udo_protocol.errors import NotFound, Unavailable, UsageError

if TYPE_CHECKING:
    from udo_protocol.node.api import NodeClient
    from udo_protocol.proto import node_manager_pb2 as pb

# Bounds of long content on a page; the commands that the page names show all of it.
_LETTERS, _LOG_LINES, _LOG_CHARACTERS, _EVENT_CHARACTERS, _DECISIONS, _SEGMENTS = 200, 200, 2000, 20_000, 50, 2


@routes.get("/deployments/<name>/slots")
def slots(name: str) -> Response:
    """The present figures; the page reloads itself."""
    _require_deployment(name)

    def look(node: NodeClient) -> list[dict[str, Any]]:
        there = [s for s in node.status().slots if s.deployment == name]
        counted = {s.slot: s for s in node.stats(name).slots} if there else {}
        seen = {s.slot: s for s in node.signals(name).slots} if there else {}
        return [{"s": s, "counted": counted.get(s.slot), "seen": seen.get(s.slot)} for s in there]

    found = ask_nodes(look)
    rows = [(node, row) for node, some in found.told for row in some]
    trials = [(node, r["s"].slot, r["s"].canary or r["s"].diff) for node, r in rows if r["s"].canary or r["s"].diff]
    return page("slots.html", name=name, rows=rows, trials=trials, silent=found.silent)


@routes.get("/deployments/<name>/dead-letters")
def letters(name: str) -> Response:
    _require_deployment(name)
    found = ask_nodes(lambda node: list(node.dead_letters(name, timeout_s=ANSWER_S)))
    every = sorted(((node, d) for node, some in found.told for d in some), key=lambda f: (f[1].at, f[1].lane, f[1].number, f[1].row))
    return page(
        "letters.html",
        name=name,
        letters=[(node, d, _when(d.at)) for node, d in every[:_LETTERS]],
        more=max(0, len(every) - _LETTERS),
        keyed=any(d.keyed for _, d in every),
        silent=found.silent,
    )


@routes.get("/deployments/<name>/dead-letters/<node>/<letter>")
def letter(name: str, node: str, letter: str) -> Response:
    _require_deployment(name)
    there = ask_node(node, lambda n: [d for d in n.dead_letters(name, [letter], whole=True, timeout_s=ANSWER_S) if d.id == letter])
    if not there:
        raise NotFound(f"no dead letter {letter!r} of {name!r} on node {node}: it was answered or dropped meanwhile")
    d = there[0]
    event = d.event if len(d.event) <= _EVENT_CHARACTERS else f"{d.event[:_EVENT_CHARACTERS]}… ({len(d.event):,} characters)"
    return page("letter.html", name=name, node=node, d=d, at=_when(d.at), event=event)


@routes.post("/deployments/<name>/dead-letters/<any(replay, drop):action>")
def on_letters(name: str, action: str) -> Response:
    """Replay one dead letter or all, or drop one: the letter of the form's `node` and `id`."""
    _require_deployment(name)
    node, letter = request.form.get("node", ""), request.form.get("id", "")
    if bool(node) != bool(letter) or (action == "drop" and not letter):
        neither = ", or neither for all of them" if action == "replay" else ""
        raise UsageError(f"{action}: expected the node of a dead letter and its id{neither}")
    ids = [letter] if letter else []

    def act(n: NodeClient) -> int:
        if action == "drop":
            return n.drop_dead_letters(name, ids)
        return int(n.replay_dead_letters(name, ids, everything=not ids).waiting)

    found = ask_nodes(act, only=node)
    many, where = sum(n for _, n in found.told), ", ".join(n for n, _ in found.told)
    if found.told:
        s = services()
        with s.store.write() as session:
            detail = f"{letter or many} on {where}"
            audit.record(session, signing_in.caller(), f"dead.{action}", deployment=name, detail=detail)
    if found.silent:
        done = f"{action}: {many} dead letters on {where}. " if found.told else ""
        raise Unavailable(f"{done}Not on {'; '.join(f'{n}: {why}' for n, why in found.silent)}")
    if not found.told:
        raise NotFound(f"no dead letter {letter!r} of {name!r} on node {node}: it was answered or dropped meanwhile")
    return to("letters", name=name)


@routes.get("/deployments/<name>/state")
def sessions(name: str) -> Response:
    _require_deployment(name)
    found = ask_nodes(lambda node: list(node.sessions(name).sessions))
    rows = [(node, s, _when(s.changed_at)) for node, some in found.told for s in some]
    return page("sessions.html", name=name, rows=rows, silent=found.silent)


@routes.get("/deployments/<name>/logs")
def logs(name: str) -> Response:
    """The last lines of each node's log."""
    _require_deployment(name)
    found = ask_nodes(lambda node: list(node.logs(name, tail_lines=_LOG_LINES, timeout_s=ANSWER_S)))
    told = [(node, "\n".join(_line(line) for line in lines)) for node, lines in found.told]
    return page("logs.html", name=name, told=told, silent=found.silent)


@routes.get("/deployments/<name>/decisions")
def decisions(name: str) -> Response:
    """The latest decisions of each node's controllers, from the last segments of their journals."""
    _require_deployment(name)
    found = ask_nodes(lambda node: list(rows_of(deque(node.decisions(name, ANSWER_S), _SEGMENTS), False)))
    rows = sorted((row for _, some in found.told for row in some), key=lambda row: row["at_s"], reverse=True)[:_DECISIONS]
    return page("decisions.html", name=name, rows=[(row, step_of(row), result_of(row)) for row in rows], silent=found.silent)


def _require_deployment(name: str) -> None:
    """Unauthorized before NotFound: visitors who are not signed in learn nothing."""
    signing_in.require_signed_in()
    with services().store.read() as session:
        deployments.find(session, name)


def _line(line: pb.LogLine) -> str:
    text = line.text if len(line.text) <= _LOG_CHARACTERS else f"{line.text[:_LOG_CHARACTERS]}…"
    return f"{line.at} {line.instance}@{line.version} {text}"


def _when(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
