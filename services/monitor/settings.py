"""The monitor's settings."""

from __future__ import annotations

import itertools
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator
from pydantic_settings import SettingsConfigDict

from libs.contracts.mail_addresses import ADDRESS_RULE, is_mail_address
from libs.service.settings import BaseServiceSettings, read_secret, secret_file
from services.monitor.abnormal.rules_file import RulesFileError, read_rules
from services.monitor.domain.abnormal_actions import ActionLimits
from services.monitor.domain.abnormal_rules import RuleBook
from services.monitor.domain.activity import ActivityLimits
from services.monitor.domain.blocks import POINTS
from services.monitor.domain.mail_rates import MailRate
from services.monitor.domain.receivers import Network
from services.monitor.domain.resolution import Resolution, check_steps
from services.monitor.domain.retries import Pauses


def _networks(text: str) -> str:
    """ValueError, naming it, for one that is no network."""
    for each in text.split():
        ip_network(each)
    return text


def _rules(path: Path | None) -> Path | None:
    """ValueError, with field, value and fix, for a file that cannot be used."""
    read_rules(path, idle_seconds=0, quiet_seconds=0)
    return path


def _address(text: str) -> str:
    """ValueError for what is no mail address; empty for none."""
    if text and not is_mail_address(text):
        raise ValueError(f"{text!r} is no mail address; write {ADDRESS_RULE}")
    return text


MailAddress = Annotated[str, AfterValidator(_address)]


