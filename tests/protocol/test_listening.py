"""The port that a daemon chooses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from udo_protocol.listening import parts, with_port

# Chooses a port, and does not listen on it yet.
CHOOSES = """
import sys
from pathlib import Path
from udo_protocol.listening import with_port
print(with_port("127.0.0.1:0", Path(sys.argv[1])), flush=True)
sys.stdin.read()
"""


def test_nobody_else_chooses_a_port_before_its_server_listens(tmp_path: Path) -> None:
    command = [sys.executable, "-c", CHOOSES, str(tmp_path / "its")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdin is not None and other.stdout is not None
        its = parts(other.stdout.readline().strip())[1]
        (tmp_path / "mine").write_text(f"{its}\n")
        mine = with_port("127.0.0.1:0", tmp_path / "mine")
        assert parts(mine)[1] != its
        assert with_port("127.0.0.1:0", tmp_path / "mine") == mine, "one's own port can be taken again"
        other.stdin.close()
    assert with_port("127.0.0.1:0", tmp_path / "its") == f"127.0.0.1:{its}", "whoever had it has ended"
