"""A hostile operator against the node it runs on, and hostile versions against the node that unpacks them: each attack is blocked, or
succeeds where the driver says that it does not isolate, or succeeds in spite of the driver's claim.

An attack that succeeds although the driver claims to prevent it makes the run invalid. Whether an attack succeeded
is judged outside of the operator wherever it can be seen there.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import psutil

from benchmarks.harness.bringup import Platform, platform, say, wait_until
from benchmarks.harness.rules import InvalidRun
from benchmarks.harness.tables import Section
from benchmarks.verification import pushed
from node_manager.servers import access
from udo_interface import connect
from udo_protocol.errors import OperatorError, PeerError, UdoError
from udo_protocol.formats.manifest import OperatorLimits
from udo_protocol.queue.keys import SlotKeys

OPERATOR, VICTIM = "attack", "forward"
# Attacks on the caller: no driver prevents them, the caller's own checks do.
CALLER = "caller"
# Each attack, and the capability of the driver that prevents it (node_manager/drivers/base.py). The last attack deletes all data.
ATTACKS = {
    "text_beyond": CALLER,
    "many_rows": CALLER,
    "compressed_bomb": CALLER,
    "giant_error": CALLER,
    "giant_header": CALLER,
    "tcp_socket": "isolates_network",
    "udp_socket": "isolates_network",
    "docker_socket": "isolates_sockets",
    "write_root": "isolates_writes",
    "read_host_files": "isolates_reads",
    "kill_neighbour": "isolates_processes",
    "other_keys": "isolates_keys",
    "config": "isolates_keys",
    "garbage_counters": "isolates_keys",
    "wrong_types": "isolates_keys",
    "counter_overflow": "isolates_keys",
    "delete_log": "isolates_keys",
    "fork_bomb": "process_limit",
    "memory_bomb": "memory_limit",
    "exhaust_disk": "disk_limit",
    "flushall": "isolates_keys",
}
WORDS = {
    "text_beyond": "answer with text that ends outside of its frame",
    "many_rows": "answer with 100 million rows in a few bytes",
    "compressed_bomb": "answer with a frame that unpacks to 128 MiB",
    "giant_error": "raise an error of 64 MiB",
    "giant_header": "answer with an error of 64 MiB, around the runtime",
    "tcp_socket": "connect by TCP, also to this machine",
    "udp_socket": "send by UDP",
    "docker_socket": "the Docker daemon's socket, the node manager's",
    "write_root": "write to the system, to the node manager's home",
    "read_host_files": "read the node's secrets",
    "kill_neighbour": "kill a neighbour",
    "other_keys": "read another deployment's keys",
    "config": "`CONFIG SET` on the queue server",
    "garbage_counters": "garbage in its own counters",
    "wrong_types": "another type in its own keys",
    "counter_overflow": "numbers beyond 64 bits in its own log's counters",
    "delete_log": "delete its own log, and leave something else",
    "fork_bomb": "600 processes",
    "memory_bomb": "twice its memory",
    "exhaust_disk": "fill the disk, by files and by its log",
    "flushall": "`FLUSHALL` on the queue server",
}
# Attacks on the operator's own slot, which it may write to. They are judged outside: others must not notice, and the slot must recover.
OWN_KEYS = ("garbage_counters", "wrong_types", "counter_overflow", "delete_log")
_MENDED_S = 60.0
# The capability of attacks by a pushed version: no driver is involved.
ALWAYS = "always"
NAMES = (*ATTACKS, *pushed.WORDS)
STATES = ("blocked", "not_isolated", "succeeded")
# Amounts beyond the operator's limits (benchmarks/operators/attack), yet bounded.
PROCESSES, MEMORY_MIB, DISK_MIB = 600, 640, 160
# Limits of the operator in a process of its own: its engine's memory counts too, and must not end an attack before it is made.
OWN_LIMITS = OperatorLimits(memory_mb=512, pids=200, answer_timeout_s=40)
# The disk space that logs may use: those of a few instances, of which the last 8 MiB are kept, and more until the node manager looks.
_LOG_BYTES, _CUT_S = 64 * (1 << 20), 20.0
_ANSWER_S, _DEATH_S = 200.0, 2.0
# The time in which a caller must get an error of any size, and the greatest length of the text that it gets.
_CALLER_S, _ERROR_CHARS = 90.0, 100_000
OPTIONS = [
    click.option(
        "--isolation",
        type=click.Choice(["shared", "process"]),
        default="shared",
        show_default=True,
        help="The hostile operator runs in its engine's process, or in one of its own.",
    ),
    click.option(
        "--sandbox", type=click.Choice(["auto", "none"]), default="auto", show_default=True, help="Sandbox of the process driver."
    ),
    click.option(
        "--only", multiple=True, type=click.Choice(NAMES), metavar="ATTACK", help="Try only this attack; may be repeated.  [default: all]"
    ),
]


@dataclass(frozen=True, kw_only=True)
class Figures:
    """The attacks by result; `achieved`: in words, the effects of those not blocked; `only`: those chosen, empty for all."""

    driver: str
    isolation: str | None = None
    only: list[str] | None = None
    blocked: list[str]
    not_isolated: list[str]
    succeeded: list[str]
    achieved: dict[str, str]
    capabilities: dict[str, bool | str]


@dataclass
class Scene:
    """A platform with a victim on it, and traps outside that show what the operator reached."""

    platform: Platform
    outside: Path
    tcp: socket.socket
    udp: socket.socket
    token: str = field(default_factory=lambda: f"attack-{secrets.token_hex(8)}")

    def victim_pids(self) -> list[int]:
        """Return the victim's process and its descendants."""
        pid = next(int(s.pid) for s in self.platform.node().status().slots if s.deployment == VICTIM)
        return [pid, *(p.pid for p in psutil.Process(pid).children(recursive=True))]

    def looked_at(self) -> list[str]:
        """Return the directories of this machine in which a file left by an operator is looked for, whatever it sees under their names."""
        return [str(self.platform.home.node), str(self.outside)]

    def queue(self) -> Any:
        """Connect to the queue server with the node manager's login."""
        return contextlib.closing(access.connect(self.platform.home.node, "queue"))

    @property
    def key(self) -> str:
        """A key of the victim's, which is there."""
        return f"{SlotKeys(VICTIM, 0)}schema:{self.token}"

    def arguments(self, attack: str, aimed: list[int]) -> str:
        """Return everything that an attacker could wish to know, as JSON; `aimed`: the processes to kill."""
        node = self.platform.home.node
        passwords = [node / "servers" / "access.json", *(node / "instances").glob("*/.password")]
        sockets = ["/var/run/docker.sock", "/run/docker.sock", str(node / "node.sock"), str(self.outside / "s")]
        places: dict[str, dict[str, object]] = {
            "docker_socket": {"sockets": sockets},
            "write_root": {"directories": ["/", "/usr", "/etc", "/var", ".", *self.looked_at()], "looked_at": self.looked_at()},
            "read_host_files": {"secrets": [str(self.outside / "secret"), str(self.platform.home.token_file), str(node / "wanted.json")]},
            "kill_neighbour": {"pids": aimed},
            "text_beyond": {"end": 1 << 30},
            "many_rows": {"rows": 100_000_000},
            "compressed_bomb": {"mebibytes": 128},
            "giant_error": {"mebibytes": 64},
            "giant_header": {"mebibytes": 64},
            "fork_bomb": {"processes": PROCESSES},
            "memory_bomb": {"mebibytes": MEMORY_MIB},
            **{attack: {"prefix": SlotKeys(OPERATOR, 0).prefix} for attack in OWN_KEYS},
            "exhaust_disk": {"mebibytes": DISK_MIB, "directories": [".", "/tmp", "/dev/shm", "/var/tmp", str(self.outside)]},
        }
        told = {
            "token": self.token,
            "addresses": sorted({"127.0.0.1", *_own_addresses()}),
            "tcp_port": self.tcp.getsockname()[1],
            "udp_port": self.udp.getsockname()[1],
            "key": self.key,
            "passwords": list(map(str, passwords)),
            "queue": str(node / "run" / "queue.sock"),
        }
        return json.dumps(told | places.get(attack, {}))


