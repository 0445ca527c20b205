"""The operations of the API, for asyncio. Generated from the OpenAPI document: change the routes, then `make gen`."""

from __future__ import annotations

from typing import (
    TYPE_CHECKING,
    AsyncGenerator,
    Literal,
    Optional,
    Sequence,
    Union,
)

from shiftwork.client.operations import AsyncListing, AsyncResource, Core, Operation, Text, Workers
from shiftwork.client.streams import EventReader, Output, OutputReader

if TYPE_CHECKING:
    from shiftwork.client import types


class AsyncAbnormal(AsyncResource):
    """``client.abnormal``."""

    def list(
        self,
        *,
        task_id: Optional[str] = None,
        owner: Optional[str] = None,
        team: Optional[str] = None,
        group: Optional[str] = None,
        rule: Optional[str] = None,
        ended: Optional[bool] = None,
        limit: Optional[int] = None,
        cursor: Optional[str] = None,
    ) -> AsyncListing[types.AbnormalTask, types.AbnormalPage]:
        """Tasks that a rule finds abnormal, as far as the caller sees them.

        GET /v1/abnormal

        Args:
            task_id: the task's id
            owner: name of the user who submitted it
            team: name of a team
            group: name of a group of nodes
            rule: such as idle_gpus
            ended: also the last findings that are over
            limit: at most 1000
            cursor: next_cursor of the page before"""
        return self._list(
            Operation("GET", "/v1/abnormal", repeatable=True),
            {},
            {
                "task_id": task_id,
                "owner": owner,
                "team": team,
                "group": group,
                "rule": rule,
                "ended": ended,
                "limit": limit,
                "cursor": cursor,
            },
            {},
        )

    async def rules(self) -> types.AbnormalRules:
        """The rules as the site has set them.

        GET /v1/abnormal/rules"""
        return await self._json(Operation("GET", "/v1/abnormal/rules", repeatable=True), {}, {}, {})


class AsyncAudit(AsyncResource):
    """``client.audit``."""

    def list(
        self,
        *,
        who: Optional[str] = None,
        action: Optional[str] = None,
        target: Optional[str] = None,
        outcome: Optional[str] = None,
        address: Optional[str] = None,
        token: Optional[str] = None,
        from_: Optional[str] = None,
        to: Optional[str] = None,
        limit: Optional[int] = None,
        cursor: Optional[str] = None,
    ) -> AsyncListing[types.AuditEntry, types.AuditPage]:
        """Entries that meet every filter, newest first.

        GET /v1/audit

        Args:
            who: name of the user who did it
            action: its beginning, such as quota or task.goal
            target: what was changed, such as a task's id
            outcome: done, the kind of a refusal, or, if it may have been carried out, started (the gateway ended before the reply) or unknown (no reply came)
            address: where it came from
            token: the id of a token
            from_: RFC 3339, included
            to: RFC 3339, excluded
            limit: at most 1000
            cursor: next_cursor of the page before"""
        return self._list(
            Operation("GET", "/v1/audit", repeatable=True),
            {},
            {
                "who": who,
                "action": action,
                "target": target,
                "outcome": outcome,
                "address": address,
                "token": token,
                "from": from_,
                "to": to,
                "limit": limit,
                "cursor": cursor,
            },
            {},
        )


class AsyncDeadLetters(AsyncResource):
    """``client.dead_letters``."""

    def list(
        self,
        *,
        service: Optional[
            Literal[
                "submit", "scheduler", "launcher", "log_collector", "quota", "monitor", "gateway"
            ]
        ] = None,
        limit: Optional[int] = None,
        cursor: Optional[str] = None,
    ) -> AsyncListing[types.DeadLetter, types.DeadLetterPage]:
        """Events that a service could not handle (received) or that the bus does not take (sent).

        GET /v1/dead-letters

        Args:
            service: the service that set them apart
            limit: at most 1000
            cursor: next_cursor of the page before"""
        return self._list(
            Operation("GET", "/v1/dead-letters", repeatable=True),
            {},
            {"service": service, "limit": limit, "cursor": cursor},
            {},
        )

    async def replay(self, body: types.LettersBody) -> types.Letters:
        """Let a service try again; the list shows the outcome: what succeeded is gone from it.

        POST /v1/dead-letters:replay"""
        return await self._json(
            Operation("POST", "/v1/dead-letters:replay", repeatable=False), {}, {}, {}, body
        )

    async def discard(self, body: types.LettersBody) -> types.Letters:
        """Drop dead letters for good; the answer names those that are gone.

        POST /v1/dead-letters:discard"""
        return await self._json(
            Operation("POST", "/v1/dead-letters:discard", repeatable=False), {}, {}, {}, body
        )


class AsyncEvents(AsyncResource):
    """``client.events``."""

    def list(
        self,
        *,
        task: Optional[str] = None,
        type: Optional[str] = None,
        owner: Optional[str] = None,
        team: Optional[str] = None,
        group: Optional[str] = None,
        from_: Optional[str] = None,
        follow: Optional[bool] = None,
        limit: Optional[int] = None,
        cursor: Optional[str] = None,
        last_event_id: Optional[str] = None,
    ) -> AsyncListing[types.Event, types.EventPage]:
        """Facts in the order in which they were recorded, each with its position: those that meet every
        filter, about tasks that the caller sees, nodes, quotas and policies.

        GET /v1/events

        Args:
            task: a task's id
            type: types (run.exited), aggregates (run) or facts (exited), separated by commas
            owner: name of the user who submitted it
            team: that tasks were submitted under
            group: name of a group of nodes
            from_: events behind this position; 0 or left out: all that are kept; -N: the last N; latest: only new ones
            follow: stream; so does Accept: text/event-stream
            limit: at most 1000
            cursor: next_cursor of the page before
            last_event_id: position of the last event that came, as browsers send it on reconnecting"""
        return self._list(
            Operation("GET", "/v1/events", repeatable=True),
            {},
            {
                "task": task,
                "type": type,
                "owner": owner,
                "team": team,
                "group": group,
                "from": from_,
                "follow": follow,
                "limit": limit,
                "cursor": cursor,
            },
            {"last-event-id": last_event_id},
        )

    def follow(
        self,
        *,
        task: Optional[str] = None,
        type: Optional[str] = None,
        owner: Optional[str] = None,
        team: Optional[str] = None,
        group: Optional[str] = None,
        from_: Optional[str] = None,
    ) -> AsyncGenerator[types.Event, None]:
        """Facts in the order in which they were recorded, each with its position: those that meet every
        filter, about tasks that the caller sees, nodes, quotas and policies.

        As they come; a stream that is cut off continues without a gap or a repetition.

        GET /v1/events

        Args:
            task: a task's id
            type: types (run.exited), aggregates (run) or facts (exited), separated by commas
            owner: name of the user who submitted it
            team: that tasks were submitted under
            group: name of a group of nodes
            from_: events behind this position; 0 or left out: all that are kept; -N: the last N; latest: only new ones"""
        return self._follow(
            Operation("GET", "/v1/events", repeatable=True),
            {},
            {
                "task": task,
                "type": type,
                "owner": owner,
                "team": team,
                "group": group,
                "from": from_,
            },
            EventReader(),
        )


