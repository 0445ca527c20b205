// Who is logged in here. Nothing of it is stored: the cookie is closed to scripts.
import { createContext, useCallback, useContext, useEffect, useState, type ReactNode } from "react";
import { api, onSessionOver, Refused, useCsrf as keepCsrf, type Schemas } from "../api/client";

export type Session = Schemas["CurrentSession"];

interface Value {
  readonly session: Session;
  readonly logOut: () => Promise<void>;
}

const Context = createContext<Value | null>(null);

export function useSession(): Value {
  const value = useContext(Context);
  if (value === null) throw new Error("outside of a session");
  return value;
}

type State = { kind: "asking" } | { kind: "out" } | { kind: "in"; session: Session };

export function SessionGate(props: {
  readonly login: (entered: (session: Session) => void) => ReactNode;
  readonly children: ReactNode;
}): ReactNode {
  const [state, set] = useState<State>({ kind: "asking" });
  const enter = useCallback((session: Session) => {
    keepCsrf(session.csrf);
    set({ kind: "in", session });
  }, []);
  useEffect(() => {
    onSessionOver(() => set({ kind: "out" }));
    let current = true;
    const ask = (): void => {
      api.GET("/v1/session").then(
        ({ data }) => {
          if (current && data) enter(data);
        },
        (error: unknown) => {
          if (!current) return;
          if (error instanceof Refused) set({ kind: "out" });
          else setTimeout(ask, 1000);
        },
      );
    };
    ask();
    return () => {
      current = false;
    };
  }, [enter]);
  const logOut = useCallback(async () => {
    const { response } = await api.DELETE("/v1/session");
    keepCsrf(null);
    const provider = response.headers.get("x-shiftwork-logout");
    if (provider) location.assign(provider);
    else set({ kind: "out" });
  }, []);
  if (state.kind === "asking") return null;
  if (state.kind === "out") return props.login(enter);
  return (
    <Context.Provider value={{ session: state.session, logOut }}>{props.children}</Context.Provider>
  );
}
