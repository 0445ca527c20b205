// What events change of a task, as pure functions.
import type { Event, Task } from "../api/client";

/** The task after an event; the same object if the event changes nothing that a task shows. */
export function applied(task: Task, event: Event): Task {
  switch (event.type) {
    case "task.state_changed": {
      const data = event.data;
      return {
        ...task,
        state: data.state,
        reason: data.reason as Task["reason"],
        attempt: data.attempt,
        started_at: data.started_at ?? task.started_at,
        finished_at: data.finished_at ?? null,
        priority: data.priority,
        held_gpus: data.held_gpus,
        held_nodes: data.held_nodes,
        attempts_without_progress: data.attempts_without_progress,
        observed_revision: Math.max(task.observed_revision, data.observed_revision),
      } as Task;
    }
    case "task.goal_changed":
      return { ...task, goal: event.data.goal, revision: event.data.revision } as Task;
    case "task.priority_changed":
      return { ...task, priority: event.data.priority, revision: event.data.revision } as Task;
    default:
      return task;
  }
}
