/* Renders the responses: text, strip, legend, totals. */

let showTimer = null;

function showText() {
  clearTimeout(showTimer);
  editor.paint(field.value, view.rows, lookOf);
  editor.mark("chosen", view.chosen);
  editor.mark("pointed", view.pointed);
  strip.bars = view.rows.map((row) => {
    const value = valueOf(row);
    return { value, label: shownWord(row), name: colorClass(value) };
  });
  strip.isDifference = isComparing() && view.colors === "difference";
  const means = view.answers.map((answer) => answer.surprisal / answer.words.length);
  strip.mean = !means.length || strip.isDifference ? null : means[isComparing() ? view.colors : 0];
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
  const isDifference = isComparing() && view.colors === "difference";
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
    type: "button", "aria-pressed": String(view.colors === which),
    onclick: () => {
      view.colors = which;
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
    /* <unk> stands for many words, so its probability cannot be compared. */
    const isComparable = other && !word.isUnknown && !other.isUnknown;
    return { ...word, other, difference: isComparable ? other.bits - word.bits : null };
  });
  view.pointed = -1;
  view.chosen = anchorIndex();
  fitLetters();
  showText();
  showTotals(sides);
  byId("comparison").hidden = !isComparing();
  if (isComparing()) showComparison(view.rows, models.map((model) => model.label), (row) => choose(row, { open: true }));
  showAllWords();
  showChosen();
  document.body.dataset.ready = "true";
}

/* Use smaller letters for long texts. The limits differ, so that the size does not flicker. */
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
