"""Tasks: ``ls show explain wait pause resume stop priority retry continue``."""

import re
import secrets
import time
from typing import Any, Callable, Dict, List, Optional, Sequence

import typer

from shiftwork.cli import (
    asking,
    choices,
    complete,
    ending,
    explanation,
    findings,
    follow,
    guide,
    ids,
    modes,
    parse,
    render,
    role_facts,
    session,
    sizes,
    task_page,
)
from shiftwork.cli.client import Api
from shiftwork.cli.failures import REFUSED, UNREACHABLE, Failure, naming, usage
from shiftwork.cli.task_options import ENDED, LIVE
from shiftwork.client.paths import part

MATCHES_MAX = 100
LISTED_MAX = 100_000
_ID_PREFIX = re.compile(r"[a-z][a-z2-7]{0,25}")

TASK_HELP = "A name, an id, or a part of one: its beginning, or at least 6 characters of its end."
_TASK = typer.Argument(..., metavar="TASK", help=TASK_HELP, autocompletion=complete.tasks)
_TASKS = typer.Argument(..., metavar="TASK...", help=TASK_HELP, autocompletion=complete.tasks)
_LIVE = typer.Argument(..., metavar="TASK...", help=TASK_HELP, autocompletion=complete.live_tasks)
_SOME = typer.Argument(
    None, metavar="[TASK...]", help=TASK_HELP, autocompletion=complete.live_tasks
)
_NOW = typer.Option(False, "--now", help="Kill the run at once: nothing is saved.")
_LABEL = typer.Option(
    None,
    "--label",
    "-l",
    metavar="K=V",
    help="With this label; K: whatever its value, K!=V: without it or with another. Repeatable:"
    " all must hold.",
)
# As many as the API takes.
LABELS_MAX = 32
# So many tasks are asked for the labels that there are.
LABELS_OF_MAX = 1000
# What a list is sorted by, and the API's field for it. Ids sort by time.
ORDERS = {
    "submitted": "submitted_at",
    "name": "name",
    "priority": "priority",
    "state": "state",
    "owner": "owner",
    "team": "team",
    "group": "group",
    "submitted_at": "submitted_at",
    "id": "submitted_at",
}


def register(app: session.App) -> None:
    """Add the commands."""
    app.command("ls", cls=session.Watched)(ls)
    app.command("show", cls=session.Watched)(show)
    app.command("explain", cls=session.Paged)(explain)
    app.command("wait")(wait)
    app.command("pause")(pause)
    app.command("resume")(resume)
    app.command("stop")(stop)
    app.command("priority")(priority)
    app.command("retry")(retry)
    app.command("continue")(continue_)


def each(tasks: Sequence[str], act: Callable[[Api, str], Dict[str, Any]]) -> List[Dict[str, Any]]:
    """Call ``act`` for each task. A task that fails is reported and the rest continue; the command
    then ends with exit code 1. With ``--json`` the results are printed."""
    now = session.current()
    api = now.api()
    done: List[Dict[str, Any]] = []
    failed = 0
    for task in dict.fromkeys(tasks):
        try:
            with naming({"task_id": "TASK", "goal": "TASK"}, task=task):
                done.append(act(api, task))
        except Failure as failure:  # noqa: PERF203 - the others go on
            if len(tasks) == 1 or failure.code == UNREACHABLE:
                raise
            session.report(failure, of=task)
            failed += 1
    if now.json:
        render.document(done[0] if len(tasks) == 1 else {"items": done})
    if failed:
        raise typer.Exit(REFUSED)
    return done


def find(api: Api, text: str) -> Dict[str, Any]:
    """The task that a TASK argument means.

    An id; else a name: the live one (ours, if several people have one), else the newest; else the
    only id with this prefix or suffix (at least six characters, as tables show them).
    """
    try:
        return api.get("/v1/tasks/" + part(text))
    except Failure as failure:
        if failure.problem.get("status") != 404:  # noqa: PLR2004 - Not Found
            raise
    named = api.get("/v1/tasks", {"name": text, "limit": MATCHES_MAX})["items"]
    found = _of_name(api, text, named)
    if found is not None:
        return _whole(api, found)
    matches: Dict[str, Dict[str, Any]] = {}
    for form, filter_ in ((_ID_PREFIX, "id_prefix"), (ids.TAIL, "id_suffix")):
        if form.fullmatch(text):
            items = api.get("/v1/tasks", {filter_: text, "limit": MATCHES_MAX})["items"]
            matches.update({task["id"]: task for task in items})
    if len(matches) == 1:
        return _whole(api, next(iter(matches.values())))
    if matches:
        raise _ambiguous(f"{text!r} fits {_count(len(matches))} tasks", list(matches.values()))
    newest = api.get("/v1/tasks", {"limit": MATCHES_MAX})["items"]
    meant = guide.meant(text, [task["name"] for task in newest])
    fix = f"{meant} `shiftwork ls --all` lists the tasks".strip()
    raise Failure(f"there is no task {text!r}", where="TASK", fix=fix)


