"""`python -m registry`: check the arguments, take the data directory, serve until SIGTERM."""

from __future__ import annotations

import argparse
import fcntl
import logging
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import IO

from registry.config import RegistrySettings
from registry.http import auth
from registry.http.listening import settled
from registry.http.server import serve
from udo_protocol.errors import Conflict, UdoError
from udo_protocol.registry import signing

# The worker of a killed registry notices within one second that its master is gone, and ends an upload under way within five; until
# then it may still commit.
LEFTOVER_S = 8.0
EXAMPLE = "example: python -m registry --data /var/lib/udo/registry --listen 127.0.0.1:5000"


def main(arguments: list[str] | None = None) -> int:
    """Run the registry; exit code 0 after SIGTERM, 2 for a setting that cannot work, 3 when the application does not load."""
    parser = argparse.ArgumentParser("python -m registry", description=__doc__, epilog=EXAMPLE)
    parser.add_argument("--data", type=Path, required=True, help="directory of blobs, database, token and address")
    listen = "host:port (port 0: a free one, the same at each start) or unix:/path; the address is written to DATA/address"
    parser.add_argument("--listen", default="127.0.0.1:0", help=listen)
    parser.add_argument("--token-file", type=Path, help="file of write tokens, one a line; made if missing (default: DATA/token)")
    parser.add_argument("--database", default="", help="SQLAlchemy URL (default: SQLite in DATA)")
    keys = "directory of public keys *.pub: only versions signed by one of them are taken (default: no signature is asked for)"
    parser.add_argument("--trusted-keys", type=Path, help=keys)
    given = parser.parse_args(arguments)
    token_file = (given.token_file or given.data / "token").absolute()
    trusted = given.trusted_keys.absolute() if given.trusted_keys else None
    config = RegistrySettings(given.data.absolute(), token_file, given.listen, given.database, trusted)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("alembic").setLevel(logging.WARNING)
    try:
        config.data.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.umask(0o077)  # the database and the files hold secrets
        with _taken(config.data):
            auth.load_tokens(config.token_file)
            if config.trusted_keys is not None:
                signing.load_trusted(config.trusted_keys)
            return serve(replace(config, listen=settled(config.listen, config.data)))
    except (UdoError, OSError) as e:
        print(f"registry: {e}", file=sys.stderr)
        return 2


def _taken(data: Path) -> IO[str]:
    """A lock on the data directory that lives as long as the process: two registries would not see each other's commits."""
    file = open(data / "lock", "a+")  # noqa: SIM115 - held open on purpose
    deadline = time.monotonic() + LEFTOVER_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return file
        except BlockingIOError:
            if time.monotonic() > deadline:
                file.close()
                raise Conflict(f"another registry already serves {data}; stop it first, or give this one another --data") from None
            time.sleep(0.05)


if __name__ == "__main__":
    sys.exit(main())
