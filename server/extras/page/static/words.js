// Sentences about steps and requests, built from the records alone.

const REASONS = {
  budget: "the token budget was used up",
  sequences: "as many requests ran as may run at once",
  blocks: "the KV cache had too few free blocks",
  policy: "the batching policy admitted no request in this step",
  preemption: "a running request had just lost its blocks",
  tenant: "its tenant ran as many sequences as it may",
  interactive: "it is a background request, and an interactive one waits",
};

export function milliseconds(seconds) {
  const value = seconds * 1000;
  return `${value < 10 ? value.toFixed(1) : Math.round(value).toLocaleString("en")} ms`;
}

function named(number) {
  return `request ${number}`;
}

function listed(numbers) {
  const shown = numbers.slice(0, 12).join(", ");
  return numbers.length > 12 ? `${shown} and ${numbers.length - 12} more` : shown;
}

export function stepWords(run, number) {
  const record = run.step(number);
  if (!record) return "No such step.";
  const {prefill, decode} = record.tokens;
  const budget = record.budget ? ` of ${record.budget}` : "";
  const lines = [`Step ${record.step}: ${prefill + decode}${budget} tokens in ${milliseconds(record.end - record.start)}: ` +
    `${prefill} of prompts, ${decode} of decodes. ${record.running ?? 0} run, ${record.waiting ?? 0} wait.`];
  for (const [request, start, tokens] of (record.chunks ?? []).slice(0, 8)) {
    lines.push(`A chunk of ${named(request)}: tokens ${start} to ${start + tokens - 1}.`);
  }
  if (record.decodes?.length) lines.push(`One token each: ${listed(record.decodes)}.`);
  for (const [request, drafted, accepted] of (record.drafts ?? []).slice(0, 4)) {
    lines.push(`Drafts of ${named(request)}: ${accepted} of ${drafted} accepted.`);
  }
  for (const [request, mode, swap, recompute] of record.preempted ?? []) {
    const prices = [["to swap", swap], ["to recompute", recompute]].filter(([, price]) => price !== null && price !== undefined);
    const text = prices.map(([name, price]) => `${name} ${milliseconds(price)}`).join(", ");
    lines.push(`Preempted for lack of blocks: ${named(request)} (${mode}${text ? `; estimated ${text}` : ""}).`);
  }
  for (const [request, reason, missing] of record.stopped_at ?? []) {
    lines.push(`Not admitted: ${named(request)} and those behind it: ${REASONS[reason] ?? reason}` +
      `${missing ? `, ${missing} more were needed` : ""}.`);
  }
  if (record.left_out?.length) lines.push(`Running and left out: ${listed(record.left_out)}.`);
  if (record.evicted) lines.push(`${record.evicted} cached blocks were evicted.`);
  return lines.join("\n");
}

// Rows of [step, event] for a request that the server no longer keeps.
export function requestRows(run, request) {
  const rows = [[String(request.firstStep), `came with ${request.prompt} prompt tokens`]];
  for (const {kind, from, to} of request.segments) {
    const span = from === to ? String(run.step(from)?.step ?? from) : `${run.step(from)?.step ?? from} to ${run.step(to)?.step ?? to}`;
    rows.push([span, {chunk: "chunks of its prompt", decode: "decodes"}[kind] ?? kind]);
  }
  if (request.forcedStep !== null) rows.push([String(request.forcedStep), "its grammar leads it to an end"]);
  if (request.ended) rows.push([String(request.lastStep), `ended: ${request.finishReason}`]);
  return rows;
}
