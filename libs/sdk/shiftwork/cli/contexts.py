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
from typing import Any, Callable, Generator, Mapping, TypeVar
from urllib.parse import urlsplit

from shiftwork.cli import guide, homes, installed, parse
from shiftwork.cli.failures import UNREACHABLE, USAGE, Failure, usage

try:
    import fcntl
except ImportError:  # Windows: nothing there starts two platforms at once
    fcntl = None  # type: ignore[assignment]

FOLDER = "shiftwork"
# Below it.
TOKENS = "tokens"
# How much is shown of a wrong value.
SHOWN_MAX = 40
T = TypeVar("T")
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True)
class Named:
    """One context. ``remote``: tasks run on other machines, even if the address is a tunnel's on
    this one.

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
    # The data folder of a platform that `up` runs on this machine, at whatever address.
    data: str = ""

    @property
    def is_local(self) -> bool:
        """True if the server is on this machine, so that paths mean the same to both."""
        return not self.remote and (bool(self.data) or parse.is_loopback(self.url))


@dataclass(frozen=True)
class Choice:
    """The chosen server: its context, if it has one, and the source of the choice."""

    url: str
    because: str
    name: str = ""
    named: Named | None = None


def default_path() -> Path:
    """The path of the contexts file. Raises Failure if no home is known."""
    return homes.config().path / FOLDER / "contexts.json"


def logins() -> Path:
    """The folder of the tokens that `shiftwork login` has made."""
    return homes.config().path / FOLDER / TOKENS


def load(path: Path) -> tuple[str, dict[str, Named]]:
    """The current context's name (perhaps empty) and all contexts; none if there is no file.

    Raises Failure for a file that cannot be parsed: commands would go to another server.
    """
    document = _read(path)
    contexts = {name: _named(fields) for name, fields in document["contexts"].items()}
    return document["current"], contexts


def _read(path: Path) -> dict[str, Any]:
    """The file's document, with values of the right types. Fields that are not known stay."""
    problem: object
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        _check(document)
    except FileNotFoundError:
        return {"current": "", "contexts": {}}
    except OSError as error:
        problem = f"it cannot be read: {error.strerror}"
    except UnicodeDecodeError:
        problem = "it is not UTF-8"
    except (json.JSONDecodeError, RecursionError) as error:
        problem = f"it is not JSON: {error}"
    except ValueError as error:
        problem = error
    else:
        return {**document, "current": document.get("current") or ""}
    raise Failure(
        f"the contexts are not understood: {problem}",
        where=str(path),
        fix=f"correct the file, or move it away ({installed.platform('up')} writes another);"
        " --url together with --token does without it",
    )


EXAMPLE_URL = "http://127.0.0.1:8642"


def _check(document: Any) -> None:  # noqa: ANN401 - whatever the file holds
    """Raises ValueError with the place and the expected value."""
    _expect(document, "the file", dict, {"current": "local", "contexts": {}})
    _expect(document.setdefault("contexts", {}), "contexts", dict, {})
    _expect(document.get("current"), "current", str, "local")
    for name, fields in document["contexts"].items():
        place = f"contexts.{name}"
        _expect(fields, place, dict, {"url": EXAMPLE_URL})
        if not fields.get("url"):
            raise ValueError(f"{place} has no url")
        for field, kind, example in _FIELDS:
            _expect(fields.get(field), f"{place}.{field}", kind, example)


# The type of each field of a context, and an example.
_FIELDS: tuple[tuple[str, type, object], ...] = (
    ("url", str, EXAMPLE_URL),
    ("token_file", str, "/home/ann/token"),
    ("remote", bool, True),
    ("data", str, "/var/lib/shiftwork"),
)


def _expect(found: object, place: str, kind: type, example: object) -> None:
    """A missing value means the default."""
    if (found is None and kind is not dict) or isinstance(found, kind):
        return
    shown = json.dumps(found)
    cut = shown if len(shown) <= SHOWN_MAX else shown[: SHOWN_MAX - 1] + "…"
    raise ValueError(f"{place} is {cut}, which is not of the form {json.dumps(example)}")


def _named(fields: Mapping[str, Any]) -> Named:
    return Named(
        fields["url"],
        fields.get("token_file") or "",
        bool(fields.get("remote")),
        fields.get("data") or "",
    )


def save(path: Path, name_for: Callable[[Mapping[str, Named]], str], context: Named) -> None:
    """Add or replace a context and make it the current one; ``name_for`` gives its name, from the
    contexts that are there. Contexts of other platforms of this machine that had the address
    before are removed. Written 0600, in one step. Raises Failure, and writes nothing, if the
    file is not understood."""
    with _changing(path) as document:
        name = name_for({each: _named(fields) for each, fields in document["contexts"].items()})
        fields: dict[str, object] = {"url": context.url, "token_file": context.token_file}
        more = {"remote": context.remote, "data": context.data}
        fields.update({field: value for field, value in more.items() if value})
        document["contexts"][name] = fields
        document["current"] = name
        if not context.data:
            return
        # A platform of this machine that had the address before does not answer there any more:
        # its context would show its token to this one.
        for other, each in list(document["contexts"].items()):
            if other != name and each.get("data") and _same(each["url"], context.url):
                del document["contexts"][other]


def use(path: Path, name: str) -> None:
    """Make a context the current one. Raises Failure if it is not there."""
    with _changing(path) as document:
        known(path, document["contexts"], name)
        document["current"] = name


