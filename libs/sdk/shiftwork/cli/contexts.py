"""Named servers: ``~/.config/shiftwork/contexts.json``, and which server and token to use.

The file names for each context a URL and the path of a file that holds the token alone; it and
the token files are the owner's only (0600). ``shiftwork up`` writes it; commands read it.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Generator, Mapping, cast
from urllib.parse import urlsplit

from shiftwork.cli import guide
from shiftwork.cli.failures import UNREACHABLE, Failure, usage

try:
    import fcntl
except ImportError:  # Windows: nothing there starts two platforms at once
    fcntl = None  # type: ignore[assignment]

_PORTS = {"http": 80, "https": 443}
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True)
class Named:
    """One context. ``remote``: tasks run elsewhere, though the address may be a tunnel's here.

    ``data`` is the data folder of a platform that ``shiftwork up`` runs on this machine.
    """

    url: str
    token_file: str
    remote: bool = False
    data: str = ""


@dataclass(frozen=True)
class Target:
    """The server to speak to, and with which token (perhaps none)."""

    url: str
    token: str
    remote: bool = False

    @property
    def is_local(self) -> bool:
        """True if the server is on this machine, so that paths mean the same to both."""
        return not self.remote and urlsplit(self.url).hostname in _LOOPBACK


@dataclass(frozen=True)
class Choice:
    """Which server is meant: its context, if it has one, and what says so."""

    url: str
    because: str
    name: str = ""
    named: Named | None = None


def default_path() -> Path:
    """Where the contexts lie."""
    base = os.environ.get("XDG_CONFIG_HOME", "")
    try:
        # A path that is not absolute is to be ignored, says the specification.
        folder = Path(base) if Path(base).is_absolute() else Path.home() / ".config"
    except RuntimeError as error:
        raise Failure(
            f"the contexts have no place: {error}",
            where="HOME",
            fix="set HOME or XDG_CONFIG_HOME, or give --url and --token",
        ) from error
    return folder / "shiftwork" / "contexts.json"


def load(path: Path) -> tuple[str, dict[str, Named]]:
    """The current context's name (perhaps empty) and all contexts; none if there is no file."""
    try:
        found: Any = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return "", {}
    except (OSError, ValueError) as error:
        raise Failure(
            f"the contexts cannot be read: {error}",
            where=str(path),
            fix="correct or remove the file, or give --url and --token",
        ) from error
    whole = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
    contexts: dict[str, Named] = {}
    listed: Any = whole.get("contexts")
    for name, told in cast("dict[str, Any]", listed if isinstance(listed, dict) else {}).items():
        if isinstance(told, dict):
            fields = cast("dict[str, Any]", told)
            contexts[name] = Named(
                str(fields.get("url", "")),
                str(fields.get("token_file", "")),
                fields.get("remote") is True,
                str(fields.get("data") or ""),
            )
    return str(whole.get("current") or ""), contexts


def save(path: Path, name_for: Callable[[Mapping[str, Named]], str], context: Named) -> None:
    """Add or replace a context and make it the current one; ``name_for`` gives its name, from the
    contexts that are there. Written 0600, in one step."""
    with _changing(path) as contexts:
        name = name_for(contexts)
        contexts[name] = context
        _write(path, name, contexts)


def use(path: Path, name: str) -> None:
    """Make a context the current one. Raises Failure if it is not there."""
    with _changing(path) as contexts:
        known(path, contexts, name)
        _write(path, name, contexts)


@contextlib.contextmanager
def _changing(path: Path) -> Generator[dict[str, Named], None, None]:
    """All contexts, which no other process changes meanwhile. The lock is the process's: it ends
    with it, and its file stays."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = os.open(path.with_name(f".{path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if fcntl is not None:
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield load(path)[1]
    finally:
        os.close(lock)


def known(path: Path, contexts: Mapping[str, Named], name: str) -> Named:
    """The context of this name. Raises Failure, with those that are there, if there is none."""
    if name not in contexts:
        names = ", ".join(sorted(contexts)) or "none"
        raise usage(
            f"there is no context {name!r}",
            where=str(path),
            fix=f"{guide.meant(name, contexts)} known contexts: {names}".strip(),
        )
    return contexts[name]


def _write(path: Path, current: str, contexts: Mapping[str, Named]) -> None:
    document = {
        "current": current,
        "contexts": {
            key: {
                "url": one.url,
                "token_file": one.token_file,
                **({"remote": True} if one.remote else {}),
                **({"data": one.data} if one.data else {}),
            }
            for key, one in contexts.items()
        },
    }
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        json.dump(document, stream, indent=2)
        stream.write("\n")
    fresh.replace(path)


def choose(*, url: str, context: str, environ: Mapping[str, str], path: Path) -> Choice | None:
    """Which server is meant: option, then environment, then the current context; None if nothing
    says so. A server given by its URL has the context of that URL, if there is one.

    A named context (``--context``) stands in for the option: it wins over the environment.
    """
    current, contexts = load(path)
    if context:
        named = known(path, contexts, context)
        return Choice(url or named.url, "--context", context, named)
    for chosen, because in ((url, "--url"), (environ.get("SHIFTWORK_URL", ""), "SHIFTWORK_URL")):
        if chosen:
            for name in sorted(contexts, key=lambda each: each != current):
                if _same(contexts[name].url, chosen):
                    return Choice(chosen, because, name, contexts[name])
            return Choice(chosen, because)
    if current in contexts:
        return Choice(contexts[current].url, "the current context", current, contexts[current])
    return None


def target(*, url: str, token: str, context: str, environ: Mapping[str, str], path: Path) -> Target:
    """Where to go, as ``choose`` says, and with which token: option, environment, the context's."""
    choice = choose(url=url, context=context, environ=environ, path=path)
    if choice is None:
        raise Failure(
            "no server is known",
            where=str(path),
            fix="start one with `shiftwork up`, or give --url (SHIFTWORK_URL)",
            code=UNREACHABLE,
        )
    # The environment's token is for the environment's server, not for a context that was named.
    held = token or ("" if context else environ.get("SHIFTWORK_TOKEN", ""))
    if choice.named is None:
        return Target(choice.url, held)
    return Target(choice.url, held or _token(choice.named), choice.named.remote)


def _token(named: Named) -> str:
    if not named.token_file:
        return ""
    try:
        return Path(named.token_file).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise Failure(
            f"the token cannot be read: {error.strerror}",
            where=named.token_file,
            fix="give --token or SHIFTWORK_TOKEN, or start `shiftwork up` again",
        ) from error


def _same(one: str, other: str) -> bool:
    return _key(one) == _key(other)


def _key(url: str) -> tuple[str, str, int | None, str]:
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        port = parts.port or _PORTS.get(parts.scheme)
    except ValueError:
        return (url, "", None, "")
    return (
        parts.scheme,
        "127.0.0.1" if host in _LOOPBACK else host,
        port,
        parts.path.rstrip("/"),
    )
