/* The page: what is shown, what happens when, and the link that brings it back. */

const DEFAULT_TEXT = "My fellow Americans, the state of our Union is strong, and the state of our fish is excellent.";
const EXAMPLES = [
  ["a surprise", DEFAULT_TEXT],
  ["a garden path", "The horse raced past the barn fell.\nThe horse that was raced past the barn fell."],
  ["agreement", "The keys to the cabinet are on the table.\nThe keys to the cabinet is on the table."],
  ["scrambled", "We have made great progress in the last year.\nGreat the in we made year last progress have."],
];
const PAUSE = 160; /* milliseconds without typing before a text is sent */
const MANY = 1200; /* words; in longer texts the colours follow when the hand rests */
const NO_ANCHOR = { offset: -1, isEnd: false };
const wide = matchMedia("(min-width: 960px)");
const dark = matchMedia("(prefers-color-scheme: dark)");

const view = {
  models: [],
  first: null,
  second: null,
  colours: "difference" /* or 0 or 1: one of the two models alone */,
  answers: [] /* one per model, all to the same text */,
  rows: [] /* the first model's words with { other, difference }, moved along with edits */,
  text: "" /* that the rows stand in */,
  anchor: NO_ANCHOR /* where the chosen word stands; offset -1 chooses the most surprising one */,
  chosen: -1,
  pointed: -1,
  alternativesOf: 0,
  replaced: null /* the last alternative that was put into the text: { text, edit, anchor } to take it back */,
};

const chosenModels = () => [view.first, view.second].filter(Boolean);
const isComparing = () => view.second !== null;
const isFresh = () => view.answers.length > 0 && view.answers[0].text === field.value;

/* ---- how a word looks ---- */

const valueOf = (row) => {
  if (!isComparing()) return row.bits;
  if (view.colours === "difference") return row.difference;
  return view.colours === 0 ? row.bits : row.other?.bits ?? null;
};

function colourClass(value) {
  if (value === null) return "none";
  if (!isComparing() || view.colours !== "difference") return `s${surpriseStep(value)}`;
  const step = differenceStep(value);
  return step === 0 ? "even" : step > 0 ? `a${step}` : `b${-step}`;
}

function lookOf(row) {
  const value = valueOf(row);
  const isDifference = isComparing() && view.colours === "difference";
  /* As short as can be: there is little room under an "a". */
  const number = value === null ? "" : isDifference ? signed(value, 1).replace(/^(\D)0/, "$1") : String(Math.round(value));
  const isUnknown = row.isUnknown || (isDifference && row.other?.isUnknown);
  return { name: colourClass(value) + (isUnknown ? " unknown" : ""), number };
}

function describe(row) {
  const unknown = row.isUnknown ? ", unknown" : "";
  if (!isComparing()) return `${fixed(row.bits, 1)} bits, ${oneIn(Math.exp(row.logprob))}${unknown}`;
  if (!row.other) return `${fixed(row.bits, 1)} bits${unknown}`;
  return `${view.first.label} ${fixed(row.bits, 1)}, ${view.second.label} ${fixed(row.other.bits, 1)} bits${unknown}`;
}

/* ---- showing ---- */

let showTimer = null;

function showText() {
  clearTimeout(showTimer);
  editor.paint(field.value, view.rows, lookOf);
  editor.mark("chosen", view.chosen);
  editor.mark("pointed", view.pointed);
  strip.bars = view.rows.map((row) => {
    const value = valueOf(row);
    return { value, label: shownWord(row), name: colourClass(value) };
  });
  strip.isDifference = isComparing() && view.colours === "difference";
  const means = view.answers.map((answer) => answer.surprisal / answer.words.length);
  strip.mean = !means.length || strip.isDifference ? null : means[isComparing() ? view.colours : 0];
  showStrip();
}

function showStrip() {
  strip.chosen = view.chosen;
  strip.pointed = view.pointed;
  strip.draw();
  const row = view.rows[view.pointed >= 0 ? view.pointed : view.chosen];
  byId("readout").replaceChildren(...(row ? [element("b", {}, shownWord(row)), ` ${describe(row)}`] : []));
  const at = view.rows[view.chosen];
  stripBox.setAttribute("aria-valuemax", String(view.rows.length));
  stripBox.setAttribute("aria-valuemin", String(Math.min(1, view.rows.length)));
  stripBox.setAttribute("aria-valuenow", String(view.chosen + 1));
  stripBox.setAttribute("aria-valuetext", at ? `${spokenWord(at)}: ${describe(at)}` : "no words yet");
}

