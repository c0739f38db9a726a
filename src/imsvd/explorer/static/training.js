/** Training curves with the bounds of the loss terms. */

import { get } from "./api.js";
import { lineChart } from "./chart.js";
import { element, formulas } from "./dom.js";
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
            "How the run developed, epoch by epoch. The loss is what training makes small. Dashed lines mark what an ideal model would reach, and what one that ignores its images would show. Point at a chart, or use the left and right arrow keys, to read values.",
          )
        : element(
            "p",
            { class: "notice" },
            "No training curves: metrics.jsonl is missing from the folder of this run. imsvd pretrain and imsvd discretize write it.",
          ),
      drawn.length > 0 &&
        formulas(
          "Entropy terms have a minus sign: Σ P ln P, of the diagonals of the joint matrix of two views and of its off-diagonal blocks. Invariance: −ln ⟨q′, q″⟩. Effective rank: exp of the entropy of the normalized singular values.",
          "Ideal: one-hot codes, equal for both views, with evenly used and independent units. Uniform: all units have probability 1/D. Collapsed: all images have the same code. Batch limit: the best value that a batch of this size can reach.",
        ),
      element(
        "div",
        { class: "charts" },
        drawn.map((item) =>
          lineChart({ name: item.name, about: inWords(item.name), lines: [item], bounds: boundsOf(bounds, item.name) }),
        ),
      ),
    ],
    tables: drawn.length ? [curveTable(drawn)] : [],
  };
}

/** All series side by side, one row for each epoch. */
function curveTable(drawn) {
  const values = drawn.map((item) => new Map(item.points));
  const epochs = [...new Set(values.flatMap((points) => [...points.keys()]))].sort((a, b) => a - b);
  return {
    name: "Curves",
    headings: ["epoch", ...drawn.map((item) => item.name)],
    rows: epochs.map((epoch) => [epoch, ...values.map((points) => points.get(epoch))]),
  };
}

/** What a series measures, for those that are not clear by their names. */
const WORDS = [
  [/^loss$/, "What training makes small: the sum of its terms."],
  [/^invariance$/, "How much the codes of two views of an image differ; lower is better."],
  [/^diagonal_entropy$/, "How evenly the units of a variable are used; lower is more even."],
  [/^off_diagonal_entropy$/, "How evenly the units of two variables combine; lower is more even."],
  [/^share_above_/, "Share of answers of which the encoder is surer than this."],
  [/^dead_units$/, "Units that hardly any image takes; 0 is ideal."],
  [/^share_decided$/, "Share of answers of which the code is more than 90% sure."],
  [/^share_agreeing$/, "Share of answers that are the same for two views of an image."],
  [/^shared_nats$/, "How much two variables repeat each other; 0 is not at all."],
  [/^surviving_nats$/, "How much of the code is the same for two views of an image; higher is better."],
  [/^spread$/, "How much the features of different images differ; 0 is a collapse."],
  [/^effective_rank$/, "How many directions the features really use; 1 is a collapse."],
  [/^knn/, "How often the most similar images give the right label, in percent."],
  [/^lr$/, "Size of the steps of the optimizer."],
];

/** The words for a series, or undefined. */
export const inWords = (name) => WORDS.find(([pattern]) => pattern.test(name))?.[1];

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
