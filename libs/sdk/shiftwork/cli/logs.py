"""``shiftwork logs``: the kept output of a task's ranks, and what is written now."""

import sys
from datetime import datetime, timezone
from heapq import merge
from itertools import chain, groupby, islice
from pathlib import Path
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

import typer

from shiftwork.cli import complete, follow, log_export, parse, render, session
from shiftwork.cli.client import RANGE_BYTES, Api, Range
from shiftwork.cli.failures import usage
from shiftwork.cli.search import Search, Shown
from shiftwork.cli.task_options import ENDED
from shiftwork.cli.tasks import TASK_HELP, find
from shiftwork.client.streams import bytes_of

# Of many ranks that are merged each is read in smaller ranges, down to this.
RANGE_BYTES_MIN = 16_384
LINES_AT_ONCE = 1000
_UNKNOWN = datetime.min.replace(tzinfo=timezone.utc)
# How many ranks or attempts an error names; of attempts the last ones.
ATTEMPTS_NAMED_MAX = 5
ROLES_NAMED_MAX = 16
RANKS_NAMED_MAX = 8


def register(app: session.App) -> None:
    """Add the command."""
    app.command("logs", cls=session.Paged)(logs)


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
    since: str = typer.Option("", "--since", help="From 15m ago on, or from a time."),
    until: str = typer.Option(
        "", "--until", help="Only what was written before 5m ago, or a time."
    ),
    after: Optional[int] = typer.Option(
        None, "--after", metavar="OFFSET", min=0, help="From this byte of one rank's output on."
    ),
    before: Optional[int] = typer.Option(
        None, "--before", metavar="OFFSET", min=1, help="Up to this byte of one rank's output."
    ),
    search: str = typer.Option("", "--search", metavar="RE", help="Only lines that match."),
    text: bool = typer.Option(False, "--text", help="--search is plain text."),
    ignore_case: bool = typer.Option(False, "-i", "--ignore-case", help="In upper or lower case."),
    lines_after: int = typer.Option(0, "-A", min=0, help="With so many lines after each match."),
    lines_before: int = typer.Option(0, "-B", min=0, help="With so many lines before each match."),
    context: int = typer.Option(0, "-C", min=0, help="With so many lines before and after it."),
    tail: Optional[int] = typer.Option(
        None, "--tail", min=0, help="The last lines of each rank of the last attempt."
    ),
    timestamps: bool = typer.Option(
        False, "-t", "--timestamps", help="With the time (UTC) at which each line was written."
    ),
    export: Optional[Path] = typer.Option(
        None, "--export", metavar="DIR", help="Into files DIR/TASK/ATTEMPT/RANK.log instead."
    ),
) -> None:
    """Show a task's output."""
    now = session.current()
    request = Search(
        search, text, ignore_case, max(lines_before, context), max(lines_after, context)
    )
    _check(follow_it, {"--until": until, "--before": before, "--after": after}, tail, since)
    here = follow_it or any(each is not None for each in (tail, before, after))
    pattern = request.compiled(here=here)
    since_at = parse.timestamp(since, "--since", render.now()) if since else ""
    until_at = parse.timestamp(until, "--until", render.now()) if until else ""
    api = now.api()
    found = find(api, task)
    task_id = str(found["id"])
    params: Dict[str, Any] = {"since": since_at, "timestamps": 1 if timestamps else None}
    several = int(found.get("nodes") or 1) > 1 and rank is None
    printer = follow.Printer(ranks=several, times=timestamps)
    shown = Shown(printer, pattern.search if pattern else None)
    kept: List[Dict[str, Any]] = []
    if tail is not None or not follow_it:
        kept = api.get(follow.logs_path(task_id), {"list": 1})["logs"]
    wanted = [
        log
        for log in kept
        if attempt in (None, log["attempt"])
        and rank in (None, log["rank"])
        and role in ("", log.get("role"))
    ]
    if export is not None:
        chosen_part = (follow_it, search, since, until, timestamps)
        is_partly = any(chosen_part) or any(each is not None for each in (tail, before, after))
        log_export.check(is_partly=is_partly)
        _export(api, task_id, wanted, export, kept)
        return
    if follow_it:
        chosen = {"attempt": attempt, "rank": rank, "role": role, "tail": tail or None}
        first = max((log["attempt"] for log in wanted), default=0)
        # With --tail 0 only new output is shown.
        sizes = {(log["attempt"], log["rank"]): log["size"] for log in kept if tail == 0}
        if search and found["state"] not in ENDED:
            render.note(f"lines that match {search!r} are shown as they come; Ctrl-C ends this")
        _follow(api, task_id, {**params, **chosen}, shown, _Begin(first, sizes))
        return
    if search and not here:
        selected = {"attempt": attempt, "rank": rank, "role": role}
        order = {"since": since_at, "until": until_at, "order": "time" if timestamps else "rank"}
        printer.attempts = len({log["attempt"] for log in wanted}) > 1
        request.show(api, follow.logs_path(task_id) + "/lines", {**selected, **order}, shown)
    elif tail != 0:
        ends = {"until": until_at, "before": before, "offset": after, "tail": tail}
        named = "--before" if before is not None else "--after" if after is not None else ""
        of_last = _of_last_attempt(wanted, named) if here else wanted
        _show(Kept(api, task_id, {**params, **ends}), of_last, shown)
    if not wanted:
        render.note(_nothing(kept))
    elif tail != 0 and not shown.any:
        render.note(_no_lines(since, until, search))


