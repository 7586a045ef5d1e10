/* Questions to the server that served this page. */

const KEY = "zipflm-key";
const storage = (kind) => {
  try {
    return window[kind];
  } catch {
    return null; /* forbidden in some private windows */
  }
};

/* An answer that is none: `wait` seconds make another try worth while, null says that they do not. */
class Refusal extends Error {
  constructor(status, message, wait = null) {
    super(message);
    this.status = status;
    this.wait = wait;
  }
}

const PASSING = new Set([429, 502, 503, 504]);

async function ask(path, body = null, signal = null) {
  const headers = {};
  const key = storage("sessionStorage")?.getItem(KEY);
  if (key) headers.Authorization = `Bearer ${key}`;
  if (body) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(path, {
      method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body), signal, cache: "no-store",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal(0, "The server cannot be reached.", 2);
  }
  const told = await response.json().catch((error) => {
    if (error.name === "AbortError") throw error;
    return null;
  });
  if (response.ok && told) return told;
  const message = told?.error?.message ?? `The server answered with status ${response.status}.`;
  const after = Number(response.headers.get("Retry-After"));
  throw new Refusal(response.status, message, PASSING.has(response.status) ? (after > 0 ? after : 1) : null);
}

/* Scores of a text under one model: { text, words, ...totals }. */
async function score(model, text, signal) {
  const told = await ask("score", { model, text: sendable(text) }, signal);
  const { words, ...totals } = told.texts[0];
  return { model, text, words: wordsOf(text, words), ...totals };
}

const looked = new Map();
const REMEMBERED = 300;

/* Rank, alternatives and sources of one word: { rank, alternatives, sources }. What comes behind it does not matter to the
   model, so the text is sent up to the end of the stretch that the word stands in. */
async function look(model, text, word, signal) {
  /* With its line break: behind that, an empty line would be none. */
  const rest = word.isEnd ? 1 : text.slice(word.end).search(/\s|$/);
  const upTo = text.slice(0, word.end + rest);
  const key = JSON.stringify([model, upTo, word.place]);
  if (looked.has(key)) return looked.get(key);
  const told = await ask("score", { model, text: sendable(upTo), top: 10, ranks: true, sources: true, at: [word.place] }, signal);
  const { rank, alternatives, sources } = told.texts[0].words[word.place];
  if (looked.size >= REMEMBERED) looked.delete(looked.keys().next().value);
  looked.set(key, { rank, alternatives, sources });
  return { rank, alternatives, sources };
}
