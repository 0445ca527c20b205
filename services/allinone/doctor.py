"""``shiftwork doctor``: what is right, doubtful or wrong on this machine, and the fix.

Reads only: nothing is started or changed. Each check is one row of ``CHECKS``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from urllib.error import URLError
from urllib.request import urlopen

from shiftwork.cli.client import Api
from shiftwork.cli.failures import USAGE, Failure

from libs.contracts.services import SERVICES
from libs.contracts.wording import counted
from services.allinone import checks
from services.allinone.data_folder import DataFolder, Options
from services.allinone.findings import Finding, finding_of
from services.launcher.runtimes.node import cgroups

PROBE_SECONDS = 5
LETTERS_MAX = 200


def examine(data_folder: DataFolder) -> list[Finding]:
    """Every finding, in the order of the checks. Never raises for what it is there to find."""
    findings: list[Finding] = []
    # Of a platform whose folder may not be read nothing more is known, not even whether it runs.
    for check in CHECKS if _is_ours(data_folder) else (before_start, _limits):
        findings += _guarded(check, data_folder)
    return findings


def _guarded(check: Callable[..., Iterable[Finding]], *given: object) -> Iterator[Finding]:
    """What a check finds; one that fails must not hide what the others find."""
    try:
        yield from check(*given)
    except Exception as problem:  # noqa: BLE001 - whatever it is, it is a finding
        yield Finding("warn", f"{check.__name__.strip('_')}: {problem}")


def examine_remote(url: str) -> list[Finding]:
    """A platform that is not one of this machine's: whether it answers."""
    return [_answers(url, "ask its operator")]


def before_start(data_folder: DataFolder) -> Iterator[Finding]:
    """What ``up`` checks before it starts, with the options that it has kept."""
    try:
        kept = data_folder.options()
    except Failure as problem:
        kept = None
        if _is_ours(data_folder):
            yield finding_of(problem)
    for check in checks.BEFORE_START:
        for finding in _guarded(check, data_folder, kept or Options()):
            # Before the first `up` nothing is chosen yet: the choice is only needed then.
            unsaid = kept is None and finding.code == USAGE
            yield replace(finding, level="warn") if unsaid else finding


def _is_ours(data_folder: DataFolder) -> bool:
    problem = checks.owner_problem(data_folder.data)
    return problem is None or problem.level != "bad"


def _limits(data_folder: DataFolder) -> Iterator[Finding]:
    del data_folder
    groups = cgroups.find(f"shiftwork-doctor-{os.getpid()}", probe=True)
    try:
        if not groups.warnings:
            yield Finding("ok", "CPU and memory limits of tasks: control groups")
        for warning in groups.warnings:
            # Nothing that an ordinary user could or has to change.
            if os.geteuid() != 0:
                yield Finding("note", f"CPU and memory limits of tasks: {warning}")
            else:
                yield Finding("warn", warning, "run `up` where control groups are writable")
    finally:
        groups.close()


def _journals(data_folder: DataFolder) -> Iterator[Finding]:
    for file in sorted(data_folder.runs.glob("*/journal.damaged")):
        text = f"a fault of the disk damaged the journal of node {file.parent.name}"
        yield Finding("warn", text, f"check the disk; the damaged lines are in {file}")


def _running(data_folder: DataFolder) -> Iterator[Finding]:
    holder = data_folder.holder()
    if holder is None:
        ended = data_folder.ended()
        if data_folder.is_kept():
            yield Finding("warn", "starting, or ending")
        elif ended is None:
            yield Finding("ok", f"not running: {data_folder.command('up')}")
        elif ended.problem:
            fix = f"see {data_folder.log}; {data_folder.command('up')}"
            yield Finding("bad", f"crashed: {ended.problem}", fix)
        else:
            text = f"not running: process {ended.pid} was killed, or the machine went down"
            fix = f"{data_folder.command('up')}: what runs goes on, the rest is resumed"
            yield Finding("bad", text, fix)
        return
    yield _answers(holder.url, f"see {data_folder.log}")


def _answers(url: str, fix: str) -> Finding:
    try:
        with urlopen(f"{url}/readyz", timeout=PROBE_SECONDS) as answer:  # noqa: S310 - an http URL that was given
            text_of_answer = answer.read().decode().strip()
    except (URLError, OSError, ValueError) as problem:
        text_of_answer = getattr(problem, "read", lambda: b"")().decode(errors="replace").strip()
        return Finding("bad", f"{url}: {text_of_answer or problem}", fix)
    doubtful = "ready, but" in text_of_answer
    return Finding(
        "warn" if doubtful else "ok", f"running at {url}: {text_of_answer}", fix * doubtful
    )


def _letters(data_folder: DataFolder) -> Iterator[Finding]:
    """Events that the services have set apart, and that wait for somebody."""
    holder = data_folder.holder()
    if holder is None or not holder.ready:
        return
    api = Api(holder.url, data_folder.credentials.admin_token_file.read_text().strip())
    found = [
        letter
        for service in SERVICES
        for letter in api.items("/v1/dead-letters", {"service": service}, LETTERS_MAX)["items"]
        if not letter["replaying"]
    ]
    if found:
        least = "at least " if len(found) >= LETTERS_MAX else ""
        count = f"{least}{counted(len(found), 'dead letter')}"
        text = f"{count} to check: events that a service could not handle"
        yield Finding("warn", text, "shiftwork dead-letters ls, then replay or discard them")


def _parts(data_folder: DataFolder) -> Iterator[Finding]:
    if not data_folder.is_kept() or not data_folder.status.exists():
        return
    for name, part in json.loads(data_folder.status.read_text()).items():
        restarts = f", {counted(part['restarts'], 'restart')}" if part["restarts"] else ""
        text = f"{name}: {part['state']} since {part['since']}{restarts}"
        if part["state"] == "up" and not part["problem"]:
            yield Finding("warn" if part["restarts"] else "ok", text)
        else:
            yield Finding("bad", f"{text}: {part['problem']}", f"see {data_folder.log}")


CHECKS: tuple[Callable[[DataFolder], Iterator[Finding]], ...] = (
    before_start,
    _limits,
    _journals,
    _running,
    _parts,
    _letters,
)
