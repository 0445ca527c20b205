"""Nothing grows with the number of tasks: the reduced form of ``make soak``, and that it finds what
does grow."""

from __future__ import annotations

import pytest

from libs.service.prune import Pruning
from services.launcher.domain.worklist import Outcome, Worklist
from tests.soak.memory import Soak, soak
from tests.soak.quiet import quiet

TASKS, PER_SAMPLE = 400, 100
# Half of what grows by one for each task between the second sample and the last.
SLACK = 100
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def test_nothing_grows_with_the_number_of_tasks() -> None:
    with quiet():
        growing, samples = soak(TASKS, PER_SAMPLE, slack=SLACK)
    assert growing == []
    assert sum(count for name, count in samples.taken[-1].items() if name.startswith("rows ")) > 0


def keep_decisions(platform: Soak) -> None:
    """The scheduler prunes everything but its decisions."""
    for runner in platform.runners:
        for loop in runner.service.loops:
            step = getattr(loop.step, "__self__", None)
            if isinstance(step, Pruning) and step.service == "scheduler":
                step.old = [rule for rule in step.old if rule.what != "decisions"]


def test_a_set_that_is_never_emptied_and_a_table_without_a_rule_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    commit = Worklist.commit

    def leaky(self: Worklist, outcome: Outcome) -> None:
        """Also keep runs that this round has forgotten."""
        commit(self, outcome)
        self.observed |= outcome.observed

    monkeypatch.setattr(Worklist, "commit", leaky)
    with quiet():
        growing, _ = soak(TASKS, PER_SAMPLE, keep_decisions, slack=SLACK)
    names = {text.partition(":")[0] for text in growing}
    assert "services.launcher.domain.worklist.Worklist.observed" in names
    assert "rows scheduler.decision" in names
