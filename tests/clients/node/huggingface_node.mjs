// `@huggingface/inference` against a scripted server: `NODE_PATH=… node …/huggingface_node.mjs BASE_URL`.
import { ANSWER, CALL, QUESTION, WET, assert, follow, key, main, model, need, said, thrown, url } from "./checks.mjs";

const { InferenceClient } = need("@huggingface/inference");

const client = new InferenceClient(key, { endpointUrl: `${url}/v1` });
const messages = [{ role: "user", content: QUESTION }];
const written = { model, inputs: QUESTION, parameters: { max_new_tokens: 20 } };
const parameters = { type: "object", properties: { town: { type: "string" } }, required: ["town"] };
const tools = [{ type: "function", function: { name: "weather", description: "The weather in a town", parameters } }];

await main("@huggingface/inference", {
  async chat() {
    await follow([ANSWER], { needsTools: false });
    assert.equal((await client.chatCompletion({ model, messages })).choices[0].message.content, ANSWER);
  },
  async stream() {
    await follow([ANSWER], { needsTools: false });
    let text = "";
    for await (const part of client.chatCompletionStream({ model, messages })) text += part.choices[0]?.delta.content ?? "";
    assert.equal(text, ANSWER);
  },
  async tool_and_its_result() {
    await follow([CALL, WET]);
    const { message } = (await client.chatCompletion({ model, messages, tools })).choices[0];
    const result = { role: "tool", tool_call_id: message.tool_calls[0].id, content: ANSWER };
    const answer = await client.chatCompletion({ model, messages: [...messages, message, result], tools });
    assert.equal(answer.choices[0].message.content, WET);
    assert((await said()).at(-1).includes(ANSWER));
  },
  async text_generation() {
    await follow([ANSWER], { needsTools: false });
    assert.equal((await client.textGeneration(written)).generated_text, ANSWER);
  },
  async text_generation_streamed() {
    await follow([ANSWER], { needsTools: false });
    let text = "";
    for await (const part of client.textGenerationStream(written)) text += part.choices[0]?.text ?? "";
    assert.equal(text, ANSWER);
  },
  async errors() {
    const refused = await thrown(() => client.chatCompletion({ model, messages, temperature: -1 }));
    assert.equal(refused.httpResponse.status, 400);
  },
});
