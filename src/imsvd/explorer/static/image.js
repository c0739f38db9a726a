/** One image: its code, the evidence for each unit, and its neighbors with the units they share. */

import { explainedImage, get, link, uploadedImage, withQuery } from "./api.js";
import { choice, element, formulas, uniqueId } from "./dom.js";
import { isStarred, nameOf } from "./notes.js";
import { arrowKeys, framed, gallery, layMap, tile, whilePointedAt } from "./tiles.js";
import { count, counted, percent, shown, spaced } from "./wording.js";

const LARGE = 256;
const REASONS = 6;

export async function imageView({ run, image, query, hash, signal }) {
  const by = wayOf(query);
  const base = `/api/runs/${run.id}/images/${image}`;
  const [about, found] = await Promise.all([
    get(base, signal),
    get(`${base}/neighbors?by=${by}&count=12`, signal),
  ]);
  const picture = explainedImage(run, image);
  const stage = makeStage(
    run,
    picture,
    `Image ${image}${about.label == null ? "" : `, ${about.label}`}`,
  );
  const code = codeGrid(run, about.code, stage, query, hash);
  return {
    title: `Image ${image}`,
    content: [
      element("p", { class: "path" }, element("a", { href: link.images(run.id) }, "Images")),
      element("h1", { tabindex: "-1" }, `Image ${image}`),
      element("p", { class: "lead" }, LEAD),
      element(
        "div",
        { class: "split" },
        element("div", { class: "aside" }, stage.node, description(about)),
        element("div", {}, code.node),
      ),
      neighborSection({ run, picture, code, found, tabs: ways(hash, by) }),
    ],
    tables: tables(run, about.code, found),
  };
}

export async function uploadView({ run, upload, query, hash, signal }) {
  const by = wayOf(query);
  const answer = await get(`/api/runs/${run.id}/uploads/${upload}?by=${by}&count=12`, signal);
  const picture = uploadedImage(run, upload);
  const stage = makeStage(run, picture, "Your image");
  const code = codeGrid(run, answer.code, stage, query, hash);
  return {
    title: "Your image",
    content: [
      element("h1", { tabindex: "-1" }, "Your image"),
      element("p", { class: "lead" }, LEAD),
      element(
        "div",
        { class: "split" },
        element("div", { class: "aside" }, stage.node),
        element("div", {}, code.node),
      ),
      neighborSection({ run, picture, code, found: answer, tabs: ways(hash, by) }),
    ],
    tables: tables(run, answer.code, answer),
  };
}

const LEAD = "What the encoder says about this image: for each variable, the unit it chose. Open a unit to see other images with it.";

function tables(run, code, found) {
  return [
    {
      name: "Code",
      headings: ["variable", "variable name", "unit", "unit name", "confidence"],
      rows: code.map(({ variable, unit, confidence }) => [
        variable,
        nameOf(run, variable),
        unit,
        nameOf(run, variable, unit),
        confidence,
      ]),
    },
    {
      name: "Neighbors",
      headings: ["image", "label", "shared units", found.by === "features" ? "cosine of features" : "share of units"],
      rows: found.neighbors.map((item) => [item.image, item.label, item.shared_count, item.score]),
    },
  ];
}

/** What neighbors are compared by. */
const wayOf = (query) => (query.get("by") === "features" ? "features" : "code");

/** The large image, over which the evidence for a unit can be shown. */
function makeStage(run, picture, alt) {
  const frame = framed(picture, alt, LARGE, { eager: true });
  const caption = element("p", { class: "hint stage-caption" });
  const requested = [];
  let remove = () => {};
  const draw = () => {
    remove();
    const cell = requested.at(-1);
    remove = cell ? layMap(frame, picture, [cell.variable, cell.unit], LARGE) : () => {};
    caption.textContent = cell
      ? `Evidence for unit ${cell.unit} of variable ${cell.variable}${called(run, cell)} (${percent(cell.confidence)} sure).`
      : "Point at a unit of the code, or tap it, to see here which part of the image decided.";
  };
  draw();
  // One cell may have the focus while another is pointed at; the last one wins.
  const showUnit = (cell) => {
    requested.push(cell);
    draw();
    return () => {
      requested.splice(requested.lastIndexOf(cell), 1);
      draw();
    };
  };
  return { node: element("div", { class: "stage" }, frame, caption), showUnit };
}

