"""The secrets of tasks are masked in output of pods before anything of it is kept or published."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from threading import get_ident
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.contracts.messages import (
    ErrorLinesFound,
    ListSecretForms,
    ListSecretFormsReply,
    Refusal,
    RefusalCode,
)
from libs.service.masking import Masker, secret_forms
from services.log_collector import domain
from services.log_collector import masks as masks_module
from services.log_collector.archives.memory import MemoryArchive
from services.log_collector.archives.port import ArchiveError, Write
from services.log_collector.domain import Folded, Timestamp
from services.log_collector.masks import (
    MASK_SECONDS_MAX,
    MASKED_BYTES_MIN,
    masked,
    next_read_bytes,
)
from services.log_collector.sources.memory import MemorySource
from services.log_collector.sources.port import LogSource, ReadRequest, ReadResult
from services.log_collector.state import READ_BYTES_MAX
from services.log_collector.store import OutputRow, RunRow
from tests.kit.clock import at
from tests.kit.memory import MemoryPlatform
from tests.services.log_collector.collector_harness import (
    CollectorHarness,
    check_times,
    exited,
    key_of,
    sealed,
    settings_with,
    started,
    stored,
    times_of,
)
from tests.services.log_collector.fake_agents import Agent, ApiServer, cluster_of, running
from tests.services.log_collector.fake_kubelet import Kubelet
from tests.services.log_collector.test_crashes import (
    SEGMENT_BYTES,
    CrashingArchive,
    Forgetful,
    Lives,
    fates,
    fault_at,
    life,
    lives_of,
    no_fault,
)
from tests.services.log_collector.test_doubtful_sources import Doubtful
from tests.services.log_collector.test_error_lines import failed
from tests.services.log_collector.test_timestamps import Dated

TOKEN = "hf_Zq3vT8xLw2Rk9"
FORMS = secret_forms([TOKEN])
PODS: dict[str, Any] = {"source": "kubernetes", "agent_token_file": Path("/nowhere/token")}


class MaskingHarness(CollectorHarness):
    """A collector of pods' output, which asks for secrets before each copy."""

    async def step(self, loop: str = "") -> float | None:
        if loop == "copy":
            await super().step("masks")
        return await super().step(loop)


@asynccontextmanager
async def launcher(
    platform: MemoryPlatform,
    forms: tuple[bytes, ...] = FORMS,
    refusal: RefusalCode | None = None,
) -> AsyncIterator[list[ListSecretForms]]:
    """A launcher that knows the secrets of every run, or none."""
    asked: list[ListSecretForms] = []

    async def answer(query: ListSecretForms) -> ListSecretFormsReply:
        asked.append(query)
        if refusal is not None:
            return ListSecretFormsReply(refusal=Refusal(code=refusal, detail="no such run"))
        return ListSecretFormsReply(forms=forms)

    async with platform.bus("launcher").serve({ListSecretForms: answer}):
        yield asked


async def masking(
    outputs: LogSource, platform: MemoryPlatform, archive: Any = None, **changes: Any
) -> MaskingHarness:
    made = MaskingHarness(
        outputs, archive or MemoryArchive(), settings_with(**(PODS | changes)), platform=platform
    )
    await made.lead()
    return made


async def test_values_are_masked_before_they_are_stored_or_published() -> None:
    source, platform = MemorySource(), MemoryPlatform()
    async with launcher(platform) as asked:
        harness = await masking(source, platform)
        await harness.handle(started())
        await harness.settle()
        for piece in (
            b"begin hf_Zq3",
            b"vT8xLw",
            b"2Rk9 end\nRuntimeError: no login with ",
            b"hf_",
        ):
            source.append(key_of(), piece)
            await harness.copy_and_record()
        source.append(key_of(), TOKEN[3:].encode() + b"\nhf_Zq is shorter, hf_Zq3vT")
        await harness.handle(failed(1))
        await harness.settle()
    wanted = b"begin *** end\nRuntimeError: no login with ***\nhf_Zq is shorter, ***"
    assert await stored(harness.archive) == wanted
    (row,) = await harness.rows(OutputRow)
    assert (row.size, row.complete) == (len(wanted), True)
    assert row.size + row.skipped == len(source.outputs[key_of()])
    check_times(await times_of(harness.archive, row), row.size)
    assert b"".join(chunk.data for chunk in harness.chunks) == wanted
    assert [(each.task_id, each.attempt) for each in asked] == [("t1", 1)]
    await harness.step("errors")
    (found,) = [each for each in await harness.published() if isinstance(each, ErrorLinesFound)]
    assert [each.lines for each in found.ranks] == [("RuntimeError: no login with ***",)]


