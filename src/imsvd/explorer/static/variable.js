/** One variable: its meaning, the variables it depends on, and the best images of its units. */

import { get, link, withQuery } from "./api.js";
import { bars } from "./chart.js";
import { choice, element } from "./dom.js";
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

export async function variableView({ run, variable, query, hash, signal }) {
  const answer = await get(`/api/runs/${run.id}/variables/${variable}`, signal);
  const order = ORDERS[query.get("order")] ? query.get("order") : "use";
  const units = [...answer.units].sort(ORDERS[order][1]);
  const page = pageOf(query, PAGE, units.length);
  const rows = units
    .slice(page * PAGE, (page + 1) * PAGE)
    .map((unit) => unitRow(run, variable, unit));
  return {
    title: `Variable ${variable}`,
    content: [
      element("p", { class: "path" }, element("a", { href: link.variables(run.id) }, "Variables")),
      element(
        "div",
        { class: "bar" },
        element("h1", { tabindex: "-1" }, `Variable ${variable}`),
        siblings(variable, run.units.length, (other) => link.variable(run.id, other), "variable"),
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
        { class: "hint" },
        "The images with the highest confidence for each unit. Point at one, or tap it, to see where the evidence is.",
      ),
      rows,
      pager(hash, page, PAGE, units.length),
    ],
  };
}

function unitRow(run, variable, unit) {
  const title = `Unit ${unit.unit}`;
  return element(
    "section",
    { class: "unit-row", "aria-label": title },
    element(
      "div",
      { class: "unit-head" },
      element("h3", {}, element("a", { href: link.unit(run.id, variable, unit.unit) }, title)),
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
      : element("p", { class: "hint" }, "No images to show."),
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
    element("h2", { id: "tells" }, "Meaning"),
    list.length
      ? bars(
          list.map((item) => ({
            name: spaced(item.attribute),
            value: item.nmi,
            text: `${item.nmi.toFixed(2)} (chance ${item.baseline.toFixed(2)})`,
          })),
          { most: 1 },
        )
      : element("p", { class: "hint" }, run.parts.includes("meaning")
            ? "These images have no labels or attributes."
            : `Not measured yet. Run: ${run.command} --only meaning`),
    list.length > 0 &&
      element(
        "p",
        { class: "hint" },
        "Normalized mutual information (NMI) with the attributes of the images, at most 1. Chance: the NMI of unrelated values with this number of images.",
      ),
  );
}

function dependent(run, variable, list, units) {
  return element(
    "section",
    { "aria-labelledby": "depends" },
    element("h2", { id: "depends" }, "Most dependent variables"),
    list.length
      ? bars(
          list.map((item) => ({
            name: `variable ${item.variable}`,
            href: link.dependence(run.id, variable, item.variable),
            value: item.nats,
            text: `${decimal(item.nats)} nats`,
          })),
          { most: Math.log(units) },
        )
      : element(
          "p",
          { class: "hint" },
          run.parts.includes("joint")
            ? "There are no other variables."
            : `Not measured yet. Run: ${run.command} --only joint`,
        ),
    list.length > 0 &&
      element(
        "p",
        { class: "hint" },
        `Mutual information, at most ln ${units} = ${decimal(Math.log(units))} nats. Open one to see which units occur together.`,
      ),
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
