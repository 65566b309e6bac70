"""A deliberate fault in the product: a small change to its text, which a test cited by docs/guarantees.md must notice."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Mutation:
    """Replace `old`, which occurs in `file` exactly once, with `new`; then `test` fails. `quick`: within seconds, so also in CI."""

    file: str
    old: str
    new: str
    test: str
    quick: bool = False

    def applied(self, text: str) -> str:
        """The file's text with the fault; ValueError if `old` does not occur exactly once."""
        if (found := text.count(self.old)) != 1:
            raise ValueError(f"{self.file}: expected exactly one place to change, found {found} of {self.old!r}")
        return text.replace(self.old, self.new)
