/** Names and stars that the user gives to variables and units; the server keeps them in the run folder. */

import { changeNotes } from "./api.js";
import { announce, element } from "./dom.js";

const LONGEST = 80;

/** "12" for a variable, "12.3" for one of its units: the way queries and `imsvd name` write them. */
export const placeOf = (variable, unit) => (unit == null ? String(variable) : `${variable}.${unit}`);

/** The name of a variable or unit, or "". */
export const nameOf = (run, variable, unit) => run.notes.names[placeOf(variable, unit)] ?? "";

/** Whether a variable or unit is starred. */
export const isStarred = (run, variable, unit) => run.notes.starred.includes(placeOf(variable, unit));

/** "Variable 3", or "Variable 3: texture" if it is named. */
export function titled(title, name) {
  return name ? `${title}: ${name}` : title;
}

/** A star that can be pressed; `title` says what it stars. */
export function starButton(run, variable, unit, title) {
  const place = placeOf(variable, unit);
  const problem = element("span", { class: "hint", role: "alert" });
  const button = element("button", {
    type: "button",
    class: "star",
    id: `star-${place.replace(".", "-")}`,
    "aria-label": `Star ${title}`,
  });
  const draw = () => {
    const starred = isStarred(run, variable, unit);
    button.setAttribute("aria-pressed", String(starred));
    button.title = starred ? "Starred; press to remove the star" : "Star it to find it again on the first page";
    button.textContent = starred ? "★" : "☆";
  };
  button.addEventListener("click", async () => {
    const starred = !isStarred(run, variable, unit);
    problem.textContent = "";
    try {
      Object.assign(run.notes, await changeNotes(run.id, { place, starred }));
      draw();
      announce(starred ? `${title} is starred.` : `The star of ${title} was removed.`);
    } catch (error) {
      problem.textContent = error.message;
    }
  });
  draw();
  return [button, problem];
}

/** A button that opens a field for the name; `reload` draws the page again with the new name. */
export function naming(run, variable, unit, { title, reload }) {
  const name = nameOf(run, variable, unit);
  const problem = element("p", { class: "hint", role: "alert" });
  const input = element("input", {
    id: "name-field",
    type: "text",
    value: name,
    maxlength: LONGEST,
    // As the server has it: queries put names in quotes, and 12.3 is a unit.
    pattern: '(?!\\s*\\d+\\.\\d+\\s*$)[^"]*',
    title: "A word without quotes that is no unit such as 12.3",
    autocomplete: "off",
    placeholder: unit == null ? "such as texture" : "such as stripes",
    "aria-describedby": "name-hint",
  });
  const open = element("button", { type: "button", id: "rename", "aria-expanded": "false" }, name ? "Rename…" : "Name…");
  const show = (opened) => {
    form.hidden = !opened;
    open.setAttribute("aria-expanded", String(opened));
    (opened ? input : open).focus();
  };
  const save = async (event) => {
    event.preventDefault();
    problem.textContent = "";
    try {
      await changeNotes(run.id, { place: placeOf(variable, unit), name: input.value });
      open.focus(); // the page keeps the focus on the control with the same id
      reload();
    } catch (error) {
      problem.textContent = error.message;
    }
  };
  const form = element(
    "form",
    {
      class: "naming",
      hidden: true,
      on: { submit: save, keydown: (event) => event.key === "Escape" && show(false) },
    },
    element("label", { class: "choice", for: "name-field" }, element("span", {}, `Name of ${title}`), input),
    element("button", { type: "submit", id: "name-save" }, "Save name"),
    element("button", { type: "button", on: { click: () => show(false) } }, "Cancel"),
    element(
      "p",
      { class: "hint", id: "name-hint" },
      unit == null
        ? "A word for what its units tell apart. It is kept in the run folder; an empty name removes it."
        : "A word for what its images have in common. It is kept in the run folder, and searches understand it (several words in quotes); an empty name removes it.",
    ),
    problem,
  );
  open.addEventListener("click", () => show(form.hidden));
  return { open, form };
}
