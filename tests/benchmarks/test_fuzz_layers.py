"""The fuzzing of layers on a small scale, and the faults that it must find."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from benchmarks.verification import fuzz_layers
from benchmarks.verification.fuzz_worker import Violation, judge
from benchmarks.verification.hostile_layers import CODE, OPERATOR, packed
from benchmarks.verification.mutated_layers import layer


def test_some_hundred_mutated_layers_are_refused_or_unpacked_exactly() -> None:
    found = fuzz_layers.run(quick=True, driver="process", seed=3, layers=600)

    assert found.unpacked + found.refused == 600
    assert found.unpacked > 50 and len(found.reasons) > 15, found


def test_a_seed_gives_the_same_layer_again() -> None:
    assert layer(7, "/canary") == layer(7, "/canary") != layer(8, "/canary")


@pytest.mark.parametrize(
    ("said", "honest"),
    [
        ({"refused": "it is truncated"}, True),
        ({"refused": "it is damaged: IndexError: list index out of range"}, False),
        ({"node": "No space left on device"}, False),
        ({"bytes": 1, "entries": 1}, False),
    ],
)
def test_a_wrong_tree_a_wrong_refusal_and_an_unforeseen_error_are_violations(tmp_path: Path, said: dict[str, object], honest: bool) -> None:
    with pytest.raises(Violation):
        judge(said, packed([OPERATOR]), honest, tmp_path)


def test_a_tree_that_tarfile_finds_as_well_is_no_violation(tmp_path: Path) -> None:
    (tmp_path / "op.py").write_text("x = 1\n")
    assert judge({"bytes": 1, "entries": 1}, packed([OPERATOR]), True, tmp_path) == "unpacked"
    assert gzip.decompress(packed([OPERATOR])).startswith(CODE.encode())
