/** Requests to the server, and the addresses of pictures and pages. */

const KEPT = 300;
const LONGEST = 200;
const answers = new Map();

/** An error whose message is a sentence for the user. */
export class Refusal extends Error {
  /** `details` is the whole response, such as where a query stops making sense. */
  constructor(sentence, details = {}) {
    super(sentence);
    this.details = details;
  }
}

async function readAnswer(response) {
  const answer = await response.json().catch(() => null);
  if (response.ok && answer) return answer;
  throw new Refusal(answer?.error ?? `The server failed with status ${response.status}.`, answer ?? {});
}

async function request(path, options) {
  try {
    return await readAnswer(await fetch(path, options));
  } catch (error) {
    if (error instanceof Refusal || error.name === "AbortError") throw error;
    throw new Refusal("The server is not responding. Is `imsvd explore` still running?");
  }
}

/** Fetches JSON; responses are cached, because the data does not change while the server runs. */
export async function get(path, signal) {
  if (answers.has(path)) return answers.get(path);
  const answer = await request(path, { signal });
  if (answer.ready !== false) answers.set(path, answer);
  if (answers.size > KEPT) answers.delete(answers.keys().next().value);
  return answer;
}

/** All items of a list that the server gives in pages of up to `size`; they are not cached. */
export async function allOf(address, key, size = LONGEST) {
  const items = [];
  for (;;) {
    const answer = await request(`${address}${address.includes("?") ? "&" : "?"}offset=${items.length}&count=${size}`);
    items.push(...answer[key]);
    if (!answer[key].length || items.length >= (answer.shown ?? answer.total)) return items;
  }
}

/** Names and stars of a run; not cached, because `imsvd name` may change them too. */
export const notesOf = (run, signal) => request(`/api/runs/${run}/notes`, { signal });

/** Names or stars a variable or unit; the response has all names and stars. */
export async function changeNotes(run, change) {
  const answer = await request(`/api/runs/${run}/notes`, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(change),
  });
  answers.clear(); // searches and indexes know the new name
  return answer;
}

/** Uploads an image; the response has its name, code and neighbors. */
export function uploadImage(run, file) {
  const type = file.type.startsWith("image/") ? file.type : "application/octet-stream";
  return request(`/api/runs/${run}/uploads`, {
    method: "POST",
    headers: { "Content-Type": type },
    body: file,
  });
}

/** Has the server make a list of paths, which the browser saves under a name. */
export async function download(path, wanted, name) {
  const response = await fetch(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(wanted),
  }).catch(() => null);
  if (!response) throw new Refusal("The server is not responding. Is `imsvd explore` still running?");
  if (!response.ok) await readAnswer(response);
  saveAs(await response.blob(), name);
}

/** Has the browser save a file. */
export function saveAs(content, name) {
  const address = URL.createObjectURL(content);
  const anchor = document.createElement("a");
  anchor.href = address;
  anchor.download = name;
  anchor.click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}

/** The address of the thumbnail of an indexed image. */
export function indexedImage(index, image) {
  return {
    thumbnail: (size) => `/api/indexes/${index.id}/images/${image}/thumbnail?size=${size}&v=${index.key}`,
  };
}

/**
 * Addresses of the thumbnail and the unit maps of an explained image.
 *
 * The key identifies the explanation, so that the browser may cache them permanently.
 */
export function explainedImage(run, image) {
  const base = `/api/runs/${run.id}/images/${image}`;
  return {
    thumbnail: (size) => `${base}/thumbnail?size=${size}&v=${run.key}`,
    map: (variable, unit, size) => `${base}/map/${variable}/${unit}?size=${size}&v=${run.key}`,
  };
}

/** The same for an uploaded image. */
export function uploadedImage(run, id) {
  const base = `/api/uploads/${id}`;
  return {
    thumbnail: (size) => `${base}/thumbnail?size=${size}&run=${run.id}`,
    map: (variable, unit, size) => `${base}/map/${run.id}/${variable}/${unit}?size=${size}`,
  };
}

/** Links between the views. */
export const link = {
  variables: (run) => `#/runs/${run}/variables`,
  variable: (run, variable) => `#/runs/${run}/variables/${variable}`,
  unit: (run, variable, unit) => `#/runs/${run}/units/${variable}/${unit}`,
  images: (run) => `#/runs/${run}/images`,
  image: (run, image) => `#/runs/${run}/images/${image}`,
  dependence: (run, first, second) =>
    `#/runs/${run}/dependence${first == null ? "" : `?m=${first}&n=${second ?? first}`}`,
  training: (run) => `#/runs/${run}/training`,
  upload: (run, id) => `#/runs/${run}/uploads/${id}`,
  compare: (first, second) => `#/compare/${first}/${second}`,
  drift: (index, query = {}) => `#/indexes/${index}/drift${written(query)}`,
  duplicates: (index, query = {}) => `#/indexes/${index}/duplicates${written(query)}`,
  search: (index, query = {}) => `#/indexes/${index}/search${written(query)}`,
};

/** The text of a query with several values for a key; empty values are left out. */
export function written(query) {
  const pairs = Object.entries(query).flatMap(([name, values]) =>
    [values].flat().map((value) => [name, value]),
  );
  const text = new URLSearchParams(pairs.filter(([, value]) => value != null && value !== "")).toString();
  return text && `?${text}`;
}

/** Changes some keys in the query of a hash; `null` removes a key. */
export function withQuery(hash, changes) {
  const [path, text = ""] = hash.split("?");
  const query = new URLSearchParams(text);
  for (const [name, value] of Object.entries(changes)) {
    if (value == null) query.delete(name);
    else query.set(name, value);
  }
  const rest = query.toString();
  return rest ? `${path}?${rest}` : path;
}
