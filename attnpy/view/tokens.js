// Queries on the left, keys on the right, and lines between them. Pointing at a token of
// either side, or reaching it with the keyboard, leaves its lines only and shows its
// weights on the other side.

const OTHER = {queries: "keys", keys: "queries"};

class TokenLines {
  constructor(weights, tokens) {
    Object.assign(this, {weights, tokens});
    this.choice = {layer: 0, heads: [0], threshold: 0, special: true, sentences: null};
    this.pointed = null;  // or {side, index}
    this.root = element("div", "tokens");
    this.lists = {queries: element("ol"), keys: element("ol")};
    this.canvas = element("canvas");
    this.canvas.setAttribute("aria-hidden", "true");
    const lines = element("div", "lines");
    lines.append(this.canvas);
    this.root.append(element("h2", "", "queries"), element("h2"),
      element("h2", "", "keys"), this.lists.queries, lines, this.lists.keys);
    this.drawSoon = once(() => this.draw());
    // From one token to the next there is no moment without.
    this.leaveSoon = once(() => this.leave());
    for (const side of ["queries", "keys"]) this.fill(side);
    addEventListener("scroll", this.drawSoon, true);
    addEventListener("resize", this.drawSoon);
    new ResizeObserver(this.drawSoon).observe(lines);
  }

  fill(side) {
    const list = this.lists[side];
    list.id = side;
    list.setAttribute("aria-label", side);
    this.tokens[side].forEach((text, index) => {
      const token = button("token", text, () => token.focus());
      token.title = `${side === "keys" ? "key" : "query"} ${index}: ${text}`;
      token.tabIndex = index ? -1 : 0;  // one stop of Tab; arrows move on
      token.onmouseenter = token.onfocus = () => this.point({side, index});
      token.onmouseleave = token.onblur = this.leaveSoon;
      token.onkeydown = (event) => this.moveFocus(event, side, index);
      const item = element("li");
      item.append(token, element("span", "shares"), element("span", "weight"));
      list.append(item);
    });
  }

  item(side, index) {
    return this.lists[side].children[index];
  }

  show(change) {
    Object.assign(this.choice, change);
    this.rows = {};  // of each token that is shown, counted from 0; others have -1
    for (const side of ["queries", "keys"]) {
      const out = leftOut(this.tokens, side, this.choice);
      let row = 0;
      this.rows[side] = this.tokens[side].map((_, i) => (out.has(i) ? -1 : row++));
      this.rows[side].forEach((r, i) => { this.item(side, i).hidden = r < 0; });
      this.rows[side].count = row;
      const items = [...this.lists[side].children];
      const reached = items.find((item) => item.firstChild.tabIndex === 0);
      if (!reached || reached.hidden) {
        if (reached) reached.firstChild.tabIndex = -1;
        const first = items.find((item) => !item.hidden);
        if (first) first.firstChild.tabIndex = 0;
      }
    }
    this.height = setRows(Math.max(this.rows.queries.count, this.rows.keys.count));
    this.root.style.setProperty("--heads", this.choice.heads.length);
    if (this.pointed && this.rows[this.pointed.side][this.pointed.index] < 0) {
      this.pointed = null;
    }
    this.point(this.pointed);
  }

  // Back to the token that has the focus, if one has.
  leave() {
    for (const side of ["queries", "keys"]) {
      const items = [...this.lists[side].children];
      const index = items.findIndex((i) => i.firstChild === document.activeElement);
      if (index >= 0) return this.point({side, index});
    }
    return this.point(null);
  }

  moveFocus(event, side, index) {
    const across = {ArrowLeft: "queries", ArrowRight: "keys"}[event.key];
    const step = {ArrowUp: -1, ArrowDown: 1}[event.key];
    let next = null;
    if (step) {
      next = index + step;
      while (this.rows[side][next] < 0) next += step;
    } else if (across && across !== side) {
      next = Math.min(index, this.tokens[across].length - 1);
      while (this.rows[across][next] < 0) next--;
    }
    const item = next === null ? null : this.item(step ? side : across, next);
    if (!item) return;
    event.preventDefault();
    const list = [...item.parentElement.children];
    list.forEach((other) => { other.firstChild.tabIndex = other === item ? 0 : -1; });
    item.firstChild.focus();
    item.scrollIntoView({block: "nearest"});
  }

  weight(head, index) {
    const {side, index: own} = this.pointed;
    const {layer} = this.choice;
    return side === "queries" ? this.weights.at(layer, head, own, index) :
      this.weights.at(layer, head, index, own);
  }

