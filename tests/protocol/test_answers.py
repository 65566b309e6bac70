"""Answers that come in any order, some repeatedly, are handed out once each, in the order of their frames."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from udo_protocol.queue.answers import Answers
from udo_protocol.queue.frame import ANSWER, Frame, Header


@given(st.lists(st.lists(st.integers(1, 12), max_size=6), max_size=12))
def test_each_is_handed_out_once_and_in_order_however_they_come(reads: list[list[int]]) -> None:
    answers, found = Answers("l"), list[int]()
    for numbers in reads:
        came = [Frame(Header(lane="l", number=n, kind=ANSWER)) for n in numbers]
        found += [f.header.number for f in answers.take(came, sent=12)]

    came_so_far = {n for numbers in reads for n in numbers}
    complete = next(n for n in range(13) if n + 1 not in came_so_far)
    assert found == list(range(1, complete + 1))
    assert answers.number == complete
    assert answers.dropped == sum(map(len, reads)) - len(came_so_far)