function showLegend() {
  const isDifference = isComparing() && view.colours === "difference";
  const swatch = (name, label) => element("span", { class: "step" }, element("i", { class: name }), element("small", {}, label));
  const legend = byId("legend");
  legend.classList.toggle("two", isDifference);
  if (isDifference) {
    const names = ["b4", "b3", "b2", "b1", "even", "a1", "a2", "a3", "a4"], labels = ["4+", "2", "1", "\u00bc", "", "\u00bc", "1", "2", "4+"];
    legend.replaceChildren(element("span", { class: "pole" }, `${view.second.label} ahead`), ...names.map((name, i) => swatch(name, labels[i])),
      element("span", { class: "pole" }, `${view.first.label} ahead`), element("span", { class: "unit" }, "bits"));
  } else {
    const labels = ["0", "", "4", "", "8", "", "12", "", "16+"];
    legend.replaceChildren(element("span", { class: "pole" }, "expected"), ...labels.map((label, i) => swatch(`s${i}`, label)),
      element("span", { class: "pole" }, "surprising"), element("span", { class: "unit" }, "bits"));
  }
  const views = byId("views");
  views.hidden = !isComparing();
  if (!isComparing()) return;
  const choices = [["difference", "Difference"], [0, view.first.label], [1, view.second.label]];
  views.replaceChildren(...choices.map(([which, name]) => element("button", {
    type: "button", "aria-pressed": String(view.colours === which),
    onclick: () => {
      view.colours = which;
      showLegend();
      showText();
      [...views.children].find((button) => button.textContent === name).focus();
    },
  }, name)));
}

function showAnswers() {
  const models = chosenModels();
  const sides = view.answers.map((answer, i) => ({ answer, model: models[i] }));
  const second = view.answers[1]?.words;
  const pairs = second && partners(view.answers[0].words, second);
  view.text = view.answers[0].text;
  view.rows = view.answers[0].words.map((word, i) => {
    const other = second?.[pairs[i]] ?? null;
    /* One <unk> stands for many words: what it is worth says nothing about this one. */
    const isComparable = other && !word.isUnknown && !other.isUnknown;
    return { ...word, other, difference: isComparable ? other.bits - word.bits : null };
  });
  view.pointed = -1;
  view.chosen = anchored();
  fitLetters();
  showText();
  showTotals(sides);
  byId("comparison").hidden = !isComparing();
  if (isComparing()) showComparison(view.rows, models.map((model) => model.label), (row) => choose(row, { open: true }));
  showAllWords();
  showChosen();
  document.body.dataset.ready = "true";
}

/* Letters for a sentence, or for something to be read; in between they stay as they are. */
function fitLetters() {
  const paper = byId("paper"), length = view.text.length;
  paper.classList.toggle("long", length > (paper.classList.contains("long") ? 600 : 900));
}

function showAllWords() {
  if (byId("all-words").open && view.answers.length) showTable(view.rows, chosenModels());
}

function showNothing() {
  view.answers = [];
  view.rows = [];
  view.chosen = view.pointed = -1;
  showText();
  for (const id of ["totals", "comparison"]) byId(id).replaceChildren();
  panel.dataset.open = panel.dataset.filled = "false";
}

/* ---- the chosen word ---- */

/* The index of the word that the anchor stands for. */
function anchored() {
  const { offset, isEnd } = view.anchor;
  if (isEnd) return view.rows.findIndex((row) => row.isEnd && row.start >= offset);
  if (offset >= 0) return wordAt(view.rows, offset);
  const known = view.rows.filter((row) => !row.isEnd && !row.isUnknown);
  const size = (row) => (isComparing() ? Math.abs(row.difference ?? 0) : row.bits);
  const most = known.reduce((best, row) => (best && size(best) >= size(row) ? best : row), null);
  return view.rows.indexOf(most ?? view.rows[0]);
}

function choose(row, { open = false, from = null } = {}) {
  const word = view.rows[row];
  if (!word) return;
  view.anchor = from === null ? { offset: word.isEnd ? word.start : word.start + 1, isEnd: word.isEnd } : { offset: from, isEnd: false };
  const isNew = row !== view.chosen || panel.dataset.filled !== "true";
  view.chosen = row;
  editor.mark("chosen", row);
  showStrip();
  if (open) panel.dataset.open = "true";
  if (isNew) showChosen();
  if (open) keepInSight(editor.nodes[row]);
}

