/* The selected word: finding it, looking up details, and replacing it. */

const wide = matchMedia("(min-width: 960px)");

function anchorIndex() {
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
  if (open) scrollIntoReach(editor.nodes[row]);
}

/* Scroll to a word that is off the screen, or covered by the panel or the strip. */
function scrollIntoReach(node) {
  if (!node) return;
  const limit = innerHeight - (wide.matches ? stripBox.parentElement : panel).offsetHeight;
  const { top, bottom } = node.getBoundingClientRect();
  if (top < 0 || bottom > limit - 24) scrollBy({ top: top - limit / 2, behavior: "instant" });
}

let lookup = null, lookTimer = null;

function showChosen() {
  lookup?.abort();
  clearTimeout(lookTimer);
  const row = view.rows[view.chosen];
  panel.setAttribute("aria-busy", String(!isFresh()));
  if (!row || !isFresh()) return;
  const models = chosenModels();
  const sides = models.map((model, i) => ({ model, word: i === 0 ? row : row.other }));
  showWord(sides, view.text.slice(0, row.start));
  panel.setAttribute("aria-busy", "true");
  /* Wait a moment, so that moving along the text with arrow keys sends few requests. */
  lookTimer = setTimeout(() => lookUp(sides), 60);
}

async function lookUp(sides) {
  const controller = (lookup = new AbortController());
  const text = view.text;
  try {
    const details = await Promise.all(sides.map(({ model, word }) => word && fetchDetails(model.id, text, word, controller.signal)));
    if (controller.signal.aborted) return;
    showFacts(sides, details);
    showSources(sides, details);
    showChoices(sides, details);
    panel.setAttribute("aria-busy", "false");
  } catch (error) {
    if (controller.signal.aborted) return;
    panel.setAttribute("aria-busy", "false");
    if (error.status === 401) return handleError(error);
    const again = element("button", { type: "button", class: "quiet", onclick: showChosen }, "Try again");
    byId("panel-alternatives").replaceChildren(element("p", { class: "remark" }, `No alternatives: ${error.message} `, again));
    if (error.wait) lookTimer = setTimeout(showChosen, 1000 * error.wait);
  }
}

function showChoices(sides, details) {
  const shown = Math.min(view.alternativesOf, sides.length - 1);
  const switchModel = (which) => {
    view.alternativesOf = which;
    showChoices(sides, details);
    panel.querySelectorAll(".switch button")[which].focus();
  };
  const undo = view.replaced?.text === view.text ? undoReplace : null;
  showAlternatives(sides, details, shown, { replaceWord, switchModel, undo });
}

/* Replace the selected word, or append a word if a line end is selected. */
function replaceWord(other, event) {
  const word = view.rows[view.chosen];
  if (!word || !isFresh()) return;
  const edit = replacement(field.value, word, other, splitsPunctuation());
  const end = edit.from + edit.insert.length;
  const back = { from: edit.from, to: end, insert: field.value.slice(edit.from, edit.to) };
  const anchor = view.anchor;
  change(edit, { offset: end, isEnd: word.isEnd }, event);
  view.replaced = { text: field.value, edit: back, anchor };
}

/* For devices without a keyboard, which have no key for the browser's undo. */
function undoReplace(event) {
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

/* True if the model separates punctuation from words. */
function splitsPunctuation() {
  return view.rows.some((row, i) => i > 0 && !row.isEnd && !view.rows[i - 1].isEnd && row.start === view.rows[i - 1].end);
}
