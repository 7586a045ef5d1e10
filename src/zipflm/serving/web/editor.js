/* The text field: a plain <textarea> for editing, above a mirror element that has the same text in the
   same font and shows the colors. */

const field = document.getElementById("text");
const mirror = document.getElementById("mirror");

const editor = {
  pieces: [] /* { text, node, row }: words, the gaps between them, and line ends */,
  nodes: [] /* of the words, by index */,

  /* Show the text. `look` returns the class and the number of a word. Only changed nodes are rebuilt, so
     that typing in a long text stays fast. */
  paint(text, rows, look) {
    const wanted = splitText(text, rows);
    const old = this.pieces;
    const same = (a, b) => a.text === b.text && a.kind === b.kind;
    let head = 0, tail = 0;
    const shortest = Math.min(old.length, wanted.length);
    while (head < shortest && same(old[head], wanted[head])) head++;
    while (tail < shortest - head && same(old[old.length - 1 - tail], wanted[wanted.length - 1 - tail])) tail++;
    for (const piece of old.slice(head, old.length - tail)) piece.node.remove();
    const fresh = document.createDocumentFragment();
    wanted.forEach((piece, i) => {
      if (i < head) piece.node = old[i].node;
      else if (i >= wanted.length - tail) piece.node = old[i - wanted.length + old.length].node;
      else fresh.append((piece.node = makeNode(piece)));
    });
    mirror.insertBefore(fresh, tail ? wanted[wanted.length - tail].node : null);
    this.pieces = wanted;
    this.nodes = [];
    for (const { kind, node, row } of wanted) {
      if (kind === "gap") continue;
      const { name, number } = look(rows[row]);
      const classes = `${kind} ${name}`;
      if (node.className !== classes) node.className = classes;
      if (node.dataset.number !== number) node.dataset.number = number;
      node.dataset.row = row;
      this.nodes[row] = node;
    }
  },

  /* Mark a single word as "chosen" or "pointed". */
  mark(name, row) {
    mirror.querySelector(`.${name}`)?.classList.remove(name);
    this.nodes[row]?.classList.add(name);
  },

  /* Index of the word at a point of the window, or -1. */
  under(x, y) {
    const found = document.elementsFromPoint(x, y).find((node) => node.dataset?.row !== undefined && mirror.contains(node));
    return found ? Number(found.dataset.row) : -1;
  },

  /* Edit as if typed, so that undo works. Without `focus`, the keyboard of a phone stays hidden, but undo
     does not work. */
  edit({ from, to, insert }, focus) {
    if (focus) {
      field.focus({ preventScroll: true });
      field.setSelectionRange(from, to);
      if (document.execCommand("insertText", false, insert)) return;
    }
    field.setRangeText(insert, from, to, "end");
    field.dispatchEvent(new Event("input", { bubbles: true }));
  },
};

function splitText(text, rows) {
  const pieces = [];
  let at = 0;
  rows.forEach((word, row) => {
    if (word.start > at) pieces.push({ kind: "gap", text: text.slice(at, word.start) });
    pieces.push({ kind: word.isEnd ? "end" : "word", text: text.slice(word.start, word.end), row });
    at = word.end;
  });
  /* Without a zero-width space, a final line break would not create a line. */
  const rest = text.slice(at) + (text === "" || text.endsWith("\n") ? "\u200b" : "");
  if (rest) pieces.push({ kind: "gap", text: rest });
  return pieces;
}

function makeNode({ kind, text }) {
  if (kind === "gap") return document.createTextNode(text);
  const node = document.createElement("span");
  node.textContent = text;
  return node;
}

/* The first tap on a word selects it without opening the keyboard, the second one edits it. */
function onTap(tapped) {
  let start = null;
  field.addEventListener("touchstart", (event) => {
    const touch = event.touches[0];
    start = event.touches.length === 1 ? { x: touch.clientX, y: touch.clientY, time: event.timeStamp } : null;
  }, { passive: true });
  field.addEventListener("touchend", (event) => {
    const touch = event.changedTouches[0];
    if (!start || document.activeElement === field || event.timeStamp - start.time > 400) return;
    if (Math.hypot(touch.clientX - start.x, touch.clientY - start.y) > 10) return;
    const row = editor.under(touch.clientX, touch.clientY);
    if (row >= 0 && tapped(row)) event.preventDefault();
  });
}
