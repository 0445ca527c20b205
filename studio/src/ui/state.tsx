import type { ReactNode } from "react";
import { useTexts } from "../i18n";

const TONES: Record<string, string> = {
  queued: "wait",
  starting: "busy",
  running: "busy",
  preempting: "wait",
  paused: "idle",
  succeeded: "good",
  failed: "bad",
  rejected: "bad",
  stopped: "idle",
};

/** The state of a task: a word, and a colour that repeats it. */
export function StateMark(props: { readonly state: string }): ReactNode {
  const t = useTexts();
  return (
    <span className="state" data-tone={TONES[props.state] ?? "idle"}>
      {t.states[props.state] ?? props.state}
    </span>
  );
}
