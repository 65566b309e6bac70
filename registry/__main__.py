"""`python -m registry`: check the arguments, take the data directory, serve until SIGTERM."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from dataclasses import replace
from pathlib import Path

from registry.config import RegistrySettings
from registry.folders import taken
from registry.http import auth
from registry.server import serve
from udo_protocol.certificates import Tls
from udo_protocol.errors import UdoError
from udo_protocol.listening import require_tls_beyond, with_port
from udo_protocol.registry import signing

EXAMPLE = "example: python -m registry --data /var/lib/udo/registry --listen 127.0.0.1:5000"


def main(arguments: list[str] | None = None) -> int:
    """Run the registry; exit code 0 after SIGTERM, 2 for a setting that cannot work, 3 when the application does not load."""
    parser = argparse.ArgumentParser("python -m registry", description=__doc__, epilog=EXAMPLE)
    parser.add_argument("--data", type=Path, required=True, help="directory of this process: address, port, and what has no other place")
    listen = "host:port (port 0: a free one, the same at each start) or unix:/path; the address is written to DATA/address"
    parser.add_argument("--listen", default="127.0.0.1:0", help=listen)
    parser.add_argument("--token-file", type=Path, help="file of write tokens, one a line; made if missing (default: SHARED/token)")
    database = "SQLAlchemy URL (default: UDO_DATABASE, where other users do not see its password, else SQLite in DATA)"
    parser.add_argument("--database", default=os.environ.get("UDO_DATABASE", ""), help=database)
    shared = "folder of images and token, the same for all processes of one PostgreSQL database (default: DATA)"
    parser.add_argument("--shared", type=Path, help=shared)
    keys = "directory of public keys *.pub: only versions signed by one of them are taken (default: no signature is asked for)"
    parser.add_argument("--trusted-keys", type=Path, help=keys)
    tls = "folder with ca.crt, tls.crt and tls.key: serve HTTPS to clients with a certificate; needed beyond this host"
    parser.add_argument("--tls", type=Path, help=tls)
    suspect = RegistrySettings.suspect_s
    suspected = f"a node with replicas, not heard of for this time, is replaced by those that hold its slots (default: {suspect:g})"
    parser.add_argument("--suspect-s", type=float, default=suspect, help=suspected)
    given = parser.parse_args(arguments)
    shared_folder = (given.shared or given.data).absolute()
    token_file = (given.token_file or shared_folder / "token").absolute()
    trusted = given.trusted_keys.absolute() if given.trusted_keys else None
    config = RegistrySettings(
        *(given.data.absolute(), token_file, given.listen, given.database, trusted, given.tls and given.tls.absolute()),
        shared_folder=shared_folder,
        suspect_s=given.suspect_s,
    )
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("alembic").setLevel(logging.WARNING)
    try:
        for folder in (config.data, config.shared):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.umask(0o077)  # the database and the files hold secrets
        with taken(config):
            auth.load_tokens(config.token_file)
            if config.trusted_keys is not None:
                signing.load_trusted(config.trusted_keys)
            if config.tls is None:
                require_tls_beyond(config.listen, "the registry")
            else:
                Tls.folder(config.tls).pem()
            return serve(replace(config, listen=with_port(config.listen, config.data / "port")))
    except (UdoError, OSError) as e:
        print(f"registry: {e}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
