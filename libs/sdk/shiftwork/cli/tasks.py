"""Tasks: ``ls show explain wait pause resume stop priority``."""

import re
import time
from typing import Any, Dict, List, Optional

import typer

from shiftwork.cli import explanation, follow, ids, parse, render, session
from shiftwork.cli.client import Api, part
from shiftwork.cli.failures import Failure, usage

ENDED = ("succeeded", "failed", "stopped", "rejected")
LIVE = ("queued", "starting", "running", "preempting", "killing", "paused")
MATCHES_MAX = 100
# Candidates that an error lists.
NAMED_MAX = 5
LISTED_MAX = 100_000
_ID_PREFIX = re.compile(r"[a-z][a-z2-7]{0,25}")

_TASK = typer.Argument(
    ...,
    metavar="TASK",
    help="A name, an id, or a part of one: its beginning, or at least 6 characters of its end.",
)


def register(app: session.App) -> None:
    """Add the commands."""
    app.command("ls")(ls)
    app.command("show")(show)
    app.command("explain")(explain)
    app.command("wait")(wait)
    app.command("pause")(pause)
    app.command("resume")(resume)
    app.command("stop")(stop)
    app.command("priority")(priority)


def find(api: Api, text: str) -> Dict[str, Any]:
    """The task that a TASK argument means.

    An id; else a name: the live one (ours, if several people have one), else the newest; else the
    only id that begins so, or that ends so (six characters at least, as tables show them).
    """
    try:
        return api.get("/v1/tasks/" + part(text))
    except Failure as failure:
        if failure.problem.get("status") != 404:  # noqa: PLR2004 - Not Found
            raise
    named = api.get("/v1/tasks", {"name": text, "limit": MATCHES_MAX})["items"]
    found = _of_name(api, text, named)
    if found is not None:
        return found
    matches: Dict[str, Dict[str, Any]] = {}
    for form, filter_ in ((_ID_PREFIX, "id_prefix"), (ids.TAIL, "id_suffix")):
        if form.fullmatch(text):
            items = api.get("/v1/tasks", {filter_: text, "limit": MATCHES_MAX})["items"]
            matches.update({task["id"]: task for task in items})
    if len(matches) == 1:
        return next(iter(matches.values()))
    if matches:
        raise _ambiguous(f"{text!r} fits {_count(len(matches))} tasks", list(matches.values()))
    raise Failure(
        f"there is no task {text!r}", where="TASK", fix="`shiftwork ls --all` lists the tasks"
    )


def _count(number: int) -> str:
    return str(number) if number < MATCHES_MAX else f"at least {number}"


def _ambiguous(what: str, tasks: List[Dict[str, Any]]) -> Failure:
    """A failure that lists the candidates."""
    first = [f"{each['id']} ({each['name']} of {each['owner']})" for each in tasks[:NAMED_MAX]]
    more = ", ..." if len(tasks) > NAMED_MAX else ""
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
    state: str = typer.Option("", "--state", help="Such as queued,running."),
    limit: int = typer.Option(100, "--limit", min=1, max=LISTED_MAX),
    history: bool = typer.Option(
        False, "--history", help="All that ended, as JSON, with the time they ran: for simulate."
    ),
    since: str = typer.Option("", "--since", help="With --history: submitted since, e.g. 7d."),
) -> None:
    """List tasks: those that live, the newest first."""
    now = session.current()
    api = now.api()
    if history:
        render.document(_history(api, since))
        return
    states = [word.strip().lower() for word in state.split(",") if word.strip()]
    unknown = [word for word in states if word not in LIVE + ENDED]
    if unknown:
        raise usage(
            f"{unknown[0]!r} is not a state",
            where="--state",
            fix="choose of " + ", ".join(LIVE + ENDED),
        )
    if not states and not everything:
        states = list(LIVE)
    query: Dict[str, Any] = {"state": ",".join(states)}
    if mine:
        query["owner"] = api.get("/v1/whoami")["user"]
    found = api.items("/v1/tasks", query, limit)
    if now.json:
        render.document(found)
        return
    short = ids.shortened(task["id"] for task in found["items"])
    known = {task["id"]: task for task in found["items"]}
    render.table(
        COLUMNS,
        [_row(task, short[task["id"]], known) for task in found["items"]],
        "no tasks" if everything or state else "no live tasks; --all shows the ended ones",
    )
    if found.get("next_cursor"):
        render.note(f"more than {limit}: raise --limit")


