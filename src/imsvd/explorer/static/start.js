/** What to do next: commands to copy, and the page of an explorer that has nothing to show yet. */

import { get } from "./api.js";
import { announce, disclosure, element } from "./dom.js";
import { counted } from "./wording.js";

/** A command in a box, with a button that copies it. */
export function command(text) {
  const copy = element("button", { type: "button", "aria-label": `Copy: ${text}` }, "Copy");
  copy.addEventListener("click", async () => {
    await navigator.clipboard.writeText(text);
    announce("Copied.");
  });
  return element(
    "div",
    { class: "command" },
    element("code", {}, text),
    // Browsers offer it only for this machine and over HTTPS.
    navigator.clipboard && copy,
  );
}

/** A notice that says why nothing is shown, and the command that changes it. */
export function nextStep(sentence, text) {
  return element("div", { class: "notice stack" }, element("p", {}, sentence), text && command(text));
}

/** A path as a word of a shell command. */
const quoted = (path) => (/^[\w./~:@%+=-]+$/.test(path) ? path : `'${path.replaceAll("'", "'\\''")}'`);

/** The commands that lead to something to explore. */
function steps(folder) {
  const images = folder?.holds_images ? quoted(folder.path) : "photos/";
  return [
    ["Give every photo a code, with a pretrained encoder. This takes minutes.", `imsvd discretize timm:tf_efficientnet_lite0 ${images} --out runs/photos`],
    ["Measure what each unit of the code responds to.", `imsvd explain runs/photos ${images}`],
    ["To search the photos and find duplicates, build an index too.", `imsvd index runs/photos ${images} --out runs/photos.index`],
    ["Explore both.", "imsvd explore runs"],
  ];
}

export async function startView({ signal }) {
  const { folders, skipped } = await get("/api/places", signal);
  const pictures = folders.find((folder) => folder.holds_images);
  const list = (items) =>
    element(
      "ol",
      { class: "steps" },
      items.map(([sentence, text]) => element("li", {}, element("p", {}, sentence), command(text))),
    );
  return {
    title: "Start",
    content: [
      element("h1", { tabindex: "-1" }, "Nothing to explore yet"),
      element("p", { class: "lead" }, why(folders, skipped, pictures)),
      skipped.length > 0 && skippedList(skipped),
      element(
        "section",
        { class: "stack", "aria-labelledby": "own" },
        element("h2", { id: "own" }, "With your own photos"),
        list(steps(pictures)),
      ),
      element(
        "section",
        { class: "stack", "aria-labelledby": "built-in" },
        element("h2", { id: "built-in" }, "With built-in images"),
        list([
          ["Train a small encoder on drawn shapes. This takes a few minutes and needs no data.", "imsvd demo"],
          ["Explore it.", "imsvd explore runs/demo"],
        ]),
      ),
      element("p", { class: "hint" }, "Run the commands in a terminal; stop this explorer there with Ctrl-C first."),
    ],
  };
}

function why(folders, skipped, pictures) {
  const where = folders.map((folder) => folder.path).join(", ");
  if (skipped.length) return `${where} holds ${counted(skipped.length, "run or index", "runs or indexes")}, but none can be shown yet.`;
  if (pictures)
    return `${pictures.path} holds pictures, but no run and no index. The explorer shows what an encoder has learned from pictures; these steps lead there.`;
  return `${where || "This explorer"} holds no run and no index. A run is a folder with a trained encoder; an index holds the codes of many images.`;
}

function skippedList(skipped) {
  return element(
    "section",
    { class: "stack", "aria-labelledby": "skipped" },
    element("h2", { id: "skipped" }, "Not ready"),
    element(
      "ul",
      { class: "stack" },
      skipped.map((item) => element("li", { class: "notice" }, item.reason)),
    ),
  );
}

/** A line about runs and indexes that were found but not opened, or null. */
export async function skippedNote(signal) {
  const { skipped } = await get("/api/places", signal);
  if (!skipped.length) return null;
  return disclosure(`${counted(skipped.length, "more run or index is", "more runs or indexes are")} not ready`, () =>
    element("ul", { class: "stack" }, skipped.map((item) => element("li", { class: "notice" }, item.reason))),
  );
}
