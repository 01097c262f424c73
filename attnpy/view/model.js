// The model view: a small picture of each layer and head, which a click enlarges.

// A thumbnail's lines of weights up to these are drawn together.
const LEVELS = [0.02, 0.05, 0.1, 0.2, 0.4, 0.7, Infinity];
const MANY = 40;  // tokens, of which lines hide each other

const weights = new Weights(data.weights);
const lines = new TokenLines(weights, data.tokens);
const grid = element("div", "grid");
const thumbs = [];  // {layer, head, canvas, stale}
const choice = {threshold: 0, special: true, sentences: null, as: 0};
let enlarged = null;  // a thumb

function size() {
  const room = (window.innerWidth - 90) / weights.heads.length - 10;
  return Math.round(Math.min(120, Math.max(44, room)));
}

// Which tokens are shown, as the indices of both sides.
function shownTokens() {
  return ["queries", "keys"].map((side) => {
    const out = leftOut(data.tokens, side, choice);
    return data.tokens[side].map((_, i) => i).filter((i) => !out.has(i));
  });
}

function drawLines(context, side, {layer, head}, [queries, keys]) {
  const rowOf = new Map(keys.map((key, row) => [key, row]));
  const paths = LEVELS.map(() => new Path2D());
  queries.forEach((query, row) => {
    weights.eachOf(layer, head, query, (key, weight) => {
      if (!rowOf.has(key) || !(weight > 0 && weight >= choice.threshold)) return;
      const path = paths[LEVELS.findIndex((level) => weight <= level)];
      path.moveTo(0, (row + 0.5) * side / queries.length);
      path.lineTo(side, (rowOf.get(key) + 0.5) * side / keys.length);
    });
  });
  context.strokeStyle = color(weights.heads[head]);
  const thin = Math.min(1, MANY / Math.max(queries.length, keys.length));
  context.lineWidth = thin;
  paths.forEach((path, level) => {
    context.globalAlpha = Math.min(1, LEVELS[level]) * Math.max(thin, 0.5);
    context.stroke(path);
  });
}

// Of the weights that share a pixel the largest is seen.
function drawMatrix(context, side, {layer, head}, [queries, keys]) {
  const columnOf = new Map(keys.map((key, column) => [key, column]));
  const cells = [Math.min(queries.length, side), Math.min(keys.length, side)];
  const largest = new Float32Array(cells[0] * cells[1]);
  queries.forEach((query, row) => {
    const y = Math.floor(row * cells[0] / queries.length);
    weights.eachOf(layer, head, query, (key, weight) => {
      if (!columnOf.has(key) || !(weight > 0)) return;
      const x = Math.floor(columnOf.get(key) * cells[1] / keys.length);
      largest[y * cells[1] + x] = Math.max(largest[y * cells[1] + x], weight);
    });
  });
  context.fillStyle = color(weights.heads[head]);
  const [height, width] = [side / cells[0], side / cells[1]];
  largest.forEach((weight, i) => {
    if (!weight || weight < choice.threshold) return;
    context.globalAlpha = Math.min(1, Math.sqrt(weight));  // one pixel is to be seen
    context.fillRect((i % cells[1]) * width, Math.floor(i / cells[1]) * height,
      width + 0.3, height + 0.3);
  });
}

// Thumbnails are drawn when they come into sight.
const sight = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    const thumb = thumbs[entry.target.dataset.thumb];
    thumb.seen = entry.isIntersecting;
    if (thumb.seen && thumb.stale) drawThumb(thumb);
  }
});

function drawThumb(thumb) {
  const side = size();
  const context = fine(thumb.canvas, side, side);
  (choice.as === 0 ? drawLines : drawMatrix)(context, side, thumb, shownTokens());
  thumb.stale = false;
}

function redraw() {
  if (enlarged) return;
  const side = size();
  grid.style.gridTemplateColumns = `max-content repeat(${weights.heads.length}, ${side + 6}px)`;
  for (const thumb of thumbs) {
    thumb.stale = true;
    thumb.canvas.style.width = thumb.canvas.style.height = `${side}px`;
    if (thumb.seen) drawThumb(thumb);
  }
}
const redrawSoon = once(redraw);

function build() {
  grid.append(element("span"), ...weights.heads.map((name) => element("span", "", name)));
  weights.layers.forEach((name, layer) => {
    grid.append(element("span", "layer", String(name)));
    weights.heads.forEach((head, i) => {
      const thumb = {layer, head: i, canvas: element("canvas"), stale: true, seen: false};
      const node = button("", "", () => enlarge(thumb));
      node.title = `layer ${name}, head ${head}`;
      node.setAttribute("aria-label", node.title);
      node.dataset.thumb = thumbs.length;
      node.onmouseenter = node.onfocus = () => { said.textContent = node.title; };
      node.append(thumb.canvas);
      grid.append(node);
      thumb.node = node;
      thumbs.push(thumb);
      sight.observe(node);
    });
  });
}

function enlarge(thumb) {
  const before = enlarged;
  enlarged = thumb;
  grid.hidden = thumb !== null;
  lines.root.hidden = back.hidden = thumb === null;
  asSelect.parentElement.hidden = thumb !== null;
  if (thumb) {
    place.textContent = thumb.node.title;
    lines.show({...choice, layer: thumb.layer, heads: [thumb.head]});
  } else {
    redraw();
    said.textContent = "Rows are layers, columns heads. A click enlarges one.";
    if (before) before.node.focus();
  }
}

function change(what) {
  Object.assign(choice, what);
  if (enlarged) enlarge(enlarged); else redrawSoon();
}

// Escape leads back; the neighbours of an enlarged head are two buttons away.
function neighbour(step) {
  return () => enlarge(thumbs[(thumbs.indexOf(enlarged) + step + thumbs.length) % thumbs.length]);
}

const back = element("div", "buttons");
back.id = "back";
const place = element("span");
back.append(button("plain", "all heads", () => enlarge(null)),
  button("plain", "previous", neighbour(-1)), button("plain", "next", neighbour(1)), place);
controls.append(back);
const asSelect = selection("as", "as", ["lines", "matrix"], (as) => change({as}));
choice.threshold = thresholdSlider(weights, (threshold) => change({threshold}));
specialBox(data.tokens, (special) => change({special}));
sentenceSelect(data.tokens, (sentences) => change({sentences}));
if (Math.max(weights.queries, weights.keys) > MANY) choice.as = asSelect.value = 1;
build();
main.append(grid, lines.root);
addEventListener("keydown", (event) => {
  if (event.key === "Escape" && enlarged) enlarge(null);
});
addEventListener("resize", redrawSoon);
addEventListener("beforeprint", () => thumbs.filter(({stale}) => stale).forEach(drawThumb));
darkPage.onchange = () => change({});
enlarge(null);
