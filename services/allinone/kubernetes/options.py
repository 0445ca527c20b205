"""The options that several ``k8s`` commands share, each declared once.

A command names what it takes (a ``Target``, ``Choices``, …) and gets the finished value; ``taking``
puts the fields of these classes into its signature, where the command line reads them as options.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer


def taking(**makers: Callable[..., Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the parameters of these functions, and what they make of them by name."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = [
            each
            for each in inspect.signature(command, eval_str=True).parameters.values()
            if each.name not in makers
        ]
        taken = {
            name: inspect.signature(maker, eval_str=True).parameters
            for name, maker in makers.items()
        }
        every = [each for parameters in taken.values() for each in parameters.values()] + own

        @functools.wraps(command)
        def call(**given: Any) -> None:  # noqa: ANN401 - any option
            made = {
                name: makers[name](**{key: given[key] for key in parameters})
                for name, parameters in taken.items()
            }
            command(**made, **{each.name: given[each.name] for each in own})

        as_keywords = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in every]
        call.__signature__ = inspect.Signature(as_keywords)  # pyright: ignore[reportAttributeAccessIssue] - what inspect looks for
        call.__annotations__ = {each.name: each.annotation for each in every}
        return call

    return decorate


@dataclass(frozen=True, slots=True)
class Target:
    """The cluster, the user, and the namespace."""

    kubeconfig: Annotated[
        str,
        typer.Option(metavar="<path>", help="Left out: $KUBECONFIG, ~/.kube/config."),
    ] = ""
    context: Annotated[str, typer.Option("--kube-context", help="A context of that file.")] = ""
    namespace: Annotated[str, typer.Option("-n", "--namespace", help="Of the platform.")] = (
        "shiftwork"
    )
    release: Annotated[str, typer.Option(help="Its name for helm.")] = "shiftwork"

    @property
    def where(self) -> str:
        """The target as text for people."""
        named = [f"context {self.context}"] if self.context else []
        return ", ".join([*named, f"namespace {self.namespace}"])


@dataclass(frozen=True, slots=True)
class Wanted:
    """Values of an installation beside its choices, and where the charts are."""

    charts: Annotated[
        Path | None, typer.Option(help="Folder of the charts, or shiftwork-VERSION.tgz.")
    ] = None
    files: Annotated[
        list[Path] | None,
        typer.Option("-f", "--values", help="A values file; several: later ones win.", exists=True),
    ] = None
    sets: Annotated[list[str] | None, typer.Option("--set", help="A value, as for helm.")] = None
