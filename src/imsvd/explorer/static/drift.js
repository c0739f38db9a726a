/** Drift: two sets of images compared, what moved, and images that show it. */

import { indexedImage, link, Refusal, written } from "./api.js";
import { choice, disclosure, element, formulas, table } from "./dom.js";
import { framed } from "./tiles.js";
import { resultOf } from "./waiting.js";
import { capital, count, percent } from "./wording.js";

export async function driftView({ index, indexes, query, signal, reload }) {
  const asked = {
    second: Number(query.get("second") ?? index.id),
    a: query.get("a") ?? "",
    b: query.get("b") ?? "",
    looks: query.get("looks") === "true",
  };
  const other = indexes.find((item) => item.id === asked.second);
  if (!other) throw new Error("One of these indexes does not exist; choose a view above.");
  const frame = (...content) => ({
    title: "Drift",
    content: [
      element("h1", { tabindex: "-1" }, "Drift"),
      element("p", { class: "lead" }, "Has something changed between two sets of images, such as last month’s and this month’s? Choose them to see what became more or less frequent."),
      form(index, indexes, asked),
      ...content,
    ],
  });
  if (other.id === index.id && asked.a === asked.b) return frame(nothingYet(index));
  const path = `/api/drift${written({ first: index.id, ...asked })}`;
  try {
    const { answer, bar } = await resultOf(path, "Comparing the two sets…", { signal, reload });
    if (!answer) return frame(bar);
    const sets = names([index, other], asked);
    return { ...frame(...result(answer, [index, other], sets)), tables: [variableTable(answer, sets)] };
  } catch (error) {
    if (!(error instanceof Refusal)) throw error;
    return frame(element("p", { class: "notice", role: "alert" }, capital(error.message)));
  }
}

/** What to do before two different sets are chosen, with an example that works. */
function nothingYet(index) {
  const [one, two] = index.splits;
  return element(
    "p",
    { class: "notice" },
    "Choose two sets to compare: two indexes, or two queries for one index. ",
    two && element("a", { href: link.drift(index.id, { a: `split:${one}`, b: `split:${two}` }) }, `Compare ${one} with ${two}`),
    !two && "To compare with another index, start the explorer with both: imsvd explore A.index B.index.",
  );
}

function variableTable(answer, sets) {
  return {
    name: "Variables",
    headings: ["variable", "most changed unit", ...sets.map((name) => `share in ${name}`), "moved", "p-value"],
    rows: answer.variables.map((row) => [row.variable, row.unit, row.before, row.after, row.moved, row.p_value]),
  };
}

function names([first, second], { a, b }) {
  const named = (index, query) => query || index.name;
  const both = [named(first, a), named(second, b)];
  return both[0] === both[1] ? [first.path, second.path] : both;
}

function form(index, indexes, asked) {
  const options = indexes.map((item) => [item.id, item.name]);
  let second = asked.second;
  const field = (id, label, value) =>
    element(
      "label",
      { class: "choice", for: id },
      element("span", {}, label),
      element("input", { id, type: "text", value, placeholder: "all images", autocomplete: "off", spellcheck: "false" }),
    );
  const looks = element("input", { type: "checkbox", id: "looks" });
  looks.checked = asked.looks;
  const made = element(
    "form",
    {
      class: "stack sets",
      on: {
        submit: (event) => {
          event.preventDefault();
          const [a, b] = ["set-a", "set-b"].map((id) => made.querySelector(`#${id}`).value.trim());
          location.hash = link.drift(index.id, { second, a, b, looks: looks.checked || null });
        },
      },
    },
    element(
      "div",
      { class: "controls" },
      field("set-a", `First set: query in ${index.name}`, asked.a),
      indexes.length > 1 && choice("Second index", "second-index", options, second, (id) => (second = Number(id))),
      field("set-b", "Second set: query", asked.b),
    ),
    element(
      "div",
      { class: "controls" },
      element("label", { class: "choice", for: "looks" }, looks, "Also compare light, color and sharpness (reads up to 2,000 images of each set)"),
      element("button", { type: "submit" }, "Compare"),
    ),
  );
  return made;
}

function result(answer, indexes, [before, after]) {
  const sizes = answer.images.map(count);
  return [
    element("p", { class: answer.drifted ? "notice refusal" : "notice", id: "verdict" }, answer.verdict),
    element("p", { class: "lead" }, `${sizes[0]} images in ${before}, ${sizes[1]} in ${after}.`),
    answer.note && answer.note !== "only codes were asked for" && element("p", { class: "hint" }, `The looks of images were not compared: ${answer.note}.`),
    answer.moved.length > 0 &&
      element(
        "section",
        { class: "stack", "aria-labelledby": "moved" },
        element("h2", { id: "moved" }, "What moved"),
        answer.moved_count > answer.moved.length &&
          element("p", { class: "hint" }, `The first ${answer.moved.length} of ${count(answer.moved_count)} variables.`),
        answer.moved.map((shift) => variable(shift, indexes, [before, after])),
      ),
    typical(answer, indexes, [before, after]),
    disclosure("All variables with their p-values", () => table(
      "All variables, smallest p-value first",
      ["Variable", "Most changed unit", before, after, "Moved", "p"],
      answer.variables.map((row) => [
        row.variable,
        row.unit,
        percent(row.before),
        percent(row.after),
        percent(row.moved),
        row.p_value.toPrecision(2),
      ]),
    )),
    formulas(
      "Moved: half the sum of the differences of the shares of all units, ½ Σ |p − p′|.",
      "p-value: how often chance alone would make two sets of one population differ as much; a small one speaks for a change.",
    ),
  ];
}

function variable(shift, indexes, sets) {
  const title = shift.family === "codes" ? `Variable ${shift.name}` : capital(shift.name);
  return element(
    "section",
    { class: "stack" },
    element("h3", {}, `${title}: ${percent(shift.moved)} of images moved`),
    shift.units.filter((unit) => unit.examples.length).map((unit) => unitRow(unit, shift.family, indexes, sets)),
  );
}

/** A unit, its shares in both sets, and images that show the change, from the set with more of it. */
function unitRow(unit, family, indexes, sets) {
  const index = indexes[Number(unit.gained)];
  const text = [unit.name, unit.given_name].filter(Boolean).join(" ");
  return element(
    "div",
    { class: "unit-row" },
    element(
      "div",
      { class: "unit-head" },
      element("h4", {}, family === "codes" ? element("a", { href: link.search(index.id, { q: unit.name }) }, text) : text),
      element("p", { class: "about" }, `${percent(unit.before)} → ${percent(unit.after)}`),
      element("p", { class: "about" }, `Images in ${sets[Number(unit.gained)]}`),
    ),
    strip(index, unit.examples),
  );
}

function strip(index, images) {
  return element(
    "ul",
    { class: "gallery small" },
    images.map((image) =>
      element(
        "li",
        {},
        element(
          "a",
          { class: "tile", href: link.search(index.id, { like: image }) },
          framed(indexedImage(index, image), `Image ${image}`, 64),
        ),
      ),
    ),
  );
}

function typical(answer, indexes, sets) {
  return element(
    "section",
    { class: "stack", "aria-labelledby": "typical" },
    element("h2", { id: "typical" }, "Images typical of one set only"),
    !answer.drifted && element("p", { class: "hint" }, "No drift was found, so these differences may be chance."),
    answer.typical.map((images, side) => [
      element("h3", {}, sets[side]),
      strip(indexes[side], images),
    ]),
  );
}
