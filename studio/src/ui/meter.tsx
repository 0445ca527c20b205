import type { ReactNode } from "react";

/** How much of something is used: a bar, and the exact numbers beside it. */
export function Meter(props: {
  readonly label: string;
  readonly used: number;
  readonly total: number;
}): ReactNode {
  return (
    <div className="meter">
      <span>{props.label}</span>
      <meter aria-label={props.label} min={0} max={Math.max(1, props.total)} value={props.used} />
      <span>
        {props.used} / {props.total}
      </span>
    </div>
  );
}
