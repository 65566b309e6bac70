"""`udo explain`: whether a deployment is a bottleneck on a node now, and by which figures and rules."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from udo_cli import base
from udo_cli.options import completing

if TYPE_CHECKING:
    from elasticity.bottleneck.fuzzy import Explanation, Model
    from elasticity.bottleneck.signals import SlotSample
    from udo_protocol.proto import node_manager_pb2 as pb

EXAMPLES = """
udo explain fraud
udo explain fraud --json
udo explain fraud --rules mine.toml      by rules of your own
udo explain --print-rules > mine.toml    the rules that come with it, to change
"""
COLUMNS = (
    "SLOT",
    "LOAD",
    "CPU",
    "BUSY",
    "MEMORY",
    "IN/S",
    "ANSWERED/S",
    "WAITING",
    "GROWTH/S",
    "HELD",
    "SERVICE MS",
    "RESPONSE MS",
    "LANES",
)


@base.command("explain", EXAMPLES)
@click.argument("deployment", default="", shell_complete=completing.deployments)
@click.option(
    "--rules",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Membership functions, rules and thresholds from this TOML file; by default the deployment's, or those that come with udo.",
)
@click.option("--print-rules", is_flag=True, help="Print the rules that come with udo, and exit.")
@base.node_option
@base.json_option
def command(deployment: str, rules: Path | None, print_rules: bool, address: str | None, as_json: bool) -> None:
    """Explain how loaded DEPLOYMENT is on this node: O(x) from 0 to 100 by fuzzy logic, the rules that fired, and the measured inputs.

    Inputs are those of the slot that is worst off, over the last seconds. See docs/elasticity.md.
    """
    from elasticity.bottleneck import fuzzy
    from udo_cli.platform import remote
    from udo_cli.text import output
    from udo_protocol.errors import UsageError

    if print_rules:
        click.echo(fuzzy.shipped_text(), nl=False)
        return
    if not deployment:
        raise UsageError("expected the name of a deployment; see: udo ls")
    told = remote.node(address).signals(deployment)
    own = told.rules.get(deployment, "")
    model = fuzzy.read(rules.read_text("utf-8")) if rules else fuzzy.given(own)
    found = explained(told, deployment, model, str(rules) if rules else "the deployment's" if own else "shipped")
    if as_json:
        output.emit(found)
        return
    click.echo(_text(found))
    output.table(COLUMNS, map(_row, found["slots"]), "no slots")


def explained(told: pb.SignalsReply, deployment: str, model: Model, rules: str) -> dict[str, Any]:
    """The output of `--json`: load, verdict, inputs and fired rules are null while a slot has no figures; `missing` names such slots."""
    from elasticity.bottleneck import fuzzy, signals

    seen = {s.slot: _sample(s) for s in told.slots if not s.missing}
    missing = {s.slot: s.missing for s in told.slots if s.missing}
    each = {number: fuzzy.evaluate(model, signals.inputs([one]) or {}) for number, one in seen.items()}
    inputs = None if missing else signals.inputs(list(seen.values()))
    found = fuzzy.evaluate(model, inputs) if inputs is not None else None
    limits = model.thresholds
    return {
        "deployment": deployment,
        "node": told.node,
        "rules": rules,
        "load": found and found.load,
        "verdict": found and limits.verdict(found.load),
        "thresholds": {"scale_in": limits.scale_in, "alarming": limits.alarming, "scale_out": limits.scale_out},
        "inputs": found and dict(found.inputs),
        "worst": found and {name: max(each, key=lambda n: each[n].inputs[name]) for name in found.inputs},
        "fired": found and [{"if": dict(f.if_terms), "then": f.outcome, "strength": f.strength} for f in found.fired],
        "missing": [{"slot": number, "why": why} for number, why in missing.items()],
        "window_s": told.window_s,
        "node_use": told.node_use,
        "monitor_cpu_share": told.monitor_cpu_s / told.watched_s if told.watched_s else 0.0,
        "slots": [_slot(s, each.get(s.slot)) for s in told.slots],
    }


def _sample(s: pb.SlotSignals) -> SlotSample:
    from elasticity.bottleneck.signals import SlotSample

    # An instance never waits for room: a lane bounds its frames under way before it pushes.
    return SlotSample(s.cpu, s.memory, s.busy, blocked=0.0, arrivals=s.arrivals, answers=s.answers, backlog=s.backlog, held=s.held)


def _slot(s: pb.SlotSignals, own: Explanation | None) -> dict[str, Any]:
    figures = {f.name: getattr(s, f.name) for f in s.DESCRIPTOR.fields if f.name not in ("deployment", "missing")}
    if not s.HasField("response_ms"):
        figures["response_ms"] = None
    if own is None:
        figures = {name: value if name == "slot" else None for name, value in figures.items()}
    return {**figures, "load": own and own.load, "inputs": own and dict(own.inputs)}


def _text(found: dict[str, Any]) -> str:
    head = f"{found['deployment']} on node {found['node']}"
    if found["load"] is None:
        why = "; ".join(f"slot {m['slot']}: {m['why']}" for m in found["missing"]) or "it has no slots"
        return f"{head}: nothing can be said, {why}"
    limits, worst = found["thresholds"], found["worst"]
    inputs = ", ".join(f"{name} {value:.3g} (slot {worst[name]})" for name, value in found["inputs"].items())
    rules = [f"  {f['strength']:5.0%}  {' and '.join(f'{k} {t}' for k, t in f['if'].items())} → {f['then']}" for f in found["fired"]]
    thresholds = f"scale in below {limits['scale_in']:g}, prepare from {limits['alarming']:g}, scale out from {limits['scale_out']:g}"
    return "\n".join([f"{head}: load {found['load']:.0f} of 100 from {inputs}", *rules, f"{thresholds}: {found['verdict']}"])


def _row(s: dict[str, Any]) -> tuple[str, ...]:
    if s["load"] is None:
        return (str(s["slot"]), "no figures", *("" for _ in COLUMNS[2:]))
    return (
        str(s["slot"]),
        f"{s['load']:.0f}",
        f"{s['cpu']:.0%}",
        f"{s['busy']:.0%}",
        f"{s['memory']:.0%}",
        f"{s['arrivals']:,.0f}",
        f"{s['answers']:,.0f}",
        f"{s['backlog']:,.0f}",
        f"{s['growth']:+,.0f}",
        f"{s['held']:.0%}",
        f"{s['service_ms']:.2f}",
        "" if s["response_ms"] is None else f"{s['response_ms']:.1f}",
        str(s["lanes"]),
    )
