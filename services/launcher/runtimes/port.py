"""The interface to what runs ranks. Adapters: ``process`` (this machine),
``kubernetes`` (pods), ``fake`` (the simulation). ``tests/contract/test_runtime.py`` holds every
adapter to this.

Each call may be repeated: the run's id is its name, so a second launch finds the first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from libs.contracts.ids import RunId
from libs.contracts.messages import ReadyProbe, TaskSpec
from services.launcher.domain.model import Fault, Listing, Refused


class RuntimeUnavailableError(Exception):
    """A node or the runtime could not do it now. The caller tries again later."""


class StartFailedError(RuntimeUnavailableError):
    """Nodes that answer could not start a run now. The caller tries again later."""

    def __init__(self, node_ids: frozenset[str], text: str) -> None:
        super().__init__(text)
        self.node_ids = node_ids


class RuntimeDeniedError(Exception):
    """A newer leader commands this runtime, or the run was ended before it began."""


def way_back(epoch: int) -> str:
    """How to recover when nodes or the cluster obey a later epoch than the launcher's."""
    return (
        "if this platform's database was restored from a backup and no other launcher runs:"
        f" python -m services.launcher.raise_epoch {epoch}"
    )


class LaunchRefusedError(Exception):
    """This run can never start as ordered. What exists of it has to be ended."""

    def __init__(self, fault: Fault, text: str) -> None:
        super().__init__(text)
        self.refused = Refused(fault, text)


@dataclass(frozen=True, slots=True)
class RankOrder:
    """One rank, complete: the runtime chooses nothing."""

    rank: int
    node_id: str
    argv: tuple[str, ...]
    # The whole environment; the runtime inherits nothing into it. SHIFTWORK_CONTEXT and
    # CUDA_VISIBLE_DEVICES are filled in by the runtime, which knows paths and devices.
    env: Mapping[str, str]
    gpus: tuple[int, ...]
    # Empty: the run's own folder.
    cwd: str
    # Content of the context file, which only the task may read.
    context: str
    # Its limits; None: as much as there is.
    cpus: float | None = None
    memory_bytes: int | None = None
    # What it is planned with; None: its limits.
    cpus_request: float | None = None
    memory_request_bytes: int | None = None
    role: str = ""
    # argv are arguments of the program that its image names. A runtime without images refuses it.
    of_image: bool = False
    # Files of the task's contract, which lie beside the context file, and variables whose values
    # are their paths. The runtime knows the folder.
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    paths: Mapping[str, str] = field(default_factory=dict[str, str])
    # The ports that its role declares, by name.
    ports: Mapping[str, int] = field(default_factory=dict[str, int])
    # How often the rank was restarted in place before; a runtime lists it with the process.
    start: int = 0
    # A line for people at the beginning of its output; empty: none.
    notice: str = ""
    # How a runtime with probes of its own learns that the rank is ready; None: it does not.
    ready: ReadyProbe | None = None
    # The variables in ``env`` whose values are secrets: the process runtime masks these in the
    # rank's output, log-collector in that of pods.
    secrets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RunOrder:
    """The ranks of a gang that start now: all of them, those of one role, or single ones."""

    run_id: RunId
    ranks: tuple[RankOrder, ...]
    # The owner and the submitted spec, from which a runtime with pods builds them.
    owner: str = ""
    team: str = ""
    spec: TaskSpec | None = None
    # The ports at which its ranks listen for each other.
    ports: tuple[int, ...] = ()
    # How many ranks the gang has; 0: those that start.
    world_size: int = 0
    # Builds the orders of the whole gang, which takes long for a large one; None: all start.
    build_gang: Callable[[], tuple[RankOrder, ...]] | None = field(
        default=None, compare=False, repr=False
    )
    # The roles of the gang whose programs their images name (``RankOrder.of_image``).
    image_roles: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """How many ranks the gang has."""
        return self.world_size or len(self.ranks)

    def gang(self) -> tuple[RankOrder, ...]:
        """The whole gang, for runtimes that keep something for all of its ranks together."""
        return self.ranks if self.build_gang is None else self.build_gang()


class Runtime(Protocol):
    """Runs the ranks of runs."""

    @property
    def name(self) -> str:
        """``process`` or ``kubernetes``; the simulation's has a name of its own."""
        ...

    @property
    def shares_ports(self) -> bool:
        """Whether ranks share this machine's ports, so that those of a gang are leased."""
        ...

    @property
    def probes(self) -> bool:
        """Whether the runtime itself probes the readiness of ranks, as kubelets do, and lists it;
        otherwise the launcher does."""
        ...

    async def lead(self, epoch: int) -> None:
        """Act for the leader of this epoch: orders of earlier ones are refused once this one has
        given an order or listed."""
        ...

    async def run(self) -> None:
        """Run the background work of this runtime until cancelled."""
        ...

    async def launch(self, order: RunOrder) -> None:
        """Order every rank to start that does not exist yet, or whose process with a lower start is
        over; returns when each is listed, running or pending. RuntimeDeniedError if the run was
        ended before it began, LaunchRefusedError if it can never start like this."""
        ...

    async def signal(self, run_id: RunId, node_ids: frozenset[str], signal: int) -> None:
        """Send a signal to each rank's main process that runs, once. RuntimeUnavailableError while
        ranks that were ordered are still to start: another try reaches those."""
        ...

    async def end(
        self,
        run_id: RunId,
        node_ids: frozenset[str],
        *,
        grace_seconds: float,
        ranks: frozenset[int] | None = None,
        asks: bool = False,
    ) -> None:
        """End everything of the run, or only these ranks; returns when every node has the order
        for good (a later launch of this run is refused). The listing shows when it is done. Where
        the runtime always asks before it kills (pods), processes have so long to leave; elsewhere
        they have it only if ``asks``, and are killed at once otherwise."""
        ...

    async def forget(self, run_id: RunId, node_ids: frozenset[str], *, keep: bool) -> None:
        """Drop the records of a run of which nothing runs. ``keep``: what people may
        want to inspect stays for a while, where the runtime has such a thing."""
        ...

    async def fence(self, node_id: str) -> None:
        """Make sure that nothing of earlier runs is left on a silent node, so that the listing can
        show them lost. RuntimeUnavailableError where that cannot be known."""
        ...

    async def list(self) -> Listing:
        """One full scan: every node (silent ones as not ready) and every run that they know.
        RuntimeUnavailableError while nothing is known yet."""
        ...

    def on_change(self, hint: Callable[[], None]) -> None:
        """Call ``hint`` when something may have changed. Some changes cause no hint."""
        ...

    async def close(self) -> None:
        """Close all connections. The runs continue."""
        ...
