from __future__ import annotations

import json
from dataclasses import replace

import pytest

from libs.contracts.messages import Override, Placement, Role
from libs.contracts.run_token import make_run_token
from services.launcher.domain.model import Run, RunState
from services.launcher.hosts import Host, PortKey, local_hosts
from services.launcher.run_orders import build_order
from tests.kit.launcher_builders import KEY, a_checkpoint, a_run, a_spec, placements, run_id
from tests.services.launcher.launcher_harness import SITE

TOKEN = make_run_token(KEY, run_id())


def hosts_of(run: Run, port: int = 1) -> tuple[Host, ...]:
    return local_hosts(run, "127.0.0.1", {PortKey(0): port})


def test_the_whole_environment_of_a_first_attempt() -> None:
    """The runtime adds only the path of the context and the devices."""
    run = a_run(RunState.ASSIGNED, ranks=2, spec=a_spec(2))
    run = replace(run, placements=placements(2, gpus=(1, 3)))
    order = build_order(run, hosts_of(run, 23_456), SITE)
    assert [rank.rank for rank in order.ranks] == [0, 1]
    assert order.ranks[1].env == {
        "PATH": "/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "PYTHONUNBUFFERED": "1",
        "SHIFTWORK_TASK": "task",
        "SHIFTWORK_ATTEMPT": "1",
        "SHIFTWORK_NODE": "local-1",
        "SHIFTWORK_GPUS": "1,3",
        "SHIFTWORK_RANK": "1",
        "SHIFTWORK_WORLD_SIZE": "2",
        "SHIFTWORK_LOCAL_RANK": "0",
        "SHIFTWORK_ROLE": "worker",
        "SHIFTWORK_RESUME_FROM": "",
        "SHIFTWORK_URL": "http://127.0.0.1:8642",
        "SHIFTWORK_RUN_TOKEN": TOKEN,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "23456",
        "WORLD_SIZE": "2",
        "RANK": "1",
        "PET_NNODES": "2",
        "PET_NODE_RANK": "1",
        "PET_NPROC_PER_NODE": "2",
        "PET_MASTER_ADDR": "127.0.0.1",
        "PET_MASTER_PORT": "23456",
    }


def test_a_tasks_variables_do_not_override_the_platforms() -> None:
    role = Role(name="worker", replicas=1, command=("train",), env={"B": "role", "C": "role"})
    spec = a_spec().model_copy(
        update={
            "roles": (role,),
            "env": {"A": "task", "B": "task", "HOME": "/h", "SHIFTWORK_RANK": "9", "RANK": "9"},
            "working_directory": "/data",
        }
    )
    run = a_run(RunState.ASSIGNED, spec=spec)
    [rank] = build_order(run, hosts_of(run), SITE).ranks
    wanted = ("A", "B", "C", "HOME", "SHIFTWORK_RANK", "RANK")
    assert {name: rank.env[name] for name in wanted} == {
        "A": "task",
        "B": "role",
        "C": "role",
        "HOME": "/h",
        "SHIFTWORK_RANK": "0",
        "RANK": "0",
    }
    assert rank.argv == ("train",)
    assert rank.cwd == "/data"


def test_cpu_only_is_one_process_per_node() -> None:
    run = replace(a_run(RunState.ASSIGNED), placements=placements(1, gpus=()))
    [rank] = build_order(run, hosts_of(run), SITE).ranks
    assert (rank.env["PET_NPROC_PER_NODE"], rank.env["SHIFTWORK_GPUS"]) == ("1", "")


def test_the_context_and_the_resumed_checkpoint() -> None:
    spec = a_spec(fence_after_seconds=30.0, cpus=2.0, memory_bytes=1 << 30)
    run = a_run(RunState.ASSIGNED, spec=spec, resume_from=a_checkpoint(4, step=90, uri="/c/90"))
    [rank] = build_order(run, hosts_of(run), SITE).ranks
    context = json.loads(rank.context)
    assert context == {
        "task": "task",
        "attempt": 1,
        "node": "local-0",
        "gpus": [0],
        "rank": 0,
        "world_size": 1,
        "local_rank": 0,
        "role": "worker",
        "url": "http://127.0.0.1:8642",
        "run_token": TOKEN,
        "resume_from": {"no": 4, "step": 90, "uri": "/c/90", "digest": "", "attempt": 1},
        "ack_deadline_seconds": 60.0,
        "fence_after_seconds": 30.0,
    }
    assert json.loads(rank.env["SHIFTWORK_RESUME_FROM"]) == context["resume_from"]
    assert rank.env["SHIFTWORK_FENCE_AFTER_SECONDS"] == "30.0"
    assert (rank.cpus, rank.memory_bytes) == (2.0, 1 << 30)


def test_the_run_token_key_is_never_printed() -> None:
    assert KEY.decode() not in repr(SITE)


def test_arguments_follow_the_command_or_go_to_the_images_program() -> None:
    for command, of_image in (((), True), (("train",), False)):
        role = Role(name="worker", replicas=1, command=command, args=("--epochs", "3"))
        run = a_run(RunState.ASSIGNED, spec=a_spec().model_copy(update={"roles": (role,)}))
        [rank] = build_order(run, hosts_of(run), SITE).ranks
        assert rank.argv == (*command, "--epochs", "3")
        assert rank.of_image is of_image


