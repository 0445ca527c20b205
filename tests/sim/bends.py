"""Changes of a plan that make a planted defect show, or prove that it is absent."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from libs.bus.memory_broker import Faults
from libs.contracts.messages import (
    PreemptMode,
    Priority,
    Role,
    StartCondition,
    StartsAfter,
)
from libs.store.memory_database import Point
from tests.sim.endings import NOTICED_SECONDS
from tests.sim.plan import (
    ENDLESS_STEPS,
    GRANTS,
    READY_SECONDS_MAX,
    SILENT_SECONDS,
    Plan,
    Points,
    Strike,
    debugging,
    failing,
    in_order,
    yields_of,
)


def asking_for_amounts(plan: Plan) -> Plan:
    """Plans in which ranks ask for a good part of a node's CPUs and memory, but for few GPUs."""
    rng = Random(f"amounts {plan.seed}")
    jobs = tuple(
        replace(
            job,
            gpus=rng.choice([0, 1]),
            cpus=rng.choice([None, 2.0, 3.5, 6.0]),
            memory_bytes=rng.choice([None, 20 << 30, 40 << 30, 60 << 30]),
        )
        for job in plan.jobs
    )
    return replace(plan, gpus=4, jobs=jobs)


def roles_in_order(plan: Plan) -> Plan:
    """Plans in which roles start after others that take a while to be ready."""
    pairs = tuple(
        Role(name=name, replicas=1, command=("python", "train.py"), gpus=1) for name in ("ps", "it")
    )
    jobs = tuple(replace(job, roles=pairs, completion=None) for job in plan.jobs)
    return replace(plan, jobs=in_order(plan.seed, jobs, 1.0), ready_seconds_max=READY_SECONDS_MAX)


def roles_after_several(plan: Plan) -> Plan:
    """Plans in which a role waits until each of two others is ready, at different times."""
    ready = tuple(StartsAfter(role=name, condition=StartCondition.READY) for name in ("ps", "db"))
    roles = tuple(
        Role(name=name, replicas=1, command=("python", "train.py"), gpus=0, starts_after=after)
        for name, after in (("ps", ()), ("db", ()), ("it", ready))
    )
    jobs = tuple(replace(job, roles=roles, completion=None) for job in plan.jobs)
    return replace(plan, jobs=jobs, ready_seconds_max=READY_SECONDS_MAX)


def leaving_while_roles_wait(plan: Plan) -> Plan:
    """Plans without faults in which tasks are paused while roles of theirs wait for readiness, and
    go on for long before they leave."""
    ordered = roles_in_order(plan)
    jobs = tuple(
        replace(
            job,
            nodes=1,
            mode=PreemptMode.SDK,
            ack_deadline_seconds=30.0,
            max_run_seconds=None,
            wishes=((6.0, "pause"), (60.0, "run")),
            program=replace(
                job.program, steps=10, step_seconds=1.0, save_seconds=12.0, way="exit 75", fails={}
            ),
        )
        for job in ordered.jobs[:4]
    )
    return replace(_calm(plan), jobs=jobs, nodes=4, gpus=4, ready_seconds_max=30.0)


def _calm(plan: Plan) -> Plan:
    """The plan without faults."""
    points = Points(dict.fromkeys(Point, 0.0), dict.fromkeys(Point, 0.0), 0.0, 0.0, 0.0)
    return replace(
        plan,
        orders=(),
        faults=Faults(),
        points=points,
        runtime_failure=0.0,
        refusal=0.0,
        strikes=(),
    )


def nodes_behind(plan: Plan) -> Plan:
    """Plans without faults in which roles wait for readiness, and the clocks of all nodes are hours
    behind."""
    return replace(_calm(roles_in_order(plan)), node_skew_seconds=-7200.0)


def failing_programs(plan: Plan) -> Plan:
    """Plans in which every program fails again and again, in several ways."""
    rng = Random(f"failing {plan.seed}")
    return replace(plan, jobs=tuple(failing(rng, job) for job in plan.jobs))


def granted(plan: Plan) -> Plan:
    """Plans in which everybody gets many grants, for a while and for longer."""
    rng = Random(f"granted {plan.seed}")
    orders = [
        (rng.uniform(0, plan.fault_seconds), kind, user, rng.randint(0, 6))
        for kind in (*GRANTS, "grant for a while", "grant for a while")
        for user in ("ada", "bob", "eve")
    ]
    return replace(plan, orders=tuple(sorted([*plan.orders, *orders])))


def hanging_programs(plan: Plan) -> Plan:
    """Plans in which every program hangs when it is asked to go, and schedulers die often."""
    jobs = tuple(
        replace(job, mode=PreemptMode.SDK, program=replace(job.program, way="hang", steps=40))
        for job in plan.jobs
    )
    strikes = tuple(
        Strike(at=5.0 * number, kind="crash", target="scheduler") for number in range(20)
    )
    return replace(plan, jobs=jobs, strikes=strikes)