def _whole(api: Api, listed: Dict[str, Any]) -> Dict[str, Any]:
    """The task of a list's item, which lacks what only the task itself has (its activity)."""
    return api.get("/v1/tasks/" + part(listed["id"]))


def _count(number: int) -> str:
    return str(number) if number < MATCHES_MAX else f"at least {number}"


def _ambiguous(what: str, tasks: List[Dict[str, Any]]) -> Failure:
    """A failure that lists the candidates."""
    first = [
        f"{each['id']} ({each['name']} of {each['owner']})" for each in tasks[: asking.NAMED_MAX]
    ]
    more = ", ..." if len(tasks) > asking.NAMED_MAX else ""
    return Failure(
        f"{what}: {', '.join(first)}{more}", where="TASK", fix="write more of the id, or all of it"
    )


def _of_name(api: Api, text: str, named: List[Dict[str, Any]]) -> Optional[Dict[str, Any]]:
    live = [task for task in named if task["state"] not in ENDED]
    if len(live) > 1:
        me = api.get("/v1/whoami")["user"]
        mine = [task for task in live if task["owner"] == me]
        if len(mine) != 1:
            raise _ambiguous(f"{text!r} names several tasks", live)
        live = mine
    if live:
        return live[0]
    return max(named, key=lambda task: task["id"], default=None)


def ls(
    everything: bool = typer.Option(False, "--all", help="Ended tasks too."),
    mine: bool = typer.Option(False, "--mine", help="Your own only."),
    owner: str = typer.Option("", "--owner", help="Of one user.", autocompletion=complete.users),
    team: str = typer.Option(
        "", "--team", help="Submitted under this team.", autocompletion=complete.teams
    ),
    group: str = typer.Option(
        "", "--group", help="In one group of nodes.", autocompletion=complete.groups
    ),
    priority_: str = typer.Option(
        "", "--priority", help="Such as high,normal.", autocompletion=complete.priorities
    ),
    state: str = typer.Option(
        "", "--state", help="Such as queued,running.", autocompletion=complete.states
    ),
    label: Optional[List[str]] = _LABEL,
    chain: str = typer.Option(
        "",
        "--chain",
        metavar="TASK",
        help="Those that go on with one another, of which this is one; ended ones too.",
        autocompletion=complete.tasks,
    ),
    sort: str = typer.Option(
        "",
        "--sort",
        metavar="FIELD",
        help=", ".join(choices.TASK_ORDERS)
        + "; prefix with - for descending. Default: newest first.",
        autocompletion=complete.orders,
    ),
    limit: int = typer.Option(100, "--limit", min=1, max=LISTED_MAX),
    history: bool = typer.Option(
        False, "--history", help="Print ended tasks and their run times as JSON, for simulate."
    ),
    since: str = typer.Option("", "--since", help="With --history: submitted since, e.g. 7d."),
) -> None:
    """List tasks: those that live, the newest first."""
    now = session.current()
    api = now.api()
    _check_history(history=history, since=since, state=state, sort=sort)
    states = parse.states(state, "--state")
    if not states and not everything and not chain:
        states = list(LIVE)
    query: Dict[str, Any] = {
        "state": ",".join(states),
        "label": _labels(label),
        "sort": _order(sort),
        "owner": owner,
        "team": team,
        "group": group,
        "priority": priority_,
    }
    if mine and owner:
        raise usage("--mine and --owner exclude one another", where="--mine", fix="leave one out")
    if mine:
        query["owner"] = api.get("/v1/whoami")["user"]
    if chain:
        query["chain"] = find(api, chain)["chain"]
    if history:
        render.document(_history(api, since, query))
        return
    found = api.items("/v1/tasks", query, limit)
    if label and not found["items"]:
        _warn_of_unknown_labels(api, label)
    if now.json:
        render.document(found)
        return
    may_have_ended = everything or state or chain
    none = "no tasks" if may_have_ended else "no live tasks; --all shows the ended ones"
    show_table(api, found["items"], none)
    if found.get("next_cursor"):
        render.note(f"more than {limit}: raise --limit")