class MonitorSettings(BaseServiceSettings):
    """Environment variables ``SHIFTWORK_MONITOR_…``."""

    model_config = SettingsConfigDict(frozen=True, extra="ignore", env_prefix="SHIFTWORK_MONITOR_")

    # No task waits for what is recorded here: many events, one transaction.
    batch_gap_seconds: float = Field(default=0.1, ge=0, le=1)

    # How long after its end the monitor remembers a task.
    ended_tasks_keep_seconds: float = Field(default=7 * 86_400.0, gt=0)
    # A task that has been in the queue for so long is notified as waiting.
    waiting_seconds: float = Field(default=3_600.0, gt=0)
    # How often the tasks that wait are compared with that.
    waiting_tick_seconds: float = Field(default=30.0, gt=0)

    # How often notifications follow their owners to another team.
    owners_tick_seconds: float = Field(default=60.0, gt=0, le=3600)
    notifications_per_owner_max: int = Field(default=20, ge=0, le=1000)
    notifications_max: int = Field(default=1000, ge=0, le=10_000)
    # Messages of one notification that wait; beyond, new ones are given up at once.
    waiting_messages_max: int = Field(default=500, ge=1, le=10_000)
    # How long messages are kept that were delivered or given up.
    messages_keep_seconds: float = Field(default=7 * 86_400.0, gt=0)
    # Networks inside the site that webhooks may reach, also without encryption, separated by
    # spaces, such as "10.1.0.0/16". All others: https to addresses of the internet.
    webhook_networks: Annotated[str, AfterValidator(_networks)] = ""
    # A file with the authority (PEM) that vouches for receivers; without: the machine's own.
    webhook_ca_file: Path | None = None
    webhook_seconds_max: float = Field(default=10.0, gt=0, le=120)
    # Requests at once, each to another receiver.
    webhooks_at_once: int = Field(default=32, ge=1, le=256)
    delivery_tick_seconds: float = Field(default=5.0, gt=0, le=60)
    # Tries of one message, and the pauses between them: each is three times the one before.
    delivery_tries_max: int = Field(default=12, ge=1, le=100)
    delivery_pause_seconds: float = Field(default=5.0, gt=0)
    delivery_pause_seconds_max: float = Field(default=8 * 3600.0, gt=0)
    # A receiver that has taken nothing for so long gets nothing more until its owner sets it again.
    delivery_failing_seconds_max: float = Field(default=3 * 86_400.0, gt=0)

    # The site's mail server; without one there is no mail. Security: starttls, tls (from the first
    # byte, usually on port 465), or none, for a server on this machine alone.
    mail_host: str = ""
    mail_port: int = Field(default=587, ge=1, le=65535)
    mail_security: Literal["starttls", "tls", "none"] = "starttls"
    # A file with the authority (PEM) that vouches for the mail server; without: the machine's own.
    mail_ca_file: Path | None = None
    # The login at the mail server, with the password in a file; empty: no login.
    mail_user: str = ""
    mail_password_file: Annotated[Path | None, AfterValidator(secret_file)] = None
    # The sender of every mail, and where answers go; empty: to the sender.
    mail_from: MailAddress = ""
    mail_from_name: str = "Shiftwork"
    mail_reply_to: MailAddress = ""
    mail_seconds_max: float = Field(default=30.0, gt=0, le=300)
    mails_at_once: int = Field(default=4, ge=1, le=64)
    # A message waits so long for others that go in the same mail.
    mail_gather_seconds: float = Field(default=10.0, ge=0, le=3600)
    # Mails to one person: so many at once, then one in so many seconds, with all that has come
    # meanwhile. The same for all mails of the site together.
    mail_person_burst: int = Field(default=5, ge=1)
    mail_person_seconds: float = Field(default=600.0, gt=0)
    mail_site_burst: int = Field(default=60, ge=1)
    mail_site_seconds: float = Field(default=1.0, gt=0)
    # A mail lists so many messages, and counts the others.
    mail_messages_shown_max: int = Field(default=50, ge=1, le=500)

    # Points of series at three distances, each a multiple of the one before, and how long they are
    # kept. The first distance is that of the launcher's samples.
    series_fine_step_seconds: int = Field(default=10, ge=1, le=3600)
    series_middle_step_seconds: int = Field(default=60, ge=1)
    series_coarse_step_seconds: int = Field(default=600, ge=1)
    series_fine_keep_seconds: float = Field(default=6 * 3600.0, gt=0)
    series_middle_keep_seconds: float = Field(default=2 * 86_400.0, gt=0)
    series_keep_seconds: float = Field(default=14 * 86_400.0, gt=0)
    # New points are written so often: so much is missing after the monitor was killed.
    series_write_seconds: float = Field(default=60.0, gt=0, le=600)
    series_rows_at_once: int = Field(default=200, ge=1, le=5000)
    # In memory there is one block for each node, and one for each run on each node.
    series_blocks_max: int = Field(default=100_000, ge=1)
    # An answer has so many points of one series, and so many in all of its series; so many stored
    # blocks are read for it.
    series_points_max: int = Field(default=500, ge=10, le=5000)
    series_reply_points_max: int = Field(default=40_000, ge=1000, le=50_000)
    series_blocks_read_max: int = Field(default=2000, ge=100)
    # A sample counts as the present state of a node or task for so long.
    newest_seconds: float = Field(default=60.0, gt=0, le=3600)

    # On /metrics: GPUs under the names of DCGM's exporter (off where that runs, too), and so many
    # tasks at most; 0: none.
    dcgm_metrics: bool = True
    task_metrics_max: int = Field(default=0, ge=0, le=10_000)

    # A GPU whose utilization stays below so many percent for so long is idle. A run is quiet while
    # all of its GPUs are idle and none of its ranks uses so many processors, for so long.
    idle_gpu_percent: float = Field(default=10.0, gt=0, le=100)
    idle_gpu_seconds: float = Field(default=600.0, gt=0)
    quiet_cpu_cores: float = Field(default=0.05, gt=0)
    quiet_seconds: float = Field(default=600.0, gt=0)
    # The sums of a run's idle time are published so often, and when something begins or ends to be
    # idle.
    activity_publish_seconds: float = Field(default=600.0, gt=0)

    # Rules that find abnormal tasks: a file (YAML or JSON) with what differs from the defaults.
    rules_file: Annotated[Path | None, AfterValidator(_rules)] = None
    # True: actions that change a task or a node are listed and not carried out.
    rules_dry_run: bool = False
    rules_tick_seconds: float = Field(default=30.0, gt=0, le=30)
    # Actions beyond notify and tag that are carried out in an hour: of one rule, and of all.
    rule_actions_per_hour: int = Field(default=10, ge=0, le=10_000)
    rules_actions_per_hour: int = Field(default=20, ge=0, le=10_000)
    # A rule cordons a node once it names it for tasks of so many owners: what the tasks of one do
    # there may be their fault. 1: a user whose task fails often enough cordons its node.
    cordon_owners_min: int = Field(default=2, ge=1, le=100)
    # How long findings are kept after their task's end, and actions after their finding's begin;
    # actions for an hour at least, because the limits of an hour count them.
    findings_keep_seconds: float = Field(default=30 * 86_400.0, gt=0)

    def networks(self) -> tuple[Network, ...]:
        """The networks inside the site that webhooks may reach."""
        return tuple(ip_network(each) for each in self.webhook_networks.split())

    def pauses(self) -> Pauses:
        """When deliveries are tried again, and given up."""
        return Pauses(
            first_seconds=self.delivery_pause_seconds,
            most_seconds=self.delivery_pause_seconds_max,
            tries_max=self.delivery_tries_max,
            failing_seconds_max=self.delivery_failing_seconds_max,
        )

    def rule_book(self) -> RuleBook:
        """The rules that find abnormal tasks. RulesFileError names what is wrong with the file."""
        return read_rules(
            self.rules_file,
            idle_seconds=self.idle_gpu_seconds,
            quiet_seconds=self.quiet_seconds,
        )

    def action_limits(self) -> ActionLimits:
        """How many actions of rules are carried out."""
        return ActionLimits(self.rule_actions_per_hour, self.rules_actions_per_hour)

    def mail_password(self) -> str | None:
        """The mail server's password, read now; None if there is no login."""
        return read_secret(self.mail_password_file)

    def mail_rate_of_person(self) -> MailRate:
        """How often one person gets mail."""
        return MailRate(self.mail_person_burst, self.mail_person_seconds)

    def mail_rate_of_site(self) -> MailRate:
        """How often the site sends mail."""
        return MailRate(self.mail_site_burst, self.mail_site_seconds)

    @model_validator(mode="after")
    def _check_mail(self) -> Self:
        """Mail needs all of its parts, and fails at the start instead of at the first mail."""
        if not self.mail_host:
            return self
        if not self.mail_from:
            raise self.conflict(
                "{mail_host} needs {mail_from}, the sender's address", "set {mail_from}"
            )
        if bool(self.mail_user) != bool(self.mail_password_file):
            raise self.conflict(
                "of {mail_user} and {mail_password_file} only one is set",
                "set both for a login at the mail server, or none of them",
            )
        if self.mail_user and self.mail_security == "none":
            raise self.conflict(
                "{mail_security} is none, and would send the password of {mail_user} unencrypted",
                "set {mail_security} to starttls or tls, or unset {mail_user}",
            )
        return self

    def activity_limits(self) -> ActivityLimits:
        """What idle and quiet mean."""
        return ActivityLimits(
            idle_percent=self.idle_gpu_percent,
            idle_seconds=self.idle_gpu_seconds,
            quiet_cores=self.quiet_cpu_cores,
            quiet_seconds=self.quiet_seconds,
            sample_seconds=3.0 * self.series_fine_step_seconds,
        )

    def resolutions(self) -> tuple[Resolution, ...]:
        """The steps of series, the finest first."""
        return (
            Resolution(self.series_fine_step_seconds, self.series_fine_keep_seconds),
            Resolution(self.series_middle_step_seconds, self.series_middle_keep_seconds),
            Resolution(self.series_coarse_step_seconds, self.series_keep_seconds),
        )

    @model_validator(mode="after")
    def _check_rules(self) -> Self:
        try:
            self.rule_book()
        except RulesFileError as problem:
            raise self.conflict("{problem}", "correct {rules_file}", problem=problem) from None
        return self

    @model_validator(mode="after")
    def _check_series(self) -> Self:
        found = self.resolutions()
        try:
            check_steps([each.step_s for each in found])
        except ValueError as problem:
            raise self.conflict(
                "{problem}",
                "correct {series_fine_step_seconds}, {series_middle_step_seconds} or"
                " {series_coarse_step_seconds}",
                problem=problem,
            ) from None
        keeps = ("series_fine_keep_seconds", "series_middle_keep_seconds", "series_keep_seconds")
        for (fine, coarse), (shorter, longer) in zip(
            itertools.pairwise(found), itertools.pairwise(keeps), strict=True
        ):
            least = max(fine.keep_s, 2 * fine.step_s * POINTS)
            if coarse.keep_s < least:
                raise self.conflict(
                    f"{{{longer}}} ({{kept:g}} s) is too short: points of {coarse.step_s} s are"
                    f" kept as long as those of {fine.step_s} s ({{{shorter}}}), and twice as long"
                    " as a block of those",
                    f"set {{{longer}}} to {{least:g}} or more",
                    kept=coarse.keep_s,
                    least=least,
                )
        return self
