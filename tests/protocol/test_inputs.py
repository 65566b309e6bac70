"""Operators with several inputs: their manifests, and the event times of inputs of which one is behind."""

from __future__ import annotations

from typing import Any

import pytest

from udo_protocol.errors import ManifestError
from udo_protocol.formats import manifest
from udo_protocol.queue.event_times import behind, combined, fields, told
from udo_protocol.queue.frame import Header

TWO = {"trades": {"s": "string", "price": "double"}, "quotes": {"s": "string", "bid": "double"}}
GOOD = {"name": "match", "version": "1", "entry": "m:M", "key": "s", "output": {"s": "string"}}


def test_the_columns_of_all_inputs_stand_behind_the_one_that_names_the_input() -> None:
    read = manifest.parse({**GOOD, "input": TWO}, "operator.toml")
    assert list(read.input.items()) == [("input", "string"), ("s", "string"), ("price", "double"), ("bid", "double")]
    assert {name: schema.names for name, schema in read.input_schemas.items()} == {"trades": ["s", "price"], "quotes": ["s", "bid"]}
    assert manifest.parse(read.model_dump(mode="json"), "the registry's") == read
    assert read.keyed is not None and read.keyed["inputs"] == ["trades", "quotes"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"input": {"trades": TWO["trades"]}}, r"a single input has its columns in \[input\] itself"),
        ({"input": {**TWO, "n": "int64"}}, r"expected either columns or a table \[input.NAME\] for each input, got n = 'int64'"),
        ({"input": {**TWO, "key": {"s": "string"}}}, "input.key: expected a name of letters, digits and _ that is no option of a call"),
        ({"input": {**TWO, "a-b": {"s": "string"}}}, "input.a-b: expected a name of letters"),
        ({"input": {**TWO, "news": {"s": "string", "input": "string"}}}, "input.news: the column 'input' is taken"),
        ({"input": {**TWO, "news": {"s": "int64"}}}, "column 's' is int64, in another input string; use one type or two names"),
        ({"input": {**TWO, "news": {"n": "int64"}}}, "input.news: each input has the columns of key and event_time; this one lacks s"),
        ({"input": {**TWO, "news": {}}}, "expected either columns or a table"),
        ({"input": {"s": "string"}, "inputs": TWO}, r"several inputs are written as tables \[input.NAME\]"),
    ],
)
def test_a_manifest_of_several_inputs_that_is_wrong_says_what_is(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ManifestError, match=message):
        manifest.parse({**GOOD, **change}, "operator.toml")


def test_a_version_with_other_inputs_does_not_fit_the_queries_that_run() -> None:
    old, new = (manifest.parse({**GOOD, "input": i}, "operator.toml") for i in (TWO, {"trades": TWO["trades"], "news": TWO["quotes"]}))
    assert manifest.update_refusals(old, new) == ["input: events come from the inputs trades, quotes, the new version takes trades, news"]
    single = manifest.parse({**GOOD, "input": {"s": "string"}}, "operator.toml")
    assert "events come from the inputs trades, quotes, the new version takes a single one" in manifest.update_refusals(old, single)[0]


def test_event_times_go_by_the_input_that_is_behind_and_travel_as_they_are() -> None:
    both = combined([{"trades": 9, "quotes": 2}, {"trades": 7}, {"quotes": 4}])
    assert both == {"trades": 9, "quotes": 4}
    assert behind(both, ["trades", "quotes"]) == 4
    assert behind({"trades": 9}, ["trades", "quotes"]) is None
    assert behind({"t": -5}, ()) == -5 and behind({}, ()) is None
    for times in ({}, {"t": -5}, both):
        assert told(Header(**fields(times))) == times
    assert Header(**fields({"t": 3})).highest_us == 3
