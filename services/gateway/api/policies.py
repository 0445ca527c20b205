"""Policies: how each node group is shared. The scheduler owns them and answers for them.

A body is a policy file as people write it, YAML or JSON: it goes to the scheduler as it is, so
that errors name its own paths and lines.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import Depends, Query, Request
from starlette.responses import Response

from libs.contracts import messages as m
from libs.contracts.messages import FieldError
from services.gateway import policy_views as views
from services.gateway.api import policy_shapes as shapes
from services.gateway.api.deps import (
    Caller,
    Context,
    Force,
    PageQuery,
    Parts,
    allows,
    answer,
    answer_page,
    router_of,
)
from services.gateway.json_values import rfc3339
from services.gateway.known_names import refusal_of, unknown_names
from services.gateway.permissions import Action
from services.gateway.problems import MALFORMED, ProblemError, invalid
from services.gateway.store import After, Sort

router = router_of("policies")
BY_GROUP = Sort("group", False, "group", False)
# Escapes of YAML and JSON that stand for NUL or half a surrogate pair.
_NO_TEXT = re.compile(r"\\(0|x00|u0000|U00000000|[uU](0000)?[dD][89a-fA-F][0-9a-fA-F]{2})")


def _body(*names: str) -> dict[str, Any]:
    """The description of a body that is one of these types, or YAML."""
    kinds = [{"$ref": f"#/components/schemas/{name}"} for name in names]
    return {
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {"schema": kinds[0] if len(kinds) == 1 else {"anyOf": kinds}},
                "application/yaml": {"schema": {"type": "string"}},
            },
        }
    }


ONE, MANY = "PolicyDocument", "PolicyFile"


async def policy_text(request: Request) -> str:
    """The body as text; the guard and the scheduler limit its length."""
    try:
        text = (await request.body()).decode()
    except UnicodeDecodeError:
        raise _malformed("is not UTF-8") from None
    if "\0" in text or _NO_TEXT.search(text):
        raise _malformed("has a NUL character or half a surrogate pair")
    if not text.strip():
        raise invalid("document", None, "is empty", "send a policy file, YAML or JSON")
    return text


def _malformed(why: str) -> ProblemError:
    fix = "send YAML or JSON in UTF-8, and characters as they are instead of as escapes"
    error = FieldError(field="document", value="", message=why, fix=fix)
    return ProblemError(MALFORMED, f"the document {why}; {fix}", [error])


Document = Annotated[str, Depends(policy_text)]


@router.get("/policies", response_model=shapes.PolicyPage)
@allows(Action.READ_CLUSTER)
async def list_policies(caller: Caller, parts: Parts, paging: PageQuery) -> Response:
    """How each node group is shared, those without a policy of their own included."""
    del caller
    after = str(After.read(paging.cursor, BY_GROUP).key) if paging.cursor else ""
    command = m.ListPolicies(after=after, limit=paging.limit)
    reply = await parts.commands.ask(command, m.ListPoliciesReply)
    cursor = None
    if reply.more and reply.policies:
        last = reply.policies[-1].group
        cursor = After(last, last).write(BY_GROUP)
    return answer_page(reply.policies, views.policy, lambda each: each.group, cursor)


@router.get("/policies/{group}", response_model=shapes.Policy)
@allows(Action.READ_CLUSTER)
async def show_policy(group: str, caller: Caller, parts: Parts) -> Response:
    """How one node group is shared."""
    del caller
    reply = await parts.commands.ask(m.ListPolicies(group=group), m.ListPoliciesReply)
    return answer(views.policy(reply.policies[0]))


@router.put(
    "/policies",
    operation_id="policies_set_all",
    response_model=shapes.PolicySet,
    openapi_extra=_body(MANY),
)
@allows(Action.CHANGE_POLICIES, inside=True)
async def put_policies(
    document: Document, caller: Caller, parts: Parts, *, force: Force = False
) -> Response:
    """Set the policies of a file: all of it or nothing. Groups that it does not name stay."""
    return await _set(document, "", caller, parts, force=force)


@router.put("/policies/{group}", response_model=shapes.PolicySet, openapi_extra=_body(ONE))
@allows(Action.CHANGE_POLICIES, inside=True)
async def put_policy(
    group: str, document: Document, caller: Caller, parts: Parts, *, force: Force = False
) -> Response:
    """Set one group's policy. What the document leaves out has its default."""
    return await _set(document, group, caller, parts, force=force)


