"""What a failed task wrote last: the end of the output of the rank that failed first, and the error
lines that were found in the outputs of the last run that failed.

Called by ``show``, ``explain`` and ``wait``. It reads the kept output.
"""

from __future__ import annotations

import time
from typing import Any, Mapping

from shiftwork.cli import environments, follow, parse, render
from shiftwork.cli.client import Api
from shiftwork.cli.failures import Failure

LINES_MAX = 10
BYTES_MAX = 8192
# A task may be known to have failed before its last lines are collected.
COMPLETE_SECONDS = 3.0
# Of the ranks with error lines; the runs of the API have all.
RANKS_SHOWN_MAX = 3


def failed_rank(ended: Mapping[str, Any]) -> int:
    """The rank that failed first; where that is not known, the first that ended with a code."""
    known = ended.get("failed_rank")
    if known is not None:
        return int(known)
    ranks = parse.listed(ended.get("ranks"))
    failed = [each["rank"] for each in ranks if each.get("code")]
    return int(next(iter(failed), 0))


def last_lines(api: Api, task: Mapping[str, Any]) -> list[str]:
    """The last lines of the rank that failed first; none if the task did not fail, or wrote none.

    Errors of the server are ignored: what else is shown must not depend on it.
    """
    ended = parse.fields(task.get("exit"))
    if task["state"] != "failed" or not ended:
        return []
    query = {
        "attempt": ended["attempt"],
        "rank": failed_rank(ended),
        "offset": -BYTES_MAX,
        "limit_bytes": BYTES_MAX,
    }
    until = time.monotonic() + COMPLETE_SECONDS
    while True:
        try:
            read = api.read_range(follow.logs_path(task["id"]), query)
        except Failure as failure:
            render.detail(f"the last output cannot be read: {failure.what}")
            return []
        if read.complete or time.monotonic() > until or api.unwanted.wait(follow.AGAIN_SECONDS):
            break
    lines = [follow.last_state(line) for line in read.data.rstrip().split(b"\n")]
    if read.offset:
        # It may begin in the middle of a line.
        lines = lines[1:] or lines
    return [line.decode("utf-8", "replace") for line in lines[-LINES_MAX:] if read.data.strip()]


def report(api: Api, task: Mapping[str, Any]) -> list[str]:
    """The lines to show about a failed task's end; none for any other task."""
    lines = last_lines(api, task)
    if not lines:
        return []
    ended = parse.fields(task.get("exit"))
    head = f"last output of rank {failed_rank(ended)}, attempt {ended['attempt']}:"
    hint = environments.hint_for(lines, environments.interpreter_of(task))
    return [
        head,
        *(f"  {render.without_sequences(line)}" for line in lines),
        *([f"hint: {render.one_line(hint)}"] if hint else []),
    ]


def error_report(runs: list[dict[str, Any]], shown: list[str]) -> list[str]:
    """The error lines of the newest run that has some, rank by rank. Lines that are ``shown``
    already do not come again."""
    with_errors = [run for run in runs if parse.listed(run.get("error_lines"))]
    if not with_errors:
        return []
    run = max(with_errors, key=lambda each: int(each["attempt"]))
    found = parse.listed(run.get("error_lines"))
    report: list[str] = []
    for each in found[:RANKS_SHOWN_MAX]:
        lines = [f"  {_printed(line)}" for line in parse.listed(each.get("lines"))]
        if all(line in shown for line in lines):
            continue
        report.append(f"error lines of rank {each['rank']}, attempt {run['attempt']}:")
        report += lines
    if report and found[RANKS_SHOWN_MAX:]:
        more = render.counted(len(found) - RANKS_SHOWN_MAX, "more rank")
        report.append(f"{more} with error lines: --json has all")
    return report


def _printed(line: str) -> str:
    """A line of output as people may see it: without a terminal's commands."""
    return render.one_line(render.without_sequences(line))
