"""Metadata of a call to a node manager: which node is to answer it, and proof that another node manager makes the call.

A certificate is not enough as proof; node managers of one registry share its token.

The token itself does not travel: the proof is derived from it for the node that is called, and is useless at another node.
"""

from __future__ import annotations

import hashlib
import hmac

# In the metadata of a call. NODE_HEADER: the node that is to answer, if it is not the one called.
NODE_HEADER = "udo-node"
PEER_HEADER = "udo-peer"


def peer_key(token: str, node: str) -> str:
    """The proof for a call to the node `node`; '' without a token, which no node accepts."""
    return hmac.new(token.encode(), f"udo node {node}".encode(), hashlib.sha256).hexdigest() if token else ""


def is_peer(shown: str, token: str, node: str) -> bool:
    """Whether `shown` proves that the caller of the node `node` has the registry's token."""
    return bool(token) and hmac.compare_digest(shown.encode(), peer_key(token, node).encode())
