// `@langchain/langgraph` against a scripted server: `NODE_PATH=… node tests/clients/node/langgraph_node.mjs BASE_URL`.
import { ANSWER, CALL, QUESTION, WET, assert, follow, key, main, model, need, said, url } from "./checks.mjs";

const { ChatAnthropic } = need("@langchain/anthropic");
const { tool } = need("@langchain/core/tools");
const { MessagesAnnotation, StateGraph } = need("@langchain/langgraph");
const { ToolNode, toolsCondition } = need("@langchain/langgraph/prebuilt");
const { ChatOpenAI } = need("@langchain/openai");
const { z } = need("zod");

const schema = z.object({ town: z.string() });
const weather = tool(async () => ANSWER, { name: "weather", description: "The weather in a town", schema });
const openai = { model, apiKey: key, maxRetries: 0, configuration: { baseURL: `${url}/v1` } };

// A call, its result and the answer, whole and streamed.
async function loop(chosen) {
  const bound = chosen.bindTools([weather]);
  const graph = new StateGraph(MessagesAnnotation)
    .addNode("agent", async ({ messages }) => ({ messages: [await bound.invoke(messages)] }))
    .addNode("tools", new ToolNode([weather]))
    .addEdge("__start__", "agent")
    .addConditionalEdges("agent", toolsCondition)
    .addEdge("tools", "agent")
    .compile();
  const state = { messages: [{ role: "user", content: QUESTION }] };
  await follow([CALL, WET]);
  assert.equal((await graph.invoke(state)).messages.at(-1).text, WET);
  assert((await said()).at(-1).includes(ANSWER));
  await follow([CALL, WET]);
  let text = "";
  for await (const [part] of await graph.stream(state, { streamMode: "messages" }))
    if (part.getType() === "ai") text += part.text;
  assert.equal(text, WET);
}

await main("@langchain/langgraph", {
  chat: () => loop(new ChatOpenAI(openai)),
  responses: () => loop(new ChatOpenAI({ ...openai, useResponsesApi: true })),
  anthropic: () => loop(new ChatAnthropic({ model, apiKey: key, anthropicApiUrl: url, maxRetries: 0, maxTokens: 64 })),
});