/** ", stripes" for a unit of that name. */
function called(run, { variable, unit }) {
  const name = nameOf(run, variable, unit);
  return name && `, ${name}`;
}

function description(about) {
  const rows = [["file", about.name]];
  if (about.label != null) rows.push(["label", about.label]);
  for (const [name, value] of Object.entries(about.attributes ?? {})) {
    if (name !== "label") rows.push([spaced(name), shown(value)]);
  }
  return element(
    "dl",
    { class: "facts" },
    rows.map(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]),
  );
}

const ORDERS = {
  number: ["Variable", (first, second) => first.variable - second.variable],
  sure: ["How sure", (first, second) => second.confidence - first.confidence],
};

/** The code, one cell per variable; `mark` highlights the units that a neighbor shares. */
function codeGrid(run, code, stage, query, hash) {
  const order = ORDERS[query.get("order")] ? query.get("order") : "number";
  const cells = new Map();
  const sorted = [...code].sort(ORDERS[order][1]);
  for (const cell of sorted) {
    const anchor = element(
      "a",
      {
        class: "cell",
        href: link.unit(run.id, cell.variable, cell.unit),
        "aria-label": `Variable ${cell.variable}: unit ${cell.unit}${called(run, cell)}, ${percent(cell.confidence)} sure`,
        title: [nameOf(run, cell.variable), nameOf(run, cell.variable, cell.unit)].filter(Boolean).join(": ") || null,
        style: { "--confidence": cell.confidence.toFixed(3) },
      },
      element("span", { class: "cell-variable" }, String(cell.variable)),
      isStarred(run, cell.variable, cell.unit) && element("span", { class: "starred", "aria-hidden": "true" }, "★"),
      element("span", { class: "cell-unit" }, String(cell.unit)),
      called(run, cell) && element("span", { class: "cell-name" }, nameOf(run, cell.variable, cell.unit)),
    );
    whilePointedAt(anchor, () => stage.showUnit(cell));
    cells.set(`${cell.variable}/${cell.unit}`, anchor);
  }
  const list = element(
    "ul",
    { class: "code" },
    [...cells.values()].map((cell) => element("li", {}, cell)),
  );
  arrowKeys(list);
  const mark = (shared) => {
    const marked = shared
      .map(([variable, unit]) => cells.get(`${variable}/${unit}`))
      .filter(Boolean);
    marked.forEach((cell) => cell.classList.add("shared"));
    return () => {
      marked.forEach((cell) => cell.classList.remove("shared"));
    };
  };
  const node = element(
    "section",
    { "aria-labelledby": "code" },
    element(
      "div",
      { class: "bar" },
      element("h2", { id: "code" }, "Code"),
      choice(
        "Sort by",
        "order",
        Object.entries(ORDERS).map(([name, [text]]) => [name, text]),
        order,
        (value) => {
          location.hash = withQuery(hash, { order: value === "number" ? null : value });
        },
      ),
    ),
    element(
      "p",
      { class: "hint" },
      "One cell per variable: its number (small), the unit chosen (large), the unit’s name if it has one, and how sure the encoder is (bar).",
    ),
    list,
  );
  const confidences = new Map(code.map((cell) => [`${cell.variable}/${cell.unit}`, cell.confidence]));
  return { node, mark, confidences, variables: code.length };
}

function ways(hash, by) {
  const way = (name, text) =>
    element(
      "a",
      {
        id: `by-${name}`,
        class: "button",
        href: withQuery(hash, { by: name }),
        "aria-current": by === name ? "true" : null,
      },
      text,
    );
  return element(
    "div",
    { class: "tabs", role: "group", "aria-label": "Neighbors by" },
    way("code", "By code"),
    way("features", "By features"),
  );
}

function neighborSection({ run, picture, code, found, tabs }) {
  const reason = element("div", { class: "reason", id: uniqueId("reason"), hidden: true });
  const cards = found.neighbors.map((item) =>
    neighborCard({ run, picture, code, found, item, reason }),
  );
  const searched = found.searched ? ` ${counted(found.searched, "image")} searched.` : "";
  const explanation =
    found.by === "features"
      ? "The images whose features, the numbers behind the code, are most similar."
      : "The images that share the most units with this one.";
  return element(
    "section",
    { class: "neighbors", "aria-labelledby": "near" },
    element("div", { class: "bar" }, element("h2", { id: "near" }, "Neighbors"), tabs),
    element(
      "p",
      { class: "hint" },
      `${explanation}${searched} Point at a neighbor to highlight the shared units in the code; select the number below it to see their evidence.`,
    ),
    found.by === "features" &&
      formulas("Similarity: cosine of the angle between the feature vectors x and y of two images, x · y / (|x| |y|); 1 for equal directions."),
    cards.length
      ? gallery(cards, { label: "Neighbors" })
      : element("p", { class: "notice" }, "There are no other images. Explain the run with more images to see neighbors."),
    reason,
  );
}

