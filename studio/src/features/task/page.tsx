// One task: why it is in its state, its attempts and ranks, its output, its specification.
import { useState, type ReactNode } from "react";
import { Link } from "wouter";
import { api, Refused, type Schemas, type Task } from "../../api/client";
import { paths } from "../../app/paths";
import { useLanguage } from "../../i18n";
import { body, useLiveQuery } from "../../live/queries";
import { between, duration, moment, value } from "../../ui/format";
import { StateMark } from "../../ui/state";
import { Attempts } from "./attempts";
import { Output } from "./output";
import { goalsOf, setGoal, type Goal } from "../../live/goals";

const TABS = ["", "output", "events", "specification"] as const;

export default function TaskPage(props: { readonly id: string; readonly tab: string }): ReactNode {
  const { t } = useLanguage();
  const { id } = props;
  const of = { params: { path: { task_id: id } } };
  const task = useLiveQuery(
    ["task", id],
    () => body(api.GET("/v1/tasks/{task_id}", of)),
    (event) => event.task === id,
  );
  if (task.error) return <p role="alert">{task.error.message}</p>;
  if (!task.data) return null;
  const found = task.data;
  return (
    <article className="task">
      <header>
        <h1>
          {found.name || found.id} <StateMark state={found.state} />
        </h1>
        <p className="sentence">{sentence(found)}</p>
        <Commands task={found} />
        <dl className="facts">
          <Fact name={t.task.id} text={found.id} />
          <Fact name={t.tasks.columns.owner} text={found.owner} />
          <Fact name={t.tasks.columns.priority} text={found.priority} />
          <Fact name={t.task.group} text={found.group} />
          <Fact name={t.tasks.columns.submitted} text={moment(found.submitted_at)} />
          {found.started_at ? (
            <Fact
              name={t.task.since}
              text={startOf(found)}
            />
          ) : null}
          {Object.entries(found.progress?.values ?? {}).map(([name, number]) => (
            <Fact key={name} name={name} text={value(number)} />
          ))}
          {found.checkpoint ? (
            <Fact
              name={t.task.checkpoint}
              text={`${t.task.step} ${found.checkpoint.step} · ${moment(found.checkpoint.saved_at)}`}
            />
          ) : null}
        </dl>
      </header>
      <nav className="tabs" aria-label={found.name}>
        {TABS.map((tab) => (
          <Link
            key={tab}
            href={paths.task(id, tab)}
            aria-current={tab === props.tab ? "page" : undefined}
          >
            {t.task.tabs[tab]}
          </Link>
        ))}
      </nav>
      {props.tab === "output" ? <Output task={found} /> : null}
      {props.tab === "events" ? <Events id={id} /> : null}
      {props.tab === "specification" ? <Specification task={found} /> : null}
      {props.tab === "" ? <Summary task={found} /> : null}
    </article>
  );
}

function Fact(props: { readonly name: string; readonly text: string }): ReactNode {
  return (
    <div>
      <dt>{props.name}</dt>
      <dd>{props.text}</dd>
    </div>
  );
}

/** When it started, and how long ago that was if it has run since or has ended. */
function startOf(task: Task): string {
  const at = moment(task.started_at);
  if (!task.started_at || (task.state !== "running" && !task.finished_at)) return at;
  return `${at} · ${duration(between(task.started_at, task.finished_at))}`;
}

/** What explains a task's state, in the server's own words. */
export function sentence(task: Task): string {
  const parts = [task.reason?.text ?? ""];
  if (task.exit && task.finished_at) parts.push(task.exit.text);
  return parts.filter((part, index) => part && parts.indexOf(part) === index).join("; ");
}