def remove(path: Path, name: str) -> bool:
    """Forget a context; True if it was the current one. Raises Failure if it is not there."""
    with _changing(path) as document:
        known(path, document["contexts"], name)
        del document["contexts"][name]
        was_current = document["current"] == name
        if was_current:
            document["current"] = ""
    return was_current


@contextlib.contextmanager
def _changing(path: Path) -> Generator[dict[str, Any], None, None]:
    """The file's document, which no other process changes meanwhile; written at the end. The lock
    is the process's: it ends with it, and its file stays."""
    if path == default_path():
        homes.config().make(FOLDER)
    lock = os.open(path.with_name(f".{path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if fcntl is not None:
            fcntl.flock(lock, fcntl.LOCK_EX)
        document = _read(path)
        yield document
        _write(path, document)
    finally:
        os.close(lock)


def known(path: Path, contexts: Mapping[str, T], name: str) -> T:
    """The context of this name. Raises Failure, with those that are there, if there is none."""
    if name not in contexts:
        names = ", ".join(sorted(contexts)) or "none"
        raise usage(
            f"there is no context {name!r}",
            where=str(path),
            fix=f"{guide.meant(name, contexts)} known contexts: {names}".strip(),
        )
    return contexts[name]


def _write(path: Path, document: Mapping[str, Any]) -> None:
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        json.dump(document, stream, indent=2)
        stream.write("\n")
    fresh.replace(path)


def choose(
    *, url: str, context: str, environ: Mapping[str, str], path: Path | None = None
) -> Choice | None:
    """The server to use: option, then environment, then the current context; None if none is given.
    A server given by its URL has the context of that URL, if there is one.

    A named context (``--context``) stands in for the option: it wins over the environment.
    """
    path = path or default_path()
    current, contexts = load(path)
    if context:
        named = known(path, contexts, context)
        return Choice(url or named.url, "--context", context, named)
    chosen, because = _address(url, environ)
    if chosen:
        for name in sorted(contexts, key=lambda each: each != current):
            if _same(contexts[name].url, chosen):
                return Choice(chosen, because, name, contexts[name])
        return Choice(chosen, because)
    if current in contexts:
        return Choice(contexts[current].url, "the current context", current, contexts[current])
    return None


def _address(url: str, environ: Mapping[str, str]) -> tuple[str, str]:
    """The server that is given by its address, and the source of the address; empty if there is
    none."""
    return (url, "--url") if url else (environ.get("SHIFTWORK_URL", ""), "SHIFTWORK_URL")


def target(
    *, url: str, token: str, context: str, environ: Mapping[str, str], path: Path | None = None
) -> Target:
    """The server of ``choose``, with its token: option, environment, the context's."""
    held = _checked(token, "--token")
    if not (held or context):
        # The environment's token is for the environment's server, not for a context's.
        held = _from_environment(environ)
    try:
        choice = choose(url=url, context=context, environ=environ, path=path)
    except Failure:
        # Contexts that cannot be read do not matter if an address and a token are given.
        given, _ = _address(url, environ)
        if context or not (given and held):
            raise
        return Target(given, held)
    if choice is None:
        raise unknown(path or default_path())
    if choice.named is None:
        return Target(choice.url, held)
    named = choice.named
    return Target(choice.url, held or _token(named), named.remote, named.data)


def unknown(path: Path) -> Failure:
    """The error if no server is given."""
    return Failure(
        "no server is known",
        where=str(path),
        fix=f"start one with {installed.platform('up')}, or give --url (SHIFTWORK_URL)",
        code=UNREACHABLE,
    )


def _from_environment(environ: Mapping[str, str]) -> str:
    """The token of the environment; empty if there is none. An empty variable is an error: what was
    to fill it has failed, and the context's token may do more than the one that was meant."""
    if "SHIFTWORK_TOKEN" not in environ:
        return ""
    found = _checked(environ["SHIFTWORK_TOKEN"], "SHIFTWORK_TOKEN")
    if not found:
        raise usage(
            "it is set, but empty",
            where="SHIFTWORK_TOKEN",
            fix="give it your token, or unset it for the token of the context",
        )
    return found


def _token(named: Named) -> str:
    if not named.token_file:
        return ""
    try:
        text = Path(named.token_file).read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        if isinstance(error, FileNotFoundError) and Path(named.token_file).parent == logins():
            what = "you are logged out"
            raise Failure(what, where=named.url, fix="shiftwork login") from error
        why = "it is not UTF-8" if isinstance(error, ValueError) else error.strerror
        raise Failure(
            f"the token cannot be read: {why}",
            where=named.token_file,
            fix="give --token or SHIFTWORK_TOKEN, or start"
            f" {installed.platform('up', data=named.data)} again"
            if named.data
            else "give --token or SHIFTWORK_TOKEN, or run `shiftwork login`",
        ) from error
    return _checked(text, named.token_file)


def _checked(token: str, where: str) -> str:
    """The token without what editors and shells leave around it. A header can carry no other
    characters than printable ASCII; the message must not repeat the token."""
    found = token.strip().lstrip("\ufeff").strip()
    wrong = next((each for each in found if not "!" <= each <= "~"), None)
    if wrong is not None:
        raise Failure(
            f"the token has a character that no token has: {wrong!a}",
            where=where,
            fix="copy it again, as `shiftwork token create` printed it",
            code=USAGE,
        )
    return found


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
        "127.0.0.1" if parse.is_loopback(url) else host,
        port,
        parts.path.rstrip("/"),
    )