class AsyncGroups(AsyncResource):
    """``client.groups``."""

    def list(self) -> AsyncListing[types.Group, types.GroupPage]:
        """Groups of nodes, with what they have and what is free of it. ``used_nodes`` hold runs;
        ``free_nodes`` accept runs and hold none. ``waiting``: how many tasks wait, as of a few seconds
        ago; null where there are too many to count.

        GET /v1/groups"""
        return self._list(Operation("GET", "/v1/groups", repeatable=True), {}, {}, {})


class AsyncLogin(AsyncResource):
    """``client.login``."""

    async def get(self) -> types.LoginWays:
        """How people can log in here. Needs no token.

        GET /v1/login"""
        return await self._json(Operation("GET", "/v1/login", repeatable=True), {}, {}, {})

    async def password(self, body: types.PasswordLoginBody) -> types.CurrentSession:
        """Begin a session with a password, where the site has them. Needs no token; takes as long for
        users that do not exist. Too many wrong passwords are slowed (429).

        POST /v1/login/password"""
        return await self._json(
            Operation("POST", "/v1/login/password", repeatable=False), {}, {}, {}, body
        )

    async def token(self, body: types.LoginCodeBody) -> types.LoginToken:
        """The token for a code that a browser showed and the secret of the command that requested it.
        Needs no token. A code is good once, also if the secret is wrong.

        POST /v1/login/token"""
        return await self._json(
            Operation("POST", "/v1/login/token", repeatable=False), {}, {}, {}, body
        )


class AsyncNodes(AsyncResource):
    """``client.nodes``."""

    def list(
        self,
        *,
        group: Optional[str] = None,
        ready: Optional[bool] = None,
        schedulable: Optional[bool] = None,
        label: Optional[Sequence[str]] = None,
        limit: Optional[int] = None,
        cursor: Optional[str] = None,
    ) -> AsyncListing[types.Node, types.NodePage]:
        """The inventory of nodes, with the tasks that hold them. Of tasks that the caller may not see,
        only the amounts are shown.

        GET /v1/nodes

        Args:
            group: name of a group of nodes
            ready: only nodes that are, or are not, ready
            schedulable: only nodes that take, or do not take, new runs
            label: K=V: with this label. All given ones hold
            limit: at most 1000
            cursor: next_cursor of the page before"""
        return self._list(
            Operation("GET", "/v1/nodes", repeatable=True),
            {},
            {
                "group": group,
                "ready": ready,
                "schedulable": schedulable,
                "label": label,
                "limit": limit,
                "cursor": cursor,
            },
            {},
        )

    async def get(self, node_id: str) -> types.Node:
        """One node.

        GET /v1/nodes/{node_id}"""
        return await self._json(
            Operation("GET", "/v1/nodes/{node_id}", repeatable=True), {"node_id": node_id}, {}, {}
        )

    async def set_schedulable(self, node_id: str, body: types.SchedulableBody) -> types.Schedulable:
        """Cordon a node, or uncordon it. What runs there goes on, unless it is drained.

        PUT /v1/nodes/{node_id}/schedulable"""
        return await self._json(
            Operation("PUT", "/v1/nodes/{node_id}/schedulable", repeatable=True),
            {"node_id": node_id},
            {},
            {},
            body,
        )

    async def set_labels(self, node_id: str, body: types.LabelsBody) -> types.NodeLabelsAndTaints:
        """Set and remove labels of a node: tasks select them, and the topology is made of them.

        PUT /v1/nodes/{node_id}/labels"""
        return await self._json(
            Operation("PUT", "/v1/nodes/{node_id}/labels", repeatable=True),
            {"node_id": node_id},
            {},
            {},
            body,
        )

    async def set_taints(self, node_id: str, body: types.TaintsBody) -> types.NodeLabelsAndTaints:
        """Set and remove taints of a node: new runs come from tasks only that tolerate every one.

        PUT /v1/nodes/{node_id}/taints"""
        return await self._json(
            Operation("PUT", "/v1/nodes/{node_id}/taints", repeatable=True),
            {"node_id": node_id},
            {},
            {},
            body,
        )

    async def metrics(
        self,
        node_id: str,
        *,
        signal: Optional[Sequence[str]] = None,
        from_: Optional[str] = None,
        to: Optional[str] = None,
        step_seconds: Optional[int] = None,
    ) -> types.NodeMetrics:
        """What was sampled of a node and its GPUs. Left out, to is now and from an hour before to.

        GET /v1/nodes/{node_id}/metrics

        Args:
            signal: names of signals; left out: all. Also with commas
            from_: RFC 3339, included
            to: RFC 3339, excluded
            step_seconds: the wanted distance of points; at least as much"""
        return await self._json(
            Operation("GET", "/v1/nodes/{node_id}/metrics", repeatable=True),
            {"node_id": node_id},
            {"signal": signal, "from": from_, "to": to, "step_seconds": step_seconds},
            {},
        )


class AsyncNotifications(AsyncResource):
    """``client.notifications``."""

    async def list(
        self, *, user: Optional[str] = None, everybody: Optional[bool] = None
    ) -> types.NotificationList:
        """The caller's notifications; ``everybody``: those of all users. Secrets are never shown, and
        of a URL of others only its host.

        GET /v1/notifications

        Args:
            user: whose it is; left out: the caller's
            everybody: those of all users"""
        return await self._json(
            Operation("GET", "/v1/notifications", repeatable=True),
            {},
            {"user": user, "everybody": everybody},
            {},
        )

    async def set(self, name: str, body: types.NotificationBody) -> types.NotificationSet:
        """Make a notification, or replace it: it gets messages again if it was paused. A secret that is
        made is in this answer and nowhere else, ever.

        PUT /v1/notifications/{name}"""
        return await self._json(
            Operation("PUT", "/v1/notifications/{name}", repeatable=True),
            {"name": name},
            {},
            {},
            body,
        )

    async def delete(self, name: str, *, user: Optional[str] = None) -> None:
        """Remove a notification; what waits for it is not sent.

        DELETE /v1/notifications/{name}

        Args:
            user: whose it is; left out: the caller's"""
        await self._json(
            Operation("DELETE", "/v1/notifications/{name}", repeatable=True),
            {"name": name},
            {"user": user},
            {},
        )

    async def undelivered(self, name: str, *, user: Optional[str] = None) -> types.UndeliveredList:
        """The messages that were given up, newest first: at most the last 200.

        GET /v1/notifications/{name}/undelivered

        Args:
            user: whose it is; left out: the caller's"""
        return await self._json(
            Operation("GET", "/v1/notifications/{name}/undelivered", repeatable=True),
            {"name": name},
            {"user": user},
            {},
        )

    async def replay(self, name: str, *, user: Optional[str] = None) -> types.NotificationReplay:
        """Let the messages that were given up be tried again, each under the id that it had.

        POST /v1/notifications/{name}/replay

        Args:
            user: whose it is; left out: the caller's"""
        return await self._json(
            Operation("POST", "/v1/notifications/{name}/replay", repeatable=False),
            {"name": name},
            {"user": user},
            {},
        )


