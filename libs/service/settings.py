"""Settings: one typed class per service, from the environment only, checked at start.

A service's class sets its prefix, ``SHIFTWORK_<SERVICE>_``. Passwords come from files, so that
no environment and no process list holds them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from ipaddress import IPv6Network, ip_network
from pathlib import Path
from string import Formatter
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError
from pydantic_settings import BaseSettings, SettingsConfigDict

from libs.bus.topology import DEAD_LETTER_AGE_S
from libs.bus.trust import authority, wants_tls
from libs.service.connections import HttpLimits
from libs.service.deletion_limit import DAYS_PER_HOUR


def _addresses(text: str) -> str:
    wants_tls(text.split(","))
    return text


def _collector(text: str) -> str:
    if text and not text.startswith(("http://", "https://")):
        raise ValueError(f"{text!r} is no address; give one such as http://collector:4318")
    return text


def secret_file(path: Path | None) -> Path | None:
    """A file with a token or a key. ValueError if there is none in it, which would let everybody
    in."""
    try:
        if path is not None and not read_secret(path):
            raise ValueError(f"{path} is empty")
    except OSError as problem:
        raise ValueError(f"{path} cannot be read: {problem.strerror}") from None
    return path


# Where OpenTelemetry's own variables say that traces go.
STANDARD_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
# The type of errors that name several variables.
SETTING_ERROR = "settings"
# Networks of proxies have at least so long a prefix: they are of one site. IPv4 as IPv6 writes it.
_BITS_MIN = {4: 8, 6: 32}
_MAPPED = IPv6Network("::ffff:0:0/96")


def _proxies(text: str) -> str:
    """Addresses and networks of proxies. ValueError for anything else: also for ``*`` and networks
    of half the world, with which whoever reaches the port names any address."""
    for each in filter(None, (each.strip() for each in text.split(","))):
        try:
            network = ip_network(each)
        except ValueError as problem:
            raise ValueError(f"{problem}; give addresses such as 10.0.0.7 or 10.1.0.0/16") from None
        least = _BITS_MIN[network.version]
        if isinstance(network, IPv6Network) and network.overlaps(_MAPPED):
            least = _MAPPED.prefixlen + _BITS_MIN[4]
        if network.prefixlen < least:
            raise ValueError(
                f"{each} has more addresses than a site has proxies; give addresses such as"
                " 10.0.0.7 or 10.1.0.0/16"
            )
    return text


def setting_error(variables: Sequence[str], text: str, fix: str) -> PydanticCustomError:
    """What validators raise for a problem of several variables: ``setting_problems`` of ``run.py``
    names them all, with the fix."""
    context: dict[str, Any] = {"variables": tuple(variables), "text": text, "fix": fix}
    return PydanticCustomError(SETTING_ERROR, "{text}; {fix}", context)


class BaseServiceSettings(BaseSettings):
    """The settings that every service has."""

    model_config = SettingsConfigDict(frozen=True, extra="ignore")

    # postgresql://USER@HOST:PORT/DATABASE or postgresql://USER@/DATABASE?host=/socket/folder
    database_url: str
    database_password_file: Path | None = None
    database_pool_max: int = Field(default=5, ge=1, le=100)
    # nats://HOST:PORT, or tls://HOST:PORT, several separated by commas
    nats_url: Annotated[str, AfterValidator(_addresses)]
    # The authority (PEM) that vouches for the servers behind tls://; without: the machine's own.
    nats_ca_file: Annotated[Path | None, AfterValidator(authority)] = None
    nats_user: str = ""
    nats_password_file: Path | None = None
    # Where /healthz, /readyz and /metrics are served; no port, no HTTP (the gateway must have one).
    http_host: str = "127.0.0.1"
    http_port: int | None = Field(default=None, ge=0, le=65535)
    # A file with the bearer token that /metrics requires; if unset, everybody may read /metrics.
    http_metrics_token_file: Annotated[Path | None, AfterValidator(secret_file)] = None
    # Connections at once, in all (0: as many as the limit of open files allows) and of one address
    # (0: three quarters of them; everybody behind a proxy has the proxy's address).
    http_connections_max: int = Field(default=0, ge=0)
    http_connections_per_address_max: int = Field(default=0, ge=0)
    # How long a connection may keep us waiting for a request's head.
    http_head_seconds: float = Field(default=10.0, gt=0, le=300)
    # Addresses and networks of the proxies before this port, separated by commas: of requests from
    # there X-Forwarded-For and X-Forwarded-Proto count, of others never. With 127.0.0.1 every
    # process of this machine, tasks included, can name any address.
    http_trusted_proxies: Annotated[str, AfterValidator(_proxies)] = ""
    # Where traces go (OTLP over HTTP): the collector's address without /v1/traces. Empty: where the
    # variable OTEL_EXPORTER_OTLP_ENDPOINT says; without that, nowhere, and there are no traces.
    otlp_endpoint: Annotated[str, AfterValidator(_collector)] = ""
    # A file with headers for the collector, one "Name: value" a line, such as its token.
    otlp_headers_file: Annotated[Path | None, AfterValidator(secret_file)] = None
    # Of the requests that bring no trace of their own, this share begins one that is exported.
    trace_ratio: float = Field(default=1.0, ge=0, le=1)
    # Requests that bring a sampled trace are exported up to so many a second, and beyond it by the
    # ratio: anybody can send the header.
    trace_requests_per_second: float = Field(default=10.0, ge=0, le=10_000)
    # Spans that wait for the collector; further ones are dropped and counted.
    trace_queue_max: int = Field(default=4_096, ge=1, le=1_000_000)
    # A task's later events are part of its trace for so long.
    trace_keep_seconds: float = Field(default=7 * 86_400.0, gt=0)
    log_format: Literal["json", "console"] = "json"
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    # Bring the schema up to date before starting (otherwise: `python -m libs.store.migrate`).
    migrate: bool = False
    # How long to wait, before starting, for a schema that another process brings up to date; 0: not
    # at all.
    schema_wait_seconds: float = Field(default=0.0, ge=0, le=86_400)

    batch_messages_max: int = Field(default=256, ge=1, le=4096)
    # How many waiting commands are carried out in one transaction.
    batch_commands_max: int = Field(default=64, ge=1, le=1024)
    # A pause after each batch of events, so that events which come one at a time are handled
    # together.
    batch_gap_seconds: float = Field(default=0.0, ge=0, le=1)
    fetch_wait_seconds: float = Field(default=5.0, gt=0, le=60)
    command_timeout_seconds: float = Field(default=10.0, gt=0, le=120)
    relay_rows_max: int = Field(default=256, ge=1, le=4096)
    relay_tick_seconds: float = Field(default=1.0, gt=0, le=60)
    # An event that is too large for the bus server is set apart after so long; meanwhile the others
    # go. What is refused for another reason (no permission yet) waits in the outbox.
    relay_refused_seconds: float = Field(default=600.0, ge=0, le=86_400)
    # While no event is handled, those that fail are set apart as dead letters at most so many at
    # once, then one every so often; the others are kept and tried later.
    dead_letter_burst: int = Field(default=20, ge=1, le=1000)
    dead_letter_seconds: float = Field(default=60.0, gt=0, le=3600)
    # Of those that could not be handled; what could not be published is not dropped for its number.
    dead_letters_max: int = Field(default=100_000, ge=1, le=1_000_000)
    dead_letters_keep_seconds: float = Field(default=DEAD_LETTER_AGE_S, gt=0)
    dead_letter_tick_seconds: float = Field(default=60.0, gt=0, le=3600)
    # Events published so long before a bus server was lost are published again to its successor.
    # This time and that of the outbox are counted in periods in which something was published, by
    # a clock that does not jump.
    republish_window_seconds: float = Field(default=600.0, ge=0, le=86_400)
    outbox_keep_seconds: float = Field(default=3_600.0, gt=0)
    outbox_period_seconds: float = Field(default=60.0, gt=0)
    inbox_keep_seconds: float = Field(default=15 * 86_400.0, gt=0)
    prune_tick_seconds: float = Field(default=60.0, gt=0)
    # Old rows are deleted so many in a transaction, and of each kind at most so many days of
    # history in an hour (0: no bound), because the clock may be wrong.
    prune_rows_max: int = Field(default=1000, ge=1, le=10_000)
    # Of each kind of rows that are deleted by age, the oldest beyond so many are deleted earlier.
    # Counting reads an index of so many entries, so it is done that seldom.
    kept_rows_max: int = Field(default=5_000_000, ge=1000)
    prune_count_seconds: float = Field(default=3_600.0, gt=0)
    # Removed caps and grants, which are kept as long as an older event about them can come: from
    # the stream, or from a dead letter that is replayed.
    removed_quota_keep_seconds: float = Field(default=45 * 86_400.0, gt=0)
    # The rows of removed nodes are kept longer than an old event can be on its way (14 days).
    removed_node_keep_seconds: float = Field(default=30 * 86_400.0, gt=0)
    prune_days_per_hour: float = Field(default=DAYS_PER_HOUR, ge=0, le=10_000)

    @classmethod
    def conflict(cls, text: str, fix: str, **values: object) -> PydanticCustomError:
        """What a validator raises for settings that do not fit together. Texts name the settings in
        braces, and the user reads their variables: ``{mail_host} needs {mail_from}``. ``values``
        fill other braces."""
        used = [name for _, name, *_ in Formatter().parse(text + fix) if name]
        prefix = str(cls.model_config.get("env_prefix", ""))
        names = {name: prefix + name.upper() for name in used if name not in values}
        if unknown := names.keys() - cls.model_fields.keys():
            raise LookupError(f"{cls.__name__} has no {', '.join(sorted(unknown))}")
        shown = {**names, **values}
        return setting_error([*names.values()], text.format(**shown), fix.format(**shown))

    def database_password(self) -> str | None:
        """The password, read now; None if the URL needs none."""
        return read_secret(self.database_password_file)

    def http_limits(self) -> HttpLimits:
        """The bounds of HTTP connections."""
        total = {"total_max": self.http_connections_max} if self.http_connections_max else {}
        return HttpLimits(
            **total,
            address_max=self.http_connections_per_address_max,
            head_seconds=self.http_head_seconds,
        )

    @model_validator(mode="after")
    def _check_inherited_collector(self) -> Self:
        """OpenTelemetry's own variables need what ours needs: otherwise every export fails."""
        if self.otlp_endpoint or not self.traces:
            return self
        for name in STANDARD_ENDPOINTS:
            try:
                _collector(os.environ.get(name, ""))  # noqa: TID251 - the standard's
            except ValueError as problem:
                raise setting_error([name], str(problem), f"correct or unset {name}") from None
        return self

    @property
    def traces(self) -> bool:
        """Whether there is a collector for traces."""
        if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":  # noqa: TID251 - the standard's
            return False
        named = (os.environ.get(each) for each in STANDARD_ENDPOINTS)  # noqa: TID251 - the standard's
        return bool(self.otlp_endpoint or any(named))

    def otlp_headers(self) -> dict[str, str]:
        """The headers for the collector, read now."""
        lines = (read_secret(self.otlp_headers_file) or "").splitlines()
        pairs = (line.partition(":") for line in lines if line.strip())
        return {name.strip(): value.strip() for name, _, value in pairs}

    def metrics_token(self) -> str | None:
        """Read the token that /metrics requires; None if it requires none."""
        return read_secret(self.http_metrics_token_file)

    def nats_password(self) -> str | None:
        """The password, read now; None if the server wants none."""
        return read_secret(self.nats_password_file)


def read_secret(path: Path | None) -> str | None:
    """A secret that is kept in a file, read now; None without a file."""
    return path.read_text().strip() if path else None