def yielding_programs(plan: Plan) -> Plan:
    """Plans in which every program hands its nodes over on its own, and takes long to leave."""
    rng = Random(f"yielding programs {plan.seed}")
    jobs = tuple(
        replace(
            job,
            program=replace(job.program, steps=20, yields=yields_of(rng), fails={}),
        )
        for job in plan.jobs
    )
    return replace(plan, jobs=jobs, exit_seconds_max=6.0, kill_seconds_max=2.0)


def debugging_people(plan: Plan) -> Plan:
    """Plans in which every task is in debug mode at some time."""
    return replace(plan, jobs=debugging(plan.seed, plan.jobs, 1.0))


def calm_people(plan: Plan) -> Plan:
    """Plans without faults in which every task is paused: some programs never call
    ``should_preempt``, the others take longer to save than the time that those get."""
    jobs = tuple(
        replace(
            job,
            mode=PreemptMode.SDK,
            ack_deadline_seconds=30.0,
            max_run_seconds=None,
            wishes=((10.0, "pause"), (60.0, "run")),
            program=replace(
                job.program,
                steps=40,
                step_seconds=1.0,
                save_every=0,
                save_seconds=3 * SILENT_SECONDS + NOTICED_SECONDS,
                way=("never polls", "exit 75")[number % 2],
                fails={},
            ),
        )
        for number, job in enumerate(plan.jobs)
    )
    return replace(_calm(plan), jobs=jobs)


def repeated_facts(plan: Plan) -> Plan:
    """Plans in which the launcher often publishes its facts again."""
    strikes = tuple(
        Strike(at=4.0 * number, kind="facts again", target="launcher") for number in range(25)
    )
    return replace(plan, strikes=tuple(sorted((*plan.strikes, *strikes), key=lambda s: s.at)))


def failing_commits(plan: Plan) -> Plan:
    """Plans in which programs are endless, are stopped and hang when they are asked to go, so that
    only a deadline ends them, and the scheduler's commits fail again and again; nothing else
    strikes, so that nobody loads the rows for another reason."""
    rng = Random(f"failing commits {plan.seed}")
    jobs = tuple(
        replace(
            job,
            ack_deadline_seconds=min(3.0, job.ack_deadline_seconds),
            wishes=((rng.uniform(3.0, 15.0), "stop"),),
            program=replace(job.program, steps=ENDLESS_STEPS, step_seconds=3.0, fails={}),
        )
        for job in hanging_programs(plan).jobs
    )
    strikes = tuple(
        Strike(at=5.0 + 8.0 * number, kind="commits fail", target="scheduler", seconds=6.0)
        for number in range(int(plan.fault_seconds / 8.0))
    )
    return replace(plan, jobs=jobs, strikes=strikes)


def slow_databases(plan: Plan) -> Plan:
    """Plans in which databases are slow and people change their minds often: requests wait."""
    rng = Random(f"slow databases {plan.seed}")
    jobs = tuple(
        replace(job, wishes=tuple((rng.uniform(0, 20), ("pause", "run")[n % 2]) for n in range(6)))
        for job in plan.jobs
    )
    points = replace(plan.points, slow=0.4, slow_seconds_max=4.0)
    return replace(plan, jobs=jobs, points=points)


def crowded(plan: Plan) -> Plan:
    """Plans in which a few people request more than there is, without limits."""
    rng = Random(f"crowded {plan.seed}")
    jobs = tuple(
        replace(
            job,
            at=rng.uniform(0, 20),
            priority=Priority.NORMAL,
            nodes=1,
            gpus=None,
            wishes=(),
            max_run_seconds=None,
            program=replace(job.program, steps=8, step_seconds=1.0, fails={}),
        )
        for job in plan.jobs
    )
    kept = {"crash", "leader deposed", "commits fail", "bus restarts"}
    strikes = tuple(each for each in plan.strikes if each.kind in kept)
    return replace(plan, nodes=1, jobs=jobs, orders=(), strikes=strikes)


def a_row_that_cannot_be_loaded(plan: Plan) -> Plan:
    """Plans in which the first task runs for a while, to an end of its own, beside others."""
    first, *others = plan.jobs
    program = replace(first.program, steps=25, step_seconds=1.0, way="exit 75", fails={})
    first = replace(
        first, at=0.0, nodes=1, gpus=None, wishes=(), max_run_seconds=None, program=program
    )
    return replace(plan, jobs=(first, *others))


def a_group_that_cannot_be_decided(plan: Plan) -> Plan:
    """Plans in which the last task never starts, so that it ends only when it is stopped."""
    *others, last = plan.jobs
    program = replace(last.program, steps=ENDLESS_STEPS, step_seconds=3.0, fails={})
    last = replace(last, nodes=1, gpus=1, copies=1, wishes=(), program=program)
    return replace(plan, jobs=(*others, last))


