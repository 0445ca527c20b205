// The typed client of our own OpenAPI document. Every request of the studio goes through it.
import createClient, { type Middleware } from "openapi-fetch";
import type { components, paths } from "./generated";

export type Schemas = components["schemas"];
export type Task = Schemas["Task"];
export type Event = Schemas["Event"];
export type Problem = Schemas["Problem"];

// A session's CSRF token is kept in memory alone: a reload asks for it again.
let csrf = "";

export function useCsrf(token: string | null): void {
  csrf = token ?? "";
}

/** What the server refused, in its own words. */
export class Refused extends Error {
  readonly status: number;
  readonly problem: Problem | null;

  constructor(status: number, problem: Problem | null) {
    super(problem?.detail ?? problem?.title ?? `HTTP ${status}`);
    this.status = status;
    this.problem = problem;
  }
}

let over: () => void = () => undefined;

/** What is called when the session is over: it was revoked, or its time has come. */
export function onSessionOver(call: () => void): void {
  over = call;
}

export function sessionOver(): void {
  over();
}

/** Nobody answered: the network or the gateway is away. */
export class Unreachable extends Error {}

const guard: Middleware = {
  onRequest({ request }) {
    if (csrf && request.method !== "GET") request.headers.set("x-shiftwork-csrf", csrf);
    return request;
  },
  async onResponse({ response }) {
    if (response.ok) return response;
    const problem = await response
      .clone()
      .json()
      .catch(() => null);
    if (response.status === 401) sessionOver();
    throw new Refused(response.status, problem as Problem | null);
  },
  onError() {
    return new Unreachable("the gateway does not answer");
  },
};

export const api = createClient<paths>({ baseUrl: "", credentials: "same-origin" });
api.use(guard);

/** The position of the event log that an answer describes. */
export function positionOf(response: Response): number {
  return Number(response.headers.get("x-shiftwork-position") ?? 0);
}
