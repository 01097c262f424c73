// The neuron view: how the numbers of a query and of a key become a score and a weight.

const BESIDE = 900;

const weights = new Weights(data.weights);
const {tokens, head_dim: headDim, scale} = data;
const vectors = {query: vectorsOf("query"), key: vectorsOf("key")};
const chosen = {layer: 0, head: 0, query: 0, key: 0, sorted: false};
const rows = {queries: [], keys: []};
const hidden = data.hidden === null ? null : bytes(data.hidden);  // a bit for each pair

// A function of (layer, head, token) that gives a vector of numbers.
function vectorsOf(name) {
  const codes = new Int16Array(words(data[name]).buffer);
  const count = tokens[name === "query" ? "queries" : "keys"].length;
  return (layer, head, token) => {
    const row = layer * weights.heads.length + head;
    const unit = data[`${name}_units`][row];
    const start = (row * count + token) * headDim;
    return Float64Array.from(codes.subarray(start, start + headDim), (code) => code * unit);
  };
}

const query = () => vectors.query(chosen.layer, chosen.head, chosen.query);
const key = (index) => vectors.key(chosen.layer, chosen.head, index);
const product = (a, b) => a.map((number, i) => number * b[i]);
const sum = (numbers) => numbers.reduce((total, number) => total + number, 0);
const largest = (numbers) => numbers.reduce((top, x) => Math.max(top, Math.abs(x)), 1e-30);

// A cell for each number: blue above 0, orange below, as strong as it is large beside the
// largest.
function strip(canvas, numbers, top, height) {
  // Beside the table of elements where the window is wide.
  const width = window.innerWidth;
  const room = (width - (width < BESIDE ? 300 : 700)) / 2;
  const cell = Math.max(1, Math.min(8, Math.floor(room / headDim)));
  const context = fine(canvas, cell * headDim, height);
  const style = getComputedStyle(document.documentElement);
  for (const sign of [1, -1]) {
    context.fillStyle = style.getPropertyValue(sign > 0 ? "--plus" : "--minus");
    numbers.forEach((number, i) => {
      if (!(number * sign > 0)) return;
      context.globalAlpha = Math.min(1, Math.abs(number) / top);
      context.fillRect(i * cell, 0, cell, height);
    });
  }
}

const list = element("ol");
list.id = "queries";
const table = element("table", "pairs");
table.id = "keys";
const queryStrip = element("canvas");
const elements = element("div", "elements");
elements.id = "elements";

function tokenButton(side, index, act) {
  const node = button("token", tokens[side][index], () => node.focus());
  node.title = `${side === "keys" ? "key" : "query"} ${index}: ${tokens[side][index]}`;
  node.onfocus = act;
  node.onkeydown = (event) => {
    const step = {ArrowUp: -1, ArrowDown: 1}[event.key];
    const next = step && rows[side][index + step];
    if (!next) return;
    event.preventDefault();
    next.focus();
  };
  rows[side].push(node);
  return node;
}

function build() {
  const header = element("tr");
  const first = element("th", "", "query ");
  first.append(queryStrip);
  header.append(element("th", "", "keys"), first, element("th", "", "query x key"),
    element("th", "number", "score"), element("th", "number", "weight"));
  table.append(header);
  tokens.queries.forEach((_, index) => {
    const item = element("li");
    item.append(tokenButton("queries", index, () => choose({query: index})));
    list.append(item);
  });
  tokens.keys.forEach((_, index) => {
    const row = element("tr");
    const cells = [0, 1, 2, 3, 4].map((i) => element("td", i > 2 ? "number" : ""));
    cells[0].append(tokenButton("keys", index, () => choose({key: index})));
    cells[1].append(element("canvas"));
    cells[2].append(element("canvas"));
    row.append(...cells);
    row.onclick = () => choose({key: index});
    table.append(row);
  });
  const queries = element("div", "list");
  queries.append(element("h2", "", "queries"), list);
  const root = element("div", "neurons");
  root.append(queries, table, elements);
  main.append(root);
}

