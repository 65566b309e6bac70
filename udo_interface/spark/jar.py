"""The jar of the JVM path: beside its sources (`make setup` puts it there, and the wheel has it), else compiled at first use.

Spark's internals change from one minor version to the next, so a jar serves one minor version. The compiler comes from Spark's own jars;
nothing is downloaded. `python -m udo_interface.spark.jar` compiles for the installed Spark, unless that has been done.
"""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from threading import Lock

from udo_interface.java import cache_dir, java_home
from udo_protocol.errors import Unavailable, UsageError

SOURCES = Path(__file__).parents[1] / "jvm"
# Compiling takes half a minute on a busy laptop; a compiler that takes ten times as long hangs.
COMPILE_TIMEOUT_S = 300.0
# JVM options for a compiler that runs for seconds only.
_JVM = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xss8m")
_compiling = Lock()
log = logging.getLogger(__name__)


def name(spark: str, sources: Path = SOURCES) -> str:
    """File name of the jar made from these sources for a version of Spark."""
    digest = hashlib.blake2b(digest_size=6)
    for source in sorted(sources.glob("*.scala")):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return f"udo-spark-{'.'.join(spark.split('.')[:2])}-{digest.hexdigest()}.jar"


def jar(spark: str, env: Mapping[str, str] | None = None) -> Path:
    """The jar for that version of Spark, if need be compiled into the user's cache first. Unavailable says why there is none."""
    if (found := SOURCES / (wanted := name(spark))).exists():
        return found
    try:
        found = cache_dir(os.environ if env is None else env) / "jvm" / wanted
        with _compiling:
            if not found.exists():
                log.warning("compiling the JVM path for Spark %s, once: %s", spark, found)
                build(found, env)
    except (OSError, UsageError) as e:
        raise Unavailable(f"the jar of the JVM path for Spark {spark} cannot be kept: {e}; set XDG_CACHE_HOME to a folder for it") from e
    return found


def build(target: Path, env: Mapping[str, str] | None = None) -> None:
    """Compile the sources against the jars of Spark; Unavailable without a Java, or with the compiler's output."""
    env = os.environ if env is None else env
    home = java_home(env)
    java = str(home / "bin" / "java") if home else shutil.which("java", path=env.get("PATH")) or "java"
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f".{secrets.token_hex(4)}-{target.name}")  # containers that share a cache may have equal process ids
    compiler = ["scala.tools.nsc.Main", "-usejavacp", "-deprecation:false", "-d", str(draft)]
    command = [java, *_JVM, "-cp", f"{spark_jars(env)}/*", *compiler, *map(str, sorted(SOURCES.glob("*.scala")))]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S, check=False)
        if done.returncode or not draft.exists():
            raise Unavailable(f"the JVM path does not compile against this Spark: {(done.stdout + done.stderr)[-3000:].strip()}")
        draft.replace(target)
    except (OSError, subprocess.TimeoutExpired) as e:
        raise Unavailable(f"the JVM path cannot be compiled: {e}") from e
    finally:
        draft.unlink(missing_ok=True)


def spark_jars(env: Mapping[str, str]) -> Path:
    """The folder with Spark's jars: SPARK_HOME's, else the installed PySpark's."""
    if home := env.get("SPARK_HOME"):
        return Path(home) / "jars"
    import pyspark

    return Path(pyspark.__file__).parent / "jars"


def main() -> int:
    """Compile the jar if it is missing. The exit status is 0 also without a Java, which only the JVM path and Spark itself need."""
    import pyspark

    target = SOURCES / name(pyspark.__version__)
    if target.exists():
        return 0
    try:
        java_home()
    except Unavailable as e:
        print(f"the JVM path is not compiled now, but at its first use: {e}", file=sys.stderr)
        return 0
    for former in SOURCES.glob("*.jar"):
        former.unlink()
    try:
        build(target)
    except Unavailable as e:
        print(e, file=sys.stderr)
        return 1
    print(f"compiled {target.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
