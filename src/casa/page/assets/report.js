// The report: groups of runs as lines, one chart for each column of the metrics.

let data = JSON.parse($("data").textContent);
const hidden = new Set(); // names of groups
const chosen = () => data.groups.filter((group) => view.env === null || group.env === view.env);
const isShown = (group) => !hidden.has(group.name) && (view.env === null || group.env === view.env);
const charts = [];
let cache = new Map();
const TIME_UNITS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 43200, 86400];

const view = {
  env: null, axis: "step", range: null, log: false, logx: false, smooth: 0, band: true,
  short: (value) => (view.axis === "seconds" ? duration(value) : compact(value)),
  xlabel: (value) =>
    view.axis === "seconds" ? duration(value)
      : Math.round(value).toLocaleString("en-US") + (view.axis === "step" ? " agent steps" : " frames"),
  ticks: (from, to, count) => ticks(from, to, count, view.axis === "seconds" ? TIME_UNITS : null),
  extent: () => {
    const key = ["extent", view.env, view.axis, view.logx, ...hidden].join(" ");
    if (!cache.has(key)) cache.set(key, extent());
    return cache.get(key);
  },
  changed: () => redraw(),
};

// The range of the horizontal axis over all shown runs: the same in every chart.
function extent() {
  let from = Infinity, to = -Infinity;
  for (const group of data.groups) {
    if (!isShown(group)) continue;
    for (const x of group.runs.flatMap((run) => run.x[view.axis] || [])) {
      if (x === null || (view.logx && x <= 0)) continue;
      from = Math.min(from, x);
      to = Math.max(to, x);
    }
  }
  if (!isFinite(from)) return view.logx ? [1, 10] : [0, 1];
  if (!view.logx && from > 0 && from < 0.1 * to) from = 0; // runs start at 0, and report a little later
  return to > from ? [from, to] : [from * 0.9, from * 1.1 + 1];
}

function redraw() {
  $("reset").disabled = !view.range;
  for (const { chart, column } of charts) {
    chart.figure.hidden = !chosen().some((group) => group.runs.some((run) => own(run.y, column)));
    chart.draw();
  }
  drawStages();
}

// Exponential moving average, weighted so that the first values are not pulled to 0; null stays null.
function smoothed(values, weight) {
  if (!weight) return values;
  let mean = 0, sum = 0;
  return values.map((value) => {
    if (value === null) return null;
    mean = weight * mean + (1 - weight) * value;
    sum = weight * sum + (1 - weight);
    return mean / sum;
  });
}

function curve(run, column) {
  const x = run.x[view.axis], y = own(run.y, column);
  if (!x || !y) return null;
  const at = y.map((_, i) => i).filter((i) => x[i] !== null && y[i] !== null);
  return at.length ? { x: at.map((i) => x[i]), y: at.map((i) => y[i]) } : null;
}

// Mean, minimum and maximum over seeds on a common grid; a seed counts where it has data.
function across(curves, points = 300) {
  const from = Math.min(...curves.map((c) => c.x[0])), to = Math.max(...curves.map((c) => c.x[c.x.length - 1]));
  const slack = 0.02 * (to - from); // runs end a few steps apart: the mean must not jump to the one that ends last
  const grid = Array.from({ length: points }, (_, i) => from + ((to - from) * i) / (points - 1));
  const on = curves.map((c) => interpolate(c, grid, slack)), out = { x: grid, y: [], low: [], high: [] };
  grid.forEach((_, i) => {
    const found = on.map((values) => values[i]).filter((value) => value !== null);
    out.y.push(found.length ? found.reduce((a, b) => a + b) / found.length : null);
    out.low.push(found.length ? Math.min(...found) : null);
    out.high.push(found.length ? Math.max(...found) : null);
  });
  return out;
}

function interpolate({ x, y }, grid, slack) {
  let i = 0;
  return grid.map((at) => {
    if (at < x[0] - slack || at > x[x.length - 1] + slack) return null;
    while (i < x.length - 1 && x[i + 1] < at) i++;
    if (i === x.length - 1 || x[i + 1] === x[i]) return y[i];
    const share = Math.max(0, (at - x[i]) / (x[i + 1] - x[i]));
    return y[i] + share * (y[i + 1] - y[i]);
  });
}

