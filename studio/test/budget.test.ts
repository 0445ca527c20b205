// What a browser loads before anything is shown.
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { gzipSync } from "node:zlib";
import { expect, it } from "vitest";

const FILES = join(import.meta.dirname, "../../services/gateway/studio/files");
const FIRST_LOAD_MAX = 150_000;

it("loads less than 150 kB first", () => {
  const page = readFileSync(join(FILES, "index.html"), "utf8");
  const first = [...page.matchAll(/(?:src|href)="\/(assets\/[^"]+)"/g)].map((found) => found[1] ?? "");
  expect(first.length).toBeGreaterThan(1);
  const size = first.reduce((sum, name) => sum + gzipSync(readFileSync(join(FILES, name))).length, gzipSync(page).length);
  expect(size).toBeLessThan(FIRST_LOAD_MAX);
});
