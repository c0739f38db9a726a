/** All variables of a run, and the properties that the theorem predicts. */

import { explainedImage, get, link, withQuery } from "./api.js";
import { choice, disclosure, element, formulas, table } from "./dom.js";
import { isStarred, nameOf, titled } from "./notes.js";
import { skippedNote } from "./start.js";
import { arrowKeys, framed, pageOf, pager } from "./tiles.js";
import { capital, count, counted, decimal, percent, shown, spaced } from "./wording.js";

const PAGE = 48;

const ORDERS = {
  number: ["Number", (first, second) => first.variable - second.variable],
  meaning: ["Link to attributes", (first, second) => (second.meaning?.nmi ?? 0) - (first.meaning?.nmi ?? 0)],
  confidence: ["Confidence", (first, second) => second.mean_confidence - first.mean_confidence],
  entropy: ["Even use", (first, second) => second.entropy_bits - first.entropy_bits],
};

/** Which variables are listed: the words of the choice, and a test. */
const SHOWN = {
  all: ["all variables", () => true],
  starred: ["starred ones", (run, { variable, units }) => units.some((unit) => isStarred(run, variable, unit))],
  named: ["named ones", (run, { variable, units }) => units.some((unit) => nameOf(run, variable, unit))],
};

export async function variablesView({ run, query, hash, signal }) {
  const [{ variables }, skipped] = await Promise.all([
    get(`/api/runs/${run.id}/variables`, signal),
    skippedNote(signal),
  ]);
  const shownAs = SHOWN[query.get("show")] ? query.get("show") : "all";
  const order = ORDERS[query.get("order")] ? query.get("order") : "number";
  const attribute = query.get("attribute") ?? "";
  const listed = variables
    .filter((item) => !attribute || item.meaning?.attribute === attribute)
    .filter(({ variable, units }) =>
      SHOWN[shownAs][1](run, { variable, units: [null, ...Array(units).keys()] }),
    )
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
      skipped,
      starred(run),
      run.properties && properties(run.properties),
      element(
        "div",
        { class: "bar" },
        element("h2", {}, counted(listed.length, "variable")),
        controls({ variables, hash, order, attribute, shownAs }),
      ),
      element("p", { class: "hint" }, legend(variables)),
      meanings(variables),
      listed.length ? list : element("p", { class: "notice" }, NONE[shownAs]),
      pager(hash, page, PAGE, listed.length),
    ],
    tables: [overview(run, variables)],
  };
}

const NONE = {
  all: "No variable goes best with this attribute; choose another one above.",
  starred: "Nothing is starred yet. Open a variable or a unit and press ☆ beside its title; it is listed here from then on.",
  named: "Nothing has a name yet. Open a variable or a unit and press “Name…” beside its title.",
};

/** Links to everything starred, or null. */
function starred(run) {
  if (!run.notes.starred.length) return null;
  const chip = (place) => {
    const [variable, unit] = place.split(".").map(Number);
    const title = unit == null ? `Variable ${variable}` : `Unit ${place}`;
    const href = unit == null ? link.variable(run.id, variable) : link.unit(run.id, variable, unit);
    return element("li", {}, element("a", { class: "button", href }, `★ ${titled(title, run.notes.names[place])}`));
  };
  return element(
    "section",
    { class: "stack", "aria-labelledby": "starred" },
    element("h2", { id: "starred" }, "Starred"),
    element("ul", { class: "chips" }, run.notes.starred.map(chip)),
  );
}

function overview(run, variables) {
  return {
    name: "Variables",
    headings: ["variable", "name", "starred", "units", "unused units", "entropy in bits", "mean confidence", "best attribute", "NMI", "NMI by chance"],
    rows: variables.map((item) => [
      item.variable,
      nameOf(run, item.variable),
      isStarred(run, item.variable),
      item.units,
      item.dead_units,
      item.entropy_bits,
      item.mean_confidence,
      item.meaning?.attribute,
      item.meaning?.nmi,
      item.meaning?.baseline,
    ]),
  };
}

function facts(run, variables) {
  const units = run.units.reduce((sum, size) => sum + size, 0);
  const trained = run.epochs == null ? "" : ` for ${counted(run.epochs, "epoch")}`;
  return (
    `This encoder describes every image by a code: ${counted(variables.length, "question")}, called variables, each answered ` +
    `with one of its units (${count(units)} in total). Open a variable to see what its units stand for. ` +
    `Trained with ${run.method}${trained}; shown with ${counted(run.images, "image")} of ${run.data} (${run.split} split).`
  );
}

function legend(variables) {
  const attribute = variables.some((item) => item.meaning)
    ? "the attribute it goes with best (0: no link, 1: it tells the attribute exactly), "
    : "";
  return (
    "Each card shows the best image of the variable’s four most used units, " +
    `${attribute}how evenly its units are used, and how sure the encoder is on average.`
  );
}

function meanings(variables) {
  return formulas(
    "Evenly used: entropy of the shares p of images of the D units, −Σ p log p, divided by its largest value, log D.",
    "Sure: probability of the unit chosen, averaged over all images.",
    variables.some((item) => item.meaning) &&
      "Link to an attribute A: normalized mutual information of variable Z and A, NMI = 2 I(Z; A) / (H(Z) + H(A)).",
  );
}

/** The properties in words; the report and the details use their names. */
const PROMISES = {
  one_hot: ["Decided", "The encoder is sure of one unit of each variable."],
  equal_views: ["Stable", "Two views of an image get the same code."],
  even_units: ["Evenly used", "All units of a variable occur equally often."],
  even_pairs: ["Evenly combined", "All pairs of units of two variables occur equally often."],
  independent: ["Independent", "Variables do not repeat each other."],
};

function properties(rows) {
  const words = (row) => PROMISES[row.name] ?? [capital(spaced(row.name)), row.meaning];
  const boxes = rows.map((row) =>
    element(
      "li",
      { class: `property ${row.verdict.replaceAll(" ", "-")}` },
      element("h3", {}, words(row)[0]),
      element("p", { class: "verdict" }, capital(row.verdict)),
      element("p", { class: "measured" }, words(row)[1]),
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
    element("h2", { id: "theorem" }, "How good is the code?"),
    element("p", { class: "hint" }, "An ideal code has all of these properties; this is what was measured."),
    element("ul", { class: "properties" }, boxes),
    disclosure("Measured and predicted values", details),
  );
}

function controls({ variables, hash, order, attribute, shownAs }) {
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
    choice(
      "Show",
      "show",
      Object.entries(SHOWN).map(([name, [text]]) => [name, text]),
      shownAs,
      (value) => change({ show: value === "all" ? null : value }),
    ),
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
      element(
        "h3",
        {},
        isStarred(run, item.variable) && element("span", { class: "starred", title: "Starred" }, "★ "),
        titled(`Variable ${item.variable}`, nameOf(run, item.variable)),
      ),
      element(
        "span",
        { class: "about" },
        meaning && meaning.nmi > meaning.baseline
          ? `goes with ${spaced(meaning.attribute)} (${meaning.nmi.toFixed(2)})`
          : counted(item.units, "unit"),
      ),
      element(
        "span",
        { class: "about" },
        `${percent(item.units > 1 ? item.entropy_bits / Math.log2(item.units) : 1)} evenly used`,
      ),
      element("span", { class: "about" }, `${percent(item.mean_confidence)} sure`),
      item.dead_units > 0 &&
        element("span", { class: "about" }, `${counted(item.dead_units, "unit")} never used`),
    ),
  );
}
