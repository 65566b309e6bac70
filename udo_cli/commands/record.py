"""`udo record`: record the input of a deployment in a file, on which `udo test --replay` runs a local version."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from udo_cli import base
from udo_cli.options import completing
from udo_cli.options.durations import Duration
from udo_cli.options.typed import grouped, option

if TYPE_CHECKING:
    from udo_cli.recorder import Recorded, RecordedSlot

EXAMPLES = """
udo record fraud --for 30s -o fraud.rec
udo record visits --for 5m --frames 1000 -o visits.rec --json
udo record visits --slot 1000 --for 5m -o visits.rec     only one of its slots (udo status)
udo test visits --replay visits.rec --pdb
"""
_TELL_S = 1.0
Json = dict[str, Any]


@dataclass(frozen=True)
class RecordOptions:
    """The length of a recording, its slots, and its file."""

    for_s: float = option(
        "--for", type=Duration(), required=True, metavar="TIME", help="How long to record: 500ms, 30s, 5m; Ctrl-C ends it earlier."
    )
    file: Path = option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), required=True, help="The file to write.")
    frames: int | None = option(type=click.IntRange(1), help="End a slot's recording after this many frames.")
    slot: str | None = option(metavar="NUMBER", help="Only the slot with this number, or NODE:NUMBER; default: all.")
    force: bool = option(is_flag=True, help="Overwrite the file.")


@base.command("record", EXAMPLES)
@click.argument("deployment", shell_complete=completing.deployments)
@grouped(RecordOptions, "wish")
@base.nodes_option
@base.json_option
def command(deployment: str, wish: RecordOptions, address: str | None, as_json: bool) -> None:
    """Record every frame that DEPLOYMENT answers during this time, in the order of each slot, and its state at the start.

    All slots on all nodes are recorded, with --node those on that node.

    Recording delays no answer. The file contains events and state: protect it like the data they come from. It does not contain the
    values of the deployment's variables and secrets.
    """
    from udo_cli import recorder
    from udo_cli.platform import recorded_slots
    from udo_cli.text import output
    from udo_protocol.errors import Conflict, NotFound

    file = wish.file
    if file.exists() and not wish.force:
        raise Conflict(f"{file} exists; overwrite it with --force")
    if not file.absolute().parent.is_dir():
        raise NotFound(f"there is no folder {file.absolute().parent} to write {file.name} to")
    interrupts: list[int] = []

    def interrupt(number: int, _: object) -> None:
        if interrupts:  # a second Ctrl-C: the node sends nothing, so end at once, without a file
            raise KeyboardInterrupt
        interrupts.append(number)

    def begun(headers: list[Json]) -> None:
        for h in headers:
            what = f"{h['operator']}@{h['version']}, slot {h['slot']} on node {h['node']}"
            output.say(f"recording {deployment} ({what}) from frame {h['first_seq']} on")
        output.say("Ctrl-C ends it")

    slots, silent = recorded_slots.find(deployment, wish.slot, address)
    for line in silent:
        output.say(line)
    streams = [slot.node.record(deployment, wish.for_s, wish.frames or 0, slot.number) for slot in slots]
    before = signal.signal(signal.SIGINT, interrupt)
    try:
        made = recorder.write(file, deployment, streams, begun, _progress(), lambda: bool(interrupts))
    finally:
        signal.signal(signal.SIGINT, before)
    missed = [] if wish.slot else recorded_slots.came_later(deployment, address, slots)
    if as_json:
        output.emit(_document(file, made, missed, silent))
        return
    _tell(file, made, missed)


def _document(file: Path, made: Sequence[RecordedSlot], missed: Sequence[str], silent: Sequence[str]) -> Json:
    first = made[0].header
    slots = [{**{k: slot.header[k] for k in ("node", "slot", "operator", "version", "digest")}, **asdict(slot.made)} for slot in made]
    return {
        "file": str(file),
        **{k: first[k] for k in ("deployment", "operator", "version", "keyed")},
        **_total([slot.made for slot in made]),
        "slots": slots,
        "slots_missed": list(missed),
        "nodes_not_asked": list(silent),
    }


def _tell(file: Path, made: Sequence[RecordedSlot], missed: Sequence[str]) -> None:
    """Print what has been recorded: one line for all slots that ended for the same reason, and what is missing."""
    from udo_cli.text import output

    for slot in made:
        for first, last in slot.made.gaps:
            output.say(f"missing in {_name(slot)}: frames {first} to {last} were trimmed before they could be recorded")
    for name in missed:
        output.say(f"not recorded: slot {name}, which the deployment has got meanwhile")
    whys = {slot.made.reason for slot in made}
    ended = whys.pop() if len(whys) == 1 else "; ".join(f"{_name(slot)}: {slot.made.reason}" for slot in made)
    click.echo(f"{file}: {_told([slot.made for slot in made])}; ended: {ended}")
    if not any(slot.made.frames for slot in made):
        output.say(f"{made[0].header['deployment']} answered nothing during this time: the file contains no frames")


def _name(slot: RecordedSlot) -> str:
    return f"slot {slot.header['slot']} on node {slot.header['node']}"


def _told(slots: Sequence[Recorded]) -> str:
    from udo_cli.text import output

    total = _total(slots)
    of = f" of {len(slots)} slots" if len(slots) > 1 else ""
    state = f", state of {total['sessions']} sessions" if total["sessions"] else ""
    return f"{total['frames']} frames{of}, {total['events']} events, {output.size(total['bytes'])}{state}"


def _total(slots: Sequence[Recorded]) -> dict[str, int]:
    """The contents of all slots. Each has its part of every session whose epochs have ended: a session counts once."""
    sums = {name: sum(getattr(made, name) for made in slots) for name in ("frames", "events", "bytes")}
    return {**sums, "sessions": max((made.sessions for made in slots), default=0)}


def _progress() -> Callable[[list[Recorded]], None]:
    """A function that prints the progress once per second, on a terminal."""
    due = time.monotonic() + _TELL_S

    def tell(made: list[Recorded]) -> None:
        nonlocal due
        if sys.stderr.isatty() and time.monotonic() >= due:
            from udo_cli.text import output

            due = time.monotonic() + _TELL_S
            output.say(_told(made))

    return tell
