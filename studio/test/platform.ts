// A platform as a person has it, and a browser: `shiftwork up` in a home of its own, Chromium.
import { execFile, execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { chromium, type Browser, type BrowserContext, type Page } from "playwright-core";

const ROOT = resolve(import.meta.dirname, "../..");
const PROGRAM = join(ROOT, ".venv/bin/shiftwork");
const AXE = readFileSync(join(import.meta.dirname, "../node_modules/axe-core/axe.min.js"), "utf8");
const ARGS = [
  "--no-sandbox",
  "--disable-gpu",
  "--disable-quic",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
];

// Prints what it is given, reports steps, and saves when it is asked to leave.
const TRAINING = `
import sys, time
import shiftwork
print(sys.argv[1], flush=True)
for step in range(1, 1_000_000):
    time.sleep(0.1)
    print(f"line {step}", flush=True)
    if shiftwork.should_preempt():
        time.sleep(1)
        shiftwork.checkpoint_saved(step, "none")
        time.sleep(1)
        shiftwork.exit_preempted()
`;

function freePort(): Promise<number> {
  return new Promise((done) => {
    const server = createServer().listen(0, "127.0.0.1", () => {
      const address = server.address();
      server.close(() => done(typeof address === "object" && address ? address.port : 0));
    });
  });
}

export class Platform {
  private constructor(
    readonly home: string,
    readonly url: string,
    private readonly port: number,
  ) {}

  static async start(): Promise<Platform> {
    const port = await freePort();
    const found = new Platform(mkdtempSync(join(tmpdir(), "sws-")), `http://127.0.0.1:${port}`, port);
    writeFileSync(join(found.home, "train.py"), TRAINING);
    await found.up();
    return found;
  }

  private get data(): string {
    return join(this.home, "data");
  }

  get token(): string {
    return readFileSync(join(this.data, "admin-token"), "utf8").trim();
  }

  run(...args: string[]): Promise<string> {
    return new Promise((done, fail) => {
      const env = { PATH: process.env["PATH"] ?? "", HOME: this.home };
      execFile(PROGRAM, args, { cwd: this.home, env }, (error, stdout, stderr) => {
        if (error) fail(new Error(`${args.join(" ")}: ${stderr}`));
        else done(stdout.trim());
      });
    });
  }

  async up(): Promise<void> {
    const root = process.getuid?.() === 0 ? ["--tasks-as-root"] : [];
    const size = ["--nodes", "2", "--slots", "2"];
    await this.run("up", "--data", this.data, "--port", String(this.port), ...size, ...root, "--detach");
  }

  async down(): Promise<void> {
    await this.run("down", "--data", this.data);
  }

  /** Ends the platform's process as a crash does; `up` starts another one. */
  crash(): void {
    const list = execFileSync("ps", ["-eo", "pid=,args="], { encoding: "utf8" });
    const found = list.split("\n").flatMap((line) => {
      const [, pid, args] = /^\s*(\d+) (.*)$/.exec(line) ?? [];
      return pid && args?.includes(`-m services.allinone ${this.data} `) ? [Number(pid)] : [];
    });
    if (found.length !== 1) throw new Error(`${found.length} processes found`);
    for (const pid of found) process.kill(pid, "SIGKILL");
  }

  submit(name: string, ...options: string[]): Promise<string> {
    return this.run("submit", "--name", name, ...options, "--", "python3", "train.py", `<img src=x onerror=alert(1)> ${name}`);
  }

  async member(name: string): Promise<string> {
    await this.run("user", "add", name);
    return (await this.run("token", "create", "--user", name)).split("\n").at(-1) ?? "";
  }

  async end(): Promise<void> {
    await this.down();
    rmSync(this.home, { recursive: true, force: true });
  }
}

export class Person {
  /** What a page has reported as wrong. Empty at the end of a test. */
  readonly complaints: string[] = [];

  private constructor(
    readonly page: Page,
    private readonly context: BrowserContext,
    private readonly platform: Platform,
  ) {
    page.on("console", (message) => {
      // Chromium itself reports each refusal of the server.
      const expected = /Failed to load resource|net::ERR/.test(message.text());
      if (["error", "warning"].includes(message.type()) && !expected) this.complaints.push(message.text());
    });
    page.on("pageerror", (error) => this.complaints.push(String(error)));
    page.on("dialog", (dialog) => {
      this.complaints.push(`a dialog: ${dialog.message()}`);
      void dialog.dismiss();
    });
  }

  static async at(
    browser: Browser,
    platform: Platform,
    options: { theme?: "light" | "dark"; locale?: string; width?: number } = {},
  ): Promise<Person> {
    const context = await browser.newContext({
      viewport: { width: options.width ?? 1280, height: 800 },
      colorScheme: options.theme ?? "light",
      locale: options.locale ?? "en-GB",
    });
    context.setDefaultTimeout(15_000);
    return new Person(await context.newPage(), context, platform);
  }

  async open(path: string): Promise<void> {
    await this.page.goto(this.platform.url + path);
  }

  async logIn(token: string): Promise<void> {
    await this.open("/tasks");
    await this.page.locator("input[name=token]").fill(token);
    await this.page.locator("form button[type=submit]").last().click();
    await this.page.locator("header.bar").waitFor();
  }

  row(name: string) {
    return this.page.getByRole("row").filter({ has: this.page.getByRole("link", { name, exact: true }) });
  }

  /** What axe finds on the page, by rule and element. */
  async barriers(): Promise<string[]> {
    const session = await this.context.newCDPSession(this.page);
    // By the debugger, because the page's own policy allows no script from elsewhere.
    const { result } = await session.send("Runtime.evaluate", {
      expression: `${AXE};axe.run(document).then((found) => JSON.stringify(found.violations.flatMap((each) => each.nodes.map((node) => each.id + ": " + node.html))))`,
      awaitPromise: true,
      returnByValue: true,
    });
    return JSON.parse(String(result.value)) as string[];
  }

  async leave(): Promise<void> {
    await this.context.close();
  }
}

export function launch(): Promise<Browser> {
  return chromium.launch({ executablePath: process.env["CHROMIUM"] ?? "/usr/bin/chromium", args: ARGS });
}
