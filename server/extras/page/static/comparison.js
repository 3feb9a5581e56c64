// The same requests under all batching policies, simulated: a sentence, a table, and strips with the same axes.

import {element} from "./dom.js";
import {percentile} from "./figures.js";
import {Run} from "./run.js";
import {Timeline} from "./timeline.js";
import {milliseconds} from "./words.js";

const POLICIES = ["splitfuse", "prefill_first", "decode_first", "static"];
const BEFORE_S = 0.08;  // share of the window before the longest prompt arrives
const AFTER = 1.6;  // length of the window, in times that prompt's first token took

// `arrivals`: [seconds, prompt tokens, output tokens], the first at 0. Returns {parts, draw}; canvases are drawn once they are in the page.
export async function compared(api, about, arrivals) {
  const answer = await api.json("stats/simulate", {method: "POST", body: {policies: POLICIES, arrivals}});
  const outcomes = answer.runs.map(({policy, steps}) => outcome(about, policy, steps, arrivals));
  const axes = sharedAxes(outcomes, arrivals);
  const timelines = outcomes.map(({run, policy}) => new Timeline(run, policy, axes));
  return {parts: [verdict(outcomes), figuresTable(outcomes), element("p", {className: "words"},
    "A stream stands still while the engine computes a step without it. Step times were measured by this server; no model runs here."),
  element("div", {className: "compared"}, ...timelines.map((timeline) => timeline.figure)), element("p", {className: "words"}, axes.words)],
  draw: () => timelines.forEach((timeline) => timeline.draw())};
}

function outcome(about, policy, steps, arrivals) {
  const run = new Run({...about, batching_policy: policy});
  run.addRequests(arrivals.map(([arrival, prompt], number) => ({number, arrival, prompt})));
  run.addSteps(steps);
  return {run, policy, still: stillSeconds(run, arrivals), longest: Math.max(0, ...run.gaps)};
}

// Seconds in which at least one request was there and not in the step.
function stillSeconds(run, arrivals) {
  const left = arrivals.map(([, , tokens]) => tokens);
  let still = 0;
  for (const record of run.steps) {
    const inside = new Set([...record.decodes ?? [], ...(record.chunks ?? []).map(([number]) => number)]);
    let since = record.end;
    arrivals.forEach(([arrival], number) => {
      if (left[number] > 0 && !inside.has(number)) since = Math.min(since, Math.max(record.start, arrival));
    });
    still += record.end - since;
    for (const number of record.decodes ?? []) left[number] -= 1;
    for (const [number, start, tokens] of record.chunks ?? []) if (start + tokens >= arrivals[number][1]) left[number] -= 1;
  }
  return still;
}

function inSeconds(value) {
  return `${value < 1 ? value.toFixed(2) : value.toFixed(1)} s`;
}

function verdict(outcomes) {
  const [best, ...others] = [...outcomes].sort((one, other) => one.still - other.still);
  const rest = others.reverse().map(({policy, still}) => `${inSeconds(still)} with ${policy}`).join(", ");
  const sentence = element("p", {className: "verdict"}, `Streams stood still ${rest}, and only ${inSeconds(best.still)} with ${best.policy}.`);
  sentence.dataset.best = best.policy;
  return sentence;
}

function figuresTable(outcomes) {
  const least = Math.min(...outcomes.map(({still}) => still));
  const cells = (values, kind) => values.map((value) => element(kind, {}, value));
  const rows = outcomes.map(({run, policy, still, longest}) => {
    const [gaps, firsts] = [run.gaps, run.ttfts].map((values) => [...values].sort((one, other) => one - other));
    const times = [longest, still, percentile(gaps, 0.5), percentile(firsts, 0.5), percentile(firsts, 0.95)];
    return element("tr", {className: still === least ? "best" : ""}, ...cells([policy, ...times.map((time) => (time === null ? "–" : milliseconds(time)))], "td"));
  });
  return element("div", {className: "scroll", tabIndex: 0, role: "region", ariaLabel: "Figures of the policies"}, element("table", {},
    element("thead", {}, element("tr", {}, ...cells(["simulated policy", "longest gap", "streams stood still", "gap, median", "first token, median", "first token, 95 %"], "th"))),
    element("tbody", {}, ...rows)));
}

// One window of time around the longest prompt, and one scale of tokens.
function sharedAxes(outcomes, arrivals) {
  const long = arrivals.reduce((best, [, prompt], number) => (prompt > arrivals[best][1] ? number : best), 0);
  const [arrival] = arrivals[long];
  const firsts = outcomes.slice(0, 2).map(({run}) => run.requests.get(long)?.ttft ?? 0);
  const length = Math.max(0.05, AFTER * Math.max(...firsts));
  const [from, to] = [arrival - BEFORE_S * length, arrival + length];
  const most = Math.max(1, ...outcomes.flatMap(({run}) => run.steps.map(({tokens}) => tokens.prefill + tokens.decode)));
  return {from, to, most, words: `All strips: ${inSeconds(to - from)} from left to right, up to ${most.toLocaleString("en")} tokens a step. ` +
    "Below the steps a line per request: filled while it is in the step, thin while it stands still."};
}
