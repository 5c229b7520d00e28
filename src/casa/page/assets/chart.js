// A line chart on a canvas: hover, drag to zoom, keyboard, linear or log axes, bands.
//
// `lines()` gives [{name, colour, dash, x, y, low, high, faint}]: x ascending; y may hold null; low and high are
// the band, or null; faint are the unsmoothed values, or null. `view` is shared by all charts of a page: {range: [from, to] or
// null, extent(), log, logx, short(x), xlabel(x), ticks(from, to, count), changed()}.

const PAD = { left: 56, right: 12, top: 10, bottom: 24 };

class Chart {
  constructor(title, note, view, lines, alwaysWide = false) {
    Object.assign(this, { title, view, lines, cursor: null, drag: null });
    this.canvas = el("canvas", { tabindex: 0, role: "img" });
    this.tip = el("div", { class: "tip", hidden: true, "aria-hidden": "true" });
    this.read = el("output", { class: "read" });
    const wide = el("button", { type: "button", "aria-pressed": String(alwaysWide), "aria-label": "Wide: " + title }, "⤢");
    wide.addEventListener("click", () => {
      wide.setAttribute("aria-pressed", String(this.figure.classList.toggle("wide")));
      this.draw();
    });
    this.figure = el(
      "figure", { class: alwaysWide ? "wide" : "" },
      el("div", { class: "head" }, el("h3", {}, title), el("p", { class: "soft small" }, note), wide),
      this.canvas, this.tip, this.read,
    );
    this.canvas.addEventListener("pointermove", (event) => this.onMove(event));
    this.canvas.addEventListener("pointerdown", (event) => this.onDown(event));
    this.canvas.addEventListener("pointerup", (event) => this.onUp(event));
    this.canvas.addEventListener("pointercancel", () => { this.drag = null; this.point(null); });
    this.canvas.addEventListener("pointerleave", () => { if (!this.drag) this.point(null); });
    this.canvas.addEventListener("dblclick", () => this.zoom(null));
    this.canvas.addEventListener("keydown", (event) => this.onKey(event));
    this.canvas.addEventListener("blur", () => { this.point(null); this.read.textContent = ""; });
    new ResizeObserver(() => this.draw()).observe(this.canvas);
  }

  // The ranges of both axes over what is shown.
  scales(shown) {
    const { log, logx } = this.view;
    let [from, to] = (this.full = this.view.extent());
    if (this.view.range) [from, to] = this.view.range;
    let low = Infinity, high = -Infinity;
    const seen = (value) => {
      if (value === null || (log && value <= 0)) return;
      low = Math.min(low, value);
      high = Math.max(high, value);
    };
    for (const line of shown) {
      for (let i = 0; i < line.x.length; i++) {
        // With the neighbours, so that a line into the range is inside too.
        if (line.x[Math.min(i + 1, line.x.length - 1)] < from || line.x[Math.max(i - 1, 0)] > to) continue;
        seen(line.y[i]);
        if (line.low) { seen(line.low[i]); seen(line.high[i]); }
        if (line.faint) seen(line.faint[i]);
      }
    }
    this.empty = !(high >= low);
    if (this.empty) [low, high] = log ? [1, 10] : [0, 1];
    if (log) {
      [low, high] = [Math.log10(low), Math.log10(high)];
    }
    const margin = (high - low) * 0.06 || Math.abs(high) * 0.1 || 0.5;
    low -= margin;
    high += margin;
    const { width, height } = this;
    const f = logx ? Math.log10 : (x) => x, left = f(logx ? Math.max(from, 1e-12) : from), span = f(to) - left || 1;
    this.xOf = (x) => PAD.left + ((f(x) - left) / span) * (width - PAD.left - PAD.right);
    this.xAt = (pixel) => {
      const at = left + ((pixel - PAD.left) / (width - PAD.left - PAD.right)) * span;
      return logx ? 10 ** at : at;
    };
    const bottom = height - PAD.bottom;
    this.yOf = (y) => bottom - (((log ? Math.log10(y) : y) - low) / (high - low)) * (bottom - PAD.top);
    this.area = { from, to, low, high };
  }

