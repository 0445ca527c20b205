"""A bucket of an S3-compatible object storage, as the second place of sealed segments.

An object is a sealed file as it is. A range is read with one request for the end of the object,
which has the table (remembered afterwards), and one for the frames. Each call ends within a limited
time. Used by ``files``; imported only where a bucket is configured, because the client is large.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import obstore
from obstore.exceptions import BaseError
from obstore.store import ObjectStore, S3Store

from libs.service.clock import Clock
from services.log_collector.archives import seekable
from services.log_collector.archives.bucket_options import BucketOptions
from services.log_collector.archives.metrics import DAMAGED
from services.log_collector.archives.port import UnreachableError
from services.log_collector.archives.recent import Recent
from services.log_collector.archives.seekable import DamagedError, Frame, SeekTable

# Enough for the table of a whole segment.
TAIL_BYTES = 16_384
# Of how many objects the tables are remembered, and how many decompressed frames.
TABLES_MAX, FRAMES_MAX = 4096, 32
# Parts of one object that are sent at a time, each of 5 MiB.
PARTS_MAX = 2
# For so long credentials are used before their files are read again.
CREDENTIALS_FOR = timedelta(minutes=5)
LISTED_AT_ONCE = 1000


class Bucket:
    """One bucket, perhaps a part of it."""

    def __init__(
        self, store: ObjectStore, *, read_seconds: float = 4.0, write_seconds: float = 120.0
    ) -> None:
        self._store = store
        self._read_seconds, self._write_seconds = read_seconds, write_seconds
        self._tables: Recent[str, SeekTable] = Recent(TABLES_MAX)
        self._frames: Recent[tuple[str, int], bytes] = Recent(FRAMES_MAX)

    async def read(self, name: str, offset: int, bytes_max: int) -> bytes:
        """Up to so many plain bytes; empty if there is no such object."""
        async with _within(self._read_seconds):
            try:
                table = self._tables.get(name) or await self._fetch_table(name)
                frames = table.frames(offset, bytes_max)
                plain = await self._plain(name, frames)
            except FileNotFoundError:
                return b""
            except DamagedError:
                DAMAGED.inc(bytes_max)
                return seekable.filler(bytes_max)
        start = offset - frames[0].offset if frames else 0
        return b"".join(plain)[start : start + bytes_max]

    async def has_later(self, name: str, number: int) -> bool:
        """Whether there is a later segment of the same output."""
        folder, _, file = name.rpartition("/")
        rank = file.partition(".")[0]
        return any(_number(each) > number for each in await self._names(folder, f"{rank}."))

    async def put(self, name: str, path: Path) -> int:
        """Copy a file; returns its size once the bucket has it for certain."""
        size = (await asyncio.to_thread(path.stat)).st_size
        async with _within(self._write_seconds):
            await obstore.put_async(self._store, name, path, max_concurrency=PARTS_MAX)
        found = await self.size(name)
        if found != size:
            raise UnreachableError(f"the bucket has {found} bytes of {name}, not {size}")
        return size

    async def size(self, name: str) -> int:
        """The size of an object; 0 if there is none."""
        async with _within(self._read_seconds):
            try:
                found = await obstore.head_async(self._store, name)
            except FileNotFoundError:
                return 0
        return found["size"]

    async def remove(self, folder: str, start: str) -> None:
        """Remove the objects of a folder whose names begin so."""
        common = f"{folder}/{start}"
        self._tables.forget(lambda name: name.startswith(common))
        self._frames.forget(lambda frame: frame[0].startswith(common))
        while names := await self._names(folder, start):
            async with _within(self._write_seconds):
                await obstore.delete_async(self._store, [f"{folder}/{each}" for each in names])

    async def _names(self, folder: str, start: str) -> list[str]:
        """The first names of a folder that begin so."""
        names: list[str] = []
        async with _within(self._read_seconds):
            # Names come in their order, so those wanted are the first behind the common beginning.
            listing = obstore.list(
                self._store, folder, offset=f"{folder}/{start}", chunk_size=LISTED_AT_ONCE
            )
            async for chunk in listing:
                names += [meta["path"].rpartition("/")[2] for meta in chunk]
                break
        return [each for each in names if each.startswith(start)]

    async def _fetch_table(self, name: str) -> SeekTable:
        size, tail = await self._tail(name, TAIL_BYTES)
        length = seekable.table_bytes(tail[-seekable.FOOTER_BYTES :])
        if length > len(tail):
            size, tail = await self._tail(name, length)
        table = seekable.parse(tail[-length:], size)
        self._tables.put(name, table)
        return table

    async def _tail(self, name: str, count: int) -> tuple[int, bytes]:
        found = await obstore.get_async(self._store, name, options={"range": {"suffix": count}})
        size = found.meta["size"]
        return size, bytes(await found.bytes_async())

    async def _plain(self, name: str, frames: list[Frame]) -> list[bytes]:
        known = [self._frames.get((name, frame.at)) for frame in frames]
        if all(each is not None for each in known):
            return [each for each in known if each is not None]
        begin, end = frames[0].at, frames[-1].at + frames[-1].stored
        data = bytes(await obstore.get_range_async(self._store, name, start=begin, end=end))
        plain: list[bytes] = []
        for frame in frames:
            at = frame.at - begin
            found = await asyncio.to_thread(seekable.decode, frame, data[at : at + frame.stored])
            if found is None:
                DAMAGED.inc(frame.size)
                found = seekable.filler(frame.size)
            else:
                self._frames.put((name, frame.at), found)
            plain.append(found)
        return plain


def open_bucket(options: BucketOptions, clock: Clock) -> Bucket:
    """The bucket that the settings name. It need not answer now."""
    key_file, secret_file = options.bucket_key_id_file, options.bucket_secret_file
    assert key_file is not None
    assert secret_file is not None

    def credentials() -> Any:  # noqa: ANN401 - a type that only stubs have
        return {
            "access_key_id": key_file.read_text().strip(),
            "secret_access_key": secret_file.read_text().strip(),
            "expires_at": clock.now() + CREDENTIALS_FOR,
        }

    config: Any = {"region": options.bucket_region}
    if options.bucket_endpoint:
        config["endpoint"] = options.bucket_endpoint
    store = S3Store.from_url(
        options.bucket_url,
        config=config,
        client_options={
            "allow_http": options.bucket_endpoint.startswith("http://"),
            "connect_timeout": "3s",
            "timeout": timedelta(seconds=options.bucket_write_seconds),
        },
        retry_config={
            "max_retries": 3,
            "retry_timeout": timedelta(seconds=options.bucket_write_seconds),
        },
        credential_provider=credentials,
    )
    return Bucket(
        store,
        read_seconds=options.bucket_read_seconds,
        write_seconds=options.bucket_write_seconds,
    )


@asynccontextmanager
async def _within(seconds: float, *, may_be_absent: bool = False) -> AsyncGenerator[None]:
    """Limit the time, and make every failure but an object's absence an UnreachableError."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except FileNotFoundError as error:
        if may_be_absent:
            raise
        raise UnreachableError(_short(error)) from error
    except TimeoutError as error:
        raise UnreachableError(f"the bucket does not answer within {seconds:g} s") from error
    except (BaseError, OSError) as error:
        raise UnreachableError(_short(error)) from error


def _short(error: Exception) -> str:
    return f"the bucket refuses or does not answer: {str(error).splitlines()[0][:300]}"


def _number(name: str) -> int:
    parts = name.split(".")
    return int(parts[1]) if parts[1].isdigit() else 0 if parts[1] == "log" else -1
