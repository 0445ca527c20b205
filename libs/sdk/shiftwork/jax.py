"""A JAX loop that saves with Orbax and leaves when asked.

    checkpoints = shiftwork.jax.Checkpoints("out")
    start, state = checkpoints.resume(state)
    for step in range(start, steps):
        state = train_step(state, batch_of(step))
        checkpoints.leave_if_asked(step + 1, state)

``state`` is any pytree: weights, optimizer state, PRNG keys. With ``data=iterator`` in both calls
the place in the data is saved, too. The same on one process and on many (``jax.distributed``).
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Callable, Protocol, TypeVar

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import shiftwork
from shiftwork import durable, folders, training

__all__ = ["Checkpoints", "initialize"]

State = TypeVar("State")


class Data(Protocol):
    """A data iterator that knows its place, as those of Grain: bytes, or what JSON can hold."""

    def get_state(self) -> Any:  # noqa: ANN401 - the iterator's own
        """The place in the data, of this process."""
        ...

    def set_state(self, state: Any, /) -> None:  # noqa: ANN401 - the iterator's own
        """Go on from there."""
        ...


def initialize(**options: Any) -> None:  # noqa: ANN401 - jax.distributed.initialize names them
    """Join the other processes of the task; nothing for a process alone.

    Reads the address of rank 0 as the platform sets it under the contract coordinator or torch,
    and the rank. Call it before any other call of JAX. ``options`` go to
    ``jax.distributed.initialize``.
    """
    if shiftwork.world_size() > 1:
        if "COORDINATOR_ADDRESS" in os.environ:
            names = ("COORDINATOR_ADDRESS", "COORDINATOR_PORT")
        else:
            names = ("MASTER_ADDR", "MASTER_PORT")
        address = ":".join(os.environ[name] for name in names)
        jax.distributed.initialize(address, shiftwork.world_size(), shiftwork.rank(), **options)


class Checkpoints:
    """Saves, resumes and leaves, at the same step on every process.

    Args:
        folder: where checkpoints lie; every process of every node must find it there.
        every: the processes ask one another at every such step. With more than one process the
            answer of one question is read at the next, so that none waits for the others: the
            processes leave at most twice ``every`` steps after the request.
        keep: how many stored checkpoints stay; older ones are removed.
    """

    def __init__(self, folder: str | os.PathLike[str], *, every: int = 1, keep: int = 2) -> None:
        if "://" in str(folder):
            raise ValueError(f"folder: {folder} is not a path; mount it, and give the path")
        for name, value in (("every", every), ("keep", keep)):
            if value < 1:
                raise ValueError(f"{name}: {value} must be 1 or more")
        if jax.process_count() == 1 and shiftwork.world_size() > 1:
            raise RuntimeError(
                f"this task has {shiftwork.world_size()} ranks, but JAX sees one process: "
                "call shiftwork.jax.initialize() before any other call of JAX"
            )
        self._folder = Path(folder).resolve()
        self._every = every
        self._keep = keep
        self._any_process = _any_process()

    def resume(self, state: State, data: Data | None = None) -> tuple[int, State]:
        """Steps done and state of the stored checkpoint; 0 and ``state`` itself at the first start.

        The state is restored onto the devices and shardings of the one given.

        Raises:
            FileNotFoundError: the checkpoint is not there.
            ValueError: it is not what was saved, holds other leaves than ``state``, or is of
                another task or number of processes.
        """
        found = shiftwork.resume_from()
        if found is None:
            return 0, state
        path = folders.stored(found)
        leaves, tree = jax.tree.flatten(state)
        own = _own(path)
        _check_names(own["names"].tolist(), _names(state), path)
        if data is not None:
            data.set_state(_data_place(own, path))
        abstract = {
            str(number): None if _local(leaf) else ocp.utils.to_shape_dtype_struct(leaf)
            for number, leaf in enumerate(leaves)
        }
        with ocp.Checkpointer(ocp.StandardCheckpointHandler()) as orbax:
            shared = orbax.restore(path / "state", args=ocp.args.StandardRestore(abstract))
        restored = [
            _from_numpy(leaf, own[str(number)]) if _local(leaf) else shared[str(number)]
            for number, leaf in enumerate(leaves)
        ]
        return found.step, jax.tree.unflatten(tree, restored)

    def leave_if_asked(self, step: int, state: Any, data: Data | None = None) -> None:  # noqa: ANN401
        """Save, acknowledge and end the process with code 75, if the platform has requested that.

        Call it after every step, on every process, with the number of steps done.

        Raises:
            shiftwork.Superseded: this attempt is no longer the live one; stop.
        """
        if step % self._every == 0 and shiftwork.should_preempt(self._any_process):
            self.save(step, state, data)
            raise SystemExit(training.PREEMPTED_EXIT_CODE)

    def save(self, step: int, state: Any, data: Data | None = None) -> None:  # noqa: ANN401
        """Save now, on every process; returns when the platform has stored that.

        Call it regularly: a node that dies then costs the steps since the last save.
        """
        path = _new_folder(self._folder, step)
        leaves = jax.tree.leaves(state)
        own: dict[str, Any] = {
            str(n): _to_numpy(leaf) for n, leaf in enumerate(leaves) if _local(leaf)
        }
        own["names"] = np.array(_names(state), dtype=str)
        if data is not None:
            own.update(_data_arrays(data.get_state()))
        np.savez(_own_file(path, jax.process_index()), **own)
        shared = {str(n): None if _local(leaf) else leaf for n, leaf in enumerate(leaves)}
        with ocp.Checkpointer(ocp.StandardCheckpointHandler()) as orbax:
            orbax.save(path / "state", args=ocp.args.StandardSave(shared))
        durable.sync(path)
        _acknowledge(step, path)
        if jax.process_index() == 0:
            folders.prune(path, self._keep)


def _new_folder(folder: Path, step: int) -> Path:
    """The folder that process 0 has chosen, on every process."""
    step = training.step_number(step)  # here, as process 0 alone would leave the others waiting
    again = folders.new(folder, step)[1] if jax.process_index() == 0 else 0
    again = int(multihost_utils.broadcast_one_to_all(np.int32(again)))
    return folders.path_of(folder, step, again)


def _any_process() -> Callable[[bool], bool]:
    """Returns whether any process voted yes. Each call returns the result of the call before, so
    that no process waits."""
    if jax.process_count() == 1:
        return bool
    firsts = {device.process_index: device for device in reversed(jax.devices())}
    mesh = Mesh(np.array([firsts[process] for process in sorted(firsts)]), ("process",))
    each = NamedSharding(mesh, PartitionSpec("process"))
    any_of = jax.jit(lambda flags: flags.any(), out_shardings=NamedSharding(mesh, PartitionSpec()))
    pending: list[jax.Array] = []

    def ask(mine: bool) -> bool:
        flags = jax.make_array_from_process_local_data(each, np.array([mine]))
        pending.append(any_of(flags))
        return len(pending) > 1 and bool(pending.pop(0))

    return ask


def _acknowledge(step: int, path: Path) -> None:
    """Process 0 acknowledges the checkpoint for all; every process gets the outcome."""
    multihost_utils.sync_global_devices(f"shiftwork saved {path.name}")
    problem: Exception | None = None
    if jax.process_index() == 0:
        try:
            shiftwork.checkpoint_saved(step, str(path), folders.seal(path, step))
        except Exception as error:  # noqa: BLE001 - raised below, on every process
            problem = error
    kind = 0 if problem is None else 1 + isinstance(problem, shiftwork.Superseded)
    outcome = int(multihost_utils.broadcast_one_to_all(np.int32(kind)))
    if problem is not None:
        raise problem
    if outcome:
        error = shiftwork.Superseded if outcome > 1 else ValueError
        raise error("process 0 could not acknowledge the checkpoint: see its output")


def _local(leaf: Any) -> bool:  # noqa: ANN401 - any leaf
    """True for what each process has by itself: Orbax saves arrays that span processes."""
    if jax.process_count() == 1:
        return False
    return not (isinstance(leaf, jax.Array) and not leaf.is_fully_addressable)


def _is_key(leaf: Any) -> bool:  # noqa: ANN401 - any leaf
    return isinstance(leaf, jax.Array) and jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _to_numpy(leaf: Any) -> np.ndarray[Any, Any]:  # noqa: ANN401 - any leaf
    return np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)


def _from_numpy(leaf: Any, held: np.ndarray[Any, Any]) -> Any:  # noqa: ANN401 - any leaf
    """What was saved, as the leaf is: a key, an array on its device, a NumPy array or a number."""
    if _is_key(leaf):
        key = jax.random.wrap_key_data(jax.numpy.asarray(held), impl=jax.random.key_impl(leaf))
        return jax.device_put(key, leaf.sharding)
    if isinstance(leaf, (jax.Array, np.ndarray)):
        # NumPy's files do not know bfloat16 and its like by name.
        held = held.view(leaf.dtype) if held.dtype.kind == "V" else held
        return jax.device_put(held, leaf.sharding) if isinstance(leaf, jax.Array) else held
    return type(leaf)(held.item())


def _own_file(path: Path, process: int) -> Path:
    """What one process alone holds: its leaves, and its place in the data."""
    return path / f"process-{process}-of-{jax.process_count()}.npz"


def _own(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    file = _own_file(path, jax.process_index())
    if not file.exists():
        raise ValueError(
            f"the checkpoint {path} is of another number of processes than {jax.process_count()}"
        )
    with np.load(file) as held:
        return dict(held)


def _names(state: Any) -> list[str]:  # noqa: ANN401 - any pytree
    found, _ = jax.tree_util.tree_flatten_with_path(state)
    return [jax.tree_util.keystr(name) for name, _ in found]


def _check_names(held: list[str], wanted: list[str], path: Path) -> None:
    if held != wanted:
        only = sorted(set(held) ^ set(wanted)) or wanted
        side = "only in the checkpoint" if only[0] in held else "missing from the checkpoint"
        raise ValueError(f"state{only[0]} is {side} {path}: resume with the state that was saved")


def _data_arrays(place: Any) -> dict[str, np.ndarray[Any, Any]]:  # noqa: ANN401 - the iterator's
    if isinstance(place, bytes):
        return {"data.bytes": np.frombuffer(place, np.uint8)}
    return {"data.json": np.array(json.dumps(place))}


def _data_place(own: dict[str, np.ndarray[Any, Any]], path: Path) -> Any:  # noqa: ANN401 - the iterator's own
    if "data.bytes" in own:
        return own["data.bytes"].tobytes()
    if "data.json" in own:
        return json.loads(own["data.json"].item())
    raise ValueError(f"data: the checkpoint {path} was saved without one")
