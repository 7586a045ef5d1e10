/* Choice of models. */

function modelsOf(list) {
  const models = list.map(({ id, zipflm = {} }) => ({ id, bands: [], words: 0, unit: "word", ...zipflm }));
  const names = models.map((model) => model.factorization);
  /* The label is the factorization if it is unique, otherwise the id. */
  for (const model of models) {
    const isOnly = model.factorization && names.filter((name) => name === model.factorization).length === 1;
    model.label = isOnly ? model.factorization : model.id;
  }
  return models;
}

function showModels() {
  const named = (model) => (model.label.toLowerCase() === model.id.toLowerCase() ? model.id : `${model.id} (${model.factorization ?? "model"})`);
  const options = (models) => models.map((model) => element("option", { value: model.id }, named(model)));
  byId("models").hidden = byId("tools").hidden = false;
  byId("first").replaceChildren(...options(view.models));
  byId("first").value = view.first.id;
  const others = view.models.filter((model) => model !== view.first);
  byId("second").replaceChildren(element("option", { value: "" }, "none"), ...options(others));
  byId("second").value = view.second?.id ?? "";
  byId("second-field").hidden = !others.length;
  const vocabulary = (model) => `${count(model.words)} ${model.unit === "bpe" ? "pieces" : "words"}`;
  const sizes = new Set(chosenModels().map(vocabulary));
  const known = chosenModels().every((model) => model.perplexity);
  const facts = [[...sizes].join(" and ")];
  if (!isComparing() && view.first.bands.length > 1) facts.push(`${view.first.bands.length} bands`);
  if (known) facts.push(`perplexity ${chosenModels().map((model) => perplexity(model.perplexity)).join(" and ")} on the validation set`);
  byId("about").textContent = facts.join(", ");
  showLegend();
}

function chooseModels(first, second) {
  view.first = first;
  view.second = second === first ? null : second;
  view.colors = "difference";
  view.alternativesOf = 0;
  view.answers = [];
  view.rows = view.rows.map((row) => ({ ...row, other: null, difference: null }));
  showModels();
  showText();
  byId("comparison").hidden = true;
  scoreNow();
}

const modelOf = (id) => view.models.find((model) => model.id === id) ?? null;
byId("first").addEventListener("change", (event) => {
  const first = modelOf(event.target.value);
  /* Selecting the second model swaps the two. */
  chooseModels(first, first === view.second ? view.first : view.second);
});
byId("second").addEventListener("change", (event) => chooseModels(view.first, modelOf(event.target.value)));
