/** What the page asks the server for. */

const KEPT = 300;
const answers = new Map();

/** An answer that is a sentence about what went wrong. */
export class Refusal extends Error {}

async function readAnswer(response) {
  const answer = await response.json().catch(() => null);
  if (response.ok && answer) return answer;
  throw new Refusal(answer?.error ?? `The server answered with status ${response.status}.`);
}

async function request(path, options) {
  try {
    return await readAnswer(await fetch(path, options));
  } catch (error) {
    if (error instanceof Refusal || error.name === "AbortError") throw error;
    throw new Refusal("The server does not answer. Is `imsvd explore` still running?");
  }
}

/** The JSON at a path. Nothing changes while the server lives, so answers are kept. */
export async function get(path, signal) {
  if (answers.has(path)) return answers.get(path);
  const answer = await request(path, { signal });
  answers.set(path, answer);
  if (answers.size > KEPT) answers.delete(answers.keys().next().value);
  return answer;
}

/** Sends a picture of the visitor; the answer has its number, code and neighbors. */
export function sendPicture(run, file) {
  const type = file.type.startsWith("image/") ? file.type : "application/octet-stream";
  return request(`/api/runs/${run}/uploads`, {
    method: "POST",
    headers: { "Content-Type": type },
    body: file,
  });
}

/**
 * Where the thumbnail and the unit maps of one picture are.
 *
 * The key names the explanation they belong to, so that the browser may keep them for good.
 */
export function sourcePicture(run, image) {
  const base = `/api/runs/${run.id}/images/${image}`;
  return {
    thumbnail: (size) => `${base}/thumbnail?size=${size}&v=${run.key}`,
    map: (variable, unit, size) => `${base}/map/${variable}/${unit}?size=${size}&v=${run.key}`,
  };
}

/** The same of a visitor's picture. */
export function uploadedPicture(run, id) {
  const base = `/api/uploads/${id}`;
  return {
    thumbnail: (size) => `${base}/thumbnail?size=${size}&run=${run.id}`,
    map: (variable, unit, size) => `${base}/map/${run.id}/${variable}/${unit}?size=${size}`,
  };
}

/** Links of the page itself. */
export const link = {
  variables: (run) => `#/runs/${run}/variables`,
  variable: (run, variable) => `#/runs/${run}/variables/${variable}`,
  unit: (run, variable, unit) => `#/runs/${run}/units/${variable}/${unit}`,
  images: (run) => `#/runs/${run}/images`,
  image: (run, image) => `#/runs/${run}/images/${image}`,
  maps: (run, first, second) =>
    `#/runs/${run}/maps${first == null ? "" : `?m=${first}&n=${second ?? first}`}`,
  training: (run) => `#/runs/${run}/training`,
  upload: (run, id) => `#/runs/${run}/uploads/${id}`,
  compare: (first, second) => `#/compare/${first}/${second}`,
};

/** A hash with some of its query changed; `null` removes a key. */
export function withQuery(hash, changes) {
  const [path, text = ""] = hash.split("?");
  const query = new URLSearchParams(text);
  for (const [name, value] of Object.entries(changes)) {
    if (value == null) query.delete(name);
    else query.set(name, value);
  }
  const asked = query.toString();
  return asked ? `${path}?${asked}` : path;
}
