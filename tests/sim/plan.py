"""What happens in one simulation, all of it drawn from the seed before anything runs.

Swarm testing: each kind of fault is on or off in a simulation, and its likelihood differs from
one simulation to the next, so that rare combinations occur often enough.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from random import Random

from libs.bus.memory_broker import Faults
from libs.contracts.messages import (
    Completion,
    PreemptMode,
    Priority,
    RestartRule,
    RestartScope,
    RestartWhen,
    RetryPolicy,
    Role,
    RunMode,
    StartCondition,
    StartsAfter,
)
from libs.store.memory_database import Point
from services.allinone.composition import WIRINGS

SERVICES = tuple(wiring.name for wiring in WIRINGS)
# The services that publish their facts again when a gateway with an empty read model asks.
OWNERS = ("submit", "scheduler", "launcher", "quota")
RATES = (
    "lose_delivery",
    "duplicate_delivery",
    "delay_delivery",
    "reorder",
    "lose_ack",
    "fail_publish",
    "lose_request",
    "lose_reply",
    "lose_telemetry",
)
LEVELS = (0.01, 0.05, 0.15, 0.3)
POINT_RATES = (0.002, 0.01, 0.03)
PRIORITIES = tuple(each for each in Priority if each is not Priority.UNSPECIFIED)
FORGET_SECONDS_MAX = 30.0
CLOCK_JUMP_SECONDS_MAX = 60.0
# As a machine that takes local time for UTC, or whose battery is empty.
CLOCK_JUMP_HOURS_MAX = 12.0
# How late a leader may learn that another one leads.
NOTICE_SECONDS_MAX = 15.0
KILL_SECONDS_MAX = 20.0
EXIT_SECONDS = 0.05
READY_SECONDS_MAX = 5.0
START_SECONDS = 5.0
NODE_CPUS = 8.0
NODE_MEMORY_BYTES = 64 << 30
# How long a run has to leave if its program never calls ``should_preempt``.
SILENT_SECONDS = 2.0
# A program with so many steps ends only if somebody ends it.
ENDLESS_STEPS = 1_000_000
# Codes of failures of all classes that a program's end can have.
CODES = (1, 3, 127, 134, 137, 143)


@dataclass(frozen=True)
class Strike:
    """One fault, which occurs at one time (seconds after the start)."""

    at: float
    kind: str
    target: str = ""
    seconds: float = 0.0
    extra: float = 0.0


@dataclass(frozen=True)
class Program:
    """How one task's training behaves; ``steps`` are what it has to do in all."""

    steps: int
    step_seconds: float
    save_every: int
    save_seconds: float
    # What it does when asked to hand over: see ``programs.WAYS``.
    way: str
    # In these attempts one rank fails at that step of the attempt.
    fails: Mapping[int, int]
    failing_rank: int
    # The exit codes of these failures, in turns.
    codes: tuple[int, ...] = (1,)
    # How many processes of that rank fail: with a rule for it, the rank is restarted in its place.
    failing_starts: int = 1
    # In these attempts it hands its nodes over on its own after that step of the attempt.
    yields: Mapping[int, int] = field(default_factory=dict)

    @property
    def endless(self) -> bool:
        """Whether only a stop ends it."""
        return self.steps >= ENDLESS_STEPS


@dataclass(frozen=True)
class Job:
    """One task of one person, and what the person changes their mind about."""

    at: float
    name: str
    owner: str
    team: str
    priority: Priority
    nodes: int
    gpus: int | None
    retries: int
    mode: PreemptMode
    ack_deadline_seconds: float
    max_run_seconds: float | None
    # The client sends it so many times at once, with the same key.
    copies: int
    # (seconds after the submission, pause | run | stop | pause now | stop now | a priority |
    # debug | debug off | normal)
    wishes: tuple[tuple[float, str], ...]
    program: Program
    # What each rank requests of its node beside GPUs.
    cpus: float | None = None
    memory_bytes: int | None = None
    # Roles with sizes of their own; empty: one role, with ``nodes`` replicas.
    roles: tuple[Role, ...] = ()
    completion: Completion | None = None
    # Limits of classes of failures, and the restart rule of its first role.
    class_limits: Mapping[str, int] = field(default_factory=dict[str, int])
    restart: RestartRule | None = None
    # With what it is submitted.
    run_mode: RunMode = RunMode.NORMAL


