"""An operator with a library that Spark's environment could not hold: two releases of one package from the index, in one job."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from packaging.requirements import Requirement
from pyspark.sql import functions as F

from tests.conftest import require
from udo_cli.packing.layers import Layer
from udo_cli.packing.requirements import current_target, dependencies_layer
from udo_interface import udo
from udo_protocol.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.udo_interface.conftest import Platform

# A release of the library through which PySpark talks to Java; PySpark cannot start with this one.
OWN = "0.10.9.5"
SOURCE = """
from py4j.version import __version__
from udo_runtime import operator
@operator
def run(batch):
    return {"spark": batch.column("spark"), "own": [__version__] * batch.num_rows}
"""


@pytest.fixture
def own() -> Iterator[Layer]:
    """The dependencies of an operator that requires this release, as `udo push` packs them."""
    with tempfile.TemporaryDirectory() as cache:
        try:
            layer = dependencies_layer([f"py4j=={OWN}"], *current_target(), Path.cwd(), Path(cache), lambda _: None)
        except UsageError as e:
            require("package index", str(e))
        assert layer is not None
        yield layer


def test_an_operator_brings_a_release_that_contradicts_sparks_and_each_side_uses_its_own(
    spark: SparkSession, platform: Platform, own: Layer
) -> None:
    (needed,) = (r for r in map(Requirement, metadata.requires("pyspark") or []) if r.name == "py4j")
    assert OWN not in needed.specifier

    @F.udf("string")  # runs in the Python worker, which then calls the operator
    def seen() -> str:
        from py4j.version import __version__

        return str(__version__)

    name = platform.operator(SOURCE, input={"spark": "string"}, output={"spark": "string", "own": "string"}, dependencies=own)
    rows = udo(name)(spark.range(3).select(seen().alias("spark"))).collect()

    assert [tuple(r) for r in rows] == [(metadata.version("py4j"), OWN)] * 3
