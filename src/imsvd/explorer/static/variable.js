/** One variable: its meaning, the variables it depends on, and the best images of its units. */

import { get, link, withQuery } from "./api.js";
import { bars } from "./chart.js";
import { choice, element, formulas } from "./dom.js";
import { isStarred, nameOf, naming, starButton, titled } from "./notes.js";
import { nextStep } from "./start.js";
import { gallery, pageOf, pager, tile } from "./tiles.js";
import { counted, decimal, percent, spaced } from "./wording.js";

const PAGE = 16;

const ORDERS = {
  use: ["Number of images", (first, second) => second.share - first.share || first.unit - second.unit],
  confidence: [
    "Highest confidence",
    (first, second) => (second.top[0]?.score ?? 0) - (first.top[0]?.score ?? 0),
  ],
  number: ["Unit number", (first, second) => first.unit - second.unit],
};

export async function variableView({ run, variable, query, hash, signal, reload }) {
  const answer = await get(`/api/runs/${run.id}/variables/${variable}`, signal);
  const order = ORDERS[query.get("order")] ? query.get("order") : "use";
  const units = [...answer.units].sort(ORDERS[order][1]);
  const page = pageOf(query, PAGE, units.length);
  const rows = units
    .slice(page * PAGE, (page + 1) * PAGE)
    .map((unit) => unitRow(run, variable, unit));
  const title = titled(`Variable ${variable}`, nameOf(run, variable));
  const name = naming(run, variable, null, { title: `variable ${variable}`, reload });
  return {
    title,
    content: [
      element("p", { class: "path" }, element("a", { href: link.variables(run.id) }, "Variables")),
      element(
        "div",
        { class: "bar" },
        element(
          "div",
          { class: "titled" },
          element("h1", { tabindex: "-1" }, title),
          starButton(run, variable, null, `variable ${variable}`),
          name.open,
        ),
        siblings(variable, run.units.length, (other) => link.variable(run.id, other), "variable"),
      ),
      name.form,
      element(
        "p",
        { class: "lead" },
        `This variable sorts the images into ${counted(units.length, "group")}, its units. Compare the images of the units to see what it tells apart.`,
      ),
      element(
        "div",
        { class: "columns" },
        meanings(run, answer.meaning),
        dependent(run, variable, answer.dependent, units.length),
      ),
      element(
        "div",
        { class: "bar" },
        element("h2", {}, counted(units.length, "unit")),
        choice(
          "Sort by",
          "order",
          Object.entries(ORDERS).map(([name, [text]]) => [name, text]),
          order,
          (value) => {
            location.hash = withQuery(hash, { page: null, order: value === "use" ? null : value });
          },
        ),
      ),
      element(
        "p",
        { class: "hint how-to" },
        "The images with the highest confidence for each unit. Point at one, or tap it, to see where the evidence is.",
      ),
      rows,
      pager(hash, page, PAGE, units.length),
    ],
    tables: tables(run, variable, answer),
  };
}

function tables(run, variable, answer) {
  const units = {
    name: "Units",
    headings: ["variable", "unit", "name", "starred", "images", "share", "mean probability", "similarity", "purity"],
    rows: answer.units.map((unit) => [
      variable,
      unit.unit,
      nameOf(run, variable, unit.unit),
      isStarred(run, variable, unit.unit),
      unit.images,
      unit.share,
      unit.mean_probability,
      (unit.coherence?.judged_monosemanticity ?? unit.coherence?.monosemanticity)?.value,
      unit.coherence?.purity?.value,
    ]),
  };
  if (!answer.meaning.length) return [units];
  const attributes = {
    name: "Attributes",
    headings: ["variable", "attribute", "NMI", "NMI by chance"],
    rows: answer.meaning.map((item) => [variable, item.attribute, item.nmi, item.baseline]),
  };
  return [units, attributes];
}

