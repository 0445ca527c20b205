// Times, durations and numbers, written as the command line writes them.
/** A moment as the command line writes it, in UTC. */
export function moment(at: string | null | undefined): string {
  return at ? `${new Date(at).toISOString().slice(0, 19).replace("T", " ")}Z` : "";
}

export function duration(seconds: number): string {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  if (whole < 86_400) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 86_400)} d ${Math.floor((whole % 86_400) / 3600)} h`;
}

export function between(begin: string, end: string | null): number {
  return ((end ? Date.parse(end) : Date.now()) - Date.parse(begin)) / 1000;
}

/** A number as a program reported it: short, and the same in every language. */
export function value(number: unknown): string {
  if (typeof number !== "number") return String(number);
  return Number.isInteger(number) ? String(number) : Number(number.toPrecision(4)).toString();
}
