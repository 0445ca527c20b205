"""Specs for tests: complete ones, what a person writes, and strategies for both."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from libs.contracts.messages import (
    PreemptionPolicy,
    PreemptMode,
    Priority,
    RetryPolicy,
    Role,
    TaskSpec,
)

TASK_ID = "tabcdefabcdefabcdefg"


def asked(*, command: tuple[str, ...] = ("python", "train.py"), **changes: Any) -> TaskSpec:
    """The least that a person writes."""
    fields: dict[str, Any] = {
        "roles": (Role(command=command),),
        "retry": RetryPolicy(),
        "preemption": PreemptionPolicy(),
    }
    return TaskSpec(**(fields | changes))


# Any text that PostgreSQL and processes can hold; commands, labels and variables may be any of it.
anything = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=20)
names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True)
groups = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,10}[a-z0-9])?", fullmatch=True)
variables = st.dictionaries(
    st.from_regex(r"MY_[A-Z0-9_]{0,8}", fullmatch=True), anything, max_size=4
)
labels = st.dictionaries(anything.filter(str.strip), anything, max_size=4)
commands = st.lists(anything.filter(bool), min_size=1, max_size=4).map(tuple)


def roles_of(count: int) -> st.SearchStrategy[tuple[Role, ...]]:
    return st.tuples(
        *(
            st.builds(
                Role,
                name=st.just(f"role-{index}"),
                replicas=st.integers(1, 64),
                command=commands,
                env=variables,
            )
            for index in range(count)
        )
    )


preemptions = st.one_of(
    st.builds(
        PreemptionPolicy,
        mode=st.sampled_from([PreemptMode.UNSPECIFIED, PreemptMode.SDK, PreemptMode.KILL]),
        ack_deadline_seconds=st.sampled_from([0.0, 1.0, 60.0, 3600.0]),
    ),
    st.builds(
        PreemptionPolicy,
        mode=st.just(PreemptMode.SIGNAL),
        signal=st.sampled_from(["", "USR1", "TERM", "SIGUSR2", "sighup"]),
        ack_deadline_seconds=st.sampled_from([0.0, 1.5]),
    ),
)


@st.composite
def valid_specs(draw: st.DrawFn) -> TaskSpec:
    """What persons may write, with and without the fields that have defaults."""
    roles = draw(st.integers(1, 4).flatmap(roles_of))
    total = sum(role.replicas for role in roles)
    return TaskSpec(
        name=draw(st.one_of(st.just(""), names)),
        group=draw(st.one_of(st.just(""), groups)),
        priority=draw(st.sampled_from(list(Priority))),
        roles=roles,
        gpus_per_node=draw(st.one_of(st.none(), st.integers(0, 16))),
        env=draw(variables),
        working_directory=draw(st.sampled_from(["", "/", "/home/someone/ünï code"])),
        labels=draw(labels),
        retry=RetryPolicy(max_retries=draw(st.integers(0, 100))),
        preemption=draw(preemptions),
        max_run_seconds=draw(st.one_of(st.none(), st.floats(0.001, 86_400))),
        fence_after_seconds=draw(st.one_of(st.none(), st.floats(10, 86_400))),
        cpus=draw(st.one_of(st.none(), st.floats(0.1, 128))),
        memory_bytes=draw(st.one_of(st.none(), st.integers(1, 1 << 40))),
        nodes=draw(st.sampled_from([0, total])),
    )