function unitRow(run, variable, unit) {
  const title = `Unit ${unit.unit}`;
  const name = nameOf(run, variable, unit.unit);
  return element(
    "section",
    { class: "unit-row", "aria-label": title },
    element(
      "div",
      { class: "unit-head" },
      element(
        "div",
        { class: "titled" },
        element("h3", {}, element("a", { href: link.unit(run.id, variable, unit.unit) }, titled(title, name))),
        starButton(run, variable, unit.unit, `unit ${unit.unit} of variable ${variable}`),
      ),
      element(
        "p",
        { class: "about" },
        unit.images
          ? `${counted(unit.images, "image")} (${percent(unit.share)})`
          : "no images",
        coherent(unit.coherence),
      ),
    ),
    unit.top.length
      ? gallery(
          unit.top.map((item) =>
            tile({
              run,
              image: item.image,
              unit: [variable, unit.unit],
              pixels: 72,
              caption: percent(item.score),
            }),
          ),
          { label: `Best images of unit ${unit.unit}`, small: true },
        )
      : element("p", { class: "hint" }, "No image has this unit; the encoder does not use it."),
  );
}

function coherent(found) {
  const similar = found?.judged_monosemanticity ?? found?.monosemanticity;
  return [
    similar && `, similarity ${similar.value.toFixed(2)}`,
    found?.purity && `, purity ${percent(found.purity.value)}`,
  ]
    .filter(Boolean)
    .join("");
}

function meanings(run, list) {
  return element(
    "section",
    { "aria-labelledby": "tells" },
    element("h2", { id: "tells" }, "What it goes with"),
    list.length
      ? bars(
          list.map((item) => ({
            name: spaced(item.attribute),
            value: item.nmi,
            text: `${item.nmi.toFixed(2)} (chance ${item.baseline.toFixed(2)})`,
          })),
          { most: 1 },
        )
      : element("div", { class: "hint" }, run.parts.includes("meaning")
            ? "These images have no labels or attributes to compare with."
            : nextStep("Not measured yet. Run this command, then start the explorer again:", `${run.command} --only meaning`)),
    list.length > 0 && [
      element(
        "p",
        { class: "hint" },
        "How well the variable tells each attribute of the images: 0 not at all, 1 exactly. Chance: what an unrelated attribute would show.",
      ),
      formulas(
        "Normalized mutual information of variable Z and attribute A: NMI = 2 I(Z; A) / (H(Z) + H(A)).",
        "Chance: the largest NMI of any variable with shuffled values of the attribute.",
      ),
    ],
  );
}

function dependent(run, variable, list, units) {
  return element(
    "section",
    { "aria-labelledby": "depends" },
    element("h2", { id: "depends" }, "Variables that tell much the same"),
    list.length
      ? bars(
          list.map((item) => ({
            name: `variable ${item.variable}`,
            href: link.dependence(run.id, variable, item.variable),
            value: item.nats,
            text: `${percent(item.nats / Math.log(units))}`,
          })),
          { most: Math.log(units) },
        )
      : element(
          "div",
          { class: "hint" },
          run.parts.includes("joint")
            ? "There are no other variables."
            : nextStep("Not measured yet. Run this command, then start the explorer again:", `${run.command} --only joint`),
        ),
    list.length > 0 && [
      element(
        "p",
        { class: "hint" },
        "How much of this variable each other one tells: 0% nothing, 100% everything. Open one to see which units occur together.",
      ),
      formulas(
        `Mutual information I of two variables, as a share of its largest value, ln ${units} = ${decimal(Math.log(units))} nats:`,
        list.map((item) => `I(${variable}; ${item.variable}) = ${decimal(item.nats)} nats`).join(", "),
      ),
    ],
  );
}

/** Links to the previous and the next variable or unit. */
export function siblings(number, total, href, noun) {
  const step = (to, text, id) =>
    to >= 0 && to < total
      ? element("a", { id, class: "button", href: href(to), "aria-label": `${noun} ${to}` }, text)
      : element("span", { class: "button off", "aria-hidden": "true" }, text);
  return element(
    "nav",
    { class: "siblings", "aria-label": `Other ${noun}s` },
    step(number - 1, "←", "sibling-before"),
    step(number + 1, "→", "sibling-after"),
  );
}
