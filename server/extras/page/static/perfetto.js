// Converts a run to the Trace Event Format (Google, 2016), which Perfetto and Chromium's tracing page open: a track of
// steps, one per request, and counters.

const [STEPS, REQUESTS] = [1, 2];  // process ids in the trace

export function toTrace(run) {
  const start = run.steps[0]?.start ?? 0;
  const micros = (seconds) => Math.round((seconds - start) * 1e6);
  const events = [metadata("process_name", STEPS, 0, "steps"), metadata("process_name", REQUESTS, 0, "requests")];
  for (const record of run.steps) {
    const {prefill, decode} = record.tokens;
    const at = {pid: STEPS, tid: 0, ts: micros(record.start)};
    events.push({...at, ph: "X", name: `step ${record.step}`, dur: Math.round((record.end - record.start) * 1e6),
      args: {prefill, decode, stopped_at: JSON.stringify(record.stopped_at ?? [])}});
    events.push({...at, ph: "C", name: "tokens", args: {prefill, decode}});
    events.push({...at, ph: "C", name: "requests", args: {running: record.running ?? 0, waiting: record.waiting ?? 0}});
  }
  for (const request of run.requests.values()) events.push(...requestEvents(run, request, micros));
  return {traceEvents: events, displayTimeUnit: "ms"};
}

function metadata(name, pid, tid, text) {
  return {ph: "M", name, pid, tid, args: {name: text}};
}

function requestEvents(run, request, micros) {
  const tid = request.number + 1;
  const events = [metadata("thread_name", REQUESTS, tid, `request ${request.number}`)];
  for (const {kind, from, to} of request.segments) {
    const [first, last] = [run.step(Math.max(from, run.first)), run.step(to)];
    if (!first || !last) continue;
    events.push({ph: "X", name: kind, pid: REQUESTS, tid, ts: micros(first.start), dur: Math.max(1, micros(last.end) - micros(first.start))});
  }
  return events;
}
