// The output of a task: the newest lines, older ones on demand, new ones as they come, search.
import { useCallback, useEffect, useRef, useState, type FormEvent, type ReactNode } from "react";
import { useVirtualizer } from "@tanstack/react-virtual";
import { createParser } from "eventsource-parser";
import { api, Refused, type Schemas, type Task } from "../../api/client";
import { useLanguage } from "../../i18n";
import { moment } from "../../ui/format";

type Line = Schemas["FoundOutputLine"];
const PAGE = 500;
const LINE = 20;
// So much is kept of what is followed.
const SHOWN_MAX = 20_000;
// Programs print a line here and there or thousands in a second: one read for all of them.
const COLLECT_MS = 250;

export function Output(props: { readonly task: Task }): ReactNode {
  const { t } = useLanguage();
  const { id } = props.task;
  const [lines, setLines] = useState<readonly Line[]>([]);
  const [pattern, setPattern] = useState("");
  const [attempt, setAttempt] = useState(0);
  const [rank, setRank] = useState("");
  const [times, setTimes] = useState(false);
  const [follow, setFollow] = useState(true);
  const [refusal, setRefusal] = useState("");
  const [older, setOlder] = useState("");
  const newest = useRef("");
  const busy = useRef(false);
  const query = useCallback(
    (more: Record<string, string | number | boolean>) =>
      api.GET("/v1/tasks/{task_id}/logs/lines", {
        params: {
          path: { task_id: id },
          query: {
            ...(pattern ? { pattern, literal: true, ignore_case: true } : {}),
            ...(attempt ? { attempt } : {}),
            ...(rank ? { rank: Number(rank) } : {}),
            limit: PAGE,
            ...more,
          },
        },
      }),
    [id, pattern, attempt, rank],
  );
  const refuse = useCallback((error: unknown) => {
    setRefusal(error instanceof Refused ? error.message : String(error));
  }, []);
  useEffect(() => {
    let current = true;
    setRefusal("");
    query({ last: true }).then(({ data }) => {
      if (!current || !data) return;
      setLines(data.lines);
      setOlder(data.more ? data.begin : "");
      newest.current = data.end;
    }, refuse);
    return () => {
      current = false;
    };
  }, [query, refuse]);
  const newer = useCallback(async () => {
    if (busy.current || !newest.current) return;
    busy.current = true;
    try {
      for (;;) {
        const { data } = await query({ after: newest.current });
        if (!data) return;
        newest.current = data.end;
        if (data.lines.length > 0)
          setLines((before) => [...before, ...data.lines].slice(-SHOWN_MAX));
        if (!data.more) return;
      }
    } catch (error) {
      refuse(error);
    } finally {
      busy.current = false;
    }
  }, [query, refuse]);
  useOutputSignal(id, follow && props.task.finished_at === null, newer);
  const before = async (): Promise<void> => {
    try {
      const { data } = await query({ before: older, last: true });
      if (!data) return;
      setLines((after) => [...data.lines, ...after]);
      setOlder(data.more ? data.begin : "");
    } catch (error) {
      refuse(error);
    }
  };
  const search = (event: FormEvent<HTMLFormElement>): void => {
    event.preventDefault();
    setPattern(String(new FormData(event.currentTarget).get("pattern") ?? ""));
  };
  return (
    <section className="output" aria-label={t.task.tabs.output}>
      <form className="toolbar" onSubmit={search} role="search">
        <input type="search" name="pattern" aria-label={t.output.search} placeholder={t.output.search} />
        <label className="check">
          {t.output.attempt}
          <input
            type="number"
            min={0}
            max={props.task.attempt}
            value={attempt || ""}
            placeholder={t.output.newest}
            onChange={(event) => setAttempt(Number(event.target.value))}
          />
        </label>
        <label className="check">
          {t.output.rank}
          <input
            type="number"
            min={0}
            value={rank}
            placeholder={t.output.all}
            onChange={(event) => setRank(event.target.value)}
          />
        </label>
        <label className="check">
          <input type="checkbox" checked={times} onChange={(event) => setTimes(event.target.checked)} />
          {t.output.times}
        </label>
        <label className="check">
          <input type="checkbox" checked={follow} onChange={(event) => setFollow(event.target.checked)} />
          {t.output.follow}
        </label>
        <a
          className="button"
          download={`${props.task.name || id}.log`}
          href={`/v1/tasks/${encodeURIComponent(id)}/logs${rank ? `?rank=${rank}` : ""}`}
        >
          {t.output.download}
        </a>
      </form>
      <p role="alert" className="refusal">
        {refusal}
      </p>
      {older ? (
        <button type="button" className="plain" onClick={() => void before()}>
          {t.output.older}
        </button>
      ) : null}
      <Lines lines={lines} times={times} follow={follow} empty={t.output.none} />
    </section>
  );
}

function Lines(props: {
  readonly lines: readonly Line[];
  readonly times: boolean;
  readonly follow: boolean;
  readonly empty: string;
}): ReactNode {
  const frame = useRef<HTMLDivElement>(null);
  const { lines, follow } = props;
  const rows = useVirtualizer({
    count: lines.length,
    getScrollElement: () => frame.current,
    estimateSize: () => LINE,
    overscan: 30,
  });
  useEffect(() => {
    if (follow && lines.length > 0) rows.scrollToIndex(lines.length - 1, { align: "end" });
  }, [follow, lines.length, rows]);
  if (lines.length === 0) return <p className="empty">{props.empty}</p>;
  return (
    <div ref={frame} className="lines" role="log" aria-live="off" tabIndex={0}>
      <div
        className="body"
        ref={(element) => {
          if (element) element.style.height = `${rows.getTotalSize()}px`;
        }}
      >
        {rows.getVirtualItems().map((item) => {
          const line = lines[item.index];
          if (line === undefined) return null;
          return (
            <div key={item.key} className="line" style={{ transform: `translateY(${item.start}px)` }}>
              <span className="gutter">
                {line.role}[{line.rank}]
              </span>
              {props.times ? <time className="gutter">{moment(line.at)}</time> : null}
              <span>{line.text}</span>
            </div>
          );
        })}
      </div>
    </div>
  );
}

/** Calls when the program has written something; nothing polls. */
function useOutputSignal(id: string, wanted: boolean, wrote: () => Promise<void>): void {
  useEffect(() => {
    if (!wanted) return undefined;
    const controller = new AbortController();
    let timer: ReturnType<typeof setTimeout> | undefined;
    const soon = (): void => {
      timer ??= setTimeout(() => {
        timer = undefined;
        void wrote();
      }, COLLECT_MS);
    };
    const listen = async (): Promise<void> => {
      for (let pause = 500; !controller.signal.aborted; pause = Math.min(10_000, pause * 2)) {
        try {
          const response = await fetch(`/v1/tasks/${encodeURIComponent(id)}/logs?follow=true&tail=0`, {
            headers: { accept: "text/event-stream" },
            signal: controller.signal,
          });
          if (response.ok && response.body) {
            pause = 500;
            soon();
            const parser = createParser({ onEvent: soon });
            const decoder = new TextDecoder();
            const reader = response.body.getReader();
            for (let part = await reader.read(); !part.done; part = await reader.read()) {
              parser.feed(decoder.decode(part.value, { stream: true }));
            }
          }
        } catch {
          // Tried again below, with growing pauses.
        }
        await new Promise((resolve) => setTimeout(resolve, pause));
      }
    };
    void listen();
    return () => {
      controller.abort();
      clearTimeout(timer);
    };
  }, [id, wanted, wrote]);
}