  point(pointed) {
    this.leaveSoon.cancel();
    this.pointed = pointed;
    for (const side of ["queries", "keys"]) {
      const isOwn = pointed !== null && pointed.side === side;
      [...this.lists[side].children].forEach((item, index) => {
        item.firstChild.classList.toggle("chosen", isOwn && pointed.index === index);
      });
      this.showNumbers(side, pointed !== null && pointed.side === OTHER[side]);
    }
    said.textContent = this.sentence();
    this.drawSoon();
  }

  // Of each token of a side: a strip for each head, and the mean as a number.
  showNumbers(side, shown) {
    const {heads, threshold} = this.choice;
    const items = [...this.lists[side].children];
    if (!shown) {
      if (!items[0].lastChild.textContent) return;  // nothing to take away
      for (const item of items) {
        item.children[1].replaceChildren();
        item.lastChild.textContent = "";
        item.classList.remove("top");
      }
      return;
    }
    const all = items.map((_, index) => heads.map((head) => this.weight(head, index)));
    this.means = all.map((each) => each.reduce((sum, w) => sum + w, 0) / heads.length);
    const top = Math.max(...this.means.filter(
      (mean, index) => mean > 0 && this.rows[side][index] >= 0));
    items.forEach((item, index) => {
      const some = all[index].some((weight) => weight > 0 && weight >= threshold);
      item.children[1].replaceChildren(...(some ? all[index].map((weight, i) => {
        const share = element("span");
        share.style.setProperty("--color", color(this.weights.heads[heads[i]]));
        share.style.opacity = weight >= threshold ? weight : 0;
        return share;
      }) : []));
      const mean = this.means[index];
      item.lastChild.textContent = heads.length ? this.weights.text(mean) : "";
      item.classList.toggle("top", mean === top);
    });
  }

  sentence() {
    const {layer, heads} = this.choice;
    if (!heads.length) return "No head is chosen.";
    const where = [
      this.weights.layers.length > 1 ? `layer ${this.weights.layers[layer]}` : "",
      this.weights.heads.length === 1 ? "" : heads.length > 1 ?
        `mean of ${heads.length} heads` : `head ${this.weights.heads[heads[0]]}`,
    ].filter(Boolean).join(", ");
    const place = where && ` (${where})`;
    if (this.pointed === null) return `Point at a token, or reach it with Tab.${place}`;
    const {side, index} = this.pointed;
    const names = this.tokens[OTHER[side]];
    const first = this.means.map((mean, i) => [mean, i])
      .filter(([mean, i]) => mean > 0 && this.rows[OTHER[side]][i] >= 0)
      .sort(([a], [b]) => b - a).slice(0, 3)
      .map(([mean, i]) => `${names[i]} ${this.weights.text(mean)}`);
    const does = side === "queries" ? "attends to" : "gets the attention of";
    return `${this.tokens[side][index]} ${does} ${first.join(", ") || "nothing"}${place}`;
  }

  // The canvas is as high as the window and stays in it; lines run past its edges.
  draw() {
    if (this.root.hidden || !this.rows) return;
    const rows = Math.max(this.rows.queries.count, this.rows.keys.count);
    const width = this.canvas.parentElement.clientWidth;
    const room = window.innerHeight - bar.offsetHeight;
    const height = Math.max(1, Math.min(rows * this.height, room));
    const context = fine(this.canvas, width, height);
    this.canvas.style.width = "100%";
    const top = this.lists.queries.getBoundingClientRect().top -
      this.canvas.getBoundingClientRect().top;
    const place = (row) => top + (row + 0.5) * this.height;
    const faintest = this.pointed ? 0.12 : 0;  // the few lines of a token are all seen
    context.lineWidth = this.height > 14 ? 2 : 1.5;
    for (const head of this.choice.heads) {
      context.strokeStyle = color(this.weights.heads[head]);
      this.eachLine(head, (query, key, weight) => {
        const [left, right] = [place(query), place(key)];
        if (Math.max(left, right) < 0 || Math.min(left, right) > height) return;
        context.globalAlpha = Math.min(1, Math.max(weight, faintest));
        context.beginPath();
        context.moveTo(0, left);
        context.lineTo(width, right);
        context.stroke();
      });
    }
  }

  // Calls back with the rows that a line joins, and its weight.
  eachLine(head, callback) {
    const {layer, threshold} = this.choice;
    const {pointed, rows} = this;
    for (let query = 0; query < this.weights.queries; query++) {
      if (rows.queries[query] < 0) continue;
      if (pointed && pointed.side === "queries" && pointed.index !== query) continue;
      this.weights.eachOf(layer, head, query, (key, weight) => {
        if (pointed && pointed.side === "keys" && pointed.index !== key) return;
        if (rows.keys[key] < 0 || !(weight > 0 && weight >= threshold)) return;
        callback(rows.queries[query], rows.keys[key], weight);
      });
    }
  }
}
