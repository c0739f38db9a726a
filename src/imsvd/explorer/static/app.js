/** The frame around the views: routing, loading, errors, focus, history and uploads. */

import { get, link, notesOf, uploadImage } from "./api.js";
import { compareView } from "./compare.js";
import { dependenceView } from "./dependence.js";
import { announce, choice, element } from "./dom.js";
import { driftView } from "./drift.js";
import { duplicatesView } from "./duplicates.js";
import { imageView, uploadView } from "./image.js";
import { imagesView } from "./images.js";
import { saveMenu } from "./saving.js";
import { searchView } from "./search.js";
import { startView } from "./start.js";
import { offerTour, tourButton } from "./tour.js";
import { trainingView } from "./training.js";
import { unitView } from "./unit.js";
import { variableView } from "./variable.js";
import { variablesView } from "./variables.js";

/** Patterns of addresses, their views and places; views receive the named groups, as numbers. */
const ROUTES = [
  [/^\/runs\/(?<run>\d+)\/variables$/, variablesView, "variables"],
  [/^\/runs\/(?<run>\d+)\/variables\/(?<variable>\d+)$/, variableView, "variables"],
  [/^\/runs\/(?<run>\d+)\/units\/(?<variable>\d+)\/(?<unit>\d+)$/, unitView, "variables"],
  [/^\/runs\/(?<run>\d+)\/images$/, imagesView, "images"],
  [/^\/runs\/(?<run>\d+)\/images\/(?<image>\d+)$/, imageView, "images"],
  [/^\/runs\/(?<run>\d+)\/uploads\/(?<upload>[0-9a-f]+)$/, uploadView, "images"],
  [/^\/runs\/(?<run>\d+)\/dependence$/, dependenceView, "dependence"],
  [/^\/runs\/(?<run>\d+)\/training$/, trainingView, "training"],
  [/^\/compare\/(?<first>\d+)\/(?<second>\d+)$/, compareView, "compare"],
  [/^\/indexes\/(?<index>\d+)\/search$/, searchView, "search"],
  [/^\/indexes\/(?<index>\d+)\/duplicates$/, duplicatesView, "duplicates"],
  [/^\/indexes\/(?<index>\d+)\/drift$/, driftView, "drift"],
];
const PLACES = ["variables", "images", "dependence", "training"];
const INDEX_PLACES = ["search", "duplicates", "drift"];
const SLOW = 200;

const main = document.getElementById("main");
let current = { controller: new AbortController(), run: 0, index: 0, page: null };
const menu = saveMenu(() => current.page);

function matching(path) {
  for (const [pattern, view, place] of ROUTES) {
    const found = path.match(pattern);
    if (!found) continue;
    const numbers = Object.entries(found.groups).map(([name, text]) => [
      name,
      name === "upload" ? text : Number(text),
    ]);
    return { view, place, numbers: Object.fromEntries(numbers) };
  }
  return null;
}

/** The run or the index that an address is about, and the run and index of the other views. */
function subjectOf(runs, indexes, numbers) {
  const run = runs.find((item) => item.id === (numbers.run ?? numbers.first ?? current.run));
  const index = indexes.find((item) => item.id === (numbers.index ?? current.index));
  return { run, index, subject: "index" in numbers ? index : run };
}

