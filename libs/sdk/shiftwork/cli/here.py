"""Whether a task could start where it is submitted: its working directory and its programs, and
whether the user that the task runs as can use them.

Called by ``submit`` where the server is on this machine, so that paths mean the same to both.
Elsewhere only the task's nodes know.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Iterator, Mapping, Sequence

from shiftwork.cli import environments, guide, input_files, parse, rights
from shiftwork.cli.failures import Failure

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_RUNNERS = {".py": "python", ".sh": "bash", ".R": "Rscript", ".jl": "julia"}
# Programs that run a script which is one of their arguments.
_INTERPRETER = re.compile(r"(python|bash|sh|Rscript|julia|torchrun|accelerate|deepspeed)[\d.]*")
FORCE = "--force submits it nevertheless"


@dataclass(frozen=True)
class _Program:
    """A command of a task. ``place`` is the option or argument that gave it."""

    place: str
    words: Sequence[Any]
    env: Mapping[str, Any]
    # Where it starts: the role's directory, else the task's; empty if none is given.
    directory: str
    # The field or option that gave the directory.
    directory_place: str


def check(body: Mapping[str, Any], *, directory: str, command: str, typed: str = "") -> None:
    """Raises Failure for a directory that is not there, or a program that cannot be found.

    Args:
        body: the new task, in the API's fields.
        directory: the option that gave the directory, such as ``--workdir``.
        command: the same for the command.
        typed: the directory as it was typed, if it was.
    """
    at = str(body.get("working_directory") or "")
    if at:
        _directory(at, directory, typed or at)
    for each in _programs(body, command, directory):
        # The server refuses a role's directory that is no absolute path.
        if each.directory_place != directory and each.directory.startswith("/"):
            _directory(each.directory, each.directory_place, each.directory)
        # The server refuses values that are not lists of texts.
        if each.words and isinstance(each.words[0], str):
            _program(each.words, search_path(each.env), each.directory, each.place)


def check_rights(
    body: Mapping[str, Any], runs_as: Callable[[], str], *, directory: str, command: str
) -> None:
    """Raises Failure if the user that tasks run as cannot use the directory or a program.

    ``runs_as`` returns that user; it is called only if something is not readable for everybody.
    """
    programs = list(_programs(body, command, directory))
    at = str(body.get("working_directory") or "")
    if not any(_closed(at, directory, programs, rights.ANYBODY)):
        return
    text = runs_as()
    if not text:
        return
    user = rights.user_of(text)
    if user.uid == os.geteuid():
        return
    for where, wanted, part in _closed(at, directory, programs, user):
        fix = (
            f"put it where every user can read it, such as below /opt or /srv, or open that way:"
            f" chmod o+x {shlex.quote(part)}; {FORCE}"
        )
        what = f"{where} {wanted}: tasks run as {user.name} here, without access to {part}"
        raise Failure(what, where=where, fix=fix)


def _programs(body: Mapping[str, Any], command: str, directory: str) -> Iterator[_Program]:
    env = parse.fields(body.get("env"))
    at = str(body.get("working_directory") or "")
    if body.get("command"):
        yield _Program(command, parse.listed(body["command"]), env, at, directory)
    for index, each in enumerate(parse.listed(body.get("roles"))):
        role = parse.fields(each)
        own = {**env, **parse.fields(role.get("env"))}
        own_at = str(role.get("working_directory") or "")
        resume = parse.fields(role.get("resume"))
        of_resume = {**own, **parse.fields(resume.get("env"))}
        for place, words, variables in (
            ("command", role.get("command"), own),
            ("resume.command", resume.get("command"), of_resume),
            ("debug.command", parse.fields(role.get("debug")).get("command"), own),
        ):
            yield _Program(
                f"roles[{index}].{place}",
                parse.listed(words),
                variables,
                own_at or at,
                f"roles[{index}].working_directory" if own_at else directory,
            )


def _closed(
    at: str, directory: str, programs: Sequence[_Program], user: rights.User
) -> Iterator[tuple[str, str, str]]:
    """The first thing that the user cannot use: where it was given, what it is, and what is
    closed."""
    if at and (part := rights.closed_part(Path(at), user)):
        yield directory, at, part
    for each in programs:
        if each.directory_place != directory and each.directory.startswith("/"):
            part = rights.closed_part(Path(each.directory), user)
            if part:
                yield each.directory_place, each.directory, part
        if not each.words or not isinstance(each.words[0], str):
            continue
        found = list(_candidates(each.words[0], search_path(each.env), each.directory))
        if not found:
            continue
        needed = _environments_python(found[0], each.env)
        for program in [found[0], *needed]:
            part = rights.closed_part(program, user)
            # The next one on the PATH runs instead, but never another environment's.
            if part and (needed or all(rights.closed_part(other, user) for other in found)):
                yield each.place, str(program), part
                break


def _candidates(name: str, path: str, directory: str) -> Iterator[Path]:
    """The files that a command may be, in the order of the PATH."""
    if "/" in name:
        places = [Path(directory or os.curdir) / name]
    else:
        places = [Path(folder or os.curdir) / name for folder in path.split(os.pathsep)]
    for each in places:
        if each.is_file() and os.access(each, os.X_OK):
            yield each


def _environments_python(program: Path, env: Mapping[str, Any]) -> list[Path]:
    """The Python of the task's activated environment, if the program is one of its own: it runs in
    that Python or not at all."""
    folders = [
        Path(str(env[name])) / "bin" for name in environments.MARKERS.values() if env.get(name)
    ]
    return [folder / "python" for folder in folders if program.parent == folder]


def search_path(env: Mapping[str, Any]) -> str:
    """Where the task's programs are looked for: its own PATH, or whatever it may be given."""
    if "PATH" in env:
        return str(env["PATH"])
    platform = str(Path(sys.executable).parent)
    return os.pathsep.join([os.environ.get("PATH", ""), platform, DEFAULT_PATH])


