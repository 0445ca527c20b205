// Every view and every task by a few letters, without the mouse.
import { useEffect, useMemo, useRef, useState, type KeyboardEvent, type ReactNode } from "react";
import { useLocation } from "wouter";
import { useTexts } from "../i18n";
import { useLive } from "../live/store";
import { paths } from "./paths";
import { VIEWS } from "./shell";

const SHOWN_MAX = 12;

export function Palette(props: { readonly close: () => void }): ReactNode {
  const t = useTexts();
  const live = useLive();
  const [, go] = useLocation();
  const dialog = useRef<HTMLDialogElement>(null);
  const [text, setText] = useState("");
  const [chosen, setChosen] = useState(0);
  useEffect(() => dialog.current?.showModal(), []);
  const found = useMemo(() => {
    const wanted = text.trim().toLowerCase();
    const views = VIEWS.map((view) => ({ id: view.id, label: t.views[view.id], path: view.path as string }));
    const tasks = live.ids().flatMap((id) => {
      const task = live.get(id);
      return task ? [{ id, label: `${task.name || id} · ${id.slice(-6)}`, path: paths.task(id) }] : [];
    });
    return [...views, ...tasks]
      .filter((each) => each.label.toLowerCase().includes(wanted) || each.id.includes(wanted))
      .slice(0, SHOWN_MAX);
  }, [text, t, live]);
  const take = (index: number): void => {
    const each = found[index];
    if (!each) return;
    props.close();
    go(each.path);
  };
  const key = (event: KeyboardEvent): void => {
    if (event.key === "ArrowDown") setChosen((chosen + 1) % Math.max(1, found.length));
    else if (event.key === "ArrowUp") setChosen((chosen + found.length - 1) % Math.max(1, found.length));
    else if (event.key === "Enter") take(chosen);
    else return;
    event.preventDefault();
  };
  return (
    <dialog ref={dialog} className="palette" aria-label={t.app.commands} onClose={props.close}>
      <input
        type="search"
        role="combobox"
        aria-expanded="true"
        aria-controls="palette-list"
        aria-activedescendant={found[chosen] ? `palette-${chosen}` : undefined}
        aria-label={t.app.findCommand}
        placeholder={t.app.findCommand}
        value={text}
        onChange={(event) => {
          setText(event.target.value);
          setChosen(0);
        }}
        onKeyDown={key}
      />
      <ul id="palette-list" role="listbox" aria-label={t.app.commands}>
        {found.map((each, index) => (
          <li
            key={`${each.path}`}
            id={`palette-${index}`}
            role="option"
            aria-selected={index === chosen}
            onClick={() => take(index)}
          >
            {each.label}
          </li>
        ))}
        {found.length === 0 ? <li className="quiet">{t.app.nothingFound}</li> : null}
      </ul>
    </dialog>
  );
}