class AsyncOccupancy(AsyncResource):
    """``client.occupancy``."""

    async def get(self) -> types.Occupancy:
        """Which nodes accept runs and which tasks hold any: the information for a drain. It contains
        nothing that tasks report about themselves, so no task can keep a drain from reading it.

        GET /v1/occupancy"""
        return await self._json(Operation("GET", "/v1/occupancy", repeatable=True), {}, {}, {})


class AsyncPolicies(AsyncResource):
    """``client.policies``."""

    def list(
        self, *, limit: Optional[int] = None, cursor: Optional[str] = None
    ) -> AsyncListing[types.Policy, types.PolicyPage]:
        """How each node group is shared, those without a policy of their own included.

        GET /v1/policies

        Args:
            limit: at most 1000
            cursor: next_cursor of the page before"""
        return self._list(
            Operation("GET", "/v1/policies", repeatable=True),
            {},
            {"limit": limit, "cursor": cursor},
            {},
        )

    async def set_all(
        self, body: Union[types.PolicyFile, str], *, force: Optional[bool] = None
    ) -> types.PolicySet:
        """Set the policies of a file: all of it or nothing. Groups that it does not name stay.

        PUT /v1/policies

        Args:
            force: accept users, teams and groups that are to come"""
        return await self._json(
            Operation("PUT", "/v1/policies", repeatable=True, text_body="application/yaml"),
            {},
            {"force": force},
            {},
            body,
        )

    async def get(self, group: str) -> types.Policy:
        """How one node group is shared.

        GET /v1/policies/{group}"""
        return await self._json(
            Operation("GET", "/v1/policies/{group}", repeatable=True), {"group": group}, {}, {}
        )

    async def set(
        self, group: str, body: Union[types.PolicyDocument, str], *, force: Optional[bool] = None
    ) -> types.PolicySet:
        """Set one group's policy. What the document leaves out has its default.

        PUT /v1/policies/{group}

        Args:
            force: accept users, teams and groups that are to come"""
        return await self._json(
            Operation("PUT", "/v1/policies/{group}", repeatable=True, text_body="application/yaml"),
            {"group": group},
            {"force": force},
            {},
            body,
        )

    async def delete(self, group: str) -> types.PolicySet:
        """Take away what was set for a group: it has the policy file's, or the defaults.

        DELETE /v1/policies/{group}"""
        return await self._json(
            Operation("DELETE", "/v1/policies/{group}", repeatable=True), {"group": group}, {}, {}
        )

    async def dry_run(
        self,
        body: Union[types.PolicyFile, types.PolicyDocument, str],
        *,
        group: Optional[str] = None,
        limit: Optional[int] = None,
        force: Optional[bool] = None,
    ) -> types.PolicyDryRun:
        """What would be decided now under these policies. Nothing is changed.

        POST /v1/policies:dry-run

        Args:
            group: the document is its alone
            limit: tasks to name
            force: accept users, teams and groups that are to come"""
        return await self._json(
            Operation(
                "POST", "/v1/policies:dry-run", repeatable=True, text_body="application/yaml"
            ),
            {},
            {"group": group, "limit": limit, "force": force},
            {},
            body,
        )


class AsyncQueue(AsyncResource):
    """``client.queue``."""

    def list(
        self,
        *,
        group: Optional[str] = None,
        limit: Optional[int] = None,
        cursor: Optional[str] = None,
    ) -> AsyncListing[types.QueuedTask, types.QueuePage]:
        """Waiting tasks in the order in which the scheduler gives them nodes now, group by group, with
        why each waits.

        A page begins behind the place of the last task of the page before, wherever other tasks have
        gone meanwhile: a task whose place stays is listed once, one that was moved across the cursor
        is missing or comes again. Positions are of the moment ``listed_at``. 503: no scheduler leads at
        the moment; try again after ``Retry-After``.

        GET /v1/queue

        Args:
            group: one group; without it each, by name
            limit: at most 1000
            cursor: next_cursor of the page before"""
        return self._list(
            Operation("GET", "/v1/queue", repeatable=True),
            {},
            {"group": group, "limit": limit, "cursor": cursor},
            {},
        )


class AsyncQuotas(AsyncResource):
    """``client.quotas``."""

    def list(
        self,
        *,
        group: Optional[str] = None,
        user: Optional[str] = None,
        team: Optional[str] = None,
        limit: Optional[int] = None,
        cursor: Optional[str] = None,
    ) -> AsyncListing[types.Quota, types.QuotaPage]:
        """Every cap and grant, oldest change first. A filter finds rows with just that name.

        GET /v1/quotas

        Args:
            group: name of a group of nodes
            user: name of a user
            team: name of a team
            limit: at most 1000
            cursor: next_cursor of the page before"""
        return self._list(
            Operation("GET", "/v1/quotas", repeatable=True),
            {},
            {"group": group, "user": user, "team": team, "limit": limit, "cursor": cursor},
            {},
        )

    async def set(self, body: types.QuotaBody, *, force: Optional[bool] = None) -> types.QuotaSet:
        """Set a cap or a grant, or remove it. Lowering one stops nothing that runs.

        A grant without any name is the site's default.

        PUT /v1/quotas

        Args:
            force: accept users, teams and groups that are to come"""
        return await self._json(
            Operation("PUT", "/v1/quotas", repeatable=True), {}, {"force": force}, {}, body
        )

    async def explain(
        self, *, user: Optional[str] = None, group: Optional[str] = None
    ) -> types.QuotaExplanation:
        """What a user may hold in each group at each level, and which rows decide that; left out: the
        caller. The scheduler computes it as it decides. Of others, who may not see everybody's usage
        sees no amount that is held, and who may not see accounts no team but the own.

        GET /v1/quotas/explain

        Args:
            user: name of a user
            group: name of a group of nodes"""
        return await self._json(
            Operation("GET", "/v1/quotas/explain", repeatable=True),
            {},
            {"user": user, "group": group},
            {},
        )


