import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { LONGEST_PAUSE_MS, pauseAfter, START, step, type Effect, type Input, type Phase, type State } from "./machine";

const PHASES: readonly Phase[] = ["reading", "connecting", "following", "waiting", "ended"];
type Kind = Input<number>["kind"];
const INPUTS: { readonly [K in Kind]: Extract<Input<number>, { kind: K }> } = {
  start: { kind: "start" },
  snapshot: { kind: "snapshot", position: 10 },
  opened: { kind: "opened" },
  event: { kind: "event", position: 11, event: 11 },
  beat: { kind: "beat", position: 12 },
  closed: { kind: "closed" },
  gone: { kind: "gone" },
  refused: { kind: "refused" },
  wake: { kind: "wake" },
};
// The phase after each input in each phase; the type demands every pair.
const TABLE: Record<Kind, Record<Phase, Phase>> = {
  start: { reading: "reading", connecting: "connecting", following: "following", waiting: "connecting", ended: "connecting" },
  snapshot: { reading: "connecting", connecting: "connecting", following: "following", waiting: "waiting", ended: "ended" },
  opened: { reading: "reading", connecting: "following", following: "following", waiting: "waiting", ended: "ended" },
  event: { reading: "reading", connecting: "connecting", following: "following", waiting: "waiting", ended: "ended" },
  beat: { reading: "reading", connecting: "connecting", following: "following", waiting: "waiting", ended: "ended" },
  closed: { reading: "waiting", connecting: "waiting", following: "waiting", waiting: "waiting", ended: "ended" },
  gone: { reading: "reading", connecting: "reading", following: "reading", waiting: "reading", ended: "ended" },
  refused: { reading: "ended", connecting: "ended", following: "ended", waiting: "ended", ended: "ended" },
  wake: { reading: "reading", connecting: "connecting", following: "following", waiting: "connecting", ended: "ended" },
};

describe("the table", () => {
  for (const phase of PHASES) {
    for (const kind of Object.keys(INPUTS) as Kind[]) {
      it(`${kind} while ${phase}`, () => {
        const state: State = { phase, position: 10, tries: 0, stale: phase !== "following" };
        expect(step(state, INPUTS[kind])[0].phase).toBe(TABLE[kind][phase]);
      });
    }
  }
});

it("reads everything again after a gap, and shows meanwhile that it is old", () => {
  const following: State = { phase: "following", position: 10, tries: 0, stale: false };
  const [state, effects] = step(following, { kind: "gone" });
  expect(state).toEqual({ phase: "reading", position: null, tries: 0, stale: true });
  expect(effects).toEqual([{ kind: "close" }, { kind: "read" }]);
});

it("drops events that come while nothing is followed", () => {
  const waiting: State = { phase: "waiting", position: 10, tries: 1, stale: true };
  expect(step(waiting, INPUTS.event)).toEqual([waiting, []]);
});

it("waits longer after each failure, but not for ever", () => {
  const pauses = Array.from({ length: 20 }, (_, tries) => pauseAfter(tries));
  expect([...pauses].sort((a, b) => a - b)).toEqual(pauses);
  expect(pauses.at(-1)).toBe(LONGEST_PAUSE_MS);
});

/** A server with a log that only grows, and a network that repeats, cuts off and forgets. */
type Move = "append" | "deliver" | "repeat" | "close" | "wake" | "open" | "snapshot" | "forget";
const MOVES: readonly Move[] = ["append", "deliver", "deliver", "repeat", "close", "wake", "open", "snapshot", "forget"];

it("applies each event once and in order, whatever the network does", () => {
  fc.assert(
    fc.property(fc.array(fc.constantFrom(...MOVES), { maxLength: 200 }), (moves) => {
      let state = START;
      let log = 5;
      let sent = 0; // how far this connection has delivered
      let shown = -1; // what the page shows: everything up to here
      const put = (input: Input<number>): void => {
        const [next, effects] = step(state, input);
        state = next;
        for (const effect of effects) perform(effect);
      };
      const perform = (effect: Effect<number>): void => {
        if (effect.kind === "connect") {
          expect(effect.from).toBe(shown);
          sent = effect.from;
        } else if (effect.kind === "apply") {
          expect(effect.position).toBe(shown + 1);
          shown = effect.position;
        }
      };
      put({ kind: "start" });
      for (const move of moves) {
        if (move === "append") log += 1;
        else if (move === "deliver" && state.phase === "following" && sent < log) {
          sent += 1;
          put({ kind: "event", position: sent, event: sent });
        } else if (move === "repeat" && state.phase === "following")
          put({ kind: "event", position: sent, event: sent });
        else if (move === "close") put({ kind: "closed" });
        else if (move === "wake") put({ kind: "wake" });
        else if (move === "open") put({ kind: "opened" });
        else if (move === "forget" && state.phase === "connecting") put({ kind: "gone" });
        else if (move === "snapshot" && state.phase === "reading") {
          shown = log;
          put({ kind: "snapshot", position: log });
        }
        expect(state.phase === "following" || state.stale).toBe(true);
      }
    }),
    { numRuns: 2000 },
  );
});
