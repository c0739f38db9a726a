/** All variables of a run, and the properties that the theorem predicts. */

import { explainedImage, get, link, withQuery } from "./api.js";
import { choice, disclosure, element, table } from "./dom.js";
import { arrowKeys, framed, pageOf, pager } from "./tiles.js";
import { capital, count, counted, decimal, percent, shown, spaced } from "./wording.js";

const PAGE = 48;

const ORDERS = {
  number: ["Number", (first, second) => first.variable - second.variable],
  meaning: ["NMI", (first, second) => (second.meaning?.nmi ?? 0) - (first.meaning?.nmi ?? 0)],
  confidence: ["Confidence", (first, second) => second.mean_confidence - first.mean_confidence],
  entropy: ["Entropy", (first, second) => second.entropy_bits - first.entropy_bits],
};

export async function variablesView({ run, query, hash, signal }) {
  const { variables } = await get(`/api/runs/${run.id}/variables`, signal);
  const order = ORDERS[query.get("order")] ? query.get("order") : "number";
  const attribute = query.get("attribute") ?? "";
  const listed = variables
    .filter((item) => !attribute || item.meaning?.attribute === attribute)
    .sort(ORDERS[order][1]);
  const page = pageOf(query, PAGE, listed.length);
  const cards = listed.slice(page * PAGE, (page + 1) * PAGE).map((item) => card(run, item));
  const list = element("ul", { class: "cards" }, cards);
  arrowKeys(list);
  return {
    title: "Variables",
    content: [
      element("h1", { tabindex: "-1" }, run.name),
      element("p", { class: "lead" }, facts(run, variables)),
      run.properties && properties(run.properties),
      element(
        "div",
        { class: "bar" },
        element("h2", {}, counted(listed.length, "variable")),
        controls(variables, hash, order, attribute),
      ),
      element("p", { class: "hint" }, legend(variables)),
      listed.length
        ? list
        : element("p", { class: "notice" }, "No variable has its highest NMI with this attribute; choose another."),
      pager(hash, page, PAGE, listed.length),
    ],
  };
}

function facts(run, variables) {
  const units = run.units.reduce((sum, size) => sum + size, 0);
  const trained = run.epochs == null ? "" : ` for ${counted(run.epochs, "epoch")}`;
  return (
    `Trained with ${run.method}${trained}; explained with ${counted(run.images, "image")} ` +
    `(${run.data}, ${run.split} split). The code of an image has ` +
    `${counted(variables.length, "variable")}; each selects one of its units, ${count(units)} in total.`
  );
}

function legend(variables) {
  const attribute = variables.some((item) => item.meaning)
    ? "the attribute with the highest normalized mutual information (NMI, at most 1), "
    : "";
  return (
    "Each card shows the best image of the variable’s four most used units, " +
    `${attribute}the entropy and the mean confidence.`
  );
}

function properties(rows) {
  const boxes = rows.map((row) =>
    element(
      "li",
      { class: `property ${row.verdict.replaceAll(" ", "-")}` },
      element("h3", {}, capital(spaced(row.name))),
      element("p", { class: "verdict" }, capital(row.verdict)),
      element("p", { class: "measured" }, `${decimal(row.measured)} (predicted ${shown(row.ideal)})`),
    ),
  );
  const details = () =>
    table(
      "By chance: value expected by chance at this sample size and confidence, if the property held",
      ["Property", "Measured as", "Measured", "Predicted", "By chance", "Verdict"],
      rows.map((row) => [
        capital(spaced(row.name)),
        row.meaning,
        shown(row.measured),
        shown(row.ideal),
        shown(row.floor),
        row.verdict,
      ]),
      { numeric: false },
    );
  return element(
    "section",
    { "aria-labelledby": "theorem" },
    element("h2", { id: "theorem" }, "Theorem properties: predicted vs. measured"),
    element("ul", { class: "properties" }, boxes),
    disclosure("How they are measured", details),
  );
}

function controls(variables, hash, order, attribute) {
  const change = (changes) => {
    location.hash = withQuery(hash, { page: null, ...changes });
  };
  const known = [...new Set(variables.map((item) => item.meaning?.attribute).filter(Boolean))];
  const orders = Object.entries(ORDERS)
    .filter(([name]) => name !== "meaning" || known.length)
    .map(([name, [text]]) => [name, text]);
  return element(
    "div",
    { class: "controls" },
    choice("Sort by", "order", orders, order, (value) =>
      change({ order: value === "number" ? null : value }),
    ),
    known.length > 1 &&
      choice(
        "Best attribute",
        "attribute",
        [["", "all"], ...known.sort().map((name) => [name, spaced(name)])],
        attribute,
        (value) => change({ attribute: value || null }),
      ),
  );
}

function card(run, item) {
  const { meaning } = item;
  return element(
    "li",
    {},
    element(
      "a",
      { class: "card", href: link.variable(run.id, item.variable) },
      element(
        "span",
        { class: "preview" },
        item.preview.map((image) => framed(explainedImage(run, image), "", 64)),
      ),
      element("h3", {}, `Variable ${item.variable}`),
      element(
        "span",
        { class: "about" },
        meaning && meaning.nmi > meaning.baseline
          ? `${spaced(meaning.attribute)}: ${meaning.nmi.toFixed(2)}`
          : counted(item.units, "unit"),
      ),
      element(
        "span",
        { class: "about" },
        `${item.entropy_bits.toFixed(1)} of ${Math.log2(item.units).toFixed(1)} bits`,
      ),
      element("span", { class: "about" }, `${percent(item.mean_confidence)} confidence`),
      item.dead_units > 0 &&
        element("span", { class: "about" }, counted(item.dead_units, "dead unit")),
    ),
  );
}
