"""What a call to a node manager says besides its request: which node is to answer it, and that another node manager makes it.

Not just a host with a certificate: node managers of one registry both have its token.

The token itself does not travel: what is shown is made from it for the node that is called, and of no use at another one.
"""

from __future__ import annotations

import hashlib
import hmac

# In the metadata of a call. NODE_HEADER: the node that is to answer it, if that is not the one that is called.
NODE_HEADER = "udo-node"
PEER_HEADER = "udo-peer"


def peer_key(token: str, node: str) -> str:
    """What a call to the node `node` shows; '' without a token, which no node accepts."""
    return hmac.new(token.encode(), f"udo node {node}".encode(), hashlib.sha256).hexdigest() if token else ""


def is_peer(shown: str, token: str, node: str) -> bool:
    """Whether a call to this node was made by one that has the registry's token."""
    return bool(token) and hmac.compare_digest(shown.encode(), peer_key(token, node).encode())
