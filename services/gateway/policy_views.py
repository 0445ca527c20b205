"""Policies and dry runs as the JSON that people and programs see. Called by ``api/policies.py``."""

from __future__ import annotations

import json

from libs.contracts.messages import PolicyEffect, PolicyOutlook, PolicyRecord, Verdict
from services.gateway.json_values import enum_name, rfc3339
from services.gateway.views import Json, plain, reason


def policy(message: PolicyRecord) -> Json:
    """How a node group is shared."""
    return {
        "group": message.group,
        "policy": message.policy,
        "document": json.loads(message.document),
        "version": message.version,
        "source": enum_name(message.source),
        "changed_by": message.changed_by or None,
        "changed_at": rfc3339(message.changed_at),
    }


def policy_effect(effect: PolicyEffect) -> Json:
    """What would be decided otherwise about one task."""
    return {
        "task": effect.task_id,
        "name": effect.name,
        "owner": effect.owner,
        "group": effect.group,
        "state": enum_name(effect.state),
        "nodes": effect.nodes,
        "now": _verdict(effect.now),
        "then": _verdict(effect.then),
    }


def _verdict(given: Verdict) -> Json | None:
    if not given.kind:
        return None
    return {
        "decision": given.kind,
        "reason": reason(given.reason),
        "beneficiary": given.beneficiary or None,
    }


def policy_outlook(outlook: PolicyOutlook) -> Json:
    """What one round does to a group, now and under other policies."""
    return {"group": outlook.group, "now": plain(outlook.now), "then": plain(outlook.then)}