def missing_scripts(body: Mapping[str, Any]) -> Iterator[str]:
    """Yield a warning for each missing script that a command gives to an interpreter. It is not an
    error, because a program may create the script before."""
    for each in _programs(body, "", ""):
        folder = Path(each.directory or os.curdir)
        if not os.access(folder, os.X_OK):
            continue
        words = [word for word in each.words if isinstance(word, str)]
        if not words or not _INTERPRETER.fullmatch(Path(words[0]).name):
            continue
        script = next((word for word in words[1:] if Path(word).suffix in _RUNNERS), "")
        before = words[1 : words.index(script)] if script else []
        path = folder / script
        if script and " " not in script and not {"-c", "-m"} & set(before) and not path.exists():
            yield f"{script}: there is no such file in {folder}; {input_files.near(path)}".rstrip(
                "; "
            )


def _directory(at: str, where: str, typed: str) -> None:
    try:
        there = os.path.exists(at)  # noqa: PTH110 - whatever it is called
        if os.path.isdir(at):  # noqa: PTH112 - as above
            return
    except (OSError, ValueError):
        return
    if not there:
        fix = input_files.near(Path(at)) or f"make it: mkdir -p {shlex.quote(at)}"
        if typed.startswith("~"):
            fix = f"write it without quotes, or as {os.path.expanduser(typed)}"  # noqa: PTH111 - as typed
        raise Failure(f"{where} {typed}: there is no such directory", where=where, fix=fix)
    fix = "give the directory that it lies in"
    raise Failure(f"{where} {typed}: this is a file, no directory", where=where, fix=fix)


def _program(words: Sequence[Any], path: str, directory: str, where: str) -> None:
    program = str(words[0])
    if not program or "\0" in program:
        return
    folder = Path(directory or os.curdir)
    if "/" in program:
        found = folder / program
        if os.access(found, os.X_OK) and found.is_file():
            return
        # Another user's folder: the user that runs the task may see more.
        if not os.access(found.parent, os.X_OK) and found.parent.exists():
            return
    elif shutil.which(program, path=path):
        return
    problem, fix = _advice(program, words, folder, path)
    raise Failure(f"{where} {program!r}: {problem}", where=where, fix=f"{fix}; {FORCE}")


def _advice(program: str, words: Sequence[Any], folder: Path, path: str) -> tuple[str, str]:
    rest = [str(word) for word in words[1:]]
    there = folder / program
    if there.is_file():
        runner = _RUNNERS.get(there.suffix)
        run = f"write: -- {shlex.join([runner, program, *rest])}" if runner else ""
        executable = f"chmod +x {shlex.quote(str(there))}"
        if "/" in program or not (runner or os.access(there, os.X_OK)):
            return "this file is not executable", f"{executable}, or {run}" if run else executable
        line = shlex.join([runner or f"./{program}", *([program] if runner else []), *rest])
        return f"this file of {folder} is no command on the PATH", f"write: -- {line}"
    if " " in program.strip() and not rest:
        return "this is a whole command line in one word", f"write it without quotes: -- {program}"
    problem = "there is no such file" if "/" in program else "no such command is on the PATH"
    problem += f" (in {folder})" if "/" in program else ""
    names: set[str] = set()
    if "/" not in program:
        for each in path.split(os.pathsep):
            if each:
                names.update(input_files.entries(Path(each)))
    meant = guide.meant(program, sorted(names), 0.75)
    if meant:
        return problem, meant
    if "/" in program:
        return problem, "give the path of a program that is there"
    return problem, (
        "give its path, or install it; with --venv DIR the environment in DIR is searched, and with"
        " --env PATH=... another PATH"
    )
