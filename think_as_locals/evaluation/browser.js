// Shows embedded judgements, some at a time. Every text goes into the page as text: nothing here parses HTML.
const PER_PAGE = 20;
const data = JSON.parse(document.getElementById("judgements-data").textContent);
const { items, judgements } = data;
const count = judgements.model.length;
const byId = id => document.getElementById(id);

const element = (tag, properties = {}, ...children) => {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "text") made.textContent = value;
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
};

const named = (names, key) => Object.hasOwn(names, key) ? names[key] : key;
const culture = code => code === null ? "no culture" : named(data.cultures, code);
const filters = {
  model: [data.models.map((name, i) => [i, name]), (i, value) => judgements.model[i] === Number(value)],
  culture: [
    [...new Set(items.culture)].map(code => [code ?? "", culture(code)]).sort((a, b) => a[1].localeCompare(b[1])),
    (i, value) => (items.culture[judgements.item[i]] ?? "") === value,
  ],
  domain: [
    [...new Set(items.domain)].sort().map(name => [name, name]),
    (i, value) => items.domain[judgements.item[i]] === value,
  ],
  outcome: [data.outcomes.map((name, i) => [i, name]), (i, value) => judgements.outcome[i] === Number(value)],
  failure: [data.issues.map(name => [name, name]), (i, value) => judgements.issues[i].includes(value)],
};

const folded = { items: [], judgements: [] };
const matches = (i, words) => {
  const item = judgements.item[i];
  folded.items[item] ??= [items.id[item], items.prompt[item], ...items.responses[item]].join("\n").toLowerCase();
  folded.judgements[i] ??= judgements.completion[i].toLowerCase();
  return words.every(word => folded.items[item].includes(word) || folded.judgements[i].includes(word));
};

let found = [];
let page = 0;

const search = () => {
  const chosen = Object.keys(filters)
    .map(name => [filters[name][1], byId(`filter-${name}`).value])
    .filter(([, value]) => value !== " "); // all: no name is blank
  const words = byId("filter-text").value.toLowerCase().split(/\s+/).filter(Boolean);
  found = [];
  for (let i = 0; i < count; i++) {
    if (chosen.every(([holds, value]) => holds(i, value)) && (!words.length || matches(i, words))) found.push(i);
  }
  page = 0;
  show();
};

const show = () => {
  const pages = Math.max(1, Math.ceil(found.length / PER_PAGE));
  const start = page * PER_PAGE;
  const shown = found.slice(start, start + PER_PAGE);
  const number = value => value.toLocaleString("en-GB");
  byId("shown").textContent = shown.length
    ? `${number(start + 1)} to ${number(start + shown.length)} of ${number(found.length)} found`
    : `none found among ${number(count)}`;
  byId("previous").disabled = page === 0;
  byId("next").disabled = page >= pages - 1;
  byId("cards").replaceChildren(...shown.map(card));
};

const turn = by => {
  page += by;
  show();
  byId("filters").scrollIntoView();
};

const card = i => {
  const item = judgements.item[i];
  const outcome = data.outcomes[judgements.outcome[i]];
  const about = [data.models[judgements.model[i]], culture(items.culture[item]), items.domain[item],
    named(data.languages, items.language[item]), items.id[item]];
  return element("article", {},
    element("p", { class: "meta" },
      element("b", { class: outcome === "right" ? "good" : outcome === "tie" ? "" : "bad", text: outcome }),
      ...about.map(text => element("bdi", { text }))),
    element("h3", { class: "text", dir: "auto", lang: items.language[item], text: items.prompt[item] }),
    element("ol", { class: "responses" }, ...judgements.order[i].map((_, index) => response(i, index))),
    ...completion(i));
};

const response = (i, index) => {
  const best = index === judgements.best[i];
  const scores = judgements.scores[i];
  const tags = [];
  if (best) tags.push(element("bdi", { class: "is-best", text: "✓ best" }));
  if (index === judgements.verdict[i]) tags.push(element("bdi", { text: "chosen" }));
  if (scores) tags.push(element("bdi", { text: `score ${Number(scores[index].toPrecision(4))}` }));
  return element("li", { dir: "auto", ...(best && { class: "best" }) },
    element("bdi", { class: "label", text: "ABCDEFGH"[index] }),
    element("div", {},
      element("div", { class: "text", text: items.responses[judgements.item[i]][judgements.order[i][index]] }),
      element("div", { class: "tags" }, ...tags)));
};

const completion = i => {
  const issues = judgements.issues[i].flatMap((name, k) => [k ? ", " : "", element("code", { text: name })]);
  return [
    ...(issues.length ? [element("p", { class: "issues" }, judgements.verdict[i] === null ? "No verdict: " : "Breaks the format: ", ...issues)] : []),
    ...(judgements.completion[i]
      ? [element("pre", { dir: "auto", tabindex: "0", "aria-label": "Completion", text: judgements.completion[i] })]
      : []),
  ];
};

for (const [name, [options]] of Object.entries(filters)) {
  const select = byId(`filter-${name}`);
  select.append(...options.map(([value, text]) => element("option", { value, text })));
  select.closest("label").hidden = options.length < 2 && name !== "failure" || !options.length;
  select.addEventListener("change", search);
}
let pause;
byId("filter-text").addEventListener("input", () => {
  clearTimeout(pause);
  pause = setTimeout(search, 200);
});
byId("filters").addEventListener("submit", event => event.preventDefault());
byId("previous").addEventListener("click", () => turn(-1));
byId("next").addEventListener("click", () => turn(1));
for (const part of document.querySelectorAll(".needs-script")) part.hidden = false;
search();
