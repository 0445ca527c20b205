// All tasks that the person sees: filters in the URL, rows that follow events, commands for many.
import { useVirtualizer } from "@tanstack/react-virtual";
import { useCallback, useEffect, useMemo, useRef, useState, type KeyboardEvent, type ReactNode } from "react";
import { Link, useLocation, useSearch } from "wouter";
import { Refused, type Task } from "../../api/client";
import { paths } from "../../app/paths";
import { useLanguage } from "../../i18n";
import { useLive, useTaskIds, useTaskRow, type Filters } from "../../live/store";
import { moment, value } from "../../ui/format";
import { StateMark } from "../../ui/state";
import { setGoals, type Goal, type Result } from "../../live/goals";

const ROW = 36;
const FILTERS = ["name_prefix", "state", "owner", "team", "group", "priority", "label"] as const;
const STATES = ["queued", "starting", "running", "preempting", "paused", "succeeded", "failed", "stopped"];

export function filtersOf(search: string): Filters {
  const given = new URLSearchParams(search);
  const found: Record<string, string> = {};
  for (const name of FILTERS) {
    const text = given.get(name)?.trim();
    if (text) found[name] = text;
  }
  if (given.get("mine") === "true") found["mine"] = "true";
  return found;
}

export function TasksPage(): ReactNode {
  const { t } = useLanguage();
  const live = useLive();
  const search = useSearch();
  const [, go] = useLocation();
  const filters = useMemo(() => filtersOf(search), [search]);
  const [refusal, setRefusal] = useState("");
  const [selected, setSelected] = useState<ReadonlySet<string>>(new Set());
  const [results, setResults] = useState<readonly Result[]>([]);
  useEffect(() => {
    setRefusal("");
    setSelected(new Set());
    live.show(filters).catch((error: unknown) => {
      setRefusal(error instanceof Refused ? error.message : String(error));
    });
  }, [live, filters]);
  const change = (name: string, text: string): void => {
    const next = new URLSearchParams(search);
    if (text) next.set(name, text);
    else next.delete(name);
    go(paths.tasks(next.toString()), { replace: true });
  };
  const command = async (goal: Goal): Promise<void> => {
    const tasks = [...selected].flatMap((id) => live.get(id) ?? []);
    setResults(await setGoals(tasks, goal));
  };
  const toggle = useCallback((id: string) => {
    setSelected((before) => {
      const after = new Set(before);
      if (!after.delete(id)) after.add(id);
      return after;
    });
  }, []);
  return (
    <section className="tasks" aria-labelledby="tasks-title">
      <div className="toolbar">
        <h1 id="tasks-title">{t.views.tasks}</h1>
        <input
          type="search"
          aria-label={t.tasks.columns.name}
          placeholder={t.tasks.columns.name}
          defaultValue={filters["name_prefix"] ?? ""}
          key={`name-${filters["name_prefix"] ?? ""}`}
          onKeyDown={(event) => {
            if (event.key === "Enter") change("name_prefix", event.currentTarget.value);
          }}
          onBlur={(event) => {
            if (event.currentTarget.value !== (filters["name_prefix"] ?? ""))
              change("name_prefix", event.currentTarget.value);
          }}
        />
        <select
          aria-label={t.tasks.columns.state}
          value={filters["state"] ?? ""}
          onChange={(event) => change("state", event.target.value)}
        >
          <option value="">{t.tasks.anyState}</option>
          {STATES.map((state) => (
            <option key={state} value={state}>
              {t.states[state]}
            </option>
          ))}
        </select>
        <label className="check">
          <input
            type="checkbox"
            checked={filters["mine"] === "true"}
            onChange={(event) => change("mine", event.target.checked ? "true" : "")}
          />
          {t.tasks.mine}
        </label>
        {Object.keys(filters).length > 0 ? (
          <button type="button" className="plain" onClick={() => go(paths.tasks(), { replace: true })}>
            {t.tasks.clear}
          </button>
        ) : null}
      </div>
      {selected.size > 0 ? (
        <div className="toolbar" role="group" aria-label={t.tasks.selected(selected.size)}>
          <span>{t.tasks.selected(selected.size)}</span>
          <button type="button" onClick={() => void command("pause")}>
            {t.tasks.pause}
          </button>
          <button type="button" onClick={() => void command("run")}>
            {t.tasks.resume}
          </button>
          <button type="button" onClick={() => void command("stop")}>
            {t.tasks.stop}
          </button>
        </div>
      ) : null}
      <Results results={results} close={() => setResults([])} />
      <p role="alert" className="refusal">
        {refusal}
      </p>
      <Rows selected={selected} toggle={toggle} filtered={Object.keys(filters).length > 0} />
    </section>
  );
}

function Results(props: {
  readonly results: readonly Result[];
  readonly close: () => void;
}): ReactNode {
  const { t } = useLanguage();
  if (props.results.length === 0) return null;
  const refused = props.results.filter((each) => each.refusal);
  return (
    <div className="results" role="status">
      <p>
        {t.tasks.accepted(props.results.length - refused.length)}
        <button type="button" className="plain" onClick={props.close}>
          {t.app.close}
        </button>
      </p>
      {refused.length > 0 ? (
        <ul>
          {refused.map((each) => (
            <li key={each.id}>
              {each.name}: {each.refusal}
            </li>
          ))}
        </ul>
      ) : null}
    </div>
  );
}

