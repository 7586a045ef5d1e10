/* The panel about the selected word: facts, sources of its probability, and alternatives. */

const panel = byId("panel");

/* Show the facts that need no request. `sides` has one { model, word } per model, with a null word if
   the model splits the text differently. `before` is the text before the word. */
function showWord(sides, before) {
  const { word } = sides[0];
  const title = byId("panel-word");
  title.replaceChildren(word.isEnd ? element("span", { class: "special" }, "\u21b5 end of line") : word.word);
  const line = before.slice(before.lastIndexOf("\n") + 1).trimEnd();
  const context = line.length > 46 ? `\u2026${line.slice(-46).replace(/^\S*\s/, " ")}` : line;
  byId("panel-context").replaceChildren(
    line ? element("span", {}, context) : element("i", {}, before.trim() ? "at the start of a line" : "at the start"),
    " ", element("span", { class: "blank", "aria-hidden": "true" }),
  );
  panel.dataset.filled = "true";
  showFacts(sides, sides.map(() => null));
  showSources(sides, []);
}

function showFacts(sides, details) {
  const facts = sides.map((side, i) => factsOf(side, details[i]));
  const names = ["Surprise", "Probability", "Rank", "Count", "Band"];
  const holder = byId("panel-facts");
  const table = element("table", { class: sides.length > 1 ? "facts two" : "facts" });
  if (sides.length > 1) {
    const heads = sides.map(({ model }) => element("th", { scope: "col" }, model.label));
    table.append(element("thead", {}, element("tr", {}, element("td"), heads)));
  }
  const rows = names.map((name) =>
    element("tr", { "data-fact": name.toLowerCase() }, element("th", { scope: "row" }, name), facts.map((fact) => element("td", {}, fact[name]))));
  table.append(element("tbody", {}, rows));
  holder.replaceChildren(table);
  const unknown = sides.filter(({ word }) => word?.isUnknown);
  if (unknown.length) {
    const who = sides.length > unknown.length ? ` of ${unknown[0].model.label}` : "";
    holder.append(element("p", { class: "remark" }, `This word is not in the vocabulary${who}. It is scored as `, element("code", {}, "<unk>"),
      ", like all unknown words."));
  }
}

function showSources(sides, details) {
  const known = details.flatMap((detail, i) => (detail?.sources?.length ? [[sides[i].model, detail.sources]] : []));
  byId("panel-sources").replaceChildren(...known.flatMap(([model, sources]) => {
    const total = sources.reduce((sum, source) => sum + source.probability, 0);
    const parts = sources.map(({ name, probability, neighbors = [] }) => element("li", { "data-source": name },
      element("span", { class: "name" }, name), " ", element("b", {}, percent(total > 0 ? probability / total : 0)),
      neighbors.map(({ context, word }) => element("p", { class: "neighbor" }, `\u2026${context} `, element("b", {}, word)))));
    const whose = sides.length > 1 ? ` (${model.label})` : "";
    return [element("h3", {}, `Sources of the probability${whose}`), element("ul", { class: "sources" }, parts)];
  }));
}

function factsOf({ model, word }, detail) {
  if (!word) return Object.fromEntries(["Surprise", "Probability", "Rank", "Count", "Band"].map((name) => [name, "\u2013"]));
  const p = Math.exp(word.logprob);
  const rank = detail === null ? element("span", { class: "waiting" }, "\u2026") : detail?.rank;
  return {
    Surprise: [element("b", {}, fixed(word.bits, 2)), " bits"],
    Probability: p < 1e-5 ? element("b", {}, oneIn(p)) : [element("b", {}, percent(p)), " ", element("small", {}, oneIn(p))],
    Rank: typeof rank === "number"
      ? [element("b", {}, ordinal(rank)), " ", model.unit === "bpe" ? null : element("small", {}, `of ${count(model.words)}`)]
      : rank ?? element("small", {}, "not in the top ten"),
    Count: word.isEnd || word.isUnknown
      ? element("small", {}, "not counted")
      : [element("b", {}, count(word.count)), " ", element("small", {}, model.unit === "bpe" ? "of its rarest piece" : "in the vocabulary")],
    Band: bandOf(model, word),
  };
}

/* All bands from frequent to rare, with that of the word filled in. */
function bandOf(model, word) {
  if (model.bands.length < 2) return element("small", {}, "only one band");
  const blocks = model.bands.map((_, i) => element("i", { class: i === word.band ? "on" : null }));
  const { first, last } = model.bands[word.band] ?? {};
  const words = first === undefined ? "" : `words ${count(first)} to ${count(last)} by frequency`;
  const name = word.band === 0 ? "frequent" : word.band === model.bands.length - 1 ? "rare" : "in between";
  return [
    element("span", { class: "band", "aria-hidden": "true" }, blocks),
    element("b", {}, `${word.band + 1} of ${model.bands.length}`),
    " ",
    element("small", {}, [name, words].filter(Boolean).join(": ")),
  ];
}

/* Show the most likely words. Callbacks: `replaceWord` for a clicked word, `switchModel` to show another
   model, `undo` (or null) to revert the last replacement. */
function showAlternatives(sides, details, shown, { replaceWord, switchModel, undo }) {
  const holder = byId("panel-alternatives");
  const { word } = sides[shown];
  const heading = element("h3", {}, sides[0].word.isEnd ? "Likely next words" : "What the model expected");
  const tabs = sides.length < 2 ? null : element("div", { class: "switch", role: "group", "aria-label": "Model" },
    sides.map(({ model }, i) => element("button", { type: "button", "aria-pressed": String(i === shown), onclick: () => switchModel(i) }, model.label)));
  const back = undo && element("button", { type: "button", class: "quiet", id: "take-back", onclick: undo }, "Undo");
  const head = element("div", { class: "choices-head" }, heading, back, tabs);
  const alternatives = details[shown]?.alternatives;
  if (!alternatives) {
    holder.replaceChildren(head, element("p", { class: "remark" }, word ? "\u2026" : "This model splits the text differently here."));
    return;
  }
  const most = Math.exp(alternatives[0]?.logprob ?? 0);
  const items = alternatives.map(({ word: other, logprob }) => {
    const p = Math.exp(logprob);
    const isUnknown = other === "<unk>";
    const isSame = other === word.word;
    const name = other === "</s>" ? [element("span", { class: "special" }, "\u21b5 end of line")] : [other];
    if (isUnknown) name.push(element("small", {}, " any unknown word"));
    const button = element("button", {
      type: "button", class: isSame ? "same" : null, "aria-current": isSame ? "true" : null,
      "aria-disabled": isUnknown || isSame ? "true" : null, onclick: (event) => (isUnknown || isSame ? null : replaceWord(other, event)),
    }, element("span", { class: "share", "aria-hidden": "true" }), element("span", { class: "name" }, name), element("span", { class: "p" }, percent(p)));
    button.style.setProperty("--share", String(most > 0 ? p / most : 0));
    return element("li", {}, button);
  });
  /* Keep the keyboard focus at the same position of the list. */
  const focused = [...holder.querySelectorAll(".alternatives button")].indexOf(document.activeElement);
  holder.replaceChildren(head, element("ol", { class: "alternatives" }, items));
  if (focused >= 0) items[Math.min(focused, items.length - 1)]?.firstChild.focus();
}

byId("panel-alternatives").addEventListener("keydown", (event) => {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (!step) return;
  const buttons = [...panel.querySelectorAll(".alternatives button")];
  const at = buttons.indexOf(document.activeElement);
  if (at < 0) return;
  event.preventDefault();
  buttons[(at + step + buttons.length) % buttons.length].focus();
});
