"""TLS trust of a bus client: the certificate authority for its servers."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from pathlib import Path

SCHEME = "tls://"


def authority(path: Path | None) -> Path | None:
    """The file, if it holds certificates; ValueError, naming it, if it does not."""
    if path is not None:
        trust(path)
    return path


def trust(path: Path | None) -> ssl.SSLContext:
    """Return a TLS context that trusts this authority; None: the machine's own authorities."""
    try:
        return ssl.create_default_context(cafile=path)
    except (OSError, ssl.SSLError) as problem:
        raise ValueError(f"{path} holds no certificate of an authority ({problem})") from problem


def wants_tls(urls: Sequence[str]) -> bool:
    """True if these addresses use TLS; ValueError if only some of them do."""
    secure = [url for url in urls if url.startswith(SCHEME)]
    if secure and len(secure) < len(urls):
        raise ValueError(f"write {SCHEME}HOST:PORT for each of the servers, or for none")
    return bool(secure)
