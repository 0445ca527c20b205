import react from "@vitejs/plugin-react";
import { defineConfig } from "vite";

const GATEWAY = process.env.SHIFTWORK_URL ?? "http://127.0.0.1:8080";

export default defineConfig({
  plugins: [react()],
  build: {
    // The gateway serves these files; it is part of the Python package.
    outDir: "../services/gateway/studio/files",
    emptyOutDir: true,
    target: "es2022",
    // A policy without exceptions allows no inlined file.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
  },
  server: { proxy: { "/v1": GATEWAY } },
});
