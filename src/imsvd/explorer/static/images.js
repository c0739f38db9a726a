/** All images, optionally of one label. */

import { allOf, get, withQuery } from "./api.js";
import { choice, element } from "./dom.js";
import { gallery, pageOf, pager, tile } from "./tiles.js";
import { counted } from "./wording.js";

const PAGE = 60;

export async function imagesView({ run, query, hash, signal }) {
  const page = pageOf(query, PAGE);
  const label = query.get("label") ?? "";
  const chosen = label ? `&label=${encodeURIComponent(label)}` : "";
  const answer = await get(
    `/api/runs/${run.id}/images?offset=${page * PAGE}&count=${PAGE}${chosen}`,
    signal,
  );
  return {
    title: "Images",
    content: [
      element(
        "div",
        { class: "bar" },
        element("h1", { tabindex: "-1" }, "Images"),
        run.labels?.length > 0 && labelChoice(run, hash, label),
      ),
      element(
        "p",
        { class: "lead" },
        `${counted(answer.total, "image")}. Open one to see its code and the images most like it, or drop an image of your own anywhere on this page.`,
      ),
      answer.images.length
        ? gallery(
            answer.images.map((item, place) =>
              tile({
                run,
                image: item.image,
                label: item.label,
                caption: item.label,
                eager: place < 12,
              }),
            ),
            { label: "Images" },
          )
        : element(
            "p",
            { class: "notice" },
            "No images here; choose another label or an earlier page.",
          ),
      pager(hash, page, PAGE, answer.total),
    ],
    tables: [
      {
        name: "Images",
        headings: ["image", "file", "label"],
        rows: async () => {
          const items = await allOf(`/api/runs/${run.id}/images${chosen.replace("&", "?")}`, "images");
          return items.map((item) => [item.image, item.name, item.label]);
        },
      },
    ],
  };
}

function labelChoice(run, hash, label) {
  const options = [["", "all"], ...run.labels.map((name) => [name, name])];
  return choice("Label", "label", options, label, (value) => {
    location.hash = withQuery(hash, { page: null, label: value || null });
  });
}
