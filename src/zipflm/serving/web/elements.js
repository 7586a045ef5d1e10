/* Creates DOM elements. Text is never parsed as HTML. */

function element(name, properties = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (value === null || value === undefined) continue;
    if (key === "class") node.className = value;
    else if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value);
  }
  node.append(...children.flat().filter((child) => child !== null));
  return node;
}

const byId = (id) => document.getElementById(id);

/* A word as displayed, and as read by screen readers. */
const shownWord = (word) => (word.isEnd ? "\u21b5" : word.word);
const spokenWord = (word) => (word.isEnd ? "end of line" : word.word);
