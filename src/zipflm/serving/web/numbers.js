/* Number formats and color scales. */

const grouped = new Intl.NumberFormat("en-US");
const count = (n) => grouped.format(n);
const plural = (n, one, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`;
const fixed = (x, digits) => x.toFixed(digits).replace("-", "\u2212");
const signed = (x, digits) => {
  const text = fixed(Math.abs(x), digits);
  return Number(text) === 0 ? text : (x < 0 ? "\u2212" : "+") + text;
};

/* Two significant digits, or three above 10%. */
function percent(p) {
  const share = 100 * p;
  if (share >= 99.95) return share === 100 ? "100%" : ">99.9%";
  if (share >= 10) return `${share.toFixed(1)}%`;
  if (share < 1e-6) return "<0.000001%";
  return `${share.toFixed(Math.min(8, 1 - Math.floor(Math.log10(share))))}%`;
}

/* "1 in 31,000": easier to grasp than a tiny percentage. */
function oneIn(p) {
  const n = 1 / p;
  if (n < 1.05) return "nearly certain";
  if (n < 10) return `1 in ${n.toFixed(1)}`;
  if (n >= 1e15) return "less than 1 in 1,000 trillion";
  for (const [size, name] of [[1e12, "trillion"], [1e9, "billion"], [1e6, "million"]]) {
    if (n >= size) return `1 in ${n / size < 10 ? (n / size).toFixed(1) : Math.round(n / size)} ${name}`;
  }
  const digits = 10 ** Math.max(0, Math.floor(Math.log10(n)) - 2);
  return `1 in ${count(Math.round(n / digits) * digits)}`;
}

function ordinal(n) {
  const teen = n % 100 >= 11 && n % 100 <= 13;
  return count(n) + (teen ? "th" : { 1: "st", 2: "nd", 3: "rd" }[n % 10] || "th");
}

function perplexity(x) {
  if (!Number.isFinite(x)) return "\u221e";
  return x < 100 ? x.toFixed(1) : x < 1e7 ? count(Math.round(x)) : x.toExponential(1);
}

const STEP_BITS = 2;
const STEPS = 9;

/* One of nine colors: one per two bits, the last for everything above. */
const surpriseStep = (bits) => Math.min(STEPS - 1, Math.floor(Math.max(0, bits) / STEP_BITS));

const DIFFERENCE_STEPS = [0.25, 1, 2, 4];

/* From 4 (the first model is far ahead) to -4 (the second one is); 0 if they agree. */
function differenceStep(bits) {
  const size = DIFFERENCE_STEPS.filter((limit) => Math.abs(bits) >= limit).length;
  return bits < 0 ? -size : size;
}

/* Frequency bins of the paper. */
const FREQUENCIES = [
  { name: "1 to 10", most: 10 },
  { name: "11 to 100", most: 100 },
  { name: "101 to 1,000", most: 1000 },
  { name: "1,001 to 10,000", most: 10000 },
  { name: "over 10,000", most: Infinity },
];
const frequencyOf = (seen) => FREQUENCIES.findIndex((bin) => seen <= bin.most);
