/* Links that restore text and models. */

const DEFAULT_TEXT = "My fellow Americans, the state of our Union is strong, and the state of our fish is excellent.";

const fragment = () => {
  const parts = new URLSearchParams();
  parts.set("text", field.value);
  if (view.models.length > 1) parts.set("model", view.first.id);
  if (view.second) parts.set("with", view.second.id);
  return parts.toString();
};

/* Keep the URL up to date. Its fragment is not sent to the server. */
function updateUrl() {
  const isPlain = field.value === DEFAULT_TEXT && view.first === view.models[0] && !view.second;
  const address = location.pathname + location.search + (isPlain ? "" : `#${fragment()}`);
  if (address !== location.pathname + location.search + location.hash) history.replaceState(null, "", address);
}

function openLink() {
  const parts = new URLSearchParams(location.hash.slice(1));
  const missing = ["model", "with"].map((name) => parts.get(name)).filter((id) => id && !modelOf(id));
  field.value = parts.get("text") ?? DEFAULT_TEXT;
  view.anchor = NO_ANCHOR;
  pinned = -1;
  view.rows = [];
  chooseModels(modelOf(parts.get("model")) ?? view.models[0], modelOf(parts.get("with")));
  if (missing.length) announce(`This server does not have ${missing.join(" and ")}, which the link refers to.`, true);
}

addEventListener("hashchange", openLink);

byId("share").addEventListener("click", (event) => copy(`${location.origin}${location.pathname}#${fragment()}`, event.currentTarget, "Link copied"));

async function copy(text, button, done) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    /* The clipboard API needs https. */
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
  announce(done);
  setTimeout(() => (button.textContent = label), 1600);
}

function announce(message, isSeen = false) {
  byId("announcement").textContent = message;
  byId("announcement").classList.toggle("unseen", !isSeen);
}
