// `@instructor-ai/instructor` against a scripted server: `NODE_PATH=… node …/instructor_node.mjs BASE_URL`.
import { QUESTION, assert, follow, key, main, model, need, said, url } from "./checks.mjs";

const Instructor = need("@instructor-ai/instructor").default;
const { OpenAI } = need("openai");
const { z } = need("zod");

const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: key, maxRetries: 0 });
const town = { town: "Rome" };
const first = { role: "user", content: QUESTION };
const response_model = { schema: z.object({ town: z.enum(["Rome", "Oslo"]) }), name: "Town" };

// Two turns: the first answer, in the form that the mode gives it, is history of the second.
async function turns(mode, step, { needsTools = true } = {}) {
  const instructor = Instructor.default?.({ client, mode }) ?? Instructor({ client, mode });
  await follow([step, step], { needsTools });
  const asked = { model, response_model, max_tokens: 80, max_retries: 0 };
  const answer = await instructor.chat.completions.create({ ...asked, messages: [first] });
  assert.equal(answer.town, "Rome");
  const history = [first, { role: "assistant", content: JSON.stringify(town) }, { role: "user", content: "And now?" }];
  assert.equal((await instructor.chat.completions.create({ ...asked, messages: history })).town, "Rome");
  assert((await said()).at(-1).includes("And now?"));
}

await main("@instructor-ai/instructor", {
  tools: () => turns("TOOLS", { name: "Town", arguments: town }),
  functions: () => turns("FUNCTIONS", { name: "Town", arguments: town }),
  json_schema: () => turns("JSON_SCHEMA", JSON.stringify(town), { needsTools: false }),
  json: () => turns("JSON", JSON.stringify(town), { needsTools: false }),
  md_json: () => turns("MD_JSON", `\`\`\`json\n${JSON.stringify(town)}\n\`\`\``, { needsTools: false }),
});
