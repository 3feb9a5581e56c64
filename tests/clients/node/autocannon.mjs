// `autocannon` against a scripted server: `NODE_PATH=… node tests/clients/node/autocannon.mjs BASE_URL`.
import { ANSWER, QUESTION, assert, follow, key, main, model, need, url } from "./checks.mjs";

const autocannon = need("autocannon");

const headers = { "content-type": "application/json", Authorization: `Bearer ${key}` };

// 100 requests over ten connections.
async function fired(fields) {
  await follow([ANSWER], { needsTools: false });
  const body = JSON.stringify({ model, messages: [{ role: "user", content: QUESTION }], ...fields });
  const asked = { url: `${url}/v1/chat/completions`, method: "POST", headers, body, timeout: 60 };
  const result = await autocannon({ ...asked, connections: 10, amount: 100 });
  assert.deepEqual([result["2xx"], result.non2xx, result.errors, result.timeouts], [100, 0, 0, 0]);
}

await main("autocannon", {
  whole: () => fired({}),
  streamed: () => fired({ stream: true }),
});
