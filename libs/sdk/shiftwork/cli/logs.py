"""``shiftwork logs``: the kept output of a task's ranks, and what is written now."""

import re
import sys
from typing import Any, Dict, List, Optional

import typer

from shiftwork.cli import complete, follow, parse, render, session
from shiftwork.cli.client import RANGE_BYTES, Api
from shiftwork.cli.failures import usage
from shiftwork.cli.tasks import TASK_HELP, find

# So many are named where none is meant; of attempts the last ones.
ATTEMPTS_NAMED_MAX = 5
RANKS_NAMED_MAX = 8


def register(app: session.App) -> None:
    """Add the command."""
    app.command("logs")(logs)


def logs(
    task: str = typer.Argument(
        ...,
        metavar="TASK",
        help=TASK_HELP,
        autocompletion=complete.tasks,
    ),
    follow_it: bool = typer.Option(False, "-f", "--follow", help="Go on until the task's end."),
    attempt: Optional[int] = typer.Option(None, "--attempt", min=1, help="Left out: all."),
    role: str = typer.Option("", "--role", help="One role's ranks only."),
    rank: Optional[int] = typer.Option(None, "--rank", min=0, help="One rank only."),
    since: str = typer.Option("", "--since", help="From 15m ago on, or from a moment."),
    search: str = typer.Option("", "--search", metavar="RE", help="Only lines that match."),
    tail: Optional[int] = typer.Option(
        None, "--tail", min=0, help="The last lines of each rank of the last attempt."
    ),
) -> None:
    """Show a task's output."""
    now = session.current()
    wanted = _pattern(search)
    moment = parse.moment(since, "--since", render.now()) if since else ""
    api = now.api()
    found = find(api, task)
    task_id = str(found["id"])
    query: Dict[str, Any] = {"attempt": attempt, "rank": rank, "role": role, "since": moment}
    several = int(found.get("nodes") or 1) > 1 and rank is None
    if follow_it:
        _follow(api, task_id, {**query, "tail": tail or None}, wanted, several)
        return
    kept = api.get(follow.logs_path(task_id), {"list": 1})["logs"]
    chosen = [
        log
        for log in kept
        if attempt in (None, log["attempt"])
        and rank in (None, log["rank"])
        and role in ("", log.get("role"))
    ]
    if tail is not None and attempt is None:
        last = max((log["attempt"] for log in chosen), default=0)
        chosen = [log for log in chosen if log["attempt"] == last]
    if not chosen:
        render.note(_nothing(kept))
    for log in chosen if tail != 0 else []:
        _show(api, task_id, log, {"since": moment, "tail": tail}, wanted, several)


def _nothing(kept: List[Dict[str, Any]]) -> str:
    """That there is no output, or else which attempts and ranks have some."""
    if not kept:
        return "there is no output"
    ranks: Dict[int, List[int]] = {}
    for log in kept:
        ranks.setdefault(log["attempt"], []).append(log["rank"])
    parts = [
        f"attempt {number} with rank{'' if len(them) == 1 else 's'} {_first(them)}"
        for number, them in sorted(ranks.items())
    ]
    there = "; ".join(parts[-ATTEMPTS_NAMED_MAX:])
    return f"no output matches the options: there is {there}"


def _first(ranks: List[int]) -> str:
    more = ", ..." if len(ranks) > RANKS_NAMED_MAX else ""
    return ", ".join(map(str, sorted(ranks)[:RANKS_NAMED_MAX])) + more


def _pattern(search: str) -> "Optional[re.Pattern[bytes]]":
    try:
        return re.compile(search.encode()) if search else None
    except re.error as error:
        raise usage(
            f"{search!r} is no regular expression: {error}", where="--search", fix="correct it"
        ) from None


def _show(
    api: Api,
    task_id: str,
    log: Dict[str, Any],
    first: Dict[str, Any],
    wanted: "Optional[re.Pattern[bytes]]",
    several: bool,
) -> None:
    """One rank's kept output, range by range; raw when nothing must be added or taken away."""
    plain = wanted is None and not several and not render.wants_json()
    lines = follow.Lines()
    offset: Optional[int] = None
    while True:
        query = {"attempt": log["attempt"], "rank": log["rank"], "limit_bytes": RANGE_BYTES}
        part = api.read_range(
            follow.logs_path(task_id),
            {**query, **(first if offset is None else {"offset": offset})},
        )
        if plain:
            render.raw(part.data)
        else:
            piece = {**log, "offset": part.offset}
            _show_lines(lines.add(piece, part.data), wanted, several)
        offset = part.offset + len(part.data)
        if not part.data or offset >= part.size:
            break
    _show_lines(lines.rest(), wanted, several)


def _follow(
    api: Api,
    task_id: str,
    query: Dict[str, Any],
    wanted: "Optional[re.Pattern[bytes]]",
    several: bool,
) -> None:
    # A file or a program gets every byte; on a terminal lines that are rewritten are drawn.
    plain = wanted is None and not several and not render.wants_json()
    exact = plain and not render.is_terminal(sys.stdout)
    with render.Progress() as progress:
        screen = follow.Screen(
            progress, prefix=several, wanted=wanted.search if wanted else None, exact=exact
        )
        for piece in follow.output(api, task_id, query):
            screen.take(piece)
        screen.end()


def _show_lines(
    lines: List[follow.Line], wanted: "Optional[re.Pattern[bytes]]", several: bool
) -> None:
    kept = [line for line in lines if wanted is None or wanted.search(line.text)]
    follow.show_lines(kept, prefix=several)
