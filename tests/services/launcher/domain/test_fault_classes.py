"""The class of a failure, by what was wrong with the rank and by its exit code."""

from __future__ import annotations

import itertools

import pytest

from libs.contracts.messages import ExitKind, Fault, FaultClass, RankExit
from services.launcher.domain import rank_faults
from services.launcher.domain.fault_classes import RULES, class_of, class_of_run, fault_of

C, F, K = FaultClass, Fault, ExitKind


def test_each_fault_and_each_code_is_in_at_most_one_line() -> None:
    faults = list(itertools.chain.from_iterable(rule.faults for rule in RULES))
    codes = list(itertools.chain.from_iterable(rule.codes for rule in RULES))
    assert sorted(faults) == sorted(set(Fault) - {F.UNSPECIFIED})
    assert len(codes) == len(set(codes))


def test_faults_of_the_site_are_the_platforms() -> None:
    for rule in rank_faults.RULES:
        of_platform = class_of(rule.fault, None) is C.PLATFORM
        assert of_platform is (rule.kind is K.LOST)


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        ((130, 131, 137, 143), C.TRANSIENT),
        ((126, 127, 132, 135, 136, 141), C.USER),
        ((134, 139), C.UNKNOWN),
        ((1, 2, 3, 75, 125, 128, 129, 133, 138, 140, 142, 144, 255, None), C.UNKNOWN),
    ],
)
def test_classes_of_codes(codes: tuple[int | None, ...], expected: FaultClass) -> None:
    assert {class_of(F.UNSPECIFIED, code) for code in codes} == {expected}


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (F.OUT_OF_MEMORY, C.USER),
        (F.IMAGE_PULL, C.USER),
        (F.OVER_TIME, C.USER),
        (F.NOT_CREATED, C.UNKNOWN),
        (F.EVICTED, C.PLATFORM),
        (F.NODE_LOST, C.PLATFORM),
        (F.DISPLACED, C.PLATFORM),
        (F.DELETED, C.PLATFORM),
    ],
)
@pytest.mark.parametrize("code", [None, 1, 126, 137])
def test_a_fault_decides_before_the_code(
    fault: Fault, code: int | None, expected: FaultClass
) -> None:
    assert class_of(fault, code) is expected


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (K.OK, C.UNSPECIFIED),
        (K.PREEMPTED, C.UNSPECIFIED),
        (K.KILLED, C.UNSPECIFIED),
        (K.LOST, C.PLATFORM),
        (K.FAILED, C.TRANSIENT),
    ],
)
def test_only_failed_and_lost_runs_have_a_class(kind: ExitKind, expected: FaultClass) -> None:
    killed = RankExit(rank=1, signal=9)
    assert class_of_run(kind, F.UNSPECIFIED, killed) is expected


def test_the_fault_of_a_run_is_that_of_the_rank_that_decided() -> None:
    rank = RankExit(rank=1, code=137, fault=F.OUT_OF_MEMORY)
    assert fault_of(K.FAILED, F.IMAGE_PULL, rank) is F.OUT_OF_MEMORY
    assert fault_of(K.FAILED, F.IMAGE_PULL, None) is F.IMAGE_PULL
    assert fault_of(K.LOST, F.EVICTED, None) is F.EVICTED
    assert fault_of(K.LOST, None, None) is F.UNSPECIFIED
    assert fault_of(K.KILLED, F.EVICTED, rank) is F.UNSPECIFIED
