"""The registry's settings: one frozen value, built by `__main__` from arguments and the environment; nothing else reads that."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class RegistrySettings:
    """Where the registry keeps its data, where it listens, and the numbers that bound it."""

    data: Path
    token_file: Path
    listen: str = "127.0.0.1:0"
    database_url: str = ""
    # Directory of public keys; with one, an image becomes a version only if signed by one of them.
    trusted_keys: Path | None = None
    # Folder of certificates (udo_protocol/certificates.py); with one, only HTTPS is served, to clients that show one themselves.
    tls: Path | None = None
    # Folder that all processes of one PostgreSQL database have in common: images, and the token; None: `data`.
    shared_folder: Path | None = None

    # Every node holds one thread with its long poll, every watched update another; idle threads cost little.
    threads: int = 256
    # Threads that no long poll or stream may take, so that reports and updates always get through.
    reserved_threads: int = 32
    # A node not heard of for this long counts as away: four heartbeats.
    node_live_s: float = 10.0
    # A node not heard of for this long is replaced by the replicas of its slots, or given up as a replica: four of the heartbeats that
    # nodes with replicas send. Longer than a pause of a machine short of processor time, short beside Spark's time-outs.
    suspect_s: float = 2.0
    # A node not heard of for this long is forgotten; a week outlasts a long weekend.
    node_kept_s: float = 7 * 86400.0
    # Longest wait of one long poll; below the idle time-outs of usual proxies.
    poll_max_s: float = 55.0
    # A stream says something at least this often, so that a vanished reader is noticed.
    stream_beat_s: float = 10.0
    # A blob that no manifest refers to is kept this long after a push sent or saw it: no push takes longer.
    unused_kept_s: float = 86400.0
    # An upload that broke off is kept this long after its last byte, to be resumed: a machine was restarted, a network was away.
    upload_kept_s: float = 3600.0
    # Uploads at once; a push has a few, and a client that is only ever beginning them must not fill the disk with names.
    uploads_most: int = 1000
    # A client that neither sends nor takes a byte for this long is gone.
    silence_s: float = 60.0
    # Who connects proves who it is within this time; a handshake takes a few round trips.
    handshake_s: float = 10.0
    # One layer: a Python environment with a model in it is a few GB.
    blob_bytes: int = 8 << 30
    # What the OCI distribution specification asks every registry to accept.
    manifest_bytes: int = 4 << 20
    # A request of the JSON API; it may carry files of a deployment in base64.
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
        """SQLAlchemy URL; SQLite in the data directory unless told otherwise."""
        return self.database_url or f"sqlite:///{self.data / 'registry.db'}"
