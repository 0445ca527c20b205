"""Creates a control group for each rank where this machine allows that. It ends all processes of a
rank at once and limits their number (version 2), and limits memory and CPU (version 2 or 1).

Version 2 has two rules that shape the tree. A group has the controllers that its parent enables
(``cgroup.subtree_control``), and a group with processes of its own cannot enable memory. So the
nodes' groups are not made below the group that the platform itself is in, but beside it:

    BASE                        enables memory, cpu, pids; has no processes
    BASE/shiftwork-services     the platform
    BASE/NODE                   enables the same
    BASE/NODE/RUN.RANK          a rank

systemd prepares this for a unit with ``Delegate=`` and ``DelegateSubgroup=shiftwork-services``. At
the top of a container, which no other program manages, the processes that are there are moved into
``shiftwork-services``. A unit's group is left as it is: systemd could not start the unit again in a
group that enables memory while ranks of its former life run there.

Used by ``ranks.py``. ``warnings`` lists what is not available, for ``doctor`` and the
node's labels; ranks then run without limits and are ended by process group and descent.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Collection
from dataclasses import dataclass, field

CPU_PERIOD_US, CPU_QUOTA_US_MIN = 100_000, 1_000
SERVICES = "shiftwork-services"
# systemd sets one of these attributes on a delegated group.
DELEGATED = ("user.delegate", "trusted.delegate")
# Processes that start while others are moved are moved in the next round.
MOVE_ROUNDS = 5


@dataclass
class Cgroups:
    """The folders in which this node's groups are made; empty where there is none."""

    name: str
    unified: str = ""
    memory: str = ""
    cpu: str = ""
    # Whether the unified hierarchy has the controllers itself.
    unified_limits: bool = False
    # Processes and threads of one rank; 0: not limited.
    pids_max: int = 0
    # The same number, where no group can limit it: of all processes of a rank's user together
    # (RLIMIT_NPROC). 0: there is no need.
    user_pids_max: int = 0
    warnings: list[str] = field(default_factory=list[str])

    @property
    def can_limit(self) -> bool:
        """Whether CPU and memory limits are enforced."""
        return self.unified_limits or bool(self.memory and self.cpu)

    def create(self, rank: str, cpus: float | None, memory_bytes: int | None) -> list[str]:
        """Make a rank's groups with its limits; returns those that its process has to join. The
        node's own groups, which other programs can remove while they are empty, are made
        again where they are gone."""
        try:
            return self._create(rank, cpus, memory_bytes)
        except FileNotFoundError:
            vars(self).update(vars(find(self.name, self.pids_max or self.user_pids_max)))
            return self._create(rank, cpus, memory_bytes)

    def _create(self, rank: str, cpus: float | None, memory_bytes: int | None) -> list[str]:
        """A version 1 hierarchy is used only for a limit, because joining costs time."""
        found = [f"{self.unified}/{rank}"] if self.unified else []
        if memory_bytes is not None:
            root = self.unified if self.unified_limits else self.memory
            name = "memory.max" if self.unified_limits else "memory.limit_in_bytes"
            found += _limited(root, rank, name, str(memory_bytes))
        if cpus is not None:
            quota = max(CPU_QUOTA_US_MIN, int(cpus * CPU_PERIOD_US))
            root = self.unified if self.unified_limits else self.cpu
            name = "cpu.max" if self.unified_limits else "cpu.cfs_quota_us"
            text = f"{quota} {CPU_PERIOD_US}" if self.unified_limits else str(quota)
            found += _limited(root, rank, name, text)
        for folder in found:
            _mkdir(folder)
        if self.pids_max:
            _write(f"{self.unified}/{rank}/pids.max", str(self.pids_max))
        return list(dict.fromkeys(found))

    def join(self, folders: list[str], pid: int) -> None:
        """Put a process, and all that it will start, into its rank's groups."""
        for folder in folders:
            _write(f"{folder}/cgroup.procs", str(pid))

    def kill(self, rank: str) -> None:
        """SIGKILL to everything in the group (version 2 only)."""
        if self.unified:
            with contextlib.suppress(OSError):
                _write(f"{self.unified}/{rank}/cgroup.kill", "1")

    def populated(self, rank: str) -> bool | None:
        """Whether any process is left in the group; None if that cannot be known here."""
        if not self.unified:
            return None
        try:
            return "populated 1" in _read(f"{self.unified}/{rank}/cgroup.events")
        except OSError:
            return None

    def ran_out_of_memory(self, rank: str) -> bool:
        """Whether the kernel ended a process of the group at its memory limit."""
        root, name = (
            (self.unified, "memory.events")
            if self.unified_limits
            else (self.memory, "memory.oom_control")
        )
        try:
            lines = [line.split() for line in _read(f"{root}/{rank}/{name}").splitlines()]
        except OSError:
            return False
        return any(line[0] == "oom_kill" and line[1] != "0" for line in lines)

    def remove(self, rank: str) -> None:
        """Remove the rank's empty group."""
        for root in {self.unified, self.memory, self.cpu} - {""}:
            with contextlib.suppress(OSError):
                os.rmdir(f"{root}/{rank}")  # noqa: PTH106 - as above

    def sweep(self, ranks: Collection[str]) -> None:
        """Remove the empty groups of other ranks, which a killed supervisor left."""
        for root in {self.unified, self.memory, self.cpu} - {""}:
            with contextlib.suppress(OSError):
                left = [entry.name for entry in os.scandir(root) if entry.is_dir()]
                for rank in left:
                    if rank not in ranks:
                        self.remove(rank)

    def close(self) -> None:
        """Remove the node's own folders if they are empty."""
        for root in {self.unified, self.memory, self.cpu} - {""}:
            with contextlib.suppress(OSError):
                os.rmdir(root)  # noqa: PTH106 - as above