async def test_a_line_that_is_rewritten_is_masked_for_live_readers_too() -> None:
    source, platform = MemorySource(), MemoryPlatform()
    async with launcher(platform):
        harness = await masking(source, platform)
        await harness.handle(started())
        await harness.settle()
        for percent in range(0, 100, 10):
            source.append(key_of(), f"\r{percent} % {TOKEN} {TOKEN[:9]}".encode())
            harness.clock.advance(0.6)
            await harness.copy_and_record()
        source.append(key_of(), b"\ndone\n")
        await harness.handle(exited())
        await harness.settle()
    lines = [chunk.line for chunk in harness.chunks if chunk.line]
    assert lines[-1] == b"\r90 % *** ***"
    kept = await stored(harness.archive)
    assert kept.endswith(b"\r90 % *** hf_Zq3vT8\ndone\n")
    for data in (kept, *lines, *(chunk.data for chunk in harness.chunks)):
        assert TOKEN.encode() not in data
    (row,) = await harness.rows(OutputRow)
    assert TOKEN.encode() not in row.before


async def test_nothing_is_read_before_the_values_are_known() -> None:
    source, platform = Forgetful(), MemoryPlatform()
    harness = await masking(source, platform)
    await harness.handle(started())
    source.append(key_of(), f"early {TOKEN}\n".encode())
    await harness.settle()
    # The launcher is away for longer than unreadable output is waited for.
    harness.clock.advance(10_000)
    await harness.handle(exited())
    await harness.settle()
    assert await stored(harness.archive) == b""
    assert harness.chunks == []
    assert source.dropped == {}
    async with launcher(platform, refusal=RefusalCode.UNAVAILABLE):
        await harness.settle()
    assert await stored(harness.archive) == b""
    async with launcher(platform):
        await harness.settle()
    assert await stored(harness.archive) == b"early ***\n"
    assert [row.collected for row in await harness.rows(RunRow)] == [True]


async def test_output_of_a_run_that_the_launcher_has_forgotten_is_not_stored() -> None:
    source, platform = MemorySource(), MemoryPlatform()
    async with launcher(platform, refusal=RefusalCode.NOT_FOUND):
        harness = await masking(source, platform)
        await harness.handle(started())
        source.append(key_of(), f"late {TOKEN}\n".encode())
        await harness.settle()
        await harness.handle(exited())
        await harness.settle()
        assert await stored(harness.archive) == b""
        harness.clock.advance(1000)
        await harness.settle()
    kept = await stored(harness.archive)
    assert kept.startswith(b"[shiftwork: output is missing from here on: the secrets in it are not")
    assert kept.count(b"\n") == 1
    assert [row.collected for row in await harness.rows(RunRow)] == [True]


async def test_runs_without_an_answer_delay_no_other_and_are_given_up() -> None:
    source, platform, unreadable = MemorySource(), MemoryPlatform(), 40
    asked: list[str] = []

    async def answer(query: ListSecretForms) -> ListSecretFormsReply:
        asked.append(query.task_id)
        if query.task_id != "t1":
            raise ValueError("its row cannot be read")
        return ListSecretFormsReply(forms=FORMS)

    async with platform.bus("launcher").serve({ListSecretForms: answer}):
        harness = await masking(source, platform)
        bad = [f"bad{number}" for number in range(unreadable)]
        for task in bad:
            await harness.handle(started(task=task))
            source.append(key_of(task=task), f"{TOKEN}\n".encode())
        await harness.settle()
        await harness.handle(started())
        source.append(key_of(), f"{TOKEN}\n".encode())
        await harness.step("copy")
        await harness.step("copy")
        assert await stored(harness.archive) == b"***\n"
        # Each of them is asked for again, with pauses that grow.
        asked.clear()
        for _ in range(20 * 60):
            harness.clock.advance(1)
            await harness.step("masks")
        assert asked.count("t1") == 0
        assert {asked.count(task) for task in bad} <= set(range(20, 26))
        now = (harness.clock.now() - at(0)).total_seconds()
        for task in bad:
            await harness.handle(exited(task=task, seconds=now))
        await harness.settle()
        assert len([row for row in await harness.rows(RunRow) if row.collected]) == 0
        harness.clock.advance(301)
        await harness.settle()
    assert len([row for row in await harness.rows(RunRow) if row.collected]) == unreadable
    kept = [await harness.archive.read(key_of(task=task), 0, 9999) for task in bad]
    assert [b"output is missing" in data and TOKEN.encode() not in data for data in kept]


