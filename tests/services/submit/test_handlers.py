from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.contracts.ids import is_task_id
from libs.contracts.limits import CREATE_TASKS_MAX
from libs.contracts.messages import (
    CreateTask,
    CreateTaskReply,
    CreateTasks,
    Goal,
    GoalChanged,
    InventoryListed,
    Node,
    NodeChanged,
    PodRequest,
    Priority,
    PriorityChanged,
    Quota,
    QuotaChanged,
    Reason,
    Reemit,
    ReemitReply,
    RefusalCode,
    SetGoal,
    SetPriority,
    TaskState,
    TaskStateChanged,
    TaskSubmitted,
    Unit,
)
from libs.store.port import ConflictError, Store
from services.submit.handlers import prepare
from services.submit.main import WIRING
from services.submit.store import (
    InventoryRow,
    NodeRow,
    OwnerRow,
    QuotaRow,
    ShapeRow,
    TaskRow,
    prune_rules,
)
from tests.kit.clock import at
from tests.kit.memory import MemoryPlatform
from tests.kit.service import ServiceHarness
from tests.kit.specs import asked
from tests.services.submit.conftest import submit_service


def create(key: str = "k1", owner: str = "ann", **changes: Any) -> CreateTask:
    return CreateTask(client_key=key, owner=owner, team="red", spec=asked(**changes))


def moved(task_id: str, state: TaskState, version: int) -> TaskStateChanged:
    return TaskStateChanged(
        task_id=task_id, version=version, state=state, reason=Reason(), changed_at=at(1)
    )


def node(node_id: str, *, version: int = 1, removed: bool = False, **changes: Any) -> NodeChanged:
    fields: dict[str, Any] = {"group": "default", "gpus": 8, "ready": True, "schedulable": True}
    return NodeChanged(
        node_id=node_id,
        version=version,
        node=Node(id=node_id, **(fields | changes)),
        removed=removed,
        changed_at=at(0),
    )


def listed(*node_ids: str, seconds: float = 0.0, version: int = 0) -> InventoryListed:
    return InventoryListed(
        runtime="process", node_ids=node_ids, listed_at=at(seconds), version=version
    )


def limited(limit: int, *, version: int = 1, removed: bool = False, **changes: Any) -> QuotaChanged:
    quota = Quota(unit=Unit.NODES, limit=limit, **changes)
    return QuotaChanged(
        group_token="all", quota=quota, removed=removed, version=version, changed_at=at(0)
    )


async def created(service: ServiceHarness, key: str = "k1", **changes: Any) -> CreateTaskReply:
    reply = await service.ask(create(key, **changes))
    assert reply.refusal is None, reply.refusal
    return reply


async def test_a_task_is_stored_and_published_once(service: ServiceHarness) -> None:
    reply = await created(service, labels={"λ": "ü"}, env={"A": "β"})
    assert is_task_id(reply.task_id)
    assert (reply.created, reply.revision, reply.submitted_at) == (True, 1, service.clock.now())
    (event,) = await service.published()
    assert event == TaskSubmitted(
        task_id=reply.task_id,
        owner="ann",
        team="red",
        spec=reply.spec,
        submitted_at=service.clock.now(),
        revision=1,
    )
    assert event.spec.name == f"train-{reply.task_id[-6:]}"
    assert event.spec.env == {"A": "β"}


async def test_the_same_key_is_the_same_task(service: ServiceHarness) -> None:
    first = await created(service, nodes=2)
    await service.published()
    service.clock.advance(100)
    again = await created(service, nodes=2)
    assert again == first.model_copy(update={"created": False})
    assert await service.published() == []
    other_owner = await service.ask(create(owner="bob", nodes=2))
    assert other_owner.created
    assert other_owner.task_id != first.task_id


async def test_the_same_key_is_the_same_task_after_it_has_ended_and_changed(
    service: ServiceHarness,
) -> None:
    first = await created(service)
    await service.ask(SetPriority(task_id=first.task_id, priority=Priority.LOW))
    await service.handle(moved(first.task_id, TaskState.SUCCEEDED, 1))
    again = await created(service)
    assert (again.task_id, again.created, again.revision) == (first.task_id, False, 2)


