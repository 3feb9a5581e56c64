// Requests to this server, with the key if there is one. The key lives only in this tab's memory and session.

const KEY = "splitfuse-key";

export class ApiError extends Error {
  constructor(status, error) {
    super(error?.message ?? `the server answered ${status}`);
    this.status = status;
    this.code = error?.code ?? null;
  }
}

export class Api {
  constructor() {
    this.onKeyWanted = () => {};
  }

  get key() {
    return sessionStorage.getItem(KEY);
  }

  set key(value) {
    if (value) sessionStorage.setItem(KEY, value);
    else sessionStorage.removeItem(KEY);
  }

  // `isExtra`: without the answer the page still works, so that no key is asked for.
  async fetch(path, {method = "GET", body, signal, isExtra = false} = {}) {
    const headers = this.key ? {Authorization: `Bearer ${this.key}`} : {};
    const response = await fetch(path, {method, headers, signal, body: body === undefined ? undefined : JSON.stringify(body)});
    if (response.ok) return response;
    if (response.status === 401 && !isExtra) this.onKeyWanted();
    const answer = await response.json().catch(() => ({}));
    throw new ApiError(response.status, answer.error);
  }

  async json(path, options) {
    return (await this.fetch(path, options)).json();
  }

  // Calls onEvent(name, data, id) for each event until the stream ends.
  async events(path, {onEvent, ...options}) {
    await readEvents(await this.fetch(path, options), onEvent);
  }
}

export async function readEvents(response, onEvent) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const {value, done} = await reader.read();
    if (done) return;
    text += value;
    const blocks = text.split("\n\n");
    text = blocks.pop();
    for (const block of blocks) dispatch(block, onEvent);
  }
}

function dispatch(block, onEvent) {
  const fields = {};
  for (const line of block.split("\n")) {
    const at = line.indexOf(": ");
    if (at > 0) fields[line.slice(0, at)] = line.slice(at + 2);
  }
  if (fields.data === "[DONE]") onEvent("end", null);
  else if (fields.data !== undefined) onEvent(fields.event ?? "message", JSON.parse(fields.data), fields.id);
}
