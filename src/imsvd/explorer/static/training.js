/** How the training went, with the values that its terms could have at best and at worst. */

import { get } from "./api.js";
import { lineChart } from "./chart.js";
import { element } from "./dom.js";
import { spaced } from "./wording.js";

export async function trainingView({ run, signal }) {
  const { series, marks } = await get(`/api/runs/${run.id}/training`, signal);
  const drawn = inOrder(series.filter((item) => item.points.length));
  return {
    title: "Training",
    content: [
      element("h1", { tabindex: "-1" }, "Training"),
      drawn.length
        ? element(
            "p",
            { class: "lead" },
            "One drawing for each quantity, over epochs. Dashed lines are what a term of the loss is for an ideal, a uniform and a collapsed model, and what a batch of this size can reach. Point at a drawing, or use the left and right arrow keys, to read it.",
          )
        : element(
            "p",
            { class: "notice" },
            "This run has kept no training curves: its metrics.jsonl is missing or empty.",
          ),
      element(
        "div",
        { class: "charts" },
        drawn.map((item) =>
          lineChart({ name: item.name, lines: [item], bounds: boundsOf(marks, item.name) }),
        ),
      ),
    ],
  };
}

const LAST = ["lr", "images_per_second"];

/** What was learned first, then how. */
export const inOrder = (series) => [
  ...series.filter((item) => !LAST.includes(item.name)),
  ...series.filter((item) => LAST.includes(item.name)),
];

/** The bounds of one series as words and values; equal ones share a line. */
export function boundsOf(marks, name) {
  const words = new Map();
  for (const [word, value] of Object.entries(marks?.[name] ?? {})) {
    words.set(value, [...(words.get(value) ?? []), spaced(word)]);
  }
  return [...words].map(([value, names]) => [names.join(", "), value]);
}
