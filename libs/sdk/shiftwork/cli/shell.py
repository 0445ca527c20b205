"""``shiftwork completion SHELL`` and ``shiftwork version``."""

import os
import platform
import subprocess
import sys
from importlib import metadata
from typing import Any, Dict

import typer

from shiftwork import __version__
from shiftwork.cli import choices, complete, parse, render, session
from shiftwork.cli.failures import Failure


def register(app: session.App) -> None:
    """Add the commands."""
    app.command("completion")(completion)
    app.command("version")(version)


def completion(
    shell: str = typer.Argument(
        ..., metavar="SHELL", help=", ".join(choices.SHELLS), autocompletion=complete.shells
    ),
) -> None:
    """Print the completion script of a shell: source it from the shell's start file."""
    parse.choice(shell, choices.SHELLS, "known shell", "SHELL")
    # Typer writes the script when this variable is set; the script sets it when it completes.
    done = subprocess.run(
        [sys.executable, "-c", "from shiftwork.cli.main import app; app(prog_name='shiftwork')"],
        env={**os.environ, "_SHIFTWORK_COMPLETE": f"source_{shell}"},
        capture_output=True,
        text=True,
        check=False,
    )
    if not done.stdout:
        raise Failure("no completion script came", where=shell, fix=done.stderr.strip())
    render.block(done.stdout.rstrip("\n"))


def version() -> None:
    """Print the version of this program, and of the platform if it is installed here."""
    found: Dict[str, Any] = {"client": __version__, "python": platform.python_version()}
    try:
        found["platform"] = metadata.version("shiftwork-platform")
    except metadata.PackageNotFoundError:
        found["platform"] = None
    if session.current().json:
        render.document(found)
    else:
        render.line(f"shiftwork {found['client']}")
