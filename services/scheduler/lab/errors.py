"""The error of the lab, with the place and the fix. The command line prints it."""

from __future__ import annotations


class LabError(Exception):
    """A trace, a cluster file or an option that cannot be used.

    Args:
        what: one sentence for people.
        where: file and line, or the path of a key within a file; may be empty.
        fix: what to do; may be empty.
    """

    def __init__(self, what: str, *, where: str = "", fix: str = "") -> None:
        super().__init__(f"{where}: {what}" if where else what)
        self.what = what
        self.where = where
        self.fix = fix
