"""A real S3 server for tests, SeaweedFS in one process on loopback, and a relay in front of it that stops when told to."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path

from pyarrow import fs

from tests.conftest import bound

START_TIMEOUT_S = 60
_ROLES = ("master", "volume", "filer", "s3")
# The variables that AWS clients read; no metadata service is asked for anything else.
ENVIRONMENT = {"AWS_ACCESS_KEY_ID": "udo", "AWS_SECRET_ACCESS_KEY": "secret-of-udo", "AWS_EC2_METADATA_DISABLED": "true"}


def program() -> str | None:
    """Return the path of SeaweedFS' program, from this environment's wheel or PATH."""
    return shutil.which("weed", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))


class S3Server:
    """The server knows one user, who has all rights; a bucket must be made before it is written to."""

    def __init__(self, weed: str, home: Path) -> None:
        self._home = home
        user = {
            "name": "udo",
            "credentials": [{"accessKey": ENVIRONMENT["AWS_ACCESS_KEY_ID"], "secretKey": ENVIRONMENT["AWS_SECRET_ACCESS_KEY"]}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
        (home / "s3.json").write_text(json.dumps({"identities": [user]}))
        (home / "data").mkdir()
        self._ports = _free_ports(2 * len(_ROLES))
        self.port = self._ports[_ROLES.index("s3")]
        command = [weed, "-logtostderr", "server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-dir={home}/data"]
        command += [f"-{role}.port={port}" for role, port in zip(_ROLES, self._ports, strict=False)]
        command += [f"-{role}.port.grpc={port}" for role, port in zip(_ROLES, self._ports[len(_ROLES) :], strict=True)]
        command += ["-s3", f"-s3.config={home}/s3.json", "-s3.autoCreateBucket=false", "-s3.port.iceberg=0", "-s3.port.lance=0"]
        command += ["-volume.max=20", "-volume.minFreeSpace=0", "-master.volumeSizeLimitMB=64"]
        command += [f"-{role}.localSocket={home}/{role}.sock" for role in ("filer", "s3")]
        with (home / "log").open("wb") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def start(self, bucket: str) -> None:
        """Wait until the server takes objects into a new bucket."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                self.files().create_dir(bucket)
                with self.files().open_output_stream(f"{bucket}/first") as f:
                    f.write(b"x")
                self.files().delete_file(f"{bucket}/first")
                return
            except OSError as e:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise TimeoutError(f"no S3 server after {START_TIMEOUT_S} s: {e}\n{(self._home / 'log').read_text()[-2000:]}") from e
                time.sleep(0.05)

    def files(self) -> fs.S3FileSystem:
        """Return a file system that connects to the server directly, with all rights."""
        return fs.S3FileSystem(
            access_key=ENVIRONMENT["AWS_ACCESS_KEY_ID"],
            secret_key=ENVIRONMENT["AWS_SECRET_ACCESS_KEY"],
            endpoint_override=f"127.0.0.1:{self.port}",
            scheme="http",
            region="us-east-1",
            allow_bucket_creation=True,
        )

    def names(self, below: str) -> list[str]:
        """Return the names of all objects below bucket/path, relative to it."""
        found = self.files().get_file_info(fs.FileSelector(below, recursive=True, allow_not_found=True))
        return sorted(info.path[len(below) + 1 :] for info in found if info.type == fs.FileType.File)

    def stop(self) -> None:
        """Stop at once; its data is not kept."""
        self._process.kill()
        self._process.wait(bound(10))
        for role in _ROLES:
            for port in self._ports:
                Path(f"/tmp/seaweedfs-{role}-grpc-{port}.sock").unlink(missing_ok=True)


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        return [stack.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1] for _ in range(count)]


class Relay:
    """Forwards connections to a port. After `budget` bytes from clients it forwards no more, and if it `cuts`, ends all connections."""

    def __init__(self, upstream: int, budget: int, cuts: bool) -> None:
        self._upstream, self._left, self._cuts = upstream, budget, cuts
        self.spent = threading.Event()
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Relay:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        self._close_all()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client = self._listener.accept()[0]
                if self.spent.is_set() and self._cuts:
                    client.close()
                    continue
                server = socket.create_connection(("127.0.0.1", self._upstream))
                with self._lock:
                    self._open |= {client, server}
                threading.Thread(target=self._pass_on, args=(client, server, True), daemon=True).start()
                threading.Thread(target=self._pass_on, args=(server, client, False), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket, counted: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if counted and not self._granted(len(data)):
                    return
                sink.sendall(data)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    def _granted(self, size: int) -> bool:
        with self._lock:
            self._left -= size
            if self._left >= 0:
                return True
        self.spent.set()
        if self._cuts:
            self._close_all()
        return False

    def _close_all(self) -> None:
        with self._lock:
            for s in self._open:
                with suppress(OSError):
                    s.shutdown(socket.SHUT_RDWR)
                s.close()
            self._open.clear()
