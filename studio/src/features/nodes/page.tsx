// Nodes by group: what each has and holds, and whether it takes new runs.
import { useState, type ReactNode } from "react";
import { Link } from "wouter";
import { api, Refused, type Schemas } from "../../api/client";
import { paths } from "../../app/paths";
import { useSession } from "../../app/session";
import { useLanguage } from "../../i18n";
import { body, useLiveQuery } from "../../live/queries";
import { Meter } from "../../ui/meter";

type Node = Schemas["Node"];

export default function NodesPage(): ReactNode {
  const { t } = useLanguage();
  const nodes = useLiveQuery(
    ["nodes"],
    () => body(api.GET("/v1/nodes", { params: { query: { limit: 1000 } } })),
    (event) => event.type === "node.changed" || event.type === "task.state_changed",
  );
  const items = nodes.data?.items ?? [];
  const groups = [...new Set(items.map((node) => node.group))].sort();
  return (
    <section aria-labelledby="nodes-title">
      <h1 id="nodes-title">{t.views.nodes}</h1>
      {nodes.error ? <p role="alert">{nodes.error.message}</p> : null}
      {nodes.data && items.length === 0 ? <p className="empty">{t.nodes.none}</p> : null}
      {groups.map((group) => (
        <section key={group} aria-label={group}>
          <h2>{group}</h2>
          <ul className="cards">
            {items
              .filter((node) => node.group === group)
              .map((node) => (
                <NodeCard key={node.id} node={node} />
              ))}
          </ul>
        </section>
      ))}
    </section>
  );
}

/** What a node is in, in one word. */
export function conditionOf(node: Node): "ready" | "lost" | "draining" | "cordoned" | "quarantined" {
  if (!node.ready) return "lost";
  if (node.quarantined) return "quarantined";
  if (node.draining) return "draining";
  return node.schedulable ? "ready" : "cordoned";
}

const TONES = { ready: "good", lost: "bad", draining: "wait", cordoned: "idle", quarantined: "bad" };

function NodeCard(props: { readonly node: Node }): ReactNode {
  const { t } = useLanguage();
  const { session } = useSession();
  const { node } = props;
  const [refusal, setRefusal] = useState("");
  const condition = conditionOf(node);
  const may = session.role === "admin" || session.role === "operator";
  const set = (schedulable: boolean, drain: boolean): void => {
    setRefusal("");
    api
      .PUT("/v1/nodes/{node_id}/schedulable", {
        params: { path: { node_id: node.id } },
        body: { schedulable, drain },
      })
      .catch((error: unknown) => {
        setRefusal(error instanceof Refused ? error.message : String(error));
      });
  };
  return (
    <li className="card">
      <h3>
        {node.id}{" "}
        <span className="state" data-tone={TONES[condition]}>
          {t.nodes.conditions[condition]}
        </span>
      </h3>
      {node.gpus > 0 ? (
        <Meter label={t.overview.gpus} used={node.gpus - node.free_gpus} total={node.gpus} />
      ) : null}
      <p className="quiet">
        {[node.gpu_model, t.nodes.cpus(node.cpus), t.nodes.memory(node.memory_bytes / 2 ** 30)]
          .filter(Boolean)
          .join(" · ")}
      </p>
      <ul className="list">
        {node.tasks.map((id) => (
          <li key={id}>
            <Link href={paths.task(id)}>{id}</Link>
          </li>
        ))}
      </ul>
      {may ? (
        <div className="toolbar">
          {node.schedulable ? (
            <>
              <button type="button" aria-label={`${t.nodes.cordon} ${node.id}`} onClick={() => set(false, false)}>
                {t.nodes.cordon}
              </button>
              <button type="button" aria-label={`${t.nodes.drain} ${node.id}`} onClick={() => set(false, true)}>
                {t.nodes.drain}
              </button>
            </>
          ) : (
            <button type="button" aria-label={`${t.nodes.uncordon} ${node.id}`} onClick={() => set(true, false)}>
              {t.nodes.uncordon}
            </button>
          )}
        </div>
      ) : null}
      <p role="alert" className="refusal">
        {refusal}
      </p>
    </li>
  );
}
