"""Settings of a session whose checkpoints and files lie on this machine's disk, so that no process starts for each file Spark makes.

Hadoop's local file system runs `chmod` for each new file and directory where Hadoop's native library is missing, as it is in PySpark, and
a micro-batch makes several. `LocalFiles` (jvm/LocalFiles.scala) asks the kernel instead.
"""

from __future__ import annotations

from udo_interface.spark.jar import jar
from udo_protocol.errors import Unavailable

_CLASSES = {"spark.hadoop.fs.file.impl": "LocalFiles", "spark.hadoop.fs.AbstractFileSystem.file.impl": "LocalFilesContext"}


def settings() -> dict[str, str]:
    """Settings for starting a session in this process: Spark looks for the classes before a jar could be added. Empty without a jar."""
    import pyspark

    try:
        there = jar(pyspark.__version__)
    except Unavailable:  # each call reports the reason
        return {}
    return {**{name: f"org.apache.spark.sql.udo.{of}" for name, of in _CLASSES.items()}, "spark.driver.extraClassPath": str(there)}
