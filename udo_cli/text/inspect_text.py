"""A deployment or an operator version for people: a few lines about it, then a table for each thing of which it may have several."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import click

from udo_cli.text import output

Json = dict[str, Any]


def deployment(d: Json) -> None:
    """Print a deployment, for `udo inspect NAME`."""
    click.secho(f"DEPLOYMENT {d['name']}", bold=True)
    retries = f", {d['limits']['retries']:g} retries" if "retries" in d["limits"] else ""
    former = ", ".join(p["version"] for p in d["previous"])
    update = d["update"]
    _lines(
        ("serves", f"{d['operator']}@{d['version']} ({d['digest']})"),
        ("about", d["manifest"].get("description")),
        ("since", d["created_at"]),
        ("update", update and f"to {update['to_version']}: {update['state']} {update['detail']}"),
        ("can be rolled back to", former),
        ("slots, by node", ", ".join(d["placement"]["nodes"])) if d["placement"] else ("slots on each node", d["slots"]),
        ("application", d.get("application")),
        ("slots are decided", _elasticity(d["elasticity"])),
        ("on error", d["policy"] + retries),
        ("limits", _pairs({k: v for k, v in d["limits"].items() if k != "retries"})),
        ("variables", _pairs(d["env"])),
        ("secrets", ", ".join(d["secrets"])),
        ("files", ", ".join(d["files"])),
        ("key", _key(d["manifest"])),
    )
    _columns(d["manifest"])
    _table(("NODE", "VERSION", "STATE", "SINCE", "DETAIL"), (_node(n) for n in d["nodes"]))
    _table(("SLOT OVER NODES", "ON", "REPLICAS ON", "TO BE ON", ""), _replicas(d["placement"]))
    maps = ((m["node"], m["slot"], m["number"], m["groups"], m["map_version"]) for m in d["key_groups"])
    _table(("KEY GROUPS ON", "SLOT", "NUMBER", "GROUPS", "MAP VERSION"), maps)
    _queries(d)


def _replicas(placement: Json | None) -> Iterable[Sequence[Any]]:
    """For each slot: its place, its node, the nodes that hold its ENDed state, those that do not yet, and whether its node is lost."""
    copies = (placement or {}).get("replication")
    if placement and copies:
        for place, node in enumerate(placement["nodes"]):
            lost = "lost: no live node holds it" if node in copies["lost"] else ""
            yield place, node, ", ".join(copies["counted"][place]), ", ".join(copies["joining"][place]), lost


def _elasticity(wish: Json) -> str:
    """How the number of slots is decided, in words."""
    if wish["mode"] == "off":
        return "by nobody but udo scale"
    how = f"by policy {wish['policy']}, {wish['least']} to {wish['most'] or 'one for each core'}"
    if wish["idle_after_s"]:
        how += f", none after {wish['idle_after_s']:g} s without an event"
    return how if wish["mode"] == "auto" else f"by udo scale; recorded only: {how}"


def version(v: Json) -> None:
    """Print an operator version, for `udo inspect NAME@VERSION`."""
    manifest = v["manifest"]
    click.secho(f"OPERATOR {v['name']}@{v['version']}", bold=True)
    _lines(
        ("digest", v["digest"]),
        ("about", manifest.get("description")),
        ("pushed", f"{v['created_at']} by {v['pushed_by']}"),
        ("entry", manifest.get("entry")),
        ("command", " ".join(manifest.get("command") or ())),
        ("key", _key(manifest)),
        ("requirements", ", ".join(manifest.get("requirements") or ())),
        ("packed for", " ".join(filter(None, (manifest.get("python_tag"), manifest.get("platform"))))),
        ("limits", _pairs(manifest.get("limits") or {})),
        ("signed by", ", ".join(filter(None, v["signatures"]))),
    )
    _columns(manifest)
    _table(("LAYER", "DIGEST", "SIZE"), ((la["kind"], output.short(la["digest"]), output.size(la["size"])) for la in v["layers"]))
    _table(("PROVENANCE", ""), sorted(v["provenance"].items()))
    used = v["used_by"]
    _table(("USED BY", ""), ((d["name"], "" if d["wanted"] else "could be rolled back to it") for d in used["deployments"]))
    _queries(used)


def _lines(*lines: tuple[str, Any]) -> None:
    for name, value in lines:
        if value:
            click.echo(f"  {name:<16}{value}")


def _table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    if found := list(rows):
        click.echo()
        output.table(columns, found, "")


def _pairs(values: Json) -> str:
    return ", ".join(f"{k}={v:g}" if isinstance(v, float) else f"{k}={v}" for k, v in values.items())


def _key(manifest: Json) -> str:
    if not manifest.get("key"):
        return ""
    time = manifest.get("event_time")
    return ", ".join(manifest["key"]) + (f"; event time {time['column']}" if time else "")


def _columns(manifest: Json) -> None:
    _table(("INPUT", "TYPE"), manifest["input"].items())
    _table(("OUTPUT", "TYPE"), manifest["output"].items())


def _node(n: Json) -> tuple[str, ...]:
    state = f"away since {n['away_since']}" if n["away_since"] else n["state"]
    return n["node"], n["version"], state, n["at"], n["detail"]


def _queries(used: Json) -> None:
    rows = []
    for q in used["queries"]:
        slot = (q["node"], f"{q['deployment']}:{q['slot']}", q["version"])
        rows += [(*slot, s["session"], s["lanes"]) for s in q["sessions"]] or [(*slot, "", q["lanes"])]
    _table(("IN USE ON", "SLOT", "VERSION", "SESSION", "LANES"), rows)
    if used["nodes_not_asked"]:
        click.echo(f"\nnot asked, since they are not reachable from here: {', '.join(used['nodes_not_asked'])}")
