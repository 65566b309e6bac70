"""The keys of a slot: every key that is spelled is in the table of keys.py, and a text is taken apart only if it is a prefix."""

from __future__ import annotations

import inspect
import re

import pytest

from udo_protocol.errors import Conflict
from udo_protocol.queue import keys
from udo_protocol.queue.keys import PieceKeys, SlotKeys, StateKeys

# The attributes that do not stand for a single key of the table.
OTHERS = ("parse", "named", "savepoint", "of_mirror")


def spelled() -> dict[str, str]:
    """Attribute of SlotKeys -> a key that it gives, without the prefix."""
    slot, found = SlotKeys("d", 0), {}
    for name in vars(StateKeys) | vars(PieceKeys) | vars(SlotKeys):
        if name.startswith("_") or name in OTHERS:
            continue
        value = getattr(slot, name)
        if callable(value):
            value = value(*(b"x" if name == "schema" else "x" for _ in inspect.signature(value).parameters))
        found[name] = (value.decode() if isinstance(value, bytes) else str(value)).removeprefix("udo:d:0:")
    return found


def test_every_key_that_is_spelled_is_one_of_the_table() -> None:
    rows = re.findall(r"^\| (`.+?`) *\|", keys.__doc__ or "", re.MULTILINE)
    table = [re.sub(r"\{\w+\}|\*", ".+", name) for row in rows for name in re.findall(r"`([^`]+)`", row)]
    assert len(found := spelled()) > 40
    assert [name for name, key in found.items() if not any(re.fullmatch(pattern, key) for pattern in table)] == []


def test_a_prefix_is_taken_apart_and_put_together_again() -> None:
    slot = SlotKeys.parse("udo:my-fraud_2:17:")
    assert (slot.deployment, slot.number) == ("my-fraud_2", 17)
    assert f"{slot}" == str(slot) == slot.prefix == "udo:my-fraud_2:17:"
    assert slot == SlotKeys("my-fraud_2", 17) != SlotKeys("my-fraud_2", 1) and len({slot, SlotKeys("my-fraud_2", 17)}) == 1


@pytest.mark.parametrize(
    "prefix", ["", "udo:", "udo:d:0", "udo:d::", "udo:d:x:", "udo:d:-1:", "udo:d:01:", "udo:d:0:in", "udo:d:e:0:", "x:d:0:"]
)
def test_what_is_no_prefix_of_a_slot_is_refused(prefix: str) -> None:
    with pytest.raises(Conflict, match=re.escape(f"expected a slot prefix like 'udo:fraud:0:', got {prefix!r}")):
        SlotKeys.parse(prefix)


def test_a_savepoint_has_the_keys_of_the_state_below_its_own_prefix() -> None:
    slot = SlotKeys("d", 0)
    assert slot.savepoint("") is slot
    assert slot.savepoint("export").sessions == "udo:d:0:savepoint:export:sessions"
    assert slot.savepoint("export").manifest("s") == "udo:d:0:savepoint:export:m:s"
