/** Named values as horizontal bars. */

import { element } from "./dom.js";

/** `rows` have `name`, `value`, `text`, and perhaps `href`; the longest bar stands for `most`. */
export function bars(rows, { most = Math.max(...rows.map((row) => row.value)) } = {}) {
  return element(
    "ul",
    { class: "bars" },
    rows.map((row) =>
      element(
        "li",
        {},
        row.href ? element("a", { href: row.href }, row.name) : element("span", {}, row.name),
        element(
          "span",
          { class: "track" },
          element("span", { style: { width: width(row.value, most) } }),
        ),
        element("span", { class: "value" }, row.text),
      ),
    ),
  );
}

const width = (value, most) =>
  `${most > 0 ? (100 * Math.min(1, Math.max(0, value / most))).toFixed(1) : 0}%`;
