"""PyTorch: leave together, save together, resume to the bit. See docs/frameworks.md.

    guard = shiftwork.torch.Preemption()
    loader = shiftwork.torch.DataLoader(dataset, batch_size=32, shuffle=True)
    checkpoints = shiftwork.torch.Checkpoints("out", model=model, optimizer=adam, loader=loader)
    step = checkpoints.load()
    for epoch in range(loader.epoch, epochs):
        for batch in loader:
            ...
            step += 1
            if guard.should_leave(step):
                checkpoints.save(step)
                shiftwork.torch.exit_preempted()

Ranks talk through the store of the default process group (torchrun's, or rank 0's), never through
collectives: it is the same with gloo, NCCL and any other backend, costs nothing on a device, and
cannot get in the way of the program's own collectives.
"""

from __future__ import annotations

import atexit
import json
import os
import random
import sys
import threading
import time
from itertools import islice
from math import inf
from pathlib import Path
from typing import Any, Iterator, NoReturn

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch.utils import data

import shiftwork
from shiftwork import durable, folders, training

__all__ = [
    "Checkpoints",
    "DataLoader",
    "Preemption",
    "acknowledge",
    "exit_preempted",
    "gather",
    "restore_rng_state",
    "rng_state",
]

# How often a rank checks for the request: in its own memory, and in the store (where another rank
# may have recorded it).
REQUEST_SECONDS = 0.1
STORE_SECONDS = 1.0
WARN_AFTER_SECONDS = 10.0
_PAUSE_SECONDS_MIN, _PAUSE_SECONDS_MAX = 0.001, 0.05
_REQUESTED = "asked"
_ENDED = b"ended"
# The folder, in a checkpoint, of what torch.distributed.checkpoint writes.
_SHARDED = "sharded"
# Under this name the states of a rank's generators are saved beside its parts.
_RNG = "rng"
RESERVED = frozenset({_RNG})
"""Names that no part of ``Checkpoints`` may have."""


class _Ranks:
    """All ranks of the default process group, by its store. One per group and process."""

    def __init__(self, group: object, store: Any, rank: int, count: int) -> None:  # noqa: ANN401
        self.group, self.store, self.rank, self.count = group, store, rank, count
        self._exchanges = 0

    @staticmethod
    def alone() -> _Ranks:
        return _Ranks(None, None, 0, 1)

    def gather(self, value: bytes, what: str) -> list[bytes]:
        """Every rank's value, in the order of ranks. Every rank must call it, in the same order."""
        if self.count == 1:
            return [value]
        number, self._exchanges = self._exchanges, self._exchanges + 1
        self.store.set(f"{number}/{self.rank}", value)
        # Whoever is here has read all of the exchange before the last one.
        if number > 1:
            self.store.delete_key(f"{number - 2}/{self.rank}")
        return self.read(str(number), what)

    def share(self, value: bytes | None, what: str) -> bytes:
        """Rank 0's value, on every rank."""
        return self.gather(value or b"", what)[0]

    def read(self, name: str, what: str, stop: threading.Event | None = None) -> list[bytes]:
        """Wait until every rank has set ``name/RANK``; empty if stopped.

        Reports on stderr which ranks it waits for.
        """
        keys = [f"{name}/{rank}" for rank in range(self.count)]
        pause, warn_at = _PAUSE_SECONDS_MIN, time.monotonic() + WARN_AFTER_SECONDS
        stop = stop or threading.Event()
        # Not store.wait: it keeps all else in this process from the store.
        while not self.store.check(keys):
            if stop.wait(pause):
                return []
            pause = min(2 * pause, _PAUSE_SECONDS_MAX)
            if time.monotonic() >= warn_at:
                warn_at = inf
                late = [rank for rank, key in enumerate(keys) if not self.store.check([key])]
                _warn(f"rank {self.rank} waits for {_listed(late)} {what}")
        return [self.store.get(key) for key in keys]


_known: _Ranks | None = None
_groups = 0
_requested_and_acknowledged = False


def _ranks() -> _Ranks:
    global _known, _groups  # noqa: PLW0603 - the process has one default group at a time
    if not (dist.is_available() and dist.is_initialized()):
        return _Ranks.alone()
    group = dist.group.WORLD
    if _known is None or _known.group is not group:
        if dist.get_world_size() == 1:
            return _Ranks.alone()
        # The next group may have the same store, with what the one before has left in it.
        _groups += 1
        store = c10d.PrefixStore(f"shiftwork/{_groups}", c10d._get_default_store())  # noqa: SLF001
        _known = _Ranks(group, store, dist.get_rank(), dist.get_world_size())
    return _known