// What a chart draws of one column.
function linesOf(column) {
  const key = [column, view.axis, view.band].join(" ");
  if (!cache.has(key)) {
    cache.set(key, data.groups.flatMap((group, index) => {
      const found = group.runs.map((run) => ({ run, curve: curve(run, column) })).filter((one) => one.curve);
      const soft = found.map(({ curve: c }) => ({ x: c.x, y: smoothed(c.y, view.smooth) }));
      if (found.length > 1 && view.band) return [{ index, name: group.name, ...across(soft), faint: null }];
      return found.map(({ run, curve: c }, i) => ({
        index, name: group.runs.length > 1 ? `${group.name}, seed ${run.seed}` : group.name,
        ...soft[i], low: null, high: null, faint: view.smooth ? c.y : null,
      }));
    }));
  }
  return cache.get(key)
    .filter((one) => isShown(data.groups[one.index]))
    .map((one) => ({ ...one, colour: colour(one.index), dash: dash(one.index) }));
}

// Whether a part of the page has to be built again: an update must not take away the focus, close what is open or
// restart a video where nothing has changed.
const built = new Map();
function isNew(part, ...content) {
  const key = JSON.stringify(content), fresh = built.get(part) !== key;
  built.set(part, key);
  return fresh;
}

function drawLegend() {
  if (!isNew("legend", isDark(), chosen().map((group) => [group.name, group.runs.length]))) return;
  $("legend").replaceChildren(...chosen().map((group) => {
    const index = data.groups.indexOf(group), name = group.name, count = group.runs.length;
    const button = el(
      "button", { type: "button", "aria-pressed": String(!hidden.has(name)) },
      el("span", { class: "swatch", style: { background: colour(index) } }), name + (count > 1 ? ` (${count} seeds)` : ""),
    );
    button.addEventListener("click", () => {
      if (!hidden.delete(name)) hidden.add(name);
      button.setAttribute("aria-pressed", String(!hidden.has(name)));
      redraw();
    });
    return button;
  }));
  $("bandlabel").hidden = data.groups.every((group) => group.runs.length < 2);
}

function table(headings, rows, words = false) {
  return el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Table: " + headings[0] },
    el("table", { class: words ? "words" : "" },
      el("thead", {}, el("tr", {}, ...headings.map((text) => el("th", { scope: "col" }, text)))),
      el("tbody", {}, ...rows.map((cells) => el("tr", {}, ...cells.map((cell, i) =>
        i ? el("td", {}, cell) : el("th", { scope: "row" }, cell)))))));
}

// "12.3", or with several seeds "12.3 (10.1 to 13)".
function spread(values, show = number) {
  const found = (values || []).filter((value) => value !== null);
  if (!found.length) return "–";
  const mean = found.reduce((a, b) => a + b) / found.length;
  return Math.min(...found) < Math.max(...found) ? `${show(mean)} (${show(Math.min(...found))} to ${show(Math.max(...found))})` : show(mean);
}

const whole = (value) => (typeof value === "number" ? Math.round(value).toLocaleString("en-US") : "–");
const percent = (value) => (typeof value === "number" ? number(100 * value, 3) + "%" : "–");

