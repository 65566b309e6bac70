"""Policies are plain functions found by name; a user adds one as "module:function", in a call or in a file of names.

A name table maps each name to its function; `find` imports the function on request, `settings` makes the settings of a scaling policy.
"""

from __future__ import annotations

import importlib
import inspect
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import Any, get_type_hints

from udo_protocol.errors import NotFound, UsageError

Names = Mapping[str, Mapping[str, str]]


def read(text: str) -> dict[str, dict[str, str]]:
    """The names in a TOML text: one table per kind (`balance`, `scaling`), each entry `name = "module:function"`.

    UsageError names an entry of any other form.
    """
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as e:
        raise UsageError(f"a file of policies must be TOML, for instance [balance] and mine = 'my_module:mine': {e}") from e
    for kind, names in tables.items():
        for name, entry in names.items() if isinstance(names, dict) else [("", None)]:
            if not isinstance(entry, str) or entry.count(":") != 1:
                raise UsageError(f"[{kind}] {name}: expected 'module:function', got {entry!r}")
    return tables


@cache
def shipped() -> Names:
    """The names in policies.toml of this package."""
    return read((files("elasticity") / "policies.toml").read_text("utf-8"))


def find(kind: str, name: str, extra: Names | None = None) -> Callable[..., Any]:
    """The policy `name` of that kind: an entry of `extra`, else of this package, else `name` itself as "module:function".

    NotFound lists the known names; UsageError says which module or function could not be imported.
    """
    known = {**shipped().get(kind, {}), **(extra or {}).get(kind, {})}
    entry = known.get(name, name)
    module, colon, function = entry.partition(":")
    if not colon:
        near = get_close_matches(name, known, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        raise NotFound(f"no {kind} policy {name!r}{hint} There are {', '.join(sorted(known))}, or your own as 'module:function'")
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as e:
        raise UsageError(f"{kind} policy {name!r} stands for {entry!r}, which cannot be imported: {e}") from e
    if not callable(found):
        raise UsageError(f"{kind} policy {name!r} stands for {entry!r}: expected a function, got {type(found).__name__}")
    return found  # type: ignore[no-any-return]


def settings(policy: Callable[..., Any], given: Mapping[str, Any] | None = None) -> Any:
    """The settings of a scaling policy: an instance of the dataclass that is the type of its last parameter, with these values by name.

    A policy around another one has a field `inner`: a mapping of all settings that are not its own. UsageError names a setting that the
    policy does not have, or says that it has no such parameter.
    """
    name, last = getattr(policy, "__name__", policy), next(reversed(inspect.signature(policy).parameters), "")
    try:
        kind = get_type_hints(policy).get(last)
    except NameError as e:
        raise UsageError(f"scaling policy {name!r}: the types of its parameters are not known when it runs: {e}") from e
    if not isinstance(kind, type) or not is_dataclass(kind):
        raise UsageError(f"scaling policy {name!r}: expected {name}(sample, memory, rng, settings), settings: a dataclass with defaults")
    known, others = {f.name for f in fields(kind)}, dict(given or {})
    own = {setting: others.pop(setting) for setting in known - {"inner"} if setting in others}
    if "inner" in known:
        own["inner"] = others
    elif others:
        raise UsageError(f"scaling policy {name!r} has no setting {min(others)!r}; there are {', '.join(sorted(known))}")
    return kind(**own)
