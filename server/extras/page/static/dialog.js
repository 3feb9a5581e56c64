// The dialog of both pages: the story of a request.

import {byId, element, table} from "./dom.js";
import {milliseconds, requestRows} from "./words.js";

export function openDialog(title, ...content) {
  byId("dialog-title").textContent = title;
  byId("dialog-body").replaceChildren(...content);
  if (!byId("dialog").open) byId("dialog").showModal();
}

export async function showRequest(run, request, api) {
  const title = `Request ${request.number}`;
  if (request.id) {
    try {
      showExplanation(title, await api.json(`result/${request.id}/explain`));
      return;
    } catch (error) {
      if (error.status !== 404) throw error;  // no longer kept: only the steps can tell
    }
  }
  openDialog(title, table(["step", "what"], requestRows(run, request)));
}

export function showExplanation(title, found) {
  const shares = Object.entries(found.shares).filter(([, seconds]) => seconds > 0).sort(([, a], [, b]) => b - a);
  const predicted = found.predicted_ttft_s === null ? "" : `, predicted ${milliseconds(found.predicted_ttft_s)}`;
  const first = found.ttft_s === null ? "no token yet" : `first token after ${milliseconds(found.ttft_s)}${predicted}`;
  openDialog(title,
    element("p", {}, `${found.status}, ${milliseconds(found.e2e_s)} in all; ${first}.`),
    table(["time", "where it went"], shares.map(([name, seconds]) =>
      [milliseconds(seconds), `${found.share_texts[name]} (${Math.round(100 * seconds / Math.max(found.e2e_s, 1e-9))} %)`])),
    table(["after", "what", "why"], found.timeline.map(({t, what, why}) => [milliseconds(t), what, why])));
}
