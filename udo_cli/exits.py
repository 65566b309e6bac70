"""The exit codes of `udo`, named. Scripts rely on the numbers; they never change their meaning."""

from __future__ import annotations

from enum import IntEnum

from udo_protocol.errors import UdoError


class ExitCode(IntEnum):
    """The exit status of `udo`."""

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
    ExitCode.OK: "done",
    ExitCode.INTERNAL: "an internal error of udo (see --debug)",
    ExitCode.USAGE: "wrong arguments, manifest or input",
    ExitCode.NOT_FOUND: "no such operator, version, deployment or file",
    ExitCode.REFUSED: "refused: conflict, signature, or schemas, state or layers that do not fit",
    ExitCode.UNAVAILABLE: "registry, node or server unavailable, or a wait timed out",
    ExitCode.OPERATOR: "the operator failed",
    ExitCode.UNAUTHORIZED: "no valid token, or a certificate that is not accepted",
    ExitCode.ROLLED_BACK: "a canary was rolled back",
    ExitCode.DIFFERENT: "a diff found differences",
    ExitCode.NOTHING_COMPARED: "a diff found nothing to compare",
    ExitCode.INTERRUPTED: "interrupted",
}

_BY_CODE = {
    "usage": ExitCode.USAGE,
    "manifest": ExitCode.USAGE,
    "schema": ExitCode.REFUSED,
    "conflict": ExitCode.REFUSED,
    "signature": ExitCode.REFUSED,
    "refused": ExitCode.REFUSED,
    "state_lost": ExitCode.REFUSED,
    "state_elsewhere": ExitCode.REFUSED,
    "not_found": ExitCode.NOT_FOUND,
    "unauthorized": ExitCode.UNAUTHORIZED,
    "untrusted": ExitCode.UNAUTHORIZED,
    "unavailable": ExitCode.UNAVAILABLE,
    "node_away": ExitCode.UNAVAILABLE,
    "slots_away": ExitCode.UNAVAILABLE,
    "timeout": ExitCode.UNAVAILABLE,
    "server_lost": ExitCode.UNAVAILABLE,
    "lane_expired": ExitCode.UNAVAILABLE,
    "peer": ExitCode.UNAVAILABLE,
    "operator": ExitCode.OPERATOR,
}


def exit_for(error: UdoError) -> ExitCode:
    """The exit code of an error, by its wire code."""
    return _BY_CODE.get(error.code, ExitCode.INTERNAL)
