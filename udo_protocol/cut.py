"""Bounds text: the beginning and the end stay, and a note between them says how much was cut."""

from __future__ import annotations


def cut(text: str, most_chars: int) -> str:
    """`text` itself, or its beginning and its end with a note, about `most_chars` in all. Half of a surrogate pair, which UTF-8 and so no
    message can hold, is escaped."""
    if len(text) > most_chars:
        half = most_chars // 2
        text = f"{text[:half]} … {len(text) - 2 * half:,} characters cut … {text[-half:]}"
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()
