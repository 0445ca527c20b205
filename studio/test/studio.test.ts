import type { Browser } from "playwright-core";
import { afterAll, afterEach, beforeAll, expect, it } from "vitest";
import { launch, Person, Platform } from "./platform";

let platform: Platform;
let browser: Browser;
let people: Person[] = [];
let victim = "";

beforeAll(async () => {
  [platform, browser] = await Promise.all([Platform.start(), launch()]);
});

afterAll(async () => {
  await browser?.close();
  await platform?.end();
});

afterEach(async () => {
  const complaints = people.flatMap((each) => each.complaints);
  await Promise.all(people.map((each) => each.leave()));
  people = [];
  expect(complaints).toEqual([]);
});

async function person(options: Parameters<typeof Person.at>[2] = {}): Promise<Person> {
  const found = await Person.at(browser, platform, options);
  people.push(found);
  return found;
}

async function admin(options: Parameters<typeof Person.at>[2] = {}): Promise<Person> {
  const found = await person(options);
  await found.logIn(platform.token);
  return found;
}

it("refuses a wrong token with the server's reason, takes a right one, and stores neither", async () => {
  const someone = await person();
  await someone.open("/tasks");
  await someone.page.locator("input[name=token]").fill("swt_wrong");
  await someone.page.getByRole("button", { name: "Log in" }).click();
  await someone.page.getByRole("alert").getByText("this token is not known").waitFor();
  await someone.logIn(platform.token);
  await someone.page.getByRole("heading", { name: "No tasks yet" }).waitFor();
  await someone.page.reload();
  await someone.page.locator("header.bar").waitFor();
  const stored = await someone.page.evaluate(() => JSON.stringify({ ...localStorage, ...sessionStorage }) + document.cookie);
  expect(stored).not.toContain("swt_");
  expect(someone.page.url()).not.toContain("swt_");
  await someone.page.locator(".menu summary").click();
  await someone.page.getByRole("button", { name: "Log out" }).click();
  await someone.page.locator("input[name=token]").waitFor();
  await someone.page.reload();
  await someone.page.locator("input[name=token]").waitFor();
});

it("shows a submitted task and what becomes of it without a reload", async () => {
  const ann = await admin();
  await ann.page.getByText("Live", { exact: true }).waitFor();
  await platform.submit("live", "--gpus", "1");
  const row = ann.row("live");
  await row.getByText("running").waitFor();
  await row.getByRole("checkbox").check();
  await ann.page.getByRole("button", { name: "Pause" }).click();
  await ann.page.getByText("1 command accepted").waitFor();
  await row.getByText("paused", { exact: true }).waitFor();
  await row.getByText("requested").waitFor({ state: "detached" });
  await platform.run("stop", "live");
  await row.getByText("stopped", { exact: true }).waitFor();
});

it("tells a preemption: request, checkpoint, leaving", async () => {
  victim = await platform.submit("victim", "--nodes", "2", "--priority", "low");
  const ann = await admin();
  await ann.row("victim").getByText("running").waitFor();
  await ann.open(`/tasks/${victim}`);
  await ann.page.getByText("attempt 1 runs").waitFor();
  await new Promise((done) => setTimeout(done, 1500));
  await platform.submit("urgent", "--nodes", "2", "--priority", "very_high");
  await ann.page.locator("h1").getByText("preempting").waitFor();
  await ann.page.locator("h1").getByText("queued").waitFor();
  const phases = ann.page.getByRole("list", { name: "Phases" }).last();
  for (const phase of ["starting", "running", "saving a checkpoint", "leaving its nodes"])
    await phases.getByText(phase).waitFor();
  await ann.page.getByText("preempted for task").first().waitFor();
  await ann.page.getByText("released its nodes after a checkpoint").waitFor();
  await ann.page.getByRole("heading", { name: "Why it waits" }).waitFor();
  await platform.run("stop", "urgent", "--now");
  await ann.page.getByRole("heading", { name: "Attempt 2" }).waitFor();
});

it("keeps markup in output as text, finds lines and follows", async () => {
  const ann = await admin();
  await ann.open(`/tasks/${victim}/output`);
  const log = ann.page.getByRole("log");
  await log.getByText(/line \d+/).first().waitFor();
  await ann.page.getByLabel("Search the output").fill("onerror");
  await ann.page.getByLabel("Search the output").press("Enter");
  await log.getByText("<img src=x onerror=alert(1)> victim").first().waitFor();
  expect(await log.locator("img").count()).toBe(0);
});