def _place() -> tuple[int, int]:
    """How many ranks there are, and which this is."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size(), dist.get_rank()
    return 1, 0


class Preemption:
    """Makes all ranks leave at the same step, without a synchronisation at each step.

    Each rank receives the request by itself, perhaps steps apart. The first one records it in the
    store. Every rank then publishes, from a thread, the step after the one of its last check; all
    leave at the largest of these. A rank that checks again while a step is missing waits for it,
    once per preemption and for about a tenth of a second.

    Make it on every rank, in the main thread. ``step`` is any counter that has the same value on
    all ranks: of optimizer steps, or of batches if gradients are not accumulated.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._step = -1
        self._published = False
        self._decided = threading.Event()
        # The step to leave at; infinite: a rank has ended, so that the others go on to their ends.
        self._leave_at = inf
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        shiftwork.should_preempt()  # from here on, SIGTERM is a request to leave

    def should_leave(self, step: int) -> bool:
        """True on every rank at the same step: save and leave. Ask after every (optimizer) step."""
        if self._thread is None and not self._begin():
            return shiftwork.should_preempt()
        with self._lock:
            self._step = step
            if not self._published:
                return False
        self._decided.wait()
        return step >= self._leave_at

    def _begin(self) -> bool:
        """Start the thread; False for a rank that is alone."""
        shiftwork.should_preempt()
        ranks = _ranks()
        if ranks.count == 1:
            return False
        self._thread = threading.Thread(
            target=self._agree, args=(ranks,), name="shiftwork-agree", daemon=True
        )
        self._thread.start()
        atexit.register(self._close)
        return True

    def _agree(self, ranks: _Ranks) -> None:
        requested = self._await_request(ranks)
        with self._lock:
            self._published = True
            own = str(self._step + 1).encode() if requested else _ENDED
        try:
            ranks.store.set(f"leave/{ranks.rank}", own)
            if requested:
                ranks.store.set(_REQUESTED, b"1")
                steps = ranks.read("leave", "to report their step", self._closing)
                if steps and _ENDED not in steps:
                    self._leave_at = max(map(int, steps))
        except RuntimeError as error:
            if requested:
                _warn(f"rank {ranks.rank} cannot agree with the others on when to leave: {error}")
        self._decided.set()

    def _await_request(self, ranks: _Ranks) -> bool:
        """True at the request, False at the end of the program."""
        check_at = time.monotonic() + STORE_SECONDS
        while not self._closing.wait(REQUEST_SECONDS):
            if shiftwork.should_preempt():
                return True
            if time.monotonic() >= check_at:
                check_at = time.monotonic() + STORE_SECONDS
                try:
                    if ranks.store.check([_REQUESTED]):
                        return True
                except RuntimeError:  # its host has ended, as it does at the end of the program
                    check_at = inf
        return False

    def _close(self) -> None:
        self._closing.set()
        if self._thread is not None:
            self._thread.join(1.0)


def gather(value: bytes) -> list[bytes]:
    """Every rank's value, in the order of ranks, on every rank; for kilobytes, not for weights.

    Every rank must call it. Through the store: on no device, with any backend.
    """
    return _ranks().gather(value, "to hand something over")


def new_folder(folder: Path, step: int) -> Path:
    """The same new folder for a checkpoint, on every rank; for the adapters.

    Raises on every rank, before anything is made: TypeError or ValueError for a step that is none,
    and ValueError if the ranks are at different steps.
    """
    ranks = _ranks()
    _agree_on_step(ranks, step)
    chosen = str(folders.new(folder, step)[0]).encode() if ranks.rank == 0 else None
    return Path(ranks.share(chosen, "to begin the checkpoint").decode())


