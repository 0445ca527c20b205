import { useEffect, useState, type FormEvent, type ReactNode } from "react";
import { api, Refused, type Schemas } from "../../api/client";
import type { Session } from "../../app/session";
import { useTexts } from "../../i18n";

export function LoginPage(props: { readonly entered: (session: Session) => void }): ReactNode {
  const t = useTexts();
  const [ways, setWays] = useState<Schemas["LoginWays"] | null>(null);
  const [error, setError] = useState("");
  const [busy, setBusy] = useState(false);
  useEffect(() => {
    api.GET("/v1/login").then(
      ({ data }) => setWays(data ?? null),
      () => setWays(null),
    );
  }, []);
  const enter = (tried: Promise<{ data?: Session | undefined }>): void => {
    setBusy(true);
    setError("");
    tried.then(
      ({ data }) => {
        setBusy(false);
        if (data) props.entered(data);
      },
      (reason: unknown) => {
        setBusy(false);
        setError(reason instanceof Refused ? reason.message : String(reason));
      },
    );
  };
  const byToken = (event: FormEvent<HTMLFormElement>): void => {
    event.preventDefault();
    const token = String(new FormData(event.currentTarget).get("token") ?? "").trim();
    enter(
      api.POST("/v1/session", { headers: { authorization: `Bearer ${token}` } }) as Promise<{
        data?: Session;
      }>,
    );
  };
  const byPassword = (event: FormEvent<HTMLFormElement>): void => {
    event.preventDefault();
    const form = new FormData(event.currentTarget);
    enter(
      api.POST("/v1/login/password", {
        body: { user: String(form.get("user")), password: String(form.get("password")) },
      }),
    );
  };
  const next = encodeURIComponent(location.pathname + location.search);
  return (
    <main className="login">
      <h1>{t.login.title}</h1>
      {ways?.oidc ? (
        <a className="button primary" href={`${ways.oidc.url}?next=${next}`}>
          {t.login.with(ways.oidc.label)}
        </a>
      ) : null}
      {ways?.password ? (
        <form onSubmit={byPassword}>
          <label>
            {t.login.user}
            <input name="user" autoComplete="username" required />
          </label>
          <label>
            {t.login.password}
            <input name="password" type="password" autoComplete="current-password" required />
          </label>
          <button type="submit" className="primary" disabled={busy}>
            {t.login.submit}
          </button>
        </form>
      ) : null}
      <form onSubmit={byToken}>
        <label>
          {t.login.token}
          <input name="token" type="password" autoComplete="off" required aria-describedby="token-help" />
        </label>
        <p id="token-help" className="quiet">
          {t.login.tokenHelp}
        </p>
        <button type="submit" className={ways?.password ? "" : "primary"} disabled={busy}>
          {t.login.submit}
        </button>
      </form>
      <p role="alert" className="refusal">
        {error}
      </p>
    </main>
  );
}
