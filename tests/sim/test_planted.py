"""The simulation finds each planted defect within a bounded number of seeds."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.sim import bends, planted
from tests.sim.plan import Plan
from tests.sim.simulation import Simulation, run_simulation
from tests.sim.swarm import one

# A minute and a half of simulations: `make test-slow`.
pytestmark = pytest.mark.slow

SIMULATIONS_MAX = 60


def as_drawn(plan: Plan) -> Plan:
    return plan


@dataclass(frozen=True)
class Planted:
    """One defect, and how the simulation finds it."""

    defect: Callable[[], AbstractContextManager[None]]
    # The name of a check that finds it.
    check: str
    # A seed that is known to show it; it is tried first.
    seed: int
    # The most seeds that are tried until it is found.
    simulations: int = SIMULATIONS_MAX
    bend: Callable[[Plan], Plan] = as_drawn
    sim: type[Simulation] = Simulation


DEFECTS = {
    "double assignment": Planted(planted.double_assignment, "slots_never_double_booked", 0, 10),
    "ranks of one gang overlap": Planted(
        planted.ranks_of_one_gang_overlap, "slots_never_double_booked", 0, 20
    ),
    "rules end too early": Planted(planted.rules_end_too_early, "success_follows_the_rules", 3, 20),
    "roles start too early": Planted(
        planted.roles_start_too_early, "starts too early", 0, 10, bends.roles_in_order
    ),
    "limits of ready roles": Planted(
        planted.limits_of_ready_roles, "logged as error", 0, 10, bends.roles_after_several
    ),
    "debug ends judged": Planted(
        planted.debug_ends_judged, "debug_mode_decides_nothing", 2, 20, bends.debugging_people
    ),
    "old modes win": Planted(
        planted.old_modes_win, "no_task_is_lost", 124, 130, bends.debugging_people
    ),
    "waiting ranks taken for lost": Planted(
        planted.waiting_ranks_taken_for_lost, "no_task_is_lost", 0, 10, bends.roles_in_order
    ),
    "roles start while the run leaves": Planted(
        planted.roles_start_while_the_run_leaves,
        "starts after the request to leave",
        3,
        10,
        bends.leaving_while_roles_wait,
    ),
    "limits by the clocks of nodes": Planted(
        planted.limits_by_the_clocks_of_nodes, "roles_have_their_time", 0, 10, bends.nodes_behind
    ),
    "class counters shared": Planted(
        planted.class_counters_shared, "retries_follow_the_limits", 10, 20, bends.failing_programs
    ),
    "class counters not advanced": Planted(
        planted.class_counters_not_advanced,
        "retries_follow_the_limits",
        1,
        20,
        bends.failing_programs,
    ),
    "restart rules ignored": Planted(
        planted.restart_rules_ignored, "restarts_follow_the_rules", 0, 20, bends.failing_programs
    ),
    "amounts not added up": Planted(
        planted.amounts_not_added_up,
        "amounts_are_never_overbooked",
        7,
        20,
        bends.asking_for_amounts,
    ),
    "reply before storing": Planted(
        planted.reply_before_storing, "acknowledged_checkpoints_survive", 2, 40
    ),
    "unfenced attempt": Planted(
        planted.unfenced_attempts, "attempts_count_up", 2, 10, bends.repeated_facts
    ),
    "cursor outbox": Planted(
        nullcontext, "no_task_is_lost", 0, 10, as_drawn, planted.CursorSimulation
    ),
    "no republishing": Planted(planted.forgotten_republishing, "no_task_is_lost", 36, 45),
    "inbox apart": Planted(planted.inbox_apart, "the_event_log_is_whole", 2, 30),
    "marked as sent before publishing": Planted(
        planted.mark_before_publishing, "states_follow_the_promise", 5, 30
    ),
    "ack before commit": Planted(planted.ack_before_commit, "no_task_is_lost", 10, 20),
    "timers for rows": Planted(
        planted.deadlines_in_memory, "no_task_is_lost", 0, 30, bends.hanging_programs
    ),
    "failed commits forgotten": Planted(
        planted.failed_commits_forgotten, "no_task_is_lost", 0, 20, bends.failing_commits
    ),
    "unfenced epoch": Planted(planted.unfenced_epochs, "states_follow_the_promise", 29),
    "end declared when ordered": Planted(
        planted.end_declared_when_ordered, "slots_never_double_booked", 7
    ),
    "yields counted as failures": Planted(
        planted.yields_counted_as_failures,
        "yields_are_no_failures",
        0,
        10,
        bends.yielding_programs,
    ),
    "nodes free at the wish": Planted(
        planted.nodes_free_at_the_wish,
        "slots_never_double_booked",
        2,
        bend=bends.yielding_programs,
    ),
    "early requests dropped": Planted(
        planted.dropped_early_requests, "no_task_is_lost", 7, 12, bends.hasty_people
    ),
    "no inbox": Planted(planted.no_inbox, "ranks_started_once", 0, bend=bends.short_memories),
    "unanswered orders count": Planted(
        planted.unanswered_orders_count,
        "no_task_is_lost",
        2,
        bend=bends.silent_nodes,
    ),
    "nodes leave with their runs": Planted(
        planted.nodes_leave_with_their_runs, "one_live_attempt_per_task", 7
    ),
    "outbox pruned by age": Planted(
        planted.outbox_pruned_by_age, "states_follow_the_promise", 7, bend=bends.long_outages
    ),
    "bad nodes forgotten": Planted(
        planted.bad_nodes_forgotten,
        "no_task_is_lost",
        1,
        10,
        bends.one_dark_node,
        planted.DarkNodeSimulation,
    ),
    "default limits named users": Planted(
        planted.default_limits_named_users, "no_task_is_lost", 1, 20, bends.granted
    ),
    "expired rows count": Planted(
        planted.expired_rows_count, "no_task_is_lost", 4, 40, bends.granted
    ),
    "last arrival wins": Planted(planted.last_arrival_wins, "nodes_and_limits_agree", 1),
    "late requests carried out": Planted(
        planted.late_requests_carried_out, "late:", 0, bend=bends.slow_databases
    ),
    "faults not isolated": Planted(
        planted.faults_not_isolated,
        "no_task_is_lost",
        0,
        bend=bends.a_group_that_cannot_be_decided,
        sim=planted.PoisonedGroupSimulation,
    ),
    "bad rows not set apart": Planted(
        planted.bad_rows_not_set_apart,
        "died by itself",
        0,
        bend=bends.a_row_that_cannot_be_loaded,
        sim=planted.PoisonedRowSimulation,
    ),
    "nodes of bad rows given away": Planted(
        planted.nodes_of_bad_rows_given_away,
        "slots_never_double_booked",
        0,
        bend=bends.a_row_that_cannot_be_loaded,
        sim=planted.PoisonedRowSimulation,
    ),
    "explained by submission": Planted(
        planted.explained_by_submission,
        "explain calls",
        0,
        bend=bends.crowded,
        sim=planted.ExplainedSimulation,
    ),
    "silent runs waited for": Planted(
        planted.silent_runs_waited_for,
        "silent_runs_are_not_waited_for",
        0,
        bend=bends.calm_people,
    ),
    "listening runs cut short": Planted(
        planted.listening_runs_cut_short,
        "listening_runs_are_not_cut_short",
        0,
        bend=bends.calm_people,
    ),
    "former leaders write": Planted(
        planted.former_leaders_write, "output_has_its_times", 315, bend=bends.deposed_collectors
    ),
    "times follow the clock": Planted(planted.times_follow_the_clock, "output_has_its_times", 75),
    "inventories by time": Planted(planted.inventories_by_time, "nodes_and_limits_agree", 16),
}
BENDS = (
    bends.failing_programs,
    bends.asking_for_amounts,
    bends.roles_in_order,
    bends.roles_after_several,
    bends.leaving_while_roles_wait,
    bends.nodes_behind,
    bends.repeated_facts,
    bends.hanging_programs,
    bends.failing_commits,
    bends.hasty_people,
    bends.short_memories,
    bends.silent_nodes,
    bends.long_outages,
    bends.slow_databases,
    bends.deposed_collectors,
    bends.calm_people,
    bends.granted,
    bends.yielding_programs,
)
SIMULATIONS = (
    (planted.PoisonedGroupSimulation, bends.a_group_that_cannot_be_decided),
    (planted.PoisonedRowSimulation, bends.a_row_that_cannot_be_loaded),
    (planted.ExplainedSimulation, bends.crowded),
)


def finds(planted_: Planted) -> Iterator[int]:
    """Seeds for which the check complains: the known one, then from 0 on."""
    others = (seed for seed in range(planted_.simulations) if seed != planted_.seed)
    with planted_.defect():
        for seed in (planted_.seed, *others):
            # As in ``make sim``, an exception in the simulation itself is a complaint, too.
            complaints = one(seed, planted_.sim, planted_.bend).complaints
            if any(planted_.check in text for text in complaints):
                yield seed


@pytest.mark.parametrize("name", DEFECTS)
def test_a_planted_defect_is_found(name: str) -> None:
    found = next(finds(DEFECTS[name]), None)
    assert found is not None, f"{DEFECTS[name].check} found nothing"
    print(f"{name}: found with seed {found} by {DEFECTS[name].check}")


def test_tasks_end_beside_a_node_on_which_nothing_starts() -> None:
    for seed in range(5):
        assert not run_simulation(seed, planted.DarkNodeSimulation, bends.one_dark_node).complaints


def test_interleaved_commits_alone_do_no_harm() -> None:
    for seed in range(5):
        assert not run_simulation(seed, planted.InterleavedSimulation).complaints


@pytest.mark.parametrize(("sim", "bend"), SIMULATIONS)
def test_other_simulations_without_a_defect_are_right(
    sim: type[Simulation], bend: Callable[[Plan], Plan]
) -> None:
    for seed in range(5):
        assert not run_simulation(seed, sim, bend).complaints


@pytest.mark.parametrize("bend", BENDS, ids=lambda bend: bend.__name__)
def test_changed_plans_without_a_defect_are_right(bend: Callable[[Plan], Plan]) -> None:
    for seed in range(5):
        assert not run_simulation(seed, Simulation, bend).complaints


def test_every_planted_defect_stands_in_the_documentation() -> None:
    """The table has its name and the check that finds it."""
    rows = [
        re.split(r" *\| *", line.strip("| \n"))
        for line in Path("docs/testing.md").read_text().splitlines()
        if line.count("|") == 3
    ]
    for name, each in DEFECTS.items():
        (row,) = (row for row in rows if re.match(rf"{re.escape(name)}\b", row[0]))
        assert f"`{each.check}`" in row[1], name