function neighborCard({ run, picture, code, found, item, reason }) {
  const score = found.by === "features" ? `similarity ${item.score.toFixed(2)}` : null;
  const anchor = tile({ run, image: item.image, label: item.label, caption: item.label ?? score });
  whilePointedAt(anchor, () => code.mark(item.shared));
  const why = element(
    "button",
    {
      type: "button",
      class: "quiet why",
      "aria-label": `${item.shared_count} of ${code.variables} units shared with image ${item.image}: show them`,
      "aria-expanded": "false",
      "aria-controls": reason.id,
    },
    `${count(item.shared_count)} of ${count(code.variables)}`,
  );
  why.addEventListener("click", () => toggleReason({ run, picture, code, item, reason, why }));
  whilePointedAt(why, () => code.mark(item.shared));
  return element(
    "div",
    { class: "neighbor" },
    anchor,
    score && item.label != null && element("span", { class: "about" }, score),
    why,
  );
}

/** Opens or closes the panel with the units shared with one neighbor. */
function toggleReason({ run, picture, code, item, reason, why }) {
  const close = () => {
    reason.hidden = true;
    reason.replaceChildren();
    reason.parentElement
      .querySelectorAll(".why")
      .forEach((button) => button.setAttribute("aria-expanded", "false"));
  };
  const wasOpen = why.getAttribute("aria-expanded") === "true";
  close();
  if (wasOpen) return;
  reason.replaceChildren(...reasonContent({ run, picture, code, item }));
  reason.hidden = false;
  why.setAttribute("aria-expanded", "true");
  reason.onkeydown = why.onkeydown = (event) => {
    if (event.key !== "Escape" || reason.hidden) return;
    close();
    why.focus();
  };
  reason.scrollIntoView({ block: "nearest" });
}

/** The most confident shared units with their evidence in both images, then links to the rest. */
function reasonContent({ run, picture, code, item }) {
  const confidence = ([variable, unit]) => code.confidences.get(`${variable}/${unit}`) ?? 0;
  const shared = [...item.shared].sort((first, second) => confidence(second) - confidence(first));
  const other = explainedImage(run, item.image);
  const title = element("h3", {}, `Units shared with image ${item.image}`);
  if (!shared.length)
    return [
      title,
      element("p", { class: "hint" }, "The codes share no unit; only the features are similar."),
    ];
  const pairs = shared
    .slice(0, REASONS)
    .map(([variable, unit]) =>
      element(
        "li",
        {},
        element(
          "span",
          { class: "pair" },
          mapOf(picture, variable, unit, "this image"),
          mapOf(other, variable, unit, `image ${item.image}`),
        ),
        element(
          "a",
          { href: link.unit(run.id, variable, unit) },
          `variable ${variable}, unit ${unit}${called(run, { variable, unit })}`,
        ),
      ),
    );
  const rest = shared.slice(REASONS);
  return [
    title,
    element(
      "p",
      { class: "hint" },
      `${shared.length > REASONS ? `The ${REASONS} most confident of ${count(shared.length)} shared units` : counted(shared.length, "shared unit")}, with the evidence in this image (left) and in image ${item.image} (right).`,
    ),
    element("ul", { class: "pairs" }, pairs),
    rest.length > 0 &&
      element(
        "p",
        { class: "rest" },
        "Also: ",
        rest.map(([variable, unit], place) => [
          place ? ", " : "",
          element("a", { href: link.unit(run.id, variable, unit) }, `${variable} → ${unit}`),
        ]),
        " (variable → unit).",
      ),
  ].filter(Boolean);
}

function mapOf(picture, variable, unit, where) {
  return element(
    "span",
    { class: "frame" },
    element("img", {
      src: picture.map(variable, unit, 128),
      alt: `Evidence for unit ${unit} of variable ${variable} in ${where}`,
      width: 80,
      height: 80,
      loading: "lazy",
      decoding: "async",
    }),
  );
}
