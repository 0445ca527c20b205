from __future__ import annotations

from datetime import timedelta

import pytest

from libs.contracts.messages import ExitKind
from services.launcher.domain import rank_faults
from services.launcher.domain.model import Fault
from services.launcher.domain.rank_faults import LINES, Seen, Wait, Waits, ended_as, waiting_as


def test_each_fault_has_one_line_and_each_sign_one_meaning() -> None:
    assert sorted(line.fault for line in LINES) == sorted(Fault)
    signs = [(line.seen, sign) for line in LINES for sign in line.signs]
    assert len(signs) == len(set(signs))


def test_only_what_waits_has_patience() -> None:
    for line in LINES:
        assert line.wait is Wait.NONE or line.seen is Seen.WAITING
        assert line.kind in (ExitKind.FAILED, ExitKind.LOST)


def test_patience() -> None:
    waits = Waits(image_pull=timedelta(seconds=7), create=timedelta(seconds=3))
    assert rank_faults.patience(Fault.IMAGE_PULL, waits) == timedelta(seconds=7)
    assert rank_faults.patience(Fault.NOT_CREATED, waits) == timedelta(seconds=3)
    assert rank_faults.patience(Fault.INVALID_IMAGE, waits) == timedelta(0)
    assert rank_faults.patience(Fault.UNSCHEDULABLE, waits) is None


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
def test_ends(reason: str, message: str, fault: Fault) -> None:
    line = ended_as(reason, message)
    assert line is not None
    assert line.fault is fault


def test_what_is_not_in_the_table_is_no_fault() -> None:
    assert ended_as("Completed") is None
    assert waiting_as("SomethingNew") is None
    # A reason of the one kind means nothing in the other.
    assert waiting_as("OOMKilled") is None


def test_sentences_and_the_page() -> None:
    assert rank_faults.sentence(Fault.OUT_OF_MEMORY) == "out of memory"
    assert (
        rank_faults.sentence(Fault.OVER_QUOTA, "6 of 6")
        == "the namespace's quota is used up: 6 of 6"
    )
    page = rank_faults.render_markdown()
    assert all(line.says in page for line in LINES)
    assert len(page.splitlines()) == len(LINES) + 2
