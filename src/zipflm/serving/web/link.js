/* The link that brings back what is seen. */

const DEFAULT_TEXT = "My fellow Americans, the state of our Union is strong, and the state of our fish is excellent.";

const fragment = () => {
  const parts = new URLSearchParams();
  parts.set("text", field.value);
  if (view.models.length > 1) parts.set("model", view.first.id);
  if (view.second) parts.set("with", view.second.id);
  return parts.toString();
};

/* The address always brings back what is seen; it is not sent to any server. */
function remember() {
  const isPlain = field.value === DEFAULT_TEXT && view.first === view.models[0] && !view.second;
  const address = location.pathname + location.search + (isPlain ? "" : `#${fragment()}`);
  if (address !== location.pathname + location.search + location.hash) history.replaceState(null, "", address);
}

function follow() {
  const parts = new URLSearchParams(location.hash.slice(1));
  const missing = ["model", "with"].map((name) => parts.get(name)).filter((id) => id && !modelOf(id));
  field.value = parts.get("text") ?? DEFAULT_TEXT;
  view.anchor = NO_ANCHOR;
  pinned = -1;
  view.rows = [];
  chooseModels(modelOf(parts.get("model")) ?? view.models[0], modelOf(parts.get("with")));
  if (missing.length) say(`The link names ${missing.join(" and ")}, which this server does not have.`, true);
}

addEventListener("hashchange", follow);

byId("share").addEventListener("click", (event) => copy(`${location.origin}${location.pathname}#${fragment()}`, event.currentTarget, "Link copied"));

async function copy(text, button, done) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    /* Not on a page without https: the old way. */
    const helper = element("textarea", { class: "unseen" });
    helper.value = text;
    document.body.append(helper);
    helper.select();
    document.execCommand("copy");
    helper.remove();
    button.focus();
  }
  const label = button.dataset.label ?? (button.dataset.label = button.textContent);
  button.textContent = done;
  say(done);
  setTimeout(() => (button.textContent = label), 1600);
}

function say(message, isSeen = false) {
  byId("said").textContent = message;
  byId("said").classList.toggle("unseen", !isSeen);
}
