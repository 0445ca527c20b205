"""Every way a plan can be wrong, as data."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Fault(Enum):
    """What can be wrong with a plan; the value is the text for people."""

    STALE = "the plan was made for another version of the tables"
    UNKNOWN_TASK = "a decision about a task that is not there"
    TWICE = "two decisions that move one task"
    ILLEGAL = "the transition is not in the table"
    WRONG_ATTEMPT = "the attempt is not the next one, or not the live one"
    TWO_LIVE = "a new attempt while the exit of another is not observed"
    NOT_WANTED = "a start against the owner's goal"
    TOO_EARLY = "a start before the retry time"
    WRONG_CHECKPOINT = "the run would not start from the last saved checkpoint"
    DEADLINE = "a deadline that is not in the future"
    GANG = "the placements are not exactly the ranks of the gang, each with what is its own"
    NODE = "a node that is unknown, not ready, cordoned or of another group"
    GPU = "a GPU that the node does not have or that must not be used"
    NOT_SUITING = "a node without a label that is selected, or with a taint that is not tolerated"
    CROSSING = "more gangs than may would span more than one of the largest domains"
    NOT_FREE = "capacity that was not observed free"
    TOO_FULL = "more CPU or memory than the node offers beside what others have of it"
    QUOTA = "a limit would be broken"
    VICTIM_NOT_LOWER = "a victim that is not strictly lower than the task it makes room for"
    VICTIM_PROTECTED = "a victim that has not run its protected minimum"
    VICTIM_NOT_LATER = "a victim that comes before the task whose turn it is said to be"
    NO_SLICES = "a slice end where the discipline has no slices"
    NO_BENEFICIARY = "a victim for a task that does not wait or was promised nothing"
    LEVEL_ROSE = "a level that rises by itself"
    PROMISED = "capacity that is promised to another task, or that nobody leaves"
    CLUSTER = "a virtual cluster would hold more than it may"
    NOT_DRAINED = "a run is sent away from a node that is not being drained"
    NOT_EXPIRED = "a deadline is said to have passed that has not"
    HASTY_REJECT = "a rejection without a full inventory, or of a task that once fitted"
    RAISED = "deciding, checking or carrying out failed with an error"
    UNEXPLAINED = "a queued task without a reason"


@dataclass(frozen=True, slots=True)
class Violation:
    """One fault, and where."""

    fault: Fault
    task_id: str = ""
    detail: str = ""
    # The node group that it concerns; empty: that of the task, or the plan as a whole.
    group: str = ""

    def __str__(self) -> str:
        return f"{self.fault.name} {self.task_id}: {self.fault.value} {self.detail}".rstrip()