  draw() {
    if (!this.canvas.clientWidth) return; // in a closed section
    const { context, width, height } = prepare(this.canvas);
    Object.assign(this, { width, height });
    const shown = (this.shown = this.lines());
    this.scales(shown);
    this.axes(context);
    context.save();
    context.beginPath();
    context.rect(PAD.left, PAD.top - 4, width - PAD.left - PAD.right, height - PAD.bottom - PAD.top + 8);
    context.clip();
    for (const line of shown) if (line.low) this.band(context, line);
    for (const line of shown) if (line.faint) this.stroke(context, line, line.faint, 0.25, 1);
    for (const line of shown) this.stroke(context, line, line.y, 1, 1.8);
    context.restore();
    if (this.drag) {
      context.fillStyle = css("--shade");
      context.fillRect(Math.min(this.drag[0], this.drag[1]), PAD.top, Math.abs(this.drag[1] - this.drag[0]), height - PAD.bottom - PAD.top);
    }
    if (this.cursor !== null) this.mark(context);
    const last = shown.map((line) => line.name + " " + number(line.y.findLast((y) => y !== null))).join("; ");
    this.canvas.setAttribute("aria-label", `${this.title}. Last values: ${last || "none shown"}. Arrow keys read values.`);
  }

  axes(context) {
    const { width, height } = this, { low, high, from, to } = this.area;
    context.fillStyle = css("--soft");
    context.strokeStyle = css("--grid");
    context.lineWidth = 1;
    context.textAlign = "right";
    context.textBaseline = "middle";
    if (this.empty) {
      context.textAlign = "center";
      const why = !this.shown.length ? "no run is shown" : this.view.log ? "no positive values for a log axis" : "no values yet";
      context.fillText(why, width / 2, height / 2);
      return;
    }
    const values = this.view.log ? logTicks(low, high) : ticks(low, high, 5);
    for (const value of values) {
      const y = Math.round(this.yOf(value)) + 0.5;
      line(context, PAD.left, y, width - PAD.right, y);
      context.fillText(Math.abs(value) >= 1e4 ? compact(value) : number(value), PAD.left - 7, y);
    }
    context.textAlign = "center";
    context.textBaseline = "top";
    const count = Math.max(2, Math.min(7, Math.floor(width / 95)));
    const marks = this.view.logx ? logTicks(Math.log10(Math.max(from, 1e-12)), Math.log10(to)) : this.view.ticks(from, to, count);
    for (const value of marks) {
      const x = Math.round(this.xOf(value)) + 0.5;
      if (x < PAD.left - 1 || x > width - PAD.right + 1) continue;
      line(context, x, height - PAD.bottom, x, height - PAD.bottom + 4);
      const text = this.view.short(value), half = context.measureText(text).width / 2;
      context.fillText(text, Math.min(x, width - half - 2), height - PAD.bottom + 7);
    }
  }

  stroke(context, line_, values, alpha, thickness) {
    context.globalAlpha = alpha;
    context.strokeStyle = line_.colour;
    context.lineWidth = thickness;
    context.lineJoin = "round";
    context.setLineDash(line_.dash);
    context.beginPath();
    let down = false, count = 0, at = null;
    for (let i = 0; i < values.length; i++) {
      const y = values[i], x = line_.x[i];
      if (y === null || (this.view.log && y <= 0) || (this.view.logx && x <= 0)) { down = false; continue; }
      at = [this.xOf(x), this.yOf(y)];
      if (down) context.lineTo(...at); else context.moveTo(...at);
      down = true;
      count++;
    }
    context.stroke();
    context.setLineDash([]);
    if (count === 1) {
      context.fillStyle = line_.colour;
      context.beginPath();
      context.arc(...at, 3, 0, 7);
      context.fill();
    }
    context.globalAlpha = 1;
  }

  band(context, line_) {
    context.globalAlpha = 0.18;
    context.fillStyle = line_.colour;
    context.beginPath();
    const floor = (y) => (this.view.log && y <= 0 ? this.height * 2 : this.yOf(y));
    const at = line_.x.map((_, i) => i).filter((i) => line_.low[i] !== null && !(this.view.logx && line_.x[i] <= 0));
    for (const i of at) context.lineTo(this.xOf(line_.x[i]), floor(line_.high[i]));
    for (const i of at.reverse()) context.lineTo(this.xOf(line_.x[i]), floor(line_.low[i]));
    context.fill();
    context.globalAlpha = 1;
  }

  // The values of all shown lines nearest to the cursor.
  values() {
    return this.shown.map((line_) => {
      const i = nearest(line_.x, this.cursor, line_.y);
      return i < 0 ? null : { line: line_, i };
    }).filter(Boolean);
  }

  mark(context) {
    const found = this.values(), x = this.xOf(this.cursor);
    context.strokeStyle = css("--soft");
    line(context, x, PAD.top, x, this.height - PAD.bottom);
    for (const { line: line_, i } of found) {
      if (this.view.log && line_.y[i] <= 0) continue;
      context.fillStyle = line_.colour;
      context.beginPath();
      context.arc(this.xOf(line_.x[i]), this.yOf(line_.y[i]), 3.5, 0, 7);
      context.fill();
    }
  }