def _own_addresses() -> list[str]:
    return [a.address for addresses in psutil.net_if_addrs().values() for a in addresses if a.family == socket.AF_INET]


@contextlib.contextmanager
def scene(driver: str, sandbox: str, isolation: str) -> Iterator[Scene]:
    """Set the scene, and remove it at the end."""
    with (
        platform(driver, sandbox) as p,
        tempfile.TemporaryDirectory(prefix="udo-outside-") as name,
        socket.create_server(("0.0.0.0", 0)) as tcp,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp,
        socket.socket(socket.AF_UNIX) as unix,
    ):
        udp.bind(("0.0.0.0", 0))
        udp.settimeout(1)
        unix.bind(str(Path(name) / "s"))
        unix.listen()
        (Path(name) / "secret").write_text("secret")
        p.push(VICTIM, "1")
        if isolation == "process":
            p.push(OPERATOR, "1", isolation="process", limits=OWN_LIMITS)
        else:
            p.push(OPERATOR, "1")
        for operator in (VICTIM, OPERATOR):
            p.deploy(operator, operator)
        s = Scene(p, Path(name), tcp, udp)
        with s.queue() as queue:
            queue.call("SET", s.key, s.token)
        yield s


def carry_out(s: Scene, attack: str) -> str:
    """Carry out an attack; return its result in words, '' if it was blocked."""
    aimed = s.victim_pids() if attack == "kill_neighbour" else []
    arguments = s.arguments(attack, aimed)
    if ATTACKS[attack] == CALLER:
        return call(s, attack, arguments)
    answers: list[str] = []
    try:
        with connect(OPERATOR, node=s.platform.node_socket) as client:
            client.add_listener(lambda e: answers.append(e["result"]))
            client.send({"attack": attack, "arguments": arguments})
            client.flush(_ANSWER_S)
    except OperatorError as e:
        if "killed: " not in str(e) and attack not in OWN_KEYS:
            raise InvalidRun(f"the attack {attack} broke off: {e}") from e
        say(f"  {(str(e).partition('killed: ')[2] or str(e)).splitlines()[0]}")
    except PeerError as e:  # the attack has deleted its own answer
        say(f"  {e}")
    return _seen(s, attack, aimed, json.loads(answers[0]) if answers else [])


