// The player: one frame at a time, the agent's π and Q as bars beside it, V and entropy over time below.

const data = JSON.parse($("data").textContent);
const { steps, parts } = data;
const state = { at: 0, playing: false, speed: 1, clock: 0 };
const KEYS = { v: 0, d: 1, r: 2 };
const has = (name) => steps.some((step) => step[name] !== null);
const nameOf = (step) => step.action.map((index, i) => chosen(parts[i], index)).join(", ");

// The name of an option, or the value between the knots of a continuous part.
function chosen(part, index) {
  if (!part.continuous) return part.options[index];
  const low = Number(part.options[0]), high = Number(part.options[part.options.length - 1]);
  return number(low + ((high - low) * index) / (part.options.length - 1), 3);
}

// One table row for each option: name, bar of π, bar of Q.
const rows = [];
function buildBars() {
  const pi = has("pi"), q = has("q");
  const head = el("tr", {}, el("th", { scope: "col" }, "Action"), pi ? el("th", { scope: "col" }, "π(a|s)") : null,
    q ? el("th", { scope: "col" }, "Q(s, a)") : null);
  const bodies = parts.map((part, index) => el("tbody", {},
    parts.length > 1 && !part.continuous ? el("tr", {}, el("th", { scope: "rowgroup", colspan: 3, class: "soft" }, part.name)) : null,
    ...(part.continuous ? [curveRow(part, index, pi, q)] : part.options.map((option, i) => {
      const row = { part: index, option: i, name: el("th", { scope: "row" }, option), pi: bar(0), q: bar(1) };
      row.node = el("tr", {}, row.name, pi ? row.pi.cell : null, q ? row.q.cell : null);
      rows.push(row);
      return row.node;
    }))));
  const none = pi ? (q ? "" : "This agent has no Q.") : "This agent acts on Q; it has no policy of its own.";
  $("bars").replaceChildren(el("table", { class: "bars" }, el("thead", {}, head), ...bodies),
    none ? el("p", { class: "soft small" }, none) : "");
}

// A continuous part has one row: curves of the density and of Q over its range, and the action as a line.
const curves = [];
function curveRow(part, index, pi, q) {
  const name = el("th", { scope: "row" }), cell = (canvas) => el("td", {}, canvas);
  const both = [0, 1].map(() => el("canvas", { class: "density", role: "img", "aria-label": `${part.name} from ${part.options[0]} to ${part.options[part.options.length - 1]}` }));
  curves.push({ part, index, name, both });
  return el("tr", {}, name, pi ? cell(both[0]) : null, q ? cell(both[1]) : null);
}

function drawCurve(canvas, shares, at, index) {
  if (!canvas.clientWidth) return;
  const { context, width, height } = prepare(canvas);
  if (!shares) return;
  const x = (i) => (i / (shares.length - 1)) * width;
  context.fillStyle = colour(index);
  context.beginPath();
  context.moveTo(0, height);
  shares.forEach((share, i) => context.lineTo(x(i), height * (1 - Math.max(0, Math.min(1, share)))));
  context.lineTo(width, height);
  context.fill();
  if (at === undefined) return;
  context.fillStyle = css("--ink");
  context.fillRect(x(at) - 1, 0, 2, height);
}

function bar(index) {
  const fill = el("div", { class: "fill" }), text = el("span", { class: "value" });
  return { fill, text, index, cell: el("td", {}, el("div", { class: "bar" }, fill), text) };
}

function setBar(one, share, text, best) {
  one.fill.style.width = Math.max(0, Math.min(1, share)) * 100 + "%";
  one.fill.style.background = colour(one.index);
  one.text.textContent = text;
  one.cell.classList.toggle("best", best);
}

// The scale of the bars is the same at all steps, so that they can be compared. A full bar of π is the step's largest
// probability, a full bar of Q is its best action and an empty one is worse by its spread of Q over actions: both as
// three quarters of the steps have them at most.
const largestPi = upperQuartile(steps.filter((step) => step.pi).map((step) => Math.max(...step.pi)));
const spreadOfQ = upperQuartile(steps.filter((step) => step.q).map((step) =>
  Math.max(...blocksOf(step.q).map((q) => Math.max(...q) - Math.min(...q)))));

