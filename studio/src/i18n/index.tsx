// Texts by key, typed: a text that one language lacks is an error of the compiler.
import { createContext, useContext, useMemo, useState, type ReactNode } from "react";
import { en, type Texts } from "./en";

export type Language = "en" | "zh";
export const LANGUAGES: readonly { readonly id: Language; readonly name: string }[] = [
  { id: "en", name: "English" },
  { id: "zh", name: "中文" },
];

const STORED = "shiftwork.language";
const loaders: Record<Language, () => Promise<Texts>> = {
  en: () => Promise.resolve(en),
  zh: () => import("./zh").then((module) => module.zh),
};

interface Value {
  readonly language: Language;
  readonly t: Texts;
  readonly choose: (language: Language) => void;
}

const Context = createContext<Value>({ language: "en", t: en, choose: () => undefined });

export function preferred(): Language {
  const stored = localStorage.getItem(STORED);
  if (stored === "en" || stored === "zh") return stored;
  return navigator.language.toLowerCase().startsWith("zh") ? "zh" : "en";
}

/** The texts of the first language, before anything is shown. */
export function firstTexts(): Promise<Texts> {
  return loaders[preferred()]();
}

export function I18n(props: { readonly first: Texts; readonly children: ReactNode }): ReactNode {
  const [now, set] = useState<{ language: Language; t: Texts }>({
    language: preferred(),
    t: props.first,
  });
  const value = useMemo<Value>(
    () => ({
      ...now,
      choose: (language) => {
        localStorage.setItem(STORED, language);
        void loaders[language]().then((t) => {
          document.documentElement.lang = language;
          set({ language, t });
        });
      },
    }),
    [now],
  );
  return <Context.Provider value={value}>{props.children}</Context.Provider>;
}

export function useTexts(): Texts {
  return useContext(Context).t;
}

export function useLanguage(): Value {
  return useContext(Context);
}
