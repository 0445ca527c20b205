"""Wherever a leader dies or its commit fails, an action is carried out once, what it began is
finished, and no task stays paused by a rule."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from libs.bus.port import BusError
from libs.contracts import messages as m
from libs.contracts.messages import AbnormalActionSettled, AbnormalOutcome, Goal, TaskState
from services.monitor.abnormal.store import ActionRow
from tests.services.monitor.test_abnormal import (
    DiedError,
    Site,
    a_site,
    dying,
    misses_ranks,
    pass_time,
    settings,
    with_actions,
)

RULE = "rule:ranks_missing"
# Where it dies. The commits of a step that carries out one action: the scan, the intention, the
# outcome. Between them: the command is not sent any more; or its answer is lost, to a leader that
# dies or to one that goes on.
WHERE = [0, 1, "command", "answer", "no answer", 2, 3]
# Nothing has reached submit.
BEFORE = {0, 1, "command"}
# What becomes of the finding while no monitor runs.
MEANWHILE = ["nothing", "ranks come back", "the finding ends", "the rule loses its action", "tries"]


@contextlib.asynccontextmanager
async def losing(site: Site, what: str) -> AsyncIterator[list[Any]]:
    """A command is not sent any more, or its answer is lost: the sender dies, or gets none. Yields
    what it was about to send."""
    sent: list[Any] = []
    bus = site.monitor.service.ports.bus
    real = bus.request

    async def request(command: Any, *, timeout_s: float) -> Any:
        sent.append(command)
        if what != "command":
            await real(command, timeout_s=timeout_s)
        raise BusError("no answer") if what == "no answer" else DiedError

    bus.request = request  # type: ignore[method-assign]
    try:
        yield sent
    except DiedError:
        pass
    finally:
        bus.request = real  # type: ignore[method-assign]


async def happens(site: Site, what: str, folder: Path) -> None:
    """What happens while no monitor acts."""
    if what in {"ranks come back", "the finding ends"}:
        await misses_ranks(site.monitor, 0, site.task_id)
    if what == "the finding ends":
        await pass_time(site.monitor, 30)
    if what == "the rule loses its action":
        site.monitor.settings = settings(folder, with_actions("tag"))
    if what == "tries":
        site.monitor.settings = settings(folder, with_actions("preempt"), rules_dry_run=True)


async def run_leaves(site: Site) -> None:
    """The run leaves if submit asked for it."""
    if (await site.row()).goal is Goal.PAUSE:
        await site.moves(2, TaskState.PREEMPTING)
        await site.moves(3, TaskState.PAUSED)


async def acts_on(site: Site) -> list[AbnormalActionSettled]:
    """Both loops, as often as it takes."""
    settled: list[AbnormalActionSettled] = []
    for _ in range(3):
        settled += await site.act()
        await site.monitor.step("abnormal")
    return settled


async def begun(site: Site, where: int | str) -> list[Any]:
    """A leader begins an action, and is gone at this point. Returns what it was about to send, and
    did not."""
    if isinstance(where, int):
        with dying(site.monitor.store, where):
            await site.monitor.step("abnormal-actions")
        return []
    async with losing(site, where) as sent:
        await site.monitor.step("abnormal-actions")
    return sent if where == "command" else []


@pytest.mark.parametrize("meanwhile", MEANWHILE)
@pytest.mark.parametrize("where", WHERE)
async def test_a_preemption_that_was_begun_is_finished(
    tmp_path: Path, where: int | str, meanwhile: str
) -> None:
    async with a_site(tmp_path, "preempt") as site:
        await site.abnormal()
        await begun(site, where)
        paused = (await site.row()).goal is Goal.PAUSE
        assert paused is (where not in BEFORE)
        await run_leaves(site)
        await happens(site, meanwhile, tmp_path)
        await site.monitor.restart()
        settled = await acts_on(site)
        if not paused and meanwhile == "nothing":
            # Nothing was done before; the new leader does it.
            await run_leaves(site)
            settled += await acts_on(site)
        row = await site.row()
        assert row.goal is Goal.RUN
        (taken,) = settled
        done = paused or meanwhile == "nothing"
        tried = meanwhile == "tries" and where != "command"
        not_done = AbnormalOutcome.DRY_RUN if tried else AbnormalOutcome.WITHDRAWN
        if not done and meanwhile == "ranks come back":
            assert taken.detail == "the task was no longer abnormal"
        assert taken.outcome is (AbnormalOutcome.DONE if done else not_done)
        # A pause and a resumption, or nothing.
        assert row.revision == (3 if done else 1)
        assert await acts_on(site) == []


@pytest.mark.parametrize("where", WHERE)
async def test_a_pause_of_its_owner_stays_wherever_the_leader_dies(
    tmp_path: Path, where: int | str
) -> None:
    async with a_site(tmp_path, "preempt") as site:
        await site.abnormal()
        await begun(site, where)
        pause = m.SetGoal(task_id=site.task_id, goal=Goal.PAUSE, asked_by="ann")
        await site.submit.ask(pause)
        await run_leaves(site)
        await site.monitor.restart()
        await acts_on(site)
        row = await site.row()
        assert (row.goal, row.goal_changed_by) == (Goal.PAUSE, "ann")
        assert (await site.monitor.rows(ActionRow))[0].outcome is not AbnormalOutcome.WAITING


@pytest.mark.parametrize("owner", ["does nothing", "pauses it"])
@pytest.mark.parametrize("where", WHERE)
async def test_a_resumption_that_was_begun_is_finished(
    tmp_path: Path, where: int | str, owner: str
) -> None:
    async with a_site(tmp_path, "preempt") as site:
        await site.abnormal()
        await site.act()
        await run_leaves(site)
        await begun(site, where)
        if (await site.row()).goal is Goal.RUN:
            await site.moves(4, TaskState.QUEUED)
            await site.moves(5, TaskState.RUNNING, attempt=2)
        if owner == "pauses it":
            await site.submit.ask(m.SetGoal(task_id=site.task_id, goal=Goal.PAUSE, asked_by="ann"))
        await site.monitor.restart()
        settled = await acts_on(site)
        assert [each.outcome for each in settled] == [AbnormalOutcome.DONE]
        row = await site.row()
        wanted = (Goal.PAUSE, "ann") if owner == "pauses it" else (Goal.RUN, RULE)
        assert (row.goal, row.goal_changed_by) == wanted


@pytest.mark.parametrize("action", ["stop", "lower_priority"])
@pytest.mark.parametrize("where", [2, "answer", "no answer"])
async def test_what_was_done_is_recorded_as_done_though_the_task_is_no_longer_abnormal(
    tmp_path: Path, action: str, where: int | str
) -> None:
    async with a_site(tmp_path, action) as site:
        await site.abnormal()
        await begun(site, where)
        await happens(site, "the finding ends", tmp_path)
        await site.monitor.restart()
        (taken,) = await acts_on(site)
        assert (taken.outcome, taken.attempt) == (AbnormalOutcome.DONE, 1)
        assert (await site.row()).revision == 2


async def test_a_command_that_was_recalled_does_nothing_when_it_comes(tmp_path: Path) -> None:
    """A leader commits its intention and hangs before it sends; its successor recalls it."""
    async with a_site(tmp_path, "preempt") as site:
        await site.abnormal()
        (command,) = await begun(site, "command")
        await happens(site, "the finding ends", tmp_path)
        await site.monitor.restart()
        (taken,) = await acts_on(site)
        assert taken.outcome is AbnormalOutcome.WITHDRAWN
        reply = await site.submit.ask(command)
        assert reply.refusal.code is m.RefusalCode.SUPERSEDED
        assert (await site.row()).goal is Goal.RUN


async def test_an_action_whose_answer_was_lost_counts_for_the_hour_once(tmp_path: Path) -> None:
    async with a_site(tmp_path, "lower_priority", "stop", rule_actions_per_hour=1) as site:
        await site.abnormal()
        await begun(site, "no answer")
        (sent,) = [e for e in await site.monitor.rows(ActionRow) if e.acted_s is not None]
        (taken,) = await site.act()
        assert taken.action is sent.action
        assert await site.act() == []
