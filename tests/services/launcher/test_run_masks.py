"""No secret of a run gets into what the launcher records and publishes of its program's words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from libs.contracts.messages import RunDelayed
from libs.contracts.run_token import make_run_token
from services.launcher.domain.model import (
    Fault,
    Listing,
    ObservedRank,
    ObservedRun,
    RankState,
    RunState,
)
from services.launcher.run_masks import RunMasks
from services.launcher.runtimes.fake import FakeRuntime
from services.launcher.runtimes.fake_cluster import Script
from services.launcher.runtimes.kubernetes.pod_state import TEXT_CHARACTERS_MAX, Place, rank_of
from services.launcher.runtimes.port import (
    LaunchRefusedError,
    RunOrder,
    Runtime,
    RuntimeUnavailableError,
)
from tests.kit.launcher_builders import a_run, a_spec, an_assignment
from tests.kit.virtual_time import virtually
from tests.services.launcher.launcher_harness import SITE, LauncherHarness, running_cluster

PASSWORD = "two  words\tand-a-tail-Zq3vT8xLw2Rk9"
SPEC = a_spec(env={"DB": PASSWORD, "PLAIN": "open-to-all"}, secret_env=("DB",))
RUN = a_run(RunState.RUNNING, spec=SPEC)
TOKEN = make_run_token(SITE.token_key, RUN.id)


def a_pod(message: str, *, reason: str = "Error", init: bool = False) -> dict[str, Any]:
    end = {"exitCode": 3, "reason": reason, "message": message}
    statuses = [{"name": "prepare" if init else "main", "state": {"terminated": end}}]
    key = "initContainerStatuses" if init else "containerStatuses"
    return {
        "spec": {"containers": [{"name": "main"}]},
        "status": {"phase": "Failed", key: statuses},
    }


def observed(message: str, **more: Any) -> ObservedRun:
    rank = rank_of(a_pod(message, **more), Place(0, "local-0"))
    return ObservedRun(RUN.id, {0: rank}, frozenset({"local-0"}), whole=True)


def note(message: str, **more: Any) -> str:
    """The note of a rank whose program wrote this."""
    listing = Listing(runs={RUN.id: observed(message, **more)})
    masked = RunMasks(SITE).listing(listing, {RUN.id: RUN})
    return masked.runs[RUN.id].ranks[0].note


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (f"bad password {PASSWORD}!", "bad password ***!"),
        (f"token {TOKEN} open-to-all", "token *** open-to-all"),
        ("nothing of it", "nothing of it"),
        # The end of a log, which begins within a value.
        ("tail-Zq3vT8xLw2Rk9 is wrong", "*** is wrong"),
        # Cut within a value.
        ("x" * (TEXT_CHARACTERS_MAX - 20) + PASSWORD, "x" * (TEXT_CHARACTERS_MAX - 20) + "***"),
        ("\ud800 half a character", "? half a character"),
        ("", ""),
    ],
)
def test_what_a_program_wrote_at_its_end_has_no_secret(message: str, expected: str) -> None:
    assert note(message) == expected


def test_the_words_of_the_platform_stay_before_those_of_a_program() -> None:
    tail = "tail-Zq3vT8xLw2Rk9 is wrong"
    assert note(tail, reason="OOMKilled").endswith(": *** is wrong")
    assert note(tail, init=True).endswith("prepare ended with code 3 *** is wrong")


def test_a_run_is_masked_once_while_nothing_of_it_changes_and_never_shown_unmasked() -> None:
    masks, run = RunMasks(SITE), observed(f"bad {PASSWORD}")
    listing = Listing(runs={RUN.id: run})
    # The launcher does not know its secrets.
    assert masks.listing(listing, {}).runs[RUN.id].ranks[0].note == ""
    first = masks.listing(listing, {RUN.id: RUN})
    assert masks.listing(listing, {RUN.id: RUN}).runs[RUN.id] is first.runs[RUN.id]
    other = ObservedRun(RUN.id, {0: replace(run.ranks[0], note=f"now {TOKEN}", words="")})
    changed = masks.listing(Listing(runs={RUN.id: other}), {RUN.id: RUN})
    assert changed.runs[RUN.id].ranks[0].note == "now ***"


class Writing(FakeRuntime):
    """A cluster whose pods have termination messages."""

    async def list(self) -> Listing:
        listing = await super().list()
        runs = {run_id: self._written(run) for run_id, run in listing.runs.items()}
        return replace(listing, runs=runs)

    def _written(self, run: ObservedRun) -> ObservedRun:
        return replace(run, ranks={n: self._rank(rank) for n, rank in run.ranks.items()})

    def _rank(self, rank: ObservedRank) -> ObservedRank:
        if rank.state is not RankState.EXITED or not rank.code:
            return rank
        found = rank_of(a_pod(f"bad {PASSWORD}"), Place(rank.rank, rank.node_id))
        return replace(rank, note=found.note, words=found.words)


class Refusing(FakeRuntime):
    """A cluster that quotes what it refuses."""

    async def launch(self, _order: RunOrder) -> None:
        raise LaunchRefusedError(Fault.NOT_ADMITTED, f"denied: {PASSWORD}")


class Failing(FakeRuntime):
    """One that quotes it, and may accept it later."""

    async def launch(self, _order: RunOrder) -> None:
        raise RuntimeUnavailableError(f"try later: {PASSWORD}")


async def played(make: Callable[[LauncherHarness], Runtime], script: Script) -> list[str]:
    """What is published and logged about a run on such a cluster."""
    harness = LauncherHarness(script=script)
    harness.make_runtime = lambda: make(harness)
    with capture_logs() as logs:
        async with running_cluster(harness):
            await harness.handle(an_assignment(spec=SPEC))
            if make is make_failing:
                await harness.until_published(RunDelayed, 1, "task")
                texts = [each.detail for each in await harness.published(RunDelayed)]
            else:
                texts = [(await harness.until_exited()).exit.detail]
    assert "tail" not in str(logs)
    return texts


def make_failing(harness: LauncherHarness) -> Runtime:
    return Failing(harness.cluster)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda harness: Writing(harness.cluster), "rank 0 ended with code 3 (bad ***)"),
        (lambda harness: Refusing(harness.cluster), "denied: ***"),
        (make_failing, "try later: ***"),
    ],
)
def test_no_event_and_no_log_line_has_a_secret_that_a_runtime_reports(
    make: Callable[[LauncherHarness], Runtime], expected: str
) -> None:
    async def main() -> None:
        (text,) = await played(make, Script(steps=3, step_seconds=0.5, code=3))
        assert text.endswith(expected)

    virtually(main())