def _agree_on_step(ranks: _Ranks, step: int) -> None:
    own: int | str
    problem: Exception | None = None
    try:
        own = training.step_number(step)
    except (TypeError, ValueError) as error:
        own, problem = str(error), error
    gathered = ranks.gather(json.dumps(own).encode(), "to begin the checkpoint")
    if problem is not None:
        raise problem
    steps: list[int | str] = [json.loads(each) for each in gathered]
    refused = [f"rank {rank}: {each}" for rank, each in enumerate(steps) if isinstance(each, str)]
    if refused:
        raise ValueError(refused[0])
    other = next((rank for rank, each in enumerate(steps) if each != steps[0]), None)
    if other is not None:
        raise ValueError(
            f"rank 0 saves step {steps[0]}, but rank {other} saves step {steps[other]}: "
            "all ranks must save the same step"
        )


def acknowledge(step: int, uri: str, digest: str | None = None) -> None:
    """Every rank calls this when its part of the checkpoint is durable.

    Rank 0 then calls ``shiftwork.checkpoint_saved`` with its arguments (those of the others count
    for nothing), and the call returns on every rank when the platform has stored it.

    Raises on every rank: Superseded, or ValueError if the platform refuses the checkpoint.
    """
    global _requested_and_acknowledged  # noqa: PLW0603 - of this process
    ranks = _ranks()
    requested = training.requested_by_platform()
    flags = ranks.gather(
        b"1" if requested else b"", "to finish writing their part of the checkpoint"
    )
    problem: Exception | None = None
    if ranks.rank == 0:
        try:
            shiftwork.checkpoint_saved(step, uri, digest)
        except Exception as error:  # noqa: BLE001 - raised below, on every rank
            problem = error
    outcome = [isinstance(problem, shiftwork.Superseded), str(problem)] if problem else None
    shared: Any = json.loads(
        ranks.share(json.dumps(outcome).encode(), "to acknowledge the checkpoint")
    )
    if problem is not None:
        raise problem
    if shared:
        raise (shiftwork.Superseded if shared[0] else ValueError)(shared[1])
    _requested_and_acknowledged = any(flags)


def exit_preempted() -> NoReturn:
    """Leave after ``acknowledge`` (or ``Checkpoints.save``), on every rank.

    Code 75, as ``shiftwork.exit_preempted``; but 0 under torchrun once a checkpoint is
    acknowledged after the platform's request: torchrun takes every other code for a failure, which
    it reports at length and, with ``--max-restarts``, answers by starting again.
    """
    if dist.is_available() and dist.is_initialized() and "nccl" in dist.get_backend_config():
        # All ranks are here and no operation is under way. NCCL warns if a group is not destroyed.
        dist.destroy_process_group()
    quiet = _requested_and_acknowledged and "TORCHELASTIC_RUN_ID" in os.environ
    raise SystemExit(0 if quiet else training.PREEMPTED_EXIT_CODE)


def rng_state() -> dict[str, Any]:
    """The state of this process's generators, in types that ``torch.load`` takes weights-only."""
    state: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state_all()
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        name, keys, *rest = numpy.random.get_state()
        state["numpy"] = (name, keys.tolist(), *rest)
    return state


def restore_rng_state(state: dict[str, Any]) -> None:
    """Undo ``rng_state``. Generators that this process does not have are left out."""
    random.setstate(state["python"])
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"])
    numpy: Any = sys.modules.get("numpy")
    if "numpy" in state and numpy is not None:
        numpy.random.set_state(state["numpy"])


class _Order(data.DistributedSampler):  # type: ignore[type-arg] - no such argument in older PyTorch
    """This rank's share of each epoch, in an order that depends on the seed and the epoch alone.

    ``done`` batches of the epoch have been handed out. The ranks are counted when it is iterated
    over: a program may make its loaders before its process group.
    """

    def __init__(self, dataset: Any, batch: int, shuffle: bool, seed: int, drop_last: bool) -> None:  # noqa: ANN401
        super().__init__(dataset, 1, 0, shuffle=shuffle, seed=seed, drop_last=drop_last)
        self._batch = batch
        self.done = 0
        # The next iteration begins at ``epoch`` and ``done`` as they are; else at the next epoch.
        self.at_hand = True

    def begin(self) -> None:
        if not self.at_hand:
            self.epoch, self.done = self.epoch + 1, 0
        self.at_hand = False

    def set_epoch(self, epoch: int) -> None:
        """What Lightning and others call before each epoch; the epoch resumed in goes on."""
        if epoch != self.epoch or not self.at_hand:
            self.epoch, self.done, self.at_hand = epoch, 0, True

    def __iter__(self) -> Iterator[int]:
        self._count()
        return islice(super().__iter__(), self.done * self._batch, None)

    def __len__(self) -> int:
        self._count()
        return super().__len__()

    def identity(self) -> dict[str, Any]:
        """What gives other batches if it changes."""
        dataset: Any = self.dataset
        return {
            "batch_size": self._batch,
            "shuffle": self.shuffle,
            "seed": self.seed,
            "drop_last": self.drop_last,
            "length": len(dataset),
            "ranks": _place()[0],
        }

    def _count(self) -> None:
        epoch = self.epoch
        super().__init__(
            self.dataset, *_place(), shuffle=self.shuffle, seed=self.seed, drop_last=self.drop_last
        )
        self.epoch = epoch


