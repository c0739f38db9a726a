/** A matrix as a heat map, readable by pointer, by arrow keys and as a table. */

import { disclosure, element, table } from "./dom.js";
import { decimal } from "./wording.js";

const LIGHT = ["#f3f1ec", "#b9c9ea", "#5f83cf", "#2f4f9e", "#141f45"];
const DARK = ["#1d222a", "#2f4a8c", "#5d86e0", "#a9c4f5", "#fff3cf"];
const TABLE_SIDE = 64;

const darkScheme = window.matchMedia("(prefers-color-scheme: dark)");

/** Minimum and maximum of an array that is too long for the arguments of Math.min. */
export function extremes(numbers) {
  return numbers.reduce(
    ([least, most], number) => [Math.min(least, number), Math.max(most, number)],
    [Infinity, -Infinity],
  );
}

function channels(color) {
  return [1, 3, 5].map((start) => Number.parseInt(color.slice(start, start + 2), 16));
}

/** Interpolates the color of a share from 0 to 1 between the stops of the ramp. */
function colorAt(stops, share) {
  const place = Math.min(Math.max(share, 0), 1) * (stops.length - 1);
  const below = Math.min(Math.floor(place), stops.length - 2);
  return stops[below].map((value, channel) =>
    Math.round(value + (place - below) * (stops[below + 1][channel] - value)),
  );
}

function paint(canvas, values, [least, most]) {
  const stops = (darkScheme.matches ? DARK : LIGHT).map(channels);
  const context = canvas.getContext("2d");
  const pixels = context.createImageData(canvas.width, canvas.height);
  values.flat().forEach((value, place) => {
    const color = colorAt(stops, most > least ? (value - least) / (most - least) : 0);
    pixels.data.set([...color, 255], 4 * place);
  });
  context.putImageData(pixels, 0, 0);
}

const STEPS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

/**
 * A heat map of `values`, colored from 0 (or `least`, if stretched) to `most`.
 *
 * `describe(row, column)` returns the text for a cell; `choose(row, column)`, if given, handles a
 * click or Enter; `start` is the cell marked at first.
 */
export function heatmap({
  id,
  label,
  values,
  least,
  most,
  describe,
  choose,
  start = [0, 0],
  axes,
}) {
  const [rows, columns] = [values.length, values[0].length];
  const canvas = element("canvas", { width: columns, height: rows, "aria-hidden": "true" });
  const cursor = element("span", { class: "cursor" });
  const reading = element("output", { class: "reading" });
  const hint = element(
    "p",
    { class: "hint" },
    `Point at a cell, or use the arrow keys, to read its value${choose ? "; click it, or press Enter, to show that pair" : ""}.`,
  );
  hint.id = `${id}-hint`;
  let cell = start;
  const move = (row, column) => {
    cell = [Math.min(Math.max(row, 0), rows - 1), Math.min(Math.max(column, 0), columns - 1)];
    const place = {
      left: cell[1] / columns,
      top: cell[0] / rows,
      width: 1 / columns,
      height: 1 / rows,
    };
    for (const [name, share] of Object.entries(place))
      cursor.style.setProperty(name, `${100 * share}%`);
    reading.textContent = describe(...cell);
  };
  const field = element(
    "div",
    {
      id,
      class: "heat",
      role: "application",
      "aria-roledescription": "heat map",
      "aria-label": label,
      "aria-describedby": hint.id,
      tabindex: "0",
      style: { "aspect-ratio": `${columns} / ${rows}` },
    },
    canvas,
    cursor,
  );
  const follow = (event) => {
    const box = field.getBoundingClientRect();
    move(
      Math.floor(((event.clientY - box.top) / box.height) * rows),
      Math.floor(((event.clientX - box.left) / box.width) * columns),
    );
  };
  // A tap has no pointermove before it.
  field.addEventListener("pointerdown", follow);
  field.addEventListener("pointermove", follow);
  field.addEventListener("keydown", (event) => {
    const step = STEPS[event.key];
    if (step) move(cell[0] + step[0], cell[1] + step[1]);
    else if (event.key === "Home") move(cell[0], 0);
    else if (event.key === "End") move(cell[0], columns - 1);
    else if (event.key === "Enter" && choose) choose(...cell);
    else return;
    event.preventDefault();
  });
  if (choose) field.addEventListener("click", () => choose(...cell));
  const scale = { stretched: least > most / 2 };
  const ends = element("div", { class: "legend" });
  const repaint = () => {
    const from = scale.stretched ? least : 0;
    paint(canvas, values, [from, most]);
    ends.replaceChildren(...legend(from, most));
  };
  repaint();
  darkScheme.addEventListener("change", function again() {
    if (canvas.isConnected) repaint();
    else darkScheme.removeEventListener("change", again);
  });
  move(...start);
  return element(
    "figure",
    { class: "heat-figure" },
    element(
      "div",
      { class: "heat-axes" },
      element("span", { class: "axis down" }, axes[0]),
      element("span", { class: "axis across" }, axes[1]),
      field,
    ),
    reading,
    element("div", { class: "bar" }, ends, stretching(id, scale, repaint)),
    hint,
    disclosure("Values as a table", () => valuesTable(label, values, cell)),
  );
}

function legend(from, most) {
  return [
    element("span", {}, decimal(from)),
    element("span", { class: "ramp", "aria-hidden": "true" }),
    element("span", {}, decimal(most)),
  ];
}

/** A checkbox that starts the colors at the smallest value instead of 0. */
function stretching(id, scale, repaint) {
  const box = element("input", { type: "checkbox", id: `${id}-stretch`, checked: scale.stretched });
  box.addEventListener("change", () => {
    scale.stretched = box.checked;
    repaint();
  });
  return element("label", { class: "choice", for: box.id }, box, "Stretch contrast");
}

/** The values as a table; of a large matrix, the part around the marked cell. */
function valuesTable(label, values, [row, column]) {
  const from = (place, size) => Math.max(0, Math.min(place - TABLE_SIDE / 2, size - TABLE_SIDE));
  const [top, left] = [from(row, values.length), from(column, values[0].length)];
  const shownRows = values
    .slice(top, top + TABLE_SIDE)
    .map((line) => line.slice(left, left + TABLE_SIDE));
  const whole = shownRows.length === values.length && shownRows[0].length === values[0].length;
  return table(
    whole ? label : `${label}: around the marked cell`,
    ["", ...shownRows[0].map((_, place) => String(left + place))],
    shownRows.map((line, place) => [String(top + place), ...line.map(decimal)]),
  );
}