@router.delete("/policies/{group}", response_model=shapes.PolicySet)
@allows(Action.CHANGE_POLICIES, inside=True)
async def delete_policy(group: str, caller: Caller, parts: Parts) -> Response:
    """Take away what was set for a group: it has the policy file's, or the defaults."""
    document = json.dumps({"groups": {group: None}})
    return await _set(document, "", caller, parts, "policy.take_away", force=True)


async def _set(
    document: str,
    group: str,
    caller: Caller,
    parts: Parts,
    action: str = "policy.set",
    *,
    force: bool,
) -> Response:
    async with parts.changing(caller, action, f"group={group or '*'}") as change:
        command = m.SetPolicy(document=document, group=group, asked_by=caller.user)
        if not force:
            await _check_names(command, parts)
        before = await _documents(parts)
        reply = await change.ask(command, m.SetPolicyReply)
        change.detail = "changed: " + (", ".join(reply.changed)[:200] or "nothing")
        change.note(
            {name: before.get(name) for name in reply.changed},
            await _documents_after(parts, reply.changed),
        )
    return answer(
        {
            "versions": reply.versions,
            "changed": list(reply.changed),
            "warnings": [each.model_dump() for each in reply.warnings],
        }
    )


async def _documents(parts: Context) -> dict[str, str]:
    """The policy document of each group that has one, for the audit trail."""
    reply = await parts.commands.ask(m.ListPolicies(), m.ListPoliciesReply)
    return {each.group: each.document for each in reply.policies}


async def _documents_after(parts: Context, groups: Sequence[str]) -> dict[str, str | None] | None:
    """The documents of groups after their change. None if the scheduler does not answer now: the
    change is made nevertheless."""
    try:
        found = await _documents(parts) if groups else {}
    except ProblemError:
        return None
    return {name: found.get(name) for name in groups}


async def _check_names(command: m.SetPolicy, parts: Context) -> None:
    """Check the names in a policy document. The scheduler reads documents, and the gateway knows
    people and all nodes: it requests from the scheduler which users, teams and groups the document
    names. The response has the errors of both."""
    check = command.model_copy(update={"check_only": True})
    reply = await parts.commands.reply(check, m.SetPolicyReply)
    async with parts.store.transaction() as tx:
        errors = await unknown_names(
            tx, users=reply.users, teams=reply.teams, groups=reply.groups, forcible=True
        )
    refusal = reply.refusal
    if refusal is not None and (refusal.code is not m.RefusalCode.INVALID or not errors):
        raise parts.commands.refused(refusal)
    if errors:
        raise refusal_of(errors, refusal.errors if refusal else ())


@router.post(
    "/policies:dry-run", response_model=shapes.PolicyDryRun, openapi_extra=_body(MANY, ONE)
)
@allows(Action.TRY_POLICIES)
async def dry_run(
    document: Document,
    caller: Caller,
    parts: Parts,
    *,
    group: Annotated[str, Query(max_length=63, description="the document is its alone")] = "",
    limit: Annotated[int | None, Query(ge=1, le=1000, description="tasks to name")] = None,
    force: Force = False,
) -> Response:
    """What would be decided now under these policies. Nothing is changed."""
    del caller
    if not force:
        await _check_names(m.SetPolicy(document=document, group=group), parts)
    command = m.DryRunPolicy(document=document, group=group, limit=limit or 0)
    reply = await parts.commands.ask(command, m.DryRunPolicyReply)
    return answer(
        {
            "effects": [views.policy_effect(each) for each in reply.effects],
            "more": reply.more,
            "outlooks": [views.policy_outlook(each) for each in reply.outlooks],
            "warnings": [each.model_dump() for each in reply.warnings],
            "decided_at": rfc3339(reply.decided_at),
        }
    )
