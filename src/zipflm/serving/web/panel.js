/* The word in question: how likely it was, how frequent it is, and what the model expected instead. */

const panel = byId("panel");

/* Everything that is known without asking. `sides` are one or two { model, word } (word null where a
   model splits the text differently), `before` is the text in front of the word. */
function showWord(sides, before) {
  const { word } = sides[0];
  const title = byId("panel-word");
  title.replaceChildren(word.isEnd ? element("span", { class: "special" }, "\u21b5 end of line") : word.word);
  const line = before.slice(before.lastIndexOf("\n") + 1).trimEnd();
  const context = line.length > 46 ? `\u2026${line.slice(-46).replace(/^\S*\s/, " ")}` : line;
  byId("panel-context").replaceChildren(
    line ? element("span", {}, context) : element("i", {}, before.trim() ? "at the beginning of a line" : "at the beginning"),
    " ", element("span", { class: "blank", "aria-hidden": "true" }),
  );
  panel.dataset.filled = "true";
  showFacts(sides, sides.map(() => null));
  showSources(sides, []);
}

function showFacts(sides, details) {
  const facts = sides.map((side, i) => factsOf(side, details[i]));
  const names = ["Surprise", "Probability", "Rank", "In training", "Band"];
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
    const who = sides.length > unknown.length ? unknown[0].model.label : "The model";
    holder.append(element("p", { class: "remark" }, `${who} does not know this word and reads `, element("code", {}, "<unk>"),
      ": the numbers are those of all unknown words together."));
  }
}

/* Where the probability came from, of a model with memories. */
function showSources(sides, details) {
  const known = details.flatMap((detail, i) => (detail?.sources?.length ? [[sides[i].model, detail.sources]] : []));
  byId("panel-sources").replaceChildren(...known.flatMap(([model, sources]) => {
    const total = sources.reduce((sum, source) => sum + source.probability, 0);
    const parts = sources.map(({ name, probability, neighbours = [] }) => element("li", { "data-source": name },
      element("span", { class: "name" }, name), " ", element("b", {}, percent(total > 0 ? probability / total : 0)),
      neighbours.map(({ context, word }) => element("p", { class: "neighbour" }, `\u2026${context} `, element("b", {}, word)))));
    const whose = sides.length > 1 ? ` (${model.label})` : "";
    return [element("h3", {}, `Where the probability came from${whose}`), element("ul", { class: "sources" }, parts)];
  }));
}

function factsOf({ model, word }, detail) {
  if (!word) return Object.fromEntries(["Surprise", "Probability", "Rank", "In training", "Band"].map((name) => [name, "\u2013"]));
  const p = Math.exp(word.logprob);
  const rank = detail === null ? element("span", { class: "waiting" }, "\u2026") : detail?.rank;
  return {
    Surprise: [element("b", {}, fixed(word.bits, 2)), " bits"],
    Probability: p < 1e-5 ? element("b", {}, oneIn(p)) : [element("b", {}, percent(p)), " ", element("small", {}, oneIn(p))],
    Rank: typeof rank === "number"
      ? [element("b", {}, ordinal(rank)), " ", model.unit === "bpe" ? null : element("small", {}, `of ${count(model.words)}`)]
      : rank ?? element("small", {}, "not among the first ten"),
    "In training": word.isEnd || word.isUnknown
      ? element("small", {}, "not counted")
      : [element("b", {}, count(word.count)), " ", element("small", {}, `${word.count === 1 ? "time" : "times"}${model.unit === "bpe" ? ", its rarest piece" : ""}`)],
    Band: bandOf(model, word),
  };
}

/* From frequent to rare, the word's own band filled in. */
function bandOf(model, word) {
  if (model.bands.length < 2) return element("small", {}, "one for all words");
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

/* Ten words that could stand there. `put` is called with the one that is clicked, `turn` with the number of the
   model whose words are wanted, `takeBack`, unless it is null, when the last one is not wanted after all. */
function showAlternatives(sides, details, shown, { put, turn, takeBack }) {
  const holder = byId("panel-alternatives");
  const { word } = sides[shown];
  const heading = element("h3", {}, sides[0].word.isEnd ? "What could follow" : "What the model expected");
  const tabs = sides.length < 2 ? null : element("div", { class: "switch", role: "group", "aria-label": "Whose alternatives" },
    sides.map(({ model }, i) => element("button", { type: "button", "aria-pressed": String(i === shown), onclick: () => turn(i) }, model.label)));
  const back = takeBack && element("button", { type: "button", class: "quiet", id: "take-back", onclick: takeBack }, "Take back");
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
      "aria-disabled": isUnknown || isSame ? "true" : null, onclick: (event) => (isUnknown || isSame ? null : put(other, event)),
    }, element("span", { class: "share", "aria-hidden": "true" }), element("span", { class: "name" }, name), element("span", { class: "p" }, percent(p)));
    button.style.setProperty("--share", String(most > 0 ? p / most : 0));
    return element("li", {}, button);
  });
  /* Whoever chooses by keyboard stays at the same place of the list. */
  const focused = [...holder.querySelectorAll(".alternatives button")].indexOf(document.activeElement);
  holder.replaceChildren(head, element("ol", { class: "alternatives" }, items));
  if (focused >= 0) items[Math.min(focused, items.length - 1)]?.firstChild.focus();
}

/* Up and down go from one to the next. */
byId("panel-alternatives").addEventListener("keydown", (event) => {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (!step) return;
  const buttons = [...panel.querySelectorAll(".alternatives button")];
  const at = buttons.indexOf(document.activeElement);
  if (at < 0) return;
  event.preventDefault();
  buttons[(at + step + buttons.length) % buttons.length].focus();
});