async def test_a_launcher_that_has_forgotten_a_run_is_asked_again() -> None:
    source, platform = MemorySource(), MemoryPlatform()
    async with launcher(platform, refusal=RefusalCode.NOT_FOUND):
        harness = await masking(source, platform)
        await harness.handle(started())
        source.append(key_of(), f"late {TOKEN}\n".encode())
        await harness.handle(exited())
        await harness.settle()
    async with launcher(platform):
        harness.clock.advance(100)
        await harness.settle()
    assert await stored(harness.archive) == b"late ***\n"
    assert [row.collected for row in await harness.rows(RunRow)] == [True]


async def test_a_launcher_that_was_away_for_long_has_time_to_answer() -> None:
    source, platform = MemorySource(), MemoryPlatform()
    harness = await masking(source, platform)
    await harness.handle(started(), exited())
    source.append(key_of(), f"late {TOKEN}\n".encode())
    await harness.settle()
    harness.clock.advance(10_000)
    async with launcher(platform, refusal=RefusalCode.FAILED):
        await harness.settle()
        assert await stored(harness.archive) == b""
    async with launcher(platform):
        harness.clock.advance(100)
        await harness.settle()
    assert await stored(harness.archive) == b"late ***\n"


class Checking(Forgetful):
    """Sees that the bytes before the requested ones are those that it has, as an agent does."""

    silent = False

    async def read(
        self, requests: Sequence[ReadRequest], bytes_max: int
    ) -> Sequence[ReadResult | None]:
        if self.silent:
            return [ReadResult(unsure=True) for _ in requests]
        for request in requests:
            output = bytes(self.outputs.get(request.address.key, b""))
            assert output[: request.offset].endswith(request.before[-request.offset :] or b"")
        return await super().read(requests, bytes_max)


SECRETS = ("abcabc", "bcbcaa", "cccccc")
PIECES = st.lists(
    st.sampled_from([*SECRETS, "abca", "bcb", "a", "cc", "\n", "\r", " 10%|", "x", "é"]),
    max_size=30,
).map(lambda parts: "".join(parts).encode())


@given(lives_of(PIECES), fates, st.booleans())
@settings(max_examples=60, deadline=None)
async def test_no_crash_stores_a_value_or_loses_a_byte(
    lived: Lives, fails: str, silent: bool
) -> None:
    platform, source, disk = MemoryPlatform(), Checking(), MemoryArchive(SEGMENT_BYTES)
    archive, forms = CrashingArchive(disk), secret_forms(SECRETS)
    changes = {"record_seconds": 1.0, "read_bytes_max": 4096, "pass_bytes_max": 8192}
    async with launcher(platform, forms):
        harness = await masking(source, platform, archive, **changes)
        await harness.handle(started(2))
        for rank in range(2):
            source.append(key_of(rank), b"begin\n")
        for written, points, commit in lived:
            archive.points_left, platform.database.fault = points, fault_at(commit)
            await life(harness, source, written)
            archive.points_left, platform.database.fault = None, no_fault
            if fails != "process":
                disk.crash(torn=fails == "torn")
            await harness.restart()
            if silent:  # for longer than it is waited for
                source.silent = True
                for _ in range(2):
                    await harness.step("copy")
                    harness.clock.advance(400)
                source.silent = False
        await harness.handle(exited(2))
        await harness.settle()
        await sealed(harness)
    for row in await harness.rows(OutputRow):
        wrote, kept = bytes(source.outputs[key_of(row.rank)]), await stored(disk, row.rank)
        assert [form for form in forms if form in kept] == []
        assert [form for form in forms if form in row.before] == []
        assert row.complete
        assert row.size == len(kept)
        assert row.size + row.skipped == len(wrote)
        check_times(await times_of(disk, row), row.size)
        if b"\r" not in wrote:
            # A restart may mask the two halves of a stretch apart, or show a short rest of it.
            assert _plain(kept) == _plain(_oracle(wrote, forms))


def _plain(data: bytes) -> bytes:
    """Without masks, and without what values consist of."""
    return re.sub(rb"[*abc]+", b"*", data)


def _oracle(data: bytes, forms: tuple[bytes, ...]) -> bytes:
    masker = Masker(forms)
    return masker.feed(data) + masker.flush()


