// Capacity, what runs and waits, and the person's own tasks.
import type { ReactNode } from "react";
import { Link } from "wouter";
import { api } from "../../api/client";
import { paths } from "../../app/paths";
import { useLanguage } from "../../i18n";
import { body, useLiveQuery } from "../../live/queries";
import { Meter } from "../../ui/meter";
import { StateMark } from "../../ui/state";
import { moment } from "../../ui/format";

const SHOWN = 15;

export default function OverviewPage(): ReactNode {
  const { t } = useLanguage();
  const groups = useLiveQuery(
    ["groups"],
    () => body(api.GET("/v1/groups", {})),
    (event) => event.type === "task.state_changed" || event.type === "node.changed",
  );
  const mine = useLiveQuery(
    ["mine"],
    () => body(api.GET("/v1/tasks", { params: { query: { mine: true, limit: SHOWN } } })),
    (event) => event.type.startsWith("task."),
  );
  const own = mine.data?.items ?? [];
  return (
    <section aria-labelledby="overview-title">
      <h1 id="overview-title">{t.views.overview}</h1>
      <h2>{t.overview.capacity}</h2>
      {groups.error ? <p role="alert">{groups.error.message}</p> : null}
      <ul className="cards">
        {(groups.data?.items ?? []).map((group) => (
          <li key={group.name} className="card">
            <h3>{group.name}</h3>
            {group.gpus > 0 ? (
              <Meter label={t.overview.gpus} used={group.used_gpus} total={group.gpus} />
            ) : null}
            <Meter label={t.overview.nodes} used={group.used_nodes} total={group.nodes} />
            <p className="quiet">
              {t.overview.ready(group.ready_nodes, group.nodes)}
              {" · "}
              <Link href={paths.queue(group.name)}>{t.overview.waiting(group.waiting ?? 0)}</Link>
            </p>
          </li>
        ))}
      </ul>
      <h2>{t.overview.mine}</h2>
      {own.length === 0 && mine.data ? (
        <div className="empty">
          <p>{t.tasks.none}</p>
          <p>{t.tasks.noneHelp}</p>
          <pre>shiftwork submit --follow -- python train.py</pre>
        </div>
      ) : (
        <ul className="list tasks-list">
          {own.map((task) => (
            <li key={task.id}>
              <Link href={paths.task(task.id)}>{task.name || task.id}</Link>
              <span>
                <StateMark state={task.state} />
              </span>
              <time className="quiet">{moment(task.submitted_at)}</time>
              <span className="quiet">{task.reason?.text}</span>
            </li>
          ))}
        </ul>
      )}
    </section>
  );
}
