/** Which variables tell the same, and the joint probabilities of the units of two of them. */

import { get, link } from "./api.js";
import { element } from "./dom.js";
import { extremes, heatmap } from "./heatmap.js";
import { decimal } from "./wording.js";

export async function mapsView({ run, query, signal }) {
  const title = element("h1", { tabindex: "-1" }, "Maps");
  if (!run.parts.includes("joint")) {
    const remedy = `This run has no joint matrix yet; make it with: imsvd explain ${run.path} ${run.data} --only joint`;
    return { title: "Maps", content: [title, element("p", { class: "notice" }, remedy)] };
  }
  const information = await get(`/api/runs/${run.id}/mutual-information`, signal);
  const [first, second] = chosenPair(query, information);
  const kept = Math.max(first, second) < run.leading;
  const joint = kept ? await get(`/api/runs/${run.id}/joint/${first}/${second}`, signal) : null;
  return {
    title: `Maps, variables ${first} and ${second}`,
    content: [
      title,
      element(
        "p",
        { class: "lead" },
        "How often units are taken together in two views of an image. An ideal model has independent variables: each pair then shares nothing, and all its cells are equal.",
      ),
      element(
        "div",
        { class: "columns maps" },
        informationSection(run, information, first, second),
        jointSection(run, joint, first, second),
      ),
    ],
  };
}

/** The pair that the address names, or the two different variables that share most. */
function chosenPair(query, { size, values }) {
  const asked = ["m", "n"].map((name) => Number.parseInt(query.get(name) ?? "", 10));
  if (asked.every((value) => value >= 0 && value < size)) return asked;
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
        ? `variable ${row} with itself in the other view`
        : `variables ${row} and ${column}`;
    return `${who}: ${values[row][column].toFixed(3)} nats`;
  };
  return element(
    "section",
    { "aria-labelledby": "shared" },
    element("h2", { id: "shared" }, "Mutual information"),
    heatmap({
      id: "information",
      label: "Mutual information of pairs of variables, in nats",
      values,
      least,
      most: Math.max(1e-3, most),
      describe,
      start: [first, second],
      choose: (row, column) => (location.hash = link.maps(run.id, row, column)),
      axes: ["variable in the first view", "variable in the second view"],
    }),
    element(
      "p",
      { class: "hint" },
      `The scale ends at the largest value of two different variables; the diagonal goes beyond it. Independent variables would seem to share ${decimal(floor)} nats, as the images are so few.`,
    ),
  );
}

function jointSection(run, joint, first, second) {
  const pair =
    first === second ? `Variable ${first} with itself` : `Variables ${first} and ${second}`;
  return element(
    "section",
    { "aria-labelledby": "joint" },
    element("h2", { id: "joint" }, pair),
    joint
      ? jointMap(joint, first, second)
      : element(
          "p",
          { class: "notice" },
          `The joint matrix was kept for the first ${run.leading} variables only; choose a pair among them.`,
        ),
    pairForm(run, first, second),
    element(
      "p",
      {},
      "See ",
      element("a", { href: link.variable(run.id, first) }, `variable ${first}`),
      first !== second && [
        " and ",
        element("a", { href: link.variable(run.id, second) }, `variable ${second}`),
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
    label: `Joint probabilities of the units of variables ${first} and ${second}`,
    values,
    least,
    most,
    start: [highest, values[highest].indexOf(most)],
    describe: (row, column) =>
      `unit ${row} of variable ${first} with unit ${column} of variable ${second}: ${decimal(values[row][column])}, ` +
      `${decimal(values[row][column] / even)} times an even share`,
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
  const [secondLabel, secondInput] = field("pair-second", "with", second);
  const submit = (event) => {
    event.preventDefault();
    location.hash = link.maps(run.id, Number(firstInput.value), Number(secondInput.value));
  };
  return element(
    "form",
    { class: "controls", "aria-label": "Choose a pair of variables", on: { submit } },
    firstLabel,
    secondLabel,
    element("button", { type: "submit", id: "pair-show" }, "Show"),
  );
}