async def test_the_same_key_with_another_spec_is_a_conflict(service: ServiceHarness) -> None:
    first = await created(service, env={"SECRET": "one"})
    await service.published()
    reply = await service.ask(create(env={"SECRET": "two"}, nodes=2))
    assert reply.refusal.code is RefusalCode.CONFLICT
    assert {error.field for error in reply.refusal.errors} == {"env", "nodes"}
    assert reply.task_id == first.task_id
    assert "two" not in reply.refusal.to_json().decode()
    assert await service.published() == []


async def test_tasks_of_a_batch_are_validated_as_if_they_came_one_after_the_other(
    service: ServiceHarness,
) -> None:
    before = await created(service, key="old")
    await service.published()
    reply = await service.ask(
        CreateTasks(
            tasks=(
                create("old"),
                create("a", name="same"),
                create("b", name="same"),
                create("a", name="same"),
                create("a", name="same", nodes=2),
                create("c", cpus=-1.0),
                create("d", owner="Not A Name"),
                create("e", owner="bob", name="same"),
            )
        )
    )
    assert reply.refusal is None
    made = [each.created for each in reply.replies]
    assert made == [False, True, False, False, False, False, False, True]
    old, first, taken, repeated, other_spec, bad, unfit, _ = reply.replies
    assert old == before.model_copy(update={"created": False})
    assert taken.refusal.code is RefusalCode.CONFLICT
    assert [error.field for error in taken.refusal.errors] == ["name"]
    assert repeated == first.model_copy(update={"created": False})
    assert other_spec.refusal.code is RefusalCode.CONFLICT
    assert [error.field for error in bad.refusal.errors] == ["cpus"]
    assert [error.field for error in unfit.refusal.errors] == ["owner"]
    assert [event.owner for event in await service.published()] == ["ann", "bob"]
    assert len(await service.rows(TaskRow)) == 3


async def test_reading_ahead_changes_no_answer(service: ServiceHarness) -> None:
    commands = [create("k"), CreateTasks(tasks=(create("k"), create("l", name="n"))), create("l")]
    async with service.store.transaction() as tx:
        await prepare(tx, commands)
        replies = [await service.service.commands[type(each)](tx, each) for each in commands]
    assert replies[0].created
    assert [each.created for each in replies[1].replies] == [False, True]
    assert replies[2].refusal.code is RefusalCode.CONFLICT
    assert len(await service.published()) == 2


async def test_a_command_has_a_maximum_of_tasks(service: ServiceHarness) -> None:
    reply = await service.ask(
        CreateTasks(tasks=tuple(create(f"k{n}") for n in range(CREATE_TASKS_MAX + 1)))
    )
    assert [error.field for error in reply.refusal.errors] == ["tasks"]
    assert await service.rows(TaskRow) == []


async def test_without_a_key_each_command_makes_a_new_task(service: ServiceHarness) -> None:
    first, second = await created(service, key=""), await created(service, key="")
    assert first.task_id < second.task_id
    assert len(await service.rows(TaskRow)) == 2


async def test_a_refused_task_leaves_nothing(service: ServiceHarness) -> None:
    reply = await service.ask(create(group="No", cpus=-1.0))
    assert {error.field for error in reply.refusal.errors} == {"group", "cpus"}
    assert await service.rows(TaskRow) == []
    assert await service.published() == []
    assert (await created(service)).created


async def test_live_names_of_an_owner_differ(service: ServiceHarness) -> None:
    first = await created(service, "k1", name="mine")
    clash = await service.ask(create("k2", name="mine"))
    assert clash.refusal.code is RefusalCode.CONFLICT
    assert first.task_id in clash.refusal.detail
    assert (await service.ask(create("k3", owner="bob", name="mine"))).created
    await service.handle(moved(first.task_id, TaskState.STOPPED, 3))
    assert (await service.ask(create("k2", name="mine"))).created


async def test_the_database_refuses_a_second_task_with_the_same_name_or_key(
    service: ServiceHarness,
) -> None:
    """The database prevents two tasks with one live name or key, even if the handlers miss it."""
    first = await created(service, name="mine")
    (row,) = await service.rows(TaskRow)
    twins = [
        {"client_key": "other"},  # the name
        {"name": "other"},  # the key
    ]
    for number, change in enumerate(twins):
        fields = {name: getattr(row, name) for name in TaskRow.__slots__}
        twin = TaskRow(**(fields | {"task_id": f"ttwin{'ab'[number]}"} | change))
        with pytest.raises(ConflictError):
            async with service.store.transaction() as tx:
                tx.put(twin)
    assert [row.task_id for row in await service.rows(TaskRow)] == [first.task_id]


