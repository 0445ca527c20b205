"""``shiftwork context ls|use|show|rm``: the servers known by name, and which one is current."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any, Generator

import typer

from shiftwork.cli import complete, contexts, installed, render, session
from shiftwork.cli.failures import Failure


def register(app: session.App) -> None:
    """Add the commands."""
    group = session.App(
        name="context", help="Servers by name; `up` and `k8s up` add theirs.", no_args_is_help=True
    )
    group.command("ls")(ls)
    group.command("use")(use)
    group.command("show")(show)
    group.command("rm")(remove)
    app.add_typer(group)


def ls() -> None:
    """List the contexts; the current one is marked."""
    current, known = contexts.load(contexts.default_path())
    if session.current().json:
        items = [_document(name, known[name], current=name == current) for name in sorted(known)]
        render.document({"current": current or None, "items": items})
        return
    rows = [
        ["*" if name == current else "", name, known[name].url, _where(known[name])]
        for name in sorted(known)
    ]
    none = f"no contexts: {installed.platform('up')} makes one"
    render.table(("CURRENT", "NAME", "URL", "WHERE"), rows, none)


_NAME = typer.Argument(
    ..., metavar="NAME", help="As `ls` shows it.", autocompletion=complete.context_names
)


def use(name: str = _NAME) -> None:
    """Make a context the current one: for every command without --url and --context."""
    path = contexts.default_path()
    with _writing(path):
        contexts.use(path, name)
    render.note(f"{name} is the current context")


@contextlib.contextmanager
def _writing(path: Path) -> Generator[None, None, None]:
    try:
        yield
    except OSError as error:
        raise Failure(
            f"the contexts cannot be written: {error.strerror}",
            where=str(path),
            fix="give --context with each command",
        ) from error


def remove(name: str = _NAME) -> None:
    """Forget a context. The server, its data folder and the token's file stay as they are."""
    path = contexts.default_path()
    with _writing(path):
        was_current = contexts.remove(path, name)
    if session.current().json:
        render.document({"name": name, "removed": True})
        return
    render.note(f"context {name} is removed")
    if was_current:
        render.note("no context is the current one: `shiftwork context use NAME` chooses another")


def show(
    name: str | None = typer.Argument(
        None,
        metavar="NAME",
        help="Left out: the one in use.",
        autocompletion=complete.context_names,
    ),
) -> None:
    """Show a context; without NAME, which server commands go to now, and why."""
    now, path = session.current(), contexts.default_path()
    choice = contexts.choose(
        url=now.url, context=name or now.context, environ=os.environ, path=path
    )
    if choice is None:
        raise contexts.unknown(path)
    current, _ = contexts.load(path)
    named = choice.named or contexts.Named(choice.url, "")
    if now.json:
        found = _document(choice.name, named, current=choice.name == current)
        render.document({**found, "url": choice.url})
        return
    render.facts(
        (
            ("name", choice.name or "(none: an address without a context)"),
            ("url", choice.url),
            ("given by", "" if name else choice.because),
            ("token file", named.token_file),
            ("data folder", named.data),
        )
    )


def _where(named: contexts.Named) -> str:
    return named.data or ("elsewhere" if named.remote else "")


def _document(name: str, named: contexts.Named, *, current: bool) -> dict[str, Any]:
    return {
        "name": name or None,
        "url": named.url,
        "token_file": named.token_file or None,
        "remote": named.remote,
        "data": named.data or None,
        "current": current,
    }
