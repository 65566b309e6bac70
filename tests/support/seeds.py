"""The first seed of tests that draw: always the same, so that CI repeats itself; others by `pytest --seed fresh` or `--seed N`."""

from __future__ import annotations

import os
import secrets
from typing import Any

import pytest
from hypothesis import settings

from tests.support.selection import long

_first = 0


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option --seed; see the module."""
    told = "where tests that draw begin; 'fresh' takes a new N and prints it (default: 0, and each property's own fixed examples)"
    parser.addoption("--seed", default="0", metavar="N", help=told)


@pytest.hookimpl(tryfirst=True)  # hypothesis takes its seed in its own configuration
def pytest_configure(config: pytest.Config) -> None:
    """Choose the first seed before a test module is imported."""
    global _first
    given = config.getoption("seed")
    _first = secrets.randbelow(1_000_000_000) + 1 if given == "fresh" else int(given)
    settings.register_profile("udo", derandomize=not _first, database=None, deadline=None)  # no deadline: the machine may be busy
    settings.load_profile("udo")
    if _first:
        config.option.hypothesis_seed = str(_first)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the seed, even in a quiet run: without it a failure cannot be repeated."""
    if _first:
        terminalreporter.write_line(f"the same once more: pytest --seed {_first}")


def seeds(count: int, deep: int = 0) -> list[Any]:
    """`count` seeds for `parametrize`; with all tests (`make deep`) at least `deep`."""
    return [*range(_first, _first + count), *map(long, range(_first + count, _first + deep))]


def examples(count: int) -> int:
    """`max_examples` of a property whose examples take much CPU time: a quarter of `count` in the gate."""
    return count // 4 if os.environ.get("UDO_GATE") else count
