"""Options for the controllers of a deployment's number of slots: --mode, --policy, --least, --most, --idle-after, --setting,
--rules."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from udo_cli.options.typed import option
from udo_protocol.errors import UsageError
from udo_protocol.limits import MOST_SLOTS

# The modes of elasticity.scaling.modes, which would be slow to import for a command's help.
_MODES = ("off", "advise", "auto")


@dataclass(frozen=True)
class ControllerOptions:
    """The options that are given; None for those that are not."""

    mode: str | None = option(
        type=click.Choice(_MODES),
        help="Decide about the number of slots by their load: not at all, only record the decisions (the default), or carry them out.",
    )
    policy: str | None = option(metavar="NAME", help="Scaling policy: fuzzy (the default), ds2, edf, accept_all. See docs/elasticity.md.")
    least: int | None = option(type=click.IntRange(1, MOST_SLOTS), help="Least number of slots on each node; 1 by default.")
    most: int | None = option(
        type=click.IntRange(0, MOST_SLOTS), help="Greatest number of slots on each node; 0, the default: one for each core."
    )
    settings: tuple[str, ...] = option("--setting", multiple=True, metavar="K=V", help="A setting of the policy; may be repeated.")
    idle_after_s: float | None = option(
        "--idle-after",
        type=click.FloatRange(0),
        metavar="SECONDS",
        help="In mode auto, without state: stop the instance after this long without an event, until one comes; 0, the default: never.",
    )
    rules: Path | None = option(
        type=click.Path(path_type=Path, dir_okay=False, exists=True),
        help="Rule table of policy fuzzy (see: udo explain --print-rules).",
    )

    def wish(self) -> dict[str, Any]:
        """The options as a registry takes them; {} if none is given. UsageError for a malformed --setting."""
        given = {name: getattr(self, name) for name in ("mode", "policy", "least", "most", "idle_after_s")}
        given["settings"] = parsed(self.settings) | ({"rules": self.rules.read_text("utf-8")} if self.rules else {}) or None
        return {name: value for name, value in given.items() if value is not None}


def parsed(pairs: tuple[str, ...]) -> dict[str, Any]:
    """{K: V} from K=V texts, numbers as int or float. UsageError for a text of another form."""
    found: dict[str, Any] = {}
    for pair in pairs:
        key, sep, value = pair.partition("=")
        if not sep or not key:
            raise UsageError(f"--setting expects K=V, got {pair!r}")
        found[key] = _number(value)
    return found


def _number(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
