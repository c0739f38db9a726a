/** Bars, and line charts over epochs, readable by pointer, by keys and as a table. */

import { disclosure, drawing, element, table, uniqueId } from "./dom.js";
import { capital, decimal, spaced } from "./wording.js";

const [WIDTH, HEIGHT] = [360, 200];
const EDGE = { left: 48, right: 10, top: 10, bottom: 26 };

/** About `wanted` round numbers between two values. */
export function roundTicks(low, high, wanted = 4) {
  const span = high - low || 1;
  const rough = span / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
  const ticks = [];
  for (let place = Math.ceil(low / step); place * step <= high + step * 1e-9; place += 1) {
    ticks.push(Number((place * step).toPrecision(12)));
  }
  return ticks;
}

function extent(values) {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  if (low === high)
    return low === 0 ? [0, 1] : [low - Math.abs(low) / 2, high + Math.abs(high) / 2];
  const room = (high - low) * 0.05;
  return [low - room, high + room];
}

function scales(lines, bounds) {
  const points = lines.flatMap((line) => line.points);
  const epochs = points.map(([epoch]) => epoch);
  const [first, last] = [Math.min(...epochs), Math.max(...epochs)];
  const [low, high] = extent([
    ...points.map(([, value]) => value),
    ...bounds.map(([, value]) => value),
  ]);
  const across = WIDTH - EDGE.left - EDGE.right;
  const down = HEIGHT - EDGE.top - EDGE.bottom;
  return {
    first,
    last,
    low,
    high,
    x: (epoch) => EDGE.left + (last > first ? (epoch - first) / (last - first) : 0.5) * across,
    y: (value) => EDGE.top + (1 - (value - low) / (high - low)) * down,
    epochAt: (x) => first + ((x - EDGE.left) / across) * (last - first),
  };
}

/**
 * A chart of the quantity `name` over epochs.
 *
 * `about` says in words what it is; `lines` have a `name`, `points` (epoch, value) and the `place` of their color; `bounds` are pairs
 * of name and value, drawn as dashed lines.
 */
export function lineChart({ name, about, lines, bounds = [], level = "h2" }) {
  const shownLines = lines.filter((line) => line.points.length);
  const scale = scales(shownLines, bounds);
  const heading = element(level, { id: uniqueId("chart") }, capital(spaced(name)));
  const reading = element("output", { class: "reading" });
  const rule = drawing("line", {
    class: "rule",
    visibility: "hidden",
    y1: EDGE.top,
    y2: HEIGHT - EDGE.bottom,
  });
  const plot = drawing(
    "svg",
    { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "chart", "aria-hidden": "true" },
    grid(scale),
    boundLines(bounds, scale),
    shownLines.map((line) => path(line, scale)),
    rule,
  );
  const epochs = [
    ...new Set(shownLines.flatMap((line) => line.points.map(([epoch]) => epoch))),
  ].sort((a, b) => a - b);
  let place = epochs.length - 1;
  const move = (to) => {
    place = Math.min(Math.max(to, 0), epochs.length - 1);
    const x = scale.x(epochs[place]);
    rule.setAttribute("visibility", "visible");
    rule.setAttribute("x1", x);
    rule.setAttribute("x2", x);
    reading.textContent = sentence(shownLines, epochs[place]);
  };
  const field = element(
    "div",
    {
      class: "plot",
      tabindex: "0",
      role: "application",
      "aria-roledescription": "chart",
      "aria-labelledby": heading.id,
    },
    plot,
  );
  const follow = (event) => {
    const box = plot.getBoundingClientRect();
    const wanted = scale.epochAt(((event.clientX - box.left) / box.width) * WIDTH);
    const distances = epochs.map((epoch) => Math.abs(epoch - wanted));
    move(distances.indexOf(Math.min(...distances)));
  };
  // A tap has no pointermove before it.
  field.addEventListener("pointerdown", follow);
  field.addEventListener("pointermove", follow);
  const keys = {
    ArrowLeft: () => place - 1,
    ArrowRight: () => place + 1,
    Home: () => 0,
    End: () => epochs.length - 1,
  };
  field.addEventListener("keydown", (event) => {
    if (!keys[event.key]) return;
    event.preventDefault();
    move(keys[event.key]());
  });
  reading.textContent = sentence(shownLines, epochs[place]);
  return element(
    "section",
    { class: "chart-box", "aria-labelledby": heading.id },
    heading,
    about && element("p", { class: "about" }, about),
    field,
    reading,
    shownLines.length > 1 && key(shownLines),
    disclosure("Values as a table", () => valuesTable(name, shownLines, epochs, bounds)),
  );
}

