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
from shiftwork.cli.dead_letters import SERVICES
from shiftwork.cli.failures import USAGE, Failure

from libs.contracts.wording import counted
from services.allinone import checks
from services.allinone.findings import Finding, finding_of
from services.allinone.place import Options, Place
from services.launcher.runtimes.node import cgroups

PROBE_SECONDS = 5
LETTERS_MAX = 200


def examine(place: Place) -> list[Finding]:
    """Every finding, in the order of the checks. Never raises for what it is there to find."""
    findings: list[Finding] = []
    # Of a platform that we may not look into nothing more is known, not even whether it runs.
    for check in CHECKS if _is_ours(place) else (before_start, _limits):
        findings += _guarded(check, place)
    return findings


def _guarded(check: Callable[..., Iterable[Finding]], *given: object) -> Iterator[Finding]:
    """What a check finds; one that fails must not hide what the others find."""
    try:
        yield from check(*given)
    except Exception as problem:  # noqa: BLE001 - whatever it is, it is a finding
        yield Finding("warn", f"{check.__name__.strip('_')}: {problem}")


def examine_remote(url: str) -> list[Finding]:
    """A platform that is not one of this machine's: whether it answers."""
    return [_answers(url, "ask who runs it")]


def before_start(place: Place) -> Iterator[Finding]:
    """What ``up`` checks before it starts, with the options that it has kept."""
    try:
        kept = place.options()
    except Failure as problem:
        kept = None
        if _is_ours(place):
            yield finding_of(problem)
    for check in checks.BEFORE_START:
        for finding in _guarded(check, place, kept or Options()):
            # Before the first `up` nothing is chosen yet: it is only to be told then.
            unsaid = kept is None and finding.code == USAGE
            yield replace(finding, level="warn") if unsaid else finding


def _is_ours(place: Place) -> bool:
    problem = checks.owner_problem(place.data)
    return problem is None or problem.level != "bad"


def _limits(place: Place) -> Iterator[Finding]:
    del place
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


def _journals(place: Place) -> Iterator[Finding]:
    for file in sorted(place.runs.glob("*/journal.damaged")):
        text = f"a fault of the disk damaged the journal of node {file.parent.name}"
        yield Finding("warn", text, f"check the disk; the damaged lines are in {file}")


def _running(place: Place) -> Iterator[Finding]:
    keeper = place.keeper()
    if keeper is None:
        ended = place.ended()
        if place.is_kept():
            yield Finding("warn", "starting, or ending")
        elif ended is None:
            yield Finding("ok", f"not running: {place.command('up')}")
        elif ended.problem:
            fix = f"see {place.log}; {place.command('up')}"
            yield Finding("bad", f"crashed: {ended.problem}", fix)
        else:
            text = f"not running: process {ended.pid} was killed, or the machine went down"
            fix = f"{place.command('up')}: what runs goes on, the rest is resumed"
            yield Finding("bad", text, fix)
        return
    yield _answers(keeper.url, f"see {place.log}")


def _answers(url: str, fix: str) -> Finding:
    try:
        with urlopen(f"{url}/readyz", timeout=PROBE_SECONDS) as answer:  # noqa: S310 - an http URL that was given
            said = answer.read().decode().strip()
    except (URLError, OSError, ValueError) as problem:
        said = getattr(problem, "read", lambda: b"")().decode(errors="replace").strip()
        return Finding("bad", f"{url}: {said or problem}", fix)
    doubtful = "ready, but" in said
    return Finding("warn" if doubtful else "ok", f"running at {url}: {said}", fix * doubtful)


def _letters(place: Place) -> Iterator[Finding]:
    """Events that the services have set apart, and that wait for somebody."""
    keeper = place.keeper()
    if keeper is None or not keeper.ready:
        return
    api = Api(keeper.url, place.credentials.admin_token_file.read_text().strip())
    found = [
        letter
        for service in SERVICES
        for letter in api.items("/v1/dead-letters", {"service": service}, LETTERS_MAX)["items"]
        if not letter["replaying"]
    ]
    if found:
        least = "at least " if len(found) >= LETTERS_MAX else ""
        count = f"{least}{counted(len(found), 'dead letter')}"
        text = f"{count} to look at: events that a service could not handle"
        yield Finding("warn", text, "shiftwork dead-letters ls, then replay or discard them")


def _parts(place: Place) -> Iterator[Finding]:
    if not place.is_kept() or not place.status.exists():
        return
    for name, part in json.loads(place.status.read_text()).items():
        restarts = f", {counted(part['restarts'], 'restart')}" if part["restarts"] else ""
        text = f"{name}: {part['state']} since {part['since']}{restarts}"
        if part["state"] == "up" and not part["problem"]:
            yield Finding("warn" if part["restarts"] else "ok", text)
        else:
            yield Finding("bad", f"{text}: {part['problem']}", f"see {place.log}")


CHECKS: tuple[Callable[[Place], Iterator[Finding]], ...] = (
    before_start,
    _limits,
    _journals,
    _running,
    _parts,
    _letters,
)
