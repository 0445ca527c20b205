"""What a process and its database hold, as numbers by name, and which of them grow.

``of_objects`` counts what our own code keeps: the instances of each class, and the entries of each
dictionary, list, set, heap, cache and queue that an instance, a module or a closure holds. Nothing
has to be registered, so a new dictionary is counted from its first day.
"""

from __future__ import annotations

import functools
import gc
import sys
import types
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pydantic import BaseModel

OURS = ("libs.", "services.")
# Metrics keep one value for each combination of labels, which must not name tasks.
ALSO_COUNTED = ("prometheus_client",)
# The adapters in memory keep what a server keeps; the rows are counted by table.
NOT_COUNTED = ("libs.bus.memory", "libs.store.memory", "services.launcher.runtimes.fake")
_CONTAINERS = (dict, list, set, deque, frozenset)
# What drains within moments and is never the same twice, such as the parts of a running task.
SLACK = 40
# Rows in memory (``libs/store/recent.py``), and rings of a fixed length, are full some time.
FULL_MAX: Mapping[str, int] = {}


@dataclass
class Samples:
    """The numbers of each sample, by name."""

    taken: list[Counter[str]] = field(default_factory=list[Counter[str]])

    def add(self, *parts: Mapping[str, int]) -> None:
        """One more sample."""
        total: Counter[str] = Counter()
        for part in parts:
            total.update(part)
        self.taken.append(total)

    def growing(
        self, slack: int = SLACK, bounds: Mapping[str, int] = FULL_MAX, *, since: int = 1
    ) -> list[str]:
        """What is larger at the end than in sample ``since``, by more than ``slack``, and has grown
        in most of the steps between; the largest first. Caches and pools are filled by then."""
        first, last = self.taken[since], self.taken[-1]
        found: list[tuple[int, str]] = []
        for name in sorted(last):
            more = last[name] - first[name]
            steps = [after[name] - before[name] for before, after in self._pairs(since)]
            rising = sum(1 for step in steps if step > 0)
            if more > slack and rising * 2 > len(steps) and last[name] > bounds.get(name, 0):
                found.append((more, f"{name}: {first[name]} -> {last[name]}"))
        return [text for _, text in sorted(found, reverse=True)]

    def _pairs(self, since: int) -> Iterable[tuple[Counter[str], Counter[str]]]:
        return zip(self.taken[since:], self.taken[since + 1 :], strict=False)


def of_objects() -> Counter[str]:
    """Count the instances of our classes, and the entries of every container that they, our modules
    and our functions hold. Collects garbage first."""
    caches = [each for each in gc.get_objects() if type(each) is functools._lru_cache_wrapper]
    caches = [each for each in caches if _counted(each.__module__)]
    for cache in caches:
        # What a bounded cache holds depends on when it was asked last, so it is emptied.
        if cache.cache_parameters()["maxsize"] is not None:
            cache.cache_clear()
    gc.collect()
    found: Counter[str] = Counter()
    for cache in caches:
        found[f"cache {cache.__module__}.{cache.__qualname__}"] += cache.cache_info().currsize
    for each in gc.get_objects():
        if type(each) is types.FunctionType:
            _count_closure(each, found)
        else:
            _count_instance(each, found)
    for module_name, module in list(sys.modules.items()):
        if _counted(module_name):
            for attribute, value in list(vars(module).items()):
                if not attribute.startswith("__"):
                    _count(f"{module_name}:{attribute}", value, found)
    return found


def _count_instance(each: object, found: Counter[str]) -> None:
    kind = type(each)
    if not _counted(kind.__module__):
        return
    name = f"{kind.__module__}.{kind.__qualname__}"
    found[f"instances {name}"] += 1
    # The fields of a message are not what keeps it.
    if not isinstance(each, BaseModel):
        for attribute, value in _attributes(each):
            _count(f"{name}.{attribute}", value, found)


def _counted(module: object) -> bool:
    return (
        isinstance(module, str)
        and module.startswith((*OURS, *ALSO_COUNTED))
        and not module.startswith(NOT_COUNTED)
    )


def _attributes(each: object) -> Iterable[tuple[str, object]]:
    slots = [
        name
        for kind in type(each).__mro__
        for name in _as_names(kind.__dict__.get("__slots__", ()))
    ]
    for name in slots:
        try:
            yield name, object.__getattribute__(each, name)
        except AttributeError:
            continue
    yield from list(getattr(each, "__dict__", {}).items())


def _as_names(slots: str | Sequence[str]) -> Sequence[str]:
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _count_closure(function: types.FunctionType, found: Counter[str]) -> None:
    if not _counted(function.__module__) or function.__closure__ is None:
        return
    for variable, cell in zip(function.__code__.co_freevars, function.__closure__, strict=False):
        try:
            value = cell.cell_contents
        except ValueError:
            continue
        _count(f"{function.__module__}.{function.__qualname__}({variable})", value, found)


def _count(name: str, value: object, found: Counter[str]) -> None:
    """Count a container's entries, and those of the containers in it, one level deep."""
    if not isinstance(value, _CONTAINERS) or isinstance(value, frozenset):
        return
    found[name] += len(value)
    inner = value.values() if isinstance(value, dict) else value
    found[name] += sum(
        len(each) for each in list(inner) if isinstance(each, (dict, list, set, deque))
    )
