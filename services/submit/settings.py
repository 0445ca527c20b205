"""What submit is told: defaults and limits of specs, and its own bounds."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, model_validator
from pydantic_settings import SettingsConfigDict

from libs.service.settings import BaseServiceSettings
from services.submit.domain.check import SETTING
from services.submit.domain.model import Defaults, Limits, Rules


class SubmitSettings(BaseServiceSettings):
    """Environment variables ``SHIFTWORK_SUBMIT_…``."""

    model_config = SettingsConfigDict(frozen=True, extra="ignore", env_prefix=SETTING)

    # Nothing waits for what is noted here: many events, one transaction.
    batch_gap_seconds: float = Field(default=0.05, ge=0, le=1)

    # What an empty field of a spec becomes.
    default_group: str = "default"
    default_ack_deadline_seconds: float = Field(default=60.0, gt=0)

    # The bounds of a spec.
    ack_deadline_seconds_min: float = Field(default=1.0, gt=0)
    ack_deadline_seconds_max: float = Field(default=3600.0, gt=0)
    # Assignments carry one placement for each node and must stay below the bus's payload limit:
    # 135 bytes each with names of nodes as they usually are, 400 with the longest and 16 GPUs.
    nodes_max: int = Field(default=8192, ge=1, le=16_384)
    gpus_per_node_max: int = Field(default=1024, ge=0)
    roles_max: int = Field(default=32, ge=1, le=1000)
    command_arguments_max: int = Field(default=1024, ge=1)
    command_bytes_max: int = Field(default=65_536, ge=1)
    env_entries_max: int = Field(default=512, ge=0)
    env_bytes_max: int = Field(default=65_536, ge=0)
    labels_max: int = Field(default=64, ge=0)
    label_characters_max: int = Field(default=1024, ge=1)
    selector_max: int = Field(default=32, ge=0)
    tolerations_max: int = Field(default=32, ge=0)
    spec_bytes_max: int = Field(default=262_144, ge=1024, le=524_288)
    retries_max: int = Field(default=100, ge=0)

    # What pods may be, in YAML or JSON (docs/pods.md); the launcher reads the same file.
    pod_policy_file: Path | None = None

    # So long after its end a task is forgotten, and its client key may make another one. The
    # scheduler keeps the last words of ended tasks longer.
    tasks_keep_seconds: float = Field(default=365 * 86_400.0, gt=0)

    # How many tasks of one user may wait, run or be paused.
    live_tasks_per_user_max: int = Field(default=5_000, ge=1)
    # How many tasks one command may ask for.
    create_tasks_max: int = Field(default=1000, ge=1, le=10_000)
    # How many tasks, newest first, a reemit says again.
    reemit_tasks_max: int = Field(default=20_000, ge=1)

    @model_validator(mode="after")
    def _deadlines_in_order(self) -> SubmitSettings:
        low, high = self.ack_deadline_seconds_min, self.ack_deadline_seconds_max
        if not low <= self.default_ack_deadline_seconds <= high:
            raise ValueError(
                f"default_ack_deadline_seconds {self.default_ack_deadline_seconds:g} is not "
                f"between ack_deadline_seconds_min {low:g} and ack_deadline_seconds_max {high:g}"
            )
        return self

    def rules(self) -> Rules:
        """The defaults and limits as the domain takes them."""
        return Rules(
            defaults=Defaults(
                group=self.default_group,
                ack_deadline_seconds=self.default_ack_deadline_seconds,
            ),
            limits=Limits(
                roles_max=self.roles_max,
                nodes_max=self.nodes_max,
                gpus_per_node_max=self.gpus_per_node_max,
                command_arguments_max=self.command_arguments_max,
                command_bytes_max=self.command_bytes_max,
                env_entries_max=self.env_entries_max,
                env_bytes_max=self.env_bytes_max,
                labels_max=self.labels_max,
                label_characters_max=self.label_characters_max,
                selector_max=self.selector_max,
                tolerations_max=self.tolerations_max,
                spec_bytes_max=self.spec_bytes_max,
                retries_max=self.retries_max,
                ack_deadline_seconds_min=self.ack_deadline_seconds_min,
                ack_deadline_seconds_max=self.ack_deadline_seconds_max,
            ),
        )
