"""Files of a local session are made without a process for each, with the modes that Hadoop's own file system gives them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.conftest import bound, require
from udo_interface.spark import jar
from udo_protocol.errors import Unavailable

pytestmark = pytest.mark.long

QUERY = """
    import sys
    from udo_interface import local_files
    from udo_interface.java import QUIET, spark_session
    work, ours = sys.argv[1], sys.argv[2] == "ours"
    spark = spark_session("files", **QUIET, **(local_files.settings() if ours else {}))
    spark.range(10).write.parquet(f"{work}/in dir")
    stream = spark.readStream.schema("id long").parquet(f"{work}/in dir")
    writer = stream.writeStream.format("parquet").option("checkpointLocation", f"{work}/ckpt").trigger(availableNow=True)
    writer.start(f"{work}/out").awaitTermination()
    assert spark.read.parquet(f"{work}/out").count() == 10
"""


def modes(folder: Path) -> dict[str, str]:
    """Return the permissions of each file and directory, without the random parts of names."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder)).split("part-")[0]
        found[f"{name}{'part' * ('part-' in path.name)}{path.suffix}"] = oct(path.stat().st_mode)
    return found


@pytest.fixture(scope="module")
def made(java: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[dict[str, str], int]]:
    """File system -> the modes of the files that a query left, and how often `chmod` was started meanwhile."""
    from pyspark import __version__

    try:
        jar.jar(__version__)
    except Unavailable as e:
        require("java", str(e))
    found = {}
    for whose in ("ours", "hadoop"):
        top = tmp_path_factory.mktemp(whose)
        (top / "bin").mkdir()
        (top / "work").mkdir()
        chmod = top / "bin" / "chmod"
        chmod.write_text(f'#!/bin/sh\necho "$@" >> {top}/started\nexec /bin/chmod "$@"\n')
        chmod.chmod(0o755)
        run = [sys.executable, "-c", textwrap.dedent(QUERY), str(top / "work"), whose]
        env = {**os.environ, "PATH": f"{top / 'bin'}:{os.environ['PATH']}"}
        done = subprocess.run(run, env=env, capture_output=True, text=True, timeout=bound(180), check=False, umask=0o027)
        assert done.returncode == 0, done.stderr[-3000:]
        started = (top / "started").read_text().splitlines() if (top / "started").exists() else []
        found[whose] = modes(top / "work"), sum(str(top / "work") in line for line in started)
    return found


def test_a_query_starts_no_process_for_the_files_it_makes(made: dict[str, tuple[dict[str, str], int]]) -> None:
    assert made["ours"][1] == 0
    if made["hadoop"][1] == 0:
        pytest.fail("Hadoop's own file system starts none either: udo_interface/local_files.py is of no use any more")


def test_files_have_the_modes_that_hadoops_own_file_system_gives_them(made: dict[str, tuple[dict[str, str], int]]) -> None:
    assert made["ours"][0] == made["hadoop"][0]
    assert len(json.dumps(made["ours"][0])) > 100
