// The `openai` package of npm against a server: `NODE_PATH=… node tests/clients/node/openai_node.mjs BASE_URL`.
import { ANSWER, QUESTION, assert, key, main, model, need, thrown, url } from "./checks.mjs";

const { OpenAI, NotFoundError, BadRequestError, AuthenticationError } = need("openai");
const { LengthFinishReasonError } = need("openai/core/error");
const { zodResponseFormat, zodTextFormat } = need("openai/helpers/zod");
const { z } = need("zod");

const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: key, maxRetries: 0 });
const messages = [{ role: "user", content: QUESTION }];
const few = { model, messages, max_tokens: 24, temperature: 0 };
const Town = z.object({ town: z.enum(["Rome", "Oslo"]), wet: z.boolean() });

// A tool that notes its calls, as runTools takes it.
function weather(calls) {
  const parameters = z.toJSONSchema(z.object({ town: z.enum(["Rome", "Oslo"]) }));
  const call = ({ town }) => {
    calls.push(town);
    return ANSWER;
  };
  const tool = { name: "weather", description: "The weather in a town", parameters, parse: JSON.parse, function: call };
  return { type: "function", function: tool };
}

await main("openai", {
  async chat() {
    const answer = await client.chat.completions.create(few);
    assert(answer.choices[0].message.content);
    assert(answer.usage.completion_tokens <= 24);
  },
  async chat_stream_with_usage() {
    const stream = await client.chat.completions.create({
      ...few,
      stream: true,
      stream_options: { include_usage: true },
    });
    let text = "";
    let usage = null;
    for await (const part of stream) {
      text += part.choices[0]?.delta.content ?? "";
      usage = part.usage ?? usage;
    }
    assert.equal(text, (await client.chat.completions.create(few)).choices[0].message.content);
    assert(usage.completion_tokens > 0);
  },
  async parse() {
    const asked = { ...few, max_tokens: 80, response_format: zodResponseFormat(Town, "town") };
    const answer = await client.chat.completions.parse(asked);
    assert(["Rome", "Oslo"].includes(answer.choices[0].message.parsed.town));
  },
  async run_tools() {
    for (const tool_choice of ["required", "auto"]) {
      const calls = [];
      const asked = { ...few, max_tokens: 60, tool_choice, tools: [weather(calls)] };
      const runner = client.chat.completions.runTools(asked, { maxChatCompletions: 2 });
      // what the model says of "auto" may be cut off by its length, which is an error to the package
      await runner.done().catch((error) => assert(tool_choice === "auto" && error instanceof LengthFinishReasonError));
      if (tool_choice === "required") {
        assert(calls.length > 0);
        assert.equal(runner.allChatCompletions().length, 2);
      }
    }
  },
  async run_tools_streamed() {
    const calls = [];
    const asked = { ...few, max_tokens: 60, tool_choice: "required", tools: [weather(calls)], stream: true };
    await client.chat.completions.runTools(asked, { maxChatCompletions: 2 }).done();
    assert(calls.length > 0);
  },
  async responses() {
    const asked = { model, input: QUESTION, max_output_tokens: 80, text: { format: zodTextFormat(Town, "town") } };
    const answer = await client.responses.parse(asked);
    assert(["Rome", "Oslo"].includes(answer.output_parsed.town));
    const kinds = [];
    for await (const event of client.responses.stream({ model, input: QUESTION, max_output_tokens: 24 }))
      kinds.push(event.type);
    assert.equal(kinds[0], "response.created");
    assert(["response.completed", "response.incomplete"].includes(kinds.at(-1)));
  },
  async abort() {
    const stream = await client.chat.completions.create({ ...few, max_tokens: 1000, stream: true });
    for await (const _ of stream) stream.controller.abort();
  },
  async errors() {
    const ask = (fields) => () => client.chat.completions.create({ ...few, ...fields });
    assert((await thrown(ask({ model: "another" }))) instanceof NotFoundError);
    const long = [{ role: "user", content: "x ".repeat(100_000) }];
    const error = await thrown(ask({ messages: long }));
    assert(error instanceof BadRequestError);
    assert.equal(error.code, "context_length_exceeded");
    if (key !== "unused") {
      const wrong = client.withOptions({ apiKey: "wrong" });
      assert((await thrown(() => wrong.chat.completions.create(few))) instanceof AuthenticationError);
    }
  },
});
