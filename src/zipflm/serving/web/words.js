/* Words of a text and where they stand. Here a word is
   { word, bits, logprob, band, count, isUnknown, isEnd, start, end, place }:
   offsets are those of JavaScript's strings, `place` is the server's number of the word. */

/* A server counts code points, a string has two units for some of them. */
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

/* What can be sent: halves of pairs and NUL are no text, and are counted like what replaces them. */
function sendable(text) {
  const whole = text.toWellFormed ? text.toWellFormed() : text;
  return whole.replaceAll("\0", "\ufffd");
}

/* Where the lines of a text end. Behind the last line end there is no further line. */
function lineEnds(text) {
  const ends = [];
  for (let at = text.indexOf("\n"); at >= 0; at = text.indexOf("\n", at + 1)) ends.push(at);
  if (!text.endsWith("\n")) ends.push(text.length);
  return ends;
}

/* The words of one of the server's answers to this text. */
function wordsOf(text, records) {
  const offsets = unitOffsets(text);
  const ends = lineEnds(text);
  const typedEnd = /[^\S\n]*<\/s>/iy; /* somebody may have written one out: it has no span either */
  let line = 0, start = 0, end = 0;
  return records.map((record, place) => {
    typedEnd.lastIndex = end;
    const isTyped = !record.span && typedEnd.test(text);
    const isEnd = !record.span && !isTyped;
    if (isTyped) [start, end] = [typedEnd.lastIndex - 4, typedEnd.lastIndex];
    else if (isEnd) start = end = ends[Math.min(line++, ends.length - 1)];
    else [start, end] = offsets ? record.span.map((at) => offsets[at]) : record.span;
    return {
      word: record.word, bits: record.surprisal, logprob: record.logprob, band: record.band, count: record.count,
      isUnknown: record.is_unknown, isEnd, start, end, place,
    };
  });
}

/* The words that an edit has left alone, at their new places. */
function carried(words, before, after) {
  if (before === after) return words;
  const most = Math.min(before.length, after.length);
  let head = 0, tail = 0;
  while (head < most && before[head] === after[head]) head++;
  while (tail < most - head && before[before.length - 1 - tail] === after[after.length - 1 - tail]) tail++;
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

/* The index of the word at an offset: the one around it or just before it, else the next;
   behind the last word of a line, the end of the line. -1 where there is none. */
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

/* Pairs of words of two models that stand at the same place, by index of the first's; where the
   models split a text differently, a word may have no partner. */
function partners(first, second) {
  const key = (word) => (word.isEnd ? `end ${word.start}` : `${word.start} ${word.end}`);
  const places = new Map(second.map((word, i) => [key(word), i]));
  return first.map((word) => places.get(key(word)) ?? -1);
}

const CLOSING = /^[.,;:!?%)\]}\u2026\u201d\u2019\u00bb]+$/;

/* The edit that puts another word in the place of one: { from, to, insert }. `isSplit` says that the
   model splits punctuation off, so that a comma may touch the word before it. */
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
