"""The exit codes of `udo`, named. Scripts rely on the numbers; they never change their meaning."""

from __future__ import annotations

from enum import IntEnum

from udo_protocol.errors import UdoError


class Exit(IntEnum):
    """What a finished `udo` says to the shell."""

    OK = 0
    INTERNAL = 1
    USAGE = 2
    NOT_FOUND = 3
    REFUSED = 4
    UNAVAILABLE = 5
    OPERATOR = 6
    UNAUTHORIZED = 7
    ROLLED_BACK = 8
    DIFFERENT = 9
    NOTHING_COMPARED = 10
    INTERRUPTED = 130


MEANING = {
    Exit.OK: "done",
    Exit.INTERNAL: "a fault of udo itself (see --debug)",
    Exit.USAGE: "wrong arguments, manifest or input",
    Exit.NOT_FOUND: "no such operator, version, deployment or file",
    Exit.REFUSED: "refused: conflict, signature, or schemas, state or layers that do not fit",
    Exit.UNAVAILABLE: "registry, node or server away, or a wait timed out",
    Exit.OPERATOR: "the operator failed",
    Exit.UNAUTHORIZED: "no valid token",
    Exit.ROLLED_BACK: "a canary was rolled back",
    Exit.DIFFERENT: "a diff found differences",
    Exit.NOTHING_COMPARED: "a diff found nothing to compare",
    Exit.INTERRUPTED: "interrupted",
}

_BY_CODE = {
    "usage": Exit.USAGE,
    "manifest": Exit.USAGE,
    "schema": Exit.REFUSED,
    "conflict": Exit.REFUSED,
    "signature": Exit.REFUSED,
    "refused": Exit.REFUSED,
    "state_lost": Exit.REFUSED,
    "state_elsewhere": Exit.REFUSED,
    "not_found": Exit.NOT_FOUND,
    "unauthorized": Exit.UNAUTHORIZED,
    "unavailable": Exit.UNAVAILABLE,
    "node_away": Exit.UNAVAILABLE,
    "timeout": Exit.UNAVAILABLE,
    "server_lost": Exit.UNAVAILABLE,
    "lane_expired": Exit.UNAVAILABLE,
    "peer": Exit.UNAVAILABLE,
    "operator": Exit.OPERATOR,
}


def exit_for(error: UdoError) -> Exit:
    """The exit code of an error, by its wire code."""
    return _BY_CODE.get(error.code, Exit.INTERNAL)