async def test_a_restart_within_a_stretch_of_values_shows_no_rest_of_them() -> None:
    # The first value is complete and its end may begin the second one when the process dies.
    source, platform = Checking(), MemoryPlatform()
    async with launcher(platform, secret_forms(["abcdefgh", "efghijklmnop"])):
        harness = await masking(source, platform)
        await harness.handle(started())
        source.append(key_of(), b"x abcdefgh")
        await harness.settle()
        assert await stored(harness.archive) == b"x ***"
        await harness.restart()
        source.append(key_of(), b" y\n")
        await harness.handle(exited())
        await harness.settle()
    assert re.sub(rb"[*]+", b"*", await stored(harness.archive)) == b"x * y\n"


async def copied_and_died(
    source: Doubtful, platform: MemoryPlatform, written: bytes
) -> MaskingHarness:
    """A collector whose process before kept something and died before that was recorded."""
    harness = await masking(source, platform)
    await harness.handle(started())
    source.unsure = False
    source.append(key_of(), b"begin\n")
    await harness.settle()
    source.append(key_of(), written)
    await harness.step("copy")
    assert (await stored(harness.archive)).startswith(b"begin\na")
    source.unsure = True
    await harness.restart()
    harness.clock.advance(1000)
    await harness.settle()
    return harness


async def test_a_silent_source_that_comes_back_shows_no_rest_of_a_value_and_repeats_no_byte() -> (
    None
):
    source, platform = Doubtful(), MemoryPlatform()
    async with launcher(platform):
        harness = await copied_and_died(source, platform, f"a token {TOKEN} x".encode())
        harness.clock.advance(1000)
        await harness.settle()
        source.unsure = False
        source.append(key_of(), b"\nmore\n")
        await harness.settle()
        assert await stored(harness.archive) == b"begin\na token *** x\nmore\n"
        await harness.handle(exited())
        await harness.settle()
    (row,) = await harness.rows(OutputRow)
    assert (row.size + row.skipped, row.complete) == (len(source.outputs[key_of()]), True)


@pytest.mark.parametrize("gone", [False, True])
async def test_what_was_not_recorded_stays_where_the_source_never_comes_back(gone: bool) -> None:
    source, platform = Doubtful(), MemoryPlatform()
    async with launcher(platform):
        harness = await copied_and_died(source, platform, f"a token {TOKEN} x\n".encode())
        if gone:
            source.outputs.clear()
            source.unsure = False
        await harness.handle(exited())
        await harness.settle()
        harness.clock.advance(1000)
        await harness.settle()
    kept = await stored(harness.archive)
    assert kept.startswith(b"begin\na token *** x\n")
    assert kept.count(b"output is missing") == (0 if gone else 1)
    (row,) = await harness.rows(OutputRow)
    assert (row.size, row.complete) == (len(kept), True)
    check_times(await times_of(harness.archive, row), row.size)


async def test_the_line_for_missing_output_is_kept_once_although_a_process_died_after_it() -> None:
    source, platform = Doubtful(), MemoryPlatform()
    async with launcher(platform):
        harness = await copied_and_died(source, platform, b"a line\n")
        await harness.handle(exited())
        await harness.step("copy")
        harness.clock.advance(1000)
        await harness.step("copy")  # it is written here, and the process dies before it records it
        await harness.restart()
        for _ in range(3):
            await harness.settle()
            harness.clock.advance(1000)
        await harness.settle()
    kept = await stored(harness.archive)
    assert kept.startswith(b"begin\na line\n[shiftwork: output is missing")
    assert kept.count(b"output is missing") == 1
    (row,) = await harness.rows(OutputRow)
    assert (row.size, row.complete) == (len(kept), True)


async def test_output_that_was_cut_off_in_the_archive_shows_no_rest_of_a_value() -> None:
    source, platform, archive = MemorySource(), MemoryPlatform(), MemoryArchive()
    async with launcher(platform):
        harness = await masking(source, platform, archive)
        await harness.handle(started())
        # Where the kept copy ends now, the source has the middle of a value.
        source.append(key_of(), f"a {TOKEN} x\n".encode())
        await harness.settle()
        await archive.truncate(key_of(), 5, 1, epoch=harness.epoch)
        await archive.write([Write(key_of(), 0, b"a bcd")], epoch=harness.epoch)
        await harness.restart()
        await harness.handle(exited())
        await harness.settle()
    assert await stored(archive) == b"a bcd*** x\n"


