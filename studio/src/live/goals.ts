// Commands for many tasks at once: each has its own result, and one refusal harms no other.
import { api, Refused, type Task } from "../api/client";

export type Goal = "run" | "pause" | "stop";

export interface Result {
  readonly id: string;
  readonly name: string;
  /** What the server refused; empty if it took the command. */
  readonly refusal: string;
  /** The command is carried out once a task's events have observed this revision. */
  readonly revision: number;
}

const AT_ONCE = 6;

export async function setGoals(tasks: readonly Task[], goal: Goal): Promise<Result[]> {
  const results: Result[] = [];
  const left = [...tasks];
  const worker = async (): Promise<void> => {
    for (let task = left.shift(); task !== undefined; task = left.shift()) {
      results.push(await setGoal(task, goal));
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, worker));
  return results;
}

export async function setGoal(task: Task, goal: Goal): Promise<Result> {
  const named = { id: task.id, name: task.name || task.id };
  try {
    const { data } = await api.PUT("/v1/tasks/{task_id}/goal", {
      params: { path: { task_id: task.id } },
      body: { goal, now: false },
    });
    return { ...named, refusal: "", revision: data?.revision ?? 0 };
  } catch (error) {
    const refusal = error instanceof Refused ? error.message : String(error);
    return { ...named, refusal, revision: 0 };
  }
}

/** Which goals a task may be given now. */
export function goalsOf(task: Task): readonly Goal[] {
  if (task.finished_at !== null) return [];
  return task.goal === "pause" ? ["run", "stop"] : task.goal === "stop" ? [] : ["pause", "stop"];
}
