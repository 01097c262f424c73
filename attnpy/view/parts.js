// What the views share: the data, the weights in it, and parts of a page.

const UNIT = 10000;  // 16-bit codes are whole numbers of 1 / UNIT ...
const ROOT_UNIT = 254;  // ... and 8-bit codes are of the weight's square root
const STEPS = [0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9];  // thresholds

const data = JSON.parse(document.getElementById("data").textContent);
const darkPage = window.matchMedia("(prefers-color-scheme: dark)");
const bar = document.getElementById("bar");
const controls = document.getElementById("controls");
const said = document.getElementById("said");
const main = document.querySelector("main");

function bytes(base64) {
  return Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
}

// Numbers of 16 bits, the low byte first.
function words(base64) {
  const from = bytes(base64);
  const to = new Uint16Array(from.length / 2);
  for (let i = 0; i < to.length; i++) to[i] = from[2 * i] | (from[2 * i + 1] << 8);
  return to;
}

// What each query gives to each key. Layers and heads are counted among those stored.
class Weights {
  constructor({layers, heads, queries, keys, form, codes, counts, indices, least}) {
    Object.assign(this, {layers, heads, queries, keys, least});
    this.digits = form === "dense16" ? 4 : 2;
    this.codes = form === "dense16" ? words(codes) : bytes(codes);
    const missing = form === "dense16" ? 65535 : 255;
    this.value = form === "dense16" ?
      (code) => (code === missing ? NaN : code / UNIT) :
      (code) => (code === missing ? NaN : (code / ROOT_UNIT) ** 2);
    if (form !== "sparse8") return;
    this.indices = words(indices);
    const perRow = words(counts);
    this.starts = new Uint32Array(perRow.length + 1);
    perRow.forEach((count, row) => {
      this.starts[row + 1] = this.starts[row] + count;
    });
  }

  row(layer, head, query) {
    return (layer * this.heads.length + head) * this.queries + query;
  }

  // Calls back with each key of a row and its weight; those left out count as 0.
  eachOf(layer, head, query, callback) {
    const row = this.row(layer, head, query);
    if (this.starts) {
      for (let i = this.starts[row]; i < this.starts[row + 1]; i++) {
        callback(this.indices[i], this.value(this.codes[i]));
      }
    } else {
      for (let key = 0; key < this.keys; key++) {
        callback(key, this.value(this.codes[row * this.keys + key]));
      }
    }
  }

  at(layer, head, query, key) {
    const row = this.row(layer, head, query);
    if (!this.starts) return this.value(this.codes[row * this.keys + key]);
    let [low, high] = [this.starts[row], this.starts[row + 1]];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.indices[middle] < key) low = middle + 1; else high = middle;
    }
    const found = low < this.starts[row + 1] && this.indices[low] === key;
    return found ? this.value(this.codes[low]) : 0;
  }

  text(weight) {
    if (weight === 0 && this.least > 0) return `<${this.least}`;
    return weight.toFixed(this.digits);
  }
}

// Hues a golden angle apart: neighbours differ, however many heads there are.
function color(head) {
  return `hsl(${(215 + 137.508 * head) % 360} 75% ${darkPage.matches ? 65 : 45}%)`;
}

function element(tag, className = "", text = "") {
  const node = document.createElement(tag);
  if (className) node.className = className;
  node.textContent = text;  // never markup
  return node;
}

function button(className, text, onclick) {
  const node = element("button", className, text);
  node.type = "button";
  node.onclick = onclick;
  return node;
}

// A label with a control in it, among the controls.
function labelled(id, text, ...nodes) {
  const label = element("label", "", text);
  label.id = id;
  label.append(...nodes);
  controls.append(label);
  return label;
}

function selection(id, text, names, onchange) {
  const select = element("select");
  names.forEach((name, i) => select.append(new Option(String(name), String(i))));
  select.onchange = () => onchange(Number(select.value));
  labelled(id, `${text} `, select).hidden = names.length === 1;
  return select;
}

// The smallest weight that is drawn. It begins at what an even share would be, or less.
function thresholdSlider(weights, onchange) {
  const steps = STEPS.filter((step) => step === 0 || step >= weights.least);
  const first = steps.findIndex((step) => step >= Math.min(0.05, 1 / weights.keys));
  const input = element("input");
  Object.assign(input, {type: "range", min: 0, max: steps.length - 1, step: 1});
  input.value = Math.max(first, 0);
  const output = element("output");
  const show = () => {
    output.textContent = steps[input.value] || weights.least;
    return steps[input.value];
  };
  input.oninput = () => onchange(show());
  labelled("threshold", "weights from ", input, output);
  return show();
}

function specialBox(tokens, onchange) {
  const box = element("input");
  Object.assign(box, {type: "checkbox", checked: true});
  box.onchange = () => onchange(box.checked);
  const none = tokens.special.queries.length + tokens.special.keys.length === 0;
  labelled("special", "", box, " special tokens").hidden = none;
}

// Which tokens of two texts are shown: those of queries, and those of keys.
function sentenceSelect(tokens, onchange) {
  const names = ["both texts", "first to first", "first to second", "second to first",
    "second to second"];
  const select = selection("sentences", "texts", names, (i) => onchange(
    i === 0 ? null : {queries: i > 2 ? 1 : 0, keys: i % 2 ? 0 : 1}));
  select.parentElement.hidden = tokens.second === null;
}

// The tokens of a side that a choice leaves out.
function leftOut(tokens, side, {special, sentences}) {
  const out = new Set(special ? [] : tokens.special[side]);
  if (sentences) {
    tokens[side].forEach((_, i) => {
      if ((i >= tokens.second ? 1 : 0) !== sentences[side]) out.add(i);
    });
  }
  return out;
}

// Rows are lower where there are more of them.
function setRows(count) {
  const [row, font] = count <= 24 ? [24, 14] : count <= 48 ? [18, 13] : [14, 11];
  document.body.style.setProperty("--row", `${row}px`);
  document.body.style.setProperty("--font", `${font}px`);
  return row;
}

// A canvas that is as fine as the screen; draws in CSS pixels.
function fine(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);  // this clears it
  canvas.height = Math.round(height * ratio);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  return context;
}

// Calls once before the next frame, however often it is asked to.
function once(callback) {
  let frame = 0;
  const soon = () => {
    soon.cancel();
    frame = requestAnimationFrame(callback);
  };
  soon.cancel = () => cancelAnimationFrame(frame);
  return soon;
}

document.querySelector("h1").textContent = data.title;
document.getElementById("note").textContent = data.note;
new ResizeObserver(() => {
  document.body.style.setProperty("--bar", `${bar.offsetHeight}px`);
}).observe(bar);
