// The page of a suite: sortable, filterable tables; profiles; one learning curve a game.

const data = JSON.parse($("data").textContent);
const charts = [];

function shown(cell, [, kind, ours]) {
  if (cell === null) return ours ? "missing" : "";
  if (typeof cell === "string") return cell;
  return kind === "percent" ? number(100 * cell) + "%" : number(cell);
}

// Numbers by size, texts by their letters, with numbers in them by size; missing cells always last.
function compare(a, b, direction) {
  if (a === null || b === null) return (a === null) - (b === null);
  if (typeof a === "number" && typeof b === "number") return direction * (a - b);
  return direction * String(a).localeCompare(String(b), "en", { numeric: true });
}

const hasGap = (row, columns) =>
  columns.some(([, , ours], i) => ours && row[i] === null) ||
  row.some((cell) => { const found = /^(\d+) of (\d+)$/.exec(cell); return found && found[1] !== found[2]; });

class Sorted {
  constructor(table) {
    Object.assign(this, { table, by: null, direction: 1 });
    this.heads = table.columns.map(([title], i) => {
      const button = el("button", { type: "button", class: "plain", onclick: () => this.sort(i) }, title);
      return el("th", { scope: "col", "aria-sort": "none" }, button);
    });
    this.body = el("tbody");
    this.node = el("section", {}, el("h2", {}, table.title),
      el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Table: " + table.title },
        el("table", {}, el("thead", {}, el("tr", {}, ...this.heads)), this.body)),
      ...table.notes.map((note) => el("p", { class: "soft small" }, note)));
    if (!table.rows.length) this.node.querySelector(".scroll").hidden = true;
  }

  sort(i) {
    this.direction = this.by === i ? -this.direction : this.table.columns[i][1] === "text" ? 1 : -1;
    this.by = i;
    this.heads.forEach((head, j) =>
      head.setAttribute("aria-sort", j !== i ? "none" : this.direction > 0 ? "ascending" : "descending"));
    this.draw();
  }

  // The number of rows that are shown.
  draw() {
    const { columns, rows } = this.table, words = $("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
    let kept = rows.filter((row) => {
      const text = row.filter((cell) => typeof cell === "string").join(" ").toLowerCase();
      return words.every((word) => text.includes(word)) && (!$("gaps").checked || hasGap(row, columns));
    });
    if (this.by !== null) kept = [...kept].sort((a, b) => compare(a[this.by], b[this.by], this.direction));
    this.body.replaceChildren(...kept.map((row) => el("tr", {}, ...row.map((cell, i) =>
      el(i ? "td" : "th", i ? { class: cell === null && columns[i][2] ? "gap" : "" } : { scope: "row" }, shown(cell, columns[i]))))));
    return kept.length;
  }
}

const tables = data.tables.map((table) => new Sorted(table));

function draw() {
  const counts = tables.map((table) => table.draw());
  $("count").textContent = `${counts.reduce((a, b) => a + b, 0)} of ${data.tables.reduce((sum, t) => sum + t.rows.length, 0)} rows`;
  const words = $("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  for (const { chart, view, game } of charts) {
    chart.figure.hidden = game && words.length > 0 && !words.every((word) => chart.title.toLowerCase().includes(word));
    chart.draw();
  }
  $("reset").disabled = !charts.some(({ view }) => view.range);
}

// A view shows these charts on one horizontal axis.
function makeView(list) {
  const view = {
    range: null, log: false, logx: false, changed: draw, short: compact,
    ticks: (from, to, count) => ticks(from, to, count),
    xlabel: (x) => number(x) + " " + list[0].xlabel,
    extent: () => {
      const x = list.flatMap((chart) => chart.lines.flatMap((one) => one.x));
      return x.length ? [Math.min(0, ...x), Math.max(...x)] : [0, 1];
    },
  };
  return view;
}

function place(id, heading, note, list, views) {
  if (!list.length) return;
  const made = list.map((spec, i) => {
    const lines = () => spec.lines.map((one, j) => ({ ...one, faint: null, colour: colour(j), dash: dash(j) }));
    const chart = new Chart(spec.title, spec.lines.length ? spec.xlabel : "missing", views[i], lines);
    charts.push({ chart, view: views[i], game: id === "games" });
    return chart.figure;
  });
  const names = [...new Set(list.flatMap((spec) => spec.lines.map((one, j) => `${j}|${one.name}`)))];
  const legend = id === "profiles" ? names.map((text) => {
    const [index, name] = [Number(text.split("|")[0]), text.slice(text.indexOf("|") + 1)];
    return el("label", {}, el("span", { class: "swatch", style: { background: colour(index) } }), name);
  }) : [];
  $(id).replaceChildren(el("h2", {}, heading), el("p", { class: "soft small" }, note),
    el("p", { class: "row small" }, ...legend), el("div", { class: "charts" }, ...made));
}

function drawCharts() {
  charts.length = 0;
  place("profiles", "Performance profiles", "The share of runs above each normalised score; bands: 95% over seeds.",
    data.profiles, data.profiles.map((chart) => makeView([chart])));
  const shared = makeView(data.games);
  place("games", "Learning curves", "Mean return of the last 100 episodes of training; bands: from the lowest to the highest seed.",
    data.games, data.games.map(() => shared));
  draw();
}

$("title").textContent = data.title;
$("about").textContent = `CASA suite, ${data.made}`;
$("facts").replaceChildren(...data.facts.map((fact) => el("li", {}, fact)));
$("tables").replaceChildren(...tables.map((table) => table.node));
$("filter").addEventListener("input", draw);
$("gaps").addEventListener("change", draw);
$("reset").addEventListener("click", () => { for (const { view } of charts) view.range = null; draw(); });
themeButton($("theme"), drawCharts);
drawCharts();
