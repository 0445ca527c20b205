import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { App } from "./app/App";
import { applyTheme } from "./app/theme";
import { firstTexts, I18n, preferred } from "./i18n";
import "./ui/tokens.css";
import "./ui/base.css";

applyTheme();
document.documentElement.lang = preferred();
// Events say what changed: nothing is read again because time has passed.
const queries = new QueryClient({
  defaultOptions: { queries: { staleTime: Infinity, refetchOnWindowFocus: false, retry: 1 } },
});
const root = document.getElementById("studio");
if (root !== null) {
  void firstTexts().then((first) => {
    createRoot(root).render(
      <StrictMode>
        <QueryClientProvider client={queries}>
          <I18n first={first}>
            <App />
          </I18n>
        </QueryClientProvider>
      </StrictMode>,
    );
  });
}