function upperQuartile(values) {
  return values.sort((a, b) => a - b)[Math.floor(0.75 * values.length)] || 1;
}

// The values of each part of an action.
function blocksOf(values) {
  let first = 0;
  return parts.map((part) => values.slice(first, (first += part.options.length)));
}

function drawBars(step) {
  const ofPi = step.pi && blocksOf(step.pi), ofQ = step.q && blocksOf(step.q);
  for (const { part, index, name, both } of curves) {
    const at = step.action[index], q = ofQ && ofQ[index], pi = ofPi && ofPi[index];
    name.textContent = part.name + (at === undefined ? "" : " " + chosen(part, at));
    drawCurve(both[0], pi && pi.map((p) => p / largestPi), at, 0);
    drawCurve(both[1], q && q.map((value) => 1 + (value - Math.max(...q)) / spreadOfQ), at, 1);
  }
  for (const row of rows) {
    const pi = ofPi && ofPi[row.part], q = ofQ && ofQ[row.part], taken = step.action[row.part] === row.option;
    row.node.classList.toggle("taken", taken);
    row.name.textContent = (taken ? "▸ " : "") + parts[row.part].options[row.option];
    if (pi) setBar(row.pi, pi[row.option] / largestPi, pi[row.option].toFixed(3), pi[row.option] === Math.max(...pi));
    else setBar(row.pi, 0, "", false);
    if (q) {
      const top = Math.max(...q), gap = q[row.option] - top;
      setBar(row.q, 1 + gap / spreadOfQ, number(q[row.option]), gap === 0);
    } else setBar(row.q, 0, "", false);
  }
}

// A curve over all steps with the present step marked; a click or drag goes to a step.
class Timeline {
  constructor(title, name, index) {
    Object.assign(this, { title, name, index, low: Infinity, high: -Infinity });
    this.canvas = el("canvas", { role: "img" });
    this.value = el("p", { class: "small" });
    this.node = el("figure", {}, el("div", { class: "head" }, el("h2", {}, title), this.value), this.canvas);
    const go = (event) => {
      const box = this.canvas.getBoundingClientRect();
      goto(Math.round(((event.clientX - box.left - 48) / (box.width - 56)) * (steps.length - 1)));
    };
    this.canvas.addEventListener("pointerdown", (event) => { this.canvas.setPointerCapture(event.pointerId); go(event); });
    this.canvas.addEventListener("pointermove", (event) => { if (event.buttons) go(event); });
    for (const step of steps) {
      if (step[name] === null) continue;
      this.low = Math.min(this.low, step[name]);
      this.high = Math.max(this.high, step[name]);
    }
    const margin = (this.high - this.low) * 0.08 || 0.5;
    this.canvas.setAttribute("aria-label", `${title} from ${number(this.low)} to ${number(this.high)} over ${steps.length} steps`);
    this.low -= margin;
    this.high += margin;
  }

  draw() {
    if (!this.canvas.clientWidth) return;
    const { context, width, height } = prepare(this.canvas), bottom = height - 8;
    const x = (t) => 48 + (t / Math.max(steps.length - 1, 1)) * (width - 56);
    const y = (value) => bottom - ((value - this.low) / (this.high - this.low)) * (bottom - 6);
    context.fillStyle = css("--soft");
    context.strokeStyle = css("--grid");
    context.textAlign = "right";
    context.textBaseline = "middle";
    for (const value of ticks(this.low, this.high, 3)) {
      context.beginPath();
      context.moveTo(48, y(value));
      context.lineTo(width - 8, y(value));
      context.stroke();
      context.fillText(number(value, 3), 43, y(value));
    }
    context.strokeStyle = colour(this.index);
    context.lineWidth = 1.6;
    context.beginPath();
    let down = false;
    steps.forEach((step, t) => {
      if (step[this.name] === null) { down = false; return; }
      if (down) context.lineTo(x(t), y(step[this.name])); else context.moveTo(x(t), y(step[this.name]));
      down = true;
    });
    context.stroke();
    context.strokeStyle = css("--ink");
    context.lineWidth = 1;
    context.beginPath();
    context.moveTo(x(state.at), 2);
    context.lineTo(x(state.at), bottom);
    context.stroke();
    this.value.textContent = number(steps[state.at][this.name]);
  }
}

