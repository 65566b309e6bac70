"""Rights of instances, and of a slot's lanes, on the queue and state servers, as Redis ACL rules.

Builds the rules only, no I/O. A server function runs with its caller's rights, so the keys that udo_protocol/lua touches are listed too.
Every key is named, with `*` only after the name of its kind: keys not listed are refused, including ones that are added later. `owner`
and `route` are read-only: write access to them would decide which instance answers.
"""

from __future__ import annotations

from collections.abc import Iterable

from udo_protocol.errors import Conflict
from udo_protocol.queue.keys import HEARTBEAT, SlotKeys
from udo_protocol.queue.keys import warm as warm_key

# Redis tries rules one after the other for each key of each command, so they are ordered by how often a small frame needs them.
# `%R~`: read only. `` is the prefix itself, with which functions are called.
_INSTANCE = ("%R~owner", "base", "emitted", "bell:*", "in", "", "lane:*", "out:*", "%R~mirrors", "pins", "sizes", "bytes", "parked")
_INSTANCE_SELDOM = ("waiting", "turning", "behind", "served:*", "servedbytes:*", "schema:*", "%R~failed", "%R~route")
_INSTANCE_COMMANDS = """info multi exec fcall get set mget exists del pexpire time llen lrange lindex lpush lpop rpush ltrim blpop
    hset hdel hmget hgetall incrby decrby sadd smembers"""
_COMPARING_WRITES = ("", "pins", "schema:*")
_COMPARING_READS = ("in", "base", "emitted", "owner", "sizes", "mirrors", "failed")
_COMPARING_COMMANDS = "info multi exec fcall get set mget exists del pexpire time lrange lindex lpop rpush blpop hset hdel decrby smembers"
_STATE_WRITES = (
    "ckpt",
    "riding",
    "sessions",
    "m:*",
    "g:*",
    "d:*",
    "changelog",
    "logged",
    "readers",
    "reading",
    "savepoints",
    "savepoint:*",
    "dead",
    "pending",
    "replay",
    "replog",
    "",
)
_CHANGELOG_WRITES = ("changelog", "logged", "readers", "reading", "")
_STATE_READS = ("owner", "cut", "replicas", "replicated")
_STATE_COMMANDS = """info multi exec watch unwatch waitaof fcall get mget set del unlink pexpire rpush lrange hget hset hdel
    hgetall hkeys hmget hexists hstrlen ltrim exists rename pttl time xadd xrange xrevrange xtrim"""
_LETTER_COMMANDS = "info multi exec watch unwatch waitaof mget hset hdel hkeys hstrlen"
_LANE = ("lane:*", "bell:*", "out:*", "", "bytes", "in", "sizes", "parked", "%R~route", "newest:*", "lanes", "schema:*")
_LANE_SELDOM = ("%R~status", "%R~emitted", "%R~base", "%R~owner")
_LANE_COMMANDS = """info client|id multi exec fcall get set exists del pexpire lrange lpush rpush ltrim blpop
    hget hset hsetnx incrby sadd srem scard spop srandmember"""


def _rules(commands: str, writes: Iterable[str], reads: Iterable[str] = ()) -> list[str]:
    """The ACL rules, with the keys in this order; a `%R~` among the writes stays read-only."""
    patterns = [k if k.startswith("%R~") else f"~{k}" for k in (*writes, *(f"%R~{k}" for k in reads))]
    return ["resetkeys", "-@all", *(f"+{c}" for c in commands.split()), *patterns]


def _in(keys: SlotKeys, names: Iterable[str]) -> list[str]:
    """The full names of these keys of a slot."""
    p = _literal(keys)
    return [f"%R~{p}{k.removeprefix('%R~')}" if k.startswith("%R~") else p + k for k in names]


def warm(instance: str) -> list[str]:
    """The rules of a warm instance, which has no slot: it waits for its assignment and checks whether its node manager lives."""
    return _rules("info blpop exists", (warm_key(instance),), (HEARTBEAT,))


def queue(keys: SlotKeys, instance: str) -> list[str]:
    """The rules of an instance attached to a slot, on the queue server."""
    own = (f"stats:{instance}", f"ready:{instance}")
    return _rules(_INSTANCE_COMMANDS, [*_in(keys, (*_INSTANCE, *_INSTANCE_SELDOM, *own)), warm_key(instance)], [HEARTBEAT])


def comparing(keys: SlotKeys, instance: str) -> list[str]:
    """The rules of an instance that compares its answers with the served ones, on the queue server: it cannot answer."""
    p = _literal(keys)
    writes = [*(p + k for k in _COMPARING_WRITES), *keys.of_mirror(instance)]
    return _rules(_COMPARING_COMMANDS, [*writes, warm_key(instance)], [*(p + k for k in _COMPARING_READS), HEARTBEAT])


def state(keys: SlotKeys) -> list[str]:
    """The rules of an instance of a keyed operator, on the state server."""
    p = _literal(keys)
    return _rules(_STATE_COMMANDS, [p + k for k in _STATE_WRITES], [p + k for k in _STATE_READS])


def adopting(keys: SlotKeys, *sources: SlotKeys) -> list[str]:
    """The rules of an instance whose slot will get key groups of the slots `sources`, on the state server: it may read them ahead."""
    return [*state(keys), *(f"%R~{_literal(source)}{k}" for source in sources for k in ("sessions", "m:*", "g:*", "d:*"))]


def adopting_copy(keys: SlotKeys, copy: str) -> list[str]:
    """The same for groups of a slot of another node, of which it may read the copy of that name. Conflict if it has wildcards."""
    if not copy.isalnum():
        raise Conflict(f"expected the name of a copy, of letters and digits, got {copy!r}")
    top = f"{_literal(keys)}taking:{copy}:"
    return [*state(keys), *(f"%R~{top}{k}" for k in ("ahead:sessions", "ahead:m:*", "g:*", "d:*"))]


def reading(keys: SlotKeys) -> list[str]:
    """The rules of an instance that reads the owner's changelog and never becomes owner, on the state server: it holds a lease there and
    may trim entries that all have read, but appends none."""
    p = _literal(keys)
    commands = _STATE_COMMANDS.replace("xadd ", "")
    return _rules(commands, [p + k for k in _CHANGELOG_WRITES], [p + k for k in (*_STATE_READS, *_STATE_WRITES) if k])


def letters(keys: SlotKeys) -> list[str]:
    """The rules of an instance of a stateless operator whose bad events are kept, on the state server. Others have no user there."""
    p = _literal(keys)
    return _rules(_LETTER_COMMANDS, [f"{p}dead"], [f"{p}owner", f"{p}reading", f"{p}replicas"])


def lanes(keys: SlotKeys) -> list[str]:
    """The rules of producers and collectors of one slot, on the queue server."""
    return _rules(_LANE_COMMANDS, _in(keys, (*_LANE, *_LANE_SELDOM)))


def _literal(keys: SlotKeys) -> str:
    """A slot's prefix, checked for wildcards, which would grant access to other slots."""
    return SlotKeys.parse(keys.prefix).prefix
