// Times, durations and sizes in the reader's language.
import type { Language } from "../i18n";

const times = new Map<Language, Intl.DateTimeFormat>();

/** A moment in UTC, as everywhere in Shiftwork. */
export function moment(language: Language, at: string | null | undefined): string {
  if (!at) return "";
  let format = times.get(language);
  if (format === undefined) {
    format = new Intl.DateTimeFormat(language === "zh" ? "zh-CN" : "en-GB", {
      timeZone: "UTC",
      year: "numeric",
      month: "2-digit",
      day: "2-digit",
      hour: "2-digit",
      minute: "2-digit",
      second: "2-digit",
      hourCycle: "h23",
    });
    times.set(language, format);
  }
  return format.format(new Date(at));
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
