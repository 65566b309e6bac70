"""Bytes that an attacker could send, made from a seed, and the judgement of how they are handled."""
