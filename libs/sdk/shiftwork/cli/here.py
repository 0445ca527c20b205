"""Whether a task could start where it is submitted: its working directory and its programs.

Called by ``submit`` where the server is on this machine, so that paths mean the same to both.
Elsewhere nobody but the task's nodes could say.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any, Mapping, Sequence

from shiftwork.cli import files, guide, parse
from shiftwork.cli.failures import Failure

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_RUNNERS = {".py": "python", ".sh": "bash", ".R": "Rscript", ".jl": "julia"}
FORCE = "--force submits it nevertheless"


def check(body: Mapping[str, Any], *, directory: str, command: str) -> None:
    """Raises Failure for a directory that is not there, or a program that cannot be found.

    Args:
        body: the new task, in the API's fields.
        directory: what people typed to give the directory, such as ``--workdir``.
        command: the same for the command.
    """
    at = str(body.get("working_directory") or "")
    if at:
        _directory(at, directory)
    programs: list[tuple[str, Sequence[Any], Mapping[str, Any]]] = []
    env = parse.fields(body.get("env"))
    if body.get("command"):
        programs.append((command, parse.listed(body["command"]), env))
    for index, each in enumerate(parse.listed(body.get("roles"))):
        role = parse.fields(each)
        place = f"roles[{index}].command"
        own = {**env, **parse.fields(role.get("env"))}
        programs.append((place, parse.listed(role.get("command")), own))
    for where, words, variables in programs:
        if words and isinstance(words[0], str):
            _program(words, search_path(variables), at, where)


def search_path(env: Mapping[str, Any]) -> str:
    """Where the task's programs are looked for: its own PATH, or whatever it may be given."""
    if "PATH" in env:
        return str(env["PATH"])
    platform = str(Path(sys.executable).parent)
    return os.pathsep.join([os.environ.get("PATH", ""), platform, DEFAULT_PATH])


def _directory(at: str, where: str) -> None:
    try:
        there = os.path.exists(at)  # noqa: PTH110 - whatever it is called
        if os.path.isdir(at):  # noqa: PTH112 - as above
            return
    except (OSError, ValueError):
        return
    if not there:
        fix = files.near(Path(at)) or f"make it: mkdir -p {shlex.quote(at)}"
        raise Failure(f"{where} {at}: there is no such directory", where=where, fix=fix)
    fix = "give the directory that it lies in"
    raise Failure(f"{where} {at}: this is a file, no directory", where=where, fix=fix)


def _program(words: Sequence[Any], path: str, directory: str, where: str) -> None:
    program = str(words[0])
    if not program or "\0" in program:
        return
    folder = Path(directory or os.curdir)
    if "/" in program:
        found = folder / program
        if os.access(found, os.X_OK) and found.is_file():
            return
        # Somebody else's folder: who runs the task may see more.
        if not os.access(found.parent, os.X_OK) and found.parent.exists():
            return
    elif shutil.which(program, path=path):
        return
    said, fix = _advice(program, words, folder, path)
    raise Failure(f"{where} {program!r}: {said}", where=where, fix=f"{fix}; {FORCE}")


def _advice(program: str, words: Sequence[Any], folder: Path, path: str) -> tuple[str, str]:
    rest = [str(word) for word in words[1:]]
    there = folder / program
    if there.is_file():
        runner = _RUNNERS.get(there.suffix)
        if runner:
            line = shlex.join([runner, program, *rest])
        elif os.access(there, os.X_OK):
            line = shlex.join([f"./{program}", *rest])
        else:
            return "this file is not executable", f"chmod +x {shlex.quote(str(there))}"
        return f"this file of {folder} is no command on the PATH", f"write: -- {line}"
    if " " in program.strip() and not rest:
        return "this is a whole command line in one word", f"write it without quotes: -- {program}"
    said = "there is no such file" if "/" in program else "no such command is on the PATH"
    said += f" (in {folder})" if "/" in program else ""
    names: set[str] = set()
    if "/" not in program:
        for each in path.split(os.pathsep):
            if each:
                names.update(files.entries(Path(each)))
    meant = guide.meant(program, sorted(names), 0.75)
    if meant:
        return said, meant
    return said, "give its path, or install it; with --env PATH=... another PATH is searched"
