// What the scripts of this folder share. Packages are found by NODE_PATH, where `make clients` installs them.
import { strict as assert } from "node:assert";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

export { assert };
export const need = createRequire(import.meta.url);
export const key = process.env.SPLITFUSE_API_KEY ?? "unused";
export const url = process.argv[2];
export const QUESTION = "How is the weather in Rome?";
export const ANSWER = "It rains.";
export const CALL = { name: "weather", arguments: { town: "Rome" } };
export const WET = "It is wet.";

const listed = await fetch(`${url}/v1/models`, { headers: { Authorization: `Bearer ${key}` } });
export const model = (await listed.json()).data[0].id;

// Have the model of a scripted server say these steps to the question: texts, or calls {name, arguments}.
export async function follow(steps, { needsTools = true } = {}) {
  await scripted({ method: "PUT", body: JSON.stringify({ marker: QUESTION, steps, needs_tools: needsTools }) });
}

// The prompts to which the steps were said.
export async function said() {
  const { prompts, places } = await (await scripted({})).json();
  return prompts.filter((_, index) => places[index] !== null);
}

async function scripted(options) {
  const answer = await fetch(`${url}/scripted`, { headers: { Authorization: `Bearer ${key}` }, ...options });
  assert(answer.ok, answer.statusText);
  return answer;
}

// What `call` throws.
export async function thrown(call) {
  try {
    await call();
  } catch (error) {
    return error;
  }
  throw new Error("nothing was thrown");
}

// Run every check in order: the first line names the package, each other one a check. Sets the exit code.
export async function main(name, checks) {
  const about = JSON.parse(readFileSync(`${process.env.NODE_PATH}/${name}/package.json`, "utf-8"));
  console.log(`${name} ${about.version}`);
  for (const [check, run] of Object.entries(checks)) {
    try {
      await run();
      console.log(`ok    ${check}`);
    } catch (error) {
      process.exitCode = 1;
      console.log(`FAIL  ${check}\n${error.stack}`);
    }
  }
}