function drawScores() {
  const games = data.references.length > 0;
  const most = (values) => {
    const found = (values || []).filter((value) => value !== null);
    return found.length ? Math.max(...found) : null;
  };
  const headings = ["Runs", "Return", "Best", ...(games ? ["HNS", "SABER"] : []), "Agent steps", "Frames", "Time"];
  const rows = data.groups.map(({ name, scores, runs }) => [
    name + (runs.length > 1 ? `, ${runs.length} seeds` : ""), spread(scores.return), spread(scores.best),
    ...(games ? [spread(scores.hns, percent), spread(scores.saber, percent)] : []),
    whole(most(scores.step)), whole(most(scores.frames)), duration(most(scores.seconds)),
  ]);
  for (const known of data.references) {
    rows.push([known.name, number(known.score), "", percent(known.hns), percent(known.saber), "", "", ""]);
  }
  const several = data.groups.some((group) => group.runs.length > 1);
  const parts = [table(headings, rows), el("p", { class: "soft small" },
    "Return: mean of the last 100 episodes of training." + (several ? " Seeds: their mean, and the lowest to the highest." : ""))];
  const played = data.groups.flatMap(({ name, scores }) => scores.evaluations.map((one) => [
    `${name}: ${one.run}`, whole(one.step), one.mode, number(one.mean),
    Array.isArray(one.interval) ? one.interval.map((x) => number(x)).join(" to ") : "–",
    ...(games ? [percent(one.hns), percent(one.saber)] : []), whole(one.episodes),
  ]));
  if (played.length) {
    parts.push(el("h2", {}, "Evaluations"));
    parts.push(table(["Evaluated", "Step", "Policy", "Mean return", "95% interval", ...(games ? ["HNS", "SABER"] : []), "Episodes"], played));
  }
  $("scores").replaceChildren(...parts);
}

function drawSections() {
  charts.length = 0;
  $("sections").replaceChildren(...data.sections.map((section, first) => {
    const made = section.charts.map((spec, i) =>
      new Chart(spec.title, spec.note, view, () => linesOf(spec.column), first === 0 && i === 0));
    section.charts.forEach(({ column }, i) => charts.push({ chart: made[i], column }));
    return el("details", { open: section.open },
      el("summary", {}, section.title),
      section.note ? el("p", { class: "soft small" }, section.note) : null,
      el("div", { class: "charts" }, ...made.map((chart) => chart.figure)));
  }));
}

// The bottleneck over time: one strip for each run, coloured by the stage that the others waited for.
function drawStages() {
  const names = [...new Set(data.groups.flatMap((group) => group.runs.flatMap((run) => run.stages)))].filter(Boolean);
  if (!names.length) return;
  const axis = (run) => run.x[view.axis] || [];
  const [from, to] = view.range || view.extent();
  const rows = data.groups.filter(isShown).flatMap((group) => group.runs.map((run) => {
    const x = axis(run), strip = el("canvas", { style: { height: "22px", cursor: "default" }, "aria-hidden": "true" });
    const size = Math.max(1, Math.round(x.length / Math.max(run.stages.length, 1)));
    const counts = names.map((name) => [name, run.stages.filter((stage) => stage === name).length / run.stages.length]);
    const paint = () => {
      const { context, width, height } = prepare(strip), at = (value) => ((value - from) / (to - from || 1)) * width;
      run.stages.forEach((stage, i) => {
        if (!stage) return;
        context.fillStyle = colour(names.indexOf(stage));
        const left = i ? at(x[Math.min(i * size, x.length) - 1]) : at(from), right = at(x[Math.min((i + 1) * size, x.length) - 1]);
        context.fillRect(left, 0, right - left + 0.6, height);
      });
    };
    const shares = counts.filter(([, share]) => share > 0).map(([name, share]) => `${name} ${percent(share)}`).join(", ");
    return { paint, node: el("figure", {}, el("div", { class: "head" },
      el("h3", {}, group.runs.length > 1 ? `${group.name}, seed ${run.seed}` : group.name), el("p", { class: "soft small" }, shares)), strip) };
  }));
  const open = $("stages").querySelector("details")?.open ?? true;
  const details = el("details", { open }, el("summary", {}, "Bottleneck"),
    el("p", { class: "row small" }, "The stage that the others wait for:", ...names.map((name, i) => el("label", {},
      el("span", { class: "swatch", style: { background: colour(i) } }), name))),
    el("div", { class: "charts" }, ...rows.map((row) => row.node)));
  details.addEventListener("toggle", () => rows.forEach((row) => row.paint()));
  $("stages").replaceChildren(details);
  for (const row of rows) row.paint();
}