  point(x, speak = false) {
    if (x === null && this.cursor === null) return;
    this.cursor = x;
    this.draw();
    this.tip.hidden = x === null;
    if (x === null) return;
    const found = this.values().sort((a, b) => b.line.y[b.i] - a.line.y[a.i]);
    const text = ({ line: { y, low, high }, i }) =>
      number(y[i]) + (low && low[i] !== high[i] ? ` (${number(low[i])} to ${number(high[i])})` : "");
    this.tip.replaceChildren(
      el("div", { class: "soft" }, this.view.xlabel(x)),
      ...found.slice(0, 14).map((one) =>
        el("div", {}, el("span", { class: "swatch", style: { background: one.line.colour } }), one.line.name, el("b", {}, text(one)))),
    );
    const left = this.xOf(x), box = this.tip.offsetWidth, room = this.figure.clientWidth;
    this.tip.style.left = Math.max(4, Math.min(left + 22 + box > room ? left - box - 4 : left + 22, room - box - 4)) + "px";
    this.tip.style.top = this.canvas.offsetTop + 8 + "px";
    if (speak) this.read.textContent = this.view.xlabel(x) + ": " + found.map((one) => one.line.name + " " + text(one)).join(", ");
  }

  zoom(range) {
    this.view.range = range;
    this.view.changed();
  }

  inside(event) {
    const box = this.canvas.getBoundingClientRect();
    return Math.max(PAD.left, Math.min(event.clientX - box.left, this.width - PAD.right));
  }

  onMove(event) {
    if (!this.shown) return;
    const x = this.inside(event);
    if (this.drag) this.drag[1] = x;
    this.point(this.xAt(x));
  }

  onDown(event) {
    if (event.button !== 0 || !this.shown) return;
    this.canvas.setPointerCapture(event.pointerId);
    this.drag = [this.inside(event), this.inside(event)];
  }

  onUp() {
    const drag = this.drag;
    this.drag = null;
    if (drag && Math.abs(drag[1] - drag[0]) > 8) this.zoom([this.xAt(Math.min(...drag)), this.xAt(Math.max(...drag))]);
  }

  onKey(event) {
    if (!this.shown || event.ctrlKey || event.altKey || event.metaKey) return;
    const { from, to } = this.area, at = this.cursor ?? from, step = (event.shiftKey ? 0.1 : 0.01) * (this.width - PAD.left - PAD.right);
    const clamp = (x) => Math.max(from, Math.min(x, to));
    const zoomBy = (factor) => {
      const [low, high] = this.full, middle = this.cursor ?? (from + to) / 2;
      const range = [Math.max(low, middle - (middle - from) * factor), Math.min(high, middle + (to - middle) * factor)];
      this.zoom(range[0] <= low && range[1] >= high ? null : range);
    };
    const actions = {
      ArrowRight: () => this.point(clamp(this.xAt(this.xOf(at) + step)), true),
      ArrowLeft: () => this.point(clamp(this.xAt(this.xOf(at) - step)), true),
      Home: () => this.point(from, true),
      End: () => this.point(to, true),
      "+": () => zoomBy(0.5),
      "=": () => zoomBy(0.5),
      "-": () => zoomBy(2),
      Escape: () => this.zoom(null),
    };
    if (!(event.key in actions)) return;
    event.preventDefault();
    actions[event.key]();
  }
}

function line(context, x0, y0, x1, y1) {
  context.beginPath();
  context.moveTo(x0, y0);
  context.lineTo(x1, y1);
  context.stroke();
}

// Powers of ten between two exponents, with 2 and 5 between them where there are few.
function logTicks(low, high) {
  const found = [];
  const factors = high - low < 1.5 ? [1, 2, 5] : [1], every = Math.max(1, Math.ceil((high - low) / 6));
  for (let power = Math.floor(low); power <= high; power++) {
    if (power % every === 0) for (const factor of factors) found.push(factor * 10 ** power);
  }
  const kept = found.filter((value) => Math.log10(value) >= low && Math.log10(value) <= high);
  return kept.length > 1 ? kept : ticks(10 ** low, 10 ** high, 4);
}

// The index of the value of x nearest to `at` where y is not null; -1 outside the line.
function nearest(x, at, y) {
  if (!x.length || at < x[0] - 1e-9 || at > x[x.length - 1] + 1e-9) {
    const slack = x.length ? (x[x.length - 1] - x[0]) * 0.02 : 0;
    if (!x.length || at < x[0] - slack || at > x[x.length - 1] + slack) return -1;
  }
  let low = 0, high = x.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (x[middle] < at) low = middle + 1; else high = middle;
  }
  let best = -1;
  for (let i = Math.max(0, low - 3); i <= Math.min(x.length - 1, low + 3); i++) {
    if (y[i] !== null && (best < 0 || Math.abs(x[i] - at) < Math.abs(x[best] - at))) best = i;
  }
  return best;
}
