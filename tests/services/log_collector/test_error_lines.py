"""The last error lines of runs that failed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from libs.contracts.messages import (
    ErrorLinesFound,
    ExitKind,
    RankExit,
    RunExit,
    RunExited,
)
from services.log_collector.archives.memory import MemoryArchive
from services.log_collector.archives.port import ArchiveError
from services.log_collector.domain import OutputKey
from services.log_collector.error_lines import ErrorSearch, find, patterns_of
from services.log_collector.sources.memory import MemorySource
from services.log_collector.store import RunRow
from tests.kit.clock import at
from tests.services.log_collector.collector_harness import (
    CollectorHarness,
    collecting,
    gang,
    key_of,
    settings_with,
    started,
)

TRACEBACK = b"""step 1
Traceback (most recent call last):
  File "train.py", line 8, in <module>
    main()
ValueError: bad value
"""


def failed(
    size: int = 1, kind: ExitKind = ExitKind.FAILED, first: int | None = None, **more: Any
) -> RunExited:
    ended = RunExit(attempt=1, kind=kind, exited_at=at(1), failed_rank=first, **more)
    return RunExited(task_id="t1", attempt=1, exit=ended, placements=gang(size))


async def after(harness: CollectorHarness, exited: RunExited) -> list[ErrorLinesFound]:
    """What is published once the run has ended and its output is complete."""
    await harness.handle(exited)
    await harness.settle()
    await harness.step("errors")
    return [each for each in await harness.published() if isinstance(each, ErrorLinesFound)]


async def test_a_failed_run_has_the_error_lines_of_its_ranks(
    harness: CollectorHarness, source: MemorySource
) -> None:
    await harness.handle(started(3))
    source.append(key_of(0), b"fine\n")
    source.append(key_of(1), b"RuntimeError: NCCL error in: x\n[rank1]: aborted\n")
    source.append(key_of(2), TRACEBACK)
    (found,) = await after(harness, failed(3, first=2))
    assert [(each.rank, each.role, each.kind) for each in found.ranks] == [
        (2, "worker", "traceback"),
        (1, "worker", "nccl"),
    ]
    assert found.ranks[0].lines == tuple(TRACEBACK.decode().splitlines()[1:])
    assert found.ranks[0].offset == 7
    assert found.ranks[1].lines == ("RuntimeError: NCCL error in: x",)
    # It is published once.
    assert [row.errors_wanted for row in await harness.rows(RunRow)] == [False]
    await harness.step("errors")
    assert await harness.published() == []


async def test_it_is_found_by_the_next_leader_too(
    harness: CollectorHarness, source: MemorySource
) -> None:
    await harness.handle(started())
    source.append(key_of(), TRACEBACK)
    await harness.handle(failed())
    await harness.settle()
    harness.service = harness._build(harness.store)
    await harness.lead()
    await harness.step("errors")
    assert [type(each) for each in await harness.published()] == [ErrorLinesFound]


@pytest.mark.parametrize("kind", [ExitKind.OK, ExitKind.PREEMPTED, ExitKind.KILLED])
async def test_a_run_that_did_not_fail_is_not_searched(kind: ExitKind) -> None:
    source = MemorySource()
    harness = await collecting(source)
    await harness.handle(started())
    source.append(key_of(), TRACEBACK)
    assert await after(harness, failed(kind=kind)) == []


async def test_a_run_that_lost_ranks_has_them() -> None:
    source = MemorySource()
    harness = await collecting(source)
    await harness.handle(started(2))
    source.append(key_of(0), TRACEBACK)
    source.append(key_of(1), b"Segmentation fault (core dumped)\n")
    ranks = (RankExit(rank=1, signal=11),)
    (found,) = await after(harness, failed(2, ExitKind.LOST, ranks=ranks))
    assert [(each.rank, each.kind) for each in found.ranks] == [
        (1, "segmentation-fault"),
        (0, "traceback"),
    ]


async def test_what_is_kept_is_bounded() -> None:
    source = MemorySource()
    limits = {"error_lines_max": 4, "error_line_characters_max": 30, "error_ranks_max": 3}
    harness = await collecting(source, settings=settings_with(**limits, error_characters_max=300))
    await harness.handle(started(6))
    for rank in range(6):
        lines = [b"CUDA error %d" % number + b"x" * 100 + b"\n" for number in range(9)]
        source.append(key_of(rank), b"".join(lines))
    (found,) = await after(harness, failed(6, first=4))
    assert [(each.rank, len(each.lines)) for each in found.ranks] == [(4, 4), (0, 4), (1, 1)]
    assert all(len(line) == 30 for each in found.ranks for line in each.lines)
    assert found.ranks[0].lines[-1].startswith("CUDA error 8")


async def test_only_the_end_of_an_output_is_searched() -> None:
    source = MemorySource()
    harness = await collecting(source, settings=settings_with(error_search_bytes=4096))
    await harness.handle(started())
    source.append(key_of(), TRACEBACK + b"x" * 4090 + b"\nKilled\n")
    (found,) = await after(harness, failed())
    assert [(each.kind, each.lines) for each in found.ranks] == [("out-of-memory", ("Killed",))]


async def test_an_output_that_cannot_be_read_harms_only_itself() -> None:
    class Broken(MemoryArchive):
        broken = False

        async def read(self, key: OutputKey, offset: int, bytes_max: int) -> bytes:
            if self.broken and key.rank == 0:
                raise ArchiveError("the disk does not answer")
            return await super().read(key, offset, bytes_max)

    source, archive = MemorySource(), Broken()
    harness = await collecting(source, archive)
    await harness.handle(started(2), failed(2))
    source.append(key_of(0), TRACEBACK)
    source.append(key_of(1), TRACEBACK)
    await harness.settle()
    archive.broken = True
    await harness.step("errors")
    (found,) = await harness.published()
    assert [each.rank for each in found.ranks] == [1]


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate", "out-of-memory"),
        ("slurmstepd: error: Detected 1 oom-kill event(s)", "out-of-memory"),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", "cuda"),
        ("RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED", "cuda"),
        ("node1:12:99 [0] NCCL WARN Call to connect returned Connection refused", "nccl"),
        ("torch.distributed.DistBackendError: ncclRemoteError: peer", "nccl"),
        ("[Rank 0] Watchdog caught collective operation timeout: WorkNCCL", "nccl"),
        ("Fatal Python error: Segmentation fault", "segmentation-fault"),
        ("[rank3]: KeyError: 'x'", "exception"),
        ("my.module.MyError", "exception"),
        ("terminate called after throwing an instance of 'c10::Error'", "fatal"),
        ("loss 0.3, error rate 0.1", ""),
        ("INFO: no errors", ""),
        ("ValueErrors are counted", ""),
    ],
)
def test_the_patterns(line: str, kind: str) -> None:
    assert patterns_of(None).kind_of(line.encode()) == kind


def test_a_traceback_is_kept_to_its_exception() -> None:
    data = b"\xff\0one\r\n[rank1]: Traceback (most recent call last):\n[rank1]:   File x\n"
    data += b"[rank1]: KeyError\nafter\n"
    found = find(data, 100, patterns_of(None), ErrorSearch())
    assert [each.text for each in found] == [
        "[rank1]: Traceback (most recent call last):",
        "[rank1]:   File x",
        "[rank1]: KeyError",
    ]
    rewritten = find(b"1%\rOSError: \0\x1b[31mred\r\n", 0, patterns_of(None), ErrorSearch())
    assert [each.text for each in rewritten] == ["OSError: \ufffd\x1b[31mred"]


def test_a_site_adds_replaces_and_removes_patterns(tmp_path: Path) -> None:
    path = tmp_path / "patterns.yaml"
    path.write_text("ours: 'E-\\d+ '\nfatal: ''\ncuda: 'GPU gone'\n")
    patterns = patterns_of(path)
    kinds = [patterns.kind_of(each) for each in (b"E-12 x", b"FATAL", b"GPU gone", b"CUDA error")]
    assert kinds == ["ours", "", "cuda", ""]
    settings_with(error_patterns_file=path)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("bad: '('", "bad '(' is no regular expression"),
        ("- a list", "has no names"),
        ("number: 5", "number is no text"),
        ("{", "cannot be read"),
        (f"{'n' * 41}: x", "is no name"),
    ],
)
def test_a_wrong_file_of_patterns_is_refused_at_the_start(
    tmp_path: Path, text: str, problem: str
) -> None:
    path = tmp_path / "patterns.yaml"
    path.write_text(text)
    with pytest.raises(ValidationError) as caught:
        settings_with(error_patterns_file=path)
    assert problem in str(caught.value)
    assert str(path) in str(caught.value)
