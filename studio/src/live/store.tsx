// Tasks that are shown, kept up to date by the one stream of events of this page.
import { createContext, useContext, useEffect, useMemo, useState, useSyncExternalStore, type ReactNode } from "react";
import { api, positionOf, type Event, type Task } from "../api/client";
import type { State } from "./machine";
import { START } from "./machine";
import { Stream } from "./stream";
import { applied } from "./tasks";

export type Filters = Readonly<Record<string, string>>;
type Listener = () => void;

const PAGE = 200;

/** What listens to every event, beside the list of tasks. */
export type Follower = (events: readonly Event[]) => void;

/** The tasks that meet some filters, newest first, and every event as it comes. */
export class LiveTasks {
  private readonly tasks = new Map<string, Task>();
  private order: readonly string[] = [];
  private filters: Filters | null = null;
  private cursor: string | null = null;
  private readonly pending = new Set<string>();
  private readonly listeners = new Set<Listener>();
  private readonly rows = new Map<string, Set<Listener>>();
  private readonly followers = new Set<Follower>();
  private readonly stream: Stream<Event>;
  private state: State = START;
  /** The position that each shown task describes: an event at or below it is in it already. */
  private readonly positions = new Map<string, number>();

  constructor() {
    this.stream = new Stream<Event>({
      read: () => this.read(),
      apply: (events) => this.apply(events),
      changed: (state) => {
        this.state = state;
        this.notify();
      },
    });
  }

  start(): void {
    this.stream.start();
  }

  close(): void {
    this.stream.close();
  }

  readonly subscribe = (listener: Listener): (() => void) => {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  };

  follow(follower: Follower): () => void {
    this.followers.add(follower);
    return () => this.followers.delete(follower);
  }

  row(id: string): (listener: Listener) => () => void {
    return (listener) => {
      const found = this.rows.get(id) ?? new Set();
      this.rows.set(id, found.add(listener));
      return () => {
        found.delete(listener);
        if (found.size === 0) this.rows.delete(id);
      };
    };
  }

  readonly ids = (): readonly string[] => this.order;
  readonly connection = (): State => this.state;
  readonly more = (): boolean => this.cursor !== null;
  get(id: string): Task | undefined {
    return this.tasks.get(id);
  }

  /** Shows the tasks that meet other filters. */
  async show(filters: Filters): Promise<void> {
    this.filters = filters;
    await this.reload(filters);
  }

  /** Reads the newest tasks that meet the filters; the position that they describe. */
  private async reload(filters: Filters): Promise<number> {
    const arrived: Event[] = [];
    const unfollow = this.follow((events) => arrived.push(...events));
    try {
      const { items, next, position } = await this.page(filters, null);
      if (this.filters !== filters) return position;
      this.tasks.clear();
      this.positions.clear();
      for (const task of items) this.put(task, position);
      this.cursor = next;
      this.reorder();
      this.update(arrived);
      this.notify();
      for (const listeners of this.rows.values()) for (const listener of listeners) listener();
      return position;
    } finally {
      unfollow();
    }
  }

  private put(task: Task, position: number): void {
    this.tasks.set(task.id, task);
    this.positions.set(task.id, position);
  }

  async older(): Promise<void> {
    const { filters, cursor } = this;
    if (filters === null || cursor === null) return;
    this.cursor = null;
    const arrived: Event[] = [];
    const unfollow = this.follow((events) => arrived.push(...events));
    const { items, next, position } = await this.page(filters, cursor).finally(unfollow);
    if (this.filters !== filters) return;
    for (const task of items) if (!this.tasks.has(task.id)) this.put(task, position);
    this.update(arrived);
    this.cursor = next;
    this.reorder();
    this.notify();
  }

  private async page(
    filters: Filters,
    cursor: string | null,
  ): Promise<{ items: Task[]; next: string | null; position: number }> {
    const query = { ...filters, limit: PAGE, ...(cursor ? { cursor } : {}) };
    const { data, response } = await api.GET("/v1/tasks", { params: { query } });
    return {
      items: data?.items ?? [],
      next: data?.next_cursor ?? null,
      position: positionOf(response),
    };
  }

