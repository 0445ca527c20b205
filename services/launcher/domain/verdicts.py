"""What the ends of a run's ranks decide, by the task's rules. Called by ``reconcile``; pure.

Not every end counts. One that the platform caused, by ending the others, proves nothing. After a
request to leave, ranks leave because they were asked: codes by which a program says so count
neither as success nor as failure, and 0 counts only once rank 0, which acknowledges for all, has
ended with 0 without an acknowledgement.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from math import inf

from libs.contracts import completion
from libs.contracts.completion import Decided, RankEnd, Verdict
from libs.contracts.messages import Placement, PreemptMode
from services.launcher.domain import exits
from services.launcher.domain.model import ObservedRank, ObservedRun, RankState, Run


@dataclass(frozen=True)
class Verdicts:
    """The verdicts about one run at one scan, each computed at most once."""

    run: Run
    observed: ObservedRun

    @cached_property
    def decided(self) -> Decided | None:
        """By all ends that count; in debug mode none does."""
        if self.run.debugs:
            return None
        return self._decide(rank for rank in self._over if self._counts(rank))

    @property
    def succeeded(self) -> bool:
        """The run has succeeded by ends that count."""
        return self.decided is not None and self.decided.verdict is Verdict.SUCCEEDED

    @cached_property
    def failed_rank(self) -> ObservedRank | None:
        """The rank that decided a failure: under rules of the task's own the one that met the rule,
        else the first one that failed."""
        spec, decided = self.run.spec, self.decided
        own = spec is not None and completion.has_own(spec)
        if own and decided is not None and decided.verdict is Verdict.FAILED:
            for place in self.run.placements:
                if (place.role, place.role_index) == decided.end[:2]:
                    return self.observed.ranks.get(place.rank)
        return exits.first_failed(self.observed.ranks.values())

    @property
    def failure(self) -> str:
        """Why the run has failed, as one clause."""
        assert self.run.spec is not None, "an assigned run has its specification"
        rank = self.failed_rank
        failure = exits.failure_text(rank) if rank else "not every rank started"
        if not completion.has_own(self.run.spec):
            return failure
        return exits.failure_of(self.decided, failure)

    @property
    def failures(self) -> int:
        """How many ranks have failed by ends that count."""
        return sum(rank.code != 0 for rank in self._over if self._counts(rank))

    @property
    def _over(self) -> Iterable[ObservedRank]:
        return (
            rank
            for rank in self.observed.ranks.values()
            if rank.state is RankState.EXITED and self._ended_by_itself(rank)
        )

    def _ended_by_itself(self, rank: ObservedRank) -> bool:
        ending_at = self.run.ending_at
        return ending_at is None or (rank.exited_at is not None and rank.exited_at <= ending_at)

    @property
    def asked(self) -> bool:
        """Whether the run was requested to leave, or leaves on its own, before its end was decided.
        A later request changes no decision.

        Which ends came before the request is not known: the clocks of nodes may be hours behind.
        """
        run = self.run
        if run.yield_requested_at is not None:
            return True
        requested_at = run.preempt_requested_at
        return requested_at is not None and (run.ending_at is None or requested_at <= run.ending_at)

    def _counts(self, rank: ObservedRank) -> bool:
        spec = self.run.spec
        if spec is None or not self.asked:
            return True
        preemption = spec.preemption
        if rank.code == exits.PREEMPTED_CODE:
            return False
        if preemption.mode is PreemptMode.SIGNAL:
            # Code 0 may mean that it left, and only a gang that ended with 0 everywhere is done.
            number = exits.signal_number(preemption.signal)
            return not exits.left_by(rank, number) or self._all_ended_with_0
        return rank.code != 0 or self._rank_0_finished

    @cached_property
    def _all_ended_with_0(self) -> bool:
        ranks = self.observed.ranks.values()
        return len(ranks) == len(self.run.placements) and all(rank.code == 0 for rank in ranks)

    @cached_property
    def _rank_0_finished(self) -> bool:
        first = self.observed.ranks.get(self.run.leading_rank)
        return first is not None and first.code == 0 and self.run.leaves_since is None

    @cached_property
    def _places(self) -> dict[int, Placement]:
        return {place.rank: place for place in self.run.placements}

    def _decide(self, ranks: Iterable[ObservedRank]) -> Decided | None:
        spec = self.run.spec
        if spec is None:
            return None
        over = [rank for rank in ranks if rank.rank in self._places]
        if not over:
            return None
        over.sort(key=_order)
        ends = (
            RankEnd(
                self._places[rank.rank].role, self._places[rank.rank].role_index, rank.code == 0
            )
            for rank in over
        )
        return completion.decide(completion.rules_of(spec), spec.roles, ends)


def _order(rank: ObservedRank) -> tuple[float, bool, int]:
    """The order of ends. At one time (pods report whole seconds) successes come first: a rank often
    fails because another one has finished."""
    at: datetime | None = rank.exited_at
    return (at.timestamp() if at else inf, rank.code != 0, rank.rank)