/** Shows the view for the current address; the old one stays until the new one is ready. */
async function show({ scroll = 0, first = false } = {}) {
  current.controller.abort();
  const controller = new AbortController();
  const [path, text = ""] = location.hash.slice(1).split("?");
  current.controller = controller;
  const waiting = setTimeout(() => {
    main.setAttribute("aria-busy", "true");
    announce("Loading.");
  }, SLOW);
  try {
    const [{ runs }, { indexes }] = await Promise.all(
      ["/api/runs", "/api/indexes"].map((address) => get(address, controller.signal)),
    );
    if (!runs.length && !indexes.length) {
      drawMasthead({ runs, indexes });
      const page = await startView({ signal: controller.signal });
      if (!controller.signal.aborted) put(page, null, { scroll, first });
      return;
    }
    if (!path || path === "/")
      return enter(runs.length ? link.variables(runs[0].id) : link.search(indexes[0].id));
    const found = matching(path);
    const { run = runs[0], index = indexes[0], subject } = subjectOf(runs, indexes, found?.numbers ?? {});
    current.run = run?.id;
    current.index = index?.id;
    drawMasthead({ runs, indexes, run, index }, found?.place);
    if (!found || !subject) throw new Error("Page not found. Choose a view above.");
    const noted = run && "run" in found.numbers ? await withNotes(run, controller.signal) : run;
    const page = await found.view({
      ...found.numbers,
      run: noted,
      runs,
      index,
      indexes,
      query: new URLSearchParams(text),
      hash: location.hash,
      signal: controller.signal,
      reload: () => show({ scroll: window.scrollY }),
    });
    if (controller.signal.aborted) return;
    if (noted?.notes?.problem) page.content.unshift(element("p", { class: "notice refusal", role: "alert" }, noted.notes.problem));
    put(page, subject, { scroll, first });
    offerTour({ runs, indexes });
  } catch (error) {
    if (!controller.signal.aborted) put(failure(error), null, { scroll, first });
  } finally {
    clearTimeout(waiting);
    if (!controller.signal.aborted) main.removeAttribute("aria-busy");
  }
}

/** A run with its names and stars; a page without them is better than none. */
async function withNotes(run, signal) {
  const nothing = { names: {}, starred: [] };
  const notes = await notesOf(run.id, signal).catch((error) => ({ ...nothing, problem: error.message }));
  return { ...run, notes };
}

function failure(error) {
  return {
    title: "Error",
    content: [
      element("h1", { tabindex: "-1" }, "Cannot show this page"),
      element("p", { class: "notice", role: "alert" }, error.message),
      element("p", {}, element("a", { href: "#/" }, "Go to the first page")),
    ],
  };
}

function put(page, subject, { scroll, first = false }) {
  const used = first ? undefined : document.activeElement?.id;
  current.page = page.title === "Error" ? null : { ...page, subject: subject?.name };
  document.title = [page.title, subject?.name, "imsvd explorer"].filter(Boolean).join(" · ");
  main.replaceChildren(...page.content.flat(2).filter(Boolean));
  moveFocus(used);
  window.scrollTo(0, scroll);
  announce(`${page.title}.`);
}

/** Focuses the control that was used if the new page has it, and the heading otherwise. */
function moveFocus(used) {
  if (used === undefined) return;
  const again = used ? main.querySelector(`#${CSS.escape(used)}`) : null;
  const kept = document.activeElement?.closest(".tools, #tour");
  if (!kept) (again ?? main.querySelector("h1"))?.focus({ preventScroll: true });
}

function drawMasthead({ runs, indexes, run, index }, here) {
  const places = run ? PLACES.map((name) => [name, link[name](run.id)]) : [];
  if (runs.length > 1) {
    const other = runs.find((item) => item.id !== run.id);
    places.push(["compare", link.compare(run.id, other.id)]);
  }
  if (index) places.push(...INDEX_PLACES.map((name) => [name, link[name](index.id)]));
  document
    .getElementById("places")
    .replaceChildren(
      ...places.map(([name, href]) =>
        element(
          "a",
          { href, "aria-current": name === here ? "page" : null },
          name.charAt(0).toUpperCase() + name.slice(1),
        ),
      ),
    );
  const tools = [];
  if (INDEX_PLACES.includes(here))
    tools.push(subjectChoice("Index", "index", indexes, index, (id) => link[here](id)));
  else if (here !== "compare" && runs.length)
    tools.push(
      subjectChoice("Run", "run", runs, run, (id) =>
        here === "training" || here === "dependence" ? link[here](id) : link.variables(id),
      ),
    );
  if (runs.length) tools.push(...uploadButton());
  if (runs.length || indexes.length) tools.push(menu, tourButton());
  const focused = document.activeElement?.id;
  document.getElementById("tools").replaceChildren(...tools.filter(Boolean));
  if (["run", "index", "save-view", "tour-button"].includes(focused)) document.getElementById(focused)?.focus();
  document.querySelector(".foot").hidden = !runs.length;
}

