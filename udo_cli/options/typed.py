"""Options that a command gets as one typed value: the fields of a frozen dataclass, each with its click option.

The help lists them in the order of the fields; a class of several bases has the fields of its last base first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field, fields
from functools import wraps
from typing import Any

import click


def option(*flags: str, **settings: Any) -> Any:
    """A field with the option `flags`, by default its name; `settings` are those of click.option, and the defaults are click's."""
    unset = () if settings.get("multiple") else False if settings.get("is_flag") else None
    return field(default=settings.get("default", unset), metadata={"flags": flags, "settings": settings})


def grouped(kind: type[Any], name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: the options of the dataclass `kind`; the command gets a `kind` as its argument `name`."""
    own = [f for f in fields(kind) if "flags" in f.metadata]

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)  # keeps the options that decorate `command` already
        def decorated(*args: Any, **given: Any) -> Any:
            value = kind(**{f.name: given.pop(f.name) for f in own})
            return command(*args, **{name: value}, **given)

        wrapped: Callable[..., Any] = decorated
        for f in reversed(own):
            flags = f.metadata["flags"] or (f"--{f.name.replace('_', '-')}",)
            wrapped = click.option(*flags, f.name, **f.metadata["settings"])(wrapped)
        return wrapped

    return decorate
