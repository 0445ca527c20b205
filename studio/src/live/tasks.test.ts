import { expect, it } from "vitest";
import type { Event, Task } from "../api/client";
import { applied } from "./tasks";
import { goalsOf } from "./goals";

const TASK = {
  id: "t1",
  state: "queued",
  goal: "run",
  revision: 1,
  observed_revision: 1,
  priority: "low",
  attempt: 0,
  started_at: null,
  finished_at: null,
} as Task;

function event(type: string, data: object): Event {
  return { type, data, task: "t1", position: 1, at: "2026-01-01T00:00:00Z" } as unknown as Event;
}

it("takes state, reason and what is observed from an event", () => {
  const data = { state: "running", reason: { text: "attempt 1 runs" }, attempt: 1, started_at: "2026-01-01T00:00:00Z", finished_at: null, priority: "high", held_gpus: 4, held_nodes: 1, attempts_without_progress: 0, observed_revision: 3 };
  const next = applied(TASK, event("task.state_changed", data));
  expect(next).toMatchObject({ state: "running", attempt: 1, priority: "high", observed_revision: 3 });
  expect(next.reason?.text).toBe("attempt 1 runs");
  const older = applied(next, event("task.state_changed", { ...data, observed_revision: 2 }));
  expect(older.observed_revision).toBe(3);
});

it("shows a command as requested until its revision is observed", () => {
  const next = applied(TASK, event("task.goal_changed", { goal: "pause", revision: 2 }));
  expect(next).toMatchObject({ goal: "pause", revision: 2, observed_revision: 1 });
});

it("is the same object if an event changes nothing that is shown", () => {
  expect(applied(TASK, event("run.listened", {}))).toBe(TASK);
});

it("offers the commands that a task takes now", () => {
  expect(goalsOf(TASK)).toEqual(["pause", "stop"]);
  expect(goalsOf({ ...TASK, goal: "pause" })).toEqual(["run", "stop"]);
  expect(goalsOf({ ...TASK, goal: "stop" })).toEqual([]);
  expect(goalsOf({ ...TASK, finished_at: "2026-01-01T00:00:00Z" })).toEqual([]);
});
