"""What an answer of the API server to a launch means: never, not now, or somebody else's name.
Pure; used by ``runtime.py``. The classes are those of ``domain/pod_ends.py``.
"""

from __future__ import annotations

from services.launcher.domain.model import Fault
from services.launcher.domain.pod_ends import sentence
from services.launcher.runtimes.kubernetes.client import CONFLICT, FORBIDDEN, ApiError
from services.launcher.runtimes.kubernetes.fence import told
from services.launcher.runtimes.port import LaunchRefusedError, RuntimeUnavailableError

INVALID = (400, 413, 415, 422)
# In the server's words: the launcher's own rights, and what will be made or is being taken down.
NOT_NOW = (
    "cannot create resource",
    "is being terminated",
    "error looking up service account",
    "no api token found for service account",
    "not yet ready to handle request",
)
QUOTA = "exceeded quota"


def refusal(
    problem: ApiError, what: str, namespace: str
) -> LaunchRefusedError | RuntimeUnavailableError:
    """The error to raise after creating ``what`` (kind and name) was refused."""
    words = f"{what}: {problem.message}"
    if problem.status in INVALID:
        return _refused(Fault.INVALID_POD, words)
    if problem.status == CONFLICT:
        return _refused(Fault.NAME_TAKEN, words)
    if problem.status == FORBIDDEN and not any(sign in problem.message for sign in NOT_NOW):
        over = QUOTA in problem.message
        return _refused(Fault.OVER_QUOTA if over else Fault.NOT_ADMITTED, words)
    return told(problem, namespace)


def name_taken(what: str) -> LaunchRefusedError:
    """Somebody else's object has the name."""
    return _refused(Fault.NAME_TAKEN, f"{what} is not of this run")


def _refused(fault: Fault, words: str) -> LaunchRefusedError:
    return LaunchRefusedError(fault, sentence(fault, words))
