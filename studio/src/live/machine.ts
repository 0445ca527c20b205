// The stream as a pure machine: (state, input) -> state and effects. Clock and network are outside.
//
// Position is truth. A snapshot describes the event log up to a position; events behind it are
// applied in order, and what is at or below the position is dropped. If the log no longer goes back
// so far, or was rebuilt, everything is read again, and what is shown meanwhile is marked as stale.

export type Phase = "reading" | "connecting" | "following" | "waiting" | "ended";

export interface State {
  readonly phase: Phase;
  /** Everything up to here is applied; null before the first snapshot. */
  readonly position: number | null;
  /** How often in a row nothing was reached. */
  readonly tries: number;
  /** What is shown may be old: nothing arrives at present. */
  readonly stale: boolean;
}

export type Input<E> =
  | { readonly kind: "start" }
  | { readonly kind: "snapshot"; readonly position: number }
  | { readonly kind: "opened" }
  | { readonly kind: "event"; readonly position: number; readonly event: E }
  | { readonly kind: "beat"; readonly position: number }
  | { readonly kind: "closed" }
  | { readonly kind: "gone" }
  | { readonly kind: "refused" }
  | { readonly kind: "wake" };

export type Effect<E> =
  | { readonly kind: "read" }
  | { readonly kind: "connect"; readonly from: number }
  | { readonly kind: "apply"; readonly event: E; readonly position: number }
  | { readonly kind: "wait"; readonly ms: number }
  | { readonly kind: "close" };

export const START: State = { phase: "waiting", position: null, tries: 0, stale: true };

export const FIRST_PAUSE_MS = 250;
export const LONGEST_PAUSE_MS = 10_000;

export function pauseAfter(tries: number): number {
  return Math.min(LONGEST_PAUSE_MS, FIRST_PAUSE_MS * 2 ** Math.max(0, tries - 1));
}

type Step<E> = readonly [State, readonly Effect<E>[]];

/** Total: every input has an answer in every phase. */
export function step<E>(state: State, input: Input<E>): Step<E> {
  if (state.phase === "ended" && input.kind !== "start") return [state, []];
  switch (input.kind) {
    case "start":
    case "wake":
      if (state.phase !== "waiting" && state.phase !== "ended") return [state, []];
      return resume(state);
    case "snapshot":
      if (state.phase !== "reading") return [state, []];
      return [
        { ...state, phase: "connecting", position: input.position },
        [{ kind: "connect", from: input.position }],
      ];
    case "opened":
      if (state.phase !== "connecting") return [state, []];
      return [{ ...state, phase: "following", tries: 0, stale: false }, []];
    case "event":
      if (state.phase !== "following" || input.position <= (state.position ?? 0)) return [state, []];
      return [
        { ...state, position: input.position },
        [{ kind: "apply", event: input.event, position: input.position }],
      ];
    case "beat":
      if (state.phase !== "following") return [state, []];
      return [{ ...state, position: Math.max(state.position ?? 0, input.position) }, []];
    case "gone":
      return [
        { ...state, phase: "reading", position: null, stale: true },
        [{ kind: "close" }, { kind: "read" }],
      ];
    case "closed": {
      if (state.phase === "waiting") return [state, []];
      const tries = state.tries + 1;
      return [
        { ...state, phase: "waiting", tries, stale: true },
        [{ kind: "close" }, { kind: "wait", ms: pauseAfter(tries) }],
      ];
    }
    case "refused":
      return [{ ...state, phase: "ended", stale: true }, [{ kind: "close" }]];
  }
}

function resume<E>(state: State): Step<E> {
  if (state.position === null) return [{ ...state, phase: "reading" }, [{ kind: "read" }]];
  return [{ ...state, phase: "connecting" }, [{ kind: "connect", from: state.position }]];
}
