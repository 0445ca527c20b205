"""Which platform a command of this machine means, and how ``up`` makes its own known.

``doctor``, ``down`` and others mean the server that every other command goes to: ``--data``,
``--context``, ``--url`` and the environment, the current context; without any of them the default
data folder.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from shiftwork.cli import contexts, render, session
from shiftwork.cli.contexts import Named
from shiftwork.cli.failures import Failure
from shiftwork.cli.homes import default_data

from services.allinone.data_folder import CONTEXT, DataFolder


@dataclass(frozen=True)
class Chosen:
    """One platform. ``place`` is None if it is not one of this machine's data folders."""

    data_folder: DataFolder | None
    because: str
    url: str = ""
    context: str = ""

    @property
    def described(self) -> str:
        """A text for people: the platform, and the option or setting that chose it."""
        which = f"data folder {self.data_folder.data}" if self.data_folder else self.url
        name = f"context {self.context}, " if self.context else ""
        return f"{name}{which} ({self.because})"

    def here(self, fix: str) -> DataFolder:
        """Its data folder on this machine. Failure with this fix if it has none."""
        if self.data_folder is None:
            what = f"{self.described} is not a platform that `up` started on this machine"
            raise Failure(what, where=self.because, fix=fix)
        return self.data_folder


def chosen(data: Path | None) -> Chosen:
    """The platform that is meant. Failure if the contexts cannot be read, or do not have it."""
    if data is not None:
        return Chosen(DataFolder(data), "--data")
    now = session.current()
    try:
        choice = contexts.choose(url=now.url, context=now.context, environ=os.environ)
    except Failure as problem:
        problem.fix += "; --data DIR names a platform of this machine"
        raise
    if choice is None:
        return Chosen(DataFolder(default_data()), "the default data folder")
    folder = _folder_of(choice.named) if choice.named else None
    data_folder = DataFolder(folder) if folder else None
    return Chosen(data_folder, choice.because, choice.url, choice.name)


def _folder_of(named: Named) -> Path | None:
    """The data folder of a context; an older context has only the path of its token."""
    if named.data:
        return Path(named.data)
    beside = Path(named.token_file)
    if named.remote or beside.name != "admin-token" or not (beside.parent / "up.lock").exists():
        return None
    return beside.parent


def running() -> dict[str, Path]:
    """The contexts of this machine's platforms that run now, with their data folders."""
    _, known = contexts.load(contexts.default_path())
    folders = {name: _folder_of(named) for name, named in known.items()}
    return {name: data for name, data in folders.items() if data and DataFolder(data).is_kept()}


def name_for(known: Mapping[str, Named], data: Path) -> str:
    """The context of a data folder: the one it has, else ``local`` while no other platform has
    that, else one after the folder."""
    for name, named in known.items():
        if named.data == str(data):
            return name
    if CONTEXT not in known or not (Path(known[CONTEXT].data or "/dev/null") / "up.lock").exists():
        return CONTEXT
    base = re.sub(r"[^\w.-]+", "-", data.name) or CONTEXT
    names = [base, *(f"{base}-{number}" for number in range(2, len(known) + 3))]
    return next(name for name in names if name not in known)


def make_current(data_folder: DataFolder, url: str) -> str:
    """Write the platform's context and make it the current one. Why not, for people, if it cannot
    be written: that ends no platform."""
    token_file = str(data_folder.credentials.admin_token_file)
    try:
        named = Named(url, token_file, data=str(data_folder.data))
        contexts.save(
            contexts.default_path(), lambda known: name_for(known, data_folder.data), named
        )
    except Failure as problem:
        why = f"{problem.what} ({problem.where})"
    except OSError as problem:
        why = f"{problem.filename or 'the contexts'} cannot be written: {problem.strerror}"
    else:
        return ""
    return f"no context: {why}; commands need --url {url}, and --token or SHIFTWORK_TOKEN"


def announce(
    data_folder: DataFolder,
    url: str,
    pid: int,
    show: Callable[[str], None],
    warn: Callable[[str], None],
) -> None:
    """Print the address of a platform that is ready, and make it the current context: another one
    may have become the current context meanwhile."""
    problem = make_current(data_folder, url)
    token_file = str(data_folder.credentials.admin_token_file)
    if render.wants_json():
        render.document(
            {"url": url, "pid": pid, "data": str(data_folder.data), "admin_token_file": token_file}
        )
    else:
        show(f"Shiftwork is ready at {url}")
        show(f"Administrator's token: {token_file}")
    if problem:
        warn(problem)