class Refusing(MemoryArchive):
    """Refuses every other write."""

    writes = 0

    async def write(self, writes: Sequence[Write], *, epoch: int) -> None:
        self.writes += 1
        if self.writes % 2:
            raise ArchiveError("the disk is full")
        await super().write(writes, epoch=epoch)


async def test_a_disk_that_refuses_changes_nothing_of_what_is_masked() -> None:
    source, platform = Checking(), MemoryPlatform()
    async with launcher(platform):
        harness = await masking(source, platform, Refusing())
        await harness.handle(started())
        await harness.copy_and_record()
        for piece in (b"a hf_Zq", b"3vT8xLw2Rk9 b\nhf_", b"Zq3vT8xLw2Rk9", b"c\n"):
            source.append(key_of(), piece)
            await harness.copy_and_record()
        await harness.handle(exited())
        for _ in range(10):
            await harness.settle()
    assert await stored(harness.archive) == b"a *** b\n***c\n"


async def test_lines_keep_the_times_of_the_source() -> None:
    source, platform = Dated(), MemoryPlatform()
    platform.clock.advance(100)  # type: ignore[attr-defined]
    async with launcher(platform):
        harness = await masking(source, platform)
        await harness.handle(started())
        lines = [f"a {TOKEN}", TOKEN, "h", "hf_Zq", f"{TOKEN}{TOKEN}", "end"]
        source.append(key_of(), "\n".join(lines).encode() + b"\n")
        await harness.handle(exited())
        await harness.settle()
    assert await stored(harness.archive) == b"a ***\n***\nh\nhf_Zq\n***\nend\n"
    (row,) = await harness.rows(OutputRow)
    found = await times_of(harness.archive, row)
    assert found == [
        Timestamp(offset, at(number)) for number, offset in enumerate((0, 6, 10, 12, 18, 22))
    ]


def test_a_line_has_the_time_of_its_beginning_although_that_was_held_back() -> None:
    data = b"one\nhf_Zqtwo\nthree\n"
    new = Folded(data, data, timestamps=(Timestamp(0, at(1)), Timestamp(9, at(2))))
    found = masked(Masker(FORMS), new, ends=False)
    assert found.data == data
    assert found.timestamps == (Timestamp(0, at(1)), Timestamp(13, at(2)))