it("carries on after the platform was killed, without a reload and without a gap", async () => {
  const ann = await admin();
  await ann.page.getByText("Live", { exact: true }).waitFor();
  await ann.page.evaluate(() => Object.assign(window, { kept: true }));
  platform.crash();
  await ann.page.getByText("Connection lost").waitFor();
  await platform.up();
  await ann.page.getByText("Live", { exact: true }).waitFor({ timeout: 30_000 });
  await platform.submit("afterwards", "--paused");
  await ann.row("afterwards").getByText("paused", { exact: true }).waitFor();
  expect(await ann.page.evaluate(() => "kept" in window)).toBe(true);
});

it("shows two people what each may do", async () => {
  const bobs = await person();
  await bobs.logIn(await platform.member("bob"));
  await bobs.open("/nodes");
  await bobs.page.getByText("local-0").waitFor();
  expect(await bobs.page.getByRole("button", { name: /Cordon/ }).count()).toBe(0);
  const ann = await admin();
  await ann.open("/nodes");
  await ann.page.getByRole("button", { name: "Cordon local-1" }).click();
  await ann.page.getByRole("button", { name: "Uncordon local-1" }).waitFor();
  await bobs.page.getByText("cordoned").waitFor();
  await ann.page.getByRole("button", { name: "Uncordon local-1" }).click();
  await bobs.page.getByText("cordoned").waitFor({ state: "detached" });
});

it("shows a command as requested until it is observed", async () => {
  const id = await platform.submit("steered", "--gpus", "0");
  const ann = await admin();
  await ann.open(`/tasks/${id}`);
  await ann.page.locator("h1").getByText("running").waitFor();
  // What is observed arrives late.
  await ann.page.route(`**/v1/tasks/${id}`, async (route) => {
    await new Promise((done) => setTimeout(done, 700));
    await route.continue();
  });
  await ann.page.getByRole("button", { name: "Pause" }).click();
  const status = ann.page.locator(".toolbar").getByRole("status");
  await status.getByText("requested").waitFor();
  await ann.page.locator("h1").getByText("paused").waitFor();
  await status.waitFor({ state: "detached" });
  await ann.page.getByRole("button", { name: "Resume" }).waitFor();
  await platform.run("stop", "steered");
});

it("shows a refusal where it was clicked", async () => {
  const id = await platform.submit("refused", "--paused");
  const ann = await admin();
  await ann.open(`/tasks/${id}`);
  // Somebody else ends it before the command arrives.
  await ann.page.route(`**/v1/tasks/${id}/goal`, async (route) => {
    await platform.run("stop", "refused");
    await route.continue();
  });
  await ann.page.getByRole("button", { name: "Resume" }).click();
  await ann.page.locator(".toolbar").getByRole("alert").getByText(/stopped|finished|ended/).waitFor();
});

it("gives each task of a batch its own answer", async () => {
  await platform.submit("one", "--paused");
  const ended = await platform.submit("two", "--paused");
  const ann = await admin();
  await ann.row("two").getByRole("checkbox").check();
  await ann.row("one").getByRole("checkbox").check();
  // Somebody else ends one of them before the command arrives.
  await ann.page.route(`**/v1/tasks/${ended}/goal`, async (route) => {
    await platform.run("stop", "two");
    await route.continue();
  });
  await ann.page.getByRole("button", { name: "Resume" }).click();
  const results = ann.page.locator(".results");
  await results.getByText("1 command accepted").waitFor();
  await results.getByText(/^two: /).waitFor();
});

it.each([
  ["light", "en-GB", 1280],
  ["dark", "zh-CN", 1280],
  ["dark", "en-GB", 360],
] as const)("opens every view without barriers and within its width: %s, %s, %i px", async (theme, locale, width) => {
  const id = (await platform.run("ls", "--all", "--json")).match(/"id": "(t[a-z0-9]+)"/)?.[1] ?? "";
  const ann = await person({ theme, locale, width });
  await ann.open("/");
  await ann.page.locator("input[name=token]").waitFor();
  expect(await ann.barriers()).toEqual([]);
  await ann.logIn(platform.token);
  const views = ["/", "/tasks", "/queue", "/nodes"];
  const tabs = ["", "/output", "/events", "/specification"].map((tab) => `/tasks/${id}${tab}`);
  for (const view of [...views, ...tabs]) {
    await ann.open(view);
    await ann.page.locator("h1").waitFor();
    await ann.page.waitForTimeout(150);
    expect(await ann.barriers(), view).toEqual([]);
    const excess = await ann.page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    expect(excess, view).toBeLessThanOrEqual(0);
  }
  await ann.page.keyboard.press("Control+k");
  await ann.page.getByRole("dialog").waitFor();
  expect(await ann.barriers()).toEqual([]);
  await ann.page.keyboard.press("ArrowDown");
  await ann.page.keyboard.press("Enter");
  await ann.page.waitForURL("**/tasks");
});
