// The head view: tokens and lines, of a layer and any heads.

const weights = new Weights(data.weights);
const lines = new TokenLines(weights, data.tokens);
const chosen = new Set(data.opens);  // heads
const headButtons = [];

function choose(change) {
  headButtons.forEach((node, head) => {
    node.setAttribute("aria-pressed", String(chosen.has(head)));
    node.style.setProperty("--color", color(weights.heads[head]));
  });
  lines.show({...change, heads: [...chosen].sort((a, b) => a - b)});
}

function chooseHeads(heads) {
  chosen.clear();
  heads.forEach((head) => chosen.add(head));
  choose({});
}

function headControls() {
  const group = element("div", "buttons", "heads");
  group.id = "heads";
  group.setAttribute("role", "group");
  group.setAttribute("aria-label", "heads");
  weights.heads.forEach((name, head) => {
    const node = button("plain head", String(name), () => {
      if (!chosen.delete(head)) chosen.add(head);
      choose({});
    });
    node.title = `head ${name}; a double click chooses it alone`;
    node.ondblclick = () => chooseHeads([head]);
    headButtons.push(node);
  });
  const all = weights.heads.map((_, head) => head);
  group.append(...headButtons, button("plain", "all", () => chooseHeads(all)),
    button("plain", "none", () => chooseHeads([])));
  group.hidden = all.length === 1;
  controls.append(group);
}

const layerSelect = selection("layers", "layer", weights.layers, (layer) => choose({layer}));
headControls();
const threshold = thresholdSlider(weights, (value) => choose({threshold: value}));
specialBox(data.tokens, (special) => choose({special}));
sentenceSelect(data.tokens, (sentences) => choose({sentences}));
main.append(lines.root);
layerSelect.value = data.layer;
choose({layer: data.layer, threshold});
darkPage.onchange = () => choose({});
