// `@anthropic-ai/sdk` against a scripted server: `NODE_PATH=… node tests/clients/node/anthropic_node.mjs BASE_URL`.
import { ANSWER, CALL, QUESTION, WET, assert, follow, key, main, model, need, said, thrown, url } from "./checks.mjs";

const { Anthropic, AuthenticationError, BadRequestError } = need("@anthropic-ai/sdk");
const { betaTool } = need("@anthropic-ai/sdk/helpers/beta/json-schema");

const client = new Anthropic({ baseURL: url, apiKey: key, maxRetries: 0 });
const messages = [{ role: "user", content: QUESTION }];
const asked = { model, messages, max_tokens: 64 };
const inputSchema = { type: "object", properties: { town: { type: "string" } }, required: ["town"] };
const weather = betaTool({ name: "weather", description: "The weather in a town", inputSchema, run: () => ANSWER });
const textOf = (message) => message.content.filter(({ type }) => type === "text").map(({ text }) => text).join("");

await main("@anthropic-ai/sdk", {
  async create() {
    await follow([ANSWER], { needsTools: false });
    const message = await client.messages.create(asked);
    assert.equal(textOf(message), ANSWER);
    assert.equal(message.stop_reason, "end_turn");
  },
  async stream() {
    await follow([ANSWER], { needsTools: false });
    let text = "";
    const final = await client.messages.stream(asked).on("text", (part) => (text += part)).finalMessage();
    assert.equal(text, ANSWER);
    assert.equal(textOf(final), ANSWER);
  },
  async streamed_tool_input() {
    await follow([CALL]);
    const tools = [{ name: "weather", input_schema: inputSchema }];
    const final = await client.messages.stream({ ...asked, tools }).finalMessage();
    const [block] = final.content;
    assert.deepEqual([block.name, block.input, final.stop_reason], ["weather", CALL.arguments, "tool_use"]);
  },
  async tool_runner() {
    await follow([CALL, WET]);
    const final = await client.beta.messages.toolRunner({ ...asked, tools: [weather] });
    assert.equal(textOf(final), WET);
    assert((await said()).at(-1).includes(ANSWER));
  },
  async tool_runner_streamed() {
    await follow([CALL, WET]);
    const texts = [];
    for await (const stream of client.beta.messages.toolRunner({ ...asked, tools: [weather], stream: true }))
      texts.push(textOf(await stream.finalMessage()));
    assert.equal(texts.at(-1), WET);
    assert((await said()).at(-1).includes(ANSWER));
  },
  async models_and_count_tokens() {
    const listed = await client.models.list();
    assert.deepEqual([listed.data[0].id, listed.data[0].type], [model, "model"]);
    assert((await client.messages.countTokens({ model, messages })).input_tokens > 0);
  },
  async errors() {
    assert((await thrown(() => client.messages.create({ ...asked, max_tokens: 0 }))) instanceof BadRequestError);
    const wrong = client.withOptions({ apiKey: "wrong" });
    assert((await thrown(() => wrong.messages.create(asked))) instanceof AuthenticationError);
  },
});