class AsyncRun(AsyncResource):
    """``client.run``."""

    async def get(
        self, *, wait_seconds: Optional[float] = None, seen: Optional[int] = None
    ) -> types.RunState:
        """What the platform requests of this run, as soon as ``revision`` is above ``seen``, at the
        latest after ``wait_seconds``. A run that calls this route can leave on request: from its first
        call on, the platform gives it the time to save.

        A task may hold ``waits_per_task_max`` such requests at a time. Further ones are answered at
        once, with ``ask_again_seconds``: how long to pause before the next request.

        GET /v1/run

        Args:
            wait_seconds: how long to wait for a change at most
            seen: the revision that the caller has; an answer waits for a later one"""
        return await self._json(
            Operation("GET", "/v1/run", repeatable=True),
            {},
            {"wait_seconds": wait_seconds, "seen": seen},
            {},
        )

    async def save_checkpoint(self, body: types.CheckpointBody) -> types.Checkpoint:
        """A checkpoint is durable. 201: the platform has stored that; 409: this attempt is over; 429:
        the task saves more often than is stored, send it again after ``Retry-After``.

        POST /v1/run/checkpoints"""
        return await self._json(
            Operation("POST", "/v1/run/checkpoints", repeatable=False), {}, {}, {}, body
        )

    async def report_ready(self, body: types.ReadyBody) -> types.Ready:
        """A rank is ready for the roles that start after that. 200: the platform has stored that; 409:
        this attempt, or the process that calls, is over.

        POST /v1/run/ready"""
        return await self._json(
            Operation("POST", "/v1/run/ready", repeatable=False), {}, {}, {}, body
        )

    async def yield_nodes(self, body: types.YieldBody) -> types.RunState:
        """The program hands its nodes over on its own: the task goes back to the queue. Stored when
        this answers; all ranks are asked to leave, and those that stay are ended after the exit grace.
        Once the run is leaving or being ended, this changes nothing.

        POST /v1/run/yield"""
        return await self._json(
            Operation("POST", "/v1/run/yield", repeatable=False), {}, {}, {}, body
        )

    async def state(self) -> types.LifeState:
        """What the task keeps across attempts; version 0 if it has kept nothing yet.

        GET /v1/run/state"""
        return await self._json(Operation("GET", "/v1/run/state", repeatable=True), {}, {}, {})

    async def set_state(self, body: types.LifeStateBody) -> types.SavedVersion:
        """Keep this for later attempts, and for tasks that go on with this one. Of several writers the
        last one wins; 409: this attempt is over.

        PUT /v1/run/state"""
        return await self._json(
            Operation("PUT", "/v1/run/state", repeatable=True), {}, {}, {}, body
        )

    async def set_priority(self, body: types.PriorityBody) -> types.Revision:
        """Another level for the task, with the rights of its owner. Stored when this answers.

        PUT /v1/run/priority"""
        return await self._json(
            Operation("PUT", "/v1/run/priority", repeatable=True), {}, {}, {}, body
        )

    async def report_metrics(self, body: types.MetricsBody) -> types.AcceptedSamples:
        """Numbers to show on the task's page. Kept thinned; a sample that came before is dropped.

        POST /v1/run/metrics"""
        return await self._json(
            Operation("POST", "/v1/run/metrics", repeatable=False), {}, {}, {}, body
        )


class AsyncSession(AsyncResource):
    """``client.session``."""

    async def get(self) -> types.CurrentSession:
        """Who is logged in here, and the CSRF token of the session.

        GET /v1/session"""
        return await self._json(Operation("GET", "/v1/session", repeatable=True), {}, {}, {})

    async def create(self) -> types.CurrentSession:
        """Begin a browser's session with the bearer token of this request. The session may do what the
        token may, and ends with it at the latest; only a login makes tokens and passwords that last
        longer.

        POST /v1/session"""
        return await self._json(Operation("POST", "/v1/session", repeatable=False), {}, {}, {})

    async def clear(self) -> None:
        """Log out: this browser's session ends, and with it the streams that it has opened. The header
        ``x-shiftwork-logout`` has the provider's page on which the browser can log out there, too.

        DELETE /v1/session"""
        await self._json(Operation("DELETE", "/v1/session", repeatable=True), {}, {}, {})


class AsyncSessions(AsyncResource):
    """``client.sessions``."""

    def list(
        self, *, limit: Optional[int] = None, cursor: Optional[str] = None
    ) -> AsyncListing[types.Session, types.SessionPage]:
        """Browser sessions that have not ended, newest first; administrators see everybody's. A page
        may have fewer than ``limit``.

        GET /v1/sessions

        Args:
            limit: at most 1000
            cursor: next_cursor of the page before"""
        return self._list(
            Operation("GET", "/v1/sessions", repeatable=True),
            {},
            {"limit": limit, "cursor": cursor},
            {},
        )

    async def delete(self, session_id: str) -> None:
        """End a session: refused from now on, at the latest in a few seconds everywhere.

        DELETE /v1/sessions/{session_id}"""
        await self._json(
            Operation("DELETE", "/v1/sessions/{session_id}", repeatable=True),
            {"session_id": session_id},
            {},
            {},
        )


