/* The theme, the examples, and the start of the page. */

const dark = matchMedia("(prefers-color-scheme: dark)");
const EXAMPLES = [
  ["a surprise", DEFAULT_TEXT],
  ["a garden path", "The horse raced past the barn fell.\nThe horse that was raced past the barn fell."],
  ["agreement", "The keys to the cabinet are on the table.\nThe keys to the cabinet is on the table."],
  ["scrambled", "We have made great progress in the last year.\nGreat the in we made year last progress have."],
];

const THEME = "zipflm-theme";
const isDark = () => (document.documentElement.dataset.theme ?? (dark.matches ? "dark" : "light")) === "dark";

function showTheme() {
  byId("theme").setAttribute("aria-label", `Switch to the ${isDark() ? "light" : "dark"} theme`);
  strip.draw();
}

byId("theme").addEventListener("click", () => {
  const wanted = isDark() ? "light" : "dark";
  document.documentElement.dataset.theme = wanted;
  getStorage("localStorage")?.setItem(THEME, wanted);
  showTheme();
});
dark.addEventListener("change", showTheme);

for (const [name, text] of EXAMPLES) {
  byId("examples").append(element("button", { type: "button", class: "quiet", onclick: () => {
    editor.edit({ from: 0, to: field.value.length, insert: text }, wide.matches);
    view.anchor = NO_ANCHOR;
    pinned = field.selectionStart;
  } }, name));
}

async function start() {
  try {
    const { data } = await request("v1/models");
    view.models = modelsOf(data);
    if (!view.models.length) return showNotice("This server has no model.");
    showNotice(null);
    openLink();
  } catch (error) {
    handleError(error);
  }
}

const theme = getStorage("localStorage")?.getItem(THEME);
if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
field.value = new URLSearchParams(location.hash.slice(1)).get("text") ?? DEFAULT_TEXT;
view.text = field.value;
showText();
showTheme();
start();