/** A choice among runs or indexes, if there are several. */
function subjectChoice(label, id, items, chosen, address) {
  if (items.length < 2) return null;
  const repeated = new Set(items.map((item) => item.name)).size < items.length;
  const options = items.map((item) => [item.id, repeated ? item.path : item.name]);
  return choice(label, id, options, chosen.id, (number) => go(address(number)));
}

function uploadButton() {
  const input = element("input", {
    type: "file",
    id: "upload-file",
    class: "unseen",
    accept: "image/*",
    tabindex: "-1",
    "aria-label": "Image to upload",
    on: { change: () => input.files[0] && upload(input.files[0]) },
  });
  const button = element(
    "button",
    { type: "button", id: "upload-button", on: { click: () => input.click() } },
    "Upload image…",
  );
  return [button, input];
}

/** Uploads an image and shows its page. */
async function upload(file) {
  if (current.run == null) return refuse("Open the explorer with a run to see the code of an image.");
  announce("Uploading the image.");
  main.setAttribute("aria-busy", "true");
  const { run, controller } = current;
  const stillHere = () => current.controller === controller;
  try {
    const answer = await uploadImage(run, file);
    // A user who has opened another page meanwhile is not called back.
    if (stillHere()) go(link.upload(run, answer.upload));
    else announce("The upload was canceled because another page was opened.");
  } catch (error) {
    refuse(error.message);
  } finally {
    if (stillHere()) main.removeAttribute("aria-busy");
  }
}

/** Shows above the page why an upload failed, until it is closed or another page is opened. */
function refuse(sentence) {
  const before = document.activeElement;
  const close = () => {
    notice.remove();
    (before?.isConnected ? before : main.querySelector("h1"))?.focus();
  };
  const notice = element(
    "div",
    {
      class: "notice refusal",
      role: "alert",
      on: { keydown: (event) => event.key === "Escape" && close() },
    },
    element("p", {}, sentence),
    element("button", { type: "button", on: { click: close } }, "Close"),
  );
  main.querySelector(".refusal")?.remove();
  main.prepend(notice);
  notice.querySelector("button").focus();
}

function acceptDrops() {
  const veil = document.getElementById("drop");
  const carriesFile = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");
  document.addEventListener("dragover", (event) => {
    if (!carriesFile(event)) return;
    event.preventDefault();
    veil.hidden = false;
  });
  document.addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) veil.hidden = true;
  });
  document.addEventListener("drop", (event) => {
    veil.hidden = true;
    if (!carriesFile(event)) return;
    event.preventDefault();
    if (event.dataTransfer.files[0]) upload(event.dataTransfer.files[0]);
  });
  document.addEventListener("paste", (event) => {
    const file = [...(event.clipboardData?.files ?? [])][0];
    if (file) upload(file);
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") veil.hidden = true;
  });
}

/** Opens a view by its hash. */
function go(hash) {
  location.hash = hash;
}

/** Shows a view in place of the bare address, without a history entry. */
function enter(hash) {
  history.replaceState(history.state, "", hash);
  return show({ first: true });
}

/** Restores the scroll position of history entries: the browser would do so before a page is drawn. */
function rememberScrolling() {
  history.scrollRestoration = "manual";
  const places = new Map();
  let entry = history.state?.entry ?? 0;
  let newest = entry;
  history.replaceState({ entry }, "");
  window.addEventListener("scroll", () => places.set(entry, window.scrollY), { passive: true });
  window.addEventListener("popstate", () => {
    const known = history.state?.entry;
    if (known == null) {
      newest += 1;
      history.replaceState({ entry: newest }, "");
    }
    entry = history.state.entry;
    newest = Math.max(newest, entry);
    show({ scroll: known == null ? 0 : (places.get(entry) ?? 0) });
  });
}

document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
acceptDrops();
rememberScrolling();
show({ first: true });
