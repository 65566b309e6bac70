"""Like `each`, with so much work per event that the platform's own is negligible."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

from udo_runtime import Operator

ROUNDS = 16


class Costly(Operator):
    """The event with a hash of hashes of its number."""

    def process(self, event: dict[str, Any], ctx: Any) -> Iterator[dict[str, Any]]:
        """One answer for every event."""
        digest = event["id"].to_bytes(8, "little")
        for _ in range(ROUNDS):
            digest = hashlib.sha256(digest).digest()
        yield {"id": event["id"], "card": event["card"], "n": digest[0]}