async def test_goals_are_published_with_a_growing_revision(service: ServiceHarness) -> None:
    task = (await created(service)).task_id
    await service.published()
    pause = await service.ask(SetGoal(task_id=task, goal=Goal.PAUSE, asked_by="ann"))
    again = await service.ask(SetGoal(task_id=task, goal=Goal.PAUSE, asked_by="bob"))
    lower = await service.ask(SetPriority(task_id=task, priority=Priority.LOW, asked_by="root"))
    run = await service.ask(SetGoal(task_id=task, goal=Goal.RUN, asked_by="ann"))
    assert [reply.revision for reply in (pause, again, lower, run)] == [2, 2, 3, 4]
    now = service.clock.now()
    assert await service.published() == [
        GoalChanged(task_id=task, goal=Goal.PAUSE, revision=2, changed_by="ann", changed_at=now),
        PriorityChanged(
            task_id=task, priority=Priority.LOW, revision=3, changed_by="root", changed_at=now
        ),
        GoalChanged(task_id=task, goal=Goal.RUN, revision=4, changed_by="ann", changed_at=now),
    ]


async def test_a_goal_of_an_unknown_task_is_refused(service: ServiceHarness) -> None:
    for wish in (SetGoal(task_id="tx", goal=Goal.STOP), SetPriority(task_id="tx")):
        reply = await service.ask(wish)
        assert reply.refusal.code is RefusalCode.NOT_FOUND
        assert reply.refusal.errors[0].field == "task_id"


async def test_a_goal_of_an_ended_task_is_refused(service: ServiceHarness) -> None:
    task = (await created(service)).task_id
    await service.handle(moved(task, TaskState.FAILED, 5), moved(task, TaskState.RUNNING, 6))
    await service.published()
    for wish in (
        SetGoal(task_id=task, goal=Goal.RUN),
        SetPriority(task_id=task, priority=Priority.HIGH),
    ):
        reply = await service.ask(wish)
        assert reply.refusal.code is RefusalCode.CONFLICT
        assert reply.revision == 1
    assert await service.published() == []


async def test_an_old_event_of_a_task_changes_nothing(service: ServiceHarness) -> None:
    task = (await created(service)).task_id
    await service.handle(
        moved(task, TaskState.RUNNING, 3),
        moved(task, TaskState.QUEUED, 2),
        moved(task, TaskState.FAILED, 3),
        moved("tother", TaskState.FAILED, 1),
    )
    (row,) = await service.rows(TaskRow)
    assert (row.state, row.state_version, row.ended) == (TaskState.RUNNING, 3, False)


async def test_sizes_are_validated_once_the_inventory_is_known(service: ServiceHarness) -> None:
    big = create("big", nodes=3)
    assert (await service.ask(big)).created
    await service.handle(listed("n1", "n2"), node("n1"))
    assert (await service.ask(create("k2", nodes=3))).created  # n2 was listed but not published yet
    await service.handle(node("n2", ready=False, schedulable=False))
    reply = await service.ask(create("k3", nodes=3))
    assert [error.field for error in reply.refusal.errors] == ["nodes"]
    assert (await service.ask(create("k3", nodes=2))).created
    await service.handle(node("n2", version=2, removed=True))
    assert (await service.ask(create("k4", nodes=2))).refusal is not None
    assert (await service.ask(big)).task_id  # accepted once, accepted for ever


async def test_an_unknown_group_is_refused_with_the_known_ones(service: ServiceHarness) -> None:
    await service.handle(node("n1", group="train"), listed("n1"))
    reply = await service.ask(create(group="trian"))
    assert reply.refusal.errors[0].fix.startswith("did you mean train? use one of: train; ")


async def test_quotas_may_arrive_in_any_order(service: ServiceHarness) -> None:
    await service.handle(limited(5, version=3), limited(1, version=2))
    assert (await service.ask(create("k1", nodes=5))).created
    assert (await service.ask(create("k2", nodes=6))).refusal is not None
    await service.handle(limited(5, version=4, removed=True))
    assert (await service.ask(create("k2", nodes=6))).created