class AsyncTasks(AsyncResource):
    """``client.tasks``."""

    async def create(
        self, body: types.TaskBody, *, idempotency_key: Optional[str] = None
    ) -> types.Task:
        """Submit a task. 201: stored, and its event with it. 200: the key was used for it before.

        POST /v1/tasks

        Args:
            idempotency_key: the same key, the same task"""
        return await self._json(
            Operation("POST", "/v1/tasks", repeatable=False, keyed=True),
            {},
            {},
            {"idempotency-key": idempotency_key},
            body,
        )

    def list(
        self,
        *,
        state: Optional[str] = None,
        owner: Optional[str] = None,
        mine: Optional[bool] = None,
        name: Optional[str] = None,
        name_prefix: Optional[str] = None,
        id_prefix: Optional[str] = None,
        id_suffix: Optional[str] = None,
        team: Optional[str] = None,
        group: Optional[str] = None,
        chain: Optional[str] = None,
        priority: Optional[str] = None,
        label: Optional[Sequence[str]] = None,
        all: Optional[bool] = None,
        sort: Optional[str] = None,
        run_seconds: Optional[bool] = None,
        limit: Optional[int] = None,
        cursor: Optional[str] = None,
    ) -> AsyncListing[types.Task, types.TaskPage]:
        """Tasks that the caller sees and that meet every filter, newest first.

        GET /v1/tasks

        Args:
            state: states, separated by commas
            owner: name of the user who submitted it
            mine: only the caller's own
            name: the name
            name_prefix: the first characters of the name
            id_prefix: the first characters of the id
            id_suffix: the last characters of the id, as tables show them
            team: that tasks were submitted under
            group: name of a group of nodes
            chain: id of the first task of a chain
            priority: levels, separated by commas
            label: K=V: with this label; K: with this label, whatever its value; K!=V: without it, or with another value. All given ones hold
            all: all=false: only tasks that have not ended
            sort: a field; with - falling
            run_seconds: with the time that each task's ended attempts ran
            limit: at most 1000
            cursor: next_cursor of the page before"""
        return self._list(
            Operation("GET", "/v1/tasks", repeatable=True),
            {},
            {
                "state": state,
                "owner": owner,
                "mine": mine,
                "name": name,
                "name_prefix": name_prefix,
                "id_prefix": id_prefix,
                "id_suffix": id_suffix,
                "team": team,
                "group": group,
                "chain": chain,
                "priority": priority,
                "label": label,
                "all": all,
                "sort": sort,
                "run_seconds": run_seconds,
                "limit": limit,
                "cursor": cursor,
            },
            {},
        )

    async def batch(self, body: types.BatchBody) -> types.Batch:
        """Submit several tasks. Each item of the answer has ``status`` and ``task`` or ``problem``.

        POST /v1/tasks:batch"""
        return await self._json(
            Operation("POST", "/v1/tasks:batch", repeatable=False), {}, {}, {}, body
        )

    async def dry_run(self, body: types.TaskBody) -> types.DryRun:
        """The task as it would be submitted, or why it would be refused. Nothing is stored; the task
        has no id. 429: the user sends too many requests; try again after ``Retry-After``.

        POST /v1/tasks:dry-run"""
        return await self._json(
            Operation("POST", "/v1/tasks:dry-run", repeatable=True), {}, {}, {}, body
        )

    async def retry(self, task_id: str, *, idempotency_key: Optional[str] = None) -> types.Task:
        """Submit the same task again, as a new one of the same owner and name, in the owner's present
        team. The label ``retry-of`` names the one before. 201 and 200 as for a new task.

        POST /v1/tasks/{task_id}/retry

        Args:
            idempotency_key: the same key, the same task"""
        return await self._json(
            Operation("POST", "/v1/tasks/{task_id}/retry", repeatable=False, keyed=True),
            {"task_id": task_id},
            {},
            {"idempotency-key": idempotency_key},
        )

    async def continue_(self, task_id: str, *, idempotency_key: Optional[str] = None) -> types.Task:
        """Go on with an ended task, as a new one of the same chain, owner and name: from its last
        checkpoint (``checkpoint`` of the answer; null: from the beginning) and with its life state.
        201 and 200 as for a new task.

        POST /v1/tasks/{task_id}/continue

        Args:
            idempotency_key: the same key, the same task"""
        return await self._json(
            Operation("POST", "/v1/tasks/{task_id}/continue", repeatable=False, keyed=True),
            {"task_id": task_id},
            {},
            {"idempotency-key": idempotency_key},
        )

    async def get(self, task_id: str) -> types.Task:
        """One task.

        GET /v1/tasks/{task_id}"""
        return await self._json(
            Operation("GET", "/v1/tasks/{task_id}", repeatable=True), {"task_id": task_id}, {}, {}
        )

    async def set_goal(self, task_id: str, body: types.GoalBody) -> types.Revision:
        """Run, pause or stop. Stored when this answers; applied when ``observed_revision`` is there.
        With ``now`` a run that is to pause or stop is ended at once, without being asked to save.

        PUT /v1/tasks/{task_id}/goal"""
        return await self._json(
            Operation("PUT", "/v1/tasks/{task_id}/goal", repeatable=True),
            {"task_id": task_id},
            {},
            {},
            body,
        )

    async def set_mode(self, task_id: str, body: types.ModeBody) -> types.Revision:
        """Normal, debug or pause. Normal also resumes a paused task, unless ``stay_paused`` is given;
        pause is the same as the goal. Stored when this answers; applied when ``observed_revision`` is
        there.

        POST /v1/tasks/{task_id}/mode"""
        return await self._json(
            Operation("POST", "/v1/tasks/{task_id}/mode", repeatable=False),
            {"task_id": task_id},
            {},
            {},
            body,
        )

    async def set_priority(self, task_id: str, body: types.PriorityBody) -> types.Revision:
        """Another level. Stored when this answers; applied when ``observed_revision`` is there.

        PUT /v1/tasks/{task_id}/priority"""
        return await self._json(
            Operation("PUT", "/v1/tasks/{task_id}/priority", repeatable=True),
            {"task_id": task_id},
            {},
            {},
            body,
        )

    async def explain(self, task_id: str) -> types.Explanation:
        """Why the task stands where it stands, computed by the scheduler now.

        GET /v1/tasks/{task_id}/explain"""
        return await self._json(
            Operation("GET", "/v1/tasks/{task_id}/explain", repeatable=True),
            {"task_id": task_id},
            {},
            {},
        )

    def decisions(
        self, task_id: str, *, limit: Optional[int] = None, cursor: Optional[str] = None
    ) -> AsyncListing[types.Decision, types.DecisionPage]:
        """The scheduler's decisions about the task, oldest first.

        GET /v1/tasks/{task_id}/decisions

        Args:
            limit: at most 1000
            cursor: next_cursor of the page before"""
        return self._list(
            Operation("GET", "/v1/tasks/{task_id}/decisions", repeatable=True),
            {"task_id": task_id},
            {"limit": limit, "cursor": cursor},
            {},
        )

    def runs(
        self, task_id: str, *, limit: Optional[int] = None, cursor: Optional[str] = None
    ) -> AsyncListing[types.Run, types.RunPage]:
        """The task's attempts, oldest first.

        GET /v1/tasks/{task_id}/runs

        Args:
            limit: at most 1000
            cursor: next_cursor of the page before"""
        return self._list(
            Operation("GET", "/v1/tasks/{task_id}/runs", repeatable=True),
            {"task_id": task_id},
            {"limit": limit, "cursor": cursor},
            {},
        )

    async def logs(
        self,
        task_id: str,
        *,
        list: Optional[bool] = None,
        follow: Optional[bool] = None,
        attempt: Optional[int] = None,
        rank: Optional[int] = None,
        role: Optional[str] = None,
        offset: Optional[int] = None,
        limit_bytes: Optional[int] = None,
        tail: Optional[int] = None,
        before: Optional[int] = None,
        since: Optional[str] = None,
        until: Optional[str] = None,
        timestamps: Optional[bool] = None,
    ) -> Union[types.KeptOutputs, types.OutputRange]:
        """The output of ranks. ``list=1``: the outputs that are kept. ``rank=N``: a range of one, byte
        for byte; with ``before`` and ``tail`` the last lines before one. ``follow=1``: the output of
        each selected rank from its beginning, as server-sent events. An event with ``line`` has the
        current text of a line that is being rewritten; it adds nothing to the output.

        ``timestamps=1``: a range comes in JSON, as the pieces of a stream do, and has ``timestamps``:
        ``[offset, time]`` of its first byte and of each later byte at which the time changes.
        ``approximate`` is true if they come from the index of an older version.

        GET /v1/tasks/{task_id}/logs

        Args:
            list: list what is kept
            follow: stream until the task has ended
            attempt: the attempt; left out: the newest for a range, all otherwise
            rank: the rank, counted over all roles
            role: the role
            offset: negative: from the end
            limit_bytes: the length of the range at most
            tail: the last so many lines
            before: with rank: end before this byte; 0: anywhere
            since: RFC 3339
            until: with rank: end before what was written then
            timestamps: with the times at which the bytes were written, in JSON"""
        return await self._json(
            Operation("GET", "/v1/tasks/{task_id}/logs", repeatable=True),
            {"task_id": task_id},
            {
                "list": list,
                "follow": follow,
                "attempt": attempt,
                "rank": rank,
                "role": role,
                "offset": offset,
                "limit_bytes": limit_bytes,
                "tail": tail,
                "before": before,
                "since": since,
                "until": until,
                "timestamps": timestamps,
            },
            {},
        )

    async def logs_text(
        self,
        task_id: str,
        *,
        attempt: Optional[int] = None,
        rank: Optional[int] = None,
        role: Optional[str] = None,
        offset: Optional[int] = None,
        limit_bytes: Optional[int] = None,
        tail: Optional[int] = None,
        before: Optional[int] = None,
        since: Optional[str] = None,
        until: Optional[str] = None,
    ) -> Text:
        """The output of ranks. ``list=1``: the outputs that are kept. ``rank=N``: a range of one, byte
        for byte; with ``before`` and ``tail`` the last lines before one. ``follow=1``: the output of
        each selected rank from its beginning, as server-sent events. An event with ``line`` has the
        current text of a line that is being rewritten; it adds nothing to the output.

        ``timestamps=1``: a range comes in JSON, as the pieces of a stream do, and has ``timestamps``:
        ``[offset, time]`` of its first byte and of each later byte at which the time changes.
        ``approximate`` is true if they come from the index of an older version.

        As text/plain.

        GET /v1/tasks/{task_id}/logs

        Args:
            attempt: the attempt; left out: the newest for a range, all otherwise
            rank: the rank, counted over all roles
            role: the role
            offset: negative: from the end
            limit_bytes: the length of the range at most
            tail: the last so many lines
            before: with rank: end before this byte; 0: anywhere
            since: RFC 3339
            until: with rank: end before what was written then"""
        return await self._text(
            Operation("GET", "/v1/tasks/{task_id}/logs", repeatable=True),
            {"task_id": task_id},
            {
                "attempt": attempt,
                "rank": rank,
                "role": role,
                "offset": offset,
                "limit_bytes": limit_bytes,
                "tail": tail,
                "before": before,
                "since": since,
                "until": until,
            },
            {},
            "text/plain",
        )

    def follow_logs(
        self,
        task_id: str,
        *,
        attempt: Optional[int] = None,
        rank: Optional[int] = None,
        role: Optional[str] = None,
        offset: Optional[int] = None,
        tail: Optional[int] = None,
        since: Optional[str] = None,
        timestamps: Optional[bool] = None,
    ) -> AsyncGenerator[Output, None]:
        """The output of ranks. ``list=1``: the outputs that are kept. ``rank=N``: a range of one, byte
        for byte; with ``before`` and ``tail`` the last lines before one. ``follow=1``: the output of
        each selected rank from its beginning, as server-sent events. An event with ``line`` has the
        current text of a line that is being rewritten; it adds nothing to the output.

        ``timestamps=1``: a range comes in JSON, as the pieces of a stream do, and has ``timestamps``:
        ``[offset, time]`` of its first byte and of each later byte at which the time changes.
        ``approximate`` is true if they come from the index of an older version.

        As they come; a stream that is cut off continues without a gap or a repetition.

        GET /v1/tasks/{task_id}/logs

        Args:
            attempt: the attempt; left out: the newest for a range, all otherwise
            rank: the rank, counted over all roles
            role: the role
            offset: negative: from the end
            tail: the last so many lines
            since: RFC 3339
            timestamps: with the times at which the bytes were written, in JSON"""
        return self._follow(
            Operation("GET", "/v1/tasks/{task_id}/logs", repeatable=True),
            {"task_id": task_id},
            {
                "attempt": attempt,
                "rank": rank,
                "role": role,
                "offset": offset,
                "tail": tail,
                "since": since,
                "timestamps": timestamps,
            },
            OutputReader(),
        )

    async def logs_lines(
        self,
        task_id: str,
        *,
        pattern: Optional[str] = None,
        literal: Optional[bool] = None,
        ignore_case: Optional[bool] = None,
        attempt: Optional[int] = None,
        rank: Optional[int] = None,
        role: Optional[str] = None,
        since: Optional[str] = None,
        until: Optional[str] = None,
        lines_before: Optional[int] = None,
        lines_after: Optional[int] = None,
        order: Optional[Literal["rank", "time"]] = None,
        after: Optional[str] = None,
        before: Optional[str] = None,
        last: Optional[bool] = None,
        limit: Optional[int] = None,
    ) -> types.OutputLines:
        """Lines that ranks wrote, or those of them that match a pattern, page by page.

        A page ends when it is full, or after about a second of searching: it may then have few lines or
        none, and ``more`` is true. Continue with ``after`` (or ``before``) until it is false. Cursors
        stay valid while output grows. A line that has not ended yet is in no page. A line of more than
        64 KiB counts as several.

        GET /v1/tasks/{task_id}/logs/lines

        Args:
            pattern: a regular expression (RE2); left out: every line
            literal: the pattern is plain text
            ignore_case: in upper or lower case
            attempt: the attempt; left out: the newest for a range, all otherwise
            rank: the rank, counted over all roles
            role: the role
            since: RFC 3339
            until: RFC 3339; not included
            lines_before: of the same rank
            lines_after: of the same rank
            order: rank: attempt by attempt and rank by rank
            after: begin or end of another page
            before: begin or end of another page
            last: the last lines instead of the first
            limit: lines of a page"""
        return await self._json(
            Operation("GET", "/v1/tasks/{task_id}/logs/lines", repeatable=True),
            {"task_id": task_id},
            {
                "pattern": pattern,
                "literal": literal,
                "ignore_case": ignore_case,
                "attempt": attempt,
                "rank": rank,
                "role": role,
                "since": since,
                "until": until,
                "lines_before": lines_before,
                "lines_after": lines_after,
                "order": order,
                "after": after,
                "before": before,
                "last": last,
                "limit": limit,
            },
            {},
        )

    async def state(self, task_id: str) -> types.LifeState:
        """What the task's program keeps across attempts; for its owner and administrators.

        GET /v1/tasks/{task_id}/state"""
        return await self._json(
            Operation("GET", "/v1/tasks/{task_id}/state", repeatable=True),
            {"task_id": task_id},
            {},
            {},
        )

    def metrics(
        self,
        task_id: str,
        *,
        series: Optional[bool] = None,
        signal: Optional[Sequence[str]] = None,
        from_: Optional[str] = None,
        to: Optional[str] = None,
        step_seconds: Optional[int] = None,
        rank: Optional[int] = None,
        attempt: Optional[int] = None,
        limit: Optional[int] = None,
        cursor: Optional[str] = None,
    ) -> AsyncListing[types.RankMetrics, types.MetricsPage]:
        """What is known of the task's ranks, rank by rank: what they reported (the latest values and a
        thinned history), and with series also what was sampled. Left out, from is the start of the
        attempt (of the newest one) and to its end.

        GET /v1/tasks/{task_id}/metrics

        Args:
            series: with all series; so, too, with signal, from, to or step_seconds
            signal: names of signals; left out: all. Also with commas
            from_: RFC 3339, included
            to: RFC 3339, excluded
            step_seconds: the wanted distance of points; at least as much
            rank: the rank, counted over all roles
            attempt: the attempt; left out: the newest for a range, all otherwise
            limit: at most 1000
            cursor: next_cursor of the page before"""
        return self._list(
            Operation("GET", "/v1/tasks/{task_id}/metrics", repeatable=True),
            {"task_id": task_id},
            {
                "series": series,
                "signal": signal,
                "from": from_,
                "to": to,
                "step_seconds": step_seconds,
                "rank": rank,
                "attempt": attempt,
                "limit": limit,
                "cursor": cursor,
            },
            {},
        )


