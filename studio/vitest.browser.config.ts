import { defineConfig } from "vitest/config";

// One platform for all: its tests share nodes, and run one at a time.
export default defineConfig({
  test: {
    include: ["test/**/*.test.ts"],
    fileParallelism: false,
    testTimeout: 40_000,
    hookTimeout: 90_000,
  },
});
