// Claude Code against a server: `NODE_PATH=… node tests/clients/node/claude_code.mjs BASE_URL`.
import { spawnSync } from "node:child_process";
import { mkdtempSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { ANSWER, assert, key, main, model, url } from "./checks.mjs";

const home = mkdtempSync(join(tmpdir(), "splitfuse-")); // of a user without settings or an account
writeFileSync(join(home, "note.txt"), ANSWER);
const PROMPT = "What does note.txt say?";
const SYSTEM = 'Be brief. Call Read with {"file_path": "note.txt"}.';
const CALL = { type: "any", disable_parallel_tool_use: true };

// The content blocks of what the model, the tool and the package said in one turn, in order.
function turn(tool_choice, ...words) {
  const given = {
    HOME: home,
    PATH: process.env.PATH,
    ANTHROPIC_BASE_URL: url,
    ANTHROPIC_API_KEY: key,
    CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: "1",
    CLAUDE_CODE_MAX_OUTPUT_TOKENS: "64",
    CLAUDE_CODE_MAX_RETRIES: "0",
    CLAUDE_CODE_EXTRA_BODY: JSON.stringify({ temperature: 0, tool_choice }),
  };
  const shown = ["--bare", "--output-format", "stream-json", "--verbose", "--max-turns", "1"];
  const asked = ["--model", model, "--tools", "Read", "--system-prompt", SYSTEM, ...words];
  const bounds = { timeout: 240_000, killSignal: "SIGKILL", input: "", encoding: "utf-8" };
  const done = spawnSync(`${process.env.NODE_PATH}/.bin/claude`, [...shown, ...asked], { cwd: home, env: given, ...bounds });
  assert(!done.error, done.error);
  const lines = done.stdout.split("\n").filter((line) => line.startsWith("{"));
  const content = lines.map((line) => JSON.parse(line).message?.content ?? []).flat();
  assert(content.length, done.stdout + done.stderr);
  return content;
}

await main("@anthropic-ai/claude-code", {
  async answer() {
    assert(turn({ type: "none" }, "-p", PROMPT).some((block) => block.type === "text" && block.text));
  },
  async tool_and_its_result() {
    const [call, result] = turn(CALL, "-p", PROMPT);
    assert.equal(call.name, "Read");
    assert.equal(result.tool_use_id, call.id);
    const [answer] = turn({ type: "auto" }, "--continue", "-p", "So what does it say?");
    assert(answer.text || answer.name, answer);
  },
});
