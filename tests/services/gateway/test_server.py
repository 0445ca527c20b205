"""The gateway on PostgreSQL: its migrations, and again the tests whose answers a database gives."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from libs.service.wiring import Wiring
from libs.store.connections import Address
from services.gateway.main import WIRING
from tests.services.gateway import (
    test_access,
    test_app,
    test_events,
    test_operators,
    test_runs,
    test_submitting,
    test_tasks,
    test_visibility,
)
from tests.services.gateway.gateway_harness import GatewayHarness, assigned, run_token, served

if TYPE_CHECKING:
    import httpx


pytestmark = pytest.mark.server

# The same tests, with the fixture ``harness`` of this module.
test_a_user_has_a_bounded_number_of_tokens = test_access.test_a_user_has_a_bounded_number_of_tokens
test_every_change_and_every_refusal_is_in_the_audit_trail = (
    test_access.test_every_change_and_every_refusal_is_in_the_audit_trail
)
test_revoked_tokens_and_disabled_users_are_refused_at_once = (
    test_access.test_revoked_tokens_and_disabled_users_are_refused_at_once
)
test_users_and_teams = test_access.test_users_and_teams
test_answers_match_the_description = test_app.test_answers_match_the_description
test_a_deleted_position_is_410_gone = test_events.test_a_deleted_position_is_410_gone
test_a_process_that_does_not_project_follows_the_log_too = (
    test_events.test_a_process_that_does_not_project_follows_the_log_too
)
test_a_reader_that_falls_behind_reads_the_table = (
    test_events.test_a_reader_that_falls_behind_reads_the_table
)
test_filters_by_task_and_type = test_events.test_filters_by_task_and_type
test_pages_join_to_the_log = test_events.test_pages_join_to_the_log
test_readers_that_come_and_go_miss_nothing_and_get_nothing_twice = (
    test_events.test_readers_that_come_and_go_miss_nothing_and_get_nothing_twice
)
test_a_quota_is_set_listed_and_removed = test_operators.test_a_quota_is_set_listed_and_removed
test_nodes_come_in_pages = test_operators.test_nodes_come_in_pages
test_nodes_show_which_tasks_hold_their_gpus = (
    test_operators.test_nodes_show_which_tasks_hold_their_gpus
)
test_a_preemption_releases_the_long_poll_at_once = (
    test_runs.test_a_preemption_releases_the_long_poll_at_once
)
test_an_older_attempt_is_superseded = test_runs.test_an_older_attempt_is_superseded
test_processes_that_report_at_the_same_time_never_conflict = (
    test_runs.test_processes_that_report_at_the_same_time_never_conflict
)
test_reported_metrics_are_listed_by_rank = test_runs.test_reported_metrics_are_listed_by_rank
test_a_task_is_readable_and_listed_before_its_event_is_projected = (
    test_tasks.test_a_task_is_readable_and_listed_before_its_event_is_projected
)
test_a_task_shows_each_state_of_its_life = test_tasks.test_a_task_shows_each_state_of_its_life
test_filters = test_tasks.test_filters
test_goal_and_priority_are_stored_and_shown_when_applied = (
    test_tasks.test_goal_and_priority_are_stored_and_shown_when_applied
)
test_pages_join_to_the_whole_list_although_tasks_are_added_meanwhile = (
    test_tasks.test_pages_join_to_the_whole_list_although_tasks_are_added_meanwhile
)
test_projection_replaces_the_accepted_row_without_a_trace = (
    test_tasks.test_projection_replaces_the_accepted_row_without_a_trace
)
test_a_leader_adds_the_owners_that_an_older_version_left_out = (
    test_visibility.test_a_leader_adds_the_owners_that_an_older_version_left_out
)
test_events_are_filtered_by_owner_team_group_and_task = (
    test_visibility.test_events_are_filtered_by_owner_team_group_and_task
)
test_events_that_come_before_their_tasks_submission_get_its_owner = (
    test_visibility.test_events_that_come_before_their_tasks_submission_get_its_owner
)
test_pages_in_each_order_have_each_matching_task_once = (
    test_visibility.test_pages_in_each_order_have_each_matching_task_once
)
test_the_same_key_is_the_same_task = test_submitting.test_the_same_key_is_the_same_task


@pytest.fixture
def wiring() -> Wiring:
    return WIRING


@pytest_asyncio.fixture
async def harness(
    tmp_path: Path, address: Address, request: pytest.FixtureRequest
) -> AsyncIterator[GatewayHarness]:
    options = getattr(request, "param", {})
    async with GatewayHarness(tmp_path, options, address=address).running() as running:
        yield running


FOUR_RANKS = """
import time, shiftwork
for step in range(100):
    shiftwork.report(step=step, loss=1.0)
    assert not shiftwork.should_preempt(), "asked to leave"
    time.sleep(0.02)
shiftwork.report(step=100)
"""


async def test_four_local_ranks_that_report_at_once_stay_in_the_gang(
    harness: GatewayHarness, ann: httpx.AsyncClient
) -> None:
    task = await harness.submitted(ann)
    await harness.project(assigned(task["id"]))
    async with served(harness) as url:
        ranks = [
            await asyncio.create_subprocess_exec(
                sys.executable,
                "-c",
                FOUR_RANKS,
                env={
                    "SHIFTWORK_TASK": task["id"],
                    "SHIFTWORK_ATTEMPT": "1",
                    "SHIFTWORK_RANK": "0",
                    "SHIFTWORK_WORLD_SIZE": "1",
                    "SHIFTWORK_URL": url,
                    "SHIFTWORK_RUN_TOKEN": run_token(task["id"]),
                    # The variables that torchrun sets.
                    "RANK": str(rank),
                    "WORLD_SIZE": "4",
                    "TORCHELASTIC_RUN_ID": "none",
                },
                stderr=asyncio.subprocess.PIPE,
            )
            for rank in range(4)
        ]
        ends = await asyncio.gather(*(rank.communicate() for rank in ranks))
    assert [(end[1], rank.returncode) for end, rank in zip(ends, ranks, strict=True)] == [
        (b"", 0)
    ] * 4
    shown = (await ann.get(f"/v1/tasks/{task['id']}/metrics")).json()["items"]
    assert [(row["rank"], row["latest"]["step"]) for row in shown] == [(r, 100.0) for r in range(4)]
