/** The search field: a combobox that completes the term at the cursor. */

import { get } from "./api.js";
import { announce, element } from "./dom.js";
import { counted } from "./wording.js";

const PATIENCE = 80;
const LONGEST = 100;

/** Where the term that ends at the cursor begins: after the last operator that is not in quotes. */
function termStart(text) {
  let start = 0;
  let quoted = false;
  [...text].forEach((letter, place) => {
    if (letter === '"') quoted = !quoted;
    else if (!quoted && "&|!()".includes(letter)) start = place + 1;
  });
  return start + text.slice(start).length - text.slice(start).trimStart().length;
}

/** An input with a list of completions from `address`; `attributes` are those of the input. */
export function combobox(address, attributes) {
  const id = `${attributes.id}-choices`;
  const list = element("ul", { id, class: "choices", role: "listbox", "aria-label": "Completions", hidden: true });
  const input = element("input", {
    type: "text",
    role: "combobox",
    "aria-autocomplete": "list",
    "aria-expanded": "false",
    "aria-controls": id,
    autocomplete: "off",
    autocapitalize: "off",
    spellcheck: "false",
    ...attributes,
  });
  let waiting = 0;
  let active = -1;

  const close = () => {
    clearTimeout(waiting);
    list.hidden = true;
    list.replaceChildren();
    active = -1;
    input.setAttribute("aria-expanded", "false");
    input.removeAttribute("aria-activedescendant");
  };
  const activate = (place) => {
    const options = [...list.children];
    active = (place + options.length) % options.length;
    options.forEach((option, number) => option.setAttribute("aria-selected", String(number === active)));
    input.setAttribute("aria-activedescendant", options[active].id);
    options[active].scrollIntoView({ block: "nearest" });
  };
  const take = (text) => {
    const cursor = input.selectionStart;
    const start = termStart(input.value.slice(0, cursor));
    const goesOn = text.endsWith(":");
    const put = goesOn ? text : `${text} `;
    input.value = input.value.slice(0, start) + put + input.value.slice(cursor).trimStart();
    input.setSelectionRange(start + put.length, start + put.length);
    input.focus();
    close();
    if (goesOn) suggest();
  };
  const open = (completions) => {
    if (!completions.length || document.activeElement !== input) return close();
    list.replaceChildren(
      ...completions.map(({ text, note }, place) =>
        element(
          "li",
          {
            id: `${id}-${place}`,
            role: "option",
            "aria-selected": "false",
            // Before the input loses the focus.
            on: { pointerdown: (event) => (event.preventDefault(), take(text)) },
          },
          element("span", {}, text),
          note && element("span", { class: "about" }, note),
        ),
      ),
    );
    active = -1;
    input.removeAttribute("aria-activedescendant");
    list.hidden = false;
    input.setAttribute("aria-expanded", "true");
    announce(`${counted(completions.length, "completion")}.`);
  };
  async function suggest() {
    const before = input.value.slice(0, input.selectionStart);
    const start = before.slice(termStart(before));
    if (start.length > LONGEST || /[<>]/.test(start)) return close();
    const answer = await get(`${address}?start=${encodeURIComponent(start)}`).catch(() => null);
    // Unless more has been typed meanwhile.
    if (answer && input.value.slice(0, input.selectionStart) === before) open(answer.completions);
  }
  const keys = {
    ArrowDown: () => (list.hidden ? suggest() : activate(active + 1)),
    ArrowUp: () => !list.hidden && activate(active - 1),
    Enter: () => active >= 0 && take(list.children[active].firstChild.textContent),
    Escape: () => !list.hidden && close(),
  };
  input.addEventListener("keydown", (event) => {
    // Enter without a chosen completion, and Escape without a list, do what they always do.
    const taken = { Enter: active >= 0, Escape: !list.hidden, ArrowUp: !list.hidden, ArrowDown: true };
    if (!taken[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  });
  input.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(suggest, PATIENCE);
  });
  input.addEventListener("blur", close);
  return { input, list, close };
}