/* The panel covers the lower part of a narrow screen, the strip may cover that of a wide one. */
function keepInSight(node) {
  if (!node) return;
  const limit = innerHeight - (wide.matches ? stripBox.parentElement : panel).offsetHeight;
  const { top, bottom } = node.getBoundingClientRect();
  if (top < 0 || bottom > limit - 24) scrollBy({ top: top - limit / 2, behavior: "instant" });
}

let looking = null, lookTimer = null;

function showChosen() {
  looking?.abort();
  clearTimeout(lookTimer);
  const row = view.rows[view.chosen];
  panel.setAttribute("aria-busy", String(!isFresh()));
  if (!row || !isFresh()) return;
  const models = chosenModels();
  const sides = models.map((model, i) => ({ model, word: i === 0 ? row : row.other }));
  showWord(sides, view.text.slice(0, row.start));
  panel.setAttribute("aria-busy", "true");
  /* Whoever walks along the text with the arrow keys asks at the stops only. */
  lookTimer = setTimeout(() => lookUp(sides), 60);
}

async function lookUp(sides) {
  const mine = (looking = new AbortController());
  const text = view.text;
  try {
    const details = await Promise.all(sides.map(({ model, word }) => word && look(model.id, text, word, mine.signal)));
    if (mine.signal.aborted) return;
    showFacts(sides, details);
    showChoices(sides, details);
    panel.setAttribute("aria-busy", "false");
  } catch (error) {
    if (mine.signal.aborted) return;
    panel.setAttribute("aria-busy", "false");
    if (error.status === 401) return refused(error);
    const again = element("button", { type: "button", class: "quiet", onclick: showChosen }, "Try again");
    byId("panel-alternatives").replaceChildren(element("p", { class: "remark" }, `No alternatives: ${error.message} `, again));
    if (error.wait) lookTimer = setTimeout(showChosen, 1000 * error.wait);
  }
}

function showChoices(sides, details) {
  const shown = Math.min(view.alternativesOf, sides.length - 1);
  const turn = (which) => {
    view.alternativesOf = which;
    showChoices(sides, details);
    panel.querySelectorAll(".switch button")[which].focus();
  };
  const takeBack = view.replaced?.text === view.text ? putBack : null;
  showAlternatives(sides, details, shown, { put, turn, takeBack });
}

/* Puts an alternative in the place of the chosen word. Behind the last word of a line the text grows, and
   what could follow next is shown at once. */
function put(other, event) {
  const word = view.rows[view.chosen];
  if (!word || !isFresh()) return;
  const edit = replacement(field.value, word, other, splitsPunctuation());
  const end = edit.from + edit.insert.length;
  const back = { from: edit.from, to: end, insert: field.value.slice(edit.from, edit.to) };
  const anchor = view.anchor;
  change(edit, { offset: end, isEnd: word.isEnd }, event);
  view.replaced = { text: field.value, edit: back, anchor };
}

/* Where the browser's own undo is out of reach, as it is without a keyboard. */
function putBack(event) {
  const { edit, anchor } = view.replaced;
  view.replaced = null;
  change(edit, anchor, event);
}

function change(edit, anchor, event) {
  editor.edit(edit, event.pointerType !== "touch");
  view.anchor = anchor;
  pinned = edit.from + edit.insert.length;
  if (isFresh()) showAnswers();
  if (event.detail === 0) event.target.closest("button").focus(); /* by keyboard: stay in the list */
}

/* Whether words of this model may touch, as they do where punctuation is split off. */
function splitsPunctuation() {
  const rule = view.first.splitting?.rule;
  if (rule) return rule !== "whitespace";
  return view.rows.some((row, i) => i > 0 && !row.isEnd && !view.rows[i - 1].isEnd && row.start === view.rows[i - 1].end);
}

/* ---- asking ---- */

let asking = null, askTimer = null, busyTimer = null, tries = 0, earliest = 0;

function askSoon() {
  clearTimeout(askTimer);
  const slow = field.value.length > 20000 ? 3 : 1;
  askTimer = setTimeout(askNow, Math.max(PAUSE * slow, earliest - Date.now()));
}

