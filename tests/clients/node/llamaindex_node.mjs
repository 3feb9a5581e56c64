// `llamaindex` of npm against a scripted server: `NODE_PATH=… node tests/clients/node/llamaindex_node.mjs BASE_URL`.
import { ANSWER, CALL, QUESTION, WET, assert, follow, key, main, model, need, said, url } from "./checks.mjs";

const { openai } = need("@llamaindex/openai");
const { agent } = need("@llamaindex/workflow");
const { tool } = need("llamaindex");
const { z } = need("zod");

const llm = openai({ model, apiKey: key, baseURL: `${url}/v1`, maxRetries: 0 });
const parameters = z.object({ town: z.string() });
const weather = tool({ name: "weather", description: "The weather in a town", parameters, execute: () => ANSWER });
const messages = [{ role: "user", content: QUESTION }];

await main("llamaindex", {
  async chat() {
    await follow([ANSWER], { needsTools: false });
    assert.equal((await llm.chat({ messages })).message.content, ANSWER);
  },
  async stream() {
    await follow([ANSWER], { needsTools: false });
    let text = "";
    for await (const { delta } of await llm.chat({ messages, stream: true })) text += delta;
    assert.equal(text, ANSWER);
  },
  async agent_and_its_tool() {
    await follow([CALL, WET], { needsTools: false });
    const { data } = await agent({ llm, tools: [weather] }).run(QUESTION);
    assert.equal(data.result, WET);
    assert((await said()).at(-1).includes(ANSWER));
  },
});
