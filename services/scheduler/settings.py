"""The scheduler's settings: the numbers of the policy, and its own bounds."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

from pydantic import Field, field_validator
from pydantic_settings import SettingsConfigDict

from libs.contracts.messages import Priority
from libs.service.settings import BaseServiceSettings
from services.scheduler.domain.model.group_policy import GroupPolicy, PolicySettings
from services.scheduler.policy_documents import load_file

# The domain declares its numbers and their defaults.
POLICY = PolicySettings()


class SchedulerSettings(BaseServiceSettings):
    """Environment variables ``SHIFTWORK_SCHEDULER_…``."""

    model_config = SettingsConfigDict(
        frozen=True, extra="ignore", env_prefix="SHIFTWORK_SCHEDULER_"
    )

    # More than submit keeps: a task that submit publishes again would run again.
    kept_rows_max: int = Field(default=6_000_000, ge=1000)
    start_deadline_seconds: float = Field(default=POLICY.start_deadline_seconds, gt=0)
    start_attempts_max: int = Field(default=POLICY.start_attempts_max, ge=1)
    # A run is not preempted before it ran so long.
    protected_seconds: float = Field(default=POLICY.protected_seconds, ge=0)
    retry_delay_seconds: float = Field(default=POLICY.retry_delay_seconds, ge=0)
    retry_delay_seconds_max: float = Field(default=POLICY.retry_delay_seconds_max, ge=0)
    # The same for a task that handed its nodes over on its own; the delay grows while it does so
    # sooner after its start than this.
    yield_delay_seconds: float = Field(default=POLICY.yield_delay_seconds, ge=0)
    yield_delay_seconds_max: float = Field(default=POLICY.yield_delay_seconds_max, ge=0)
    yield_soon_seconds: float = Field(default=POLICY.yield_soon_seconds, ge=0)
    # A task that is to stop gets no more than this to save.
    stop_ack_seconds_max: float = Field(default=POLICY.stop_ack_seconds_max, gt=0)
    # The same for a run whose program never polled for a request to leave (mode sdk). If it polls
    # within this time, it gets the whole deadline.
    silent_ack_seconds_max: float = Field(default=POLICY.silent_ack_seconds_max, gt=0)
    # An attempt in debug mode lasts no longer than this; then its task is paused. A task with a
    # shorter maximum run time has that.
    debug_seconds_max: float = Field(default=POLICY.debug_seconds_max, gt=0)
    # CPU-only ranks on one node whose number of CPUs is not known.
    cpu_ranks_per_node: int = Field(default=POLICY.cpu_ranks_per_node, ge=1)
    # AUTO rises above this only to a level that a limit names together with the owner or the
    # team; limits for each user only lower it.
    auto_level_max: Priority = POLICY.auto_level_max
    # From so many attempts in a row without a newer checkpoint, the owner is warned.
    no_progress_attempts: int = Field(default=POLICY.no_progress_attempts, ge=1)

    # The policies of groups for which no command set one (docs/policies.md); none: the defaults.
    policy_file: Path | None = None
    policy_document_bytes_max: int = Field(default=262_144, ge=1024, le=262_144)
    # Groups on one page of policies, and tasks that one dry run names.
    policies_page_max: int = Field(default=500, ge=1, le=1000)
    dry_run_effects_max: int = Field(default=200, ge=1, le=1000)
    # How long one dry run may take: less than the gateway waits for an answer.
    dry_run_seconds_max: float = Field(default=8.0, gt=0, le=60)

    # How often a round is made when nothing woke the loop.
    tick_seconds: float = Field(default=1.0, gt=0, le=60)
    # After a node was opened for new runs, decisions wait so long for further nodes (at most four
    # times as long while nodes keep opening); 0: they do not wait.
    node_settle_seconds: float = Field(default=0.5, ge=0, le=10)
    # Where snapshots of refused plans are written, at most so many; none: not written.
    dumps: Path | None = None
    dumps_max: int = Field(default=20, ge=1)
    # After so many refusals in a row of one group's decisions the working set is loaded again, the
    # alarm is raised, and `explain` reports it.
    refusals_max: int = Field(default=5, ge=1, le=1000)
    # A refused group is tried again after a tick, then after twice as long each time, at the latest
    # after this. Its deadlines, goals and drains do not wait.
    refusal_backoff_seconds_max: float = Field(default=30.0, gt=0, le=3600)
    # A task whose assignment is larger than an event may be is tried again after so long.
    too_large_retry_seconds: float = Field(default=600.0, gt=0)
    decisions_keep_seconds: float = Field(default=90 * 86_400.0, gt=0)
    # The last states of ended tasks. Longer than submit keeps the tasks: a task that is forgotten
    # here would start again if submit published it again.
    ended_keep_seconds: float = Field(default=400 * 86_400.0, gt=0)
    # Facts that came before their tasks. Longer than a submission that was set apart can be
    # replayed (dead letters are kept for 30 days).
    early_keep_seconds: float = Field(default=45 * 86_400.0, gt=0)
    # How often what the disciplines learned is saved.
    learn_tick_seconds: float = Field(default=60.0, gt=0)
    # Explanations are made in copies of the process: how many at a time, how many may be asked for
    # at once, and how long one may take (less than the gateway waits for an answer).
    explain_processes_max: int = Field(default=2, ge=1, le=16)
    explain_waiting_max: int = Field(default=32, ge=1, le=1000)
    explain_seconds_max: float = Field(default=4.0, gt=0, le=60)
    # Tasks on one page of the queue: for so long decisions wait for it (some milliseconds).
    queue_page_max: int = Field(default=100, ge=1, le=500)
    decisions_page_max: int = Field(default=500, ge=1, le=5000)
    # How many ended tasks, newest first, a reemit publishes again.
    reemit_tasks_max: int = Field(default=20_000, ge=1)

    @field_validator("policy_file")
    @classmethod
    def _readable(cls, path: Path | None) -> Path | None:
        """Refuse to start with a policy file that is wrong; the error lists all of it."""
        if path is not None:
            load_file(path)
        return path

    def policies(self) -> tuple[GroupPolicy, ...]:
        """The policies of the file, read now."""
        if self.policy_file is None:
            return ()
        return load_file(self.policy_file, default_policy=self.policy().policy)

    def policy(self) -> PolicySettings:
        """The numbers as the domain takes them."""
        names = [each.name for each in fields(PolicySettings)]
        return replace(POLICY, **self.model_dump(include=set(names)))
