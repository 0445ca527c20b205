"""Files that are complete on disk once they have their name, with their digests.

Standard library only: for checkpoints of any framework. Nothing here talks to the platform.
"""

from __future__ import annotations

import hashlib
import os
from itertools import takewhile
from pathlib import Path
from typing import IO, Any, Callable

CHUNK_BYTES = 1 << 20
HALF = ".writing"
"""What the name of a file ends with until the file is complete."""


class _Hashing:
    """A binary file that is only written to, in order; knows the digest of what was written."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._found = hashlib.sha256()

    def write(self, data: Any) -> int:  # noqa: ANN401 - bytes or any buffer
        view = memoryview(data).cast("B")
        self._found.update(view)
        return self._stream.write(view)

    def flush(self) -> None:
        self._stream.flush()

    @property
    def digest(self) -> str:
        return f"sha256:{self._found.hexdigest()}"


def write(path: str | os.PathLike[str], body: Callable[[Any], object]) -> str:
    """Make the file by ``body(stream)``; returns its digest (``sha256:…``) when it is durable.

    The file has its name only when it is complete: it is written beside it, synced and renamed.
    """
    final = Path(path)
    half = final.with_name(final.name + HALF)
    with half.open("wb") as stream:
        hashing = _Hashing(stream)
        body(hashing)
        stream.flush()
        os.fsync(stream.fileno())
    half.replace(final)
    sync_folder(final.parent)
    return hashing.digest


def make_folder(path: str | os.PathLike[str]) -> None:
    """Make a folder, and those above it that are missing, all of them durable.

    Raises FileExistsError if it is there.
    """
    final = Path(path)
    missing = [final, *takewhile(lambda above: not above.exists(), final.parents)]
    for folder in reversed(missing):
        folder.mkdir(exist_ok=folder != final)
        sync_folder(folder.parent)


def sync(path: str | os.PathLike[str]) -> None:
    """Make a file, or a folder with all that it holds, durable."""
    root = Path(path)
    for folder, _folders, files in os.walk(root):
        for name in files:
            _sync_file(Path(folder) / name)
        sync_folder(Path(folder))
    if root.is_file():
        _sync_file(root)
    sync_folder(root.parent)


def digest(path: str | os.PathLike[str]) -> str:
    """Compute ``sha256:…`` of a file, or of the names and contents of a folder's files in order."""
    root = Path(path)
    if root.is_file():
        return f"sha256:{_of_file(root).hexdigest()}"
    found = hashlib.sha256()
    for file in sorted(path for path in root.rglob("*") if path.is_file()):
        name = file.relative_to(root).as_posix().encode()
        found.update(b"%d:%s%s" % (len(name), name, _of_file(file).digest()))
    return f"sha256:{found.hexdigest()}"


def check(path: str | os.PathLike[str], expected: str | None) -> None:
    """Raise ValueError unless ``digest(path)`` is the expected one (None: anything is)."""
    if expected is not None and (found := digest(path)) != expected:
        raise ValueError(f"{path} is not what was saved: its digest is {found}, not {expected}")


def _of_file(path: Path) -> Any:  # noqa: ANN401 - hashlib's type has no public name
    found = hashlib.sha256()
    with path.open("rb") as stream:
        for chunk in iter(lambda: stream.read(CHUNK_BYTES), b""):
            found.update(chunk)
    return found


def _sync_file(path: Path) -> None:
    with path.open("rb") as stream:
        os.fsync(stream.fileno())


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