def hasty_people(plan: Plan) -> Plan:
    """Plans in which every program is endless and soon stopped, and messages overtake each other:
    the request to end a run may come before the run's assignment."""
    rng = Random(f"hasty {plan.seed}")
    jobs = tuple(
        replace(
            job,
            mode=PreemptMode.KILL,
            wishes=((rng.uniform(0, 6.0), "stop"),),
            program=replace(job.program, steps=ENDLESS_STEPS, step_seconds=3.0, fails={}),
        )
        for job in plan.jobs
    )
    faults = replace(plan.faults, delay_delivery=0.3, delay_s_max=5.0)
    kept = {"crash", "leader deposed", "partition", "facts again"}
    strikes = tuple(each for each in plan.strikes if each.kind in kept)
    return replace(plan, jobs=jobs, faults=faults, strikes=strikes)


def short_memories(plan: Plan) -> Plan:
    """Plans in which the launcher forgets past runs soon, and deliveries come again later than
    that. No service publishes old facts under new ids: only the receiver's rows could know those.
    """
    launcher = {**plan.settings["launcher"], "past_keep_seconds": 2.0, "prune_tick_seconds": 1.0}
    kept = {"crash", "crash all", "leader deposed", "node silent", "node off", "supervisor dies"}
    return replace(
        plan,
        faults=replace(plan.faults, duplicate_delivery=0.3, delay_s_max=20.0),
        settings={**plan.settings, "launcher": launcher},
        strikes=tuple(each for each in plan.strikes if each.kind in kept),
    )


OUTBOX_KEPT_SECONDS = 4.0


def long_outages(plan: Plan) -> Plan:
    """Plans in which the bus is out of reach for longer than the outbox keeps what was published.
    The bus loses nothing, for what is kept so short could not be published again."""
    short = {"outbox_keep_seconds": OUTBOX_KEPT_SECONDS, "outbox_period_seconds": 1.0}
    outages = tuple(Strike(10.0 + 25.0 * n, "bus stops", seconds=12.0) for n in range(4))
    return replace(
        plan,
        settings={name: {**own, **short} for name, own in plan.settings.items()},
        strikes=tuple(
            sorted(
                (*outages, *(each for each in plan.strikes if each.kind == "crash")),
                key=lambda each: each.at,
            )
        ),
    )


def deposed_collectors(plan: Plan) -> Plan:
    """Plans in which programs write for long, databases are slow, and log-collectors take over from
    each other again and again: one may begin with what it read before another one wrote."""
    rng = Random(f"deposed collectors {plan.seed}")
    jobs = tuple(
        replace(
            job,
            nodes=1,
            gpus=1,
            max_run_seconds=None,
            wishes=(),
            program=replace(job.program, steps=60, step_seconds=0.5, fails={}, yields={}),
        )
        for job in plan.jobs[:4]
    )
    strikes = tuple(
        Strike(rng.uniform(2.0, 60.0), "leader deposed", "log_collector", seconds=12.0)
        for _ in range(40)
    )
    calm = _calm(plan)
    return replace(
        calm,
        nodes=4,
        gpus=4,
        jobs=jobs,
        strikes=tuple(sorted(strikes, key=lambda each: each.at)),
        processes={**plan.processes, "log_collector": 3},
        points=replace(calm.points, slow=0.4, slow_seconds_max=4.0),
    )


def one_dark_node(plan: Plan) -> Plan:
    """Plans in which each task could run on every node. No node is set apart for all of them, so
    that each task has to learn by itself where it does not start."""
    jobs = tuple(
        replace(job, nodes=1, gpus=1, mode=PreemptMode.SDK, max_run_seconds=None)
        for job in plan.jobs[:3]
    )
    settings = {name: dict(own) for name, own in plan.settings.items()}
    settings["launcher"]["quarantine_after_starts"] = 1000
    settings["scheduler"] |= {"start_deadline_seconds": 8.0, "start_attempts_max": 1000}
    kept = {"crash", "bus restarts", "leader deposed"}
    return replace(
        plan,
        nodes=max(2, plan.nodes),
        jobs=jobs,
        orders=(),
        settings=settings,
        strikes=tuple(each for each in plan.strikes if each.kind in kept),
    )


def silent_nodes(plan: Plan) -> Plan:
    """Plans in which nodes often fall silent with their processes alive, and runs are killed."""
    jobs = tuple(replace(job, mode=PreemptMode.KILL) for job in plan.jobs)
    strikes = tuple(
        Strike(5.0 + 8.0 * n, "node silent", f"node-{n % plan.nodes}", 12.0) for n in range(14)
    )
    launcher = {**plan.settings["launcher"], "fence_seconds": 30.0}
    return replace(
        plan, jobs=jobs, strikes=strikes, settings={**plan.settings, "launcher": launcher}
    )