function choose(change) {
  const before = {...chosen};
  Object.assign(chosen, change);
  const moved = ["layer", "head", "query"].some((name) => before[name] !== chosen[name]);
  if (moved) drawTable();
  if (moved || before.key !== chosen.key) {
    [...table.rows].forEach((row, i) => {
      row.classList.toggle("chosen", i === chosen.key + 1);
    });
    drawElements();
  }
}

// Does the mask hide this key from the query, in all heads?
function isHidden(index) {
  const bit = chosen.query * tokens.keys.length + index;
  return hidden !== null && (hidden[bit >> 3] >> (bit & 7) & 1) === 1;
}

function drawTable() {
  const height = setRows(Math.max(tokens.queries.length, tokens.keys.length)) - 4;
  rows.queries.forEach((node, i) => node.classList.toggle("chosen", i === chosen.query));
  const own = query();
  const keys = tokens.keys.map((_, index) => key(index));
  const products = keys.map((each) => product(own, each));
  const top = [largest(own), Math.max(...keys.map(largest)),
    Math.max(...products.map(largest))];
  strip(queryStrip, own, top[0], height);
  keys.forEach((each, index) => {
    const {cells} = table.rows[index + 1];
    strip(cells[1].firstChild, each, top[1], height);
    strip(cells[2].firstChild, products[index], top[2], height);
    const weight = weights.at(chosen.layer, chosen.head, chosen.query, index);
    cells[3].textContent = (sum(products[index]) * scale).toFixed(2);
    cells[4].textContent = weights.text(weight);
    table.rows[index + 1].classList.toggle("hidden", isHidden(index));
  });
}

// A row for each element of the chosen pair: both numbers, their product, the sum so far.
function drawElements() {
  const [own, other] = [query(), key(chosen.key)];
  const products = product(own, other);
  let total = 0;
  const each = [...products].map((p, i) => ({i, p, total: (total += p)}));
  if (chosen.sorted) {
    each.sort((a, b) => Math.abs(b.p) - Math.abs(a.p));
    total = 0;
    for (const one of each) one.total = total += one.p;
  }
  const top = largest(products);
  const box = element("table");
  const header = element("tr");
  for (const name of ["", "query", "key", "product", "", "sum"]) {
    header.append(element("th", "number", name));
  }
  box.append(header);
  for (const {i, p, total: soFar} of each) {
    const row = element("tr");
    const texts = [i, own[i].toFixed(3), other[i].toFixed(3), p.toFixed(3)];
    const chart = element("td", "bar");
    const mark = element("i");
    mark.style.width = `${50 * Math.abs(p) / top}%`;
    mark.style.marginInlineStart = p < 0 ? `${50 - 50 * Math.abs(p) / top}%` : "50%";
    mark.style.background = `var(${p < 0 ? "--minus" : "--plus"})`;
    chart.append(mark);
    row.append(...texts.map((text) => element("td", "number", String(text))), chart,
      element("td", "number", soFar.toFixed(3)));
    box.append(row);
  }
  const inner = element("div");
  inner.append(box);
  elements.replaceChildren(element("p", "", result(total)), inner);
  said.textContent = `Click a query, and a key: ${tokens.queries[chosen.query]} (query) and ` +
    `${tokens.keys[chosen.key]} (key)` + (hidden ? ". The mask hides the grey keys." : "");
}

function result(total) {
  const {layer, head, query: i, key: j} = chosen;
  const weight = weights.at(layer, head, i, j);
  return `sum ${total.toFixed(3)} x scale ${Number(scale.toPrecision(4))} = score ` +
    `${(total * scale).toFixed(3)}; softmax over the keys: weight ${weights.text(weight)}` +
    (isHidden(j) ? " (0 where the mask hides the key)" : "");
}

function redraw() {
  drawTable();
  drawElements();
}

selection("layers", "layer", weights.layers, (layer) => choose({layer}));
selection("heads", "head", weights.heads, (head) => choose({head}));
const sorted = element("input");
sorted.type = "checkbox";
sorted.onchange = () => { chosen.sorted = sorted.checked; drawElements(); };
labelled("sorted", "", sorted, " largest products first");
build();
chosen.query = -1;  // so that the first choice draws
choose({query: 0, key: 0});
addEventListener("resize", once(redraw));
darkPage.onchange = redraw;
