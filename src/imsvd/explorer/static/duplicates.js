/** Duplicates, one group at a time: which copies to keep, by pointer or by keys. */

import { allOf, download, indexedImage, link, withQuery, written } from "./api.js";
import { announce, choice, element } from "./dom.js";
import { framed } from "./tiles.js";
import { resultOf } from "./waiting.js";
import { count, counted, percent } from "./wording.js";

const PAGE = 20;
const LONGEST = 50;

export async function duplicatesView({ index, query, hash, signal, reload }) {
  const asked = Object.fromEntries(["first", "second", "within", "cosine"].map((name) => [name, query.get(name) ?? ""]));
  const wanted = Math.max(0, Number.parseInt(query.get("group") ?? "1", 10) - 1 || 0);
  const offset = wanted - (wanted % PAGE);
  const path = `/api/indexes/${index.id}/duplicates${written({ ...asked, offset, count: PAGE })}`;
  const { answer, bar } = await resultOf(path, "Searching for duplicates…", { signal, reload });
  const frame = (...content) => ({
    title: "Duplicates",
    tables: answer?.total ? [groupTable(index, asked)] : [],
    content: [
      element(
        "div",
        { class: "bar" },
        element("h1", { tabindex: "-1" }, "Duplicates"),
        scope(index, asked),
        limits(index, asked),
      ),
      ...content,
    ],
  });
  if (!answer) return frame(bar);
  const group = answer.groups[wanted - offset];
  const lead = element("p", { class: "lead" }, summary(answer));
  if (!group) return frame(lead, element("p", { class: "notice" }, empty(answer, asked)));
  const marks = marksOf(index, asked);
  return frame(lead, groupSection({ index, asked, answer, group, marks, hash, signal }));
}

function groupTable(index, asked) {
  return {
    name: "Groups",
    headings: ["group", "image", "path", "suggested to keep", "kind", "likeness", "bytes"],
    rows: async () => {
      const groups = await allOf(`/api/indexes/${index.id}/duplicates${written(asked)}`, "groups", LONGEST);
      return groups.flatMap(({ group, copies }) =>
        copies.map((copy) => [group + 1, copy.image, copy.path, copy.keep, copy.kind, copy.likeness, copy.bytes]),
      );
    },
  };
}

function summary({ total, copies, distance, wanted_distance, cosine, changed }) {
  const shorter = distance < wanted_distance ? ` (${wanted_distance} would take too long)` : "";
  const alike = cosine == null ? "" : ` and their features are at least ${cosine.toFixed(2)} alike (1: the same)`;
  const outdated = changed ? ` Left out: ${counted(changed, "image")} changed since; update the index with imsvd add.` : "";
  const found = `${counted(total, "group")} with ${counted(copies, "image")}.${outdated}`;
  if (distance < 0) return `${found} Files are equal; codes alone do not tell other copies from similar images here.`;
  return `${found} Files are equal, or codes differ in at most ${counted(distance, "variable")}${shorter}${alike}.`;
}

function empty({ total }, { first }) {
  if (total) return "There is no such group; choose another.";
  return first
    ? "No image of one part has a copy in the other; nothing leaks."
    : "No duplicates were found; nothing has to be removed. To find images that are less alike, let more variables differ.";
}

/** All images, or only duplicates between two splits. */
function scope(index, asked) {
  const { first, second } = asked;
  if (index.splits.length < 2) return null;
  const pairs = index.splits.flatMap((one, place) => index.splits.slice(place + 1).map((two) => [one, two]));
  const options = [
    ["", "all images"],
    ...pairs.map(([one, two]) => [`${one}\n${two}`, `between ${one} and ${two}`]),
  ];
  return choice("Search", "scope", options, first ? `${first}\n${second}` : "", (value) => {
    const [one = "", two = ""] = value.split("\n");
    location.hash = link.duplicates(index.id, { ...asked, first: one, second: two });
  });
}

/** Fields for what counts as a copy; an empty one stands for the limit measured when the index was made. */
function limits(index, asked) {
  const field = (name, label, range) => {
    const changed = () => {
      if (input.reportValidity()) location.hash = link.duplicates(index.id, { ...asked, [name]: input.value });
    };
    const input = element("input", { id: name, type: "number", value: asked[name], placeholder: "auto", ...range, on: { change: changed } });
    return element("label", { class: "choice", for: name }, element("span", {}, label), input);
  };
  return [
    field("within", "Variables that may differ", { min: "0", max: String(Math.min(64, index.units.length)), step: "1" }),
    index.features && field("cosine", "Least likeness of features", { min: "-1", max: "1", step: "any" }),
  ];
}

