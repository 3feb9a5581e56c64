// `@openai/agents` against a scripted server: `NODE_PATH=… node tests/clients/node/openai_agents_node.mjs BASE_URL`.
import { ANSWER, CALL, QUESTION, WET, assert, follow, key, main, model, need, said, url } from "./checks.mjs";

const { Agent, OpenAIProvider, Runner, setTracingDisabled, tool, webSearchTool } = need("@openai/agents");
const { z } = need("zod");

setTracingDisabled(true);
const parameters = z.object({ town: z.string() });
const weather = tool({ name: "weather", description: "The weather in a town", parameters, execute: async () => ANSWER });
const fields = { name: "helper", instructions: "Be brief.", model };

function runner(useResponses) {
  return new Runner({ modelProvider: new OpenAIProvider({ apiKey: key, baseURL: `${url}/v1`, useResponses }) });
}

// A call, its result and the answer, whole and streamed.
async function loop(useResponses, tools = [weather]) {
  for (const stream of [false, true]) {
    await follow([CALL, WET]);
    const result = await runner(useResponses).run(new Agent({ ...fields, tools }), QUESTION, { stream });
    if (stream) await result.completed;
    assert.equal(result.finalOutput, WET);
    assert((await said()).at(-1).includes(ANSWER));
  }
}

await main("@openai/agents", {
  tool_over_chat: () => loop(false),
  tool_over_responses: () => loop(true),
  tool_beside_a_hosted_one: () => loop(true, [weather, webSearchTool()]),
  async output_type() {
    for (const useResponses of [false, true]) {
      await follow(['{"town": "Rome"}'], { needsTools: false });
      const agent = new Agent({ ...fields, outputType: parameters });
      assert.deepEqual((await runner(useResponses).run(agent, QUESTION)).finalOutput, { town: "Rome" });
    }
  },
  async handoff() {
    const other = new Agent({ ...fields, name: "other", handoffDescription: "knows the weather" });
    const first = new Agent({ ...fields, handoffs: [other] });
    await follow([{ name: "transfer_to_other", arguments: {} }, WET], { needsTools: false });
    const result = await runner(false).run(first, QUESTION);
    assert.deepEqual([result.finalOutput, result.lastAgent.name], [WET, "other"]);
  },
});
