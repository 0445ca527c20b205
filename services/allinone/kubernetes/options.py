"""The options that several ``k8s`` commands share, each told once.

A command names what it takes (``target``, ``choices``, …) and gets the finished value; ``taking``
puts the options behind those names into its signature, where the command line reads them.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from services.allinone.kubernetes.choices import Choices, Path_
from services.allinone.kubernetes.kubectl import Target


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
        def call(**told: Any) -> None:  # noqa: ANN401 - any option
            made = {
                name: makers[name](**{key: told[key] for key in parameters})
                for name, parameters in taken.items()
            }
            command(**made, **{each.name: told[each.name] for each in own})

        as_keywords = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in every]
        call.__signature__ = inspect.Signature(as_keywords)  # pyright: ignore[reportAttributeAccessIssue] - what inspect looks for
        call.__annotations__ = {each.name: each.annotation for each in every}
        return call

    return decorate


def target(
    kubeconfig: Annotated[
        Path | None, typer.Option("--kubeconfig", help="Left out: $KUBECONFIG, ~/.kube/config.")
    ] = None,
    kube_context: Annotated[
        str, typer.Option("--kube-context", help="A context of that file.")
    ] = "",
    namespace: Annotated[str, typer.Option("-n", "--namespace", help="Of the platform.")] = (
        "shiftwork"
    ),
    release: Annotated[str, typer.Option("--release", help="Its name for helm.")] = "shiftwork",
) -> Target:
    """Which cluster and where in it."""
    return Target(
        kubeconfig="" if kubeconfig is None else str(kubeconfig),
        context=kube_context,
        namespace=namespace,
        release=release,
    )


def choices(  # noqa: PLR0917 - options, by name
    registry: Annotated[
        str, typer.Option(help="Where nodes pull images from, HOST:PORT/FOLDER.")
    ] = "",
    tag: Annotated[
        str, typer.Option(help="Of the images; left out: the version of the charts.")
    ] = "",
    pull_secret: Annotated[
        list[str] | None, typer.Option(help="A Secret for the registry; several times.")
    ] = None,
    tasks_namespace: Annotated[str, typer.Option(help="Where pods of tasks run.")] = "",
    gpu_resource: Annotated[
        str, typer.Option(help="What nodes call a GPU, such as nvidia.com/gpu.")
    ] = "",
    node_selector: Annotated[
        str, typer.Option(help="Only nodes with these labels, K=V, as for kubectl -l.")
    ] = "",
    storage_class: Annotated[str, typer.Option(help="Of all volumes.")] = "",
    no_persistence: Annotated[
        bool, typer.Option("--no-persistence", help="No volumes: a trial, gone with its pods.")
    ] = False,
    external_postgres: Annotated[
        str, typer.Option(help="A server of your own, HOST:PORT/DATABASE (port, database: or not).")
    ] = "",
    postgres_secret: Annotated[
        str, typer.Option(help="A Secret with the passwords of its roles.")
    ] = "",
    external_nats: Annotated[
        str, typer.Option(help="Servers of your own, nats://HOST:PORT or tls://HOST:PORT.")
    ] = "",
    nats_secret: Annotated[str, typer.Option(help="A Secret with their users' passwords.")] = "",
    nats_replicas: Annotated[
        int, typer.Option(min=0, max=5, help="Of the bundled server: 1, 3 or 5.")
    ] = 0,
    ingress: Annotated[str, typer.Option(help="A host name for the API, by an Ingress.")] = "",
    monitoring: Annotated[
        bool, typer.Option("--monitoring", help="ServiceMonitors, alerts (Prometheus operator).")
    ] = False,
) -> Choices:
    """The common choices of an installation."""
    return Choices(
        registry=registry,
        tag=tag,
        pull_secret=tuple(pull_secret or ()),
        tasks_namespace=tasks_namespace,
        gpu_resource=gpu_resource,
        node_selector=node_selector,
        storage_class=storage_class,
        no_persistence=no_persistence,
        external_postgres=external_postgres,
        postgres_secret=postgres_secret,
        external_nats=external_nats,
        nats_secret=nats_secret,
        nats_replicas=nats_replicas,
        ingress=ingress,
        monitoring=monitoring,
    )


@dataclass(frozen=True)
class Wanted:
    """What an installation is told beside its choices, and where the charts are."""

    charts: Path | None = None
    files: tuple[Path, ...] = ()
    sets: tuple[str, ...] = ()
    chosen: dict[Path_, Any] = field(default_factory=dict[Path_, Any])

    @property
    def added(self) -> bool:
        """It adds to what a release was told before; files are the whole of it."""
        return not self.files


def wanted(
    charts: Annotated[
        Path | None,
        typer.Option("--charts", help="Folder of the charts, or shiftwork-VERSION.tgz."),
    ] = None,
    values: Annotated[
        list[Path] | None,
        typer.Option("-f", "--values", help="A values file; several: later ones win.", exists=True),
    ] = None,
    sets: Annotated[list[str] | None, typer.Option("--set", help="A value, as for helm.")] = None,
) -> Wanted:
    """Files and single values."""
    return Wanted(charts, tuple(values or ()), tuple(sets or ()))