def call(s: Scene, attack: str, arguments: str) -> str:
    """Return the harm done to a caller: '' if it got a typed error of readable length."""
    command = [sys.executable, "-m", "benchmarks.verification.caller", s.platform.node_socket, OPERATOR, attack, arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_CALLER_S, check=False)
    except subprocess.TimeoutExpired:
        return f"no answer within {_CALLER_S:g} s"
    if done.returncode:
        how = signal.Signals(-done.returncode).name if done.returncode < 0 else f"exit status {done.returncode}: {done.stderr[-500:]}"
        return f"the caller ended with {how}"
    found = json.loads(done.stdout)
    say(f"  {found['kind']}: {found['error'][:150]}")
    if found["rows"]:
        return f"{found['rows']} rows that no honest frame has"
    if found["kind"] not in ("ProtocolError", "OperatorError") or f"{OPERATOR}@1" not in found["error"]:
        return f"{found['kind'] or 'no error'}: {found['error'][:200]}"
    return f"an error of {len(found['error'])} characters" if len(found["error"]) > _ERROR_CHARS else ""


def _seen(s: Scene, attack: str, aimed: list[int], claims: list[str]) -> str:
    """Return the result as seen from outside where it can be, whatever the operator claims."""
    if attack in OWN_KEYS:
        return _blinded(s)
    if attack == "write_root":
        left = [Path(d) / s.token for d in s.looked_at() if (Path(d) / s.token).exists()]
        for path in left:
            path.unlink()
        claims = [d for d in claims if d not in s.looked_at()] + [str(path.parent) for path in left]
    achieved = ", ".join(claims)
    if attack == "udp_socket":
        with contextlib.suppress(TimeoutError):
            return achieved or "a datagram" if s.token.encode() in s.udp.recv(100) else ""
        return ""
    if attack == "kill_neighbour":
        deadline = time.monotonic() + (_DEATH_S if claims else 0)  # a killed process takes a moment to disappear
        while not (dead := [pid for pid in aimed if not _alive(pid)]) and time.monotonic() < deadline:
            time.sleep(0.01)
        return f"killed {dead}" if dead else ""
    if attack in ("config", "flushall"):
        with s.queue() as queue:
            changed = bytes(queue.call("CONFIG", "GET", "slowlog-max-len")[1]) == b"7"
            gone = queue.call("EXISTS", s.key) == 0
        return (achieved or "it happened") if (changed if attack == "config" else gone) else ""
    if attack == "exhaust_disk":
        deadline = time.monotonic() + _CUT_S  # the kernel bounds a file, and the node manager cuts it as soon as it looks
        while (used := _logged(s)) > _LOG_BYTES and time.monotonic() < deadline:
            time.sleep(0.1)
        return achieved or (f"a log of {used >> 20} MiB" if used > _LOG_BYTES else "")
    return achieved


def _logged(s: Scene) -> int:
    """The bytes of all logs of instances."""
    used = 0
    for file in (s.platform.home.node / "instances").rglob("log*"):
        with contextlib.suppress(FileNotFoundError):  # moved aside, or removed with its instance
            used += file.stat().st_size
    return used


