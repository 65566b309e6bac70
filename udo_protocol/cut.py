"""Bounds text: the beginning and the end stay, and a note between them says how much was cut."""

from __future__ import annotations


def cut(text: str, most_chars: int) -> str:
    """`text` itself, or its beginning and its end with a note, about `most_chars` in all."""
    if len(text) <= most_chars:
        return text
    half = most_chars // 2
    return f"{text[:half]} … {len(text) - 2 * half:,} characters cut … {text[-half:]}"