function Commands(props: { readonly task: Task }): ReactNode {
  const { t } = useLanguage();
  const [refusal, setRefusal] = useState("");
  const [asked, setAsked] = useState(0);
  const { task } = props;
  const pending = Math.max(asked, task.revision) > task.observed_revision;
  const give = async (goal: Goal): Promise<void> => {
    const result = await setGoal(task, goal);
    setRefusal(result.refusal);
    setAsked(result.revision);
  };
  const labels: Record<Goal, string> = { run: t.tasks.resume, pause: t.tasks.pause, stop: t.tasks.stop };
  return (
    <div className="toolbar">
      {goalsOf(task).map((goal) => (
        <button key={goal} type="button" disabled={pending} onClick={() => void give(goal)}>
          {labels[goal]}
        </button>
      ))}
      {pending ? <span role="status">{t.tasks.pending}</span> : null}
      <span role="alert" className="refusal">
        {refusal}
      </span>
    </div>
  );
}

function Summary(props: { readonly task: Task }): ReactNode {
  const { id } = props.task;
  const runs = useLiveQuery(
    ["runs", id],
    () =>
      body(
        api.GET("/v1/tasks/{task_id}/runs", {
          params: { path: { task_id: id }, query: { limit: 200 } },
        }),
      ),
    (event) => event.task === id,
  );
  return (
    <>
      {props.task.finished_at === null && props.task.state !== "running" ? (
        <Waiting id={id} />
      ) : null}
      {runs.error ? <p role="alert">{runs.error.message}</p> : null}
      <Attempts runs={runs.data?.items ?? []} />
    </>
  );
}

function Waiting(props: { readonly id: string }): ReactNode {
  const { t } = useLanguage();
  const found = useLiveQuery<Schemas["Explanation"] | null>(
    ["explain", props.id],
    () =>
      body(api.GET("/v1/tasks/{task_id}/explain", { params: { path: { task_id: props.id } } })).catch(
        (error: unknown) => {
          if (error instanceof Refused) return null;
          throw error;
        },
      ),
    (event) => event.type === "task.state_changed",
  );
  const data = found.data;
  if (!data) return null;
  return (
    <section aria-labelledby="waiting">
      <h2 id="waiting">{t.task.waiting}</h2>
      {data.position > 0 ? <p>{t.task.position(data.position, data.queue_length)}</p> : null}
      {data.forecast?.starts_at ? (
        <p>{t.task.forecast(moment(data.forecast.starts_at))}</p>
      ) : data.forecast?.unknown ? (
        <p>{data.forecast.unknown}</p>
      ) : null}
      {data.remedies.length > 0 ? (
        <ul className="list remedies">
          {data.remedies.map((each) => (
            <li key={each}>{each}</li>
          ))}
        </ul>
      ) : null}
    </section>
  );
}

function Events(props: { readonly id: string }): ReactNode {
  const { t } = useLanguage();
  const events = useLiveQuery(
    ["events", props.id],
    () => body(api.GET("/v1/events", { params: { query: { task: props.id, limit: 1000 } } })),
    (event) => event.task === props.id,
  );
  const items = (events.data as Schemas["EventPage"] | undefined)?.items ?? [];
  return (
    <ol className="events" aria-label={t.task.tabs.events}>
      {items.map((event) => (
        <li key={event.position}>
          <time>{moment(event.at)}</time> <code>{event.type}</code>{" "}
          <span>{textOf(event)}</span>
        </li>
      ))}
    </ol>
  );
}

function textOf(event: Schemas["Event"]): string {
  const data = event.data as { state?: string; reason?: { text?: string } | null };
  return [data.state, data.reason?.text].filter(Boolean).join(": ");
}

function Specification(props: { readonly task: Task }): ReactNode {
  const { task } = props;
  const shown = {
    name: task.name,
    group: task.group,
    priority: task.priority,
    nodes: task.nodes,
    gpus_per_node: task.gpus_per_node,
    labels: task.labels,
    retry: task.retry,
    preemption: task.preemption,
    max_run_seconds: task.max_run_seconds,
    working_directory: task.working_directory,
    env: task.env,
    roles: task.roles,
  };
  return <pre tabIndex={0}>{JSON.stringify(shown, null, 2)}</pre>;
}
