/** One unit: the images assigned to it, most confident first, and their labels. */

import { allOf, get, link } from "./api.js";
import { bars } from "./chart.js";
import { element, formulas } from "./dom.js";
import { nameOf, naming, starButton, titled } from "./notes.js";
import { gallery, hideAllMaps, pageOf, pager, showAllMaps, tile } from "./tiles.js";
import { siblings } from "./variable.js";
import { count, counted, percent } from "./wording.js";

const PAGE = 48;
const LABELS = 10;

export async function unitView({ run, variable, unit, query, hash, signal, reload }) {
  const page = pageOf(query, PAGE);
  const answer = await get(
    `/api/runs/${run.id}/units/${variable}/${unit}?offset=${page * PAGE}&count=${PAGE}`,
    signal,
  );
  const units = run.units[variable] ?? 0;
  const place = `unit ${unit} of variable ${variable}`;
  const title = titled(`Unit ${unit} of variable ${variable}`, nameOf(run, variable, unit));
  const name = naming(run, variable, unit, { title: place, reload });
  return {
    title,
    content: [
      element(
        "p",
        { class: "path" },
        element("a", { href: link.variables(run.id) }, "Variables"),
        " / ",
        element("a", { href: link.variable(run.id, variable) }, titled(`Variable ${variable}`, nameOf(run, variable))),
      ),
      element(
        "div",
        { class: "bar" },
        element(
          "div",
          { class: "titled" },
          element("h1", { tabindex: "-1" }, title),
          starButton(run, variable, unit, place),
          name.open,
        ),
        siblings(unit, units, (other) => link.unit(run.id, variable, other), "unit"),
      ),
      name.form,
      element("p", { class: "lead" }, sentence(answer, run, units)),
      element("p", { class: "hint", id: "coherence" }, coherent(answer.coherence ?? {})),
      answer.coherence &&
        formulas(
          "Similarity: mean cosine of the features of two of its images.",
          "Purity: share of its images with its most frequent label. Random images: the same for as many images drawn at random.",
        ),
      element(
        "div",
        { class: answer.labels?.length ? "split" : "" },
        answer.labels?.length > 0 && labels(answer),
        element(
          "section",
          { class: "stack", "aria-labelledby": "assigned" },
          images(answer, run, page, hash),
        ),
      ),
    ],
    tables: [
      {
        name: "Images",
        headings: ["image", "file", "label", "confidence"],
        rows: async () => {
          const items = await allOf(`/api/runs/${run.id}/units/${variable}/${unit}`, "images");
          return items.map((item) => [item.image, item.name, item.label, item.score]);
        },
      },
    ],
  };
}

function images(answer, run, page, hash) {
  const { variable, unit } = answer;
  const heading = element("h2", { id: "assigned" }, "Assigned images");
  if (!answer.images.length) {
    const sentence = answer.total
      ? "This page is empty; go back to an earlier one."
      : "No image is assigned to this unit; choose another unit above.";
    return [
      heading,
      element("p", { class: "notice" }, sentence),
      pager(hash, page, PAGE, answer.total),
    ];
  }
  const list = gallery(
    answer.images.map((item, place) =>
      tile({
        run,
        image: item.image,
        label: item.label,
        unit: [variable, unit],
        caption: percent(item.score),
        eager: place < 12,
      }),
    ),
    { label: `Images assigned to unit ${unit}` },
  );
  const all = element("input", { type: "checkbox", id: "all-maps" });
  all.addEventListener("change", () => (all.checked ? showAllMaps(list, all) : hideAllMaps(list)));
  return [
    element(
      "div",
      { class: "bar" },
      heading,
      element("label", { class: "choice", for: "all-maps" }, all, "Show evidence on all images"),
    ),
    element(
      "p",
      { class: "hint how-to" },
      "Most confident first. Point at an image, or tap it, to see where the evidence for this unit is; open it to see its code.",
    ),
    list,
    pager(hash, page, PAGE, answer.total),
  ];
}

function sentence(answer, run, units) {
  const share = run.images ? answer.total / run.images : 0;
  return (
    `${count(answer.total)} of ${counted(run.images, "image")} (${percent(share)}) are assigned to this unit. ` +
    `If all ${count(units)} units were used equally, it would be ${percent(1 / units)}.`
  );
}

/** How alike and how pure its images are, beside random sets. */
function coherent(found) {
  const similar = (item, by) =>
    item && `Two of its images have a similarity of ${item.value.toFixed(2)} (random images: ${item.by_chance.toFixed(2)}) under ${by}. `;
  const pure = found.purity;
  return [
    similar(found.monosemanticity, "the encoder's own features"),
    similar(found.judged_monosemanticity, found.judge),
    pure &&
      `${percent(pure.value)} have its most frequent label (random images: ${percent(pure.by_chance)}).`,
  ]
    .filter(Boolean)
    .join("");
}

function labels(answer) {
  const known = answer.labels.reduce((sum, item) => sum + item.count, 0);
  const rows = [...answer.labels]
    .sort((first, second) => second.count - first.count)
    .slice(0, LABELS);
  return element(
    "section",
    { "aria-labelledby": "labels" },
    element("h2", { id: "labels" }, "Labels"),
    bars(
      rows.map((item) => ({
        name: item.label,
        value: item.count / known,
        text: `${percent(item.count / known)} (${count(item.count)})`,
      })),
      { most: 1 },
    ),
  );
}
