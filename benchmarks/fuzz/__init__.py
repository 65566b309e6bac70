"""Bytes made from a seed that an attacker could send, and what is right to do with them."""
