/* The chosen word: which it is, what is known about it, and another in its place. */

const wide = matchMedia("(min-width: 960px)");

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
    showSources(sides, details);
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
