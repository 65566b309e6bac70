"""The rules by which a slot restarts its owner, or blames the frame."""

from __future__ import annotations

from node_manager.slots.deaths import PER_FRAME, RESTART_MOST_S, Deaths, backoff_s


def test_the_first_death_restarts_at_once_and_later_ones_ever_later_up_to_a_bound() -> None:
    deaths = Deaths()

    delays = [deaths.died(emitted=5, waiting_frames=0, lived_s=0.1, hung=False).delay_s for _ in range(12)]

    assert delays[:4] == [0.0, 0.1, 0.2, 0.4]
    assert delays[-1] == RESTART_MOST_S


def test_a_frame_is_blamed_after_three_deaths_on_it_and_then_the_restart_is_immediate() -> None:
    deaths = Deaths()

    verdicts = [deaths.died(emitted=5, waiting_frames=1, lived_s=0.1, hung=False) for _ in range(PER_FRAME)]

    assert [v.fail_head for v in verdicts] == [False, False, True]
    assert deaths.failed_head() == 0.0
    assert deaths.failing


def test_an_operator_that_answers_no_frame_at_all_fails_each_at_its_first_death_and_is_started_ever_later() -> None:
    deaths = Deaths()
    for _ in range(PER_FRAME):
        deaths.died(emitted=5, waiting_frames=9, lived_s=0.1, hung=False)
    deaths.failed_head()
    pauses = []
    for frame in range(6, 20):
        assert deaths.died(emitted=frame, waiting_frames=9, lived_s=0.1, hung=False).fail_head
        pauses.append(deaths.failed_head())

    assert pauses == sorted(pauses)
    assert (pauses[0] > 0, pauses[-1]) == (True, RESTART_MOST_S)
    assert str(deaths) == "on the last 15 frames"


def test_an_answer_ends_a_row_of_failed_frames() -> None:
    deaths = Deaths()
    for _ in range(PER_FRAME):
        deaths.died(emitted=5, waiting_frames=1, lived_s=0.1, hung=False)
    deaths.failed_head()
    assert not deaths.answered(6)  # the answer given in place of the failed frame

    assert deaths.answered(7)
    assert not deaths.died(emitted=7, waiting_frames=1, lived_s=0.1, hung=False).fail_head
    assert not deaths.failing


def test_an_operator_that_lives_shortly_waits_in_the_end_whatever_it_claims_to_have_answered() -> None:
    deaths = Deaths()

    delays = [deaths.died(emitted=n, waiting_frames=0, lived_s=0.1, hung=False).delay_s for n in range(200)]

    assert delays == sorted(delays)
    assert (delays[10], delays[-1]) == (0.0, RESTART_MOST_S)


def test_back_off_never_overflows() -> None:
    assert backoff_s(100_000, 0.1, 10.0) == 10.0


def test_progress_between_deaths_blames_no_frame() -> None:
    deaths = Deaths()

    verdicts = [deaths.died(emitted=n, waiting_frames=1, lived_s=0.1, hung=False) for n in range(20)]

    assert not any(v.fail_head or v.delay_s for v in verdicts)


def test_a_hang_blames_the_frame_at_once_but_only_if_one_waits() -> None:
    assert Deaths().died(emitted=5, waiting_frames=1, lived_s=90, hung=True).fail_head
    assert not Deaths().died(emitted=5, waiting_frames=0, lived_s=90, hung=True).fail_head


def test_an_owner_that_lived_long_starts_a_new_row() -> None:
    deaths = Deaths()
    for _ in range(5):
        deaths.died(emitted=5, waiting_frames=0, lived_s=0.1, hung=False)

    assert deaths.died(emitted=5, waiting_frames=0, lived_s=60, hung=False).delay_s == 0.0
