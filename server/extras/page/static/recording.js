// Converts the files of `--record` and `--log-steps` to a run.

import {Run} from "./run.js";

const LOG_LINE = /\[Step=(\d+)\](.*)/;
const LOG_FIELD = /(\w+)=([\d.]+)(?:\/(\d+))?/g;

export function readRun(text, name) {
  const run = text.startsWith("{") ? readRecording(text) : readLog(text);
  if (!run.steps.length) throw new Error(`${name} holds no steps: it is neither a recording nor a step log`);
  run.about.name = name;
  return run;
}

function readRecording(text) {
  const run = new Run();
  const lengths = new Map();
  const pending = [];
  for (const line of text.split("\n")) {
    const entry = parsed(line);
    if (entry === null) continue;
    if (entry.splitfuse === "recording") run.about = aboutOf(entry);
    else if ("add" in entry) addRequest(run, entry, lengths);
    else if (entry.step !== undefined && entry.step !== null) pending.push(recordOf(entry, lengths));
    else if ("done" in entry) finishStep(run, pending.shift(), entry);
    else if ("finish" in entry) run.addEnds([[entry.finish, String(entry.reason)]]);
  }
  return run;
}

function parsed(line) {
  if (!line) return null;
  try {
    return JSON.parse(line);
  } catch {
    return null;  // the last line may have been cut off
  }
}

function aboutOf({config = {}, num_blocks: numBlocks}) {
  return {batching_policy: config.batching_policy, scheduling_policy: config.scheduling_policy, num_blocks: numBlocks,
    budget: config.max_num_batched_tokens, max_num_seqs: config.max_num_seqs, block_size: config.block_size};
}

function addRequest(run, entry, lengths) {
  const prompt = Array.isArray(entry.prompt) ? entry.prompt.length : entry.prompt;
  lengths.set(entry.add, prompt);
  run.addRequests([{number: entry.add, arrival: entry.time, prompt, max: entry.max, background: Boolean(entry.background), index: entry.index ?? 0}]);
}

function recordOf(entry, lengths) {
  const rows = entry.rows ?? [];
  const isDecode = ([number, start, tokens]) => tokens === 1 && start >= (lengths.get(number) ?? 0);
  return {step: entry.step, start: entry.start, end: entry.start, budget: entry.budget,
    chunks: rows.filter((row) => !isDecode(row)), decodes: rows.filter(isDecode).map(([number]) => number),
    admitted: (entry.admitted ?? []).map((number) => [number, rows.find(([each]) => each === number)?.[1] ?? 0]),
    preempted: (entry.preempted ?? []).map((number) => [number, entry.moves?.[0] ? "swap" : "recompute"]),
    stopped_at: entry.stopped_at, running: entry.running, waiting: entry.waiting, blocks: [entry.blocks ?? 0, 0]};
}

function finishStep(run, record, {end, finished = []}) {
  if (!record) return;
  record.end = end;
  run.addSteps([record]);
  run.addEnds(finished.map((number) => [number, "ended"]));
}

function readLog(text) {
  const run = new Run();
  let now = 0;
  for (const line of text.split("\n")) {
    const match = LOG_LINE.exec(line);
    if (!match) continue;
    const values = Object.fromEntries([...match[2].matchAll(LOG_FIELD)].map(([, name, value]) => [name, Number(value)]));
    const seconds = (values.ms ?? 0) / 1000;
    now = values.time ?? now + seconds;
    const decode = values.decode_tokens ?? 0;
    run.addSteps([{step: Number(match[1]), start: now - seconds, end: now, prefillTokens: values.prefill_tokens ?? 0,
      decodeTokens: decode, running: values.running, waiting: values.waiting, blocks: [values.blocks ?? 0, 0]}]);
    Object.assign(run.steps.at(-1), {longest: (values.gap_ms ?? 0) / 1000, outputs: decode});
  }
  return run;
}
