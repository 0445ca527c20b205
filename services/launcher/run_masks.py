"""Masks the secrets of a run in what its program and the cluster write about it, before that is
recorded, published or logged. Called by ``loop.py`` for all that a runtime answers, and by the
command with which a program hands its nodes over.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from libs.contracts.ids import RunId
from libs.contracts.run_token import make_run_token
from libs.service.masking import Masker, secret_forms
from services.launcher.domain.model import Listing, ObservedRank, ObservedRun, Run
from services.launcher.run_orders import Site, secret_values


class Mask:
    """Masks texts about one run."""

    def __init__(self, values: Iterable[str]) -> None:
        values = tuple(values)
        self._forms = secret_forms(dict.fromkeys([*values, *map(_in_one_line, values)]))
        # Keeps in memory what all texts are searched by.
        self._kept = Masker(self._forms)

    def text(self, text: str, *, resumed: bool = False) -> str:
        """The text without secrets; ``resumed``: it may begin within one."""
        if not text:
            return text
        masker = Masker(self._forms, resumed=resumed)
        data = text.encode(errors="replace")
        return (masker.feed(data) + masker.flush()).decode(errors="replace")

    def rank(self, rank: ObservedRank) -> ObservedRank:
        """A rank with a masked note. The words of a program may be the end of its output."""
        if not rank.note:
            return rank
        words = rank.words if rank.note.endswith(rank.words) else ""
        before = self.text(rank.note.removesuffix(words))
        return replace(rank, note=before + self.text(words, resumed=True), words="")


def _in_one_line(value: str) -> str:
    """The lines of a value as a text of one line has them: without other white space than single
    spaces."""
    return "\n".join(" ".join(line.split()) for line in value.splitlines())


@dataclass
class RunMasks:
    """The masks of all runs; what is in memory only saves work."""

    site: Site
    # By run, what a runtime listed, and that without secrets.
    _listed: dict[RunId, tuple[ObservedRun, ObservedRun]] = field(
        default_factory=dict[RunId, tuple[ObservedRun, ObservedRun]]
    )

    def text(self, run: Run, text: str) -> str:
        """A text about a run."""
        return self._mask(run).text(text)

    def listing(self, listing: Listing, runs: Mapping[RunId, Run]) -> Listing:
        """A listing with masked notes. Those of a run without a row, whose secrets are not known,
        are left out: nothing reads them."""
        listed = {
            run_id: self._run(each, runs.get(run_id)) for run_id, each in listing.runs.items()
        }
        pairs = ((run_id, (each, listed[run_id])) for run_id, each in listing.runs.items())
        self._listed = {run_id: pair for run_id, pair in pairs if run_id in runs}
        return replace(listing, runs=listed)

    def _run(self, observed: ObservedRun, run: Run | None) -> ObservedRun:
        before, after = self._listed.get(observed.run_id, (None, observed))
        if before is observed and run is not None:
            return after
        if not any(rank.note for rank in observed.ranks.values()):
            return observed
        if run is None:
            ranks = {n: replace(rank, note="", words="") for n, rank in observed.ranks.items()}
        else:
            mask = self._mask(run)
            ranks = {number: mask.rank(rank) for number, rank in observed.ranks.items()}
        return replace(observed, ranks=ranks)

    def _mask(self, run: Run) -> Mask:
        if run.spec is None:
            return Mask([make_run_token(self.site.token_key, run.id)])
        return Mask(secret_values(run.spec, run.id, self.site))
