// `@instructor-ai/instructor` against a scripted server: `NODE_PATH=… node …/instructor_node.mjs BASE_URL`.
import { QUESTION, assert, follow, key, main, model, need, said, url } from "./checks.mjs";

const Instructor = need("@instructor-ai/instructor").default;
const { OpenAI } = need("openai");
const { z } = need("zod");

const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: key, maxRetries: 0 });
const town = { town: "Rome" };
const text = JSON.stringify(town);
const call = { name: "Town", arguments: text };
const first = { role: "user", content: QUESTION };
const response_model = { schema: z.object({ town: z.enum(["Rome", "Oslo"]) }), name: "Town" };

// Two turns: the first answer, in the form that the mode gives it, is history of the second.
async function turns(mode, step, answer, { needsTools = true } = {}) {
  const instructor = Instructor({ client, mode });
  await follow([step, step, step], { needsTools });
  const asked = { model, response_model, max_tokens: 80, max_retries: 0 };
  assert.equal((await instructor.chat.completions.create({ ...asked, messages: [first] })).town, "Rome");
  const messages = [first, ...answer, { role: "user", content: "And now?" }];
  assert.equal((await instructor.chat.completions.create({ ...asked, messages })).town, "Rome");
  const prompt = (await said()).at(-1);
  assert(prompt.includes("And now?") && prompt.includes("Rome"));
}

await main("@instructor-ai/instructor", {
  tools() {
    const tool_calls = [{ id: "call_1", type: "function", function: call }];
    const result = { role: "tool", tool_call_id: "call_1", content: text };
    const answer = [{ role: "assistant", content: null, tool_calls }, result];
    return turns("TOOLS", { name: "Town", arguments: town }, answer);
  },
  functions() {
    const result = { role: "function", name: "Town", content: text };
    const answer = [{ role: "assistant", content: null, function_call: call }, result];
    return turns("FUNCTIONS", { name: "Town", arguments: town }, answer);
  },
  json_schema: () => turns("JSON_SCHEMA", text, [{ role: "assistant", content: text }], { needsTools: false }),
  json: () => turns("JSON", text, [{ role: "assistant", content: text }], { needsTools: false }),
  md_json() {
    const block = `\`\`\`json\n${text}\n\`\`\``;
    return turns("MD_JSON", block, [{ role: "assistant", content: block }], { needsTools: false });
  },
});
