"use strict";
{
  const one = (selector) => document.querySelector(selector);
  const SHOWN = 25; // samples that are drawn at a time
  const SIGNS = {
    win: ["✓", "win", "passed"], loss: ["✗", "loss", "failed"], tie: ["=", "tie", ""],
    unscored: ["?", "no score", "error"],
  };
  const COLUMNS = ["id", "group", "outcome", "prompt", "promptB", "target", "answer", "answerB",
    "score", "scoreB", "fate", "fateB"];
  const comparisons = JSON.parse(one("#data").textContent).map(({ names, total, rows }) => ({
    names, total, rows: rows.map((row) => Object.fromEntries(COLUMNS.map((name, i) => [name, row[i]]))),
  }));
  let chosen = comparisons[0];
  let found = [];
  let start = 0;

  // Every text of a record becomes a text node, so that nothing in it is markup.
  const make = (tag, className, ...parts) => {
    const element = document.createElement(tag);
    if (className) element.className = className;
    element.append(...parts.filter((part) => part !== null));
    return element;
  };
  const option = (value, text) => {
    const element = make("option", "", text);
    element.value = value;
    return element;
  };

  const isLow = (text, at) => (text.charCodeAt(at) & 0xfc00) === 0xdc00;
  const marked = (text, other) => {
    if (other === null || text === other) return [text];
    const most = Math.min(text.length, other.length);
    let from = 0;
    while (from < most && text[from] === other[from]) from += 1;
    let same = 0;
    while (same < most - from && text.at(-1 - same) === other.at(-1 - same)) same += 1;
    if (isLow(text, from) || isLow(other, from)) from = Math.max(0, from - 1);
    if (same && isLow(text, text.length - same)) same -= 1;
    const to = text.length - same;
    return [text.slice(0, from), make("mark", "", text.slice(from, to)), text.slice(to)];
  };
  const answer = (name, text, other, score, fate) => make("div", "",
    make("h4", "", name, make("span", "unit", ` score ${score ?? "none"}${fate === "scored" ? "" : `, ${fate}`}`)),
    text === null ? make("p", "note", "no answer") : block(marked(text, other)));
  const block = (parts) => {
    const element = make("pre", "", ...parts);
    element.tabIndex = 0;
    return element;
  };
  const sample = (row) => {
    const [glyph, word, kind] = SIGNS[row.outcome];
    const sign = make("span", `sign ${kind}`, make("span", "glyph", glyph), ` ${word}`);
    const [first, second] = chosen.names;
    return make("article", "sample",
      make("h3", "", sign, " ", make("code", "", row.id), row.group === null ? null : make("span", "unit", ` ${row.group}`)),
      row.prompt === null ? null : block([row.prompt]),
      row.promptB === null ? null : make("p", "note", "The second run had another prompt:"),
      row.promptB === null ? null : block([row.promptB]),
      row.target === null ? null : make("p", "", "Target: ", make("code", "", row.target)),
      make("div", "pair",
        answer(first, row.answer, row.answerB, row.score, row.fate),
        answer(second, row.answerB, row.answer, row.scoreB, row.fateB)));
  };

  const draw = () => {
    const end = Math.min(start + SHOWN, found.length);
    one("#rows").replaceChildren(...found.slice(start, end).map(sample));
    for (const mark of document.querySelectorAll("#rows mark")) { // which may be far below the top
      mark.parentElement.scrollTop = mark.offsetTop - mark.parentElement.offsetTop - 60;
    }
    const missing = chosen.total - chosen.rows.length;
    one("#found").textContent = `${found.length ? start + 1 : 0}–${end} of ${found.length}`
      + ` (${chosen.total} changed${missing ? `, of which ${missing} are too many for a page` : ""})`;
    one("#before").disabled = start === 0;
    one("#after").disabled = end === found.length;
  };
  const texts = (run) => {
    run.texts ??= run.rows.map((row) => ["id", "prompt", "promptB", "target", "answer", "answerB"]
      .map((name) => row[name] ?? "").join("\n").toLowerCase());
    return run.texts;
  };
  const filter = () => {
    const words = one("#text").value.toLowerCase().split(/\s+/).filter(Boolean);
    const outcome = one("#outcome").value;
    const group = one("#group").value;
    const lower = words.length ? texts(chosen) : [];
    found = chosen.rows.filter((row, i) => (!outcome || row.outcome === outcome)
      && (!group || row.group === group.slice(1)) && words.every((word) => lower[i].includes(word)));
    start = 0;
    draw();
  };
  const choose = () => {
    chosen = comparisons[Number(one("#run").value)];
    const groups = [...new Set(chosen.rows.map((row) => row.group))].filter((group) => group !== null).sort();
    one("#group").replaceChildren(option("", "all groups"), ...groups.map((group) => option(`=${group}`, group)));
    one("#group").hidden = groups.length === 0;
  };
  const turn = (step) => {
    start += step;
    draw();
    one("#samples").scrollIntoView();
  };

  one("#run").append(...comparisons.map((run, i) => option(i, run.names[1])));
  one("#run").hidden = comparisons.length < 2;
  one("#run").addEventListener("input", choose);
  one("#before").addEventListener("click", () => turn(-SHOWN));
  one("#after").addEventListener("click", () => turn(SHOWN));
  const form = one("#choose");
  form.hidden = false;
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", filter);
  choose();
  filter();
}
