"""`udo record`: record the input of a deployment in a file, on which `udo test --replay` runs a local version."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from udo_cli import base
from udo_cli.options import completing
from udo_cli.options.durations import Duration
from udo_cli.options.typed import grouped, option

if TYPE_CHECKING:
    from udo_cli.recorder import Recorded

EXAMPLES = """
udo record fraud --for 30s -o fraud.rec
udo record visits --for 5m --frames 1000 -o visits.rec --json
udo record visits --slot 1000 --for 5m -o visits.rec     one of several slots (udo status)
udo test visits --replay visits.rec --pdb
"""
_TELL_S = 1.0


@dataclass(frozen=True)
class RecordOptions:
    """The length of a recording, its slot, and its file."""

    for_s: float = option(
        "--for", type=Duration(), required=True, metavar="TIME", help="How long to record: 500ms, 30s, 5m; Ctrl-C ends it earlier."
    )
    file: Path = option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), required=True, help="The file to write.")
    frames: int | None = option(type=click.IntRange(1), help="End after this many frames.")
    slot: int | None = option(type=click.IntRange(0), metavar="NUMBER", help="The slot to record, where it has several on the node.")
    force: bool = option(is_flag=True, help="Overwrite the file.")


@base.command("record", EXAMPLES)
@click.argument("deployment", shell_complete=completing.deployments)
@grouped(RecordOptions, "wish")
@base.node_option
@base.json_option
def command(deployment: str, wish: RecordOptions, address: str | None, as_json: bool) -> None:
    """Record every frame that a slot of DEPLOYMENT answers during this time, in order, and its state at the start.

    The slot is on the node of this host, or on the one that --node names.

    Recording delays no answer. The file contains events and state: protect it like the data they come from. It does not contain the
    values of the deployment's variables and secrets.
    """
    from udo_cli import recorder
    from udo_cli.platform import remote
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

    def begun(header: dict[str, Any]) -> None:
        what = f"{header['operator']}@{header['version']}, slot {header['slot']} on node {header['node']}"
        output.say(f"recording {deployment} ({what}) from frame {header['first_seq']} on; Ctrl-C ends it")

    parts = remote.node(address).record(deployment, wish.for_s, wish.frames or 0, wish.slot)
    before = signal.signal(signal.SIGINT, interrupt)
    try:
        header, made = recorder.write(file, parts, begun, _progress(), lambda: bool(interrupts))
    finally:
        signal.signal(signal.SIGINT, before)
    if as_json:
        output.emit(
            {"file": str(file), **{k: header[k] for k in ("deployment", "node", "slot", "operator", "version", "keyed")}, **asdict(made)}
        )
        return
    for first, last in made.gaps:
        output.say(f"missing: frames {first} to {last} were trimmed before they could be recorded")
    click.echo(f"{file}: {_told(made)}; ended: {made.reason}")
    if not made.frames:
        output.say(f"{deployment} answered nothing during this time: the file contains no frames")


def _told(made: Recorded) -> str:
    from udo_cli.text import output

    state = f", state of {made.sessions} sessions" if made.sessions else ""
    return f"{made.frames} frames, {made.events} events, {output.size(made.bytes)}{state}"


def _progress() -> Callable[[Recorded], None]:
    """A function that prints the progress once per second, on a terminal."""
    due = time.monotonic() + _TELL_S

    def tell(made: Recorded) -> None:
        nonlocal due
        if sys.stderr.isatty() and time.monotonic() >= due:
            from udo_cli.text import output

            due = time.monotonic() + _TELL_S
            output.say(_told(made))

    return tell
