"""The environment that a task's command is looked up in: the submitter's, where tasks run on the
same machine. Called by ``submit``; ``hint_for`` by every command that shows how a task ended."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Mapping, Sequence, cast
from urllib.parse import unquote, urlsplit

from shiftwork.cli import parse
from shiftwork.cli.failures import usage

if TYPE_CHECKING:
    from shiftwork.cli.contexts import Target

# The variables that activating an environment sets. No other variable of the submitter is passed
# on.
ACTIVATED = ("PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV")
# A file in the folder of an environment shows its kind: the variable that then names it.
MARKERS = {"pyvenv.cfg": "VIRTUAL_ENV", "conda-meta": "CONDA_PREFIX"}
_MISSING = re.compile(r"ModuleNotFoundError: No module named '([^']+)'")


def runs_here(body: dict[str, Any], target: Target, tasks_run_as: Callable[[], str]) -> bool:
    """Whether a new task has this machine's files.

    Pods have a file system of their own, however near the server seems. ``tasks_run_as`` asks the
    server for the user of its tasks, which only a server of processes has; that one ignores what a
    task requests of pods.
    """
    return target.is_local and ("pod" not in body or bool(tasks_run_as()))


def add(body: dict[str, Any], venv: Path | None, *, is_here: bool) -> None:
    """Put the environment that is activated, or the one that ``--venv`` names, into the variables
    of a new task that runs on this machine (``is_here``), unless the task sets PATH."""
    given: Any = body.get("env") or {}
    if venv is not None and not is_here:
        raise usage(
            "--venv names a folder of this machine, and the task runs on another",
            where=str(venv),
            fix="leave --venv out; --env PATH=... or an image sets which programs it finds there",
        )
    if venv is not None and "PATH" in parse.fields(given):
        raise usage(
            "--venv and the variable PATH both set where programs are found",
            where=str(venv),
            fix="leave one of them out",
        )
    if not is_here or not isinstance(given, dict) or "PATH" in given:
        return
    found = named(venv, os.environ) if venv else activated(os.environ, sys.argv[0])
    body["env"] = {**found, **cast("dict[str, Any]", given)}


def activated(environ: Mapping[str, str], program: str) -> dict[str, str]:
    """The variables of the environment that this shell has activated.

    Where none is, and ``program`` was called by a path in an environment that PATH does not name
    (``.venv/bin/shiftwork submit ...``), that environment counts as activated.
    """
    found = {name: environ[name] for name in ACTIVATED if environ.get(name)}
    folder = Path(os.path.abspath(program)).parent  # noqa: PTH100 - keeps links
    if (
        len(found.keys() - {"PATH"}) == 0
        and str(folder) not in found.get("PATH", "").split(os.pathsep)
        and (folder.parent / "pyvenv.cfg").is_file()
    ):
        return named(folder.parent, environ)
    return found


def named(folder: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables as if the environment in ``folder`` were activated. Raises Failure if there is
    none."""
    whole = Path(os.path.abspath(folder.expanduser()))  # noqa: PTH100 - keeps links
    python = whole / "bin" / "python"
    if not os.access(python, os.X_OK):
        raise usage(
            f"there is no environment: {python} is not a program",
            where=f"--venv {folder}",
            fix=f"give the folder of one, or make it: python3 -m venv {shlex.quote(str(folder))}",
        )
    variable = next(
        (its for file, its in MARKERS.items() if (whole / file).exists()),
        "VIRTUAL_ENV",
    )
    path = environ.get("PATH") or os.defpath
    return {"PATH": f"{python.parent}{os.pathsep}{path}", variable: str(whole)}


def hint_for(last_lines: Sequence[str], interpreter: str = "") -> str:
    """What to do about a failed task whose output ends with a module that Python did not find;
    empty for every other end.

    ``interpreter`` is the Python that ran, if that is known (``interpreter_of``).
    """
    found = next((hit for line in reversed(last_lines) for hit in _MISSING.findall(line)), "")
    if not found:
        return ""
    module = found.partition(".")[0]
    python = interpreter or "python"
    ran = f"{interpreter} ran the task and has" if interpreter else "the task's Python has"
    what, wanted = (
        ("install the SDK there", sdk())
        if module == "shiftwork"
        else ("install what provides it there", module)
    )
    return (
        f"{ran} no module {module!r}: {what} ({pip_install(python, wanted)}), "
        "or submit from the activated environment that has it, or with --venv DIR"
    )


def interpreter_of(task: Mapping[str, Any]) -> str:
    """The Python that a task's command finds on the task's PATH; empty if that is unknown here."""
    roles = [parse.fields(role) for role in parse.listed(task.get("roles"))]
    first = roles[0] if roles else {}
    path = str({**parse.fields(task.get("env")), **parse.fields(first.get("env"))}.get("PATH", ""))
    command = [str(word) for word in parse.listed(first.get("command"))]
    if not path or not command:
        return ""
    name = command[0] if Path(command[0]).name.startswith("python") else "python"
    return shutil.which(name, path=path) or shutil.which("python3", path=path) or ""


def pip_install(python: str, what: str) -> str:
    """The command that installs something where ``python`` finds it."""
    return f"{shlex.quote(python)} -m pip install {shlex.quote(what)}"


def sdk(extras: str = "") -> str:
    """The source of this SDK as an argument of pip: a folder, a wheel or the name."""
    try:
        context: Any = json.loads(
            metadata.distribution("shiftwork").read_text("direct_url.json") or "{}"
        )
    except (metadata.PackageNotFoundError, ValueError):
        context = {}
    url = str(parse.fields(context).get("url") or "shiftwork")
    return (unquote(urlsplit(url).path) if url.startswith("file:") else url) + extras