async def test_a_priority_without_any_quota_is_refused(service: ServiceHarness) -> None:
    task = (await created(service)).task_id
    await service.handle(limited(0, user="ann", priority=Priority.HIGH))
    reply = await service.ask(SetPriority(task_id=task, priority=Priority.HIGH))
    assert reply.refusal.code is RefusalCode.INVALID
    assert "priority high" in reply.refusal.detail
    assert (await service.ask(SetPriority(task_id=task, priority=Priority.LOW))).revision == 2


async def test_reemit_publishes_the_events_again(service: ServiceHarness) -> None:
    first, second = await created(service, "k1"), await created(service, "k2")
    await service.ask(SetGoal(task_id=first.task_id, goal=Goal.PAUSE, asked_by="ann"))
    await service.ask(SetPriority(task_id=first.task_id, priority=Priority.LOW, asked_by="ann"))
    published = await service.published()
    assert (await service.ask(Reemit(service="submit"))).events == 4
    again = await service.published()
    assert sorted(again, key=repr) == sorted(published, key=repr)
    assert [event.task_id for event in again if isinstance(event, TaskSubmitted)] == [
        first.task_id,
        second.task_id,
    ]


# Changes of three nodes, in any order and as often as one likes.
changes = st.lists(
    st.builds(
        node,
        st.sampled_from(["n1", "n2", "n3"]),
        version=st.integers(1, 6),
        removed=st.booleans(),
        gpus=st.sampled_from([4, 8]),
        group=st.sampled_from(["a", "b"]),
    ),
    max_size=25,
)


@given(changes, st.integers(0, 25))
@settings(max_examples=40, deadline=None)
async def test_shapes_always_count_the_nodes(events: list[NodeChanged], listing_at: int) -> None:
    service = submit_service()
    for number, event in enumerate(events):
        if number == listing_at:
            await service.handle(listed("n1", "n2", "n3"))
        await service.handle(event)
    nodes = {row.node_id: row for row in await service.rows(NodeRow)}
    newest: dict[str, NodeChanged] = {}
    for event in events:
        if event.node_id not in newest or event.version > newest[event.node_id].version:
            newest[event.node_id] = event
    assert {key: row.version for key, row in nodes.items()} == {
        key: event.version for key, event in newest.items()
    }
    counted: dict[tuple[str, int], int] = {}
    for event in newest.values():
        if not event.removed:
            shape = (event.node.group, event.node.gpus)
            counted[shape] = counted.get(shape, 0) + 1
    shapes = await service.rows(ShapeRow)
    assert {(row.group, row.gpus): row.nodes for row in shapes} == counted
    for row in await service.rows(InventoryRow):
        assert set(row.missing) == {"n1", "n2", "n3"} - set(nodes)


async def test_nodes_with_other_taints_have_another_shape(service: ServiceHarness) -> None:
    await service.handle(node("n1", taints=("a/b",)), node("n2", taints=("a", "b")))
    shapes = {row.taints: row.nodes for row in await service.rows(ShapeRow)}
    assert shapes == {("a/b",): 1, ("a", "b"): 1}


async def test_nodes_that_an_earlier_version_counted_are_counted_once(
    service: ServiceHarness,
) -> None:
    """It did not escape "/" in taints, so one row counted nodes of several taints."""
    nodes = [node("n1", taints=("a/b",)), node("n2", taints=("a", "b")), node("n3")]
    await service.handle(*nodes)
    rows = await service.rows(ShapeRow)
    async with service.store.transaction() as tx:
        for row in rows:
            tx.delete(ShapeRow, row.shape)
        sizes = f"{rows[0].gpus}/{rows[0].cpus:g}/{rows[0].memory_bytes}"
        (plain,) = [replace(row, shape=f"{row.group}/{sizes}") for row in rows if not row.taints]
        met = replace(plain, shape=f"{plain.shape}/a/b", taints=("a", "b"), nodes=2)
        tx.put(plain, met)

    async def counted() -> dict[tuple[str, ...], int]:
        found: Counter[tuple[str, ...]] = Counter()
        for row in await service.rows(ShapeRow):
            found[row.taints] += row.nodes
        return dict(found)

    await service.handle(node("n4"))
    assert await counted() == {(): 2, ("a", "b"): 2}
    await service.handle(node("n1", version=2, taints=("a/b",)))
    assert await counted() == {(): 2, ("a", "b"): 1, ("a/b",): 1}
    for removed in ("n2", "n3", "n1", "n4"):
        await service.handle(node(removed, version=3, removed=True))
    assert await counted() == {}


