/* State of the page, and the style of words. */

const NO_ANCHOR = { offset: -1, isEnd: false };

const view = {
  models: [],
  first: null,
  second: null,
  colors: "difference" /* or 0 or 1 for a single model */,
  answers: [] /* one response per model, for the same text */,
  rows: [] /* words of the first model with { other, difference }, adjusted to edits */,
  text: "" /* the text of the rows */,
  anchor: NO_ANCHOR /* position of the selected word; offset -1 selects the highest surprisal or difference */,
  chosen: -1,
  pointed: -1,
  alternativesOf: 0,
  replaced: null /* { text, edit, anchor } to undo the last replacement */,
};

const chosenModels = () => [view.first, view.second].filter(Boolean);
const isComparing = () => view.second !== null;
const isFresh = () => view.answers.length > 0 && view.answers[0].text === field.value;

const valueOf = (row) => {
  if (!isComparing()) return row.bits;
  if (view.colors === "difference") return row.difference;
  return view.colors === 0 ? row.bits : row.other?.bits ?? null;
};

function colorClass(value) {
  if (value === null) return "none";
  if (!isComparing() || view.colors !== "difference") return `s${surpriseStep(value)}`;
  const step = differenceStep(value);
  return step === 0 ? "even" : step > 0 ? `a${step}` : `b${-step}`;
}

function lookOf(row) {
  const value = valueOf(row);
  const isDifference = isComparing() && view.colors === "difference";
  /* As short as possible, to fit below short words. */
  const number = value === null ? "" : isDifference ? signed(value, 1).replace(/^(\D)0/, "$1") : String(Math.round(value));
  const isUnknown = row.isUnknown || (isDifference && row.other?.isUnknown);
  return { name: colorClass(value) + (isUnknown ? " unknown" : ""), number };
}

function describe(row) {
  const unknown = row.isUnknown ? ", unknown" : "";
  if (!isComparing()) return `${fixed(row.bits, 1)} bits, ${oneIn(Math.exp(row.logprob))}${unknown}`;
  if (!row.other) return `${fixed(row.bits, 1)} bits${unknown}`;
  return `${view.first.label} ${fixed(row.bits, 1)}, ${view.second.label} ${fixed(row.other.bits, 1)} bits${unknown}`;
}
