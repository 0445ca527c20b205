"""Named servers: ``~/.config/shiftwork/contexts.json``, and which server and token to use.

The file names for each context a URL and the path of a file that holds the token alone; it and
the token files are the owner's only (0600). ``shiftwork up`` writes it; commands read it.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Mapping, cast
from urllib.parse import urlsplit

from shiftwork.cli.failures import UNREACHABLE, Failure, usage

_PORTS = {"http": 80, "https": 443}
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True)
class Named:
    """One context. ``remote``: tasks run elsewhere, though the address may be a tunnel's here."""

    url: str
    token_file: str
    remote: bool = False


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


def default_path() -> Path:
    """Where the contexts lie."""
    return Path.home() / ".config" / "shiftwork" / "contexts.json"


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
    for name, told in cast("dict[str, Any]", whole.get("contexts") or {}).items():
        if isinstance(told, dict):
            fields = cast("dict[str, Any]", told)
            contexts[name] = Named(
                str(fields.get("url", "")),
                str(fields.get("token_file", "")),
                fields.get("remote") is True,
            )
    return str(whole.get("current") or ""), contexts


def save(path: Path, name: str, context: Named) -> None:
    """Add or replace a context and make it the current one. Written 0600, in one step."""
    _, contexts = load(path)
    contexts[name] = context
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    document = {
        "current": name,
        "contexts": {
            key: {
                "url": one.url,
                "token_file": one.token_file,
                **({"remote": True} if one.remote else {}),
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


def target(*, url: str, token: str, context: str, environ: Mapping[str, str], path: Path) -> Target:
    """Where to go: option, then environment, then a context whose URL matches, then the current.

    A named context (``--context``) stands in for the option: it wins over the environment.
    """
    current, contexts = load(path)
    if context:
        if context not in contexts:
            known = ", ".join(sorted(contexts)) or "none"
            raise usage(
                f"there is no context {context!r}", where=str(path), fix=f"known contexts: {known}"
            )
        named = contexts[context]
        return Target(url or named.url, token or _token(named), named.remote)
    chosen = url or environ.get("SHIFTWORK_URL", "")
    fallback = contexts.get(current)
    if not chosen:
        if fallback is None:
            raise Failure(
                "no server is known",
                where=str(path),
                fix="start one with `shiftwork up`, or give --url (SHIFTWORK_URL)",
                code=UNREACHABLE,
            )
        chosen = fallback.url
    held = token or environ.get("SHIFTWORK_TOKEN", "")
    preferred = ([fallback] if fallback else []) + list(contexts.values())
    for named in preferred:
        if _same(named.url, chosen):
            return Target(chosen, held or _token(named), named.remote)
    return Target(chosen, held)


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
