"""Names of ours inside Kubernetes: the label domain, names of containers, and values of labels.

Used by ``services/launcher`` to make pods and by ``judges.py`` to keep pod templates off them.
"""

from __future__ import annotations

import hashlib
import re

from libs.contracts.ids import is_label_value

DOMAIN = "shiftwork.dev"
# The label by which the launcher finds its objects again, and its value.
MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGER = "shiftwork"
# The task's own container, and the one that brings the SDK.
MAIN = "main"
SDK_CONTAINER = "shiftwork-sdk"
# What begins so names containers and volumes of the platform.
OWN_PREFIX = "shiftwork-"
STORAGE_PREFIX = "storage-"
SDK_FOLDER = "/shiftwork/sdk"
CONTEXT_FOLDER = "/etc/shiftwork"
HOME_FOLDER = "/shiftwork/home"
_UNFIT = re.compile(r"[^A-Za-z0-9_.-]")
_KEPT = 50


def is_platforms_key(key: str) -> bool:
    """True for the keys of labels and annotations that only the platform sets."""
    domain = key.rpartition("/")[0].lower()
    return domain == DOMAIN or domain.endswith(f".{DOMAIN}") or key.lower() == MANAGED_BY


def label_value(text: str) -> str:
    """The text as a label's value: itself if it is one, else a readable part and a digest."""
    if is_label_value(text):
        return text
    kept = _UNFIT.sub("-", text)[:_KEPT].strip("-_.")
    digest = hashlib.sha256(text.encode()).hexdigest()[:10]
    return f"{kept}-{digest}" if kept else digest