class AsyncTeams(AsyncResource):
    """``client.teams``."""

    def list(
        self, *, limit: Optional[int] = None, cursor: Optional[str] = None
    ) -> AsyncListing[types.Team, types.TeamPage]:
        """Teams.

        GET /v1/teams

        Args:
            limit: at most 1000
            cursor: next_cursor of the page before"""
        return self._list(
            Operation("GET", "/v1/teams", repeatable=True),
            {},
            {"limit": limit, "cursor": cursor},
            {},
        )

    async def create(self, body: types.TeamBody, *, force: Optional[bool] = None) -> types.Team:
        """A new team.

        POST /v1/teams

        Args:
            force: accept a name that quotas name already"""
        return await self._json(
            Operation("POST", "/v1/teams", repeatable=False), {}, {"force": force}, {}, body
        )

    async def update(self, name: str, body: types.TeamChangeBody) -> types.Team:
        """Other defaults for what its members submit from now on.

        PATCH /v1/teams/{name}"""
        return await self._json(
            Operation("PATCH", "/v1/teams/{name}", repeatable=True), {"name": name}, {}, {}, body
        )

    async def delete(self, name: str) -> None:
        """Remove a team without users, if nothing names it any more. The next team of that name would
        get the quotas, tasks and usage of one that has some.

        DELETE /v1/teams/{name}"""
        await self._json(
            Operation("DELETE", "/v1/teams/{name}", repeatable=True), {"name": name}, {}, {}
        )


