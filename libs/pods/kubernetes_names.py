"""The platform's names in Kubernetes: the label domain, container names and label values.

The launcher makes pods with them; ``field_validators.py`` keeps pod templates off them.
"""

from __future__ import annotations

import hashlib
import re

from libs.contracts.ids import RunId, is_label_value

DOMAIN = "shiftwork.dev"
# The label by which the launcher finds its objects, and its value.
MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGER = "shiftwork"
# The default namespace of tasks.
TASKS_NAMESPACE = "shiftwork-tasks"
# The ConfigMap there in which the launcher keeps its epoch.
EPOCH_MAP = "shiftwork-launcher"
# The node agents: where they are, how they are found, where they listen.
AGENT_NAMESPACE = "shiftwork"
AGENT_LABEL = "app.kubernetes.io/component=log-agent"
AGENT_PORT = 8650
# The task's own container, and the one that brings the SDK.
MAIN = "main"
SDK_CONTAINER = "shiftwork-sdk"
# Reserved for containers and volumes of the platform.
OWN_PREFIX = "shiftwork-"
STORAGE_PREFIX = "storage-"
SDK_FOLDER = "/shiftwork/sdk"
CONTEXT_FOLDER = "/etc/shiftwork"
HOME_FOLDER = "/shiftwork/home"
_INVALID_CHARACTERS = re.compile(r"[^A-Za-z0-9_.-]")
_KEPT_MAX = 50


def run_name(run_id: RunId) -> str:
    """The name of a run's own objects."""
    return f"{run_id.task_id}-{run_id.attempt}"


def pod_name(run_id: RunId, rank: int) -> str:
    """The name of a rank's pod, which is also its host name."""
    return f"{run_name(run_id)}-{rank}"


def is_platforms_key(key: str) -> bool:
    """True if only the platform may set this label or annotation key."""
    domain = key.rpartition("/")[0].lower()
    return domain == DOMAIN or domain.endswith(f".{DOMAIN}") or key.lower() == MANAGED_BY


def label_value(text: str) -> str:
    """Return the text as a label value: unchanged if valid, else a readable part and a digest."""
    if is_label_value(text):
        return text
    kept = _INVALID_CHARACTERS.sub("-", text)[:_KEPT_MAX].strip("-_.")
    digest = hashlib.sha256(text.encode()).hexdigest()[:10]
    return f"{kept}-{digest}" if kept else digest
