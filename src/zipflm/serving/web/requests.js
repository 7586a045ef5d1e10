/* Decides when to request scores, and handles errors. */

const PAUSE = 160; /* milliseconds without typing before a text is sent */

let pending = null, scoreTimer = null, busyTimer = null, tries = 0, earliest = 0;

function scoreSoon() {
  clearTimeout(scoreTimer);
  const slow = field.value.length > 20000 ? 3 : 1;
  scoreTimer = setTimeout(scoreNow, Math.max(PAUSE * slow, earliest - Date.now()));
}

async function scoreNow() {
  pending?.abort();
  const text = field.value;
  if (!view.first) return;
  if (!text.trim()) {
    setBusy(false);
    showNotice(null);
    showNothing();
    updateUrl();
    return;
  }
  const controller = (pending = new AbortController());
  setBusy(true);
  try {
    const answers = await Promise.all(chosenModels().map((model) => score(model.id, text, controller.signal)));
    if (controller.signal.aborted) return;
    tries = earliest = 0;
    showNotice(null);
    view.answers = answers;
    showAnswers();
    updateUrl();
  } catch (error) {
    if (controller.signal.aborted) return;
    controller.abort(); /* also the request for the other model */
    handleError(error);
  }
  setBusy(false);
}

function setBusy(isBusy) {
  clearTimeout(busyTimer);
  if (isBusy) busyTimer = setTimeout(() => (byId("sheet").dataset.busy = "true"), 250);
  else byId("sheet").dataset.busy = "false";
}

/* Show an error below the text, and retry if that can help. */
function handleError(error) {
  const retry = view.models.length ? scoreNow : start;
  fitLetters();
  if (error.status === 401) return requestKey(retry);
  if (!(error instanceof RequestError)) {
    showNotice(`Cannot read the server's response: ${error.message}`);
    return;
  }
  if (!error.wait) {
    showNotice(error.message);
    return;
  }
  const seconds = Math.max(error.wait, Math.min(15, 2 ** tries++));
  earliest = Date.now() + 1000 * seconds;
  clearTimeout(scoreTimer);
  scoreTimer = setTimeout(retry, 1000 * seconds);
  const why = error.status === 0 ? error.message : `The server cannot answer now: ${error.message}`;
  showNotice(`${why.replace(/[.\s]*$/, ".")} Your text is kept. Trying again in ${plural(Math.round(seconds), "second")}.`, element("button", { type: "button", class: "quiet", onclick: retry }, "Try now"));
}

function showNotice(message, ...children) {
  const notice = byId("notice");
  notice.hidden = message === null;
  notice.classList.toggle("question", message === "");
  notice.replaceChildren(...(message ? [element("span", {}, message)] : []), ...children);
}

function requestKey(retry) {
  if (byId("key")) {
    byId("key-label").textContent = "The server rejected this key.";
    byId("key").select();
    return;
  }
  const wasGiven = getStorage("sessionStorage")?.getItem(KEY);
  const input = element("input", { id: "key", type: "password", autocomplete: "off", required: "", "aria-labelledby": "key-label" });
  const form = element("form", { class: "key", onsubmit: (event) => {
    event.preventDefault();
    getStorage("sessionStorage")?.setItem(KEY, input.value.trim());
    retry();
  } }, element("label", { for: "key", id: "key-label" }, wasGiven ? "The server rejected this key." : "This server requires an API key."), input, element("button", { type: "submit" }, "OK"));
  showNotice("", form);
  if (document.activeElement !== field) input.focus(); /* do not interrupt typing */
}