def name_of(folder: str, file: int) -> str:
    """The name of a node's groups, by an open file of its folder: the same for its next supervisor,
    and no other node's, also not one of another platform on this machine."""
    found = os.fstat(file)
    node = os.path.basename(folder)  # noqa: PTH119 - small imports
    return f"shiftwork-{node}-{found.st_dev:x}-{found.st_ino}"


def find(name: str, pids_max: int = 0, *, probe: bool = False) -> Cgroups:
    """Find the control groups that this machine offers, and create the node's folders. With
    ``probe`` no process is moved: limits count as enforced if moving would suffice."""
    found = Cgroups(name)
    mounts, own = _mounts(), _own()
    if "" in mounts and "" in own:
        base = _base(mounts[""], own[""])
        found.unified = _make(base, name, ("cgroup.kill",))
        if found.unified:
            may_move = base == mounts[""]
            handed = [
                control
                for control in ("memory", "cpu", "pids")
                if _hand_down(control, base, found.unified, may_move=may_move, probe=probe)
            ]
            found.unified_limits = {"memory", "cpu"} <= set(handed)
            found.pids_max = pids_max if "pids" in handed else 0
    found.user_pids_max = 0 if found.pids_max else pids_max
    if not found.unified_limits:
        for controller, file in (("memory", "memory.limit_in_bytes"), ("cpu", "cpu.cfs_quota_us")):
            if controller in mounts and controller in own:
                base = mounts[controller] + own[controller].rstrip("/")
                setattr(found, controller, _make(base, name, (file,)))
    if not found.unified:
        found.warnings.append(
            "no writable control group (version 2): a rank's processes are found by group and"
            " descent, so one that hides its descent may outlive it"
        )
    if not found.can_limit:
        found.warnings.append(
            "no writable memory and cpu control groups: CPU and memory limits of tasks are not"
            " enforced; run as the systemd unit that docs/operations.md shows"
        )
    return found


