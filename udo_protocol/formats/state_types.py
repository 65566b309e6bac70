"""The types that a manifest's [state] table gives to entries of a key's state, and the check that a state has them.

A state is MessagePack, which tells 1 from 1.0, a time with a zone from one without, and a decimal from text, but knows neither widths nor
scales. Declared types are checked whenever a state is written, whatever language it comes from, so that operators in different languages
can continue from each other's states. Nothing is converted: the operator itself would see the unconverted value until its next frame.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

import pyarrow as pa

from udo_protocol.errors import SchemaError
from udo_protocol.formats.schema import parse_schema, type_text

Fits = Callable[[Any], bool]
# Microseconds per unit of a timestamp; times in a state are in µs.
_UNIT_US = {"s": 1_000_000, "ms": 1_000, "us": 1, "ns": 1}


class StateTypes:
    """The state types of one operator version. `columns`: entry -> type, as in the manifest; entries not named are free."""

    def __init__(self, columns: Mapping[str, str]) -> None:
        self._types = {field.name: (field.type, fits(field.type)) for field in parse_schema(columns)}

    @classmethod
    def of(cls, columns: Mapping[str, str] | None) -> StateTypes | None:
        """The types, or None if none are declared."""
        return cls(columns) if columns else None

    @property
    def columns(self) -> dict[str, pa.DataType]:
        """Entry -> type."""
        return {name: arrow_type for name, (arrow_type, _) in self._types.items()}

    def problem(self, state: Mapping[str, Any], found: str = "the operator left") -> str:
        """Why this state (decoded to Python) does not have these types; '' if it has. Null and a missing entry fit any type."""
        for name, (arrow_type, fitting) in self._types.items():
            value = state.get(name)
            if value is not None and not fitting(value):
                return f"state entry {name!r}: expected {type_text(arrow_type)}, {found} {value!r:.100} ({type(value).__name__})"
        return ""


def fits(t: pa.DataType) -> Fits:
    """A check whether a non-null value is of this type. SchemaError for a type that no state can have."""
    is_ = pa.types
    if is_.is_boolean(t):
        return lambda v: isinstance(v, bool)
    if is_.is_integer(t):
        bits = t.bit_width - is_.is_signed_integer(t)
        lowest, highest = -(1 << bits) if is_.is_signed_integer(t) else 0, (1 << bits) - 1
        return lambda v: isinstance(v, int) and not isinstance(v, bool) and lowest <= v <= highest
    if is_.is_floating(t):
        return lambda v: isinstance(v, float)
    if is_.is_string(t) or is_.is_large_string(t):
        return lambda v: isinstance(v, str)
    if is_.is_binary(t) or is_.is_large_binary(t):
        return lambda v: isinstance(v, (bytes, bytearray))
    if is_.is_date32(t):
        return lambda v: isinstance(v, dt.date) and not isinstance(v, dt.datetime)
    if is_.is_timestamp(t):
        zoned, unit_us = t.tz is not None, _UNIT_US[t.unit]
        return lambda v: isinstance(v, dt.datetime) and (v.tzinfo is not None) == zoned and v.microsecond % unit_us == 0
    if is_.is_decimal128(t):
        return lambda v: isinstance(v, Decimal) and _has_digits(v, t.precision, t.scale)
    if is_.is_list(t):
        return _each(fits(t.value_type))
    if is_.is_struct(t):
        inner = {field.name: fits(field.type) for field in t.fields}
        return lambda v: isinstance(v, dict) and v.keys() <= inner.keys() and all(x is None or inner[name](x) for name, x in v.items())
    if is_.is_map(t):
        key, item = fits(t.key_type), fits(t.item_type)
        return lambda v: isinstance(v, dict) and all(key(k) and (x is None or item(x)) for k, x in v.items())
    raise SchemaError(
        f"a state holds no {type_text(t)}: expected numbers, text, bytes, times, dates, decimals, or lists, structs and maps of these"
    )


def _each(inner: Fits) -> Fits:
    return lambda v: isinstance(v, (list, tuple)) and all(x is None or inner(x) for x in v)


def _has_digits(v: Decimal, precision: int, scale: int) -> bool:
    """Whether the decimal is a whole number of units of 10^-scale with at most that many digits."""
    _, digits, exponent = v.as_tuple()
    if not isinstance(exponent, int):  # NaN or infinite
        return False
    shown = "".join(map(str, digits)).lstrip("0")
    significant = shown.rstrip("0")
    exponent += len(shown) - len(significant)
    return not significant or (-exponent <= scale and len(significant) + exponent <= precision - scale)
