/* Requests to the server. */

const KEY = "zipflm-key";
const getStorage = (kind) => {
  try {
    return window[kind];
  } catch {
    return null; /* forbidden in some private windows */
  }
};

/* A failed request. `wait` is the number of seconds before a retry, null if a retry would not help. */
class RequestError extends Error {
  constructor(status, message, wait = null) {
    super(message);
    this.status = status;
    this.wait = wait;
  }
}

const TEMPORARY = new Set([429, 502, 503, 504]);

async function request(path, body = null, signal = null) {
  const headers = {};
  const key = getStorage("sessionStorage")?.getItem(KEY);
  if (key) headers.Authorization = `Bearer ${key}`;
  if (body) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(path, {
      method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body), signal, cache: "no-store",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new RequestError(0, "The server cannot be reached.", 2);
  }
  const data = await response.json().catch((error) => {
    if (error.name === "AbortError") throw error;
    return null;
  });
  if (response.ok && data) return data;
  const message = data?.error?.message ?? `The server responded with status ${response.status}.`;
  const after = Number(response.headers.get("Retry-After"));
  throw new RequestError(response.status, message, TEMPORARY.has(response.status) ? (after > 0 ? after : 1) : null);
}

/* Scores of a text under one model: { text, words, ...totals }. */
async function score(model, text, signal) {
  const data = await request("score", { model, text: sendable(text) }, signal);
  const { words, ...totals } = data.texts[0];
  return { model, text, words: wordsOf(text, words), ...totals };
}

const lookups = new Map();
const MAX_LOOKUPS = 300;

/* Look up { rank, alternatives, sources } of one word. Later text does not affect them and is not sent. */
async function fetchDetails(model, text, word, signal) {
  /* After a line end, include the line break, because the server ignores a trailing empty line. After a word, include
     everything up to the next space, which can affect how the text is split into words. */
  const rest = word.isEnd ? 1 : text.slice(word.end).search(/\s|$/);
  const upTo = text.slice(0, word.end + rest);
  const key = JSON.stringify([model, upTo, word.index]);
  if (lookups.has(key)) return lookups.get(key);
  const data = await request("score", { model, text: sendable(upTo), top: 10, ranks: true, sources: true, at: [word.index] }, signal);
  const { rank, alternatives, sources } = data.texts[0].words[word.index];
  if (lookups.size >= MAX_LOOKUPS) lookups.delete(lookups.keys().next().value);
  lookups.set(key, { rank, alternatives, sources });
  return { rank, alternatives, sources };
}