def _check_history(*, history: bool, since: str, state: str, sort: str) -> None:
    """Raises Failure for options that would have no effect with or without ``--history``."""
    if since and not history:
        fix = "add --history, or leave --since out; the newest tasks stand first"
        raise usage("--since goes with --history", where="--since", fix=fix)
    if history and (state or sort):
        option = "--state" if state else "--sort"
        what = f"{option} does not go with --history, which has every ended task, oldest first"
        raise usage(what, where=option, fix=f"leave out {option} or --history")


def _order(text: str) -> str:
    """The API's order for a heading of the table."""
    falling, word = ("-", text[1:]) if text.startswith("-") else ("", text)
    if not word or word.lower() in ORDERS:
        return falling + ORDERS.get(word.lower(), "")
    fix = f"choose one of {', '.join(choices.TASK_ORDERS)}; prefix with - for descending"
    meant = guide.meant(word.lower(), ORDERS)
    raise usage(
        f"--sort {text}: tasks are not sorted by this", where="--sort", fix=f"{meant} {fix}".strip()
    )


def _labels(given: Optional[List[str]]) -> List[str]:
    """The API's filters. Raises Failure for one that names no label, and for two values of one
    label, which no task has."""
    values: Dict[str, str] = {}
    for text in given or []:
        name, equals, value = text.partition("=")
        differs = bool(equals) and name.endswith("!")
        if not (name[:-1] if differs else name):
            fix = "write --label KEY=VALUE, --label KEY!=VALUE or --label KEY"
            raise usage(f"{text!r} names no label", where="--label", fix=fix)
        if equals and not differs and values.setdefault(name, value) != value:
            what = f"--label {name}={values[name]} and {text}: no task has both"
            raise usage(what, where="--label", fix="a label has one value: leave one out")
    if len(given or []) > LABELS_MAX:
        what = f"{len(given or [])} filters are more than {LABELS_MAX}"
        raise usage(what, where="--label", fix="give fewer")
    return list(given or [])


def _warn_of_unknown_labels(api: Api, given: Sequence[str]) -> None:
    """Warn of filters whose label none of the newest tasks has: it may be misspelt."""
    newest = api.get("/v1/tasks", {"limit": LABELS_OF_MAX})["items"]
    known = {name for task in newest for name in parse.fields(task.get("labels"))}
    for text in given if newest else ():
        name = text.partition("=")[0]
        name = name[:-1] if "=" in text and name.endswith("!") else name
        if name not in known:
            what = f"none of the newest {len(newest)} tasks has a label {name!r}"
            render.warning("; ".join(filter(None, (what, guide.meant(name, known)))))


def _history(api: Api, since: str, given: Dict[str, Any]) -> Dict[str, Any]:
    """What the policy lab replays: ended tasks, in the order of their submission."""
    first = parse.at(parse.timestamp(since, "--since", render.now())) if since else None
    query = {
        **given,
        "state": ",".join(ENDED),
        "run_seconds": "true",
        "sort": "-submitted_at",
    }
    found = api.items("/v1/tasks", query, LISTED_MAX)
    if first is not None:
        found["items"] = [
            each
            for each in found["items"]
            if (parse.at(each.get("submitted_at")) or first) >= first
        ]
    found["items"].reverse()
    if found.get("next_cursor"):
        render.note(f"more than {LISTED_MAX} have ended: the oldest are left out")
    return found


# The columns of ``ls``, each with its cells in ``_row``.
COLUMNS = (
    render.Column("ID"),
    render.Column("NAME", least=12),
    render.Column("OWNER", drop=4, least=8),
    render.Column("STATE"),
    render.Column("PRIORITY", drop=5),
    render.Column("SIZE", drop=6),
    # For a running task its progress; its reason would only repeat that it runs.
    render.Column("PROGRESS", drop=1, least=24),
    render.Column("SUBMITTED", drop=3),
    render.Column("REASON", drop=2, least=20),
)


def show_table(api: Api, tasks: Sequence[Dict[str, Any]], none: str) -> None:
    """Print tasks as a table; without any, the note ``none``."""
    short = ids.shortened(task["id"] for task in tasks)
    names = ids.Names(api, {task["id"]: task for task in tasks})
    render.table(COLUMNS, [_row(task, short[task["id"]], names) for task in tasks], none)


def _row(task: Dict[str, Any], short: str, names: ids.Names) -> List["str | render.Cell"]:
    reason = modes.reason(task)
    return [
        render.Cell(short, task["id"]),
        task["name"],
        task["owner"],
        task["state"],
        task["priority"],
        sizes.short(task),
        task_page.progress(task),
        render.when(task.get("submitted_at")),
        render.Cell(names.put_into(reason), reason) if render.is_narrow() else reason,
    ]


