"""Who we are for an API server, as a kubeconfig says. The Kubernetes client's own loader reads it,
which knows every way there is: certificates and keys in files or embedded, tokens, exec plugins.
"""

from __future__ import annotations

import asyncio
import ssl
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

if TYPE_CHECKING:
    from kubernetes_asyncio.client.configuration import Configuration


class KubeconfigError(RuntimeError):
    """This kubeconfig cannot be used; the text says why."""


@dataclass(frozen=True, slots=True)
class Identity:
    """One API server, and one user of it."""

    url: str
    # The whole Authorization header; None where a certificate says who we are.
    authorization: str | None
    tls: ssl.SSLContext


def identity_of(path: Path | str) -> Identity:
    """The current context of a kubeconfig.

    Raises:
        KubeconfigError: It cannot be read, or says something that nobody can use.
    """
    # The loader is asynchronous, and our caller may be inside a loop.
    with ThreadPoolExecutor(1) as beside:
        return beside.submit(asyncio.run, _loaded(str(path))).result()


async def _loaded(path: str) -> Identity:
    # A hundred megabytes, which most of what these tools do never needs.
    from kubernetes_asyncio import config  # noqa: PLC0415
    from kubernetes_asyncio.client.configuration import Configuration  # noqa: PLC0415

    read = Configuration()
    try:
        await config.load_kube_config(config_file=path, client_configuration=read)
        authorization = await read.get_api_key_with_prefix("BearerToken")
        return Identity(read.host or "", authorization or None, _tls(read))
    except (config.ConfigException, OSError, ValueError, TypeError, yaml.YAMLError) as problem:
        raise KubeconfigError(f"kubeconfig {path} cannot be used: {problem}") from problem


def _tls(read: Configuration) -> ssl.SSLContext:
    tls = ssl.create_default_context(cafile=read.ssl_ca_cert or None)
    if not read.verify_ssl:
        tls.check_hostname = False
        tls.verify_mode = ssl.CERT_NONE
    if read.cert_file:
        tls.load_cert_chain(read.cert_file, read.key_file or None)
    return tls
