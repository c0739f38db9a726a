/** Galleries of images, with the evidence for a unit on hover, focus or tap; pages of lists. */

import { explainedImage, link, withQuery } from "./api.js";
import { element } from "./dom.js";
import { count } from "./wording.js";

const PATIENCE = 120;

/** The smallest available size that is sharp when shown `pixels` wide. */
function sharp(pixels, sizes) {
  const wanted = pixels * Math.min(2, window.devicePixelRatio || 1);
  return sizes.find((size) => size >= wanted) ?? sizes.at(-1);
}

/** An image in a frame of fixed shape, so that nothing moves when it loads. */
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

/** Shows the evidence for a unit over a frame; returns a function that removes it. */
export function layMap(frame, picture, unit, pixels) {
  const overlay = mapImage(picture, unit, pixels);
  frame.append(overlay);
  return () => {
    // Without a source, the browser cancels a pending request.
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

/** Shows the evidence on every tile of a list, one by one, while the box is checked. */
export async function showAllMaps(list, box) {
  for (const anchor of list.querySelectorAll(".tile")) {
    if (!box.checked || !list.isConnected) return;
    const overlay = lastingMaps.get(anchor)();
    anchor.querySelector(".frame").append(overlay);
    overlay.classList.add("lasting");
    await overlay.decode().catch(() => overlay.remove());
  }
}

/** Removes the evidence from every tile of a list. */
export function hideAllMaps(list) {
  list.querySelectorAll(".map").forEach((overlay) => overlay.remove());
}

let hideTapped = () => {};

/**
 * Calls `show` when an element is pointed at, focused or tapped, and the function it returns after.
 *
 * A second tap follows the link.
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
      // Not every browser moves the focus on a tap, so the element tapped before may keep it.
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
    // A tap focuses before it clicks: showing here would make that click the second tap.
    if (!touched) soon();
  });
  target.addEventListener("blur", off);
  target.addEventListener("keydown", (event) => event.key === "Escape" && off());
}

/** An image that links to its page; with a `unit`, pointing at it shows the evidence. */
export function tile({ run, image, label, caption, unit = null, pixels = 96, eager = false }) {
  const picture = explainedImage(run, image);
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

/** A list of tiles that the arrow keys move through. */
export function gallery(tiles, { label, small = false } = {}) {
  const list = element(
    "ul",
    { class: small ? "gallery small" : "gallery", "aria-label": label },
    tiles.map((item) => element("li", {}, item)),
  );
  arrowKeys(list);
  return list;
}

/** Lets arrow keys, Home and End move the focus among the links of a container by position. */
export function arrowKeys(container) {
  container.addEventListener("keydown", (event) => {
    const links = [...container.querySelectorAll("a[href]:not([aria-hidden])")];
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

/** The link in the next row of candidates whose column is closest. */
function nearestRow(from, candidates) {
  const box = from.getBoundingClientRect();
  const others = candidates.map((item) => [item, item.getBoundingClientRect()]);
  const first = others.find(([, other]) => Math.abs(other.top - box.top) > box.height / 2);
  if (!first) return undefined;
  const row = others.filter(([, other]) => Math.abs(other.top - first[1].top) < box.height / 2);
  const distance = ([, other]) => Math.abs(other.left - box.left);
  return row.reduce((best, item) => (distance(item) < distance(best) ? item : best))[0];
}

/** Links to the previous and the next page of a list. */
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

/** The page number in a query, at least 0. */
export function pageOf(query, size, total = Infinity) {
  const page = Number.parseInt(query.get("page") ?? "0", 10);
  const last = Math.max(0, Math.ceil(total / size) - 1);
  return Number.isFinite(page) ? Math.min(Math.max(0, page), last) : 0;
}
