// Light, dark, or as the system has it.
export type Theme = "system" | "light" | "dark";
export const THEMES: readonly Theme[] = ["system", "light", "dark"];

const STORED = "shiftwork.theme";
const dark = matchMedia("(prefers-color-scheme: dark)");

export function chosenTheme(): Theme {
  const stored = localStorage.getItem(STORED);
  return stored === "light" || stored === "dark" ? stored : "system";
}

export function chooseTheme(theme: Theme): void {
  localStorage.setItem(STORED, theme);
  applyTheme();
}

export function applyTheme(): void {
  const theme = chosenTheme();
  const isDark = theme === "dark" || (theme === "system" && dark.matches);
  document.documentElement.dataset["theme"] = isDark ? "dark" : "light";
}

dark.addEventListener("change", applyTheme);