@dataclass(frozen=True)
class Points:
    """What goes wrong where a process meets its database or its runtime (probabilities)."""

    fail: Mapping[Point, float]
    crash: Mapping[Point, float]
    slow: float
    slow_seconds_max: float
    runtime_crash: float


# Orders of grants. Those for a while are removed by nobody but quota itself.
GRANTS = ("grant user", "grant team", "grant each", "grant for a while", "site")


@dataclass(frozen=True)
class Plan:
    """One sim."""

    seed: int
    nodes: int
    gpus: int
    jobs: tuple[Job, ...]
    # (at, kind, user or node, number): limits and operators' words
    orders: tuple[tuple[float, str, str, int], ...]
    faults: Faults
    points: Points
    runtime_failure: float
    # As with pods: ranks are pending for so long at most, and so many launches are refused.
    pending_seconds_max: float
    refusal: float
    # A killed process goes on for so long at most; a rank that leaves takes so long at most.
    kill_seconds_max: float
    exit_seconds_max: float
    # A rank becomes ready so long after its start at most.
    ready_seconds_max: float
    strikes: tuple[Strike, ...]
    processes: Mapping[str, int]
    fault_seconds: float
    settings: Mapping[str, Mapping[str, object]]
    ack_wait_seconds: float
    # How far the clocks of the nodes are off.
    node_skew_seconds: float = 0.0

    @property
    def is_calm(self) -> bool:
        """Whether no fault occurs; then there are bounds for how long anything may take."""
        return not self.strikes and self.faults == Faults()


def draw(seed: int) -> Plan:
    """The simulation of a seed."""
    # The text is part of the seed: another one would give each seed another history.
    rng = Random(f"world {seed}")
    nodes, gpus = rng.randint(1, 4), rng.choice([1, 2, 2, 4])
    fault_seconds = rng.uniform(30, 120)
    pods = Random(f"pods {seed}")
    jobs = tuple(_job(rng, number, nodes, gpus, fault_seconds) for number in range(_jobs(rng)))
    roles = Random(f"roles {seed}")
    jobs = tuple(replace(job, roles=_roles(roles)) if roles.random() < 0.2 else job for job in jobs)
    rules = Random(f"rules {seed}")
    jobs = tuple(replace(job, completion=_completion(rules, job)) for job in jobs)
    classes = Random(f"classes {seed}")
    jobs = tuple(failing(classes, job) if classes.random() < 0.2 else job for job in jobs)
    plan = Plan(
        seed=seed,
        nodes=nodes,
        gpus=gpus,
        jobs=jobs,
        orders=tuple(sorted([*_orders(rng, nodes, fault_seconds), *_grants(seed, fault_seconds)])),
        faults=_faults(rng),
        points=_points(rng),
        runtime_failure=rng.choice(LEVELS) if rng.random() < 0.4 else 0.0,
        pending_seconds_max=pods.choice([0.0, 0.0, 0.5, 6.0]),
        refusal=pods.choice([0.0, 0.0, 0.05, 0.3]),
        kill_seconds_max=0.0,
        exit_seconds_max=EXIT_SECONDS,
        ready_seconds_max=0.0,
        strikes=tuple(
            sorted(
                (*_strikes(rng, nodes, fault_seconds), *_bad_commits(seed, fault_seconds)),
                key=lambda strike: strike.at,
            )
        ),
        processes={name: _processes(rng, name) for name in SERVICES},
        fault_seconds=fault_seconds,
        settings=_settings(rng),
        ack_wait_seconds=rng.choice([2.0, 5.0, 30.0]),
    )
    return _harder(plan)


def _harder(plan: Plan) -> Plan:
    """The same plan with deposed leaders, slow ends, nodes that come and go, and clocks that are
    hours off. Each kind has a random generator of its own, so that it does not change the others.
    """
    ends = Random(f"ends {plan.seed}")
    found = [*_deposed(plan), *_moving_nodes(plan), *_far_jumps(plan), *plan.strikes]
    return replace(
        plan,
        jobs=debugging(
            plan.seed,
            _yielding(
                plan.seed,
                restarting(
                    plan.seed,
                    _hasty(plan.seed, _silent(plan.seed, in_order(plan.seed, _endless(plan), 0.5))),
                    0.5,
                ),
            ),
            0.15,
        ),
        ready_seconds_max=Random(f"ready {plan.seed}").choice([0.0, 1.0, READY_SECONDS_MAX]),
        node_skew_seconds=Random(f"node clocks {plan.seed}").choice([0.0, 0.0, -7200.0, 3600.0]),
        kill_seconds_max=ends.choice([0.0, 2.0, KILL_SECONDS_MAX]),
        exit_seconds_max=ends.choice([EXIT_SECONDS, EXIT_SECONDS, 1.0, 6.0]),
        strikes=tuple(sorted(found, key=lambda strike: strike.at)),
    )


