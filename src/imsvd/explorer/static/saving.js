/** Saves what a page shows: its tables as CSV, the page itself as PNG. */

import { Refusal, saveAs } from "./api.js";
import { announce, drawing, element } from "./dom.js";

const LEFT_OUT = [
  "button, form, nav, select, input, .controls, .bar .choice, .unseen, .refusal, [hidden]",
  ".path, .tabs, .stage-caption, .step, .like, .result a.about, .heat-figure > .hint, .how-to",
].join(", ");
const MOST_SIDE = 16_000;
const MOST_PIXELS = 100_000_000;

/** One cell of a CSV file. Spreadsheets run text that begins like a formula, so it gets an apostrophe. */
function cell(value) {
  if (value == null) return "";
  if (typeof value === "number" || typeof value === "boolean") return String(value);
  const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : String(value);
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

/** A table as CSV; it begins with a byte order mark, without which spreadsheets garble accents. */
export function csv(headings, rows) {
  return `\ufeff${[headings, ...rows].map((row) => row.map(cell).join(",")).join("\r\n")}\r\n`;
}

/** A name for a file, from words. */
const fileName = (words, ending) =>
  `${words
    .join(" ")
    .replace(/\.index\b/g, "")
    .replace(/[^\p{L}\p{N}]+/gu, "-")
    .replace(/^-|-$/g, "")
    .slice(0, 80)
    .toLowerCase()}.${ending}`;

/** The menu of the masthead; `current` returns the page shown, with its title, subject and tables. */
export function saveMenu(current) {
  const list = element("ul", { class: "menu", id: "save-menu", hidden: true });
  const button = element(
    "button",
    { type: "button", id: "save-view", "aria-expanded": "false", "aria-controls": "save-menu" },
    "Save…",
  );
  const show = (opened) => {
    list.hidden = !opened;
    button.setAttribute("aria-expanded", String(opened));
    if (opened) list.replaceChildren(...items(current(), () => show(false)));
  };
  button.addEventListener("click", () => show(list.hidden));
  const whole = element("div", { class: "saving" }, button, list);
  whole.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || list.hidden) return;
    show(false);
    button.focus();
  });
  whole.addEventListener("focusout", (event) => {
    if (event.relatedTarget && !whole.contains(event.relatedTarget)) show(false);
  });
  document.addEventListener("pointerdown", (event) => {
    if (!list.hidden && !whole.contains(event.target)) show(false);
  });
  return whole;
}

function items(page, close) {
  if (!page) return [element("li", {}, element("p", { class: "hint" }, "There is nothing to save on this page."))];
  const words = [page.subject, page.title].filter(Boolean);
  const problem = element("p", { class: "hint", role: "alert" });
  const item = (text, save) => {
    const button = element("button", { type: "button" }, text);
    button.addEventListener("click", async () => {
      problem.textContent = "Saving…";
      button.disabled = true;
      try {
        await save();
        announce("Saved.");
        close();
        document.getElementById("save-view")?.focus();
      } catch (error) {
        problem.textContent = error.message;
        button.disabled = false;
      }
    });
    return element("li", {}, button);
  };
  return [
    item("This page as a picture (PNG)", async () => saveAs(await pictureOf(page), fileName(words, "png"))),
    ...(page.tables ?? []).map(({ name, headings, rows }) =>
      item(`${name} as a table (CSV)`, async () => {
        const content = csv(headings, typeof rows === "function" ? await rows() : rows);
        saveAs(new Blob([content], { type: "text/csv;charset=utf-8" }), fileName([...words, name], "csv"));
      }),
    ),
    element("li", {}, problem),
  ];
}

/**
 * Draws the content of a page as the browser shows it, without its controls.
 *
 * An SVG image may hold HTML, but loads nothing: styles and pictures are put into it.
 */
async function pictureOf({ title, subject }) {
  const main = document.getElementById("main");
  const styles = await (await fetch("/static/style.css")).text();
  const copy = element("div", { class: "picture" });
  copy.append(...[...main.children].map((child) => child.cloneNode(true)));
  const canvases = [...main.querySelectorAll("canvas")];
  copy.querySelectorAll("canvas").forEach((canvas, place) => {
    canvas.replaceWith(element("img", { class: "canvas", src: canvases[place].toDataURL() }));
  });
  copy.querySelectorAll(".star[aria-pressed=true]").forEach((star) => {
    star.replaceWith(element("span", { class: "starred" }, "★"));
  });
  copy.querySelectorAll(LEFT_OUT).forEach((part) => part.remove());
  copy.append(element("p", { class: "hint" }, [title, subject, "imsvd explorer"].filter(Boolean).join(" · ")));
  await Promise.all([...copy.querySelectorAll("img")].map(embed));
  const look = getComputedStyle(document.documentElement);
  for (const name of new Set(styles.match(/--[a-z-]+(?=:)/g)))
    if (look.getPropertyValue(name)) copy.style.setProperty(name, look.getPropertyValue(name));
  const width = main.clientWidth;
  copy.style.setProperty("width", `${width}px`);
  const height = measured(copy);
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(wrapped(copy, styles, width, height))}`;
  return drawn(image, width, height);
}

/** Replaces the address of a picture by its content; without it, its frame stays empty. */
async function embed(image) {
  image.removeAttribute("loading");
  if (image.src.startsWith("data:")) return;
  try {
    const content = await (await fetch(image.src)).blob();
    image.src = await new Promise((resolve, reject) => {
      const reader = new FileReader();
      reader.onload = () => resolve(reader.result);
      reader.onerror = reject;
      reader.readAsDataURL(content);
    });
  } catch {
    image.remove();
  }
}

/** The height of an element that is not on the page. */
function measured(copy) {
  const place = element("div", { class: "measuring", "aria-hidden": "true", inert: true }, copy);
  document.body.append(place);
  const height = Math.ceil(copy.getBoundingClientRect().height);
  place.remove();
  copy.remove();
  return height;
}

function wrapped(copy, styles, width, height) {
  const sheet = document.createElement("style");
  sheet.textContent = styles;
  return new XMLSerializer().serializeToString(
    drawing(
      "svg",
      { width, height, viewBox: `0 0 ${width} ${height}` },
      drawing("foreignObject", { width, height }, sheet, copy),
    ),
  );
}

async function drawn(image, width, height) {
  const scale = Math.min(2, MOST_SIDE / Math.max(width, height), Math.sqrt(MOST_PIXELS / (width * height)));
  try {
    await image.decode();
    const canvas = element("canvas", { width: Math.floor(width * scale), height: Math.floor(height * scale) });
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    const content = await new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
    if (content) return content;
  } catch {
    // Some browsers, such as Safari, do not let a page read such a drawing.
  }
  throw new Refusal("This browser cannot draw the page; use Chrome or Edge, or save a table.");
}
