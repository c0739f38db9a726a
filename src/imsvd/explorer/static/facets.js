/** Counts of units and labels among the images found, with links that narrow the search. */

import { get, link } from "./api.js";
import { element } from "./dom.js";
import { titled } from "./notes.js";
import { count, percent } from "./wording.js";

const PAGE = 12;
const OPEN = 3;

/** A query and one more term; an "or" in the query is put in parentheses first. */
export function narrowed(query, term) {
  const text = query.trim();
  if (!text) return term;
  return `${text.includes("|") ? `(${text})` : text} & ${term}`;
}

/** The panel beside the results of a search. */
export async function facetPanel({ index, query, others, signal }) {
  const address = `/api/indexes/${index.id}/facets?q=${encodeURIComponent(query)}`;
  const shown = { index, query, others };
  const answer = await get(`${address}&offset=0&count=${PAGE}`, signal);
  const groups = element(
    "div",
    { class: "facets" },
    answer.labels.map((group, place) =>
      facet(group, { ...shown, title: group.label, total: answer.total, open: place === 0 }),
    ),
    variables(answer, shown, OPEN),
  );
  let from = PAGE;
  const more = element("button", { type: "button", class: "quiet", id: "more-variables" }, "More variables");
  more.addEventListener("click", async () => {
    const next = await get(`${address}&offset=${from}&count=${PAGE}`);
    from += PAGE;
    groups.append(...variables(next, shown, 0));
    if (from >= index.units.length) more.remove();
  });
  return element(
    "details",
    { class: "panel", open: window.matchMedia("(min-width: 44.01rem)").matches },
    element("summary", {}, element("h2", {}, "Narrow down")),
    element(
      "p",
      { class: "hint" },
      "Images found with each label and unit, and the share of all images beside it. Variables that differ most from all images come first.",
    ),
    groups,
    index.units.length > PAGE && more,
  );
}

function variables(answer, shown, opened) {
  return answer.variables.map((group, place) =>
    facet(group, {
      ...shown,
      title: titled(`Variable ${group.variable}`, shown.index.names[group.variable]),
      total: answer.total,
      open: place < opened,
    }),
  );
}

function facet({ values, more }, { index, query, others, title, total, open }) {
  const used = values.filter((item) => item.count > 0);
  return element(
    "details",
    { class: "facet", open },
    element("summary", {}, element("h3", {}, title)),
    used.length
      ? element("ul", {}, used.map((item) => row(item, { index, query, others, total })))
      : element("p", { class: "hint" }, "No image found has a value."),
    more > 0 && element("p", { class: "hint" }, `${count(more)} rarer ones are not listed.`),
  );
}

function row(item, { index, query, others, total }) {
  const id = item.query.replace(/[^\w-]/g, "-");
  const step = (sign, term, explained) =>
    element(
      "a",
      {
        id: `${sign}-${id}`,
        class: "step",
        href: link.search(index.id, { q: narrowed(query, term), ...others }),
        "aria-label": `${sign} ${item.query}: ${explained}`,
      },
      sign,
    );
  return element(
    "li",
    {},
    element("span", { class: "facet-name" }, item.text, item.name && ` ${item.name}`),
    element(
      "span",
      { class: "value" },
      `${count(item.count)} (${percent(item.count / total)}, all ${percent(item.all / index.images)})`,
    ),
    item.query && [
      step("and", item.query, "only images with it"),
      step("not", `!${item.query}`, "only images without it"),
    ],
    element(
      "span",
      { class: "track", "aria-hidden": "true" },
      element("span", { style: { width: `${(100 * item.count) / total}%` } }),
    ),
  );
}