def _endless(plan: Plan) -> tuple[Job, ...]:
    """Some programs run until they are stopped, some of these at once: a stop that gets lost is
    not made good by the program's own end."""
    rng = Random(f"endless {plan.seed}")
    found: list[Job] = []
    for job in plan.jobs:
        if rng.random() < 0.15:
            program = replace(job.program, steps=ENDLESS_STEPS, step_seconds=3.0)
            stop = ((rng.uniform(0, 4.0), "stop"),) if rng.random() < 0.7 else ()
            job = replace(job, program=program, wishes=(*job.wishes, *stop))  # noqa: PLW2901
        found.append(job)
    return tuple(found)


def in_order(seed: int, jobs: tuple[Job, ...], likelihood: float) -> tuple[Job, ...]:
    """Some roles of some tasks start after others that run or are ready."""
    rng = Random(f"order {seed}")
    found: list[Job] = []
    for job in jobs:
        names = [role.name for role in job.roles]
        if rng.random() < likelihood:
            rng.shuffle(names)
            roles = {role.name: role for role in job.roles}
            for earlier, later in pairwise(names):
                condition = rng.choice([StartCondition.RUNNING, StartCondition.READY])
                after = StartsAfter(role=earlier, condition=condition)
                roles[later] = roles[later].model_copy(update={"starts_after": (after,)})
            job = replace(job, roles=tuple(roles.values()))  # noqa: PLW2901
        found.append(job)
    return tuple(found)


def restarting(seed: int, jobs: tuple[Job, ...], likelihood: float) -> tuple[Job, ...]:
    """Ranks of some roles are restarted in their places. Not rank 0: it holds the program's state,
    and would have to go on from a checkpoint."""
    rng = Random(f"in place {seed}")
    found: list[Job] = []
    for job in jobs:
        if len(job.roles) > 1 and rng.random() < likelihood:
            rule = RestartRule(
                when=RestartWhen.ON_FAILURE, scope=RestartScope.RANK, max_restarts=rng.randint(1, 3)
            )
            first, *others = job.roles
            others = [each.model_copy(update={"restart": rule}) for each in others]
            program = replace(
                job.program,
                fails=job.program.fails or {rng.randint(1, 2): rng.randint(0, 3)},
                failing_rank=first.replicas + rng.randrange(sum(r.replicas for r in others)),
                failing_starts=rng.randint(1, 4),
            )
            job = replace(job, roles=(first, *others), program=program)  # noqa: PLW2901
        found.append(job)
    return tuple(found)


def _silent(seed: int, jobs: tuple[Job, ...]) -> tuple[Job, ...]:
    """Some programs never call ``should_preempt``."""
    rng = Random(f"silent {seed}")
    return tuple(
        replace(job, program=replace(job.program, way="never polls")) if rng.random() < 0.2 else job
        for job in jobs
    )


def _yielding(seed: int, jobs: tuple[Job, ...]) -> tuple[Job, ...]:
    """Some programs hand their nodes over on their own."""
    rng = Random(f"yields {seed}")
    return tuple(
        replace(job, program=replace(job.program, yields=yields_of(rng)))
        if rng.random() < 0.25
        else job
        for job in jobs
    )


def debugging(seed: int, jobs: tuple[Job, ...], likelihood: float) -> tuple[Job, ...]:
    """Some tasks are submitted paused or in debug mode, and people turn that mode on and off."""
    rng = Random(f"modes {seed}")
    found: list[Job] = []
    for job in jobs:
        if rng.random() < likelihood:
            modes = tuple(
                (rng.uniform(0, 40), rng.choice(["debug", "debug", "debug off", "normal", "run"]))
                for _ in range(rng.randint(1, 4))
            )
            run_mode = rng.choice([RunMode.NORMAL, RunMode.DEBUG, RunMode.PAUSE])
            job = replace(job, run_mode=run_mode, wishes=(*job.wishes, *modes))  # noqa: PLW2901
        found.append(job)
    return tuple(found)


def yields_of(rng: Random) -> dict[int, int]:
    """In which attempts a program yields, and after which of their steps."""
    return {n: rng.randint(1, 6) for n in rng.sample(range(1, 6), rng.randint(1, 3))}


