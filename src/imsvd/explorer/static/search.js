/** Search in an index: a query, images to be like or unlike, results with reasons, lists to save. */

import { allOf, download, get, indexedImage, link, Refusal, written } from "./api.js";
import { combobox } from "./combobox.js";
import { announce, element } from "./dom.js";
import { facetPanel } from "./facets.js";
import { arrowKeys, framed, pageOf, pager } from "./tiles.js";
import { count, counted } from "./wording.js";

const PAGE = 60;
const selections = new Map();

/** The images of an index that the user has selected. */
function selectionOf(index) {
  if (!selections.has(index.key)) selections.set(index.key, new Set());
  return selections.get(index.key);
}

export async function searchView({ index, query, hash, signal }) {
  const page = pageOf(query, PAGE);
  const [like, unlike] = ["like", "unlike"].map((name) => query.getAll(name).filter((text) => /^\d+$/.test(text)));
  const wanted = { q: query.get("q") ?? "", like, unlike };
  let answer = null;
  let mistake = null;
  try {
    const asked = written({ ...wanted, offset: page * PAGE, count: PAGE });
    answer = await get(`/api/indexes/${index.id}/search${asked}`, signal);
  } catch (error) {
    if (!(error instanceof Refusal && "position" in error.details)) throw error;
    mistake = error;
  }
  const panel = answer?.total
    ? await facetPanel({ index, query: wanted.q, others: { like, unlike }, signal })
    : null;
  return {
    title: wanted.q ? `Search for ${wanted.q}` : "Search",
    content: [
      element("h1", { tabindex: "-1" }, "Search"),
      form(index, wanted, mistake),
      mistake && mistaken(mistake),
      answer && examples(index, wanted, answer),
      answer && element("div", { class: "split" }, panel, results({ index, wanted, answer, page, hash })),
    ],
    tables: answer?.total ? [imageTable(index, wanted)] : [],
  };
}

function imageTable(index, wanted) {
  return {
    name: "Images found",
    headings: ["rank", "path", "score", "reasons", "state"],
    rows: async () => {
      const items = await allOf(`/api/indexes/${index.id}/search${written(wanted)}`, "items");
      return items.map((item, place) => [place + 1, item.path, item.score, item.reasons.join(", "), item.state]);
    },
  };
}

function form(index, wanted, mistake) {
  const { input, list, close } = combobox(`/api/indexes/${index.id}/completions`, {
    id: "query",
    value: wanted.q,
    placeholder: "12.3 & !label:cat",
    "aria-describedby": mistake ? "mistake query-hint" : "query-hint",
    "aria-invalid": mistake ? "true" : null,
  });
  return element(
    "form",
    {
      class: "search",
      role: "search",
      on: {
        submit: (event) => {
          event.preventDefault();
          close();
          location.hash = link.search(index.id, { ...wanted, q: input.value.trim() });
        },
      },
    },
    element("label", { for: "query" }, `Find images in ${index.name}`),
    element("div", { class: "field" }, input, list),
    element("button", { type: "submit" }, "Search"),
    element(
      "p",
      { class: "hint", id: "query-hint" },
      "Write units such as 12.3 (unit 3 of variable 12), names that you have given, and labels such as label:cat. Join them with & (and), | (or), ! (not) and parentheses; 12.3>0.9 asks for images that are more than 90% sure. Press ↓ for suggestions.",
    ),
  );
}

/** Where a query stops making sense. */
function mistaken({ message, details }) {
  const sentence = message.charAt(0).toUpperCase() + message.slice(1);
  return element(
    "div",
    { class: "notice refusal mistake", role: "alert", id: "mistake" },
    element("p", {}, sentence),
    element("pre", { "aria-hidden": "true" }, details.pointed),
  );
}

/** The images that results shall be like or unlike, each with a link that removes it. */
function examples(index, wanted, answer) {
  const groups = [
    ["like", "Like", answer.like],
    ["unlike", "Unlike", answer.unlike],
  ].filter(([, , images]) => images.length);
  if (!groups.length) return null;
  const without = (name, image) => wanted[name].filter((other) => Number(other) !== image);
  return element(
    "ul",
    { class: "examples", "aria-label": "Images to compare with" },
    groups.flatMap(([name, word, images]) =>
      images.map((item) =>
        element(
          "li",
          {},
          framed(indexedImage(index, item.image), "", 48, { eager: true }),
          element("span", {}, `${word} ${item.name}`),
          element(
            "a",
            {
              class: "button",
              href: link.search(index.id, { ...wanted, [name]: without(name, item.image) }),
              "aria-label": `Remove ${item.name}`,
            },
            "Remove",
          ),
        ),
      ),
    ),
  );
}

