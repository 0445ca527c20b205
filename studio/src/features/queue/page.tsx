// What waits, in the scheduler's own order, and for what.
import type { ReactNode } from "react";
import { Link, useLocation, useSearch } from "wouter";
import { api } from "../../api/client";
import { paths } from "../../app/paths";
import { useLanguage } from "../../i18n";
import { body, useLiveQuery } from "../../live/queries";
import { moment } from "../../ui/format";

export default function QueuePage(): ReactNode {
  const { t } = useLanguage();
  const group = new URLSearchParams(useSearch()).get("group") ?? "";
  const [, go] = useLocation();
  const groups = useLiveQuery(
    ["groups"],
    () => body(api.GET("/v1/groups", {})),
    (event) => event.type === "node.changed" || event.type === "task.state_changed",
  );
  const queue = useLiveQuery(
    ["queue", group],
    () =>
      body(
        api.GET("/v1/queue", { params: { query: { ...(group ? { group } : {}), limit: 200 } } }),
      ),
    (event) => event.type === "task.state_changed" || event.type === "task.priority_changed",
  );
  const items = queue.data?.items ?? [];
  return (
    <section aria-labelledby="queue-title">
      <div className="toolbar">
        <h1 id="queue-title">{t.views.queue}</h1>
        <select
          aria-label={t.task.group}
          value={group}
          onChange={(event) => go(paths.queue(event.target.value), { replace: true })}
        >
          <option value="">{t.queue.everyGroup}</option>
          {(groups.data?.items ?? []).map((each) => (
            <option key={each.name} value={each.name}>
              {each.name}
            </option>
          ))}
        </select>
      </div>
      {queue.error ? <p role="alert">{queue.error.message}</p> : null}
      {queue.data && items.length === 0 ? <p className="empty">{t.queue.none}</p> : null}
      {items.length > 0 ? (
        <div className="scroll" tabIndex={0} role="group" aria-label={t.views.queue}>
          <table>
            <thead>
              <tr>
                <th scope="col">{t.queue.position}</th>
                <th scope="col">{t.tasks.columns.name}</th>
                <th scope="col">{t.tasks.columns.owner}</th>
                <th scope="col">{t.task.group}</th>
                <th scope="col">{t.tasks.columns.priority}</th>
                <th scope="col">{t.tasks.columns.size}</th>
                <th scope="col">{t.queue.since}</th>
                <th scope="col">{t.tasks.columns.reason}</th>
              </tr>
            </thead>
            <tbody>
              {items.map((task) => (
                <tr key={`${task.group}-${task.position}`}>
                  <td>{task.position}</td>
                  <td>
                    {task.id ? (
                      <Link href={paths.task(task.id)}>{task.name || task.id}</Link>
                    ) : (
                      <span className="quiet">{t.queue.hidden}</span>
                    )}
                  </td>
                  <td>{task.owner ?? ""}</td>
                  <td>{task.group}</td>
                  <td>{task.priority}</td>
                  <td>{task.gpus > 0 ? `${task.nodes} × ${task.gpus}` : task.nodes}</td>
                  <td>{moment(task.waiting_since)}</td>
                  <td>{task.reason?.text ?? ""}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      ) : null}
    </section>
  );
}
