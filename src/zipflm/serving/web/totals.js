/* Totals of a text, and the comparison of two models. */

function showTotals(sides) {
  const holder = byId("totals");
  const { answer } = sides[0];
  const total = answer.words.length;
  const ends = answer.words.filter((word) => word.isEnd).length;
  const unknown = sides.map(({ answer }) => answer.words.filter((word) => word.isUnknown).length);
  const perWord = sides.map(({ answer }) => answer.surprisal / answer.words.length);
  const tile = (id, name, values, meaning) => {
    const numbers = values.map((value, i) =>
      element("span", { class: "figure" }, element("b", {}, value), values.length > 1 ? element("small", {}, sides[i].model.label) : null));
    return element("div", { class: "tile", "data-total": id }, element("h3", {}, name), element("p", { class: "figures" }, numbers), element("p", { class: "meaning" }, meaning));
  };
  const values = sides.map(({ answer }) => answer.perplexity);
  const meaning = "As hard as choosing among this many equally likely words. Lower is better.";
  const sizes = sides.map(({ model }) => count(model.words));
  const same = sides.length > 1 && unknown[0] === unknown[1];
  holder.replaceChildren(
    tile("perplexity", "Perplexity", values.map(perplexity), meaning),
    tile("bits", "Bits per word", perWord.map((bits) => fixed(bits, 2)), "Mean surprisal. Each additional bit halves the probability."),
    tile("words", "Words", [count(total - ends)], `plus ${plural(ends, "line end")}, predicted like words and included in all means.`),
    tile("unknown", "Unknown", same ? [count(unknown[0])] : unknown.map(count),
      unknown.some((n) => n > 0) ? "Not in the vocabulary and scored as a single symbol; underlined with dots in the text." : sides.length > 1 ? "All words are in both vocabularies." : `All words are in the vocabulary of ${sizes[0]} entries.`),
  );
}

/* A diverging bar: to the right if the first model is ahead, to the left if the second one is. */
function lead(bits, most) {
  const bar = element("span", { class: `lead ${bits < 0 ? "second" : "first"}`, "aria-hidden": "true" }, element("i"));
  bar.style.setProperty("--share", String(Math.min(1, Math.abs(bits) / most)));
  return bar;
}

function showComparison(rows, names, choose) {
  const holder = byId("comparison");
  const [first, second] = names;
  const both = rows.filter((row) => row.difference !== null);
  if (!both.length) {
    holder.replaceChildren(element("h2", {}, "Where they differ"), element("p", {}, `No words to compare: each is unknown to ${first} or ${second}, or split differently.`));
    return;
  }
  const mean = both.reduce((sum, row) => sum + row.difference, 0) / both.length;
  const ofFirst = both.filter((row) => row.difference >= DIFFERENCE_STEPS[0]).length;
  const ofSecond = both.filter((row) => row.difference <= -DIFFERENCE_STEPS[0]).length;
  const [winner, loser] = mean >= 0 ? [first, second] : [second, first];
  const left = rows.length - both.length;
  const sentence = Math.abs(mean) < 0.005
    ? [element("b", {}, `${first} and ${second} are equally surprised`), " by this text."]
    : [element("b", {}, `${winner} is ${fixed(Math.abs(mean), 2)} bits per word less surprised`), ` than ${loser}.`];
  const even = both.length - ofFirst - ofSecond;
  const tally = `${first} is ahead on ${count(ofFirst)} of ${plural(both.length, "position")}, ${second} on ${count(ofSecond)}${even ? `; on ${count(even)} they are within ${DIFFERENCE_STEPS[0]} bits` : ""}.`;
  const note = left ? ` This excludes ${plural(left, "word")} unknown to one of them or split differently.` : "";
  holder.replaceChildren(
    element("h2", {}, "Where they differ"),
    element("p", { class: "verdict" }, sentence, ` ${tally}${note}`),
    element("div", { class: "columns" },
      frequencies(both, names),
      ranking(rows, both.filter((row) => row.difference > 0), first, choose, (a, b) => b.difference - a.difference),
      ranking(rows, both.filter((row) => row.difference < 0), second, choose, (a, b) => a.difference - b.difference)),
  );
}