/** The images to keep of every group that the user has changed; they stay in this browser. */
function marksOf(index, { first, second, within, cosine }) {
  const name = `imsvd ${index.key} ${first} ${second} ${within} ${cosine}`.trimEnd();
  let marks = {};
  try {
    marks = JSON.parse(localStorage.getItem(name)) ?? {};
  } catch {
    // Storage is switched off or full: the marks last as long as the page.
  }
  return {
    all: marks,
    kept: (group) =>
      new Set(marks[group.group] ?? group.copies.filter((copy) => copy.keep).map((copy) => copy.image)),
    set: (group, images) => {
      marks[group.group] = [...images];
      try {
        localStorage.setItem(name, JSON.stringify(marks));
      } catch {
        // As above.
      }
    },
  };
}

function groupSection({ index, asked, answer, group, marks, hash, signal }) {
  const kept = marks.kept(group);
  const boxes = group.copies.map((copy) => element("input", { type: "checkbox", id: `keep-${copy.image}` }));
  const draw = () => boxes.forEach((box, place) => (box.checked = kept.has(group.copies[place].image)));
  const toggle = (place) => {
    const { image } = group.copies[place];
    if (!kept.delete(image)) kept.add(image);
    marks.set(group, kept);
    draw();
    announce(`Copy ${place + 1} ${kept.has(image) ? "is kept" : "is redundant"}.`);
  };
  boxes.forEach((box, place) => box.addEventListener("change", () => toggle(place)));
  draw();
  const to = (number) => withQuery(hash, { group: number + 1 });
  const step = (number, text, id) =>
    number >= 0 && number < answer.total
      ? element("a", { id, class: "button", href: to(number) }, text)
      : element("span", { class: "button off" }, text);
  keys(signal, {
    ArrowRight: () => group.group + 1 < answer.total && (location.hash = to(group.group + 1)),
    ArrowLeft: () => group.group > 0 && (location.hash = to(group.group - 1)),
    digit: (place) => place < boxes.length && toggle(place),
  });
  return element(
    "section",
    { class: "stack", "aria-labelledby": "group" },
    element(
      "div",
      { class: "bar" },
      element("h2", { id: "group" }, `Group ${count(group.group + 1)} of ${count(answer.total)}`),
      element(
        "nav",
        { class: "siblings", "aria-label": "Groups" },
        step(group.group - 1, "← Previous", "group-before"),
        step(group.group + 1, "Next →", "group-after"),
      ),
    ),
    element("p", { class: "hint" }, "Keys: ← and → for the previous and the next group, 1 to 9 to keep a copy or not."),
    element(
      "ol",
      { class: "results" },
      group.copies.map((copy, place) => copyItem(index, asked, copy, boxes[place], place)),
    ),
    group.size > group.copies.length &&
      element("p", { class: "hint" }, `${count(group.size - group.copies.length)} more images of this group are not shown; unless you change its marks, they count as redundant.`),
    lists(index, asked, marks),
  );
}

/** Calls functions for arrows and digits until the page is left, except while text is typed. */
function keys(signal, actions) {
  const pressed = (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("select, input[type=text], input[type=number]")) return;
    if (/^[1-9]$/.test(event.key)) actions.digit(Number(event.key) - 1);
    else actions[event.key]?.();
  };
  document.addEventListener("keydown", pressed, { signal });
}

function copyItem(index, asked, copy, box, place) {
  const alike = copy.kind === "exact" ? "same file" : `likeness ${percent(copy.likeness)}`;
  const name = copy.path.split("/").at(-1);
  return element(
    "li",
    { class: "result copy" },
    copy.state === "deleted"
      ? element("span", { class: "frame missing" }, "File deleted")
      : framed(indexedImage(index, copy.image), `Copy ${place + 1}`, 128, { eager: true }),
    element("label", { class: "choice", for: box.id }, box, element("span", { class: "result-name" }, `${place + 1}: keep ${name}`)),
    element(
      "p",
      { class: "about reasons" },
      [copy.keep ? "suggested to keep" : alike, `${count(copy.bytes)} bytes`, asked.first && [asked.first, asked.second][copy.side]]
        .filter(Boolean)
        .join(", "),
    ),
    element("p", { class: "about reasons" }, copy.path),
  );
}

function lists(index, { first, second, within, cosine }, marks) {
  const number = (text) => (text === "" ? null : Number(text));
  const problem = element("p", { class: "hint", role: "alert" });
  const save = async (what) => {
    problem.textContent = "";
    const wanted = { what, first, second, within: number(within), cosine: number(cosine), marks: marks.all };
    try {
      await download(`/api/indexes/${index.id}/duplicates/list`, wanted, `${index.name.replace(/\.index$/, "")}-${what}.txt`);
      announce("The list was saved.");
    } catch (error) {
      problem.textContent = error.message;
    }
  };
  const button = (what, text) =>
    element("button", { type: "button", id: `save-${what}`, on: { click: () => save(what) } }, text);
  return element(
    "div",
    { class: "stack" },
    element(
      "div",
      { class: "controls" },
      button("redundant", "Save list of redundant copies"),
      button("kept", "Save list of copies to keep"),
    ),
    element("p", { class: "hint" }, "Lists cover all groups; groups that you have not changed keep the suggested copy. No file is deleted."),
    problem,
  );
}