def show(tasks: List[str] = _TASKS) -> None:
    """Show tasks and their runs."""
    shown: List[str] = []

    def act(api: Api, task: str) -> Dict[str, Any]:
        found = find(api, task)
        if not session.current().json:
            if shown:
                render.line("")
            task_page.show(api, found)
        shown.append(task)
        return found

    each(tasks, act)


def explain(
    task: str = _TASK,
    history: bool = typer.Option(
        False, "--history", help="With every decision about it, the oldest first."
    ),
) -> None:
    """Explain why a task waits, what would let it start and when, or why it is preempted."""
    now = session.current()
    api = now.api()
    found = find(api, task)
    path = f"/v1/tasks/{part(found['id'])}"
    reply = api.get(f"{path}/explain")
    if history:
        reply["decisions"] = api.items(f"{path}/decisions")["items"]
    if now.json:
        render.document(reply)
        return
    render.line(explanation.headline(found, reply))
    render.line("")
    team = task_page.team(api, found)
    former = [("team", team)] if team != (found.get("team") or "") else []
    render.facts([*explanation.facts(found, reply), *findings.facts(api, found), *former])
    task_page.show_ending(api, found, api.get(f"{path}/runs")["items"])
    if history:
        render.line("")
        known = {**parse.fields(reply.get("tasks")), found["id"]: found}
        explanation.show_history(reply["decisions"], ids.Names(api, known))


def wait(
    tasks: List[str] = _TASKS,
    state: str = typer.Option(
        "",
        "--for",
        help="The state to wait for. Default: the task's end.",
        autocompletion=complete.states,
    ),
    timeout: str = typer.Option("", "--timeout", help="Give up after so long (exit code 1)."),
) -> None:
    """Wait for a task's end and take its exit code, or wait for a state. Of several tasks, wait for
    each: the exit code is 1 if any failed."""
    wanted = parse.states(state, "--for")
    until = time.monotonic() + parse.duration(timeout, "--timeout") if timeout else None
    codes: List[int] = []

    def act(api: Api, task: str) -> Dict[str, Any]:
        found = _waited(find(api, task), api, wanted, until)
        reached = found["state"] in (wanted or ENDED)
        if not session.current().json:
            render.line(found["state"] if len(tasks) == 1 else f"{found['name']}: {found['state']}")
            for text in ending.report(api, found):
                render.note(text)
        elif not reached and len(tasks) == 1:
            render.document(found)
        if not reached:
            why = (
                f"{found['name']} is {found['state']} and will not be {state}"
                if found["state"] in ENDED
                else f"{found['name']} is still {found['state']} after {timeout}"
            )
            raise Failure(why, where="TASK", fix=f"`shiftwork explain {found['id']}` says why")
        codes.append(0 if wanted else follow.exit_code(found))
        return found

    each(tasks, act)
    raise typer.Exit(codes[0] if len(tasks) == 1 else REFUSED if any(codes) else 0)


def _waited(
    found: Dict[str, Any], api: Api, wanted: Sequence[str], until: Optional[float]
) -> Dict[str, Any]:
    for changed in follow.changes(api, found["id"], until):
        found = changed
        if found["state"] in wanted or found["state"] in ENDED:
            break
    return found


def pause(tasks: List[str] = _LIVE, at_once: bool = _NOW) -> None:
    """Pause tasks: they save a checkpoint and stop until they are resumed."""
    _goals(tasks, "pause", now=at_once)


def resume(tasks: List[str] = _LIVE) -> None:
    """Have paused tasks run again, from their last checkpoints."""
    _goals(tasks, "run")


def stop(
    tasks: Optional[List[str]] = _SOME,
    everything: bool = typer.Option(False, "--all", help="All of yours that have not ended."),
    label: Optional[List[str]] = _LABEL,
    everybody: bool = typer.Option(False, "--all-users", help="With --all: everybody's."),
    yes: bool = typer.Option(False, "-y", "--yes", help="Do not ask."),
    at_once: bool = _NOW,
) -> None:
    """End tasks for good; they may save first."""
    if everything == bool(tasks):
        fix = "write: shiftwork stop TASK..., or: shiftwork stop --all [-l K=V]"
        raise usage("give tasks, or --all", where="stop", fix=fix)
    if (label or everybody) and not everything:
        fix = "write: shiftwork stop --all [-l K=V] [--all-users]"
        raise usage("--label and --all-users go with --all", where="stop", fix=fix)
    if everything:
        tasks = _all_of(_labels(label), everybody=everybody, yes=yes)
        if not tasks:
            return
    _goals(tasks or [], "stop", now=at_once)