async function askNow() {
  asking?.abort();
  const text = field.value;
  if (!view.first) return;
  if (!text.trim()) {
    busy(false);
    tell(null);
    showNothing();
    remember();
    return;
  }
  const mine = (asking = new AbortController());
  busy(true);
  try {
    const answers = await Promise.all(chosenModels().map((model) => score(model.id, text, mine.signal)));
    if (mine.signal.aborted) return;
    tries = earliest = 0;
    tell(null);
    view.answers = answers;
    showAnswers();
    remember();
  } catch (error) {
    if (mine.signal.aborted) return;
    mine.abort(); /* the other model's question too */
    refused(error);
  }
  busy(false);
}

function busy(is) {
  clearTimeout(busyTimer);
  if (is) busyTimer = setTimeout(() => (byId("sheet").dataset.busy = "true"), 250);
  else byId("sheet").dataset.busy = "false";
}

/* Says what went wrong, right under the text, and tries again where that may help. */
function refused(error) {
  const retry = view.models.length ? askNow : start;
  fitLetters();
  if (error.status === 401) return askForKey(retry);
  if (!(error instanceof Refusal)) {
    tell(`The server's answer cannot be read: ${error.message}`);
    return;
  }
  if (!error.wait) {
    tell(error.message);
    return;
  }
  const seconds = Math.max(error.wait, Math.min(15, 2 ** tries++));
  earliest = Date.now() + 1000 * seconds;
  clearTimeout(askTimer);
  askTimer = setTimeout(retry, 1000 * seconds);
  const why = error.status === 0 ? error.message : `The server is busy: ${error.message}`;
  tell(`${why.replace(/[.\s]*$/, ".")} The text is safe here; trying again in ${plural(Math.round(seconds), "second")}.`, element("button", { type: "button", class: "quiet", onclick: retry }, "Try now"));
}

function tell(message, ...children) {
  const notice = byId("notice");
  notice.hidden = message === null;
  notice.classList.toggle("question", message === "");
  notice.replaceChildren(...(message ? [element("span", {}, message)] : []), ...children);
}

function askForKey(retry) {
  if (byId("key")) {
    byId("key-label").textContent = "The server does not take this key.";
    byId("key").select();
    return;
  }
  const wasGiven = storage("sessionStorage")?.getItem(KEY);
  const input = element("input", { id: "key", type: "password", autocomplete: "off", required: "", "aria-labelledby": "key-label" });
  const form = element("form", { class: "key", onsubmit: (event) => {
    event.preventDefault();
    storage("sessionStorage")?.setItem(KEY, input.value.trim());
    retry();
  } }, element("label", { for: "key", id: "key-label" }, wasGiven ? "The server does not take this key." : "This server asks for an API key."), input, element("button", { type: "submit" }, "Use it"));
  tell("", form);
  if (document.activeElement !== field) input.focus(); /* nobody is interrupted while typing */
}

/* ---- events ---- */

let isComposing = false, pinned = -1;

function edited() {
  if (isFresh()) return seenBefore();
  view.rows = carried(view.rows, view.text, field.value);
  view.text = field.value;
  view.anchor = { offset: field.selectionStart, isEnd: false };
  view.pointed = -1;
  view.chosen = view.rows.length ? anchored() : -1;
  looking?.abort();
  clearTimeout(lookTimer);
  panel.setAttribute("aria-busy", "true");
  clearTimeout(showTimer);
  if (view.rows.length > MANY) showTimer = setTimeout(showText, PAUSE);
  else showText();
  asking?.abort(); /* its answer is to another text */
  if (!isComposing) askSoon();
}

/* An edit taken back: the answers are still here. */
function seenBefore() {
  asking?.abort();
  clearTimeout(askTimer);
  busy(false);
  tell(null);
  view.anchor = { offset: field.selectionStart, isEnd: false };
  showAnswers();
}

field.addEventListener("input", edited);
field.addEventListener("compositionstart", () => (isComposing = true));
field.addEventListener("compositionend", () => {
  isComposing = false;
  askSoon();
});

document.addEventListener("selectionchange", () => {
  if (document.activeElement !== field || field.selectionStart !== field.selectionEnd) return;
  if (field.selectionStart === pinned || !isFresh()) return;
  pinned = -1;
  choose(wordAt(view.rows, field.selectionStart), { from: field.selectionStart });
});

