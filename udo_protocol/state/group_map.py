"""Which slot of a keyed deployment has which key group. So far the groups are spread evenly and stay where they are."""

from __future__ import annotations

# Of a map that nothing has changed yet.
FIRST_VERSION = 1


def even(key_groups: int, slots: int) -> list[int]:
    """For each key group the place of its slot: a range of groups for each slot, of the same length as far as that goes."""
    return [group * slots // key_groups for group in range(key_groups)]
