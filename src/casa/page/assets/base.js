"use strict";
// Shared by all pages: elements, numbers, colours and the theme. Text enters the page by textContent alone.

function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(node.style, value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

// A property of the object itself: names come from files, and every object inherits some, such as __proto__.
const own = (object, name) => (Object.hasOwn(object, name) ? object[name] : undefined);

const $ = (id) => document.getElementById(id);

// A number as short text: 12.35, 1,234, 1.2e-5; "–" for none.
function number(value, digits = 4) {
  if (typeof value !== "number" || !isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e7)) return value.toExponential(Math.max(digits - 2, 1)).replace("e+", "e");
  if (size >= 1000) return Math.round(value).toLocaleString("en-US");
  return String(Number(value.toPrecision(digits)));
}

// A count as short text for an axis: 350k, 1.4M.
function compact(value) {
  for (const [size, letter] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(value) >= size) return Number((value / size).toPrecision(4)) + letter;
  }
  return String(Number(value.toPrecision(4)));
}

function duration(seconds) {
  if (typeof seconds !== "number") return "–";
  const whole = Math.round(seconds), two = (x) => String(x).padStart(2, "0");
  if (whole >= 3600) return Math.floor(whole / 3600) + "h " + two(Math.floor((whole % 3600) / 60)) + "m";
  return whole >= 60 ? Math.floor(whole / 60) + "m " + two(whole % 60) + "s" : whole + "s";
}

const PALETTE = {
  light: ["#2456c9", "#c2410c", "#15803d", "#9333ea", "#b91c5c", "#0e7490", "#8a6100", "#475569", "#4d7c0f", "#7c3aed"],
  dark: ["#7aa7ff", "#ff9d5c", "#5fd38a", "#c89bff", "#ff8fb8", "#56d1e6", "#e6c34a", "#a9b6c9", "#b5e061", "#a78bfa"],
};
const DASHES = [[], [7, 4], [2, 3], [9, 3, 2, 3]];

const isDark = () =>
  document.documentElement.dataset.theme === "dark" ||
  (!document.documentElement.dataset.theme && matchMedia("(prefers-color-scheme: dark)").matches);
const colour = (index) => PALETTE[isDark() ? "dark" : "light"][index % 10];
const dash = (index) => DASHES[Math.floor(index / 10) % DASHES.length];
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// A button that switches between the system's theme and the other one; `changed` redraws.
function themeButton(button, changed) {
  const say = () => (button.textContent = isDark() ? "Light" : "Dark");
  try {
    const saved = localStorage.getItem("casa-theme");
    if (saved === "light" || saved === "dark") document.documentElement.dataset.theme = saved;
  } catch { /* a file may have no storage */ }
  button.addEventListener("click", () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    try { localStorage.setItem("casa-theme", document.documentElement.dataset.theme); } catch { /* as above */ }
    say();
    changed();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { say(); changed(); });
  say();
}

// A canvas context in CSS pixels, cleared, sharp on every screen.
function prepare(canvas) {
  const scale = window.devicePixelRatio || 1, width = canvas.clientWidth, height = canvas.clientHeight;
  if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
  }
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = "12px system-ui, sans-serif";
  return { context, width, height };
}

// Round values from low to high, about `count` of them, in steps of 1, 2 or 5 (or of `units`).
function ticks(low, high, count, units = null) {
  const rough = (high - low) / count;
  let step = units && units.find((unit) => unit >= rough);
  if (!step) {
    const power = 10 ** Math.floor(Math.log10(rough));
    step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999);
  }
  const found = [];
  for (let i = Math.ceil(low / step); i * step <= high; i++) found.push(i * step);
  return found;
}
