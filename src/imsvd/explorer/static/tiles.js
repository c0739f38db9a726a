/** Pictures in lists: lazily loaded, with the evidence for a unit on hover, focus or tap. */

import { link, sourcePicture, withQuery } from "./api.js";
import { element } from "./dom.js";
import { count } from "./wording.js";

const PATIENCE = 120;

/** The size of thumbnails that is sharp at so many pixels of the page. */
function sharp(pixels, sizes) {
  const wanted = pixels * Math.min(2, window.devicePixelRatio || 1);
  return sizes.find((size) => size >= wanted) ?? sizes.at(-1);
}

/** A picture in a frame of fixed shape, so that nothing moves when it arrives. */
export function framed(picture, alt, pixels, { eager = false } = {}) {
  const image = element("img", {
    src: picture.thumbnail(sharp(pixels, [64, 128, 256])),
    width: pixels,
    height: pixels,
    alt,
    loading: eager ? "eager" : "lazy",
    decoding: "async",
  });
  const frame = element("span", { class: "frame" }, image);
  image.addEventListener("error", () => frame.classList.add("missing"), { once: true });
  return frame;
}

/** Lays the evidence for a unit over a frame; returns what removes it. */
export function layMap(frame, picture, unit, pixels) {
  const overlay = mapImage(picture, unit, pixels);
  frame.append(overlay);
  return () => {
    // Without an address the browser gives up a request that is still waiting.
    overlay.removeAttribute("src");
    overlay.remove();
  };
}

function mapImage(picture, [variable, unit], pixels) {
  const overlay = element("img", {
    class: "map",
    src: picture.map(variable, unit, sharp(pixels, [128, 256])),
    alt: "",
    width: pixels,
    height: pixels,
    on: { load: () => overlay.classList.add("ready"), error: () => overlay.remove() },
  });
  return overlay;
}

const lastingMaps = new WeakMap();

/** Shows the evidence on every tile of a list, one after the other, while the box is ticked. */
export async function showAllMaps(list, box) {
  for (const anchor of list.querySelectorAll(".tile")) {
    if (!box.checked || !list.isConnected) return;
    const overlay = lastingMaps.get(anchor)();
    anchor.querySelector(".frame").append(overlay);
    overlay.classList.add("lasting");
    await overlay.decode().catch(() => overlay.remove());
  }
}

/** Takes all that away. */
export function hideAllMaps(list) {
  list.querySelectorAll(".map").forEach((overlay) => overlay.remove());
}

let hideTapped = () => {};

/**
 * Shows something while an element is pointed at or has the focus, and at a first tap.
 *
 * A second tap follows the link. `show` returns what hides it again.
 */
export function whilePointedAt(target, show) {
  let hide = null;
  let waiting = 0;
  const on = () => {
    if (hide) return;
    hide = show();
  };
  const off = () => {
    clearTimeout(waiting);
    hide?.();
    hide = null;
  };
  const soon = () => {
    clearTimeout(waiting);
    waiting = setTimeout(on, PATIENCE);
  };
  let touched = false;
  target.addEventListener("pointerdown", (event) => (touched = event.pointerType === "touch"));
  target.addEventListener("click", (event) => {
    if (touched && !hide) {
      event.preventDefault();
      // Not every browser moves the focus at a tap, so what was tapped before may never lose it.
      hideTapped();
      hideTapped = off;
      on();
    }
    touched = false;
  });
  target.addEventListener("pointerenter", (event) => {
    if (event.pointerType !== "touch") soon();
  });
  target.addEventListener("pointerleave", (event) => {
    if (event.pointerType !== "touch" && document.activeElement !== target) off();
  });
  target.addEventListener("focus", () => {
    // A tap gives the focus before the click: showing here would make that click the second tap.
    if (!touched) soon();
  });
  target.addEventListener("blur", off);
  target.addEventListener("keydown", (event) => event.key === "Escape" && off());
}

/** A picture that leads to its page; with a `unit`, pointing at it shows the evidence for it. */
export function tile({ run, image, label, caption, unit = null, pixels = 96, eager = false }) {
  const picture = sourcePicture(run, image);
  const name = label == null ? `Image ${image}` : `Image ${image}, ${label}`;
  const frame = framed(
    picture,
    caption && caption !== label ? `${name}, ${caption}` : name,
    pixels,
    { eager },
  );
  const anchor = element(
    "a",
    { class: "tile", href: link.image(run.id, image) },
    frame,
    caption && element("span", { class: "caption", "aria-hidden": "true" }, caption),
  );
  if (unit) {
    lastingMaps.set(anchor, () => mapImage(picture, unit, pixels));
    whilePointedAt(anchor, () =>
      frame.querySelector(".lasting") ? () => {} : layMap(frame, picture, unit, pixels),
    );
  }
  return anchor;
}

/** A list of tiles that arrow keys walk through. */
export function gallery(tiles, { label, small = false } = {}) {
  const list = element(
    "ul",
    { class: small ? "gallery small" : "gallery", "aria-label": label },
    tiles.map((item) => element("li", {}, item)),
  );
  arrowKeys(list);
  return list;
}

/** Arrow keys, Home and End move the focus among the links of a container, by where they are. */
export function arrowKeys(container) {
  container.addEventListener("keydown", (event) => {
    const links = [...container.querySelectorAll("a[href]")];
    const place = links.indexOf(document.activeElement);
    const next = place < 0 ? undefined : neighbor(links, place, event.key);
    if (!next) return;
    event.preventDefault();
    next.focus();
  });
}

function neighbor(links, place, key) {
  if (key === "ArrowRight") return links[place + 1];
  if (key === "ArrowLeft") return links[place - 1];
  if (key === "Home") return links[0];
  if (key === "End") return links.at(-1);
  if (key === "ArrowDown") return nearestRow(links[place], links.slice(place + 1));
  if (key === "ArrowUp") return nearestRow(links[place], links.slice(0, place).reverse());
  return undefined;
}

/** The link of the next row, in the order of the candidates, that is closest to this one's column. */
function nearestRow(from, candidates) {
  const box = from.getBoundingClientRect();
  const others = candidates.map((item) => [item, item.getBoundingClientRect()]);
  const first = others.find(([, other]) => Math.abs(other.top - box.top) > box.height / 2);
  if (!first) return undefined;
  const row = others.filter(([, other]) => Math.abs(other.top - first[1].top) < box.height / 2);
  const distance = ([, other]) => Math.abs(other.left - box.left);
  return row.reduce((best, item) => (distance(item) < distance(best) ? item : best))[0];
}

/** Links to the page before and after, in the address and so in the history. */
export function pager(hash, page, size, total) {
  const pages = Math.ceil(total / size);
  if (pages <= 1) return null;
  const step = (to, text, id) =>
    to >= 0 && to < pages
      ? element("a", { id, class: "button", href: withQuery(hash, { page: to || null }) }, text)
      : element("span", { class: "button off" }, text);
  return element(
    "nav",
    { class: "pager", "aria-label": "Pages" },
    step(page - 1, "← Previous", "page-before"),
    element("span", {}, `Page ${count(page + 1)} of ${count(pages)}`),
    step(page + 1, "Next →", "page-after"),
  );
}

/** The page that a query asks for, at least 0. */
export function pageOf(query, size, total = Infinity) {
  const page = Number.parseInt(query.get("page") ?? "0", 10);
  const last = Math.max(0, Math.ceil(total / size) - 1);
  return Number.isFinite(page) ? Math.min(Math.max(0, page), last) : 0;
}
