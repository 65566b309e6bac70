"""A run in slices is put together from the newest ones, all of one commit."""

from __future__ import annotations

from typing import Any

from benchmarks.harness import record
from benchmarks.verification.exactly_once import Compared, sections, together


def cut(commit: str, first: int, lanes: int = 0, spark: int = 0, **more: Any) -> dict[str, Any]:
    def part(seeds: int) -> dict[str, Any]:
        return {"seeds": seeds, "runs": 2 * seeds, "faults": {"instance killed": seeds} if seeds else {}}

    return {
        "commit": commit,
        "arguments": {"first": first, "quick": False},
        **part(lanes + spark),
        "slowest_s": 1.0 + first,
        "mismatches": 0,
        "without_spark": part(lanes),
        "on_spark": part(spark),
        **more,
    }


def test_slices_add_up_and_no_seed_counts_twice() -> None:
    made = together(
        [
            cut("b", 30, lanes=30),  # older than a slice of another commit
            cut("a", 15, lanes=30),
            cut("b", 0, lanes=12),  # overlaps a newer slice
            cut("b", 0, lanes=10),
            cut("b", 10, lanes=5),
            cut("b", 0, lanes=200, broken="fence"),
            cut("b", 0, spark=3),
        ]
    )

    assert made is not None
    assert made["without_spark"] == {"seeds": 15, "runs": 30, "faults": {"instance killed": 15}}
    assert made["on_spark"]["seeds"] == 3
    assert (made["faults"], made["commit"], made["slowest_s"]) == ({"instance killed": 18}, "b", 11.0)


def test_without_a_full_run_there_is_nothing_to_put_together() -> None:
    assert together([cut("a", 0, lanes=6, arguments={"quick": True})]) is None


def test_what_befell_each_part_stands_in_a_column_of_its_own() -> None:
    made = together([cut("a", 0, lanes=3, spark=2), cut("a", 3, on_spark={"seeds": 1, "runs": 1, "faults": {"canary": 4}})])

    assert made is not None
    [_, faults] = sections(record.decode(Compared, made))
    assert faults.header[1:] == ("without Spark", "on Spark")
    assert list(faults.rows) == [("canary", "", "4"), ("instance killed", "3", "2")]


def test_seeds_over_two_nodes_stand_in_a_column_where_there_were_any() -> None:
    made = together(
        [cut("a", 0, lanes=3, two_nodes={"seeds": 2, "runs": 5, "faults": {"node lost with its disk": 1}}), cut("a", 3, lanes=1)]
    )

    assert made is not None
    seeds, faults = sections(record.decode(Compared, made))
    assert list(seeds.rows)[-1] == ("over two nodes", "2", "5", "0")
    assert faults.header[1:] == ("without Spark", "over two nodes")
