// `ai` with `@ai-sdk/openai-compatible` against a server: `NODE_PATH=… node tests/clients/node/ai_sdk.mjs BASE_URL`.
import { ANSWER, QUESTION, assert, key, main, model, need, thrown, url } from "./checks.mjs";

const { APICallError, Output, generateObject, generateText, stepCountIs, streamObject, streamText, tool } = need("ai");
const { createOpenAICompatible } = need("@ai-sdk/openai-compatible");
const { z } = need("zod");

const provider = createOpenAICompatible({
  name: "splitfuse",
  baseURL: `${url}/v1`,
  apiKey: key,
  includeUsage: true,
  supportsStructuredOutputs: true,
});
const few = { model: provider(model), prompt: QUESTION, maxOutputTokens: 24, temperature: 0, maxRetries: 0 };
const more = { ...few, maxOutputTokens: 80 };
const schema = z.object({ town: z.enum(["Rome", "Oslo"]) });
const weather = tool({ description: "The weather in a town", inputSchema: schema, execute: async () => ANSWER });
const requiredFirst = ({ stepNumber }) => ({ toolChoice: stepNumber === 0 ? "required" : "auto" });
const agent = { ...more, maxOutputTokens: 60, tools: { weather }, stopWhen: stepCountIs(3) };

await main("ai", {
  async generate_text() {
    const answer = await generateText(few);
    assert(answer.text);
    assert(answer.usage.outputTokens > 0);
  },
  async completion_model() {
    assert((await generateText({ ...few, model: provider.completionModel(model) })).text);
  },
  async stream_text() {
    const answer = streamText(few);
    let text = "";
    for await (const part of answer.textStream) text += part;
    assert.equal(text, (await generateText(few)).text);
    assert((await answer.usage).outputTokens > 0);
  },
  async objects() {
    assert(["Rome", "Oslo"].includes((await generateObject({ ...more, schema })).object.town));
    const streamed = streamObject({ ...more, schema });
    for await (const _ of streamed.partialObjectStream);
    assert(["Rome", "Oslo"].includes((await streamed.object).town));
    const output = Output.object({ schema });
    assert(["Rome", "Oslo"].includes((await generateText({ ...more, output })).output.town));
  },
  async tool_and_its_result() {
    const { steps } = await generateText({ ...agent, prepareStep: requiredFirst });
    assert.equal(steps[0].toolResults[0].output, ANSWER);
    assert(steps.length >= 2);
  },
  async streamed_tool_and_its_result() {
    const answer = streamText({ ...agent, prepareStep: requiredFirst });
    await answer.consumeStream();
    const steps = await answer.steps;
    assert.equal(steps[0].toolResults[0].output, ANSWER);
    assert(steps.length >= 2);
  },
  async tools_auto_accepted() {
    assert((await generateText(agent)).steps.length > 0);
  },
  async errors() {
    const error = await thrown(() => generateText({ ...few, model: provider("another") }));
    assert(APICallError.isInstance(error), error);
    assert.equal(error.statusCode, 404);
  },
});
