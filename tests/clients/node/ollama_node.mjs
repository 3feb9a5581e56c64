// The `ollama` package of npm against a scripted server: `NODE_PATH=… node tests/clients/node/ollama_node.mjs BASE_URL`.
import { ANSWER, CALL, QUESTION, WET, assert, follow, key, main, model, need, said, thrown, url } from "./checks.mjs";

const { Ollama } = need("ollama");

const client = new Ollama({ host: url, headers: { Authorization: `Bearer ${key}` } });
const messages = [{ role: "user", content: QUESTION }];
const parameters = { type: "object", properties: { town: { type: "string" } }, required: ["town"] };
const tools = [{ type: "function", function: { name: "weather", description: "The weather in a town", parameters } }];

// The whole of a stream, which the package gives in pieces.
async function joined(stream, textOf) {
  let text = "";
  for await (const part of stream) text += textOf(part);
  return text;
}

await main("ollama", {
  async list_ps_show() {
    assert((await client.list()).models.some(({ name }) => name.startsWith(model)));
    assert.equal((await client.ps()).models.length, 1);
    assert((await client.show({ model })).details);
  },
  async chat() {
    await follow([ANSWER], { needsTools: false });
    assert.equal((await client.chat({ model, messages })).message.content, ANSWER);
    const stream = await client.chat({ model, messages, stream: true });
    assert.equal(await joined(stream, (part) => part.message.content), ANSWER);
  },
  async generate() {
    await follow([ANSWER], { needsTools: false });
    assert.equal((await client.generate({ model, prompt: QUESTION })).response, ANSWER);
    const stream = await client.generate({ model, prompt: QUESTION, stream: true });
    assert.equal(await joined(stream, (part) => part.response), ANSWER);
  },
  async tool_and_its_result() {
    await follow([CALL, WET]);
    const { message } = await client.chat({ model, messages, tools });
    assert.deepEqual(message.tool_calls[0].function.arguments, CALL.arguments);
    const result = { role: "tool", content: ANSWER, tool_name: "weather" };
    const answer = await client.chat({ model, messages: [...messages, message, result], tools });
    assert.equal(answer.message.content, WET);
    assert((await said()).at(-1).includes(ANSWER));
  },
  async abort() {
    await follow(["word ".repeat(400)], { needsTools: false });
    const stream = await client.chat({ model, messages, stream: true });
    const error = await thrown(async () => {
      for await (const _ of stream) stream.abort();
    });
    assert.equal(error.name, "AbortError");
  },
  async errors() {
    const wrong = new Ollama({ host: url, headers: { Authorization: "Bearer wrong" } });
    assert.equal((await thrown(() => wrong.chat({ model, messages }))).status_code, 401);
    assert.equal((await thrown(() => client.chat({ model, messages, options: { temperature: -1 } }))).status_code, 400);
  },
});