def _history(api: Api, since: str) -> Dict[str, Any]:
    """What the policy lab replays: ended tasks, in the order of their submission."""
    first = parse.at(parse.moment(since, "--since", render.now())) if since else None
    query = {"state": ",".join(ENDED), "run_seconds": "true", "sort": "-submitted_at"}
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
    render.Column("OWNER", drop=3, least=8),
    render.Column("STATE"),
    render.Column("PRIORITY", drop=5),
    render.Column("SIZE", drop=4),
    render.Column("STEP", drop=6),
    render.Column("SUBMITTED", drop=2),
    render.Column("REASON", drop=1, least=20),
)


def _row(
    task: Dict[str, Any], short: str, known: Dict[str, Dict[str, Any]]
) -> List["str | render.Cell"]:
    checkpoint = parse.fields(task.get("checkpoint"))
    reason = parse.fields(task.get("reason")).get("text", "")
    return [
        render.Cell(short, task["id"]),
        task["name"],
        task["owner"],
        task["state"],
        task["priority"],
        size(task),
        str(checkpoint.get("step", "")),
        render.when(task.get("submitted_at")),
        render.Cell(ids.named(reason, known), reason),
    ]


def size(task: Dict[str, Any]) -> str:
    """``2x8``: nodes and GPUs on each; ``2`` for whole nodes, ``2x0`` for CPU only."""
    gpus = task.get("gpus_per_node")
    return str(task["nodes"]) if gpus is None else f"{task['nodes']}x{gpus}"


def show(task: str = _TASK) -> None:
    """Show one task and its runs."""
    now = session.current()
    api = now.api()
    found = find(api, task)
    if now.json:
        render.document(found)
        return
    checkpoint = found.get("checkpoint")
    ended = found.get("exit")
    reason = parse.fields(found.get("reason"))
    runs = api.get(f"/v1/tasks/{part(found['id'])}/runs")["items"]
    render.facts(
        [
            ("id", found["id"]),
            ("name", found["name"]),
            ("owner", found["owner"]),
            ("state", found["state"]),
            ("reason", reason.get("text", "")),
            ("not started", _delayed(runs, found)),
            ("goal", found["goal"]),
            ("priority", found["priority"]),
            ("group", found["group"]),
            ("size", size(found)),
            ("labels", render.labels(parse.fields(found.get("labels")))),
            ("on nodes with", render.labels(parse.fields(found.get("node_selector")))),
            ("tolerates", " ".join(parse.listed(found.get("tolerations")))),
            ("command", _commands(found)),
            ("pod", _pod(parse.fields(found.get("pod")))),
            ("directory", found.get("working_directory") or ""),
            ("attempt", str(found["attempt"] or "")),
            ("checkpoint", _checkpoint(checkpoint)),
            ("exit", _exit(ended)),
            ("submitted", render.moment(found.get("submitted_at"))),
            ("started", render.moment(found.get("started_at"))),
            ("finished", render.moment(found.get("finished_at"))),
        ]
    )
    lost = found.get("attempts_without_progress") or 0
    if lost > 1 and found["state"] != "succeeded":
        render.warning(f"{lost} attempts in a row ended without a newer checkpoint")
    if runs:
        render.line("")
        render.table(
            (
                render.Column("ATTEMPT"),
                render.Column("NODES", least=12),
                render.Column("STARTED", drop=2),
                render.Column("FINISHED", drop=1),
                render.Column("END"),
                render.Column("CHECKPOINT", drop=3),
            ),
            map(_run, runs),
            "",
        )


def _pod(pod: Dict[str, Any]) -> str:
    """What was asked of its pods, in one line."""
    said = [
        pod.get("image") or "",
        *(f"mounts {name}" for name in parse.listed(pod.get("storage"))),
        *(f"{name}={amount}" for name, amount in parse.fields(pod.get("resources")).items()),
        *([f"shm {pod['shm_bytes']}"] if pod.get("shm_bytes") else []),
        *parse.listed(pod.get("capabilities")),
        *(["a template"] if pod.get("template") else []),
    ]
    return ", ".join(word for word in said if word)


def _delayed(runs: List[Dict[str, Any]], task: Dict[str, Any]) -> str:
    """What the launcher waits for before the current attempt runs; empty if for nothing."""
    for run in runs:
        if run["attempt"] == task["attempt"]:
            return str(parse.fields(run.get("delayed")).get("detail", ""))
    return ""


def _commands(task: Dict[str, Any]) -> str:
    roles = parse.listed(task.get("roles"))
    if len(roles) == 1:
        return " ".join(roles[0]["command"])
    return "; ".join(f"{r['name']} x{r['replicas']}: {' '.join(r['command'])}" for r in roles)


