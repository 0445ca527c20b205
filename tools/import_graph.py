"""Which package imports which, as a page with diagrams. Used by ``generate_docs.py``."""

from __future__ import annotations

import grimp

PACKAGES = ("libs", "services")


def diagram(graph: grimp.ImportGraph, inside: str = "", depth: int = 2) -> list[str]:
    """The imports among the packages and modules of a depth, everywhere or inside a package."""
    found: set[tuple[str, str]] = set()
    for module in graph.modules:
        for imported in graph.find_modules_directly_imported_by(module):
            names = [name.split(".")[:depth] for name in (module, imported)]
            within = [".".join(parts).startswith(inside) for parts in names]
            if all(within) and names[0] != names[1] and all(len(each) == depth for each in names):
                found.add((".".join(names[0]), ".".join(names[1])))
    arrows = sorted((a.removeprefix(inside), b.removeprefix(inside)) for a, b in found)
    return ["```mermaid", "graph TD", *(f"  {a} --> {b}" for a, b in arrows), "```"]


def page() -> str:
    """``docs/generated/imports.md``."""
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    lines = [
        "# Imports",
        "",
        "Services import libraries and never each other; `allinone` alone imports all of them.",
        "The SDK with the command line (`libs/sdk`) imports none of these.",
        "",
        *diagram(graph),
    ]
    for library in sorted(graph.find_children("libs")):
        lines += ["", f"## Inside {library}", "", *diagram(graph, f"{library}.", 3)]
    return "\n".join(lines) + "\n"
