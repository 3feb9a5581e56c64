// `ai` with OpenAI's and Anthropic's providers against a scripted server: `NODE_PATH=… node …/ai_sdk_agent.mjs URL`.
import { ANSWER, CALL, QUESTION, WET, assert, follow, key, main, model, need, said, url } from "./checks.mjs";

const { ToolLoopAgent, generateText, stepCountIs, tool } = need("ai");
const { createAnthropic } = need("@ai-sdk/anthropic");
const { createOpenAI } = need("@ai-sdk/openai");
const { z } = need("zod");

const openai = createOpenAI({ baseURL: `${url}/v1`, apiKey: key });
const anthropic = createAnthropic({ baseURL: `${url}/v1`, apiKey: key });
const inputSchema = z.object({ town: z.string() });
const weather = tool({ description: "The weather in a town", inputSchema, execute: async () => ANSWER });
const stopWhen = stepCountIs(3);

// A call, its result and the answer, whole and streamed.
async function loop(chosen) {
  const agent = new ToolLoopAgent({ model: chosen, tools: { weather }, stopWhen, maxRetries: 0 });
  await follow([CALL, WET]);
  assert.equal((await agent.generate({ prompt: QUESTION })).text, WET);
  assert((await said()).at(-1).includes(ANSWER));
  await follow([CALL, WET]);
  let text = "";
  for await (const part of (await agent.stream({ prompt: QUESTION })).textStream) text += part;
  assert.equal(text, WET);
  assert((await said()).at(-1).includes(ANSWER));
}

await main("ai", {
  agent_over_responses: () => loop(openai.responses(model)),
  agent_over_chat: () => loop(openai.chat(model)),
  agent_over_anthropic: () => loop(anthropic(model)),
  async web_search_beside_a_tool() {
    await follow([CALL, WET]);
    const tools = { weather, web_search: openai.tools.webSearch({}) };
    const asked = { model: openai.responses(model), prompt: QUESTION, tools, stopWhen, maxRetries: 0 };
    const { text, steps } = await generateText(asked);
    assert.deepEqual([text, steps.length], [WET, 2]);
    assert((await said()).at(-1).includes(ANSWER));
  },
  async web_search_alone() {
    await follow([ANSWER], { needsTools: false });
    const tools = { web_search: openai.tools.webSearch({}) };
    const asked = { model: openai.responses(model), prompt: QUESTION, tools, maxRetries: 0 };
    assert.equal((await generateText(asked)).text, ANSWER);
  },
});
