/* When the server is asked, and what happens if it does not answer. */

const PAUSE = 160; /* milliseconds without typing before a text is sent */

let asking = null, askTimer = null, busyTimer = null, tries = 0, earliest = 0;

function askSoon() {
  clearTimeout(askTimer);
  const slow = field.value.length > 20000 ? 3 : 1;
  askTimer = setTimeout(askNow, Math.max(PAUSE * slow, earliest - Date.now()));
}

async function askNow() {
  asking?.abort();
  const text = field.value;
  if (!view.first) return;
  if (!text.trim()) {
    busy(false);
    tell(null);
    showNothing();
    remember();
    return;
  }
  const mine = (asking = new AbortController());
  busy(true);
  try {
    const answers = await Promise.all(chosenModels().map((model) => score(model.id, text, mine.signal)));
    if (mine.signal.aborted) return;
    tries = earliest = 0;
    tell(null);
    view.answers = answers;
    showAnswers();
    remember();
  } catch (error) {
    if (mine.signal.aborted) return;
    mine.abort(); /* the other model's question too */
    refused(error);
  }
  busy(false);
}

function busy(is) {
  clearTimeout(busyTimer);
  if (is) busyTimer = setTimeout(() => (byId("sheet").dataset.busy = "true"), 250);
  else byId("sheet").dataset.busy = "false";
}

/* Says what went wrong, right under the text, and tries again where that may help. */
function refused(error) {
  const retry = view.models.length ? askNow : start;
  fitLetters();
  if (error.status === 401) return askForKey(retry);
  if (!(error instanceof Refusal)) {
    tell(`The server's answer cannot be read: ${error.message}`);
    return;
  }
  if (!error.wait) {
    tell(error.message);
    return;
  }
  const seconds = Math.max(error.wait, Math.min(15, 2 ** tries++));
  earliest = Date.now() + 1000 * seconds;
  clearTimeout(askTimer);
  askTimer = setTimeout(retry, 1000 * seconds);
  const why = error.status === 0 ? error.message : `The server is busy: ${error.message}`;
  tell(`${why.replace(/[.\s]*$/, ".")} The text is safe here; trying again in ${plural(Math.round(seconds), "second")}.`, element("button", { type: "button", class: "quiet", onclick: retry }, "Try now"));
}

function tell(message, ...children) {
  const notice = byId("notice");
  notice.hidden = message === null;
  notice.classList.toggle("question", message === "");
  notice.replaceChildren(...(message ? [element("span", {}, message)] : []), ...children);
}

function askForKey(retry) {
  if (byId("key")) {
    byId("key-label").textContent = "The server does not take this key.";
    byId("key").select();
    return;
  }
  const wasGiven = storage("sessionStorage")?.getItem(KEY);
  const input = element("input", { id: "key", type: "password", autocomplete: "off", required: "", "aria-labelledby": "key-label" });
  const form = element("form", { class: "key", onsubmit: (event) => {
    event.preventDefault();
    storage("sessionStorage")?.setItem(KEY, input.value.trim());
    retry();
  } }, element("label", { for: "key", id: "key-label" }, wasGiven ? "The server does not take this key." : "This server asks for an API key."), input, element("button", { type: "submit" }, "Use it"));
  tell("", form);
  if (document.activeElement !== field) input.focus(); /* nobody is interrupted while typing */
}
