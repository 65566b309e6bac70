"""Options for the controllers of a deployment's number of slots: --mode, --policy, --least, --most, --idle-after, --setting,
--rules."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import click

from udo_protocol.errors import UsageError
from udo_protocol.limits import MOST_SLOTS

# The modes of elasticity.scaling.modes, which would be slow to import for a command's help.
_MODES = ("off", "advise", "auto")


def options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator: the options; the command gets them as one argument, `elasticity`, {} if none was given."""

    @wraps(command)  # keeps the options that decorate `command` already
    def with_elasticity(
        mode: str | None,
        policy: str | None,
        least: int | None,
        most: int | None,
        idle_after_s: float | None,
        settings: tuple[str, ...],
        rules: Path | None,
        **others: Any,
    ) -> Any:
        given: dict[str, Any] = {"mode": mode, "policy": policy, "least": least, "most": most, "idle_after_s": idle_after_s}
        given["settings"] = parsed(settings) | ({"rules": rules.read_text("utf-8")} if rules else {}) or None
        return command(elasticity={name: value for name, value in given.items() if value is not None}, **others)

    wrapped: Callable[..., Any] = with_elasticity
    for option in (
        click.option(
            "--rules",
            type=click.Path(path_type=Path, dir_okay=False, exists=True),
            help="Rule table of policy fuzzy (see: udo explain --print-rules).",
        ),
        click.option(
            "--idle-after",
            "idle_after_s",
            type=click.FloatRange(0),
            metavar="SECONDS",
            help="In mode auto, without state: no instance after so long without an event, until one comes; 0, the default: never.",
        ),
        click.option("--setting", "settings", multiple=True, metavar="K=V", help="A setting of the policy; may be repeated."),
        click.option("--most", type=click.IntRange(0, MOST_SLOTS), help="Slots on each node at most; 0, the default: one for each core."),
        click.option("--least", type=click.IntRange(1, MOST_SLOTS), help="Slots on each node at least; 1 by default."),
        click.option("--policy", metavar="NAME", help="Scaling policy: fuzzy (the default), ds2, edf, accept_all. See docs/elasticity.md."),
        click.option(
            "--mode",
            type=click.Choice(_MODES),
            help="Decide about the number of slots by their load: not at all, only record the decisions (the default), or carry them out.",
        ),
    ):
        wrapped = option(wrapped)
    return wrapped


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
