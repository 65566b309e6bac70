"""Simulated card payments with planted frauds, after the Fraud Detection Handbook (Le Borgne et al., chapter 3). Seeded.

Cards and terminals lie in a square of 100 x 100; a card pays at terminals near it. Three kinds of fraud are planted:
1 any payment above 220; 2 terminals compromised for 28 days; 3 cards of which a third of the payments of 14 days are
five times too high. Only numpy and pyarrow; no row is touched by Python.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from udo_cli.demo.source import SCHEMA

DAYS = 120
DAY_S = 86_400
START_S = 1_522_540_800  # 2018-04-01, the handbook's first day
RADIUS = 8.0
# Mean number of payments per card and day that are kept (each card has a mean of 0 to 4; those whose time is outside the day are dropped).
_PAYMENTS_PER_CARD_DAY = 1.94
# Bounds the memory for distances between cards and terminals.
_CARDS_AT_ONCE = 500
# Two of 10,000 terminals, and three of 5,000 cards, become compromised each day.
_PLACES_PER_DAY, _HOLDERS_PER_DAY = 2 / 10_000, 3 / 5_000


@dataclass(frozen=True)
class _Cards:
    x: np.ndarray
    y: np.ndarray
    mean_amount: np.ndarray
    payments_per_day: np.ndarray


def transactions(rows: int, seed: int = 7) -> pa.Table:
    """`rows` payments in order of time, in source.SCHEMA, spread over DAYS days."""
    rng = np.random.default_rng(seed)
    # More cards than needed on average; the rest is cut, as the number of payments is random.
    count = round(1.05 * rows / DAYS / _PAYMENTS_PER_CARD_DAY) + 10
    cards = _Cards(
        rng.uniform(0, 100, count), rng.uniform(0, 100, count), rng.uniform(5, 100, count), rng.permutation(np.linspace(0, 4, count))
    )
    terminals = max(200, 2 * count)
    card, second, amount = _payments(rng, cards)
    terminal = _places(rng, cards, card, terminals)
    order = np.argsort(second, kind="stable")[:rows]
    card, second, amount, terminal = card[order], second[order], amount[order], terminal[order]
    amount, fraud = _plant(rng, card, second // DAY_S, terminal, amount, count, terminals)
    micros = (second.astype(np.int64) + START_S) * 1_000_000
    columns = [np.arange(len(order)), micros.view("datetime64[us]"), card, terminal, np.round(amount, 2), fraud]
    return pa.Table.from_arrays([pa.array(c).cast(f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)


def _payments(rng: np.random.Generator, cards: _Cards) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(card, second since the start, amount) of every payment: around noon, amounts spread by half the card's mean."""
    number = rng.poisson(cards.payments_per_day[:, None], (len(cards.x), DAYS))
    card = np.repeat(np.arange(len(cards.x)), number.sum(axis=1))
    day = np.repeat(np.tile(np.arange(DAYS), len(cards.x)), number.ravel())
    second = rng.normal(DAY_S / 2, 20_000, len(card)).astype(np.int64)
    inside = (second > 0) & (second < DAY_S)
    card, day, second = card[inside], day[inside], second[inside]
    mean = cards.mean_amount[card]
    amount = rng.normal(mean, mean / 2)
    return card, day * DAY_S + second, np.where(amount < 0, rng.uniform(0, 2 * mean), amount)


def _places(rng: np.random.Generator, cards: _Cards, card: np.ndarray, terminals: int) -> np.ndarray:
    """The terminal of every payment, one of those within RADIUS of its card, or any when none is near."""
    x, y = rng.uniform(0, 100, terminals), rng.uniform(0, 100, terminals)
    near = [_near(cards.x[k : k + _CARDS_AT_ONCE], cards.y[k : k + _CARDS_AT_ONCE], x, y) for k in range(0, len(cards.x), _CARDS_AT_ONCE)]
    count = np.concatenate([n.sum(axis=1) for n in near])
    start = np.concatenate([[0], np.cumsum(count)[:-1]])
    listed = np.concatenate([np.nonzero(n)[1] for n in near])
    pick = (rng.random(len(card)) * count[card]).astype(np.int64) + start[card]
    anywhere = rng.integers(0, terminals, len(card))
    return np.where(count[card] > 0, listed[np.minimum(pick, max(len(listed) - 1, 0))], anywhere)


def _near(card_x: np.ndarray, card_y: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Whether a terminal (column) is near a card (row)."""
    near: np.ndarray = (card_x[:, None] - x) ** 2 + (card_y[:, None] - y) ** 2 < RADIUS**2
    return near


def _plant(
    rng: np.random.Generator, card: np.ndarray, day: np.ndarray, terminal: np.ndarray, amount: np.ndarray, cards: int, terminals: int
) -> tuple[np.ndarray, np.ndarray]:
    """Amounts and frauds after the three scenarios; per card and terminal, as many frauds are planted as in the handbook."""
    fraud = amount > 220
    places, holders = _PLACES_PER_DAY * terminals, _HOLDERS_PER_DAY * cards
    bad_terminal = np.zeros((terminals, DAYS), dtype=bool)
    bad_card = np.zeros((cards, DAYS), dtype=bool)
    for d in range(DAYS):  # days, not rows
        bad_terminal[rng.choice(terminals, _on_day(places, d), replace=False), d : d + 28] = True
        bad_card[rng.choice(cards, _on_day(holders, d), replace=False), d : d + 14] = True
    fraud |= bad_terminal[terminal, day]
    stolen = bad_card[card, day] & (rng.random(len(card)) < 1 / 3)
    return np.where(stolen, amount * 5, amount), fraud | stolen


def _on_day(per_day: float, day: int) -> int:
    """A fraction per day as a whole number for each day: 0.4 is 0, 0, 1, 0, 1 ..."""
    return int(per_day * (day + 1)) - int(per_day * day)
