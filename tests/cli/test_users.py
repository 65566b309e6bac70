"""A user whose name the host does not know, as in containers: commands work, or say what to set."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.cli.conftest import Shell
from tests.conftest import bound, require
from udo_interface import java
from udo_protocol.errors import UsageError

EXAMPLE = Path(__file__).parents[2] / "examples" / "operators" / "fraud_v1"
UNKNOWN = ("unshare", "--user", "--map-user=54321", "--map-group=54321")


def as_nobody_known(home: Path | None, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run `udo WORDS` as a user without a name and a home."""
    if shutil.which("unshare") is None or subprocess.run([*UNKNOWN, "true"], capture_output=True, check=False).returncode:
        require("unshare --user", "apt-get install -y util-linux, and user namespaces")
    shell = Shell(home or Path())
    environment = {k: v for k, v in shell.environment().items() if k not in ("HOME", "USER", "LOGNAME", "LNAME", "USERNAME")}
    if home is None:
        del environment["UDO_HOME"]
    command = [*UNKNOWN, *shell.command(*words)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=bound(60), check=False)


def test_a_user_without_a_home_is_told_which_variable_to_set() -> None:
    done = as_nobody_known(None, "status")
    assert done.returncode == 2 and "uid 54321" in done.stderr and "Set UDO_HOME" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.long
def test_a_user_without_a_name_can_work_and_is_named_by_its_number() -> None:
    home = Path(tempfile.mkdtemp(prefix="udo-cli-"))
    try:
        assert as_nobody_known(home, "up").returncode == 0
        for words in (("test", EXAMPLE), ("push", EXAMPLE), ("deploy", "fraud"), ("status",)):
            done = as_nobody_known(home, *words)
            assert done.returncode == 0, done.stderr
        assert "answering" in done.stdout
        assert "uid 54321" in as_nobody_known(home, "registry", "audit").stdout
    finally:
        as_nobody_known(home, "down")
        shutil.rmtree(home)
    assert not Shell(home).running()


def test_who_has_no_home_keeps_what_is_compiled_where_nobody_else_can_put_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = java.cache_dir({})
    assert folder == tmp_path / f"udo-spark-{os.getuid()}" == java.cache_dir({}) and folder.stat().st_mode & 0o077 == 0
    folder.chmod(0o777)
    with pytest.raises(UsageError, match="XDG_CACHE_HOME"):
        java.cache_dir({})
    folder.rmdir()
    folder.symlink_to(tmp_path)
    with pytest.raises(UsageError, match="XDG_CACHE_HOME"):
        java.cache_dir({})
    assert java.cache_dir({"XDG_CACHE_HOME": "/c"}) == Path("/c/udo-spark")
