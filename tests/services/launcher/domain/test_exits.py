from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from libs.contracts.messages import ExitKind, PreemptMode
from services.launcher.domain import exits
from services.launcher.domain.exits import Ending, classify
from services.launcher.domain.model import EndCause, ObservedRank
from tests.kit.launcher_builders import exited, lost

K = ExitKind
USR1 = 10


def an_ending(
    ranks: Sequence[ObservedRank],
    *,
    mode: PreemptMode = PreemptMode.SDK,
    asked: bool = False,
    acked: bool = False,
    cause: EndCause | None = None,
    harness: int | None = None,
) -> Ending:
    size = len(ranks) if harness is None else harness
    return Ending(mode, USR1, asked, acked, cause, size, tuple(ranks))


@pytest.mark.parametrize("code", [0, 1, 75, 137])
def test_acknowledged_is_preempted_whatever_the_codes(code: int) -> None:
    ending = an_ending([exited(0, code), exited(1, None, 9)], asked=True, acked=True)
    assert classify(ending) is K.PREEMPTED


def test_an_acknowledgement_without_a_request_is_only_a_checkpoint() -> None:
    assert classify(an_ending([exited(0, 1)], acked=True)) is K.FAILED


def test_all_zero_is_ok_even_with_a_preemption_or_kill() -> None:
    assert classify(an_ending([exited(0), exited(1)])) is K.OK
    assert classify(an_ending([exited(0)], asked=True)) is K.OK
    assert classify(an_ending([exited(0)], cause=EndCause.KILL)) is K.OK


def test_a_rank_that_never_began_is_not_ok() -> None:
    assert classify(an_ending([exited(0)], harness=2)) is K.FAILED
    assert classify(an_ending([], harness=1)) is K.FAILED


def test_killed() -> None:
    assert classify(an_ending([exited(0, None, 9)], cause=EndCause.KILL)) is K.KILLED
    assert classify(an_ending([], harness=2, cause=EndCause.KILL)) is K.KILLED
    assert classify(an_ending([lost(0)], cause=EndCause.KILL)) is K.KILLED


def test_vanished_is_lost() -> None:
    assert classify(an_ending([lost(0), exited(1, None, 9)])) is K.LOST
    assert classify(an_ending([exited(0, None, 9)], cause=EndCause.RANK_LOST)) is K.LOST


def test_a_failing_rank_makes_the_gang_failed() -> None:
    ranks = [exited(0, None, 9), exited(1, 3)]
    ending = an_ending(ranks, cause=EndCause.RANK_FAILED)
    assert classify(ending) is K.FAILED
    assert exits.detail(ending, K.FAILED) == "rank 1 ended with code 3"
    failed = exits.first_failed(ending.ranks)
    assert failed is not None
    assert failed.rank == 1


def test_reserved_code_without_an_acknowledgement_is_a_failure() -> None:
    assert classify(an_ending([exited(0, 75)], asked=True)) is K.FAILED


def test_reserved_code_without_a_request_is_a_failure_unless_its_place_was_taken() -> None:
    assert classify(an_ending([exited(0, 75)], acked=True)) is K.FAILED
    assert classify(an_ending([exited(0, 75)], acked=True, cause=EndCause.RANK_LOST)) is K.LOST


@pytest.mark.parametrize("rank", [exited(0, 75), exited(0, 128 + USR1), exited(0, None, USR1)])
def test_signal_mode_exits(rank: ObservedRank) -> None:
    mode = PreemptMode.SIGNAL
    assert classify(an_ending([rank], mode=mode, asked=True)) is K.PREEMPTED
    assert classify(an_ending([rank], mode=mode)) is K.FAILED
    assert classify(an_ending([rank], mode=PreemptMode.SDK, asked=True)) is K.FAILED
    mixed = [rank, exited(1, 1)]
    assert classify(an_ending(mixed, mode=mode, asked=True)) is K.FAILED
    assert classify(an_ending([rank], mode=mode, asked=True, harness=2)) is K.FAILED


def test_signal_mode_exit_zero_is_finished() -> None:
    assert classify(an_ending([exited(0)], mode=PreemptMode.SIGNAL, asked=True)) is K.OK


def test_a_run_preempted_before_it_began_is_preempted() -> None:
    ending = an_ending([], harness=1, asked=True, cause=EndCause.PREEMPTED_BEFORE_START)
    assert classify(ending) is K.PREEMPTED


def test_every_combination_is_classified_and_documented() -> None:
    """Every combination has a kind and a clause."""
    ways = ([], [exited(0)], [exited(0, 1)], [exited(0, None, 9)], [lost(0)], [exited(0, 75)])
    flags = (False, True)
    causes = (None, *EndCause)
    combinations = itertools.product(PreemptMode, ways, flags, flags, causes)
    kinds: set[ExitKind] = set()
    for mode, ranks, asked, acked, cause in combinations:
        ending = an_ending(ranks, mode=mode, asked=asked, acked=acked, cause=cause, harness=1)
        kind = classify(ending)
        assert exits.detail(ending, kind)
        kinds.add(kind)
    assert kinds == set(ExitKind) - {K.UNSPECIFIED}
    text = exits.render_markdown()
    assert all(rule.text in text for rule in exits.RULES)
    assert set(exits.KEPT) == kinds


def test_signal_names() -> None:
    assert exits.signal_number("") == USR1
    assert exits.signal_number("TERM") == exits.signal_number("sigterm") == 15
    with pytest.raises(ValueError, match="not a signal"):
        exits.signal_number("NOPE")
