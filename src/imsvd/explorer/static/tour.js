/** Five hints for the first visit: not in the way, skipped at once, and kept behind a button. */

import { announce, element } from "./dom.js";

const SEEN = "imsvd tour";

/** What is pointed out, a heading and a sentence or two; the first one that is on the page is marked. */
const RUN_HINTS = [
  [
    "main .lead",
    "Every image gets a code",
    "The encoder asks the same questions about every image. A question is called a variable, and its possible answers are its units. All answers together are the code of an image.",
  ],
  [
    ".cards li, .unit-row, .gallery",
    "See what a unit stands for",
    "Open a variable, then a unit, to see the images that share this answer. Point at an image, or tap it, to see which part of it decided.",
  ],
  [
    "#star-0, .star, #starred, .cards .card",
    "Name it and star it",
    "When you see what a unit stands for, name it on its page: searches understand the name. Press ☆ to find it again on the first page. Both are kept in the run folder.",
  ],
  [
    "#upload-button",
    "Try an image of your own",
    "Upload an image, drop it anywhere on the page or paste it. It gets a code and the images most like it, and it is forgotten when the explorer stops.",
  ],
  [
    "#save-view",
    "Take it with you",
    "Save any page as a picture for your slides, or as a table for a spreadsheet. The ? beside it shows these hints again.",
  ],
];

const INDEX_HINTS = [
  [
    "#query",
    "Ask for images",
    "Every image has a code: one unit, such as 12.3, for each of its variables. Write units, their names or labels, and press ↓ for suggestions.",
  ],
  [
    ".panel",
    "Narrow it down",
    "The list counts what the images found have in common. Press “and” to keep only images with it, “not” to leave them out.",
  ],
  [
    ".result .tile",
    "Find images like one",
    "Open an image to see those most like it first; “Unlike this” turns it around.",
  ],
  [
    "#places",
    "Find copies and changes",
    "Duplicates shows files that are the same picture and saves a list of the redundant ones. Drift tells what differs between two sets of images.",
  ],
  [
    "#save-view",
    "Take it with you",
    "Save any page as a picture, or what was found as a table. The ? beside it shows these hints again.",
  ],
];

function remembered() {
  try {
    return localStorage.getItem(SEEN) !== null;
  } catch {
    return true; // what cannot be remembered would come up again and again
  }
}

function remember() {
  try {
    localStorage.setItem(SEEN, "seen");
  } catch {
    // As above.
  }
}

let hints = RUN_HINTS;
let place = -1;
let opener = null;

const panel = () => document.getElementById("tour");

/** Chooses the hints for what is open, and shows them on the first visit. */
export function offerTour({ runs, indexes }) {
  if (!runs.length && !indexes.length) return;
  hints = runs.length ? RUN_HINTS : INDEX_HINTS;
  if (place < 0 && !remembered()) {
    show(0);
    announce(`A tour of ${hints.length} hints is open above the page; press Escape to skip it.`);
  } else if (place >= 0) show(place);
}

/** The button that shows the hints again. */
export function tourButton() {
  const button = element(
    "button",
    { type: "button", id: "tour-button", class: "round", "aria-label": "Show the tour", title: "Show the tour" },
    "?",
  );
  button.addEventListener("click", () => {
    opener = button.id;
    show(0);
    panel().querySelector("h2").focus();
  });
  return button;
}

function unmark() {
  document.querySelectorAll(".pointed-out").forEach((found) => found.classList.remove("pointed-out"));
}

function close() {
  place = -1;
  remember();
  unmark();
  const inside = panel().contains(document.activeElement);
  panel().hidden = true;
  panel().replaceChildren();
  if (inside) (document.getElementById(opener) ?? document.querySelector("main h1"))?.focus();
}

function show(to) {
  const moved = to !== place;
  place = to;
  const [selector, heading, text] = hints[place];
  unmark();
  const target = document.querySelector(selector);
  target?.classList.add("pointed-out");
  if (!moved && panel().hasChildNodes()) return;
  const step = (number, label, id) =>
    element(
      "button",
      { type: "button", id, on: { click: () => (number < hints.length ? go(number) : close()) } },
      label,
    );
  panel().hidden = false;
  panel().replaceChildren(
    element("p", { class: "about" }, `Hint ${place + 1} of ${hints.length}`),
    element("h2", { id: "tour-title", tabindex: "-1" }, heading),
    element("p", {}, text),
    element(
      "div",
      { class: "bar" },
      element("button", { type: "button", class: "quiet", id: "tour-skip", on: { click: close } }, "Skip the tour"),
      element(
        "span",
        { class: "siblings" },
        place > 0 && step(place - 1, "Back", "tour-back"),
        step(place + 1, place + 1 < hints.length ? "Next" : "Done", "tour-next"),
      ),
    ),
  );
  if (target && to > 0) target.scrollIntoView({ block: "nearest" });
}

function go(number) {
  show(number);
  panel().querySelector("h2").focus({ preventScroll: true });
}

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && place >= 0 && (panel().contains(document.activeElement) || document.activeElement === document.body))
    close();
});