def _all_of(labels: List[str], *, everybody: bool, yes: bool) -> List[str]:
    """The live tasks with these labels, once the caller is sure."""
    now = session.current()
    api = now.api()
    query: Dict[str, Any] = {"all": "false", "label": labels}
    if not everybody:
        query["owner"] = api.get("/v1/whoami")["user"]
    found = api.items("/v1/tasks", query, asking.STOPPED_MAX)["items"]
    if not found:
        with_labels = f" with label {' '.join(labels)}" if labels else ""
        render.note(f"there is nothing to stop{with_labels}")
        if now.json:
            render.document({"items": []})
        return []
    if not yes:
        asking.require_yes(f"stop {asking.tasks_text(found)}", where="--all")
    return [task["id"] for task in found]


def _goals(tasks: Sequence[str], goal: str, *, now: bool = False) -> None:
    body: Dict[str, Any] = {"goal": goal, "now": True} if now else {"goal": goal}

    def act(api: Api, task: str) -> Dict[str, Any]:
        found = find(api, task)
        reply = api.put(f"/v1/tasks/{part(found['id'])}/goal", body)
        changed = reply["revision"] != found["revision"]
        render.note(
            f"{found['name']} ({found['id']}) is {_goal_message(goal, found, changed=changed)}"
        )
        return {"id": found["id"], **reply}

    each(tasks, act)


def _goal_message(goal: str, found: Dict[str, Any], *, changed: bool) -> str:
    """The message after a goal was set, or was set already."""
    reached, on_its_way = {
        "run": ("", "resumed"),
        "pause": ("paused", "being paused"),
        "stop": ("stopped", "being stopped"),
    }[goal]
    if goal == "run" and found.get("debug") and found["state"] in ("starting", "running"):
        # The command is passed on nevertheless, as the attempt may have just ended.
        off = f"shiftwork debug {found['id']} --off"
        return f"already {found['state']}, in debug mode; its program runs after: {off}"
    if changed:
        return on_its_way
    return f"already {found['state'] if found['state'] == reached or not reached else on_its_way}"


def priority(
    tasks: Optional[List[str]] = typer.Argument(
        None, metavar="TASK...", help=TASK_HELP, autocompletion=complete.tasks_then_priority
    ),
    level: str = typer.Argument(
        ...,
        metavar="PRIORITY",
        help="extreme_high ... auto.",
        autocompletion=complete.priorities,
    ),
) -> None:
    """Give tasks another priority."""
    if not tasks:
        # The last argument takes the only word that is there.
        missing = "TASK..." if parse.is_priority(level) else "PRIORITY"
        fix = "write: shiftwork priority TASK... PRIORITY"
        raise usage(f"{missing} is missing", where=missing.rstrip("."), fix=fix)
    word = parse.priority(level, "PRIORITY")

    def act(api: Api, task: str) -> Dict[str, Any]:
        found = find(api, task)
        reply = api.put(f"/v1/tasks/{part(found['id'])}/priority", {"priority": word})
        render.note(f"priority of {found['name']} ({found['id']}) is now {word}")
        return {"id": found["id"], **reply}

    each(tasks, act)


def retry(tasks: List[str] = _TASKS) -> None:
    """Submit tasks again as new ones of the same names, from the beginning. Prints their ids."""

    def act(api: Api, task: str) -> Dict[str, Any]:
        found = find(api, task)
        path = f"/v1/tasks/{part(found['id'])}/retry"
        with naming({"name": "TASK"}):
            again: Dict[str, Any] = api.post(path, None, secrets.token_hex(16))
        if not session.current().json:
            role_facts.show_warnings(again)
            render.line(again["id"])
        return again

    each(tasks, act)


def continue_(tasks: List[str] = _TASKS) -> None:
    """Go on with ended tasks, as new ones of the same names: from their last checkpoints and with
    their life states. Prints their ids."""

    def act(api: Api, task: str) -> Dict[str, Any]:
        found = find(api, task)
        path = f"/v1/tasks/{part(found['id'])}/continue"
        with naming({"name": "TASK"}):
            made: Dict[str, Any] = api.post(path, None, secrets.token_hex(16))
        if not session.current().json:
            role_facts.show_warnings(made)
            render.line(made["id"])
        if not made.get("checkpoint"):
            render.warning(f"{found['name']} saved no checkpoint: it starts from the beginning")
        return made

    each(tasks, act)
