"""The registry's settings: one frozen value, built by `__main__` from arguments and the environment, which no other module reads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class RegistrySettings:
    """The registry's folders, its address, and its bounds."""

    data: Path
    token_file: Path
    listen: str = "127.0.0.1:0"
    database_url: str = ""
    # Directory of public keys; if set, an image becomes a version only if signed by one of them.
    trusted_keys: Path | None = None
    # Folder of certificates (udo_protocol/certificates.py); if set, only HTTPS is served, to clients with a certificate of their own.
    tls: Path | None = None
    # Folder that all processes of one PostgreSQL database share: images, and the token; None: `data`.
    shared_folder: Path | None = None

    # Each node's long poll and each watched update hold one thread; idle threads cost little.
    threads: int = 256
    # Threads that no long poll or stream may take, so that reports and updates always get through.
    reserved_threads: int = 32
    # A node not heard from for this long counts as away: four heartbeats.
    node_live_s: float = 10.0
    # A node not heard from for this long is replaced by the replicas of its slots, or given up as a replica: four of the heartbeats that
    # nodes with replicas send. Longer than a pause of a machine short of processor time, short compared with Spark's time-outs.
    suspect_s: float = 2.0
    # A node not heard from for this long is forgotten; a week outlasts a long weekend.
    node_kept_s: float = 7 * 86400.0
    # Longest wait of one long poll; below the idle time-outs of usual proxies.
    poll_max_s: float = 55.0
    # A stream sends something at least this often, so that a vanished reader is noticed.
    stream_beat_s: float = 10.0
    # A blob that no manifest refers to is kept this long after a push sent or saw it: no push takes longer.
    unused_kept_s: float = 86400.0
    # An upload that broke off is kept this long after its last byte, so that it can be resumed after a restart or a network failure.
    upload_kept_s: float = 3600.0
    # Uploads at once; a push has a few. A client that only begins uploads must not fill the disk with names.
    uploads_most: int = 1000
    # A client that neither sends nor takes a byte for this long is gone.
    silence_s: float = 60.0
    # Bound of a client's TLS handshake, in which it proves its identity; a handshake takes a few round trips.
    handshake_s: float = 10.0
    # Largest layer: a Python environment with a model in it is a few GB.
    blob_bytes: int = 8 << 30
    # The size of manifests that the OCI distribution specification asks every registry to accept.
    manifest_bytes: int = 4 << 20
    # Largest request of the JSON API; it may carry files of a deployment in base64.
    body_bytes: int = 16 << 20

    @property
    def shared(self) -> Path:
        """Folder of images and token."""
        return self.shared_folder or self.data

    @property
    def blobs(self) -> Path:
        """Folder of the images' files."""
        return self.shared / "blobs"

    @property
    def database(self) -> str:
        """SQLAlchemy URL; by default SQLite in the data directory."""
        return self.database_url or f"sqlite:///{self.data / 'registry.db'}"
