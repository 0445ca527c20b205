// The attempts of a task: when each ran, where, how it was preempted, and how it ended.
import type { ReactNode } from "react";
import type { Schemas } from "../../api/client";
import { useLanguage } from "../../i18n";
import { between, duration, moment } from "../../ui/format";

type Run = Schemas["Run"];
// With this exit code a program says that it has left as it was asked to.
const LEFT = 75;

export interface Phase {
  readonly kind: "starting" | "running" | "saving" | "leaving";
  readonly begin: string;
  readonly end: string | null;
}

/** The phases of a run: from its assignment to its start, to the request to leave, to the
 * checkpoint, to the moment at which its nodes were free. */
export function phasesOf(run: Run): Phase[] {
  const end = run.finished_at;
  const request = run.preemption?.requested_at ?? null;
  const saved =
    request && run.checkpoint && run.checkpoint.saved_at >= request ? run.checkpoint.saved_at : null;
  const marks: [Phase["kind"], string | null][] = [
    ["starting", run.assigned_at],
    ["running", run.started_at],
    ["saving", request],
    ["leaving", saved],
  ];
  const begun = marks.filter((mark): mark is [Phase["kind"], string] => mark[1] !== null);
  return begun.map(([kind, begin], index) => ({ kind, begin, end: begun[index + 1]?.[1] ?? end }));
}

export function Attempts(props: { readonly runs: readonly Run[] }): ReactNode {
  const { t } = useLanguage();
  const runs = [...props.runs].sort((a, b) => b.attempt - a.attempt);
  if (runs.length === 0) return <p className="empty">{t.task.noAttempts}</p>;
  return (
    <section aria-labelledby="attempts">
      <h2 id="attempts">{t.task.attempts}</h2>
      <ol className="attempts">
        {runs.map((run) => (
          <Attempt key={run.id} run={run} />
        ))}
      </ol>
    </section>
  );
}

function Attempt(props: { readonly run: Run }): ReactNode {
  const { t } = useLanguage();
  const { run } = props;
  const phases = phasesOf(run);
  const first = phases[0]?.begin;
  const ended = new Map(run.exit?.ranks.map((rank) => [rank.rank, rank]));
  return (
    <li>
      <h3>
        {t.task.attempt(run.attempt)}
        {first ? <span className="quiet"> {moment(first)}</span> : null}
      </h3>
      <ul className="phases" aria-label={t.task.phases}>
        {phases.map((phase) => (
          <li
            key={phase.kind}
            data-kind={phase.kind}
            style={{ flexGrow: Math.max(1, between(phase.begin, phase.end)) }}
          >
            {t.task.phase[phase.kind]} {duration(between(phase.begin, phase.end))}
          </li>
        ))}
      </ul>
      {run.preemption?.reason ? <p>{run.preemption.reason.text}</p> : null}
      {run.exit ? <p>{run.exit.text}</p> : null}
      <ul className="ranks" aria-label={t.task.ranks}>
        {run.placements.map((place) => {
          const end = ended.get(place.rank);
          const bad = end !== undefined && end.code !== 0 && end.code !== LEFT;
          return (
            <li key={place.rank} data-bad={bad}>
              <b>
                {place.role}[{place.role_index}]
              </b>{" "}
              {place.node}
              {place.gpus.length > 0 ? ` · GPU ${place.gpus.join(", ")}` : ""}
              {end ? ` · ${end.signal ? t.task.signal(end.signal) : t.task.code(end.code ?? 0)}` : ""}
            </li>
          );
        })}
      </ul>
      {run.error_lines.map((each) => (
        <pre key={`${each.rank}-${each.offset}`} className="error-lines" tabIndex={0}>
          {each.lines.join("\n")}
        </pre>
      ))}
    </li>
  );
}
