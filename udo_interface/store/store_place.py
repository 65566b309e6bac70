"""The location of a state store, as Spark spells it, reached through pyarrow.fs; a file is complete under its name or not there.

An object store shows an object once it has been sent completely; elsewhere a draft is renamed. No file is appended to.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from udo_protocol.errors import UsageError
from udo_protocol.files import replace_file

if TYPE_CHECKING:
    from pyarrow import fs

# Spark's names of schemes -> pyarrow's.
_SCHEMES = {"s3a": "s3", "s3n": "s3"}
# Stores in which a file appears as a whole when it is closed, and renaming is copying.
OBJECT_STORES = {"s3", "gcs", "abfs"}
_URI = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]+):(?://([^/?]*))?([/?].*)?", re.DOTALL)
_FILE = re.compile(r"file:(?://(?:localhost)?)?(/[^/].*)", re.DOTALL)
# The first pyarrow with a URI option for sending a small file with one request instead of three.
_ONE_REQUEST = 21
_HINTS = {
    "s3": (
        "credentials and endpoint are taken from the environment of the driver and of every executor: AWS_ACCESS_KEY_ID, "
        "AWS_SECRET_ACCESS_KEY, AWS_ENDPOINT_URL (or s3://bucket/path?endpoint_override=host:port&scheme=http)"
    ),
    "hdfs": (
        "it takes Hadoop's native client on the driver and every executor: libjvm below JAVA_HOME, libhdfs below HADOOP_HOME or "
        "ARROW_LIBHDFS_DIR, and CLASSPATH from `hadoop classpath --glob`"
    ),
}


def located(location: str | os.PathLike[str]) -> str:
    """The location in the form for tasks: a URI, or an absolute path. UsageError if it cannot be either."""
    text = os.fspath(location)
    if not isinstance(text, str) or not text.strip():
        raise UsageError(f"store= expects a directory's path or URI, such as the query's checkpointLocation + '/udo', got {location!r}")
    if text.startswith("file:"):
        if (file := _FILE.fullmatch(text)) is None:
            raise UsageError(f"store={text!r}: expected file:/path or file:///path of a directory that all executors share")
        return file[1]
    if (uri := _URI.fullmatch(text)) is None:
        return os.path.abspath(os.path.expanduser(text))
    scheme, authority, rest = uri[1].lower(), uri[2], uri[3] or ""
    if authority is None:
        raise UsageError(f"store={text!r}: expected {scheme}://bucket/path or {scheme}://host:port/path, or a path")
    scheme = _SCHEMES.get(scheme, scheme)
    if ":" in (authority if scheme == "s3" else authority.rpartition("@")[0]):
        raise UsageError(
            f"store='{scheme}://...' expects {scheme}://bucket/path, got one with a secret, and a location is shown in plans and errors: "
            "leave it out; credentials are taken from the environment of the driver and of every executor"
        )
    return f"{scheme}://{authority}{rest}"


@functools.lru_cache(maxsize=16)
def reached(location: str) -> tuple[fs.FileSystem, str]:
    """The file system of a location from `located`, and the directory there. UsageError if pyarrow cannot reach it.

    The path is taken literally, as by Spark: `%20` is not a space, and a space need not be encoded. The text after `?` is
    pyarrow's options.
    """
    from pyarrow import fs  # not at the top: tasks without a store need not wait for it

    if (uri := _URI.fullmatch(location)) is None:
        return fs.LocalFileSystem(), location
    scheme, authority = uri[1], uri[2]
    path, _, options = (uri[3] or "").partition("?")
    if scheme == "s3" and int(pa.__version__.split(".")[0]) >= _ONE_REQUEST and "allow_delayed_open" not in options:
        options = "&".join(filter(None, (options, "allow_delayed_open=true")))
    try:
        files, root = fs.FileSystem.from_uri(f"{scheme}://{authority}/{options and f'?{options}'}")
    except (OSError, ImportError, pa.ArrowException) as e:
        raise unusable(location, e) from e
    below = "/".join(part for part in path.split("/") if part)
    return files, f"{root.rstrip('/')}/{below}" if root else below


def require_writable(location: str) -> None:
    """UsageError unless files can be written, read and removed there."""
    try:
        files, directory = reached(location)
        probe = f"{directory}/.probe-{secrets.token_hex(4)}"
        put(files, probe, b"udo")
        with files.open_input_stream(probe) as f:
            f.read()
        files.delete_file(probe)
    except (OSError, pa.ArrowException) as e:
        raise unusable(location, e) from e


def put(files: fs.FileSystem, path: str, data: bytes | pa.Buffer) -> None:
    """Write a file under that name, all of it or nothing; in a local directory even if the host crashes."""
    if files.type_name in OBJECT_STORES:
        with files.open_output_stream(path) as f:
            f.write(data)
        return
    files.create_dir(path.rpartition("/")[0])
    if files.type_name == "local":
        replace_file(Path(path), memoryview(data), mode=0o666, durable=True)  # the umask decides who may read it
        return
    draft = f"{path}.{secrets.token_hex(4)}.draft"
    try:
        with files.open_output_stream(draft) as f:
            f.write(data)
        files.move(draft, path)
    except BaseException:
        with contextlib.suppress(OSError):
            files.delete_file(draft)
        raise


def unusable(location: str, e: Exception) -> UsageError:
    """An error that says why, in one line, and what is expected."""
    return UsageError(
        f"store={location!r} cannot be used: {first_line(e)}. Expected a directory that the driver and the executors may write to: a path, "
        f"or a URI that pyarrow.fs reaches{hint(location)}"
    )


def first_line(e: Exception) -> str:
    """The first line of an error's text; the text for a missing libjvm has seventy."""
    return (str(e).splitlines() or [repr(e)])[0].rstrip(".")


def hint(location: str) -> str:
    """The requirements of such a location, as text to add to a sentence; '' if there are none."""
    told = _HINTS.get(location.partition("://")[0])
    return f"; {told}" if told else ""