class AsyncTokens(AsyncResource):
    """``client.tokens``."""

    def list(
        self,
        *,
        user: Optional[str] = None,
        revoked: Optional[bool] = None,
        limit: Optional[int] = None,
        cursor: Optional[str] = None,
    ) -> AsyncListing[types.Token, types.TokenPage]:
        """Tokens without their secrets, newest first; administrators see everybody's.

        GET /v1/tokens

        Args:
            user: name of a user
            revoked: left out: revoked ones, too
            limit: at most 1000
            cursor: next_cursor of the page before"""
        return self._list(
            Operation("GET", "/v1/tokens", repeatable=True),
            {},
            {"user": user, "revoked": revoked, "limit": limit, "cursor": cursor},
            {},
        )

    async def create(self, body: types.TokenBody) -> types.NewToken:
        """A new token. Its secret is in this answer and nowhere else, ever. It can do no more than the
        token that makes it, and does not outlive it.

        POST /v1/tokens"""
        return await self._json(Operation("POST", "/v1/tokens", repeatable=False), {}, {}, {}, body)

    async def delete(self, token_id: str) -> None:
        """Revoke a token: refused from now on, at the latest in a few seconds everywhere.

        DELETE /v1/tokens/{token_id}"""
        await self._json(
            Operation("DELETE", "/v1/tokens/{token_id}", repeatable=True),
            {"token_id": token_id},
            {},
            {},
        )