field.addEventListener("click", (event) => {
  const row = editor.under(event.clientX, event.clientY);
  if (row < 0 || field.selectionStart !== field.selectionEnd || !isFresh()) return;
  pinned = field.selectionStart;
  choose(row, { open: true });
});

listenToTaps((row) => {
  const isAgain = row === view.chosen && panel.dataset.open === "true";
  if (isAgain || !isFresh()) return false;
  choose(row, { open: true });
  return true;
});

field.addEventListener("pointermove", (event) => {
  if (event.pointerType !== "touch") point(editor.under(event.clientX, event.clientY));
});
field.addEventListener("pointerleave", () => point(-1));

function point(row) {
  if (row === view.pointed) return;
  view.pointed = row;
  editor.mark("pointed", row);
  showStrip();
}

stripBox.addEventListener("pointermove", (event) => point(strip.under(event.clientX)));
stripBox.addEventListener("pointerleave", () => point(-1));
stripBox.addEventListener("click", (event) => {
  const row = strip.under(event.clientX);
  if (row >= 0) choose(row, { open: true });
});
stripBox.addEventListener("keydown", (event) => {
  const last = view.rows.length - 1;
  const at = Math.max(0, view.chosen);
  const goal = {
    ArrowRight: at + 1, ArrowUp: at + 1, ArrowLeft: at - 1, ArrowDown: at - 1, PageUp: at + 10, PageDown: at - 10, Home: 0, End: last,
  }[event.key];
  if (event.key === "Enter") toAlternatives();
  if (goal === undefined || event.altKey || event.ctrlKey || event.metaKey) return;
  event.preventDefault();
  choose(Math.max(0, Math.min(last, goal)), { open: true });
});

function toAlternatives() {
  panel.dataset.open = "true";
  (panel.querySelector(".alternatives button") ?? byId("panel-close")).focus();
}

field.addEventListener("keydown", (event) => {
  if (event.key === "ArrowDown" && event.altKey && view.rows.length) {
    event.preventDefault();
    toAlternatives();
  }
});

document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || event.isComposing) return;
  const isInside = panel.contains(document.activeElement);
  panel.dataset.open = "false";
  if (isInside) field.focus({ preventScroll: true });
});

byId("panel-close").addEventListener("click", (event) => {
  panel.dataset.open = "false";
  if (event.detail === 0) field.focus({ preventScroll: true });
});

byId("numbers").addEventListener("click", (event) => {
  const isOn = event.currentTarget.getAttribute("aria-pressed") !== "true";
  event.currentTarget.setAttribute("aria-pressed", String(isOn));
  byId("paper").classList.toggle("numbers", isOn);
});

byId("all-words").addEventListener("toggle", showAllWords);
byId("copy-table").addEventListener("click", (event) => copy(tableText(view.rows, chosenModels()), event.currentTarget, "Table copied"));

new ResizeObserver(() => strip.draw()).observe(stripBox);

/* ---- theme ---- */

const THEME = "zipflm-theme";
const isDark = () => (document.documentElement.dataset.theme ?? (dark.matches ? "dark" : "light")) === "dark";

function showTheme() {
  byId("theme").setAttribute("aria-label", `Switch to the ${isDark() ? "light" : "dark"} theme`);
  strip.draw();
}

byId("theme").addEventListener("click", () => {
  const wanted = isDark() ? "light" : "dark";
  document.documentElement.dataset.theme = wanted;
  storage("localStorage")?.setItem(THEME, wanted);
  showTheme();
});
dark.addEventListener("change", showTheme);

/* ---- models ---- */

function modelsOf(list) {
  const models = list.map(({ id, zipflm = {} }) => ({ id, bands: [], words: 0, unit: "word", ...zipflm }));
  const names = models.map((model) => model.factorization);
  /* ADP-T says more than a folder's name, as long as it says which. */
  for (const model of models) {
    const isOnly = model.factorization && names.filter((name) => name === model.factorization).length === 1;
    model.label = isOnly ? model.factorization : model.id;
  }
  return models;
}