const lines = [];
function buildLines() {
  for (const [title, name, index] of [["V(s)", "v", 2], ["Entropy of π", "entropy", 3], ["Return so far", "score", 4]]) {
    if (has(name)) lines.push(new Timeline(title, name, index));
  }
  $("lines").replaceChildren(...lines.map((line) => line.node));
}

function buildJumps() {
  $("jumps").replaceChildren(...data.jumps.map(({ name, steps: found }) => {
    const button = el("button", { type: "button", disabled: !found.length }, `${name} (${found.length})`);
    button.addEventListener("click", () => jump(found));
    return button;
  }));
}

// The next of these steps after the present one, or the first.
function jump(found) {
  if (!found || !found.length) return;
  pause();
  goto(found.find((t) => t > state.at) ?? found[0]);
}

function goto(at) {
  state.at = Math.max(0, Math.min(at, steps.length - 1));
  draw();
}

function draw() {
  const step = steps[state.at];
  if (data.frames.length) $("frame").src = data.frames[state.at];
  $("scrub").value = state.at;
  $("scrub").setAttribute("aria-valuetext", `step ${state.at} of ${steps.length - 1}`);
  const what = step.over ? `episode ${step.over}` : `${nameOf(step)}${step.reward ? `, reward ${number(step.reward)}` : ""}`;
  $("now").textContent = `Step ${state.at} of ${steps.length - 1}, episode ${step.episode + 1}, return ${number(step.score)}: ${what}`;
  drawBars(step);
  for (const line of lines) line.draw();
}

function pause() {
  state.playing = false;
  $("play").textContent = "Play";
  $("play").setAttribute("aria-pressed", "false");
}

function toggle() {
  if (state.playing) { pause(); return; }
  if (state.at === steps.length - 1) state.at = 0;
  Object.assign(state, { playing: true, clock: performance.now() });
  $("play").textContent = "Pause";
  $("play").setAttribute("aria-pressed", "true");
  requestAnimationFrame(tick);
}

function tick(now) {
  if (!state.playing) return;
  const due = Math.floor(((now - state.clock) / 1000) * data.fps * state.speed);
  if (due > 0) {
    state.clock += (due * 1000) / (data.fps * state.speed);
    goto(state.at + due);
    if (state.at === steps.length - 1) { pause(); return; }
  }
  requestAnimationFrame(tick);
}

function onKey(event) {
  if (event.ctrlKey || event.altKey || event.metaKey) return;
  const tag = event.target.tagName, by = event.shiftKey ? 10 : 1;
  if (tag === "SELECT" || (tag === "BUTTON" && event.key === " ")) return;
  const actions = {
    " ": toggle, ArrowLeft: () => { pause(); goto(state.at - by); }, ArrowRight: () => { pause(); goto(state.at + by); },
    Home: () => goto(0), End: () => goto(steps.length - 1),
  };
  const action = event.key in KEYS ? () => jump(data.jumps[KEYS[event.key]]?.steps) : own(actions, event.key);
  if (!action) return;
  event.preventDefault();
  action();
}

document.title = data.title;
$("title").textContent = data.title;
$("facts").textContent = data.facts.join(" · ");
$("scrub").max = steps.length - 1;
// Small frames, of games, keep their pixels when they are enlarged.
$("frame").addEventListener("load", (event) => event.target.classList.toggle("pixels", event.target.naturalWidth < 240));
if (!data.frames.length) { $("frame").hidden = true; $("blank").hidden = false; }
$("scrub").addEventListener("input", (event) => { pause(); goto(Number(event.target.value)); });
$("play").addEventListener("click", toggle);
$("back").addEventListener("click", () => { pause(); goto(state.at - 1); });
$("next").addEventListener("click", () => { pause(); goto(state.at + 1); });
$("speed").addEventListener("change", (event) => { state.speed = Number(event.target.value); state.clock = performance.now(); });
document.addEventListener("keydown", onKey);
addEventListener("resize", draw);
buildBars();
buildLines();
buildJumps();
themeButton($("theme"), draw);
draw();
