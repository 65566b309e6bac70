"""Combinations of options that no run supports are refused as such, before anything starts."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks.__main__ import SUITES, main
from benchmarks.suites import between_nodes, node_loss, throughput
from udo_protocol.errors import UsageError


def test_options_that_exclude_each_other_are_refused_without_a_traceback() -> None:
    done = CliRunner().invoke(main, ["exactly_once", "--quick", "--auto"])

    assert done.exit_code == 2
    assert "--auto: expected --slots 2 or more" in done.stderr


@pytest.mark.parametrize("suite", [node_loss, between_nodes], ids=lambda suite: suite.__name__.rpartition(".")[2])
def test_a_benchmark_that_runs_processes_only_is_not_recorded_as_one_of_containers(suite: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def started(*_: object, **__: object) -> None:
        raise AssertionError("nodes were started")

    monkeypatch.setattr(suite, "nodes", started)
    with pytest.raises(UsageError, match="--driver docker"):
        suite.run(quick=True, driver="docker", seed=1)


def test_the_help_names_the_number_of_contenders() -> None:
    words = {9: "nine", 10: "ten", 11: "eleven"}
    assert f"in {words[len(throughput.CONTENDERS)]} ways" in SUITES["throughput"]