function results({ index, wanted, answer, page, hash }) {
  const heading = element("h2", { id: "found" }, found(wanted, answer));
  if (!answer.items.length)
    return element(
      "section",
      { class: "stack", "aria-labelledby": "found" },
      heading,
      element("p", { class: "notice" }, nothing(answer)),
      element("p", {}, element("a", { href: link.search(index.id) }, "Show all images")),
    );
  const list = element(
    "ul",
    { class: "results", "aria-labelledby": "found" },
    answer.items.map((item, place) => result(index, wanted, item, place < 12)),
  );
  arrowKeys(list);
  return element(
    "section",
    { class: "stack", "aria-labelledby": "found" },
    heading,
    saving({ index, wanted, answer, list }),
    list,
    pager(hash, page, PAGE, answer.shown),
    answer.shown < answer.total &&
      element("p", { class: "hint" }, `Pages show the best ${count(answer.shown)} images.`),
  );
}

function found({ q, like, unlike }, { total }) {
  if (like.length || unlike.length) return `${counted(total, "image")}, most alike first`;
  return q ? `${counted(total, "image")} found, most confident first` : `All ${counted(total, "image")}`;
}

function nothing({ total }) {
  return total
    ? "This page is empty; go back to an earlier one."
    : "No image has all of this. Remove a term, or write | instead of & to find images with any of them.";
}

/** An image found, its reasons, and what can be done with it; its picture leads to similar images. */
function result(index, wanted, item, eager) {
  const selection = selectionOf(index);
  const id = `select-${item.image}`;
  const box = element("input", { type: "checkbox", id, "data-image": item.image });
  box.checked = selection.has(item.image);
  const to = (name) =>
    link.search(index.id, { ...wanted, [name]: [...new Set([...wanted[name], String(item.image)])] });
  return element(
    "li",
    { class: "result" },
    element(
      "a",
      { class: "tile", href: to("like"), title: item.path, "aria-label": `Like this: ${item.name}` },
      item.state === "deleted"
        ? element("span", { class: "frame missing" }, "File deleted")
        : framed(indexedImage(index, item.image), "", 128, { eager }),
    ),
    element(
      "label",
      { class: "choice", for: id },
      box,
      element("span", { class: "result-name" }, item.name),
    ),
    item.state === "changed" &&
      element("p", { class: "about" }, "Changed since it was indexed."),
    item.reasons.length > 0 && element("p", { class: "about reasons" }, item.reasons.join(", ")),
    element(
      "p",
      { class: "about examples-of" },
      element("a", { href: to("like"), tabindex: "-1", "aria-hidden": "true" }, "Like this"),
      element("a", { href: to("unlike"), "aria-label": `Unlike this: ${item.name}` }, "Unlike this"),
    ),
  );
}

/** Buttons that save what was found or selected as a list of paths. */
function saving({ index, wanted, answer, list }) {
  const selection = selectionOf(index);
  const likeness = wanted.like.length || wanted.unlike.length;
  const all = likeness ? answer.shown : answer.total;
  const chosen = element("button", { type: "button", id: "save-selected" });
  const clear = element("button", { type: "button", id: "clear-selection" }, "Clear selection");
  const problem = element("p", { class: "hint", role: "alert" });
  const draw = () => {
    chosen.textContent = `Save ${count(selection.size)} selected`;
    chosen.hidden = clear.hidden = !selection.size;
  };
  const save = async (body) => {
    problem.textContent = "";
    try {
      await download(`/api/indexes/${index.id}/list`, body, `${index.name.replace(/\.index$/, "")}-images.txt`);
      announce("The list was saved.");
    } catch (error) {
      problem.textContent = error.message;
    }
  };
  const [like, unlike] = [wanted.like, wanted.unlike].map((images) => images.map(Number));
  list.addEventListener("change", ({ target }) => {
    const image = Number(target.dataset.image);
    if (target.checked) selection.add(image);
    else selection.delete(image);
    draw();
  });
  chosen.addEventListener("click", () => save({ images: [...selection] }));
  clear.addEventListener("click", () => {
    selection.clear();
    list.querySelectorAll("input").forEach((box) => (box.checked = false));
    draw();
    document.getElementById("save-found")?.focus();
  });
  draw();
  return element(
    "div",
    { class: "controls" },
    element(
      "button",
      { type: "button", id: "save-found", on: { click: () => save({ query: wanted.q, like, unlike }) } },
      `Save list of ${counted(all, "path")}`,
    ),
    chosen,
    clear,
    problem,
  );
}
