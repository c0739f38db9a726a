/** Formats numbers and names. */

const COUNT = new Intl.NumberFormat("en");

/** 12,345 */
export const count = (value) => COUNT.format(value);

/** "1 image", "2 images" */
export const counted = (value, noun, nouns = `${noun}s`) => `${count(value)} ${value === 1 ? noun : nouns}`;

/** 0.931 → "93%"; shares below 10% keep a digit. */
export function percent(share) {
  const value = 100 * share;
  return `${value !== 0 && Math.abs(value) < 9.95 ? value.toFixed(1) : Math.round(value)}%`;
}

/** Three significant digits, without trailing zeros. */
export function decimal(value) {
  const size = Math.abs(value);
  return (value < 0 ? "−" : "") + positive(size);
}

function positive(size) {
  if (size === 0) return "0";
  if (size >= 1000) return count(Math.round(size));
  if (size < 0.001)
    return size
      .toExponential(1)
      .replace("e-", "\u00a0×\u00a010⁻")
      .replace(/⁻(\d+)$/, raised);
  return String(Number(size.toPrecision(3)));
}

const raised = (_, digits) =>
  `⁻${[...digits].map((digit) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[Number(digit)]).join("")}`;

/** Any value as text: a dash for nothing, "yes" or "no", numbers like `decimal`. */
export function shown(value) {
  if (value == null) return "–";
  if (typeof value === "number") return Number.isInteger(value) ? count(value) : decimal(value);
  if (typeof value === "boolean") return value ? "yes" : "no";
  return String(value);
}

const NAMES = { lr: "learning rate", knn: "kNN", nmi: "NMI" };

/** "share_above_0.9" → "share above 0.9" */
export const spaced = (name) =>
  name
    .replaceAll("/", ", ")
    .split(/[_ ]/)
    .map((word) => NAMES[word] ?? word)
    .join(" ");

/** "share above 0.9" → "Share above 0.9" */
export const capital = (text) =>
  text.startsWith("kNN") ? text : text.charAt(0).toUpperCase() + text.slice(1);
