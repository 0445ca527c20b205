"""One result of the checks of ``doctor``, and of ``up`` before it starts: right, doubtful or wrong,
with the fix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from shiftwork.cli.failures import REFUSED, Failure


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check. ``note``: worth knowing, but nothing has to be done."""

    level: Literal["ok", "note", "warn", "bad"]
    what: str
    fix: str = ""
    # The option or the file that it is about, and the exit code of an ``up`` that it stops.
    where: str = ""
    code: int = REFUSED

    def lines(self) -> list[str]:
        """The finding as text for people, with the fix below it."""
        return [f"{self.level:4}  {self.what}", *([f"      fix: {self.fix}"] if self.fix else [])]

    def document(self) -> dict[str, str]:
        """The finding as an object for scripts."""
        return {"level": self.level, "what": self.what, "fix": self.fix}

    def failure(self) -> Failure:
        """The finding as the failure with which ``up`` does not start."""
        return Failure(self.what, where=self.where, fix=self.fix, code=self.code)


def finding_of(failure: Failure) -> Finding:
    """A failure as something that was found."""
    return Finding("bad", failure.what, failure.fix, failure.where, failure.code)
