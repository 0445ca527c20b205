// Drives the machine: reads snapshots, holds the one stream of events, waits and tries again.
import { createParser } from "eventsource-parser";
import { Refused, sessionOver } from "../api/client";
import { START, step, type Effect, type Input, type State } from "./machine";

export interface Source<E> {
  /** Reads everything that is shown; resolves with the position that it describes. */
  readonly read: () => Promise<number>;
  /** Applies events of one moment, in order. */
  readonly apply: (events: readonly E[]) => void;
  readonly changed: (state: State) => void;
}

interface Positioned {
  readonly position: number;
}

const QUIET_MS = 45_000;
const HIDDEN_MAX = 500;

/** The stream of one page. ``close`` ends it. */
export class Stream<E extends Positioned> {
  private state: State = START;
  private readonly source: Source<E>;
  private controller: AbortController | null = null;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private watchdog: ReturnType<typeof setTimeout> | undefined;
  private batch: E[] = [];
  private scheduled = false;

  constructor(source: Source<E>) {
    this.source = source;
  }

  start(): void {
    addEventListener("online", this.wake);
    document.addEventListener("visibilitychange", this.wake);
    this.put({ kind: "start" });
  }

  close(): void {
    removeEventListener("online", this.wake);
    document.removeEventListener("visibilitychange", this.wake);
    this.put({ kind: "refused" });
    clearTimeout(this.timer);
    clearTimeout(this.watchdog);
  }

  private readonly wake = (): void => {
    if (document.visibilityState === "visible") this.put({ kind: "wake" });
  };

  private put(input: Input<E>): void {
    const [next, effects] = step(this.state, input);
    const changed = next.phase !== this.state.phase || next.stale !== this.state.stale;
    this.state = next;
    for (const effect of effects) this.run(effect);
    if (changed) this.source.changed(next);
  }

  private run(effect: Effect<E>): void {
    switch (effect.kind) {
      case "read":
        this.source.read().then(
          (position) => this.put({ kind: "snapshot", position }),
          (error: unknown) => this.failed(error),
        );
        return;
      case "connect":
        void this.connect(effect.from);
        return;
      case "apply":
        this.batch.push(effect.event);
        // A page in the background has no frames: its events must not pile up.
        if (document.hidden && this.batch.length >= HIDDEN_MAX) this.flush();
        else if (!this.scheduled) {
          this.scheduled = true;
          requestAnimationFrame(this.flush);
        }
        return;
      case "wait":
        clearTimeout(this.timer);
        // Each browser at another moment, so that they do not all come at once.
        this.timer = setTimeout(
          () => this.put({ kind: "wake" }),
          effect.ms * (0.5 + Math.random() / 2),
        );
        return;
      case "close":
        this.controller?.abort();
        this.controller = null;
        clearTimeout(this.watchdog);
        return;
    }
  }

  private readonly flush = (): void => {
    this.scheduled = false;
    const events = this.batch;
    this.batch = [];
    if (events.length > 0) this.source.apply(events);
  };

  private failed(error: unknown): void {
    if (error instanceof Refused && (error.status === 401 || error.status === 403)) {
      this.put({ kind: "refused" });
      if (error.status === 401) sessionOver();
    } else {
      this.put({ kind: "closed" });
    }
  }

  /** A connection on which nothing arrives, not even heartbeats, is dead: a laptop slept. */
  private heard(controller: AbortController): void {
    clearTimeout(this.watchdog);
    this.watchdog = setTimeout(() => controller.abort(), QUIET_MS);
  }

  private async connect(from: number): Promise<void> {
    const controller = new AbortController();
    this.controller = controller;
    this.heard(controller);
    try {
      const response = await fetch(`/v1/events?from=${from}`, {
        headers: { accept: "text/event-stream" },
        credentials: "same-origin",
        signal: controller.signal,
      });
      if (response.status === 410) return this.put({ kind: "gone" });
      if (!response.ok || response.body === null) throw new Refused(response.status, null);
      this.put({ kind: "opened" });
      await this.receive(response.body, controller);
    } catch (error) {
      if (this.controller === controller) this.failed(error);
      return;
    }
    if (this.controller === controller) this.put({ kind: "closed" });
  }

  private async receive(
    body: ReadableStream<Uint8Array>,
    controller: AbortController,
  ): Promise<void> {
    const parser = createParser({
      onEvent: ({ id, data }) => {
        if (data !== "") {
          const event = JSON.parse(data) as E;
          this.put({ kind: "event", position: event.position, event });
        } else if (id !== undefined && id !== "") {
          this.put({ kind: "beat", position: Number(id) });
        }
      },
    });
    const decoder = new TextDecoder();
    const reader = body.getReader();
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      this.heard(controller);
      parser.feed(decoder.decode(value, { stream: true }));
    }
  }
}