class DataLoader(data.DataLoader):  # type: ignore[type-arg]
    """PyTorch's DataLoader that resumes in the middle of an epoch, with the same batches.

    It gives each rank its share (as DistributedSampler does), shuffles again in each epoch, counts
    the epochs itself, and knows which batches the program has received, whatever its workers have
    fetched ahead. It draws nothing from the global generators. A loop that is broken off has
    ended its epoch. For datasets that are indexed; for streams there is torchdata's
    StatefulDataLoader, which is as good a part of ``Checkpoints``.
    """

    def __init__(
        self,
        dataset: Any,  # noqa: ANN401
        batch_size: int = 1,
        shuffle: bool = False,
        *,
        seed: int = 0,
        drop_last: bool = False,
        **options: Any,  # noqa: ANN401 - the other arguments of PyTorch's
    ) -> None:
        if isinstance(dataset, data.IterableDataset):
            raise TypeError("dataset must be indexed; streams need torchdata's StatefulDataLoader")
        self._order = _Order(dataset, batch_size, shuffle, seed, drop_last)
        options.update(batch_size=batch_size, drop_last=drop_last, sampler=self._order)
        # From which PyTorch draws the seeds of the workers.
        self._draws = torch.Generator()
        super().__init__(dataset, generator=self._draws, **options)

    @property
    def epoch(self) -> int:
        """The epoch that the next batch is of, or the last one was."""
        return self._order.epoch

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        order = self._order
        order.begin()
        self._draws.manual_seed(order.seed + order.epoch)
        for batch in super().__iter__():
            order.done += 1
            yield batch

    def state_dict(self) -> dict[str, Any]:
        """How far the program has come in the epoch, and what the order of batches depends on."""
        return {"epoch": self._order.epoch, "done": self._order.done, **self._order.identity()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on there with the next iteration.

        Raises ValueError if this loader would hand out other batches.
        """
        for name, own in self._order.identity().items():
            saved = state.get(name, own)
            if saved != own:
                raise ValueError(
                    f"{name} of the DataLoader is {own}, but was {saved} when it was saved: "
                    f"resume with the {name} of before"
                )
        self._order.epoch, self._order.done = state["epoch"], state["done"]
        self._order.at_hand = True


class Checkpoints:
    """Saves and restores all that a training consists of, on all ranks.

    ``parts`` are objects with ``state_dict`` and ``load_state_dict``: the model (wrapped in DDP,
    sharded by FSDP, or neither), optimizer, scheduler, scaler, loader or sampler. Rank 0 writes
    models and optimizers, which DDP keeps equal; where they are sharded every rank writes its
    shards, with torch.distributed.checkpoint. Every rank writes the other parts and the states of
    its generators. The folder must be where each node finds it.

    Each checkpoint is a folder of its own. It counts when its ``manifest.json`` is there, which is
    written last: what a rank that dies leaves half written is never resumed from. ``keep`` complete
    ones of this task stay, the newest acknowledged one always among them.
    """

    def __init__(self, folder: str | os.PathLike[str], *, keep: int = 2, **parts: Any) -> None:  # noqa: ANN401
        if keep < 1:
            raise ValueError(f"keep must be 1 or more, not {keep}")
        for name, part in parts.items():
            if name in RESERVED:
                raise ValueError(
                    f"no part may have the name {name}: under it the states of the generators are "
                    "saved; give this one another name"
                )
            if not (hasattr(part, "state_dict") and hasattr(part, "load_state_dict")):
                raise TypeError(
                    f"{name} needs state_dict and load_state_dict; {type(part).__name__} has not"
                )
            if _has_old_fsdp(part):
                raise TypeError(f"{name} is a FullyShardedDataParallel; shard it with fully_shard")
        self.folder = Path(folder).resolve()
        self._keep = keep
        self._parts = parts

    def save(self, step: int) -> str:
        """Save, on every rank, and have it acknowledged; returns the checkpoint's folder.

        Raises on every rank what ``acknowledge`` raises, and OSError on a rank that cannot write.
        Before anything is written it raises TypeError or ValueError if ``step`` is no step or not
        the same on all ranks, or if an optimizer has other parameters than its sharded model.
        """
        ranks = _ranks()
        sharded = self._sharded()
        target = new_folder(self.folder, step)
        step = training.step_number(step)
        states = {
            name: part.state_dict()
            for name, part in self._unwrapped().items()
            if name not in sharded
        }
        own = {name: state for name, state in states.items() if name not in self._shared()}
        files = {f"rank-{ranks.rank}.pt": {**own, _RNG: rng_state()}}
        if ranks.rank == 0:
            files["shared.pt"] = {name: states[name] for name in self._shared() if name in states}
        written = {name: _write(target / name, state) for name, state in files.items()}
        if sharded:
            written.update(_write_shards(target, self._by_name(sharded), ranks.rank))
        parts = ranks.gather(json.dumps(written).encode(), "to write their part of the checkpoint")
        digest = None
        if ranks.rank == 0:
            listed = dict(item for part in parts for item in json.loads(part).items())
            digest = folders.seal(target, step, ranks=ranks.count, digests=listed, sharded=sharded)
        acknowledge(step, str(target), digest)
        if ranks.rank == 0:
            folders.prune(target, self._keep)
        return str(target)

    def load(
        self, uri: str | None = None, *, weights_only: bool = True, any_ranks: bool = False
    ) -> int:
        """Restore every part from ``shiftwork.resume_from()``, or ``uri``; returns the step, or 0.

        Call it on every rank, right before the loop: what draws random numbers after it changes
        them. Checks all digests.

        Args:
            uri: of a checkpoint's folder, instead of the one that the platform names.
            weights_only: False also restores objects of any class, by running code from the file.
            any_ranks: True also takes what another number of ranks saved. Models and optimizers
                are as they were, in other shards; the other parts are rank 0's, and the
                generators stay as they are, so that what follows has other bits.

        Raises:
            FileNotFoundError: the checkpoint that the platform names is not there.
            ValueError: the files are not what was saved, or another task or, without
                ``any_ranks``, another number of ranks saved them.
        """
        start = shiftwork.resume_from()
        if uri is None and start is None:
            return 0
        source = folders.stored(start) if uri is None and start is not None else Path(uri or "")
        ranks = _ranks()
        manifest = folders.manifest(source)
        as_many = manifest["ranks"] == ranks.count
        if not (as_many or any_ranks):
            raise ValueError(
                f"{source} was saved by {manifest['ranks']} ranks, this gang has {ranks.count}: "
                "start it with as many, or load with any_ranks=True, which gives other bits"
            )
        sharded = [name for name in manifest.get("sharded", []) if name in self._parts]
        if sharded:
            _check_shards(source, manifest["digests"], ranks)
        held: dict[str, Any] = {}
        for name in ("shared.pt", f"rank-{ranks.rank if as_many else 0}.pt"):
            durable.check(source / name, manifest["digests"][name])
            held.update(torch.load(source / name, map_location="cpu", weights_only=weights_only))
        known = {*held, *sharded}
        for name, part in self._unwrapped().items():
            if name not in known:
                raise ValueError(f"{source} holds no {name}: it has {', '.join(sorted(known))}")
            if name not in sharded:
                part.load_state_dict(held[name])
        if sharded:
            self._load_shards(source, sharded)
        if as_many:
            restore_rng_state(held[_RNG])
        return int(manifest["step"])

    def _shared(self) -> list[str]:
        kinds = (torch.nn.Module, torch.optim.Optimizer)
        return [name for name, part in self._parts.items() if isinstance(part, kinds)]

    def _sharded(self) -> list[str]:
        """The models of which each rank holds a part, and their optimizers."""
        return [
            name
            for name in self._shared()
            if any(map(_is_shard, self._model_of(name).parameters()))
        ]

    def _model_of(self, name: str) -> torch.nn.Module:
        """The model that is this part, or whose parameters this optimizer changes."""
        part = self._parts[name]
        if isinstance(part, torch.nn.Module):
            return part
        held = [parameter for group in part.param_groups for parameter in group["params"]]
        known = set(map(id, held))
        for model in self._parts.values():
            if isinstance(model, torch.nn.Module) and any(
                id(parameter) in known for parameter in model.parameters()
            ):
                return model
        if any(map(_is_shard, held)):
            raise ValueError(f"{name}: its parameters are sharded; add their model to the parts")
        if any(
            _is_shard(parameter)
            for model in self._parts.values()
            if isinstance(model, torch.nn.Module)
            for parameter in model.parameters()
        ):
            # fully_shard gives a model new parameters; the ones of before train nothing.
            raise ValueError(
                f"{name}: its parameters are those of no model among the parts; make it after "
                "fully_shard, or add its model"
            )
        return torch.nn.Module()

    def _by_name(self, names: list[str]) -> dict[str, Any]:
        """The states of models and optimizers by the names of parameters, whatever shards them."""
        from torch.distributed.checkpoint import state_dict as by_name  # noqa: PLC0415 - only here

        return {
            name: by_name.get_model_state_dict(part)
            if isinstance(part := self._parts[name], torch.nn.Module)
            else by_name.get_optimizer_state_dict(self._model_of(name), part)
            for name in names
        }

    def _load_shards(self, source: Path, names: list[str]) -> None:
        from torch.distributed.checkpoint import state_dict as by_name  # noqa: PLC0415 - only here
        from torch.distributed.checkpoint.state_dict_loader import load  # noqa: PLC0415

        states = self._by_name(names)
        load(states, checkpoint_id=source / _SHARDED)
        for name, state in states.items():
            part = self._parts[name]
            if isinstance(part, torch.nn.Module):
                by_name.set_model_state_dict(part, state)
            else:
                by_name.set_optimizer_state_dict(self._model_of(name), part, state)

    def _unwrapped(self) -> dict[str, Any]:
        """The parts, models without DDP's wrapper, so that one rank can read what many saved."""
        wrapper = torch.nn.parallel.DistributedDataParallel
        return {
            name: part.module if isinstance(part, wrapper) else part
            for name, part in self._parts.items()
        }


def _write(path: Path, state: object) -> str:
    return durable.write(path, lambda stream: torch.save(state, stream))


def _has_old_fsdp(part: Any) -> bool:  # noqa: ANN401
    fsdp: Any = sys.modules.get("torch.distributed.fsdp")
    return (
        fsdp is not None
        and isinstance(part, torch.nn.Module)
        and any(isinstance(one, fsdp.FullyShardedDataParallel) for one in part.modules())
    )


def _is_shard(parameter: Any) -> bool:  # noqa: ANN401 - DTensor, which has moved between versions
    return hasattr(parameter, "device_mesh")


def _write_shards(target: Path, states: dict[str, Any], rank: int) -> dict[str, str]:
    """Every rank's shards, durable; the digests of what this rank wrote."""
    from torch.distributed.checkpoint.state_dict_saver import save  # noqa: PLC0415 - only here

    folder = target / _SHARDED
    save(states, checkpoint_id=folder)  # syncs each file
    durable.sync_folder(folder)
    durable.sync_folder(target)
    own = [*folder.glob(f"__{rank}_*"), *(folder.glob(".metadata") if rank == 0 else ())]
    return {f"{_SHARDED}/{path.name}": durable.digest(path) for path in own}


def _check_shards(source: Path, digests: dict[str, str], ranks: _Ranks) -> None:
    """Raise ValueError on every rank if one file is another; each rank reads some of them."""
    names = sorted(name for name in digests if name.startswith(f"{_SHARDED}/"))
    problem = ""
    try:
        for name in names[ranks.rank :: ranks.count]:
            durable.check(source / name, digests[name])
    except (OSError, ValueError) as error:
        problem = str(error)
    for found in ranks.gather(problem.encode(), "to check their part of the checkpoint"):
        if found:
            raise ValueError(found.decode())


def _listed(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:8])) + (", …" if len(ranks) > 8 else "")  # noqa: PLR2004
    return f"rank{'s' if len(ranks) != 1 else ''} {shown}"


def _warn(text: str) -> None:
    sys.stderr.write(f"shiftwork: {text}\n")
