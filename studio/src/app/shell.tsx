// The frame around every view: navigation, the state of the connection, theme, language, palette.
import { useEffect, useState, type ReactNode } from "react";
import { Link, useLocation } from "wouter";
import { LANGUAGES, useLanguage } from "../i18n";
import { useConnection } from "../live/store";
import { Palette } from "./palette";
import { paths } from "./paths";
import { useSession } from "./session";
import { chooseTheme, chosenTheme, THEMES, type Theme } from "./theme";

export const VIEWS = [
  { id: "overview", path: paths.overview() },
  { id: "tasks", path: paths.tasks() },
  { id: "queue", path: paths.queue() },
  { id: "nodes", path: paths.nodes() },
] as const;

export function Shell(props: { readonly children: ReactNode }): ReactNode {
  const { t } = useLanguage();
  const [path] = useLocation();
  const [palette, setPalette] = useState(false);
  useEffect(() => {
    const key = (event: KeyboardEvent): void => {
      if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
        event.preventDefault();
        setPalette(true);
      }
    };
    addEventListener("keydown", key);
    return () => removeEventListener("keydown", key);
  }, []);
  return (
    <div className="shell">
      <a className="skip" href="#content">
        {t.app.skip}
      </a>
      <header className="bar">
        <Link className="brand" href={paths.overview()}>
          Shiftwork
        </Link>
        <nav aria-label={t.app.goTo}>
          {VIEWS.map((view) => {
            const current =
              view.path === "/" ? path === "/" : path === view.path || path.startsWith(`${view.path}/`);
            return (
              <Link key={view.id} href={view.path} aria-current={current ? "page" : undefined}>
                {t.views[view.id]}
              </Link>
            );
          })}
        </nav>
        <span className="spring" />
        <Connection />
        <button type="button" className="plain" onClick={() => setPalette(true)}>
          {t.app.commands} <kbd>Ctrl K</kbd>
        </button>
        <Account />
      </header>
      <main id="content" tabIndex={-1}>
        {props.children}
      </main>
      {palette ? <Palette close={() => setPalette(false)} /> : null}
    </div>
  );
}

function Connection(): ReactNode {
  const { t } = useLanguage();
  const { stale, position } = useConnection();
  const text = !stale ? t.app.live : position === null ? t.app.connecting : t.app.stale;
  return (
    <span className="connection" data-stale={stale} role="status">
      {text}
    </span>
  );
}

function Account(): ReactNode {
  const { t, language, choose } = useLanguage();
  const { session, logOut } = useSession();
  const [theme, setTheme] = useState<Theme>(chosenTheme);
  return (
    <details className="menu">
      <summary>{session.user}</summary>
      <div className="menu-body">
        <p className="quiet">
          {session.role}
          {session.team ? ` · ${session.team}` : ""}
        </p>
        <label>
          {t.app.theme}
          <select
            value={theme}
            onChange={(event) => {
              const next = event.target.value as Theme;
              chooseTheme(next);
              setTheme(next);
            }}
          >
            {THEMES.map((each) => (
              <option key={each} value={each}>
                {t.app.themes[each]}
              </option>
            ))}
          </select>
        </label>
        <label>
          {t.app.language}
          <select
            value={language}
            onChange={(event) => {
              const found = LANGUAGES.find((each) => each.id === event.target.value);
              if (found) choose(found.id);
            }}
          >
            {LANGUAGES.map((each) => (
              <option key={each.id} value={each.id} lang={each.id}>
                {each.name}
              </option>
            ))}
          </select>
        </label>
        <button type="button" onClick={() => void logOut()}>
          {t.app.logOut}
        </button>
      </div>
    </details>
  );
}
