import { expect, it } from "vitest";
import type { Schemas, Task } from "../api/client";
import { phasesOf } from "./task/attempts";
import { filtersOf, sizeOf } from "./tasks/page";

const at = (second: number): string => `2026-01-01T00:00:${String(second).padStart(2, "0")}Z`;
const RUN = {
  assigned_at: at(1),
  started_at: at(2),
  finished_at: null,
  preemption: null,
  checkpoint: null,
} as unknown as Schemas["Run"];

it("gives a run that goes on an open last phase", () => {
  expect(phasesOf(RUN)).toEqual([
    { kind: "starting", begin: at(1), end: at(2) },
    { kind: "running", begin: at(2), end: null },
  ]);
});

it("shows a preemption as request, checkpoint and leaving", () => {
  const preempted = {
    ...RUN,
    preemption: { requested_at: at(5) },
    checkpoint: { saved_at: at(7) },
    finished_at: at(8),
  } as unknown as Schemas["Run"];
  expect(phasesOf(preempted).slice(1)).toEqual([
    { kind: "running", begin: at(2), end: at(5) },
    { kind: "saving", begin: at(5), end: at(7) },
    { kind: "leaving", begin: at(7), end: at(8) },
  ]);
});

it("does not take an older checkpoint for the answer to a request", () => {
  const killed = {
    ...RUN,
    preemption: { requested_at: at(5) },
    checkpoint: { saved_at: at(3) },
    finished_at: at(8),
  } as unknown as Schemas["Run"];
  expect(phasesOf(killed).map((phase) => phase.kind)).toEqual(["starting", "running", "saving"]);
});

it("reads filters from the URL and nothing else", () => {
  expect(filtersOf("state=running&mine=true&owner=%20&limit=9&x=y")).toEqual({ state: "running", mine: "true" });
  expect(filtersOf("")).toEqual({});
});

it("names sizes", () => {
  expect(sizeOf({ nodes: 2, gpus_per_node: null } as Task)).toBe("2");
  expect(sizeOf({ nodes: 2, gpus_per_node: 4 } as Task)).toBe("2 × 4");
  expect(sizeOf({ nodes: 1, gpus_per_node: 0 } as Task)).toBe("1 × CPU");
});
