"""States pass between an engine and an operator's process as bytes; bytes that come back are a valid state, or are refused."""

from __future__ import annotations

import msgpack
import pytest
from udo_runtime.child.packed import apart, require, together
from udo_runtime.state.codec import EXPIRES, pack, unpack

from udo_protocol.errors import ProtocolError

AT = 1_700_000_000_000_000


@pytest.mark.parametrize("size", [0, 1, 14, 15, 16, 70_000])
@pytest.mark.parametrize("at_us", [AT, -AT, 5])
def test_a_state_that_expires_is_taken_apart_and_put_together_again(size: int, at_us: int) -> None:
    state = {f"c{n}": n for n in range(size)}
    stored = together(pack(state), at_us)
    assert stored is not None and unpack(stored) == {EXPIRES: at_us, **state}
    assert apart(stored) == (pack(state) if state else None, at_us)


def test_a_state_that_does_not_expire_stays_as_its_writer_wrote_it() -> None:
    wide = bytes.fromhex("81a16ed200000001")  # {"n": 1}, in four bytes
    assert together(wide, None) is wide and apart(wide) == (wide, None)


def test_a_state_of_python_says_anywhere_in_it_when_it_expires() -> None:
    assert apart(pack({"a": 1, EXPIRES: AT, "b": 2})) == (pack({"a": 1, "b": 2}), AT)
    looks_so = pack({"a": b"\xa8" + EXPIRES.encode() + b"\xcf12345678"})  # a value with the bytes of an expiry
    assert apart(looks_so) == (looks_so, None)


@pytest.mark.parametrize(
    ("states", "says"),
    [
        ([b"\x81\xa1n"], "no MessagePack"),
        ([b"\x80\x80"], "no MessagePack"),
        ([b""], "no MessagePack"),
        ([b"\x81\xa1n", b"\x01\x80"], "no MessagePack"),  # valid together: {"n": 1} and {}
        ([b"\x80\x80", b""], "something behind it"),
        ([b"\x81\xa1n\x01", b"\x93\xa1a\xa1b\xa1c"], "map from text"),
        ([b"\x01"], "map from text"),
        ([pack({1: 2})], "map from text"),
        ([pack({b"n": 2})], "map from text"),
        ([b"\x81\xa1n\xa1\xff"], "no MessagePack"),
        ([b"\x81\xa1n\xc1"], "no MessagePack"),
        ([msgpack.packb({"n": msgpack.ExtType(2, b"\xff\xff\xff\xff")})], "no MessagePack"),  # a day beyond the year 9999
        ([b"\x81\xa1n" + b"\x91" * 1_100 + b"\xc0"], "no MessagePack"),  # nested deeper than Python can write
        ([pack({EXPIRES: AT})], "platform's own"),
    ],
)
def test_what_is_no_state_is_refused(states: list[bytes], says: str) -> None:
    with pytest.raises(ProtocolError, match=says):
        require([pack({"n": 1}), *states, pack({"n": 3})])


def test_states_of_all_types_pass_and_an_empty_one_is_told() -> None:
    assert require([pack({"n": 1}), pack({"n": {1: [None, "ü", b"x", 1.5]}, "m": 2**64 - 1})])
    assert not require([pack({"n": 1}), b"\xde\x00\x00"])
    assert require([])
