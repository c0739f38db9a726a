/** Mutual information of all pairs of variables, and the joint distribution of one pair. */

import { get, link } from "./api.js";
import { element, formulas } from "./dom.js";
import { extremes, heatmap } from "./heatmap.js";
import { nameOf, titled } from "./notes.js";
import { nextStep } from "./start.js";
import { decimal } from "./wording.js";

export async function dependenceView({ run, query, signal }) {
  const title = element("h1", { tabindex: "-1" }, "Dependence");
  if (!run.parts.includes("joint")) {
    const notice = nextStep(
      "How much the variables depend on each other has not been measured yet. Run this command, then start the explorer again:",
      `${run.command} --only joint`,
    );
    return { title: "Dependence", content: [title, notice] };
  }
  const information = await get(`/api/runs/${run.id}/mutual-information`, signal);
  const [first, second] = chosenPair(query, information);
  const kept = Math.max(first, second) < run.leading;
  const joint = kept ? await get(`/api/runs/${run.id}/joint/${first}/${second}`, signal) : null;
  return {
    title: `Dependence of variables ${first} and ${second}`,
    content: [
      title,
      element(
        "p",
        { class: "lead" },
        "Do two variables tell the same thing? In an ideal code they do not: knowing one tells nothing about the other, and all pairs of their units occur equally often. Strong colors on the left mark pairs that repeat each other; the map on the right shows how often their units occur together.",
      ),
      formulas(
        "Left: mutual information of two variables Z and Z′, the first measured in one view of an image and the second in another, I(Z; Z′) = Σ P(d, d′) ln [P(d, d′) / (P(d) P(d′))], in nats.",
        "Right: joint distribution P(d, d′) of their units. Independent, evenly used units have P = 1 / (D D′) everywhere.",
      ),
      element(
        "div",
        { class: "columns dependence" },
        informationSection(run, information, first, second),
        jointSection(run, joint, first, second),
      ),
    ],
    tables: tables(information, joint, first, second),
  };
}

function tables({ values }, joint, first, second) {
  const cells = (matrix) => matrix.flatMap((line, row) => line.map((value, column) => [row, column, value]));
  const pairs = {
    name: "Pairs of variables",
    headings: ["variable in the first view", "variable in the second view", "mutual information in nats"],
    rows: cells(values),
  };
  if (!joint) return [pairs];
  const units = {
    name: `Units of variables ${first} and ${second}`,
    headings: [`unit of variable ${first}`, `unit of variable ${second}`, "share"],
    rows: cells(joint.values),
  };
  return [pairs, units];
}

/** The pair named in the address, or the two most dependent variables. */
function chosenPair(query, { size, values }) {
  const named = ["m", "n"].map((name) => Number.parseInt(query.get(name) ?? "", 10));
  if (named.every((value) => value >= 0 && value < size)) return named;
  let best = [0, Math.min(1, size - 1)];
  for (let row = 0; row < size; row += 1) {
    for (let column = row + 1; column < size; column += 1) {
      if (values[row][column] > values[best[0]][best[1]]) best = [row, column];
    }
  }
  return best;
}

function informationSection(run, { values, floor }, first, second) {
  const apart = values.flatMap((line, row) => line.filter((_, column) => row !== column));
  const [least, most] = extremes(apart.length ? apart : values.flat());
  const describe = (row, column) => {
    const who =
      row === column
        ? `variable ${row} in both views`
        : `variables ${row} and ${column}`;
    return `${who}: ${values[row][column].toFixed(3)} nats`;
  };
  return element(
    "section",
    { "aria-labelledby": "shared" },
    element("h2", { id: "shared" }, "Shared information"),
    heatmap({
      id: "information",
      label: "Shared information of all pairs of variables, in nats",
      values,
      least,
      most: Math.max(1e-3, most),
      describe,
      start: [first, second],
      choose: (row, column) => (location.hash = link.dependence(run.id, row, column)),
      axes: ["variable in the first view", "variable in the second view"],
    }),
    element(
      "p",
      { class: "hint" },
      `0 means that two variables tell nothing about each other; with this number of images, chance alone gives about ${decimal(floor)} nats. The color scale ends at the largest value between two different variables; the diagonal, a variable with itself, may exceed it.`,
    ),
  );
}

function jointSection(run, joint, first, second) {
  const pair =
    first === second ? `Variable ${first} in both views` : `Variables ${first} and ${second}`;
  return element(
    "section",
    { "aria-labelledby": "joint" },
    element("h2", { id: "joint" }, pair),
    joint
      ? jointMap(joint, first, second)
      : element(
          "p",
          { class: "notice" },
          `The joint distributions were saved for the first ${run.leading} variables only; choose two of them.`,
        ),
    pairForm(run, first, second),
    element(
      "p",
      {},
      "Open ",
      element("a", { href: link.variable(run.id, first) }, titled(`variable ${first}`, nameOf(run, first))),
      first !== second && [
        " or ",
        element("a", { href: link.variable(run.id, second) }, titled(`variable ${second}`, nameOf(run, second))),
      ],
      ".",
    ),
  );
}

function jointMap({ values }, first, second) {
  const even = 1 / (values.length * values[0].length);
  const [least, most] = extremes(values.flat());
  const highest = values.findIndex((line) => line.includes(most));
  return heatmap({
    id: "block",
    label: `Joint distribution of the units of variables ${first} and ${second}`,
    values,
    least,
    most,
    start: [highest, values[highest].indexOf(most)],
    describe: (row, column) =>
      `unit ${row} of variable ${first} with unit ${column} of variable ${second}: ${decimal(values[row][column])}, ` +
      `${decimal(values[row][column] / even)} times the uniform value`,
    axes: [`unit of variable ${first}, first view`, `unit of variable ${second}, second view`],
  });
}

function pairForm(run, first, second) {
  const field = (id, label, value) => {
    const input = element("input", {
      id,
      type: "number",
      min: 0,
      max: run.units.length - 1,
      value,
      required: true,
    });
    return [
      element("label", { class: "choice", for: id }, element("span", {}, label), input),
      input,
    ];
  };
  const [firstLabel, firstInput] = field("pair-first", "Variable", first);
  const [secondLabel, secondInput] = field("pair-second", "and", second);
  const submit = (event) => {
    event.preventDefault();
    location.hash = link.dependence(run.id, Number(firstInput.value), Number(secondInput.value));
  };
  return element(
    "form",
    { class: "controls", "aria-label": "Pair of variables", on: { submit } },
    firstLabel,
    secondLabel,
    element("button", { type: "submit", id: "pair-show" }, "Show"),
  );
}
