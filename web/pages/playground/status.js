// The strip that tells of queue and workers, looked at again and again while the page is seen.

import { ApiError, getJson, hasKey } from "./api.js";
import { byId, make } from "./dom.js";
import { chosenModel, loadModels } from "./models.js";

const strip = byId("service");
const EVERY = 2000; // milliseconds
let timer = 0;
let names = null;
let last = null;

/** What the service said last; null before it has said anything. */
export const lastStatus = () => last;

/** Look now, and from now on. */
export async function watchStatus() {
  clearTimeout(timer);
  const again = document.hidden || (await look());
  clearTimeout(timer);
  if (again) timer = setTimeout(watchStatus, EVERY);
}

document.addEventListener("visibilitychange", () => document.hidden || watchStatus());
byId("model").addEventListener("change", () => last && tell(last));

/** Whether to look again without being asked: a key that is refused once is refused always. */
async function look() {
  try {
    last = await getJson("playground/status");
    const seen = last.models.map(({ name }) => name).join("\n");
    if (seen !== names) {
      await loadModels();
      names = seen;
    }
    tell(last);
    return true;
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    last = names = null;
    if (error.status !== 401) {
      say("bad", error.message);
      return true;
    }
    byId("settings").open = true;
    say("bad", hasKey() ? "The API key is not right" : "This service wants an API key: see the settings");
    return false;
  }
}

function tell({ models }) {
  const model = chosenModel();
  const status = models.find(({ name }) => name === model?.id || name === model?.parent) ?? models[0];
  if (!status) return say("bad", "No model for this key");
  const { ready = 0, ...others } = status.workers;
  const workers = [`${ready} ${ready === 1 ? "worker" : "workers"} ready`];
  for (const [state, count] of Object.entries(others)) workers.push(`${count} ${state}${loading(state, status)}`);
  const queue = status.queued ? `${status.queued} waiting, ${Math.round(status.oldest_seconds)} s` : "queue empty";
  say(ready ? "good" : "bad", ...workers, `${status.running} running`, queue);
}

const loading = (state, { progress }) =>
  (state === "starting" || state === "restarting") && progress < 1 ? ` (${Math.round(100 * progress)} %)` : "";

function say(mood, ...parts) {
  strip.dataset.mood = mood;
  strip.replaceChildren(...parts.map((part) => make("span", {}, part)));
}