function drawConfig() {
  const groups = chosen(), names = groups.map((group) => group.name), parts = [];
  if (!isNew("config", names, groups.map((group) => group.config))) return;
  const fields = [...new Set(groups.flatMap((group) => Object.keys(group.config)))];
  const rows = fields.map((name) => [name, ...groups.map((group) => own(group.config, name) ?? "–")]);
  const differ = rows.filter(([name, ...values]) => !["seed", "run_dir"].includes(name) && new Set(values).size > 1);
  if (groups.length > 1) {
    parts.push(el("h2", {}, "Differences between the configurations"));
    parts.push(differ.length ? table(["Field", ...names], differ, true) : el("p", {}, "None that config.yaml records."));
  }
  if (rows.length) {
    parts.push(el("details", {}, el("summary", {}, "All settings"), table(["Field", ...names], rows, true)));
  }
  $("config").replaceChildren(...parts);
}

function drawVideos() {
  if (!data.videos.length || !isNew("videos", data.videos.map((video) => [video.run, video.name]))) return;
  $("videos").replaceChildren(el("h2", {}, "Videos"), el("div", { class: "charts" }, ...data.videos.map((video) =>
    el("figure", {}, el("div", { class: "head" }, el("h3", {}, `${video.run}: ${video.name}`)),
      video.data ? el("video", { controls: true, loop: true, muted: true, preload: "metadata", src: video.data, "aria-label": video.name })
        : el("p", { class: "soft small" }, "not in this file, which stays small; it is in the run's folder videos")))));
}

function drawHead() {
  document.title = data.title;
  $("title").textContent = data.title;
  const count = data.groups.reduce((sum, group) => sum + group.runs.length, 0);
  $("about").textContent = `CASA report of ${count} ${count === 1 ? "run" : "runs"}, ${data.made}` + (data.live ? ", updated while training" : "");
}

// Returns of different environments have no common scale: one environment is shown at a time, or all on request.
function environments() {
  const names = [...new Set(data.groups.map((group) => group.env))];
  $("envlabel").hidden = names.length < 2;
  if (names.length > 1 && !$("env").options.length) {
    $("env").append(...names.map((name) => el("option", { value: name }, name)), el("option", { value: "" }, "all"));
    view.env = names[0];
    $("env").addEventListener("change", (event) => {
      Object.assign(view, { env: event.target.selectedIndex < names.length ? event.target.value : null, range: null });
      drawAll();
      redraw();
    });
  }
}

function axisButtons() {
  for (const button of $("axis").querySelectorAll("button")) {
    const axis = button.dataset.axis;
    button.disabled = !data.groups.some((group) => group.runs.some((run) => run.x[axis]));
    button.setAttribute("aria-pressed", String(axis === view.axis));
    button.onclick = () => {
      Object.assign(view, { axis, range: null });
      axisButtons();
      redraw();
    };
  }
}

function drawAll() {
  cache = new Map();
  drawHead();
  environments();
  axisButtons();
  drawLegend();
  drawScores();
  drawConfig();
  drawVideos();
}

function update(fresh) {
  const columns = (found) => JSON.stringify(found.sections);
  const same = columns(fresh) === columns(data);
  data = { ...fresh, live: true };
  drawAll();
  if (!same) drawSections();
  redraw();
}

async function follow() {
  let version = null;
  for (;;) {
    await new Promise((done) => setTimeout(done, 2000));
    try {
      const reply = await fetch("data.json", { headers: version ? { "If-None-Match": version } : {}, cache: "no-store" });
      if (reply.status === 200) {
        version = reply.headers.get("ETag");
        update(await reply.json());
      }
    } catch {
      $("about").textContent = "The server has stopped; this is what it last sent.";
      return;
    }
  }
}

$("smooth").addEventListener("input", (event) => {
  view.smooth = Number(event.target.value);
  cache.clear(); // the slider has a hundred values: curves of all of them would fill the memory
  redraw();
});
for (const [id, name] of [["log", "log"], ["logx", "logx"], ["band", "band"]]) {
  $(id).addEventListener("change", (event) => { view[name] = event.target.checked; redraw(); });
}
$("reset").addEventListener("click", () => { view.range = null; redraw(); });
themeButton($("theme"), () => { drawLegend(); redraw(); });
addEventListener("resize", drawStages);
drawAll();
drawSections();
redraw();
if (data.live) follow();
