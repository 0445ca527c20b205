"""What ``doctor`` says of one thing: right, doubtful or wrong, and the fix."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    level: Literal["ok", "warn", "bad"]
    what: str
    fix: str = ""

    def lines(self) -> list[str]:
        """For people: what was found and, below it, the fix."""
        return [f"{self.level:4}  {self.what}", *([f"      fix: {self.fix}"] if self.fix else [])]

    def document(self) -> dict[str, str]:
        """For scripts."""
        return asdict(self)