function Rows(props: {
  readonly selected: ReadonlySet<string>;
  readonly toggle: (id: string) => void;
  readonly filtered: boolean;
}): ReactNode {
  const { t } = useLanguage();
  const live = useLive();
  const ids = useTaskIds();
  const [, go] = useLocation();
  const frame = useRef<HTMLDivElement>(null);
  const [focus, setFocus] = useState(0);
  const rows = useVirtualizer({
    count: ids.length,
    getScrollElement: () => frame.current,
    estimateSize: () => ROW,
    overscan: 12,
    getItemKey: (index) => ids[index] ?? index,
  });
  const items = rows.getVirtualItems();
  const last = items[items.length - 1]?.index ?? 0;
  useEffect(() => {
    if (last >= ids.length - 20 && live.more()) void live.older();
  }, [last, ids.length, live]);
  if (ids.length === 0) return <Empty filtered={props.filtered} />;
  const key = (event: KeyboardEvent): void => {
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: 20, PageUp: -20 }[event.key];
    const id = ids[focus];
    if (step !== undefined) {
      const next = Math.max(0, Math.min(ids.length - 1, focus + step));
      setFocus(next);
      rows.scrollToIndex(next);
    } else if (event.key === "Enter" && id && event.target === frame.current) go(paths.task(id));
    else if (event.key === " " && id && event.target === frame.current) props.toggle(id);
    else return;
    event.preventDefault();
  };
  const columns = t.tasks.columns;
  return (
    <div
      ref={frame}
      className="table"
      role="grid"
      aria-label={t.views.tasks}
      aria-rowcount={live.more() ? -1 : ids.length + 1}
      aria-activedescendant={ids[focus] ? `row-${ids[focus]}` : undefined}
      tabIndex={0}
      onKeyDown={key}
    >
      <div role="rowgroup" className="head">
        <div role="row" className="row" aria-rowindex={1}>
          <span role="columnheader">
            <span className="unseen">{t.tasks.select}</span>
          </span>
          <span role="columnheader">{columns.name}</span>
          <span role="columnheader">{columns.owner}</span>
          <span role="columnheader">{columns.state}</span>
          <span role="columnheader">{columns.priority}</span>
          <span role="columnheader">{columns.size}</span>
          <span role="columnheader">{columns.progress}</span>
          <span role="columnheader">{columns.submitted}</span>
          <span role="columnheader">{columns.reason}</span>
        </div>
      </div>
      <div role="rowgroup" className="body" ref={(element) => {
        if (element) element.style.height = `${rows.getTotalSize()}px`;
      }}>
        {items.map((item) => {
          const id = ids[item.index];
          if (id === undefined) return null;
          return (
            <Row
              key={id}
              id={id}
              index={item.index}
              top={item.start}
              focused={item.index === focus}
              selected={props.selected.has(id)}
              toggle={props.toggle}
            />
          );
        })}
      </div>
    </div>
  );
}

function Row(props: {
  readonly id: string;
  readonly index: number;
  readonly top: number;
  readonly focused: boolean;
  readonly selected: boolean;
  readonly toggle: (id: string) => void;
}): ReactNode {
  const { t } = useLanguage();
  const task = useTaskRow(props.id);
  if (task === undefined) return null;
  const pending = task.revision > task.observed_revision;
  const name = task.name || task.id;
  return (
    <div
      role="row"
      id={`row-${task.id}`}
      className="row"
      aria-rowindex={props.index + 2}
      aria-selected={props.selected}
      data-focused={props.focused}
      data-pending={pending}
      style={{ transform: `translateY(${props.top}px)` }}
    >
      <span role="gridcell">
        <input
          type="checkbox"
          tabIndex={-1}
          aria-label={`${t.tasks.select} ${name}`}
          checked={props.selected}
          onChange={() => props.toggle(task.id)}
        />
      </span>
      <span role="gridcell" className="name">
        <Link href={paths.task(task.id)} title={task.id}>
          {name}
        </Link>
      </span>
      <span role="gridcell">{task.owner}</span>
      <span role="gridcell">
        <StateMark state={task.state} />
        {pending ? <span className="quiet"> {t.tasks.pending}</span> : null}
      </span>
      <span role="gridcell">{task.priority}</span>
      <span role="gridcell">{sizeOf(task)}</span>
      <span role="gridcell">{progressOf(task)}</span>
      <span role="gridcell">{moment(task.submitted_at)}</span>
      <span role="gridcell" className="reason" title={task.reason?.text}>
        {task.reason?.text}
      </span>
    </div>
  );
}

export function sizeOf(task: Task): string {
  if (task.gpus_per_node === null) return String(task.nodes);
  return `${task.nodes} × ${task.gpus_per_node === 0 ? "CPU" : task.gpus_per_node}`;
}

export function progressOf(task: Task): string {
  const values = Object.entries(task.progress?.values ?? {});
  return values
    .slice(0, 2)
    .map(([name, number]) => `${name} ${value(number)}`)
    .join(", ");
}

function Empty(props: { readonly filtered: boolean }): ReactNode {
  const { t } = useLanguage();
  if (props.filtered) return <p className="empty">{t.tasks.noneMatch}</p>;
  return (
    <div className="empty">
      <h2>{t.tasks.none}</h2>
      <p>{t.tasks.noneHelp}</p>
      <pre>shiftwork submit --follow -- python train.py</pre>
    </div>
  );
}
