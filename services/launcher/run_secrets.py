"""Answers log-collector, which masks the output of pods: by which texts a run's secrets are found.

The values come from the run, or from what is remembered of its task after its end, and are stored
nowhere else. Wired in ``main.py``.
"""

from __future__ import annotations

from dataclasses import dataclass

from libs.contracts.ids import RunId, TaskId
from libs.contracts.messages import ListSecretForms, ListSecretFormsReply, Refusal, RefusalCode
from libs.service.masking import secret_forms
from libs.store.port import Op, Store, Where
from services.launcher.domain.model import PastRun, Run
from services.launcher.run_orders import Site, secret_values


@dataclass(frozen=True, slots=True)
class RunSecrets:
    """The query ``ListSecretForms``."""

    store: Store
    site: Site

    async def answer(self, query: ListSecretForms) -> ListSecretFormsReply:
        """The texts of one run. Of an earlier attempt of a task, those of the attempts that are
        still known: a task's variables do not change."""
        async with self.store.transaction() as tx:
            runs = await tx.select(Run, Where("task_id", Op.EQ, query.task_id))
            past = await tx.get(PastRun, query.task_id)
        known = [*(run.spec for run in runs), past.spec if past else None]
        specs = [spec for spec in known if spec is not None]
        if not specs:
            detail = f"task {query.task_id} has no run that is remembered here"
            return ListSecretFormsReply(refusal=Refusal(code=RefusalCode.NOT_FOUND, detail=detail))
        run_id = RunId(TaskId(query.task_id), query.attempt)
        values = [value for spec in specs for value in secret_values(spec, run_id, self.site)]
        return ListSecretFormsReply(forms=secret_forms(dict.fromkeys(values)))