def _hasty(seed: int, jobs: tuple[Job, ...]) -> tuple[Job, ...]:
    """Some pauses and stops leave no time to save."""
    rng = Random(f"now {seed}")
    return tuple(
        replace(
            job,
            wishes=tuple(
                (at, f"{wish} now" if wish in {"pause", "stop"} and rng.random() < 0.25 else wish)
                for at, wish in job.wishes
            ),
        )
        for job in jobs
    )


def _moments(rng: Random, plan: Plan, most: int) -> list[float]:
    return [rng.uniform(START_SECONDS, plan.fault_seconds) for _ in range(rng.randint(1, most))]


def _deposed(plan: Plan) -> list[Strike]:
    """Leaders whose lock is lost long before they know; mostly where another process waits."""
    rng = Random(f"deposed {plan.seed}")
    doubled = [name for name, count in plan.processes.items() if count > 1]
    if rng.random() > (0.7 if doubled else 0.3):
        return []
    return [
        Strike(
            at,
            "leader deposed",
            rng.choice(doubled or SERVICES),
            rng.uniform(0, NOTICE_SECONDS_MAX),
        )
        for at in _moments(rng, plan, 4)
    ]


def _moving_nodes(plan: Plan) -> list[Strike]:
    """Nodes that leave the inventory, or are deleted, for a while; and new ones."""
    rng = Random(f"moving nodes {plan.seed}")
    found: list[Strike] = []
    for kind in ("node leaves", "node deleted"):
        if rng.random() < 0.2:
            for at in _moments(rng, plan, 2):
                node = f"node-{rng.randrange(plan.nodes)}"
                found.append(Strike(at, kind, node, rng.uniform(0, 40.0)))
    if rng.random() < 0.2:
        node = f"node-{plan.nodes}"
        found += [Strike(at, "node joins", node) for at in _moments(rng, plan, 1)]
    return found


def _far_jumps(plan: Plan) -> list[Strike]:
    """Clocks that are hours off, for a while or until everything is healed."""
    rng = Random(f"far jumps {plan.seed}")
    if rng.random() > 0.3:
        return []
    return [
        Strike(
            at,
            "clock is hours off",
            rng.choice(SERVICES),
            rng.choice([rng.uniform(0, 20.0), plan.fault_seconds]),
            rng.uniform(-1, 1) * 3600.0 * CLOCK_JUMP_HOURS_MAX,
        )
        for at in _moments(rng, plan, 2)
    ]


def _jobs(rng: Random) -> int:
    return rng.choice([1, 3, 6, 10, 16])


def _processes(rng: Random, name: str) -> int:
    return 2 if rng.random() < (0.4 if name in {"scheduler", "launcher"} else 0.15) else 1


def _program(rng: Random) -> Program:
    fails: dict[int, int] = {}
    if rng.random() < 0.25:
        fails = {
            attempt: rng.randint(0, 6) for attempt in rng.sample(range(1, 5), rng.randint(1, 3))
        }
    return Program(
        steps=rng.randint(1, 30),
        step_seconds=rng.choice([0.1, 0.5, 1.0, 3.0]),
        save_every=rng.choice([0, 1, 3, 5]),
        save_seconds=rng.choice([0.0, 0.2, 1.5]),
        way=rng.choice(
            ["exit 75"] * 4
            + ["exit 0"] * 3
            + ["exit 1", "ignore", "hang", "late", "no ack", "stay"]
        ),
        fails=fails,
        failing_rank=rng.randint(0, 3),
    )


