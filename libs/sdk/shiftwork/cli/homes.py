"""The user's own folders: below HOME, or where the XDG variables point.

They are created when they are needed, but the home itself is not: a HOME that does not exist is a
mistake, and after its correction the files written there would not be found. Of the folder that an
XDG variable names, only the last part is created, for the same reason.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from shiftwork.cli.failures import Failure


@dataclass(frozen=True)
class Base:
    """Where a kind of the user's files lies. ``anchor`` must exist already, ``named`` is the
    variable that gave it, and ``instead`` is the advice to do without it."""

    path: Path
    anchor: Path
    named: str
    instead: str

    def missing(self) -> Failure | None:
        """Why nothing can be created below it; None if it can."""
        if self.anchor.is_dir():
            return None
        what = f"the folder {self.anchor} does not exist"
        if self.named == "HOME":
            what = f"the home folder {self.anchor} does not exist"
        fix = f"create it, correct {self.named}, or {self.instead}"
        return Failure(what, where=self.named, fix=fix)

    def make(self, *below: str) -> Path:
        """A folder below it, 0700, with those above that are not there yet. Raises Failure, or
        OSError."""
        if problem := self.missing():
            raise problem
        folder = self.path.joinpath(*below)
        for each in reversed((folder, *folder.parents)):
            if self.anchor in each.parents:
                each.mkdir(mode=0o700, exist_ok=True)
        return folder


def base(variable: str, below: str, instead: str) -> Base:
    """Return the folder in ``variable``, else ``~/below``. Raises Failure if no home is known."""
    given = os.environ.get(variable, "")
    # The XDG specification requires that a relative path is ignored.
    if Path(given).is_absolute():
        return Base(Path(given), Path(given).parent, variable, instead)
    try:
        home = Path.home()
    except RuntimeError as error:
        raise Failure(
            "the home of this user is unknown",
            where="HOME",
            fix=f"set HOME or {variable}, or {instead}",
        ) from error
    return Base(home / below, home, "HOME", instead)


ANOTHER_FOLDER = "name another folder: --data DIR"


def own_data() -> Base:
    """The folder of the user's data."""
    return base("XDG_DATA_HOME", ".local/share", ANOTHER_FOLDER)


def default_data() -> Path:
    """The data folder of `up` without --data: ``/var/lib/shiftwork`` for root,
    ``~/.local/share/shiftwork`` for everybody else. Raises Failure if there is no home."""
    if os.geteuid() == 0:
        return Path("/var/lib/shiftwork")
    return own_data().path / "shiftwork"


def config() -> Base:
    """The folder of the user's configuration."""
    return base("XDG_CONFIG_HOME", ".config", "give --url and --token with each command")
