"""Confines itself by Landlock, then executes the program: `confine.py READ ... -- WRITE ... -- PROGRAM ...`.

It may read below the first paths, read and write below the second, and use no TCP, as far as the kernel knows these rights; neither it nor
its descendants can undo that. A script of the standard library.
"""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import sys

# System calls and rights as in <linux/landlock.h>, the same on all machines.
_CREATE, _ADD, _RESTRICT = 444, 445, 446
_PR_SET_NO_NEW_PRIVS = 38
_READ = 1 << 0 | 1 << 2 | 1 << 3  # execute, read a file, read a directory
_OF_FILES = 1 << 0 | 1 << 1 | 1 << 2 | 1 << 14 | 1 << 15
_TCP, _SCOPES = 3, 3  # bind and connect; abstract sockets and signals
_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int, what: str) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")
    return result


def version() -> int:
    """The kernel's version of Landlock: from 4 on it knows TCP, from 6 on signals. OSError if there is none or it is not allowed."""
    return _checked(_libc.syscall(_CREATE, None, ctypes.c_size_t(0), 1), "Landlock")


def confine(reads: list[str], writes: list[str]) -> None:
    """Confine this process and its descendants; OSError if this kernel has no Landlock or does not allow it."""
    there = version()
    rights = (1 << {1: 13, 2: 14, 3: 15, 4: 15}.get(there, 16)) - 1
    known = 8 if there < 4 else 16 if there < 6 else 24
    attributes = struct.pack("=QQQ", rights, _TCP, _SCOPES)[:known]
    ruleset = _checked(_libc.syscall(_CREATE, attributes, ctypes.c_size_t(known), 0), "a Landlock ruleset")
    for path, allowed in [*((p, _READ) for p in reads), *((p, rights) for p in writes)]:
        try:
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        held = rights & allowed & (-1 if os.path.isdir(path) else _OF_FILES)
        _checked(_libc.syscall(_ADD, ruleset, 1, struct.pack("=Qi", held, fd), 0), f"a Landlock rule for {path}")
        os.close(fd)
    _checked(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no new privileges")
    _checked(_libc.syscall(_RESTRICT, ruleset, 0), "Landlock")
    os.close(ruleset)


if __name__ == "__main__":
    first = sys.argv.index("--")
    second = sys.argv.index("--", first + 1)
    confine(sys.argv[1:first], sys.argv[first + 1 : second])
    program = sys.argv[second + 1 :]
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # ignored by Python
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(program[0], program)
    except OSError as e:
        sys.exit(f"confine: {program[0]}: {e.strerror}")
