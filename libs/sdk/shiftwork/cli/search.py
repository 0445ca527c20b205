"""``shiftwork logs --search``: the server searches kept output; the rest is searched here."""

from __future__ import annotations

import re
from typing import Any, Callable, NamedTuple

from shiftwork.cli import follow, render
from shiftwork.cli.client import Api
from shiftwork.cli.failures import Failure, usage
from shiftwork.client.streams import bytes_of

LINES_OF_PAGE = 1000


class Shown:
    """Which lines are shown, and how; and whether any was."""

    def __init__(
        self, printer: follow.Printer, wanted: Callable[[bytes], object] | None = None
    ) -> None:
        # Of ``wanted`` None stands for all lines.
        self.printer, self.wanted = printer, wanted
        self.any = False

    @property
    def is_plain(self) -> bool:
        """Nothing is added or taken away."""
        added = self.printer.ranks or self.printer.times
        return self.wanted is None and not added and not render.wants_json()

    def show(self, lines: list[follow.Line]) -> None:
        """Print those that are wanted."""
        wanted = self.wanted
        chosen = [line for line in lines if wanted is None or wanted(line.text)]
        self.any = self.any or bool(chosen)
        self.printer.show(chosen)

    def show_bytes(self, data: bytes) -> None:
        """Print output as it is."""
        self.any = self.any or bool(data)
        render.raw(data)


class Search(NamedTuple):
    """A search of kept output, which the server does."""

    pattern: str
    text: bool = False
    ignore_case: bool = False
    before: int = 0
    after: int = 0

    def compiled(self, *, here: bool) -> re.Pattern[bytes] | None:
        """What is searched for here; None where the server searches, or nothing does."""
        if not self.pattern:
            for given, name in (
                (self.text, "--text"),
                (self.ignore_case, "--ignore-case"),
                (self.after or self.before, "-A, -B or -C"),
            ):
                if given:
                    raise usage(
                        f"{name} stands without --search", where=name, fix="add --search RE"
                    )
            return None
        if not here:
            return None
        if self.before or self.after:
            raise usage(
                "lines around a match are shown of a search of all that is kept",
                where="-C",
                fix="leave out --follow, --tail, --before and --after, or -A, -B and -C",
            )
        pattern = re.escape(self.pattern) if self.text else self.pattern
        try:
            return re.compile(pattern.encode(), re.IGNORECASE if self.ignore_case else 0)
        except re.error as error:
            raise usage(
                f"{self.pattern!r} is no regular expression: {error}",
                where="--search",
                fix="correct it",
            ) from None

    def _page(self, api: Api, path: str, ask: dict[str, Any]) -> Any:  # noqa: ANN401 - JSON
        try:
            return api.get(path, ask)
        except Failure as failure:
            for error in failure.problem.get("errors") or ():
                if error.get("field") == "pattern":
                    what = f"{self.pattern!r} {error['message']}"
                    fix = f"{error['fix']} (--text)"
                    raise usage(what, where="--search", fix=fix) from None
            raise

    def show(self, api: Api, path: str, query: dict[str, Any], shown: Shown) -> None:
        """Print the lines that match, page by page."""
        ask: dict[str, Any] = {
            **query,
            "pattern": self.pattern,
            "literal": 1 if self.text else None,
            "ignore_case": 1 if self.ignore_case else None,
            "lines_before": self.before or None,
            "lines_after": self.after or None,
            "limit": LINES_OF_PAGE,
        }
        printed = Printed(shown, groups=bool(self.before or self.after))
        unreadable: dict[tuple[int, int], str] = {}
        searched = 0
        with render.Progress() as progress:
            while True:
                page = self._page(api, path, ask)
                searched += page["searched_bytes"]
                for line in page["lines"]:
                    printed.show(line)
                for each in page["unreadable"]:
                    unreadable[each["attempt"], each["rank"]] = each["problem"]
                if not page["more"]:
                    break
                ask["after"] = page["end"]
                all_bytes = searched + page["left_bytes"]
                progress.show(f"searched {searched:,} of {all_bytes:,} bytes")
        for (number, rank), problem in sorted(unreadable.items()):
            render.warning(f"rank {rank} of attempt {number} was not searched: {problem}")


class Printed:
    """Prints found lines with the lines around them, each once, and -- between groups of them."""

    def __init__(self, shown: Shown, *, groups: bool) -> None:
        self._shown, self._groups = shown, groups
        # Of each attempt and rank the end of the last line that was printed; and whose that is.
        self._ends: dict[tuple[int, int], int] = {}
        self._last: tuple[int, int] | None = None

    def show(self, found: dict[str, Any]) -> None:
        """Print one of them."""
        if render.wants_json():
            self._shown.any = True
            render.record(_found_record(found))
            return
        key = (found["attempt"], found["rank"])
        around = [*found.get("lines_before", ()), found, *found.get("lines_after", ())]
        lines = [line for line in around if line["offset"] >= self._ends.get(key, 0)]
        if not lines:
            return
        joined = self._last == key and lines[0]["offset"] == self._ends[key]
        if self._groups and self._last is not None and not joined:
            render.raw(b"--\n")
        self._last, self._ends[key] = key, lines[-1]["offset"] + len(bytes_of(lines[-1])) + 1
        self._shown.show([_line(line) for line in lines])


def _line(found: dict[str, Any]) -> follow.Line:
    return follow.Line(
        found["attempt"],
        found["rank"],
        found["role"],
        follow.last_state(bytes_of(found)),
        at=found["at"] or "",
        approximate=bool(found.get("approximate")),
    )


def _found_record(found: dict[str, Any]) -> dict[str, Any]:
    """A line as JSON, with text whatever its bytes are."""
    names = ("attempt", "rank", "role", "offset", "at")
    record = {name: found[name] for name in names}
    record["text"] = bytes_of(found).decode("utf-8", "replace")
    for name in ("lines_before", "lines_after"):
        if name in found:
            record[name] = [_found_record(line) for line in found[name]]
    return record