POLICY = """
default_image: site/train:1
images: [{names: ["site/*"]}]
storage: [{name: sets, mount_path: /sets, source: {claim: {name: sets}}, teams: [red]}]
"""
PRIVILEGED = '{"spec": {"containers": [{"name": "main", "securityContext": {"privileged": true}}]}}'


@pytest.fixture
def policy_file(tmp_path: Path) -> Path:
    file = tmp_path / "pods.yaml"
    file.write_text(POLICY)
    return file


@pytest.fixture
def empty_policy_file(tmp_path: Path) -> Path:
    file = tmp_path / "empty.yaml"
    file.write_text("{}")
    return file


async def test_a_pod_request_that_the_site_does_not_allow_is_refused_with_its_path(
    policy_file: Path,
) -> None:
    service = submit_service(pod_policy_file=policy_file)
    pod = PodRequest(
        image="evil:1",
        storage=("other",),
        resources={"nvidia.com/mig-1g.5gb": "1"},
        template=PRIVILEGED,
    )
    reply = await service.ask(create(pod=pod))
    assert reply.refusal.code is RefusalCode.INVALID
    assert [(error.field, error.value) for error in reply.refusal.errors] == [
        ("pod.image", "evil:1"),
        ("pod.storage[0]", "other"),
        ("pod.resources.nvidia.com/mig-1g.5gb", "1"),
        ("pod.template.spec.containers[0].securityContext.privileged", "true"),
    ]
    assert all(error.fix for error in reply.refusal.errors)
    assert await service.published() == []


async def test_a_pod_request_that_the_site_allows_is_stored_unchanged(policy_file: Path) -> None:
    service = submit_service(pod_policy_file=policy_file)
    pod = PodRequest(storage=("sets",), template='{"spec": {"hostUsers": false}}')
    reply = await service.ask(create(pod=pod))
    assert reply.refusal is None
    [event] = await service.published()
    assert event.spec.pod == pod


async def test_without_a_policy_no_image_is_needed_and_nothing_is_granted(
    empty_policy_file: Path,
) -> None:
    service = submit_service()
    assert (await service.ask(create())).refusal is None
    reply = await service.ask(create("k2", pod=PodRequest(template=PRIVILEGED)))
    assert reply.refusal.code is RefusalCode.INVALID
    service = submit_service(pod_policy_file=empty_policy_file)
    reply = await service.ask(create())
    assert [error.field for error in reply.refusal.errors] == ["pod.image"]


async def test_ended_tasks_are_forgotten_by_age_and_live_ones_never(
    service: ServiceHarness,
) -> None:
    over, later, live = [(await created(service, key)).task_id for key in ("k1", "k2", "k3")]
    await service.handle(moved(over, TaskState.SUCCEEDED, 2))
    service.clock.advance(100)
    await service.handle(moved(later, TaskState.FAILED, 2))
    old, *_ = prune_rules(timedelta(days=1), timedelta(days=1), timedelta(days=1))
    async with service.store.transaction() as tx:
        oldest = await old.oldest(tx)
        assert oldest is not None
        assert await old.drop(tx, oldest + timedelta(seconds=50), 10) == 1
    assert sorted(row.task_id for row in await service.rows(TaskRow)) == sorted([later, live])
    # A key that is not forgotten still makes no second task; one that is makes a new task.
    assert not (await created(service, "k2")).created
    assert (await created(service, "k1")).created


async def test_removed_nodes_are_forgotten_by_age_and_present_ones_never(
    service: ServiceHarness,
) -> None:
    await service.handle(node("n1", version=2, removed=True), node("n2"), node("n3"))
    service.clock.advance(100)
    await service.handle(node("n3", version=2, removed=True))
    _, old, _ = prune_rules(timedelta(days=1), timedelta(days=1), timedelta(days=1))
    async with service.store.transaction() as tx:
        oldest = await old.oldest(tx)
        assert oldest is not None
        assert await old.drop(tx, oldest + timedelta(seconds=50), 10) == 1
        assert await old.drop(tx, oldest + timedelta(seconds=50), 10) == 0
    assert [row.node_id for row in await service.rows(NodeRow)] == ["n2", "n3"]
    # It comes back with a version above those that it had.
    await service.handle(node("n1", version=9))
    (shape,) = await service.rows(ShapeRow)
    assert shape.nodes == 2


