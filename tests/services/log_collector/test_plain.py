"""Plain files of ended runs on a shared file system."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from libs.store.memory import Point, no_fault
from libs.store.port import StoreUnavailableError
from services.log_collector.archives.files import FileArchive
from services.log_collector.archives.port import ArchiveError
from services.log_collector.sources.memory import MemorySource
from services.log_collector.store import RunRow
from tests.kit.memory import MemoryPlatform
from tests.services.log_collector.collector_harness import (
    CollectorHarness,
    collecting,
    exited,
    key_of,
    sealed,
    settings_with,
    started,
)


async def ended(tmp_path: Path, platform: MemoryPlatform, **settings: Any) -> CollectorHarness:
    """A run of two ranks of ``ann`` that has ended; the folder is there."""
    (tmp_path / "plain").mkdir(mode=0o755, exist_ok=True)
    source = MemorySource()
    harness = await collecting(
        source,
        FileArchive(tmp_path / "logs"),
        settings_with(plain_dir=tmp_path / "plain", **settings),
        platform=platform,
    )
    await harness.handle(started(2))
    source.append(key_of(0), b"one\n" * 500_000)
    source.append(key_of(1), b"two\n")
    await harness.settle()
    assert await harness.step("plain") is None
    assert list((tmp_path / "plain").iterdir()) == []
    await harness.handle(exited(2))
    await harness.settle()
    return harness


@pytest.mark.parametrize("after_sealing", [False, True])
async def test_the_files_of_an_ended_run_appear_together(
    tmp_path: Path, platform: MemoryPlatform, after_sealing: bool
) -> None:
    harness = await ended(tmp_path, platform)
    if after_sealing:
        await sealed(harness)
    assert await harness.step("plain") == 0.0
    attempt = tmp_path / "plain" / "t1" / "1"
    found = {path.name: path.read_bytes() for path in attempt.iterdir()}
    assert found == {"0.log": b"one\n" * 500_000, "1.log": b"two\n"}
    assert stat.S_IMODE(attempt.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in attempt.iterdir()} == {0o600}
    assert await harness.step("plain") is None
    assert [path.name for path in (tmp_path / "plain").iterdir()] == ["t1"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
@pytest.mark.parametrize(
    ("users", "expected"), [({"ann": 300_007}, 300_007), ({"bob": 5}, 0), ({"ann": 0}, 0)]
)
async def test_the_files_belong_to_their_owner_where_that_is_known(
    tmp_path: Path, platform: MemoryPlatform, users: dict[str, int], expected: int
) -> None:
    (tmp_path / "owners.json").write_text(json.dumps(users))
    harness = await ended(
        tmp_path, platform, plain_uids_file=tmp_path / "owners.json", plain_accounts=True
    )
    assert await harness.step("plain") == 0.0
    attempt = tmp_path / "plain" / "t1" / "1"
    assert {path.stat().st_uid for path in (attempt, *attempt.iterdir())} == {expected}
    # Nobody but the platform may put something in the place of an attempt.
    assert attempt.parent.stat().st_uid == 0
    assert stat.S_IMODE(attempt.parent.stat().st_mode) == 0o711


async def test_a_failure_leaves_nothing_and_is_repeated(
    tmp_path: Path, platform: MemoryPlatform, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = await ended(tmp_path, platform)
    real, calls = harness.archive.read, 0

    async def read(*arguments: Any) -> bytes:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise ArchiveError("the bucket is away")
        return await real(*arguments)

    monkeypatch.setattr(harness.archive, "read", read)
    assert await harness.step("plain") == 60.0
    assert list((tmp_path / "plain").iterdir()) == []
    assert await harness.step("plain") == 0.0
    assert (tmp_path / "plain" / "t1" / "1" / "1.log").read_bytes() == b"two\n"


async def test_a_commit_without_an_answer_writes_nothing_twice(
    tmp_path: Path, platform: MemoryPlatform
) -> None:
    harness = await ended(tmp_path, platform)
    path = tmp_path / "plain" / "t1" / "1" / "0.log"

    async def fault(at: Point, _schema: str) -> None:
        if at is Point.BEFORE_COMMIT and path.exists():
            raise StoreUnavailableError("gone")

    platform.database.fault = fault
    with pytest.raises(StoreUnavailableError):
        await harness.step("plain")
    platform.database.fault = no_fault
    before = path.stat()
    await harness.restart()
    assert await harness.step("plain") == 0.0
    assert path.stat() == before
    assert [row.written for row in await harness.rows(RunRow)] == [True]


async def test_a_file_in_the_place_of_an_attempt_stays(
    tmp_path: Path, platform: MemoryPlatform
) -> None:
    harness = await ended(tmp_path, platform)
    (tmp_path / "plain" / "t1").mkdir()
    (tmp_path / "plain" / "t1" / "1").symlink_to(tmp_path)
    assert await harness.step("plain") == 0.0
    assert (tmp_path / "plain" / "t1" / "1").is_symlink()
    assert not (tmp_path / "0.log").exists()