class Asked(MemorySource):
    """Remembers how much was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    async def read(
        self, requests: Sequence[ReadRequest], bytes_max: int
    ) -> Sequence[ReadResult | None]:
        self.sizes += [request.bytes_max for request in requests]
        return await super().read(requests, bytes_max)


async def test_less_is_read_at_once_where_masking_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    source, platform = Asked(), MemoryPlatform()
    async with launcher(platform):
        harness = await masking(source, platform)
        await harness.handle(started())
        await harness.settle()
        # Output that is short does not say how quick long output is.
        assert set(source.sizes) == {MASKED_BYTES_MIN}
        source.append(key_of(), b"line of some output\n" * 200_000)
        assert await harness.step("copy") == 0.0
        await harness.settle()
        most = domain.Bounds().read_bytes_max
        assert source.sizes[-1] == most
        assert sorted(set(source.sizes)) == [
            size for size in (MASKED_BYTES_MIN << number for number in range(9)) if size <= most
        ]
        monkeypatch.setattr(masks_module, "MASK_SECONDS_MAX", 1e-9)
        source.append(key_of(), b"line of some output\n" * 200_000)
        await harness.settle()
        assert source.sizes[-1] == MASKED_BYTES_MIN
    assert await stored(harness.archive) == bytes(source.outputs[key_of()])


def test_how_much_is_read_at_once_goes_with_the_time_of_masking() -> None:
    size = MASKED_BYTES_MIN
    assert next_read_bytes(size, size, 0.0) == 2 * size
    assert next_read_bytes(size, size - 1, 0.0) == size
    assert next_read_bytes(16 * size, 16 * size, 4 * MASK_SECONDS_MAX) == 4 * size
    assert next_read_bytes(16 * size, 16 * size, 99.0) == size
    assert next_read_bytes(READ_BYTES_MAX, READ_BYTES_MAX, 0.0) == READ_BYTES_MAX


async def test_slow_output_of_one_owner_delays_others_by_one_piece(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The time is over after each piece.
    monkeypatch.setattr(masks_module, "PASS_SECONDS", 1e-9)
    source, platform, ranks = MemorySource(), MemoryPlatform(), 20
    async with launcher(platform):
        harness = await masking(source, platform)
        await harness.handle(started(ranks))
        await harness.handle(started(task="t2").model_copy(update={"owner": "bob"}))
        await harness.step("copy")
        for rank in range(ranks):
            source.append(key_of(rank), f"{TOKEN} hf_Zq\n".encode() * 2000 + b"hf_Zq")
        bob = key_of(task="t2")
        for number in range(4):
            source.append(bob, b"a line\n")
            await harness.step("copy")
            if number:
                assert await harness.step("copy") == 0.0
                assert await harness.archive.size(bob) == 7 * (number + 1)
        sizes = await harness.archive.sizes([key_of(rank) for rank in range(ranks)])
        assert 0 < len([size for size in sizes if size]) < 10
        await harness.handle(exited(ranks))
        for _ in range(20):
            await harness.settle()
    for rank in range(ranks):
        assert await stored(harness.archive, rank) == b"*** hf_Zq\n" * 2000 + b"hf_Zq"
    rows = [row for row in await harness.rows(OutputRow) if row.task_id == "t1"]
    assert [row.complete for row in rows] == [True] * ranks


async def test_secrets_are_masked_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    feed, threads = Masker.feed, list[int]()

    def noted(masker: Masker, data: bytes) -> bytes:
        threads.append(get_ident())
        return feed(masker, data)

    monkeypatch.setattr(Masker, "feed", noted)
    source, platform = MemorySource(), MemoryPlatform()
    async with launcher(platform):
        harness = await masking(source, platform)
        await harness.handle(started())
        for piece in (b"a line\n\r1 %", b"\r2 % hf_Zq", b"\r3 % hf_Zq", b"\r4 % hf_Zq"):
            source.append(key_of(), piece)
            await harness.settle()
        await harness.handle(exited())
        await harness.settle()
    assert (await stored(harness.archive)).endswith(b"\r4 % hf_Zq")
    assert [chunk.line for chunk in harness.chunks if chunk.line][-1] == b"\r4 % hf_Zq"
    assert threads
    assert get_ident() not in threads


async def test_secrets_of_real_log_files_are_masked_through_restarts_of_the_agent(
    tmp_path: Path,
) -> None:
    """Agents and the API server's endpoint are read, and the agent and the collector restart."""
    platform = MemoryPlatform()
    async with AsyncExitStack() as stack:
        api = ApiServer()
        await api.start()
        stack.push_async_callback(api.stop)
        kubelet = api.kubelets["n0"] = Kubelet(tmp_path / "log")
        stack.callback(kubelet.close)
        agent = api.agents["n0"] = Agent(kubelet)
        await agent.start()
        stack.push_async_callback(agent.stop)
        await stack.enter_async_context(launcher(platform))
        options = cluster_of(tmp_path, api.port, fallback_seconds=0.05)
        source = await stack.enter_async_context(running(_source(options)))
        harness = await masking(source, platform)
        await harness.handle(started())
        container = kubelet.create("t1-1-0")
        wanted = b""
        for number in range(8):
            container.write(f"{number} {TOKEN} and {TOKEN[:9]}\n".encode())
            # A line in several entries, of which one ends within the value.
            container.write(b"x" * 16_380 + TOKEN.encode() + b"\n")
            wanted += f"{number} *** and {TOKEN[:9]}\n".encode() + b"x" * 16_380 + b"***\n"
            await _until_stored(harness, wanted)
            if number % 4 == 1:
                await agent.stop()
            elif number % 4 == 3:
                await agent.start()
            await harness.restart()
        container.end()
        await harness.handle(exited())
        for _ in range(200):
            await harness.copy_and_record()
            if all(row.complete for row in await harness.rows(OutputRow)):
                break
            await asyncio.sleep(0.02)
    (row,) = await harness.rows(OutputRow)
    assert row.complete
    assert await stored(harness.archive) == wanted
    assert row.size + row.skipped == len(container.output)
    assert TOKEN.encode() not in row.before


def _source(options: Any) -> Any:
    from services.log_collector.sources.kubernetes import KubernetesSource

    return KubernetesSource(options)


async def _until_stored(harness: CollectorHarness, wanted: bytes) -> None:
    for _ in range(500):
        await harness.copy_and_record()
        if await stored(harness.archive) == wanted:
            harness.clock.advance(60)
            await harness.copy_and_record()
            return
        await asyncio.sleep(0.02)
    assert await stored(harness.archive) == wanted
