"""The user of an operator whose sandbox or container has no users of its own: one with a name, a home and a shell."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

NAME = "udo"
_SHELL = "/bin/sh"
# Other users that a program may expect.
_PASSWD = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
_GROUP = "root:x:0:\nnogroup:x:65534:\n"


def files(directory: Path, user: int, group: int, home: str) -> dict[str, str]:
    """Write the files that name the users into the directory; return each file's place inside -> its path."""
    directory.mkdir(mode=0o755, exist_ok=True)
    texts = {"passwd": f"{_PASSWD}{NAME}:x:{user}:{group}:{NAME}:{home}:{_SHELL}\n", "group": f"{_GROUP}{NAME}:x:{group}:\n"}
    for name, text in texts.items():
        new = directory / f".{name}.{os.getpid()}"
        new.write_text(text, "ascii")
        new.chmod(0o644)
        new.rename(directory / name)
    return {f"/etc/{name}": str(directory / name) for name in texts}


def of_this_process() -> str:
    """The name of this process's user; NAME if it has none."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return NAME


def environment(name: str) -> dict[str, str]:
    """The variables that name a process's user."""
    return {"USER": name, "LOGNAME": name, "SHELL": _SHELL}
