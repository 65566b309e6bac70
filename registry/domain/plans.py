"""Numbers of plans, which order the runs of a keyed query, whichever driver has made the plan and whatever its clock says."""

from __future__ import annotations

from sqlalchemy.orm import Session

from registry.store.models import Setting

KEY = "plans"


def number(session: Session, now: float) -> int:
    """A number above all that were given before: ms since 1970, or one more than the last while the clock is behind.

    A hybrid logical clock (Kulkarni et al., "Logical Physical Clocks", OPODIS 2014, section 3), so that the numbers keep rising also in a
    registry that has begun with an empty database.
    """
    row = session.get(Setting, KEY) or Setting(key=KEY, value=0)
    row.value = max(row.value + 1, int(now * 1000))
    session.add(row)
    return row.value
