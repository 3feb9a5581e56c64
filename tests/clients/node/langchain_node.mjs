// `@langchain/openai` against a server: `NODE_PATH=… node tests/clients/node/langchain_node.mjs BASE_URL`.
import { ANSWER, QUESTION, assert, key, main, model, need, thrown, url } from "./checks.mjs";

const { ChatOpenAI } = need("@langchain/openai");
const { HumanMessage, ToolMessage } = need("@langchain/core/messages");
const { tool } = need("@langchain/core/tools");
const { z } = need("zod");

const schema = z.object({ town: z.enum(["Rome", "Oslo"]) });
const weather = tool(async () => ANSWER, { name: "weather", description: "The weather in a town", schema });

// A model that is asked for so many tokens.
function chat(maxTokens, fields = {}) {
  const configuration = { baseURL: `${url}/v1` };
  return new ChatOpenAI({ model, apiKey: key, maxTokens, temperature: 0, maxRetries: 0, configuration, ...fields });
}

await main("@langchain/openai", {
  async invoke() {
    const answer = await chat(24).invoke(QUESTION);
    assert(answer.content);
    assert(answer.usage_metadata.output_tokens <= 24);
  },
  async stream_equals_invoke() {
    let text = "";
    for await (const part of await chat(24).stream(QUESTION)) text += part.content;
    assert.equal(text, (await chat(24).invoke(QUESTION)).content);
  },
  async structured_output() {
    for (const method of ["jsonSchema", "functionCalling"]) {
      const town = await chat(80).withStructuredOutput(schema, { method, name: "town" }).invoke(QUESTION);
      assert(["Rome", "Oslo"].includes(town.town));
    }
  },
  async responses_api() {
    assert((await chat(24, { useResponsesApi: true }).invoke(QUESTION)).content.length > 0);
  },
  async tool_and_its_result() {
    const user = new HumanMessage(QUESTION);
    const call = await chat(80).bindTools([weather], { tool_choice: "any" }).invoke([user]);
    const results = await Promise.all(call.tool_calls.map((one) => weather.invoke(one)));
    assert(results[0] instanceof ToolMessage);
    assert.equal(results[0].content, ANSWER);
    const answer = await chat(60).bindTools([weather]).invoke([user, call, ...results]);
    assert(answer.content || answer.tool_calls.length);
  },
  async errors() {
    assert.equal((await thrown(() => chat(24, { model: "another" }).invoke(QUESTION))).status, 404);
  },
});
