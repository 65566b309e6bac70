"""Notebooks: deployments as a table, and errors that say what is wrong instead of where Spark noticed it. In a real IPython shell."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from traitlets.config import Config

from tests.support.keyed_stream import COUNT, MANIFEST
from udo_interface import udo

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.udo_interface.conftest import Platform

FAILS = """
from udo_runtime import Operator
class Fails(Operator):
    def process(self, event, ctx):
        if event["id"] == 7:
            raise ValueError("seven <is> too much")
        yield event
"""


class Notebook:
    """Runs cells; returns what each shows."""

    def __init__(self, shell: InteractiveShell) -> None:
        self._shell = shell

    def __call__(self, cell: str) -> str:
        with capture_output() as shown:
            self._shell.run_cell(cell)
        return str(shown.stdout + shown.stderr)

    def html(self, expression: str) -> str:
        """Return what a notebook shows for the value of a cell's last line."""
        data, _ = self._shell.display_formatter.format(self._shell.ev(expression))
        return str(data["text/html"])


@pytest.fixture
def notebook(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Notebook]:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    monkeypatch.delenv("UDO_DEBUG", raising=False)
    config = Config()
    config.HistoryManager.enabled = False
    config.InteractiveShell.colors = "nocolor"
    shell = InteractiveShell(config=config, user_ns={"spark": spark, "udo": udo})
    shell.display_formatter.active_types = ["text/plain", "text/html"]
    yield Notebook(shell)
    shell.reset(new_session=False)


def test_what_can_be_called_is_a_table(notebook: Notebook, platform: Platform) -> None:
    stateless, keyed = platform.operator(description="Passes <on>."), platform.operator(COUNT, **MANIFEST)
    rows: dict[str, Any] = {d.deployment: d for d in udo.ls()}
    assert (rows[keyed].version, rows[keyed].key, rows[keyed].nodes) == ("1", ("k",), {"n1": "answering"})
    text = notebook("udo.ls()")
    assert all(any(name in line and "n1: answering" in line for line in text.splitlines()) for name in (stateless, keyed))
    table = notebook.html("udo.ls()")
    assert f"<td>{keyed}</td>" in table and "<th>deployment</th>" in table
    handle = notebook.html(f"udo({stateless!r})")
    assert "Passes &lt;on&gt;." in handle and "id <i>int64</i>" in handle and "n1: answering" in handle
    assert "key=&#x27;k&#x27;" in notebook.html(f"udo({keyed!r})")


def test_a_handle_of_what_is_not_there_says_so_and_fails_no_cell(notebook: Notebook) -> None:
    assert "nobody" in notebook.html("udo('nobody')")
    assert "no registry" in notebook.html("udo('nobody', registry='http://127.0.0.1:9')") or "127.0.0.1:9" in notebook.html(
        "udo('nobody', registry='http://127.0.0.1:9')"
    )


def test_an_error_of_a_call_is_its_message(notebook: Notebook, platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    name = platform.operator()
    cell = f"udo({name!r})(spark.createDataFrame([(1,)], 'idd long'))"
    shown = notebook(cell).strip()
    assert shown.startswith("SchemaError: ") and "near names: idd" in shown and len(shown.splitlines()) == 1
    monkeypatch.setenv("UDO_DEBUG", "1")
    assert "call.py" in notebook(cell)


@pytest.mark.long
def test_an_operators_failure_is_shown_without_sparks_frames(notebook: Notebook, platform: Platform) -> None:
    name = platform.operator(FAILS, entry="op:Fails")
    cell = f"udo({name!r})(spark.range(10)).collect()"
    assert "Py4J" in notebook(cell) or "py4j" in notebook(cell)
    notebook("%load_ext udo_interface.notebook")
    shown = notebook(cell).strip()
    assert shown.startswith("OperatorError: ") and "ValueError: seven <is> too much" in shown and "op.py" in shown
    assert "pyspark" not in shown and "py4j" not in shown and "scala" not in shown
    assert len(shown.splitlines()) < 25
    assert "py4j" in notebook("%tb"), "all of it is there for who asks"
    assert "ZeroDivisionError" in notebook("1 / 0")
    notebook("%unload_ext udo_interface.notebook")
    assert "py4j" in notebook(cell)
