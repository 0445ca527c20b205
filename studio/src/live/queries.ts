// Reads that events make old: each query names the events that concern it.
import { useQuery, useQueryClient, type UseQueryResult } from "@tanstack/react-query";
import { useCallback, useEffect, useRef } from "react";
import type { Event } from "../api/client";
import { useConnection, useEvents } from "./store";

// So long a burst of events is collected before a view is read again.
const COLLECT_MS = 150;

/** The answer of ``read``; read again after events that ``concerns`` selects, and after a time in
 * which the connection was lost. */
export function useLiveQuery<T>(
  key: readonly string[],
  read: () => Promise<T>,
  concerns: (event: Event) => boolean,
): UseQueryResult<T> {
  const queries = useQueryClient();
  const timer = useRef<ReturnType<typeof setTimeout> | undefined>(undefined);
  const name = key.join("/");
  const again = useCallback(() => {
    if (timer.current !== undefined) return;
    timer.current = setTimeout(() => {
      timer.current = undefined;
      void queries.invalidateQueries({ queryKey: name.split("/") });
    }, COLLECT_MS);
  }, [queries, name]);
  const latest = useRef(concerns);
  latest.current = concerns;
  useEvents(
    useCallback(
      (events: readonly Event[]) => {
        if (events.some((event) => latest.current(event))) again();
      },
      [again],
    ),
  );
  const { stale } = useConnection();
  const was = useRef(stale);
  useEffect(() => {
    if (was.current && !stale) again();
    was.current = stale;
  }, [stale, again]);
  useEffect(() => () => clearTimeout(timer.current), []);
  return useQuery({ queryKey: name.split("/"), queryFn: read });
}

/** The body of an answer; what the server refused is thrown by the client before. */
export async function body<T>(answer: Promise<{ data?: T | undefined }>): Promise<T> {
  const { data } = await answer;
  if (data === undefined) throw new Error("an answer without a body");
  return data;
}
