from __future__ import annotations

import pytest

from libs.contracts.messages import PreemptionPolicy, PreemptMode, Priority, Role
from services.submit.domain.facts import Defaults
from services.submit.domain.fill import derived_name, fill_in
from tests.kit.specs import TASK_ID, asked


def test_the_least_spec_gets_every_default() -> None:
    spec = fill_in(asked(), task_id=TASK_ID, defaults=Defaults())
    assert spec.name == "train-bcdefg"
    assert spec.group == "default"
    assert spec.priority is Priority.NORMAL
    assert [(role.name, role.replicas) for role in spec.roles] == [("worker", 1)]
    assert spec.nodes == 1
    assert spec.preemption == PreemptionPolicy(
        mode=PreemptMode.SDK, signal="", ack_deadline_seconds=60.0
    )
    assert spec.gpus_per_node is None


def test_nodes_alone_are_the_replicas_of_the_one_role() -> None:
    spec = fill_in(asked(nodes=4), task_id=TASK_ID, defaults=Defaults())
    assert spec.roles[0].replicas == spec.nodes == 4


@pytest.mark.parametrize(
    ("given", "kept"), [("", "USR1"), ("TERM", "TERM"), ("SIGUSR2", "USR2"), ("sighup", "HUP")]
)
def test_a_signal_has_one_spelling(given: str, kept: str) -> None:
    policy = PreemptionPolicy(mode=PreemptMode.SIGNAL, signal=given)
    spec = fill_in(asked(preemption=policy), task_id=TASK_ID, defaults=Defaults())
    assert spec.preemption.signal == kept


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (("python", "-u", "/data/train net.py", "--lr", "1"), "train-net-bcdefg"),
        (("torchrun", "--nproc", "8", "fit.py"), "fit-bcdefg"),
        (("/usr/bin/sleep", "5"), "sleep-bcdefg"),
        (("火",), "task-bcdefg"),
        (("x" * 200,), "x" * 56 + "-bcdefg"),
        ((), "task-bcdefg"),
    ],
)
def test_a_name_comes_from_the_command(command: tuple[str, ...], name: str) -> None:
    assert derived_name((Role(command=command),), TASK_ID) == name
    assert len(name) <= 63
