/* Words of a text. A word is { word, bits, logprob, band, count, isUnknown, isEnd, start, end, index }
   with offsets into the JavaScript string; `index` is its index on the server. */

/* UTF-16 offset of every code point, because the server counts code points. Null if they are the same. */
function unitOffsets(text) {
  if (!/[\ud800-\udfff]/.test(text)) return null;
  const offsets = [];
  let offset = 0;
  for (const character of text) {
    offsets.push(offset);
    offset += character.length;
  }
  offsets.push(offset);
  return offsets;
}

/* Replaces unpaired surrogates and NUL, which the server rejects, with characters of the same length. */
function sendable(text) {
  const wellFormed = text.toWellFormed ? text.toWellFormed() : text;
  return wellFormed.replaceAll("\0", "\ufffd");
}

/* Offsets of line ends; a final newline does not start another line. */
function lineEnds(text) {
  const ends = [];
  for (let at = text.indexOf("\n"); at >= 0; at = text.indexOf("\n", at + 1)) ends.push(at);
  if (!text.endsWith("\n")) ends.push(text.length);
  return ends;
}

/* Convert the words in a response from the server. */
function wordsOf(text, records) {
  const offsets = unitOffsets(text);
  const ends = lineEnds(text);
  const typedEnd = /[^\S\n]*<\/s>/iy; /* a </s> in the text has no span either */
  let line = 0, start = 0, end = 0;
  return records.map((record, index) => {
    typedEnd.lastIndex = end;
    const isTyped = !record.span && typedEnd.test(text);
    const isEnd = !record.span && !isTyped;
    if (isTyped) [start, end] = [typedEnd.lastIndex - 4, typedEnd.lastIndex];
    else if (isEnd) start = end = ends[Math.min(line++, ends.length - 1)];
    else [start, end] = offsets ? record.span.map((at) => offsets[at]) : record.span;
    return {
      word: record.word, bits: record.surprisal, logprob: record.logprob, band: record.band, count: record.count,
      isUnknown: record.is_unknown, isEnd, start, end, index,
    };
  });
}

/* The words that an edit did not change, at their new offsets. */
function keepWords(words, before, after) {
  if (before === after) return words;
  const shortest = Math.min(before.length, after.length);
  let head = 0, tail = 0;
  while (head < shortest && before[head] === after[head]) head++;
  while (tail < shortest - head && before[before.length - 1 - tail] === after[after.length - 1 - tail]) tail++;
  const shift = after.length - before.length;
  const isSpace = (text, at) => at < 0 || at >= text.length || /\s/.test(text[at]);
  const kept = [];
  for (const word of words) {
    if (word.isEnd ? word.start < head : word.end < head || (word.end === head && isSpace(after, head))) kept.push(word);
    else if (word.start > before.length - tail || (word.start === before.length - tail && (word.isEnd || isSpace(after, word.start + shift - 1))))
      kept.push({ ...word, start: word.start + shift, end: word.end + shift });
  }
  return kept;
}

/* Index of the word that contains or ends at an offset, else of the next one (which may be a line
   end), else -1. */
function wordAt(words, offset) {
  let next = -1;
  for (let i = 0; i < words.length; i++) {
    const { start, end, isEnd } = words[i];
    if (!isEnd && start < offset && offset <= end) return i;
    if (start >= offset) {
      next = i;
      break;
    }
  }
  return next;
}

/* For each word of the first model, the index of the word of the second model at the same offsets, or
   -1 if the second model splits the text differently. */
function partners(first, second) {
  const key = (word) => (word.isEnd ? `end ${word.start}` : `${word.start} ${word.end}`);
  const indices = new Map(second.map((word, i) => [key(word), i]));
  return first.map((word) => indices.get(key(word)) ?? -1);
}

const CLOSING = /^[.,;:!?%)\]}\u2026\u201d\u2019\u00bb]+$/;

/* The edit { from, to, insert } that replaces a word. `isSplit` means that the model separates
   punctuation, so that no space is needed before a comma. */
function replacement(text, word, other, isSplit) {
  let { start, end } = word;
  if (other === "</s>") {
    while (start > 0 && text[start - 1] === " ") start--;
    while (!word.isEnd && end < text.length && text[end] === " ") end++;
    return { from: start, to: end, insert: "\n" };
  }
  const isSpace = (at) => at < 0 || at >= text.length || /\s/.test(text[at]);
  const touches = isSplit && CLOSING.test(other);
  let insert = other;
  if (touches) while (start > 0 && text[start - 1] === " ") start--;
  else if (!isSpace(start - 1) && (word.isEnd || CLOSING.test(word.word))) insert = ` ${insert}`;
  if (!isSpace(end) && !CLOSING.test(text[end]) && touches) insert += " ";
  return { from: start, to: end, insert };
}
