/** Builds all elements of the page, so that no text is ever parsed as markup. */

const SVG = "http://www.w3.org/2000/svg";

/**
 * Creates an element with attributes and children; those that are `null` or `false` are left out.
 *
 * `on` holds event listeners. `style` holds CSS properties, set one by one because the security
 * policy of the page forbids style attributes.
 */
export function element(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** The same for SVG elements. */
export function drawing(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(node, { on = {}, style = {}, ...attributes }, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) node.setAttribute(name, "");
    else if (value !== false && value != null) node.setAttribute(name, String(value));
  }
  for (const [name, value] of Object.entries(style)) node.style.setProperty(name, String(value));
  for (const [name, listener] of Object.entries(on)) node.addEventListener(name, listener);
  node.append(...children.flat(3).filter((child) => child != null && child !== false));
  return node;
}

let made = 0;

/** Returns an id that no other element has. */
export function uniqueId(kind) {
  made += 1;
  return `${kind}-${made}`;
}

/** Announces a sentence to screen readers, even if it is the same as the last one. */
export function announce(sentence) {
  const status = document.getElementById("status");
  status.textContent = "";
  requestAnimationFrame(() => (status.textContent = sentence));
}

/** A button that shows and hides the result of `make`, which is called on first use. */
export function disclosure(label, make) {
  const id = uniqueId("more");
  const panel = element("div", { id, class: "disclosed", hidden: true });
  const button = element(
    "button",
    { type: "button", class: "quiet", "aria-expanded": "false", "aria-controls": id },
    label,
  );
  const show = (open) => {
    if (open && !panel.hasChildNodes()) panel.append(make());
    panel.hidden = !open;
    button.setAttribute("aria-expanded", String(open));
  };
  button.addEventListener("click", () => show(panel.hidden));
  const whole = element("div", { class: "disclosure" }, button, panel);
  whole.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || panel.hidden) return;
    show(false);
    button.focus();
  });
  return whole;
}

/** Formulas for those who want them; pages say the same in words first. */
export function formulas(...lines) {
  return disclosure("In formulas", () =>
    element("div", { class: "formulas" }, lines.map((line) => element("p", { class: "hint" }, line))),
  );
}

/** A labeled select; `options` are pairs of value and text. */
export function choice(label, id, options, chosen, changed) {
  const select = element(
    "select",
    { id, on: { change: () => changed(select.value) } },
    options.map(([value, text]) =>
      element("option", { value, selected: String(value) === String(chosen) }, text),
    ),
  );
  return element("label", { class: "choice", for: id }, element("span", {}, label), select);
}

/** A table with a caption, headings and rows of cells; the first cell of a row is its heading. */
export function table(caption, headings, rows, { numeric = true } = {}) {
  return element(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    element(
      "table",
      { class: numeric ? "numeric" : null },
      element("caption", {}, caption),
      element(
        "thead",
        {},
        element(
          "tr",
          {},
          headings.map((text) => element("th", { scope: "col" }, text)),
        ),
      ),
      element(
        "tbody",
        {},
        rows.map(([first, ...cells]) =>
          element(
            "tr",
            {},
            element("th", { scope: "row" }, first),
            cells.map((cell) => element("td", {}, cell)),
          ),
        ),
      ),
    ),
  );
}
