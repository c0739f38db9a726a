/** Two runs side by side: results, shared information and training curves. */

import { get, link } from "./api.js";
import { lineChart } from "./chart.js";
import { choice, element, formulas, table } from "./dom.js";
import { extremes, heatmap } from "./heatmap.js";
import { boundsOf, inOrder, inWords } from "./training.js";
import { capital, counted, decimal, percent, shown, spaced } from "./wording.js";

export async function compareView({ first, second, runs, signal }) {
  const found = [first, second].map((id) => runs.find((run) => run.id === id));
  if (found.includes(undefined))
    throw new Error("One of these runs does not exist; choose a view above.");
  const names = first === second ? ["this run", "the same run"] : distinctNames(found);
  const answer = await get(`/api/compare?first=${first}&second=${second}`, signal);
  return {
    title: `${names[0]} and ${names[1]}`,
    content: [
      element(
        "div",
        { class: "bar" },
        element("h1", { tabindex: "-1" }, "Compare runs"),
        runChoices(runs, first, second),
      ),
      element("p", { class: "lead" }, "What the two runs achieve, how much of what they learned is the same, and how they trained."),
      numbers(answer.rows, names),
      agreement(answer.agreement, names),
      curves(answer.training, names),
    ],
    tables: tables(answer, names),
  };
}

function tables({ rows, agreement: found }, names) {
  const results = {
    name: "Results",
    headings: ["group", "metric", ...names],
    rows: rows.map((row) => [row.group, row.name, row.first, row.second]),
  };
  if (!found?.mutual_information) return [results];
  const shared = {
    name: "Shared information",
    headings: [`variable of ${names[0]}`, `variable of ${names[1]}`, "mutual information in nats"],
    rows: found.mutual_information.flatMap((line, row) => line.map((value, column) => [row, column, value])),
  };
  return [results, shared];
}

function distinctNames([first, second]) {
  return first.name === second.name ? [first.path, second.path] : [first.name, second.name];
}

function runChoices(runs, first, second) {
  const options = runs.map((run) => [run.id, run.name]);
  return element(
    "div",
    { class: "controls" },
    choice("First", "first", options, first, (id) => (location.hash = link.compare(id, second))),
    choice("Second", "second", options, second, (id) => (location.hash = link.compare(first, id))),
  );
}

function numbers(rows, names) {
  if (!rows.length) {
    return element("p", { class: "notice" }, "No results to compare yet. Run `imsvd evaluate knn RUN DATA` on both runs, then start the explorer again.");
  }
  const groups = new Map();
  for (const row of rows) {
    const cells = [spaced(row.name), shown(row.first), shown(row.second), difference(row)];
    groups.set(row.group, [...(groups.get(row.group) ?? []), cells]);
  }
  const headings = ["Metric", ...names, "Change"];
  const tables = [...groups].map(([group, cells]) => table(capital(spaced(group)), headings, cells));
  return element("div", { class: "tables" }, tables);
}

function difference({ first, second }) {
  if (typeof first !== "number" || typeof second !== "number") return "";
  const change = second - first;
  return `${change > 0 ? "+" : ""}${decimal(change)}`;
}

function agreement(found, names) {
  if (!found) return null;
  const heading = element("h2", { id: "agree" }, "Shared information");
  const values = found.mutual_information;
  const text = values
    ? `How much a variable of one run tells about a variable of the other, on ${counted(found.common_images, "common image")}. A high value marks something that both runs have learned; unrelated variables would show about ${decimal(found.floor)} nats.`
    : "The two runs were explained with different images, so their codes cannot be compared. Explain both with the same data.";
  return element(
    "section",
    { class: "medium", "aria-labelledby": "agree" },
    heading,
    element("p", { class: values ? "hint" : "notice" }, text),
    found.matched_units && element("p", {}, matched(found.matched_units)),
    values &&
      formulas(
        "Mutual information I(Z; Z′) = Σ P(d, d′) ln [P(d, d′) / (P(d) P(d′))] of a variable of each run, in nats.",
        "Overlap of two units with the sets of images A and B (Jaccard index): |A ∩ B| / |A ∪ B|.",
      ),
    values &&
      heatmap({
        id: "agreement",
        label: "Shared information between the variables of both runs, in nats",
        values,
        least: extremes(values.flat())[0],
        most: Math.max(1e-3, extremes(values.flat())[1]),
        describe: (row, column) =>
          `variable ${row} of ${names[0]} and variable ${column} of ${names[1]}: ${values[row][column].toFixed(3)} nats`,
        axes: [`variable of ${names[0]}`, `variable of ${names[1]}`],
      }),
  );
}

function matched({ share, mean_jaccard }) {
  return (
    `${percent(share)} of the units have a partner in the other run with which they share at least half of their images; ` +
    `a unit and its partner overlap by ${percent(mean_jaccard)} on average.`
  );
}

function curves(training, names) {
  const both = [training.first, training.second];
  const quantities = [
    ...new Set(inOrder(both.flatMap(({ series }) => series)).map((item) => item.name)),
  ];
  if (!quantities.length) return null;
  const charts = quantities.map((name) =>
    lineChart({
      name,
      about: inWords(name),
      lines: linesOf(both, names, name),
      bounds: commonBounds(both, name),
      level: "h3",
    }),
  );
  return element(
    "section",
    { "aria-labelledby": "curves" },
    element("h2", { id: "curves" }, "Training"),
    element("div", { class: "charts" }, charts),
  );
}

/** The curves of one quantity, for the runs that have it. */
function linesOf(both, names, name) {
  return both
    .map(({ series }, place) => ({
      name: names[place],
      place,
      points: series.find((item) => item.name === name)?.points ?? [],
    }))
    .filter((line) => line.points.length);
}

/** Bounds are drawn only if they are the same for both runs. */
function commonBounds(both, name) {
  const [first, second] = both.map(({ bounds }) => boundsOf(bounds, name));
  return JSON.stringify(first) === JSON.stringify(second) ? first : [];
}
