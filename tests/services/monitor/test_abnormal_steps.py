"""A program that reported steps and reports no new one makes no progress, whatever it uses."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from libs.contracts import messages as m
from libs.contracts.messages import AbnormalOutcome, AbnormalTaskChanged, TaskState
from services.gateway import main as gateway_main
from services.gateway.reports import Limits
from services.gateway.store import report
from services.monitor.abnormal import steps
from services.monitor.abnormal.store import FindingRow
from services.monitor.domain.abnormal_facts import FactsRow
from tests.kit.memory import MemoryPlatform
from tests.kit.service import ServiceHarness
from tests.services.monitor.events import a_change
from tests.services.monitor.series.samples import a_rank, a_sample
from tests.services.monitor.series.test_recording import hearing, send
from tests.services.monitor.test_abnormal import Site, settings

RULES = "no_progress: {threshold: 300, actions: [tag, stop]}\n"
LIMITS = Limits(points_max=100, names_max=10, values_max=1000)


class Reporting(Site):
    """A site with a real gateway, to which a program reports."""

    def __init__(self, platform: MemoryPlatform, folder: Path, rules: str = RULES) -> None:
        options = settings(folder, rules, quiet_seconds=60, idle_gpu_seconds=60)
        super().__init__(platform, options)
        self.gateway = ServiceHarness(platform, gateway_main.WIRING)
        self.answers = True
        # Of the version before, which does not say which attempt reported a step.
        self.gateway_is_old = False

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Reporting]:
        async def read(query: m.ReadSteps) -> m.ReadStepsReply:
            if not self.answers:
                raise RuntimeError("down")
            reply = await self.gateway.ask(query)
            if self.gateway_is_old:
                steps = (each.model_copy(update={"attempt": None}) for each in reply.steps)
                return reply.model_copy(update={"steps": tuple(steps)})
            return reply

        serving: Any = {m.ReadSteps: read}
        async with super().running(), self.platform.connection("gateway").serve(serving):
            await self.moves(1, TaskState.RUNNING)
            yield self

    async def reports(self, step: float | None, attempt: int = 1, **more: float) -> None:
        """What ``shiftwork.report(step=...)`` of rank 0 leaves at the gateway."""
        values = more | ({"step": float(step)} if step is not None else {})
        async with self.gateway.store.transaction() as tx:
            sample = self.platform.clock.now(), values
            await report(tx, self.task_id, 0, attempt=attempt, samples=[sample], limits=LIMITS)

    async def passes(self, seconds: float) -> list[tuple[int, bool]]:
        """Time with the loops; the changes of findings by this rule: version, and if it lasts."""
        for _ in range(round(seconds / 30)):
            await self.monitor.step("abnormal-steps")
            await self.monitor.step("abnormal")
            self.monitor.clock.advance(30)
        return [
            (each.version, each.ended_at is None)
            for each in await self.monitor.published()
            if isinstance(each, AbnormalTaskChanged)
        ]

    async def detail(self) -> str:
        (row,) = await self.monitor.rows(FindingRow)
        return row.detail


@contextlib.asynccontextmanager
async def reporting(folder: Path) -> AsyncIterator[Reporting]:
    async with Reporting(MemoryPlatform(), folder).running() as site:
        yield site


async def test_no_new_step_is_no_progress_and_a_new_one_ends_it(tmp_path: Path) -> None:
    async with reporting(tmp_path) as site:
        for step in range(8):
            await site.reports(step, loss=0.5)
            assert await site.passes(60) == []
        # It goes on reporting, and the step stays.
        for _ in range(4):
            await site.reports(7, loss=0.4)
            assert await site.passes(60) == []
        await site.reports(None, loss=0.3)
        assert await site.passes(120) == [(1, True)]
        assert await site.detail() == (
            "its program has reported no new step since step 7, 5 min ago; the limit is 5 min"
        )
        (taken,) = await site.act()
        assert taken.outcome is AbnormalOutcome.DONE
        await site.reports(8)
        # What is measured ends a finding late.
        assert await site.passes(240) == [(2, False)]
        await site.reports(9)
        assert await site.passes(240) == []


async def test_a_task_that_reports_no_steps_is_judged_by_what_it_uses(tmp_path: Path) -> None:
    async with reporting(tmp_path) as site:
        assert await site.passes(600) == []
        await site.reports(None, loss=0.5)
        await site.reports(float("nan"))
        assert await site.passes(900) == []


async def test_a_step_that_counts_again_from_0_is_a_new_one(tmp_path: Path) -> None:
    async with reporting(tmp_path) as site:
        for step in (9, 0, 9, 0, 9, 0):
            await site.reports(step)
            assert await site.passes(180) == []


async def test_a_gateway_that_does_not_answer_neither_begins_nor_ends_a_finding(
    tmp_path: Path,
) -> None:
    async with reporting(tmp_path) as site:
        await site.reports(1)
        assert await site.passes(180) == []
        site.answers = False
        assert await site.passes(900) == []
        # It did not report meanwhile: the time counts, once that is known.
        site.answers = True
        assert await site.passes(60) == [(1, True)]
        site.answers = False
        assert await site.passes(900) == []
        assert await site.act() == []
        site.answers = True
        await site.passes(30)
        (taken,) = await site.act()
        assert taken.outcome is AbnormalOutcome.DONE


async def test_a_new_leader_goes_on_with_the_stall_and_raises_nothing_early(
    tmp_path: Path,
) -> None:
    async with reporting(tmp_path) as site:
        await site.reports(1)
        assert await site.passes(120) == []
        await site.monitor.restart()
        # 60 s of a stall count at once; it had lasted for longer.
        assert await site.passes(150) == []
        assert await site.passes(120) == [(1, True)]
        await site.monitor.restart()
        assert await site.passes(120) == []
        await site.reports(2)
        await site.monitor.restart()
        assert await site.passes(300) == [(2, False)]
        (facts,) = await site.monitor.rows(FactsRow)
        assert facts.stalled_step in {None, 2}


@pytest.mark.parametrize("queued_seconds", [0, 900])
async def test_the_steps_of_an_attempt_count_from_the_first_that_it_reports(
    tmp_path: Path, queued_seconds: int
) -> None:
    async with reporting(tmp_path) as site:
        await site.reports(7)
        assert await site.passes(240) == []
        await site.moves(2, TaskState.QUEUED)
        assert await site.passes(queued_seconds) == []
        await site.moves(3, TaskState.RUNNING, attempt=2)
        # It loads its data, and the step of the attempt before is none of its own.
        assert await site.passes(900) == []
        await site.reports(7, attempt=2)
        assert await site.passes(270) == []
        assert await site.passes(120) == [(1, True)]


async def test_the_steps_of_a_gateway_that_names_no_attempt_count(tmp_path: Path) -> None:
    async with reporting(tmp_path) as site:
        site.gateway_is_old = True
        await site.reports(7)
        assert await site.passes(390) == [(1, True)]


async def test_the_steps_of_all_tasks_are_asked_for_page_by_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "TASKS_AT_ONCE", 2)
    async with reporting(tmp_path) as site:
        for number in range(5):
            task_id = f"other{number}"
            await site.monitor.handle(a_change(site.monitor, 1, TaskState.RUNNING, task_id))
        # The last one by its id; two pages come before it.
        assert site.task_id > "other4"
        await site.reports(7)
        assert await site.passes(390) == [(1, True)]


async def test_people_who_debug_report_no_steps(tmp_path: Path) -> None:
    async with reporting(tmp_path) as site:
        await site.reports(7)
        exit_ = m.RankExit(rank=0, code=0)
        now = site.monitor.clock.now()
        ended = m.RankEnded(task_id=site.task_id, attempt=1, exit=exit_, role="w", noted_at=now)
        await site.monitor.handle(ended)
        assert await site.passes(900) == []


@pytest.mark.parametrize("advances", [True, False])
async def test_a_quiet_run_that_reports_new_steps_makes_progress(
    tmp_path: Path, advances: bool
) -> None:
    """It works elsewhere. Without steps its ranks decide."""
    async with reporting(tmp_path) as site, hearing(site.monitor):
        site.monitor.clock.move_to(0)
        found: list[tuple[int, bool]] = []
        for t in range(0, 600, 30):
            if advances:
                await site.reports(t)
            rank = a_rank(0, gpus=[], cores=0.0, task_id=site.task_id)
            await send(site.monitor, a_sample(t, ranks=[rank]))
            await site.monitor.step("activity")
            found += await site.passes(30)
        assert found == ([] if advances else [(1, True)])
        if not advances:
            assert (await site.detail()).startswith("none of its ranks has used a processor")
            return
        # Now both signals say so.
        for t in range(600, 1200, 30):
            rank = a_rank(0, gpus=[], cores=0.0, task_id=site.task_id)
            await send(site.monitor, a_sample(t, ranks=[rank]))
            await site.monitor.step("activity")
            found += await site.passes(30)
        assert found == [(1, True)]
        assert "GPU for" in await site.detail()
        assert "and its program has reported no new step since step 570" in await site.detail()
