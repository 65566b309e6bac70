"""Operators with several inputs: all events travel in one schema with the columns of all inputs, so that frames, slots, recordings and
operators in any language need not know about inputs.

A first column, `input`, names the input of an event; the columns of the inputs follow in their order. A column that several inputs
share is one column; a column is null in events of the inputs that do not have it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

INPUT_COLUMN = "input"
# An input is an argument of the call in Spark, where these names already have another meaning.
_OPTIONS = ("df", "key", "keep", "uid", "pin", "window", "start", "store", "path", "registry")
_NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_]{0,62}$")


def united(inputs: Mapping[str, object]) -> dict[str, str]:
    """The `{column: type}` table of the events of all these inputs, each given as such a table; ValueError says what is wrong."""
    columns = {INPUT_COLUMN: "string"}
    if len(inputs) < 2:
        raise ValueError("input: a single input has its columns in [input] itself; tables [input.NAME] are for two or more")
    for name, own in inputs.items():
        if not isinstance(own, Mapping) or not own:
            raise ValueError(f"input: expected either columns or a table [input.NAME] for each input, got {name} = {own!r:.60}")
        if not _NAME.match(name) or name in _OPTIONS:
            raise ValueError(
                f"input.{name}: expected a name of letters, digits and _ that is no option of a call ({', '.join(_OPTIONS)}), got {name!r}"
            )
        for column, text in own.items():
            if column == INPUT_COLUMN:
                raise ValueError(f"input.{name}: the column {column!r} is taken: it says which input an event is of; rename it")
            if not isinstance(text, str) or columns.setdefault(column, text) != text:
                raise ValueError(
                    f"input.{name}: column {column!r} is {text}, in another input {columns.get(column)}; use one type or two names"
                )
    return columns
