"""JSON schemas of policies. GENERATED from the scheduler's fields by `make gen`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SCHEMAS: Mapping[str, Any] = {
    "PolicyDemotion": {
        "title": "PolicyDemotion",
        "description": "A task at ``level`` counts at ``to`` once it ran so long.",
        "type": "object",
        "properties": {
            "level": {
                "type": "string",
                "enum": [
                    "idle",
                    "low",
                    "below_normal",
                    "normal",
                    "above_normal",
                    "high",
                    "very_high",
                    "extreme_high",
                ],
            },
            "to": {
                "type": "string",
                "enum": [
                    "idle",
                    "low",
                    "below_normal",
                    "normal",
                    "above_normal",
                    "high",
                    "very_high",
                    "extreme_high",
                ],
            },
            "after": {
                "description": "1 to 365d; write seconds, or 90s, 15m, 4h, 2d",
                "anyOf": [
                    {"type": "number", "minimum": 1, "maximum": 31536000},
                    {"type": "string", "pattern": "^(\\d{1,12}(?:\\.\\d{1,9})?)(s|m|h|d)?$"},
                ],
            },
        },
        "required": ["level", "to", "after"],
        "additionalProperties": False,
    },
    "PolicyDocument": {
        "title": "PolicyDocument",
        "description": "How one node group is shared. What a document leaves out has its default.",
        "type": "object",
        "properties": {
            "policy": {
                "anyOf": [
                    {
                        "type": "string",
                        "enum": ["timeshare", "rotation", "fifo", "backfill", "easy", "las"],
                    },
                    {"type": "null"},
                ]
            },
            "timeshare": {
                "anyOf": [{"$ref": "#/components/schemas/PolicyTimeshare"}, {"type": "null"}]
            },
            "rotation": {
                "anyOf": [{"$ref": "#/components/schemas/PolicyRotation"}, {"type": "null"}]
            },
            "demotions": {
                "anyOf": [
                    {
                        "type": "array",
                        "items": {"$ref": "#/components/schemas/PolicyDemotion"},
                        "maxItems": 8,
                    },
                    {"type": "null"},
                ]
            },
            "shares": {"anyOf": [{"$ref": "#/components/schemas/PolicyShares"}, {"type": "null"}]},
            "virtual_clusters": {
                "anyOf": [
                    {
                        "type": "array",
                        "items": {"$ref": "#/components/schemas/PolicyVirtualCluster"},
                        "maxItems": 1000,
                    },
                    {"type": "null"},
                ]
            },
            "protected": {
                "anyOf": [
                    {
                        "description": "0 to 30d; write seconds, or 90s, 15m, 4h, 2d",
                        "anyOf": [
                            {"type": "number", "minimum": 0, "maximum": 2592000},
                            {
                                "type": "string",
                                "pattern": "^(\\d{1,12}(?:\\.\\d{1,9})?)(s|m|h|d)?$",
                            },
                        ],
                    },
                    {"type": "null"},
                ]
            },
            "topology": {
                "anyOf": [
                    {
                        "type": "array",
                        "items": {
                            "type": "string",
                            "pattern": "^[A-Za-z0-9]([-A-Za-z0-9_./]{0,251}[A-Za-z0-9])?$",
                        },
                        "maxItems": 8,
                        "uniqueItems": True,
                    },
                    {"type": "null"},
                ]
            },
            "cross_zone_gangs_max": {
                "anyOf": [{"type": "integer", "minimum": 0, "maximum": 1000000}, {"type": "null"}]
            },
        },
        "required": [],
        "additionalProperties": False,
    },
    "PolicyFile": {
        "title": "PolicyFile",
        "description": "The policies of node groups. A group that is null loses its own.",
        "type": "object",
        "properties": {
            "groups": {
                "type": "object",
                "additionalProperties": {
                    "anyOf": [{"$ref": "#/components/schemas/PolicyDocument"}, {"type": "null"}]
                },
                "propertyNames": {
                    "type": "string",
                    "pattern": "^[a-z0-9]([-_a-z0-9]{0,61}[a-z0-9])?$",
                },
                "maxProperties": 1000,
            }
        },
        "required": ["groups"],
        "additionalProperties": False,
    },
    "PolicyRotation": {
        "title": "PolicyRotation",
        "description": "The numbers of the ``rotation`` discipline; seconds.",
        "type": "object",
        "properties": {
            "first_slice": {
                "anyOf": [
                    {
                        "description": "1 to 365d; write seconds, or 90s, 15m, 4h, 2d",
                        "anyOf": [
                            {"type": "number", "minimum": 1, "maximum": 31536000},
                            {
                                "type": "string",
                                "pattern": "^(\\d{1,12}(?:\\.\\d{1,9})?)(s|m|h|d)?$",
                            },
                        ],
                    },
                    {"type": "null"},
                ]
            },
            "slice": {
                "anyOf": [
                    {
                        "description": "1 to 365d; write seconds, or 90s, 15m, 4h, 2d",
                        "anyOf": [
                            {"type": "number", "minimum": 1, "maximum": 31536000},
                            {
                                "type": "string",
                                "pattern": "^(\\d{1,12}(?:\\.\\d{1,9})?)(s|m|h|d)?$",
                            },
                        ],
                    },
                    {"type": "null"},
                ]
            },
            "half_life": {
                "anyOf": [
                    {
                        "description": "1 to 365d; write seconds, or 90s, 15m, 4h, 2d",
                        "anyOf": [
                            {"type": "number", "minimum": 1, "maximum": 31536000},
                            {
                                "type": "string",
                                "pattern": "^(\\d{1,12}(?:\\.\\d{1,9})?)(s|m|h|d)?$",
                            },
                        ],
                    },
                    {"type": "null"},
                ]
            },
        },
        "required": [],
        "additionalProperties": False,
    },
    "PolicyShares": {
        "title": "PolicyShares",
        "description": "Weights between users (default 1); a user of a team has the team's weight unless named.",
        "type": "object",
        "properties": {
            "users": {
                "anyOf": [
                    {
                        "type": "object",
                        "additionalProperties": {
                            "type": "number",
                            "minimum": 0.001,
                            "maximum": 1000,
                        },
                        "propertyNames": {
                            "type": "string",
                            "pattern": "^[a-z0-9]([-_a-z0-9]{0,61}[a-z0-9])?$",
                        },
                        "maxProperties": 10000,
                    },
                    {"type": "null"},
                ]
            },
            "teams": {
                "anyOf": [
                    {
                        "type": "object",
                        "additionalProperties": {
                            "type": "number",
                            "minimum": 0.001,
                            "maximum": 1000,
                        },
                        "propertyNames": {
                            "type": "string",
                            "pattern": "^[a-z0-9]([-_a-z0-9]{0,61}[a-z0-9])?$",
                        },
                        "maxProperties": 10000,
                    },
                    {"type": "null"},
                ]
            },
        },
        "required": [],
        "additionalProperties": False,
    },
    "PolicyTimeshare": {
        "title": "PolicyTimeshare",
        "description": "The parameters of the ``timeshare`` discipline; times are in seconds.",
        "type": "object",
        "properties": {
            "pass": {
                "anyOf": [
                    {
                        "description": "1 to 1d; write seconds, or 90s, 15m, 4h, 2d",
                        "anyOf": [
                            {"type": "number", "minimum": 1, "maximum": 86400},
                            {
                                "type": "string",
                                "pattern": "^(\\d{1,12}(?:\\.\\d{1,9})?)(s|m|h|d)?$",
                            },
                        ],
                    },
                    {"type": "null"},
                ]
            },
            "restart": {
                "anyOf": [
                    {
                        "description": "0 to 7d; write seconds, or 90s, 15m, 4h, 2d",
                        "anyOf": [
                            {"type": "number", "minimum": 0, "maximum": 604800},
                            {
                                "type": "string",
                                "pattern": "^(\\d{1,12}(?:\\.\\d{1,9})?)(s|m|h|d)?$",
                            },
                        ],
                    },
                    {"type": "null"},
                ]
            },
            "budget_share": {
                "anyOf": [{"type": "number", "minimum": 0, "maximum": 1}, {"type": "null"}]
            },
            "grant_share": {
                "anyOf": [{"type": "number", "minimum": 0, "maximum": 1}, {"type": "null"}]
            },
            "grant_after": {
                "anyOf": [
                    {
                        "description": "1 to 365d; write seconds, or 90s, 15m, 4h, 2d",
                        "anyOf": [
                            {"type": "number", "minimum": 1, "maximum": 31536000},
                            {
                                "type": "string",
                                "pattern": "^(\\d{1,12}(?:\\.\\d{1,9})?)(s|m|h|d)?$",
                            },
                        ],
                    },
                    {"type": "null"},
                ]
            },
            "slice_min": {
                "anyOf": [
                    {
                        "description": "1 to 365d; write seconds, or 90s, 15m, 4h, 2d",
                        "anyOf": [
                            {"type": "number", "minimum": 1, "maximum": 31536000},
                            {
                                "type": "string",
                                "pattern": "^(\\d{1,12}(?:\\.\\d{1,9})?)(s|m|h|d)?$",
                            },
                        ],
                    },
                    {"type": "null"},
                ]
            },
            "slice_share": {
                "anyOf": [{"type": "number", "minimum": 0, "maximum": 100}, {"type": "null"}]
            },
            "hold": {
                "anyOf": [
                    {
                        "description": "0 to 365d; write seconds, or 90s, 15m, 4h, 2d",
                        "anyOf": [
                            {"type": "number", "minimum": 0, "maximum": 31536000},
                            {
                                "type": "string",
                                "pattern": "^(\\d{1,12}(?:\\.\\d{1,9})?)(s|m|h|d)?$",
                            },
                        ],
                    },
                    {"type": "null"},
                ]
            },
            "use_limits": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
            "adapt_times": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
            "flood_guard": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
        },
        "required": [],
        "additionalProperties": False,
    },
    "PolicyVirtualCluster": {
        "title": "PolicyVirtualCluster",
        "description": "Nodes guaranteed to teams and users. Other tasks borrow what is idle. ``nodes`` is a number of node equivalents: 0.5 is half of a node's GPUs. ``parent`` names the virtual cluster that this one is a part of: inside it, it borrows before others do.",
        "type": "object",
        "properties": {
            "name": {"type": "string", "pattern": "^[a-z0-9]([-_a-z0-9]{0,61}[a-z0-9])?$"},
            "parent": {
                "anyOf": [
                    {"type": "string", "pattern": "^[a-z0-9]([-_a-z0-9]{0,61}[a-z0-9])?$"},
                    {"type": "null"},
                ]
            },
            "teams": {
                "anyOf": [
                    {
                        "type": "array",
                        "items": {
                            "type": "string",
                            "pattern": "^[a-z0-9]([-_a-z0-9]{0,61}[a-z0-9])?$",
                        },
                        "maxItems": 10000,
                        "uniqueItems": True,
                    },
                    {"type": "null"},
                ]
            },
            "users": {
                "anyOf": [
                    {
                        "type": "array",
                        "items": {
                            "type": "string",
                            "pattern": "^[a-z0-9]([-_a-z0-9]{0,61}[a-z0-9])?$",
                        },
                        "maxItems": 10000,
                        "uniqueItems": True,
                    },
                    {"type": "null"},
                ]
            },
            "nodes": {
                "anyOf": [{"type": "number", "minimum": 0, "maximum": 1000000}, {"type": "null"}]
            },
            "nodes_max": {
                "anyOf": [{"type": "number", "minimum": 0, "maximum": 1000000}, {"type": "null"}]
            },
        },
        "required": ["name"],
        "additionalProperties": False,
    },
}