def _job(rng: Random, number: int, nodes: int, gpus: int, fault_seconds: float) -> Job:
    asked_nodes = rng.choice([1, 1, 1, min(2, nodes), min(3, nodes)])
    wishes = ()
    if rng.random() < 0.4:
        words = ["pause", "run", "stop", *(priority.value for priority in PRIORITIES)]
        weights = [5, 5, 2, *([1] * len(PRIORITIES))]
        wishes = tuple(
            (rng.uniform(0, 40), rng.choices(words, weights)[0]) for _ in range(rng.randint(1, 3))
        )
    return Job(
        at=rng.uniform(0, fault_seconds * 0.7),
        name=f"job-{number}",
        owner=rng.choice(["ada", "ada", "bob", "eve"]),
        team=rng.choice(["red", "blue"]),
        priority=rng.choice(PRIORITIES),
        nodes=asked_nodes if rng.random() < 0.97 else nodes + 1,
        gpus=rng.choice([None, 0, 1, 1, gpus, gpus, max(1, gpus // 2)]),
        retries=rng.choice([0, 0, 1, 3]),
        mode=rng.choice([PreemptMode.SDK] * 5 + [PreemptMode.SIGNAL, PreemptMode.KILL]),
        ack_deadline_seconds=rng.choice([1.0, 3.0, 10.0, 30.0]),
        max_run_seconds=rng.choice([None, None, None, None, None, 20.0]),
        copies=rng.choice([1, 1, 1, 2]),
        wishes=wishes,
        program=_program(rng),
    )


def _roles(rng: Random) -> tuple[Role, ...]:
    """Ranks that differ or share nodes."""
    sizes = rng.choice(
        [
            [{"replicas": 4, "gpus": 1}],
            [{"replicas": 2, "gpus": 1}, {"replicas": 1, "gpus": 2}],
            [{"replicas": 1, "auxiliary": True}, {"replicas": 2, "gpus": 1}],
            [{"replicas": 1, "gpus": 0}, {"replicas": 1}],
            [{"replicas": 2, "gpus": 1, "spread": True}, {"replicas": 1, "gpus": 1}],
        ]
    )
    return tuple(
        Role.model_validate({"name": f"role-{index}", "command": ("python", "train.py"), **size})
        for index, size in enumerate(sizes)
    )


def _completion(rng: Random, job: Job) -> Completion | None:
    """Rules of its own for some tasks: one rank decides, or the ranks of one role.

    None for failure: the programs of the simulation wait for a rank that failed for ever.
    """
    if rng.random() < 0.7:
        return None
    name = job.roles[0].name if job.roles else "worker"
    rule = f"{name}[{rng.choice(['0', 'all', 'any', 'ended'])}]"
    return Completion(success=(rule,))


def failing(rng: Random, job: Job) -> Job:
    """The same job with a program that fails in several ways again and again, with limits for some
    classes of failures, and for some jobs with a restart rule."""
    classes = [name for name in RetryPolicy.model_fields if name != "max_retries"]
    codes = tuple(rng.choice(CODES) for _ in range(rng.randint(1, 3)))
    attempts = range(1, rng.randint(2, 9))
    program = replace(
        job.program, fails={attempt: rng.randint(0, 3) for attempt in attempts}, codes=codes
    )
    rule = None
    if rng.random() < 0.3:
        rule = rng.choice(
            [
                RestartRule(when=RestartWhen.NEVER),
                RestartRule(when=RestartWhen.EXIT_CODE, exit_codes=("137", "143")),
            ]
        )
    limits = {name: rng.choice([0, 1, 3]) for name in classes if rng.random() < 0.5}
    return replace(job, program=program, class_limits=limits, restart=rule)


def _orders(
    rng: Random, nodes: int, fault_seconds: float
) -> tuple[tuple[float, str, str, int], ...]:
    found: list[tuple[float, str, str, int]] = []
    if rng.random() < 0.4:
        for _ in range(rng.randint(1, 4)):
            kind = rng.choice(["limit user", "limit user", "limit team", "limit level", "unlimit"])
            target = rng.choice(["ada", "bob", "eve"])
            found.append((rng.uniform(0, fault_seconds), kind, target, rng.randint(0, 6)))
    if rng.random() < 0.3:
        for _ in range(rng.randint(1, 3)):
            kind = rng.choice(["cordon", "drain", "uncordon"])
            node = f"node-{rng.randrange(nodes)}"
            found.append((rng.uniform(0, fault_seconds), kind, node, 0))
    return tuple(sorted(found))


def _grants(seed: int, fault_seconds: float) -> Iterator[tuple[float, str, str, int]]:
    """In a part of the simulations people get grants, some for a while, and the site's default
    changes."""
    rng = Random(f"grants {seed}")
    if rng.random() < 0.3:
        for _ in range(rng.randint(1, 5)):
            kind = rng.choice([*GRANTS, "grant for a while", "grant for a while"])
            target = rng.choice(["ada", "bob", "eve"])
            yield rng.uniform(0, fault_seconds), kind, target, rng.randint(0, 6)


def _faults(rng: Random) -> Faults:
    rates = {name: rng.choice(LEVELS) if rng.random() < 0.45 else 0.0 for name in RATES}
    return Faults(
        **rates,
        delay_s_max=rng.choice([0.5, 5.0, 20.0]),
        latency_s_max=rng.choice([0.0, 0.01, 0.3]),
    )


def _points(rng: Random) -> Points:
    def some(share: float) -> dict[Point, float]:
        if rng.random() > share:
            return dict.fromkeys(Point, 0.0)
        return {p: rng.choice(POINT_RATES) if rng.random() < 0.5 else 0.0 for p in Point}

    return Points(
        fail=some(0.5),
        crash=some(0.5),
        slow=rng.choice([0.01, 0.1]) if rng.random() < 0.4 else 0.0,
        slow_seconds_max=rng.choice([0.1, 3.0]),
        runtime_crash=rng.choice([0.01, 0.05]) if rng.random() < 0.3 else 0.0,
    )


def _strikes(rng: Random, nodes: int, fault_seconds: float) -> tuple[Strike, ...]:
    def service() -> str:
        return rng.choice(SERVICES)

    def node() -> str:
        return f"node-{rng.randrange(nodes)}"

    # kind: (its target, longest duration in seconds, highest number in one simulation)
    kinds = {
        "crash": (service, 8.0, 6),
        "crash all": (str, 5.0, 1),
        "partition": (service, 20.0, 3),
        "bus restarts": (str, 0.0, 3),
        "bus stops": (str, 15.0, 2),
        "database stops": (str, 15.0, 2),
        "leader cut": (service, 0.0, 4),
        "clock jumps": (service, 0.0, 2),
        "node off": (node, 40.0, 2),
        "node silent": (node, 40.0, 3),
        "supervisor dies": (node, 0.0, 3),
        "facts again": (lambda: rng.choice(OWNERS), 0.0, 2),
    }
    found: list[Strike] = []
    for kind, (target, seconds_max, most) in kinds.items():
        if rng.random() < 0.4:
            for _ in range(rng.randint(1, most)):
                at = rng.uniform(START_SECONDS, fault_seconds)
                forget = rng.choice([0.0, rng.uniform(0, FORGET_SECONDS_MAX)])
                jump = rng.uniform(-CLOCK_JUMP_SECONDS_MAX, CLOCK_JUMP_SECONDS_MAX)
                extra = jump if kind == "clock jumps" else forget
                found.append(Strike(at, kind, target(), rng.uniform(0, seconds_max), extra))
    return tuple(sorted(found, key=lambda strike: strike.at))


def _bad_commits(seed: int, fault_seconds: float) -> list[Strike]:
    """Periods in which commits fail, take long or are not answered. They have a random generator of
    their own, so that the rest of a seed's plan stays the same."""
    rng = Random(f"commits {seed}")
    if rng.random() > 0.4:
        return []
    return [
        Strike(
            at=rng.uniform(START_SECONDS, fault_seconds),
            kind="commits fail",
            target=rng.choice(SERVICES),
            seconds=rng.uniform(1.0, 15.0),
        )
        for _ in range(rng.randint(1, 4))
    ]


def _settings(rng: Random) -> Mapping[str, Mapping[str, object]]:
    """Small times, so that deadlines matter; sizes of pages that sometimes split everything."""
    common = {
        "batch_messages_max": rng.choice([1, 3, 256]),
        "relay_rows_max": rng.choice([1, 4, 256]),
        "command_timeout_seconds": 2.0,
    }
    own: dict[str, dict[str, object]] = {
        "scheduler": {
            "start_deadline_seconds": rng.choice([8.0, 30.0]),
            "start_attempts_max": 30,
            "protected_seconds": rng.choice([0.0, 0.0, 5.0]),
            "retry_delay_seconds": 1.0,
            "retry_delay_seconds_max": 8.0,
            "stop_ack_seconds_max": 5.0,
            "silent_ack_seconds_max": SILENT_SECONDS,
        },
        "launcher": {
            "exit_grace_seconds": rng.choice([0.5, 2.0, 10.0]),
            "lease_seconds": 3.0,
            "fence_seconds": rng.choice([4.0, 10.0]),
        },
        # A long period keeps a simulation cheap; the collector reads the same output.
        "log_collector": {
            "active_seconds": 1.0,
            "idle_seconds_min": 2.0,
            "idle_seconds_max": 4.0,
        },
        "gateway": {
            "poll_seconds": 2.0,
            "poll_leading_seconds": 10.0,
            "rebuild_tick_seconds": 5.0,
        },
    }
    return {name: common | own.get(name, {}) for name in SERVICES}