  private async read(): Promise<number> {
    if (this.filters !== null) return this.reload(this.filters);
    const { response } = await api.GET("/v1/session");
    return positionOf(response);
  }

  private apply(events: readonly Event[]): void {
    this.update(events);
    for (const follower of this.followers) follower(events);
  }

  private update(events: readonly Event[]): void {
    const changed = new Set<string>();
    for (const event of events) {
      if (event.task === null) continue;
      const known = this.tasks.get(event.task);
      if (known === undefined) {
        if (event.type === "task.submitted" || event.type === "task.state_changed") {
          this.ask(event.task);
        }
        continue;
      }
      if (event.position <= (this.positions.get(event.task) ?? 0)) continue;
      const next = applied(known, event);
      this.positions.set(event.task, event.position);
      if (next !== known) {
        this.tasks.set(event.task, next);
        changed.add(event.task);
        if (!this.meets(next)) this.ask(event.task);
      }
    }
    for (const id of changed) for (const listener of this.rows.get(id) ?? []) listener();
    if (changed.size > 0) this.notify();
  }

  /** Whether a task still meets the filters that events can change. */
  private meets(task: Task): boolean {
    const filters = this.filters ?? {};
    const states = filters["state"]?.split(",");
    const priorities = filters["priority"]?.split(",");
    return (
      (states === undefined || states.includes(task.state)) &&
      (priorities === undefined || priorities.includes(task.priority))
    );
  }

  /** Asks the server whether a task meets the filters; several at once. */
  private ask(id: string): void {
    if (this.filters === null || this.pending.size > PAGE) return;
    if (this.pending.size === 0) setTimeout(() => void this.answer(), 30);
    this.pending.add(id);
  }

  private async answer(): Promise<void> {
    const ids = [...this.pending];
    this.pending.clear();
    const filters = this.filters;
    if (filters === null) return;
    const found = await Promise.all(
      ids.map((id) =>
        this.page({ ...filters, id_prefix: id }, null).catch(() => null),
      ),
    );
    if (this.filters !== filters) return;
    ids.forEach((id, index) => {
      const answer = found[index];
      // An answer that is older than what the events say is no answer, nor is a failure.
      if (!answer || answer.position < (this.positions.get(id) ?? 0)) return;
      const task = answer.items.find((each) => each.id === id);
      if (task) this.put(task, answer.position);
      else this.tasks.delete(id);
    });
    this.reorder();
    for (const id of ids) for (const listener of this.rows.get(id) ?? []) listener();
    this.notify();
  }

  private reorder(): void {
    this.order = [...this.tasks.values()]
      .sort((a, b) =>
        a.submitted_at === b.submitted_at
          ? b.id.localeCompare(a.id)
          : a.submitted_at < b.submitted_at
            ? 1
            : -1,
      )
      .map((task) => task.id);
  }

  private notify(): void {
    for (const listener of this.listeners) listener();
  }
}

const Context = createContext<LiveTasks | null>(null);

export function Live(props: { readonly children: ReactNode }): ReactNode {
  const [live] = useState(() => new LiveTasks());
  useEffect(() => {
    live.start();
    return () => live.close();
  }, [live]);
  return <Context.Provider value={live}>{props.children}</Context.Provider>;
}

export function useLive(): LiveTasks {
  const live = useContext(Context);
  if (live === null) throw new Error("outside of Live");
  return live;
}

export function useConnection(): State {
  const live = useLive();
  return useSyncExternalStore(live.subscribe, live.connection);
}

export function useTaskIds(): readonly string[] {
  const live = useLive();
  return useSyncExternalStore(live.subscribe, live.ids);
}

export function useTaskRow(id: string): Task | undefined {
  const live = useLive();
  const subscribe = useMemo(() => live.row(id), [live, id]);
  return useSyncExternalStore(subscribe, () => live.get(id));
}

/** Calls when events of this task come, or of any if no id is given. */
export function useEvents(follower: Follower): void {
  const live = useLive();
  useEffect(() => live.follow(follower), [live, follower]);
}