def _check(follow_it: bool, ends: Dict[str, Any], tail: Optional[int], since: str) -> None:
    """Raise the error of options that exclude each other."""
    for name, value in ends.items():
        if follow_it and value not in (None, ""):
            raise usage(
                f"{name} has no meaning with --follow", where=name, fix="leave out one of both"
            )
    if ends["--after"] is not None and (tail is not None or since):
        raise usage(
            f"--after stands beside {'--since' if since else '--tail'}",
            where="--after",
            fix="give one of both; --before OFFSET --tail N has the last lines before a byte",
        )


def _export(
    api: Api,
    task_id: str,
    wanted: List[Dict[str, Any]],
    folder: Path,
    kept: List[Dict[str, Any]],
) -> None:
    if not wanted:
        render.note(_nothing(kept))
        return
    with render.Progress() as progress:
        target = log_export.export(api, task_id, wanted, folder, progress.show)
    log_export.report(target, wanted)


def _of_last_attempt(wanted: List[Dict[str, Any]], named: str) -> List[Dict[str, Any]]:
    """The outputs of the last attempt. ``named``: an option names a byte, so there must be one."""
    last = max((log["attempt"] for log in wanted), default=0)
    found = [log for log in wanted if log["attempt"] == last]
    if named and found[1:]:
        raise usage(
            f"the task has {len(found)} ranks, and each counts its own bytes",
            where=named,
            fix="choose one with --rank N",
        )
    return found


def _no_lines(since: str, until: str, search: str) -> str:
    """Why nothing is shown of output that is there."""
    parts = [
        f"since {since}" if since else "",
        f"until {until}" if until else "",
        f"that matches {search!r}" if search else "",
    ]
    missing = " ".join(["no output", *(part for part in parts if part)])
    return missing if since or until or search else "there is no output"


def _nothing(kept: List[Dict[str, Any]]) -> str:
    """The message that there is no output, or which attempts and ranks have some."""
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
    roles = list(dict.fromkeys(str(log["role"]) for log in kept if log.get("role")))
    of_roles = f"; roles: {', '.join(roles[:ROLES_NAMED_MAX])}" if roles else ""
    return f"no output matches the options: there is {there}{of_roles}"


def _first(ranks: List[int]) -> str:
    more = ", ..." if len(ranks) > RANKS_NAMED_MAX else ""
    return ", ".join(map(str, sorted(ranks)[:RANKS_NAMED_MAX])) + more


class Kept(NamedTuple):
    """The stored output of a task's ranks, and from where it is read."""

    api: Api
    task_id: str
    first: Dict[str, Any]

    def ranges(self, log: Dict[str, Any], limit: int) -> Iterator[Range]:
        """One rank's output, range by range."""
        query = {"attempt": log["attempt"], "rank": log["rank"], "limit_bytes": limit, **self.first}
        while True:
            part = self.api.read_range(follow.logs_path(self.task_id), query)
            yield part
            offset = part.offset + len(part.data)
            if not part.data or offset >= part.size:
                return
            query = {**query, "since": None, "tail": None, "offset": offset}

    def lines(self, log: Dict[str, Any], limit: int) -> Iterator[List[follow.Line]]:
        """The lines of each range."""
        lines = follow.Lines()
        for part in self.ranges(log, limit):
            piece = {**log, "offset": part.offset, "timestamps": part.timestamps}
            yield lines.add({**piece, "approximate": part.approximate}, part.data)
        yield lines.rest()


def _show(kept: Kept, wanted: List[Dict[str, Any]], shown: Shown) -> None:
    """Kept output, one attempt after the other: rank by rank, with times merged by these."""
    if shown.printer.times:
        for _, logs in groupby(wanted, key=lambda log: log["attempt"]):
            _show_merged(kept, list(logs), shown)
        return
    # A file or a program gets every byte; a terminal would mix the states of a line that is
    # rewritten.
    exact = shown.is_plain and not render.is_terminal(sys.stdout)
    for log in wanted:
        if exact:
            for part in kept.ranges(log, RANGE_BYTES):
                shown.show_bytes(part.data)
        else:
            for lines in kept.lines(log, RANGE_BYTES):
                shown.show(lines)


def _show_merged(kept: Kept, logs: List[Dict[str, Any]], shown: Shown) -> None:
    """The output of several ranks in the order in which it was written."""
    limit = max(RANGE_BYTES_MIN, RANGE_BYTES // len(logs))
    ranks = [chain.from_iterable(kept.lines(log, limit)) for log in logs]
    merged = merge(*ranks, key=lambda line: parse.at(line.at) or _UNKNOWN) if logs[1:] else ranks[0]
    while True:
        lines = list(islice(merged, LINES_AT_ONCE))
        if not lines:
            return
        shown.show(lines)


class _Begin(NamedTuple):
    """The start of followed output: an attempt, and the number of bytes to skip for its ranks."""

    attempt: int
    sizes: Dict[Tuple[int, int], int]

    def has(self, piece: Dict[str, Any]) -> bool:
        """True for output that is to be shown."""
        skipped = self.sizes.get((piece["attempt"], piece["rank"]), 0)
        end = piece["offset"] + len(bytes_of(piece))
        return piece["attempt"] >= self.attempt and (end > skipped or not skipped)


def _follow(api: Api, task_id: str, query: Dict[str, Any], shown: Shown, begin: "_Begin") -> None:
    # A file or a program gets every byte; on a terminal lines that are rewritten are drawn.
    exact = shown.is_plain and not render.is_terminal(sys.stdout)
    with render.Progress() as progress:
        screen = follow.Screen(progress, shown.printer, wanted=shown.wanted, exact=exact)
        for piece in follow.output(api, task_id, query):
            if begin.has(piece):
                screen.take(piece)
        screen.end()