def _blinded(s: Scene) -> str:
    """Return the error if the node cannot be inspected, or does not answer, once the attacker should serve again; '' if it can."""
    node = s.platform.node()

    def mended() -> bool:
        slots = {slot.deployment: slot for slot in node.status().slots}
        with urllib.request.urlopen(node.status().metrics_address, timeout=10) as reply:
            assert f'deployment="{VICTIM}"' in reply.read().decode()
        assert VICTIM in {slot.deployment for slot in node.stats().slots}
        node.sessions()
        list(node.dead_letters())
        return slots[VICTIM].state == slots[OPERATOR].state == "owner"  # the victim may just have been killed (kill_neighbour)

    def answers(operator: str, event: dict[str, object]) -> bool:
        with contextlib.suppress(PeerError), connect(operator, node=s.platform.node_socket) as client:
            client.send(event)
            client.flush(_MENDED_S)
            return True
        return False  # its log has just been started anew

    try:
        wait_until(lambda: answers(OPERATOR, {"attack": "nothing", "arguments": "{}"}), _MENDED_S, f"{OPERATOR} to answer")
        wait_until(mended, _MENDED_S, f"{OPERATOR} and {VICTIM} to serve")
        assert answers(VICTIM, {"id": 1, "card": 1, "amount": 1.0, "at": 1}), f"{VICTIM} does not answer"
    except (UdoError, OSError, AssertionError, InvalidRun) as e:
        return f"{type(e).__name__}: {e}"
    return ""


def _alive(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    return False


def run(*, quick: bool, driver: str, seed: int, sandbox: str = "auto", isolation: str = "shared", only: Collection[str] = ()) -> Figures:
    """Carry out every attack, or each of `only`, once; `quick` changes nothing. InvalidRun if one succeeds against the driver's claim."""
    tried = [a for a in NAMES if a in (only or NAMES)]
    with scene(driver, sandbox, isolation) as s:
        with s.platform.registry() as registry:
            wait_until(lambda: any(n["live"] for n in registry.nodes()), 20, "the node's capabilities")
            capabilities = next(n["capabilities"] for n in registry.nodes() if n["live"])
        outcomes: dict[str, str] = {}
        if any(a in pushed.WORDS for a in tried):
            say("hostile versions")
            outcomes = pushed.carry_out(s.platform, VICTIM)
        for attack in (a for a in tried if a in ATTACKS):
            say(attack)
            outcomes[attack] = carry_out(s, attack)
    outside = (*pushed.WORDS, *(a for a, by in ATTACKS.items() if by == CALLER))  # no driver is involved
    states = {a: _state(achieved, a in outside or capabilities.get(ATTACKS[a], False)) for a, achieved in outcomes.items()}
    found = {state: [a for a in tried if states[a] == state] for state in STATES}
    if found["succeeded"]:
        lies = "; ".join(f"{a} ({ATTACKS.get(a, ALWAYS)}): {outcomes[a]}" for a in found["succeeded"])
        raise InvalidRun(f"the {driver} driver claims to prevent what succeeded: {lies}")
    return Figures(
        driver=driver,
        isolation=isolation,
        only=list(only),
        **found,
        achieved={a: w for a, w in outcomes.items() if w},
        capabilities=capabilities,
    )


def _state(achieved: str, claimed: bool) -> str:
    if not achieved:
        return "blocked"
    return "succeeded" if claimed else "not_isolated"


def refusals(runs: Iterable[Figures]) -> Section:
    """The results of the hostile versions in the newest run, whatever the driver."""
    *_, newest = runs
    rows = [(what, "blocked" if name in newest.blocked else "not tried") for name, what in pushed.WORDS.items()]
    return Section("Pushed versions", ("a layer with", "result"), rows)


def comparison(runs: Iterable[Figures]) -> Section:
    """The newest run of each way to run operators, side by side."""
    drivers = {"docker": "docker", "bubblewrap": "process, bubblewrap", "Landlock": "process, Landlock", "none": "process, none"}
    columns = drivers | {f"{way}, own": f"{title}, own process" for way, title in drivers.items()}
    newest = {_way(r): _by_attack(r) for r in runs}
    ways = [w for w in columns if w in newest]
    rows = [
        (
            WORDS[a],
            "the caller's checks" if ATTACKS[a] == CALLER else f"`{ATTACKS[a]}`",
            *(newest[w].get(a, "").replace("_", " ") for w in ways),
        )
        for a in ATTACKS
    ]
    return Section("What came of each", ("attack", "capability", *(columns[w] for w in ways)), rows)


def _by_attack(f: Figures) -> dict[str, str]:
    """The result of each attack."""
    return {a: state for state, of in zip(STATES, (f.blocked, f.not_isolated, f.succeeded), strict=True) for a in of}


def _way(f: Figures) -> str:
    remark = str(f.capabilities["remark"])
    way = next((name for name in ("bubblewrap", "Landlock") if remark.startswith(f"sandbox: {name}")), "none")
    return ("docker" if f.driver == "docker" else way) + (", own" if f.isolation == "process" else "")


def sections(f: Figures) -> list[Section]:
    """The table of attacks."""
    names = _by_attack(f)
    rows = [(a.replace("_", " "), names[a].replace("_", " "), ATTACKS.get(a, ALWAYS), f.achieved.get(a, "")) for a in names]
    title = f"Attacks on the {f.driver} driver"
    return [Section(title, ("attack", "result", "capability", "achieved"), rows, str(f.capabilities.get("remark", "")))]
