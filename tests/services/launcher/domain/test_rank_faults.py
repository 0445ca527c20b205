from __future__ import annotations

from datetime import timedelta

import pytest

from libs.contracts.messages import ExitKind
from services.launcher.domain import rank_faults
from services.launcher.domain.model import Fault
from services.launcher.domain.rank_faults import (
    RULES,
    PendingLimits,
    Phase,
    Wait,
    ended_fault,
    waiting_fault,
)


def test_each_fault_has_one_rule_and_each_reason_one_meaning() -> None:
    known = set(Fault) - {Fault.UNSPECIFIED}
    assert sorted(rule.fault for rule in RULES) == sorted(known)
    reasons = [(rule.phase, reason_) for rule in RULES for reason_ in rule.reasons]
    assert len(reasons) == len(set(reasons))


def test_only_waiting_faults_have_a_pending_limit() -> None:
    for rule in RULES:
        assert rule.wait is Wait.NONE or rule.phase is Phase.WAITING
        assert rule.kind in (ExitKind.FAILED, ExitKind.LOST)


def test_pending_limits() -> None:
    limits = PendingLimits(image_pull=timedelta(seconds=7), create=timedelta(seconds=3))
    assert rank_faults.pending_limit(Fault.IMAGE_PULL, limits) == timedelta(seconds=7)
    assert rank_faults.pending_limit(Fault.NOT_CREATED, limits) == timedelta(seconds=3)
    assert rank_faults.pending_limit(Fault.INVALID_IMAGE, limits) == timedelta(0)
    assert rank_faults.pending_limit(Fault.UNSCHEDULABLE, limits) is None


@pytest.mark.parametrize(
    ("reason", "message", "fault"),
    [
        ("Evicted", "The node was low on resource: memory.", Fault.EVICTED),
        (
            "Evicted",
            "Pod ephemeral local storage usage exceeds the total limit",
            Fault.OVER_STORAGE,
        ),
        ("Evicted", 'Usage of EmptyDir volume "x" exceeds the limit "1Mi".', Fault.OVER_STORAGE),
        ("OOMKilled", "", Fault.OUT_OF_MEMORY),
        ("PreemptionByScheduler", "", Fault.DISPLACED),
        ("OutOfcpu", "", Fault.NODE_REFUSED),
    ],
)
def test_end_reasons_map_to_faults(reason: str, message: str, fault: Fault) -> None:
    rule = ended_fault(reason, message)
    assert rule is not None
    assert rule.fault is fault


def test_an_unknown_reason_is_no_fault() -> None:
    assert ended_fault("Completed") is None
    assert waiting_fault("SomethingNew") is None
    # A reason of the one kind means nothing in the other.
    assert waiting_fault("OOMKilled") is None


def test_texts_and_the_page() -> None:
    assert rank_faults.describe(Fault.OUT_OF_MEMORY) == "out of memory"
    assert (
        rank_faults.describe(Fault.OVER_QUOTA, "6 of 6")
        == "the namespace's quota is used up: 6 of 6"
    )
    page = rank_faults.render_markdown()
    assert all(rule.text in page for rule in RULES)
    assert len(page.splitlines()) == len(RULES) + 2