def _checkpoint(saved: Optional[Dict[str, Any]]) -> str:
    if not saved:
        return ""
    when = render.ago(saved.get("saved_at"))
    return f"no {saved['no']}, step {saved['step']}, {when}: {saved['uri']}"


def _exit(ended: Optional[Dict[str, Any]]) -> str:
    if not ended:
        return ""
    code = "" if ended.get("code") is None else f" (code {ended['code']})"
    text = f": {ended['text']}" if ended.get("text") else ""
    return f"{ended['kind']}{code}{text}"


def _run(run: Dict[str, Any]) -> List["str | render.Cell"]:
    checkpoint = run.get("checkpoint")
    ended = run.get("exit")
    return [
        str(run["attempt"]),
        ",".join(sorted({placed["node"] for placed in parse.listed(run.get("placements"))})),
        render.when(run.get("started_at")),
        render.when(run.get("finished_at")),
        ended["kind"] if ended else "",
        f"step {checkpoint['step']}" if checkpoint else "",
    ]


def explain(
    task: str = _TASK,
    history: bool = typer.Option(
        False, "--history", help="With every decision about it, the oldest first."
    ),
) -> None:
    """Say why a task waits, what would let it start, and when that is; or why it must go."""
    now = session.current()
    api = now.api()
    found = find(api, task)
    path = f"/v1/tasks/{part(found['id'])}"
    told = api.get(f"{path}/explain")
    if history:
        told["decisions"] = api.items(f"{path}/decisions")["items"]
    if now.json:
        render.document(told)
        return
    render.line(explanation.headline(found, told))
    render.line("")
    render.facts(explanation.facts(found, told))
    if history:
        render.line("")
        explanation.show_history(told["decisions"])


def wait(
    task: str = _TASK,
    state: str = typer.Option("", "--for", help="A state to wait for; left out: the end."),
    timeout: str = typer.Option("", "--timeout", help="Give up after so long (exit code 1)."),
) -> None:
    """Wait for a task's end and take its exit code, or wait for a state."""
    now = session.current()
    wanted = [word.strip().lower() for word in state.split(",") if word.strip()]
    for word in wanted:
        if word not in LIVE + ENDED:
            raise usage(
                f"{word!r} is not a state",
                where="--for",
                fix="choose of " + ", ".join(LIVE + ENDED),
            )
    until = time.monotonic() + parse.duration(timeout, "--timeout") if timeout else None
    api = now.api()
    found = find(api, task)
    for changed in follow.changes(api, found["id"], until):
        found = changed
        if found["state"] in wanted or found["state"] in ENDED:
            break
    reached = found["state"] in wanted if wanted else found["state"] in ENDED
    if now.json:
        render.document(found)
    else:
        render.line(found["state"])
    if not reached:
        why = (
            f"{found['name']} is {found['state']} and will not be {state}"
            if found["state"] in ENDED
            else f"{found['name']} is still {found['state']} after {timeout}"
        )
        raise Failure(why, where="wait", fix=f"`shiftwork explain {found['id']}` says why")
    raise typer.Exit(0 if wanted else follow.exit_code(found))


def pause(task: str = _TASK) -> None:
    """Have a task save a checkpoint and rest, until it is resumed."""
    _goal(task, "pause")


def resume(task: str = _TASK) -> None:
    """Have a paused task run again, from its last checkpoint."""
    _goal(task, "run")


def stop(task: str = _TASK) -> None:
    """End a task for good."""
    _goal(task, "stop")


def _goal(task: str, goal: str) -> None:
    now = session.current()
    api = now.api()
    found = find(api, task)
    told = api.put(f"/v1/tasks/{part(found['id'])}/goal", {"goal": goal})
    _asked(found, told, f"goal of {found['name']} ({found['id']}) is now {goal}")


def priority(
    task: str = _TASK,
    level: str = typer.Argument(..., metavar="PRIORITY", help="extreme_high ... auto."),
) -> None:
    """Give a task another priority."""
    now = session.current()
    word = parse.priority(level, "PRIORITY")
    api = now.api()
    found = find(api, task)
    told = api.put(f"/v1/tasks/{part(found['id'])}/priority", {"priority": word})
    _asked(found, told, f"priority of {found['name']} ({found['id']}) is now {word}")


def _asked(found: Dict[str, Any], told: Dict[str, Any], text: str) -> None:
    if session.current().json:
        render.document({"id": found["id"], **told})
    else:
        render.note(text)
