"""Who is likely to be at fault for the end of a run, by one ordered table: the class of a failure.

Called by ``reconcile`` once per run. The launcher alone computes the class; the scheduler counts
retries by it, and others show it. What was found wrong with the rank decides before its exit code
does. Rendered into the docs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from libs.contracts.messages import ExitKind, Fault, FaultClass, RankExit
from libs.contracts.restart_rules import exit_code
from services.launcher.domain import rank_faults

C, F = FaultClass, Fault


@dataclass(frozen=True, slots=True)
class ClassRule:
    """One line of the table. It holds for its faults, and for its codes where no fault is known."""

    fault_class: FaultClass
    faults: frozenset[Fault] = frozenset()
    # Exit codes, where 128 and more stand for signals.
    codes: tuple[int, ...] = ()
    # What these codes mean.
    text: str = ""


# The faults that can be the task's and can be the cluster's.
_UNDECIDED = frozenset({F.NOT_CREATED, F.INIT_FAILED})
_OF_SITE = frozenset(r.fault for r in rank_faults.RULES if r.kind is ExitKind.LOST)
_OF_TASK = frozenset(r.fault for r in rank_faults.RULES if r.kind is ExitKind.FAILED) - _UNDECIDED

RULES: tuple[ClassRule, ...] = (
    ClassRule(C.PLATFORM, _OF_SITE),
    ClassRule(C.USER, _OF_TASK),
    ClassRule(C.UNKNOWN, _UNDECIDED),
    ClassRule(
        C.TRANSIENT,
        codes=(130, 131, 137, 143),
        text="ended by SIGINT, SIGQUIT, SIGKILL or SIGTERM, which came from outside of the program",
    ),
    ClassRule(
        C.USER, codes=(126, 127), text="the command was found, but cannot be run, or was not found"
    ),
    ClassRule(
        C.USER,
        codes=(132, 135, 136, 141),
        text="ended by SIGILL, SIGBUS, SIGFPE or SIGPIPE, which the program itself caused",
    ),
    ClassRule(
        C.UNKNOWN,
        codes=(134, 139),
        text="ended by SIGABRT or SIGSEGV: the program, a library or the hardware",
    ),
)


def fault_of(kind: ExitKind, found: Fault | None, failed: RankExit | None) -> Fault:
    """What was wrong with a run that failed or was lost: with the rank that decided the failure,
    else with the launch or the ranks that were lost (``found``)."""
    if kind not in (ExitKind.FAILED, ExitKind.LOST):
        return Fault.UNSPECIFIED
    return failed.fault if failed is not None else found or Fault.UNSPECIFIED


def class_of(fault: Fault, code: int | None) -> FaultClass:
    """The class of a failure by what was found wrong, else by the exit code (``exit_code``)."""
    for rule in RULES:
        if fault in rule.faults or (fault is Fault.UNSPECIFIED and code in rule.codes):
            return rule.fault_class
    return FaultClass.UNKNOWN


def class_of_run(kind: ExitKind, fault: Fault, failed: RankExit | None) -> FaultClass:
    """The class of a run's end. A lost run is the platform's fault, whatever is known of it; one
    that neither failed nor was lost has none."""
    match kind:
        case ExitKind.LOST:
            return FaultClass.PLATFORM
        case ExitKind.FAILED:
            code = None if failed is None else exit_code(failed.code, failed.signal)
            return class_of(fault, code)
        case _:
            return FaultClass.UNSPECIFIED


def _listed(items: Iterable[object]) -> str:
    return ", ".join(f"`{item}`" for item in items)


def render_markdown() -> str:
    """The table for the documentation."""
    lines = ["| what is known of the rank | class |", "| --- | --- |"]
    for rule in RULES:
        if rule.faults:
            known = _listed(sorted(fault.name.lower() for fault in rule.faults))
        else:
            known = f"code {_listed(rule.codes)}: {rule.text}"
        lines.append(f"| {known} | {rule.fault_class.name.lower()} |")
    lines.append(f"| any other code, or nothing | {FaultClass.UNKNOWN.name.lower()} |")
    return "\n".join(lines) + "\n"
