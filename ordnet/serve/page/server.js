// Talking to the server: what it answers, or a Problem with words for people.

export class Problem extends Error {}
export class Unknown extends Problem {}

const KEY = "ordnet-token";
let askForToken = async () => null;

export function onTokenNeeded(ask) {
  askForToken = ask;
}

// …/#token=abc: kept for this tab, and taken out of the address so that it is not copied along
const given = new URLSearchParams(location.hash.slice(1)).get("token");
if (given) {
  sessionStorage.setItem(KEY, given);
  history.replaceState(null, "", location.pathname + location.search);
}

let chosen = null; // a model's name; the server's first one answers without it

export function choose(name) {
  chosen = name;
}

const named = (address) =>
  chosen === null ? address : `${address}${address.includes("?") ? "&" : "?"}model=${encodeURIComponent(chosen)}`;

export async function model() {
  return send("GET", named("v1/model"), null, {});
}

export async function health() {
  return send("GET", "healthz", null, {});
}

export async function parse(file, options) {
  return send("POST", named("v1/parse?labels=true&confidence=true"), form({ image: file }), options);
}

/** The upright picture, for kinds of files that this browser cannot show. */
export async function picture(file) {
  const options = { accept: "image/png", kind: "blob" };
  return send("POST", named("v1/parse?what=overlay&strength=0&names=false"), form({ image: file }), options);
}

/** By the parse's key; with the file itself where the server does not keep the parse any more. */
export async function attention(key, file, x, y, signal) {
  try {
    return await send("POST", named("v1/attention"), form({ picture: key, x, y }), { signal });
  } catch (problem) {
    if (!(problem instanceof Unknown)) throw problem;
    return send("POST", named("v1/attention"), form({ image: file, x, y }), { signal });
  }
}

function form(fields) {
  const data = new FormData();
  for (const [name, value] of Object.entries(fields)) data.append(name, value);
  return data;
}

async function send(method, address, body, options) {
  for (;;) {
    const answer = await once(method, address, body, options);
    if (answer.status === 200) return answer.response;
    if (answer.status === 401) {
      const token = await askForToken(sessionStorage.getItem(KEY) !== null);
      if (!token) throw new Problem("Without its token the server parses nothing.");
      sessionStorage.setItem(KEY, token);
      continue;
    }
    const problem = new (answer.status === 404 ? Unknown : Problem)(await words(answer));
    problem.refused = answer.status < 500; // by what was sent
    throw problem;
  }
}

async function words(answer) {
  const body = answer.response instanceof Blob ? JSON.parse(await answer.response.text()) : answer.response;
  return body?.error ?? `The server answered with status ${answer.status}.`;
}

// XMLHttpRequest, because fetch does not tell how much of an upload has gone
function once(method, address, body, { signal, accept = "application/json", kind = "json", onUpload, onSent }) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open(method, address);
    request.responseType = kind;
    request.setRequestHeader("Accept", accept);
    const token = sessionStorage.getItem(KEY);
    if (token) request.setRequestHeader("Authorization", `Bearer ${token}`);
    request.onload = () => resolve(request);
    request.onerror = () => reject(new Problem("The server cannot be reached. Is it still running?"));
    request.onabort = () => reject(new DOMException("given up", "AbortError"));
    request.upload.onprogress = (event) => onUpload?.(event.loaded / event.total);
    request.upload.onload = () => onSent?.();
    signal?.addEventListener("abort", () => request.abort());
    if (signal?.aborted) reject(new DOMException("given up", "AbortError"));
    else request.send(body);
  });
}