function frequencies(both, [first, second]) {
  const bins = FREQUENCIES.map((bin) => ({ ...bin, rows: [] }));
  const ends = { name: "line end", rows: both.filter((row) => row.isEnd) };
  for (const row of both) if (!row.isEnd) bins[frequencyOf(row.count)].rows.push(row);
  const shown = [...bins, ends].filter((bin) => bin.rows.length);
  const mean = (rows) => rows.reduce((sum, row) => sum + row.difference, 0) / rows.length;
  const most = Math.max(0.5, ...shown.map((bin) => Math.abs(mean(bin.rows))));
  return element("table", { class: "bins" },
    element("caption", {}, "By count in the vocabulary"),
    element("thead", { class: "unseen" }, element("tr", {}, ["seen", "words", "", `lead of ${first} over ${second} in bits`].map((head) => element("th", { scope: "col" }, head)))),
    element("tbody", {}, shown.map((bin) => element("tr", {},
      element("th", { scope: "row" }, bin.name), element("td", { class: "of" }, `${count(bin.rows.length)}\u00d7`),
      element("td", {}, lead(mean(bin.rows), most)), element("td", { class: "value" }, signed(mean(bin.rows), 2))))));
}

function ranking(rows, candidates, name, choose, order) {
  const best = [...candidates].sort(order).slice(0, 5);
  const items = best.map((row) => element("li", {}, element("button", { type: "button", onclick: () => choose(rows.indexOf(row)) },
    element("span", { class: "name" }, row.isEnd ? "\u21b5 end of line" : row.word), element("span", { class: "value" }, fixed(Math.abs(row.difference), 1)))));
  return element("div", { class: "ranking" }, element("h3", {}, `Best for ${name}, in bits`), items.length ? element("ol", {}, items) : element("p", { class: "remark" }, "none"));
}

/* ---- the table of all words ---- */

const MAX_TABLE_ROWS = 1000;

function columnsOf(models) {
  const of = (name) => (models.length > 1 ? `${name}, ${models[0].label}` : name);
  const columns = [
    ["word", (row) => spokenWord(row)], [of("bits"), (row) => row.bits.toFixed(3)], [of("probability"), (row) => Math.exp(row.logprob).toPrecision(3)],
    ["count", (row) => (row.isEnd || row.isUnknown ? "" : String(row.count))], [of("band"), (row) => String(row.band + 1)],
    [of("unknown"), (row) => (row.isUnknown ? "yes" : "")],
  ];
  if (models.length > 1) {
    columns.push([`bits, ${models[1].label}`, (row) => row.other?.bits.toFixed(3) ?? ""]);
    columns.push(["difference", (row) => row.difference?.toFixed(3) ?? ""]);
  }
  return columns;
}

function showTable(rows, models) {
  const columns = columnsOf(models);
  byId("table").replaceChildren(element("table", {},
    element("thead", {}, element("tr", {}, columns.map(([name]) => element("th", { scope: "col" }, name)))),
    element("tbody", {}, rows.slice(0, MAX_TABLE_ROWS).map((row) => element("tr", {}, columns.map(([, value]) => element("td", {}, value(row))))))));
  byId("table-note").textContent = rows.length > MAX_TABLE_ROWS ? `Showing ${count(MAX_TABLE_ROWS)} of ${count(rows.length)} rows; copying includes all.` : "";
}

const tableText = (rows, models) => {
  const columns = columnsOf(models);
  return [columns.map(([name]) => name), ...rows.map((row) => columns.map(([, value]) => value(row)))].map((cells) => cells.join("\t")).join("\n");
};