def test_limits_and_requests_of_a_rank() -> None:
    role = Role(name="worker", replicas=1, command=("train",), cpus_request=0.5)
    update = {"roles": (role,), "cpus": 2.0, "memory_request_bytes": 7}
    run = a_run(RunState.ASSIGNED, spec=a_spec().model_copy(update=update))
    [rank] = build_order(run, hosts_of(run), SITE).ranks
    assert (rank.cpus, rank.cpus_request) == (2.0, 0.5)
    # A request alone enforces nothing.
    assert (rank.memory_bytes, rank.memory_request_bytes) == (None, 7)


RESUME = Override(command=("train", "--resume"), env={"B": "resume", "D": "resume"})


@pytest.mark.parametrize(
    ("attempt", "resume", "argv", "env"),
    [
        (1, None, ("train",), {"A": "task", "B": "role"}),
        (2, None, ("train",), {"A": "task", "B": "role"}),
        (1, RESUME, ("train",), {"A": "task", "B": "role"}),
        (2, RESUME, ("train", "--resume"), {"A": "task", "B": "resume", "D": "resume"}),
        (7, RESUME, ("train", "--resume"), {"A": "task", "B": "resume", "D": "resume"}),
        (2, Override(command=("other",)), ("other",), {"A": "task", "B": "role"}),
        (2, Override(env={"A": "resume"}), ("train",), {"A": "resume", "B": "role"}),
        # The platform's variables cannot be overridden.
        (2, Override(env={"RANK": "9"}), ("train",), {"RANK": "0"}),
    ],
)
def test_every_attempt_after_the_first_has_its_roles_override(
    attempt: int, resume: Override | None, argv: tuple[str, ...], env: dict[str, str]
) -> None:
    role = Role(name="worker", replicas=1, command=("train",), env={"B": "role"}, resume=resume)
    spec = a_spec().model_copy(update={"roles": (role,), "env": {"A": "task"}})
    run = replace(a_run(RunState.ASSIGNED, spec=spec), attempt=attempt)
    (rank,) = build_order(run, hosts_of(run), SITE).ranks
    assert rank.argv == argv
    assert {name: rank.env.get(name) for name in env} == env
    assert ("D" in rank.env) == ("D" in env)
    assert rank.env["SHIFTWORK_ATTEMPT"] == str(attempt)


def test_an_overrides_command_takes_the_place_of_the_roles_arguments_too() -> None:
    for resume, argv in (
        (Override(command=("other",)), ("other",)),
        (Override(env={"A": ""}), ("-x",)),
    ):
        role = Role(name="worker", replicas=1, args=("-x",), resume=resume)
        spec = a_spec().model_copy(update={"roles": (role,)})
        run = replace(a_run(RunState.ASSIGNED, spec=spec), attempt=2)
        (rank,) = build_order(run, hosts_of(run), SITE).ranks
        assert (rank.argv, rank.of_image) == (argv, argv == ("-x",))


def test_only_the_role_that_has_an_override_changes() -> None:
    roles = (
        Role(name="chief", replicas=1, command=("lead",), resume=Override(command=("lead", "-r"))),
        Role(name="worker", replicas=1, command=("train",)),
    )
    spec = a_spec(2).model_copy(update={"roles": roles})
    places = (
        Placement(rank=0, role="chief", role_index=0, node_id="local-0", gpus=(0,)),
        Placement(rank=1, role="worker", role_index=0, node_id="local-1", gpus=(0,)),
    )
    run = replace(a_run(RunState.ASSIGNED, ranks=2, spec=spec), attempt=2, placements=places)
    order = build_order(run, hosts_of(run), SITE)
    assert [rank.argv for rank in order.ranks] == [("lead", "-r"), ("train",)]


def test_secrets_are_declared_or_named_like_secrets_or_the_run_token() -> None:
    site = replace(SITE, secret_env_patterns=("*token", "*PASSWORD"))
    env = {"DSN": "postgres://", "HF_TOKEN": "hf", "TOKENIZERS_PARALLELISM": "false"}
    resume = Override(env={"db_password": "new"})
    role = Role(name="worker", replicas=1, command=("train",), env={"X": "1"}, resume=resume)
    other = role.model_copy(update={"name": "other", "resume": None})
    spec = a_spec(2).model_copy(
        update={"roles": (role, other), "env": env, "secret_env": ("DSN", "X")}
    )
    places = tuple(
        Placement(rank=rank, role=name, role_index=0, node_id=f"local-{rank}", gpus=(0,))
        for rank, name in enumerate(("worker", "other"))
    )
    run = replace(a_run(RunState.ASSIGNED, ranks=2, spec=spec), attempt=2, placements=places)
    first, second = build_order(run, hosts_of(run), site).ranks
    assert first.secrets == ("SHIFTWORK_RUN_TOKEN", "DSN", "HF_TOKEN", "X", "db_password")
    assert second.secrets == ("SHIFTWORK_RUN_TOKEN", "DSN", "HF_TOKEN", "X")
    assert set(first.secrets) <= set(first.env)
    first, _ = build_order(run, hosts_of(run), SITE).ranks
    assert first.secrets == ("SHIFTWORK_RUN_TOKEN", "DSN", "X")
