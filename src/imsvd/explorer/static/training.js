/** Training curves with the bounds of the loss terms. */

import { get } from "./api.js";
import { lineChart } from "./chart.js";
import { element } from "./dom.js";
import { spaced } from "./wording.js";

export async function trainingView({ run, signal }) {
  const { series, bounds } = await get(`/api/runs/${run.id}/training`, signal);
  const drawn = inOrder(series.filter((item) => item.points.length));
  return {
    title: "Training",
    content: [
      element("h1", { tabindex: "-1" }, "Training"),
      drawn.length
        ? element(
            "p",
            { class: "lead" },
            "Dashed lines mark the value of a loss term for an ideal, a uniform and a collapsed model, and the best value possible at this batch size. Point at a chart, or use the left and right arrow keys, to read values.",
          )
        : element(
            "p",
            { class: "notice" },
            "No training curves: metrics.jsonl is missing from the run folder, or empty.",
          ),
      element(
        "div",
        { class: "charts" },
        drawn.map((item) =>
          lineChart({ name: item.name, lines: [item], bounds: boundsOf(bounds, item.name) }),
        ),
      ),
    ],
  };
}

const LAST = ["lr", "images_per_second"];

/** Learning rate and speed come last. */
export const inOrder = (series) => [
  ...series.filter((item) => !LAST.includes(item.name)),
  ...series.filter((item) => LAST.includes(item.name)),
];

/** The bounds of one series as pairs of name and value; equal ones share a line. */
export function boundsOf(bounds, name) {
  const words = new Map();
  for (const [word, value] of Object.entries(bounds?.[name] ?? {})) {
    words.set(value, [...(words.get(value) ?? []), spaced(word)]);
  }
  return [...words].map(([value, names]) => [names.join(", "), value]);
}