function sentence(lines, epoch) {
  const parts = lines.flatMap((line) => {
    const found = line.points.find(([at]) => at === epoch);
    if (!found) return [];
    return [lines.length > 1 ? `${line.name} ${decimal(found[1])}` : decimal(found[1])];
  });
  return `Epoch ${epoch}: ${parts.join(", ")}`;
}

function grid(scale) {
  const values = roundTicks(scale.low, scale.high).map((value) => [
    drawing("line", {
      class: "grid",
      x1: EDGE.left,
      x2: WIDTH - EDGE.right,
      y1: scale.y(value),
      y2: scale.y(value),
    }),
    drawing(
      "text",
      { class: "tick", x: EDGE.left - 6, y: scale.y(value) + 4, "text-anchor": "end" },
      decimal(value),
    ),
  ]);
  const epochs = roundTicks(scale.first, scale.last, 5)
    .filter(Number.isInteger)
    .map((epoch) =>
      drawing(
        "text",
        { class: "tick", x: scale.x(epoch), y: HEIGHT - 8, "text-anchor": "middle" },
        String(epoch),
      ),
    );
  return drawing("g", {}, values, epochs);
}

/** Dashed lines with their names; names of close lines are placed side by side. */
function boundLines(bounds, scale) {
  const sorted = bounds
    .map(([word, value]) => [word, scale.y(value)])
    .sort((first, second) => first[1] - second[1]);
  let shift = 0;
  return sorted.map(([word, y], place) => {
    const close = place > 0 && y - sorted[place - 1][1] < 26;
    shift = close ? shift + 8 * sorted[place - 1][0].length : 0;
    const name = {
      class: "bound-name",
      x: WIDTH - EDGE.right - shift,
      y: y > HEIGHT / 2 ? y - 4 : y + 12,
    };
    return drawing(
      "g",
      {},
      drawing("line", { class: "bound", x1: EDGE.left, x2: WIDTH - EDGE.right, y1: y, y2: y }),
      drawing("text", { ...name, "text-anchor": "end" }, word),
    );
  });
}

function path(line, scale) {
  const color = `line-${line.place ?? 0}`;
  const steps = line.points.map(
    ([epoch, value], index) =>
      `${index ? "L" : "M"}${scale.x(epoch).toFixed(1)} ${scale.y(value).toFixed(1)}`,
  );
  return line.points.length === 1
    ? drawing("circle", {
        class: `dot ${color}`,
        cx: scale.x(line.points[0][0]),
        cy: scale.y(line.points[0][1]),
        r: 3,
      })
    : drawing("path", { class: `line ${color}`, d: steps.join("") });
}

function key(lines) {
  return element(
    "ul",
    { class: "key" },
    lines.map((line) =>
      element("li", {}, element("span", { class: `swatch line-${line.place}` }), line.name),
    ),
  );
}

function valuesTable(name, lines, epochs, bounds) {
  const rows = epochs.map((epoch) => [
    String(epoch),
    ...lines.map((line) => {
      const found = line.points.find(([at]) => at === epoch);
      return found ? decimal(found[1]) : "–";
    }),
  ]);
  const limits = bounds.map(([word, value]) => [word, ...lines.map(() => decimal(value))]);
  return table(
    capital(spaced(name)),
    ["Epoch", ...lines.map((line) => line.name)],
    [...rows, ...limits],
  );
}

/** Horizontal bars; `rows` have `name`, `value`, `text` and optionally `href`; a full bar is `most`. */
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
