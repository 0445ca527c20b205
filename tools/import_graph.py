"""Which package imports which, as a page with a diagram. Used by ``generate_docs.py``."""

from __future__ import annotations

import grimp

PACKAGES = ("libs", "services")
# ``libs.bus``, ``services.submit``.
DEPTH = 2


def edges() -> list[tuple[str, str]]:
    """Pairs of packages of which the first imports the second."""
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    found: set[tuple[str, str]] = set()
    for module in graph.modules:
        for imported in graph.find_modules_directly_imported_by(module):
            pair = package(module), package(imported)
            if all(pair) and pair[0] != pair[1]:
                found.add(pair)
    return sorted(found)


def package(module: str) -> str:
    """The package of a module; empty for the top itself."""
    parts = module.split(".")
    return ".".join(parts[:DEPTH]) if len(parts) >= DEPTH else ""


def page() -> str:
    """``docs/generated/imports.md``."""
    lines = [
        "# Imports",
        "",
        "Services import libraries and never each other; `allinone` alone imports all of them.",
        "The SDK with the command line (`libs/sdk`) imports none of these.",
        "",
        "```mermaid",
        "graph TD",
        *(f"  {importer} --> {imported}" for importer, imported in edges()),
        "```",
    ]
    return "\n".join(lines) + "\n"