async def test_a_newer_list_counts_although_the_clock_was_set_back(service: ServiceHarness) -> None:
    await service.handle(listed("n1", "n2", seconds=9, version=4))
    await service.handle(listed("n3", seconds=1, version=5), listed("n1", seconds=10, version=3))
    (row,) = await service.rows(InventoryRow)
    assert (row.missing, row.version) == (("n3",), 5)


async def test_the_maximum_of_live_tasks_holds_for_each_user(
    platform: MemoryPlatform, store: Store
) -> None:
    service = submit_service(platform, store, live_tasks_per_user_max=3)
    made = [(await created(service, f"k{number}")).task_id for number in range(3)]
    refused = await service.ask(create("k3"))
    assert refused.refusal is not None
    assert refused.refusal.code is RefusalCode.FORBIDDEN
    assert "3 tasks" in refused.refusal.detail
    assert "SHIFTWORK_SUBMIT_LIVE_TASKS_PER_USER_MAX" in refused.refusal.errors[0].fix
    # A key that made a task still returns it, and another user has tasks of their own.
    assert (await service.ask(create("k0"))).task_id == made[0]
    assert (await service.ask(create("k0", owner="bob"))).refusal is None
    # An ended task frees its place once, however often its end is published.
    for version in (2, 3):
        await service.handle(moved(made[0], TaskState.SUCCEEDED, version))
    assert (await service.ask(create("k3"))).refusal is None
    assert (await service.ask(create("k4"))).refusal is not None


async def test_tasks_of_a_batch_beyond_the_owners_maximum_are_refused(
    platform: MemoryPlatform, store: Store
) -> None:
    service = submit_service(platform, store, live_tasks_per_user_max=3)
    several = CreateTasks(tasks=tuple(create(f"k{number}") for number in range(5)))
    replies = (await service.ask(several)).replies
    assert [reply.refusal is None for reply in replies] == [True] * 3 + [False] * 2
    rows = await service.rows(OwnerRow)
    assert rows == [OwnerRow("ann", 3)]
    for row in await service.rows(TaskRow):
        await service.handle(moved(row.task_id, TaskState.STOPPED, 2))
    assert await service.rows(OwnerRow) == []


async def test_node_selectors_are_validated_against_the_known_labels(
    service: ServiceHarness,
) -> None:
    wanted = {"node_selector": {"disk": "nvme"}}
    await service.handle(listed("n0", "n1"), node("n0", labels={"disk": "hdd"}, schedulable=False))
    assert (await service.ask(create("k1", **wanted))).refusal is None
    await service.handle(node("n1", ready=False, taints=("reserved",)))
    refusal = (await service.ask(create("k2", **wanted))).refusal
    assert [error.field for error in refusal.errors] == ["node_selector"]
    assert refusal.errors[0].fix.startswith("labels there are: disk=hdd; ")
    assert (await service.ask(create("k2", **wanted, wait_for_nodes=True))).refusal is None
    # A node that is lost for now counts; what was accepted with a key stays accepted.
    await service.handle(node("n1", version=2, ready=False, labels={"disk": "nvme"}))
    assert (await service.ask(create("k3", name="c", **wanted))).refusal is None
    many = (await service.ask(create("k4", name="d", nodes=2, **wanted))).refusal
    assert [error.field for error in many.errors] == ["nodes"]
    await service.handle(node("n1", version=3, removed=True))
    assert (await service.ask(create("k3", name="c", **wanted))).refusal is None


async def test_a_node_recorded_without_labels_refuses_no_selector(service: ServiceHarness) -> None:
    await service.handle(listed("n0"), node("n0", labels={"disk": "hdd"}))
    async with service.store.transaction() as tx:
        row = await tx.get(NodeRow, "n0")
        assert row is not None
        tx.put(replace(row, labels=None, taints=None))
    wanted = {"node_selector": {"disk": "nvme"}}
    assert (await service.ask(create("k1", name="a", **wanted))).refusal is None
    # The same news again fills them in.
    await service.handle(node("n0", labels={"disk": "hdd"}))
    assert (await service.ask(create("k2", name="b", **wanted))).refusal is not None


