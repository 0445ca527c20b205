"""The gateway's OpenAPI document as JSON, for generators of code.

``python -m tools.openapi_document FILE`` writes it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from services.gateway.api.app import application


def text() -> str:
    """The document, the same for the same routes."""
    return json.dumps(application().openapi(), indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(text())
