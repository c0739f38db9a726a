/** Results that take the server a while: a bar until they are there. */

import { get } from "./api.js";
import { element } from "./dom.js";

const PATIENCE = 500;

/** Returns a result, or null and an element that shows the progress and then calls `reload`. */
export async function resultOf(path, sentence, { signal, reload }) {
  const answer = await get(path, signal);
  if (answer.ready) return { answer };
  const bar = element("progress", { "aria-label": "Progress" });
  const again = async () => {
    if (signal.aborted) return;
    const { ready, done, total } = await get(path, signal).catch(() => ({ ready: true }));
    if (signal.aborted) return;
    if (ready) return reload();
    if (total) Object.assign(bar, { max: total, value: done });
    setTimeout(again, PATIENCE);
  };
  setTimeout(again, PATIENCE / 2);
  return { answer: null, bar: element("div", { class: "stack" }, element("p", {}, sentence), bar) };
}