class AsyncUsage(AsyncResource):
    """``client.usage``."""

    async def get(
        self,
        *,
        from_: Optional[str] = None,
        to: Optional[str] = None,
        group_by: Optional[str] = None,
        user: Optional[str] = None,
        team: Optional[str] = None,
        group: Optional[str] = None,
        priority: Optional[str] = None,
        outcome: Optional[str] = None,
        task: Optional[str] = None,
        format: Optional[Literal["json", "csv"]] = None,
    ) -> types.Usage:
        """What attempts held between two times, summed up. An attempt that lies partly in the range
        counts with that part, one that goes on until now.

        Operators and administrators see everything; others their own, and with ``team`` their team's.

        GET /v1/usage

        Args:
            from_: RFC 3339; left out: 7 days before to
            to: left out: now
            group_by: of user, team, group, priority, outcome, task, day; with commas
            user: name of a user
            team: name of a team
            group: name of a group of nodes
            priority: a level, such as normal
            outcome: how attempts ended
            task: a task's id
            format: json or csv; left out: as the header Accept says"""
        return await self._json(
            Operation("GET", "/v1/usage", repeatable=True),
            {},
            {
                "from": from_,
                "to": to,
                "group_by": group_by,
                "user": user,
                "team": team,
                "group": group,
                "priority": priority,
                "outcome": outcome,
                "task": task,
                "format": format,
            },
            {},
        )

    async def get_csv(
        self,
        *,
        from_: Optional[str] = None,
        to: Optional[str] = None,
        group_by: Optional[str] = None,
        user: Optional[str] = None,
        team: Optional[str] = None,
        group: Optional[str] = None,
        priority: Optional[str] = None,
        outcome: Optional[str] = None,
        task: Optional[str] = None,
    ) -> Text:
        """What attempts held between two times, summed up. An attempt that lies partly in the range
        counts with that part, one that goes on until now.

        Operators and administrators see everything; others their own, and with ``team`` their team's.

        As text/csv.

        GET /v1/usage

        Args:
            from_: RFC 3339; left out: 7 days before to
            to: left out: now
            group_by: of user, team, group, priority, outcome, task, day; with commas
            user: name of a user
            team: name of a team
            group: name of a group of nodes
            priority: a level, such as normal
            outcome: how attempts ended
            task: a task's id"""
        return await self._text(
            Operation("GET", "/v1/usage", repeatable=True),
            {},
            {
                "from": from_,
                "to": to,
                "group_by": group_by,
                "user": user,
                "team": team,
                "group": group,
                "priority": priority,
                "outcome": outcome,
                "task": task,
            },
            {},
            "text/csv",
        )


class AsyncUsers(AsyncResource):
    """``client.users``."""

    def list(
        self,
        *,
        team: Optional[str] = None,
        role: Optional[Literal["viewer", "user", "operator", "admin"]] = None,
        disabled: Optional[bool] = None,
        all: Optional[bool] = None,
        limit: Optional[int] = None,
        cursor: Optional[str] = None,
    ) -> AsyncListing[types.User, types.UserPage]:
        """Users; those who run the platform see all, others themselves.

        GET /v1/users

        Args:
            team: name of a team
            role: the role
            disabled: only users who are, or are not, disabled
            all: all=true: archived users, too
            limit: at most 1000
            cursor: next_cursor of the page before"""
        return self._list(
            Operation("GET", "/v1/users", repeatable=True),
            {},
            {
                "team": team,
                "role": role,
                "disabled": disabled,
                "all": all,
                "limit": limit,
                "cursor": cursor,
            },
            {},
        )

    async def create(self, body: types.UserBody, *, force: Optional[bool] = None) -> types.User:
        """Add a user, who can do nothing before a token exists.

        POST /v1/users

        Args:
            force: accept a name that quotas name already"""
        return await self._json(
            Operation("POST", "/v1/users", repeatable=False), {}, {"force": force}, {}, body
        )

    async def get(self, name: str) -> types.UserDetail:
        """One user, with the accounts of the login provider and the password, if there are such.

        GET /v1/users/{name}"""
        return await self._json(
            Operation("GET", "/v1/users/{name}", repeatable=True), {"name": name}, {}, {}
        )

    async def update(
        self, name: str, body: types.UserChangeBody, *, dry_run: Optional[bool] = None
    ) -> types.User:
        """Another role or team, or shut out. The tasks of a user who is disabled or archived save and
        are stopped, soon after this answers.

        PATCH /v1/users/{name}

        Args:
            dry_run: check the change, answer as if it were made, and change nothing"""
        return await self._json(
            Operation("PATCH", "/v1/users/{name}", repeatable=True),
            {"name": name},
            {"dry_run": dry_run},
            {},
            body,
        )

    async def delete(self, name: str) -> None:
        """Remove a disabled user, with all tokens, if nothing names the user any more.

        A user with tasks, usage or quotas is archived instead: the next user of that name would own
        them. The user's notifications go first, for the same reason.

        DELETE /v1/users/{name}"""
        await self._json(
            Operation("DELETE", "/v1/users/{name}", repeatable=True), {"name": name}, {}, {}
        )

    async def set_password(self, name: str, body: types.PasswordBody) -> None:
        """Set one's own password, with the old one if there is one; administrators set those of others.
        The user's other sessions end; tokens go on. A token with scopes or an expiry changes a password
        with the old one alone, because a login with the new one has neither.

        PUT /v1/users/{name}/password"""
        await self._json(
            Operation("PUT", "/v1/users/{name}/password", repeatable=True),
            {"name": name},
            {},
            {},
            body,
        )


class AsyncUtilization(AsyncResource):
    """``client.utilization``."""

    async def list(
        self, *, node: Optional[Sequence[str]] = None, task: Optional[Sequence[str]] = None
    ) -> types.Utilization:
        """What nodes and live tasks use now. Tasks that the caller may not see are left out.

        GET /v1/utilization

        Args:
            node: ids; also with commas
            task: ids; also with commas"""
        return await self._json(
            Operation("GET", "/v1/utilization", repeatable=True),
            {},
            {"node": node, "task": task},
            {},
        )


class AsyncWhoami(AsyncResource):
    """``client.whoami``."""

    async def get(self) -> types.WhoAmI:
        """Whose token this is, and as which user of the gateway's machine tasks run (null: they run in
        pods, with users of their own).

        GET /v1/whoami"""
        return await self._json(Operation("GET", "/v1/whoami", repeatable=True), {}, {}, {})


class AsyncResources:
    """Every resource of the API."""

    def __init__(self, core: Core, workers: Workers) -> None:
        self.abnormal = AsyncAbnormal(core, workers)
        self.audit = AsyncAudit(core, workers)
        self.dead_letters = AsyncDeadLetters(core, workers)
        self.events = AsyncEvents(core, workers)
        self.groups = AsyncGroups(core, workers)
        self.login = AsyncLogin(core, workers)
        self.nodes = AsyncNodes(core, workers)
        self.notifications = AsyncNotifications(core, workers)
        self.occupancy = AsyncOccupancy(core, workers)
        self.policies = AsyncPolicies(core, workers)
        self.queue = AsyncQueue(core, workers)
        self.quotas = AsyncQuotas(core, workers)
        self.run = AsyncRun(core, workers)
        self.session = AsyncSession(core, workers)
        self.sessions = AsyncSessions(core, workers)
        self.tasks = AsyncTasks(core, workers)
        self.teams = AsyncTeams(core, workers)
        self.tokens = AsyncTokens(core, workers)
        self.usage = AsyncUsage(core, workers)
        self.users = AsyncUsers(core, workers)
        self.utilization = AsyncUtilization(core, workers)
        self.whoami = AsyncWhoami(core, workers)