async def test_a_dry_run_is_validated_and_not_stored(service: ServiceHarness) -> None:
    first = await created(service, "k1", name="taken")
    command = create("k1", name="other").model_copy(update={"dry_run": True})
    reply = await service.ask(command)
    assert (reply.refusal, reply.created) == (None, False)
    assert reply.spec is not None
    assert reply.spec.name == "other"
    clash = await service.ask(create("k2", name="taken").model_copy(update={"dry_run": True}))
    assert clash.refusal.code is RefusalCode.CONFLICT
    async with service.store.transaction() as tx:
        assert [row.task_id for row in await tx.select(TaskRow)] == [first.task_id]
        owner = await tx.get(OwnerRow, "ann")
    assert owner is not None
    assert owner.live_tasks == 1


async def test_what_has_no_effect_is_warned_of_and_kept(service: ServiceHarness) -> None:
    await service.handle(node("n1", labels={"shiftwork.limits": "not-enforced"}), listed("n1"))
    reply = await created(service, pod=PodRequest(image="x:1"), cpus=0.5)
    assert [(each.code, each.field) for each in reply.warnings] == [
        ("pods-only", "pod.image"),
        ("limits-not-enforced", "cpus"),
    ]
    (event,) = await service.published()
    assert isinstance(event, TaskSubmitted)
    assert event.warnings == reply.warnings
    again = await created(service, pod=PodRequest(image="x:1"), cpus=0.5)
    assert again.warnings == reply.warnings
    dry = create("k2", pod=PodRequest(image="x:1")).model_copy(update={"dry_run": True})
    assert [each.field for each in (await service.ask(dry)).warnings] == ["pod.image"]
    await service.ask(Reemit())
    assert [each for each in await service.published() if isinstance(each, TaskSubmitted)] == [
        event
    ]


async def test_removed_quotas_are_forgotten_by_age_and_live_ones_never(
    service: ServiceHarness,
) -> None:
    await service.handle(limited(1, user="ann"), limited(1, user="bob", version=2))
    service.clock.advance(100)
    await service.handle(limited(1, user="ann", version=3, removed=True))
    *_, old = prune_rules(timedelta(days=1), timedelta(days=1), timedelta(days=1))
    async with service.store.transaction() as tx:
        oldest = await old.oldest(tx)
        assert oldest is not None
        assert await old.drop(tx, oldest, 10) == 0
        assert await old.drop(tx, oldest + timedelta(seconds=1), 10) == 1
    assert [row.user for row in await service.rows(QuotaRow)] == ["bob"]


async def test_an_attempt_that_an_upgrade_left_unknown_comes_with_facts_that_are_published_again(
    platform: MemoryPlatform,
) -> None:
    service = ServiceHarness(platform, WIRING)
    await service.lead()
    made = await service.ask(create())
    state = moved(made.task_id, TaskState.RUNNING, 7).model_copy(update={"attempt": 3})
    await service.handle(state)
    asked_for: list[Reemit] = []

    async def reemit(command: Reemit) -> ReemitReply:
        asked_for.append(command)
        return ReemitReply()

    await service.step("attempts")
    async with platform.connection("scheduler").serve({Reemit: reemit}):
        # Nothing is unknown.
        await service.step("attempts")
        assert asked_for == []
        await service.restart()
        (row,) = await service.rows(TaskRow)
        await service.put(replace(row, attempt=-1))
        await service.step("attempts")
        await service.step("attempts")
        assert [each.service for each in asked_for] == ["scheduler"]
    await service.handle(state.model_copy(update={"version": 6, "attempt": 2}))
    assert (await service.rows(TaskRow))[0].attempt == -1
    # The same version as before the upgrade.
    await service.handle(state)
    (row,) = await service.rows(TaskRow)
    assert (row.attempt, row.state_version) == (3, 7)
    await service.handle(state.model_copy(update={"attempt": 9}))
    assert (await service.rows(TaskRow))[0].attempt == 3