function showModels() {
  const named = (model) => (model.label.toLowerCase() === model.id.toLowerCase() ? model.id : `${model.id} (${model.factorization ?? "model"})`);
  const options = (models) => models.map((model) => element("option", { value: model.id }, named(model)));
  byId("models").hidden = byId("tools").hidden = false;
  byId("first").replaceChildren(...options(view.models));
  byId("first").value = view.first.id;
  const others = view.models.filter((model) => model !== view.first);
  byId("second").replaceChildren(element("option", { value: "" }, "nothing"), ...options(others));
  byId("second").value = view.second?.id ?? "";
  byId("second-field").hidden = !others.length;
  const vocabulary = (model) => `${count(model.words)} ${model.unit === "bpe" ? "pieces" : "words"}`;
  const sizes = new Set(chosenModels().map(vocabulary));
  const known = chosenModels().every((model) => model.perplexity);
  const facts = [[...sizes].join(" and ")];
  if (!isComparing() && view.first.bands.length > 1) facts.push(`${view.first.bands.length} bands`);
  if (known) facts.push(`perplexity ${chosenModels().map((model) => perplexity(model.perplexity)).join(" and ")} in validation`);
  byId("about").textContent = facts.join(", ");
  showLegend();
}

function chooseModels(first, second) {
  view.first = first;
  view.second = second === first ? null : second;
  view.colours = "difference";
  view.alternativesOf = 0;
  view.answers = [];
  view.rows = view.rows.map((row) => ({ ...row, other: null, difference: null }));
  showModels();
  showText();
  byId("comparison").hidden = true;
  askNow();
}

const modelOf = (id) => view.models.find((model) => model.id === id) ?? null;
byId("first").addEventListener("change", (event) => {
  const first = modelOf(event.target.value);
  /* Choosing what it was compared with turns the comparison round. */
  chooseModels(first, first === view.second ? view.first : view.second);
});
byId("second").addEventListener("change", (event) => chooseModels(view.first, modelOf(event.target.value)));

/* ---- the link ---- */

const fragment = () => {
  const parts = new URLSearchParams();
  parts.set("text", field.value);
  if (view.models.length > 1) parts.set("model", view.first.id);
  if (view.second) parts.set("with", view.second.id);
  return parts.toString();
};

/* The address always brings back what is seen; it is not sent to any server. */
function remember() {
  const isPlain = field.value === DEFAULT_TEXT && view.first === view.models[0] && !view.second;
  const address = location.pathname + location.search + (isPlain ? "" : `#${fragment()}`);
  if (address !== location.pathname + location.search + location.hash) history.replaceState(null, "", address);
}

function follow() {
  const parts = new URLSearchParams(location.hash.slice(1));
  const missing = ["model", "with"].map((name) => parts.get(name)).filter((id) => id && !modelOf(id));
  field.value = parts.get("text") ?? DEFAULT_TEXT;
  view.anchor = NO_ANCHOR;
  pinned = -1;
  view.rows = [];
  chooseModels(modelOf(parts.get("model")) ?? view.models[0], modelOf(parts.get("with")));
  if (missing.length) say(`The link names ${missing.join(" and ")}, which this server does not have.`, true);
}

addEventListener("hashchange", follow);

byId("share").addEventListener("click", (event) => copy(`${location.origin}${location.pathname}#${fragment()}`, event.currentTarget, "Link copied"));

async function copy(text, button, done) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    /* Not on a page without https: the old way. */
    const helper = element("textarea", { class: "unseen" });
    helper.value = text;
    document.body.append(helper);
    helper.select();
    document.execCommand("copy");
    helper.remove();
    button.focus();
  }
  const label = button.dataset.label ?? (button.dataset.label = button.textContent);
  button.textContent = done;
  say(done);
  setTimeout(() => (button.textContent = label), 1600);
}

function say(message, isSeen = false) {
  byId("said").textContent = message;
  byId("said").classList.toggle("unseen", !isSeen);
}

/* ---- beginning ---- */

for (const [name, text] of EXAMPLES) {
  byId("examples").append(element("button", { type: "button", class: "quiet", onclick: () => {
    editor.edit({ from: 0, to: field.value.length, insert: text }, wide.matches);
    view.anchor = NO_ANCHOR;
    pinned = field.selectionStart;
  } }, name));
}

async function start() {
  try {
    const { data } = await ask("v1/models");
    view.models = modelsOf(data);
    if (!view.models.length) return tell("This server has no model.");
    tell(null);
    follow();
  } catch (error) {
    refused(error);
  }
}

const theme = storage("localStorage")?.getItem(THEME);
if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
field.value = new URLSearchParams(location.hash.slice(1)).get("text") ?? DEFAULT_TEXT;
view.text = field.value;
showText();
showTheme();
start();