def _make(base: str, name: str, needs: tuple[str, ...]) -> str:
    folder = f"{base}/{name}"
    try:
        _mkdir(folder)
        # Made, but of no use if we may not move processes into it.
        usable = all(os.access(f"{folder}/{file}", os.W_OK) for file in ("cgroup.procs", *needs))
    except OSError:
        return ""
    if not usable or not os.access(f"{base}/cgroup.procs", os.W_OK):
        with contextlib.suppress(OSError):
            os.rmdir(folder)  # noqa: PTH106 - as above
        return ""
    return folder


def _base(mount: str, own: str) -> str:
    """Below which group the nodes' groups are made: our own, or the one above it if our own is the
    one of the platform's processes."""
    path = mount + own.rstrip("/")
    above = os.path.dirname(path)  # noqa: PTH120 - small imports
    if path != mount and (os.path.basename(path) == SERVICES or _is_delegated(above)):  # noqa: PTH119 - as above
        return above
    return path


def _is_delegated(folder: str) -> bool:
    for name in DELEGATED:
        with contextlib.suppress(OSError):
            if os.getxattr(folder, name) == b"1":
                return True
    return False


def _hand_down(control: str, base: str, folder: str, *, may_move: bool, probe: bool) -> bool:
    """Give a controller to the ranks' groups below ``folder``, which is itself below ``base``."""
    try:
        if control not in _read(f"{base}/cgroup.controllers").split():
            return False
        if control not in _read(f"{folder}/cgroup.controllers").split():
            _enable(control, base, may_move=may_move and not probe)
        _write(f"{folder}/cgroup.subtree_control", f"+{control}")
    except OSError as error:
        return probe and may_move and error.errno == errno.EBUSY
    return True


def _enable(control: str, base: str, *, may_move: bool) -> None:
    """Hand a controller to the groups below; OSError if that cannot be."""
    for _ in range(MOVE_ROUNDS):
        try:
            _write(f"{base}/cgroup.subtree_control", f"+{control}")
        except OSError as error:
            if error.errno != errno.EBUSY or not may_move:
                raise
            _move_processes(base)
        else:
            return
    raise OSError(errno.EBUSY, f"processes come into {base} all the time")


def _move_processes(base: str) -> None:
    """Empty a group of processes: those that are gone, or not ours to move, stay behind."""
    _mkdir(f"{base}/{SERVICES}")
    for pid in _read(f"{base}/cgroup.procs").split():
        with contextlib.suppress(OSError):
            _write(f"{base}/{SERVICES}/cgroup.procs", pid)


def _mounts() -> dict[str, str]:
    """Mount point by controller; the unified hierarchy is the empty name."""
    found: dict[str, str] = {}
    with open("/proc/self/mounts", encoding="utf-8") as file:  # noqa: PTH123 - as above
        for line in file:
            _, where, kind, options, *_ = line.split()
            if kind == "cgroup2":
                found.setdefault("", where)
            elif kind == "cgroup":
                found |= dict.fromkeys(options.split(","), where)
    return found


def _own() -> dict[str, str]:
    """Our own group's path by controller."""
    found: dict[str, str] = {}
    with open("/proc/self/cgroup", encoding="utf-8") as file:  # noqa: PTH123 - as above
        for line in file:
            _, controllers, path = line.rstrip("\n").split(":", 2)
            found |= dict.fromkeys(controllers.split(","), path)
    return found


def _limited(root: str, rank: str, name: str, text: str) -> list[str]:
    """Set one limit of a rank's group, where this machine has it."""
    if not root:
        return []
    _mkdir(f"{root}/{rank}")
    _write(f"{root}/{rank}/{name}", text)
    return [f"{root}/{rank}"]


def _mkdir(folder: str) -> None:
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder)  # noqa: PTH102 - small imports


def _read(path: str) -> str:
    with open(path, encoding="ascii") as file:  # noqa: PTH123 - as above
        return file.read()


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:  # noqa: PTH123 - as above
        file.write(text)
