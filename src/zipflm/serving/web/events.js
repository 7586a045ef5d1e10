/* Input events: typing, tapping, pointing, keys. */

const LONG_TEXT = 1200; /* words; longer texts are colored after a pause in typing */

let isComposing = false, pinned = -1;

function onInput() {
  if (isFresh()) return restoreAnswers();
  view.rows = keepWords(view.rows, view.text, field.value);
  view.text = field.value;
  view.anchor = { offset: field.selectionStart, isEnd: false };
  view.pointed = -1;
  view.chosen = view.rows.length ? anchorIndex() : -1;
  lookup?.abort();
  clearTimeout(lookTimer);
  panel.setAttribute("aria-busy", "true");
  clearTimeout(showTimer);
  if (view.rows.length > LONG_TEXT) showTimer = setTimeout(showText, PAUSE);
  else showText();
  pending?.abort(); /* it is for the old text */
  if (!isComposing) scoreSoon();
}

/* Called when the text equals the scored text again, e.g. after undo. */
function restoreAnswers() {
  pending?.abort();
  clearTimeout(scoreTimer);
  setBusy(false);
  showNotice(null);
  view.anchor = { offset: field.selectionStart, isEnd: false };
  showAnswers();
}

field.addEventListener("input", onInput);
field.addEventListener("compositionstart", () => (isComposing = true));
field.addEventListener("compositionend", () => {
  isComposing = false;
  scoreSoon();
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

onTap((row) => {
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
