// The picture of a graph: drawn from its layout, moved, zoomed, opened and closed, by pointer and by keyboard.

const TALLEST = 600;
const MOST_AT_ONCE = 400; // boxes: their layout takes about a second
const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

class GraphPicture {
  constructor(figure, picture) {
    this.picture = picture;
    this.arrow = `arrow-${figure.id}`;
    this.scale = 1;
    this.x = 0;
    this.y = 0;
    this.moved = false;
    this.found = { words: "", place: -1 };
    this.view = html("div", {
      class: "view", tabindex: 0, role: "application", "aria-roledescription": "graph",
      "aria-label": `${figure.querySelector("h3").textContent}. Arrows move it, plus and minus zoom, 0 fits it; Tab goes to its boxes.`,
    });
    this.about = html("p", { class: "about" }, "Choose a box to see what it is.");
    this.tools = this.makeTools();
    figure.append(this.tools, this.view, this.about);
    this.listen();
    this.draw();
    this.fit();
    new ResizeObserver(() => this.moved || this.fit()).observe(this.view);
  }

  makeTools() {
    const { groups, nodes } = this.picture;
    const find = html("input", { type: "search", placeholder: "Find an op, node or module", "aria-label": "Find an op, node or module" });
    this.said = html("span", { class: "said", role: "status" });
    find.addEventListener("keydown", (event) => {
      if (event.key === "Enter") this.find(find.value);
    });
    const guilty = nodes.find((node) => node.guilty);
    const inner = groups.length > 1;
    const all = button("Open all", () => this.openWhere(() => true));
    all.disabled = nodes.length > MOST_AT_ONCE;
    if (all.disabled) all.title = `Only up to ${MOST_AT_ONCE} nodes`;
    const zoom = (words, label, action) => {
      const made = button(words, action);
      made.setAttribute("aria-label", label);
      return made;
    };
    return html("div", { class: "tools", role: "group", "aria-label": "Of the picture" },
      guilty ? button("Culprit", () => this.reveal(guilty)) : null,
      button("Fit", () => this.fit()),
      zoom("−", "Zoom out", () => this.zoom(1 / 1.3)),
      zoom("+", "Zoom in", () => this.zoom(1.3)),
      inner ? all : null,
      inner ? button("Close all", () => this.openWhere(() => false)) : null,
      nodes.length > 12 ? find : null,
      this.said);
  }

  // Drawing.

  draw() {
    this.layout = laidOut(this.picture);
    const { boxes, frames, tags, lines } = this.layout;
    this.items = new Map();
    this.lines = lines.map((line) => ({ ...line, element: svg("path", { class: "edge", d: wirePath(line.points), "marker-end": line.ends ? `url(#${this.arrow})` : null }) }));
    this.stage = svg("g", {}, ...frames.map(frameOf), ...this.lines.map((line) => line.element), ...frames.map((frame) => this.handle(frame)), ...tags.map((tag) => this.tag(tag)), ...boxes.map((box) => this.box(box)));
    this.view.replaceChildren(svg("svg", { role: "group", "aria-label": "Boxes" }, arrowHead(this.arrow), this.stage));
    this.order = [...boxes, ...frames].sort((a, b) => a.order - b.order).map((each) => each.id);
    const first = this.order.find((id) => this.items.get(id).place.part.guilty && id.startsWith("n")) ?? this.order[0];
    this.items.get(first)?.element.setAttribute("tabindex", 0);
    this.view.style.height = `min(${clamped(this.layout.height, 150, TALLEST)}px, 75vh)`;
    this.place();
  }

  box(box) {
    const { part, x, y, width, height, title, below, look } = box;
    const [left, top] = [x - width / 2, y - height / 2];
    const round = look === "op" || look === "closed" ? 6 : height / 2;
    const rect = (shift, name) => svg("rect", { class: name, x: left + shift, y: top - shift, width, height, rx: round });
    const closed = look === "closed";
    return this.item(box, `${look}${part.guilty ? " guilty" : ""}`, closed ? "false" : null,
      closed ? rect(4, "behind") : null,
      rect(0, "box"),
      part.guilty ? svg("text", { class: "mark", x: left + 2, y: top - (closed ? 9 : 5) }, closed ? "▼ culprit inside" : "▼ culprit") : null,
      svg("text", { x, y: y - 3, "text-anchor": "middle" }, closed ? `▸ ${title}` : title),
      svg("text", { class: "small", x, y: y + 13, "text-anchor": "middle" }, below));
  }

  // What a frame is closed by: the rest of it is ground to drag.
  handle(frame) {
    const { part, x, y, width, height, title } = frame;
    const [left, top] = [x - width / 2, y - height / 2];
    return this.item(frame, `handle${part.guilty ? " guilty" : ""}`, "true",
      svg("rect", { class: "box", x: left + 10, y: top - 11, width: 6.8 * title.length + 18, height: 22, rx: 11 }),
      svg("text", { x: left + 18, y: top + 4 }, title));
  }

  // A value from far above: a press goes to where it comes from.
  tag(tag) {
    const { part, left, top, width, height, title } = tag;
    tag.element = svg("g", { class: "tag" },
      svg("rect", { class: "box", x: left, y: top, width, height, rx: height / 2 }),
      svg("text", { class: "small", x: left + width / 2, y: top + 12, "text-anchor": "middle" }, title));
    tag.element.addEventListener("click", () => this.choose(part, true));
    return tag.element;
  }

  item(place, look, expanded, ...children) {
    const { part } = place;
    const words = describe(this.picture, part);
    const element = svg("g", {
      class: `item ${look}`, tabindex: -1, role: "button", "aria-expanded": expanded, "aria-label": words.join(", "), "data-id": part.id,
    }, ...children);
    this.items.set(part.id, { element, place });
    return element;
  }

  place() {
    this.stage.setAttribute("transform", `translate(${this.x.toFixed(1)} ${this.y.toFixed(1)}) scale(${this.scale.toFixed(4)})`);
  }

  // Moving.

  fit() {
    const { clientWidth, clientHeight } = this.view;
    const { width, height } = this.layout;
    const whole = Math.min(1, clientWidth / width, clientHeight / height);
    const target = this.picture.nodes.find((node) => node.guilty);
    this.moved = false;
    if (whole < 0.6 && target) {
      // All of it would be too small to read: the culprit in the middle, and the rest a drag away.
      this.scale = Math.max(whole, 0.85);
      this.centre(this.items.get(shownAs(this.picture, target).id).place);
    } else {
      this.scale = Math.max(whole, 0.35);
      this.x = (clientWidth - width * this.scale) / 2;
      this.y = Math.max(0, (clientHeight - height * this.scale) / 2);
      this.place();
    }
  }

  centre({ x, y }) {
    this.x = this.view.clientWidth / 2 - x * this.scale;
    this.y = this.view.clientHeight / 2 - y * this.scale;
    this.place();
  }

  pan(dx, dy) {
    this.moved = true;
    this.x += dx;
    this.y += dy;
    this.place();
  }

  zoom(factor, px = this.view.clientWidth / 2, py = this.view.clientHeight / 2) {
    const next = clamped(this.scale * factor, 0.05, 4);
    this.moved = true;
    this.x = px - ((px - this.x) * next) / this.scale;
    this.y = py - ((py - this.y) * next) / this.scale;
    this.scale = next;
    this.place();
  }

  // Opening and closing.

  redrawn(around, change) {
    const before = this.items.get(around.id)?.place;
    const corner = (place) => [place.x * this.scale, (place.y - place.height / 2) * this.scale];
    const [x, y] = before ? corner(before) : [0, 0];
    change();
    this.draw();
    const after = this.items.get(around.id)?.place;
    if (!before || !after) return this.fit();
    // What was pressed stays where it is on the screen.
    const [newX, newY] = corner(after);
    return this.pan(x - newX, y - newY);
  }

  toggle(group) {
    this.redrawn(group, () => {
      group.open = !group.open;
    });
    this.choose(group, true);
    say(`${group.label} ${group.open ? "open" : "closed"}`);
  }

  openWhere(test) {
    for (const group of this.picture.groups.slice(1)) group.open = test(group);
    this.draw();
    this.fit();
  }

  reveal(node) {
    for (const group of groupsAround(this.picture, node)) group.open = true;
    this.draw();
    this.scale = Math.max(this.scale, 0.85);
    this.moved = true;
    this.centre(this.items.get(node.id).place);
    this.choose(node, true);
  }

  find(words) {
    const wanted = words.trim().toLowerCase();
    const matches = wanted
      ? this.picture.nodes.filter((node) => [node.name, node.op, node.module].some((text) => text.toLowerCase().includes(wanted)))
      : [];
    const place = wanted === this.found.words && matches.length ? (this.found.place + 1) % matches.length : 0;
    this.found = { words: wanted, place };
    this.said.textContent = matches.length ? `${place + 1} of ${matches.length}: Enter for the next` : wanted && "Nothing found";
    if (!matches.length) return;
    const finder = document.activeElement;
    this.reveal(matches[place]);
    finder.focus();
  }

  // Choosing: what is chosen is described below the picture, and its edges are lit.

  choose(part, focused) {
    const item = this.items.get(part.id);
    if (!item) return;
    for (const { element } of this.items.values()) {
      element.classList.toggle("chosen", element === item.element);
      element.setAttribute("tabindex", element === item.element ? 0 : -1);
    }
    for (const wire of [...this.lines, ...this.layout.tags]) {
      wire.element.classList.toggle("lit", wire.signal === part.id || wire.targets.has(part.id));
    }
    const [title, ...rest] = describe(this.picture, part);
    this.about.replaceChildren(html("b", {}, title), ...rest.flatMap((line) => [" · ", html("span", {}, line)]));
    if (focused) {
      item.element.focus({ preventScroll: true });
      this.show(item.place);
    }
  }

  // Into sight, no further than needed.
  show({ x, y, width = 0, height = 0, part }) {
    const tall = part.open ? 0 : height;
    const [px, py] = [this.x + x * this.scale, this.y + (part.open ? y - height / 2 : y) * this.scale];
    const [hx, hy] = [Math.min((width * this.scale) / 2 + 12, this.view.clientWidth / 2), (tall * this.scale) / 2 + 18];
    const into = (place, half, size) => clamped(place, Math.min(half, size / 2), Math.max(size - half, size / 2)) - place;
    this.pan(into(px, hx, this.view.clientWidth), into(py, hy, this.view.clientHeight));
  }

  neighbour(id, [dx, dy]) {
    const here = this.items.get(id).place;
    const spot = ({ x, y, height, part }) => [x, part.open ? y - height / 2 : y];
    const [hx, hy] = spot(here);
    let best = null;
    let least = Infinity;
    for (const { place } of this.items.values()) {
      const [x, y] = spot(place);
      const ahead = (x - hx) * dx + (y - hy) * dy;
      const aside = Math.abs((x - hx) * dy) + Math.abs((y - hy) * dx);
      if (ahead > 1 && ahead + 2 * aside < least) [best, least] = [place.part, ahead + 2 * aside];
    }
    return best;
  }

  // Listening.

  partOf(target) {
    const element = target.closest?.(".item");
    return element ? this.items.get(element.dataset.id).place.part : null;
  }

  press(part) {
    if ("count" in part) this.toggle(part);
    else this.choose(part, true);
  }

  listen() {
    this.view.addEventListener("keydown", (event) => this.key(event));
    this.view.addEventListener("focusin", (event) => {
      const part = this.partOf(event.target);
      if (part) this.choose(part, false);
    });
    this.view.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return; // the page scrolls
      event.preventDefault();
      const box = this.view.getBoundingClientRect();
      this.zoom(Math.exp(-event.deltaY / 300), event.clientX - box.left, event.clientY - box.top);
    }, { passive: false });
    startDragging(this.view, {
      moved: (dx, dy) => this.pan(dx, dy),
      zoomed: (factor, x, y) => this.zoom(factor, x, y),
      pressed: (target) => {
        const part = this.partOf(target);
        if (part) this.press(part);
      },
    });
  }

  key(event) {
    const part = this.partOf(event.target);
    const { key } = event;
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    if (key in ARROWS) {
      const [dx, dy] = ARROWS[key];
      if (!part) this.pan(-60 * dx, -60 * dy);
      else this.goTo(this.neighbour(part.id, [dx, dy]));
    } else if (key === "+" || key === "=") this.zoom(1.3);
    else if (key === "-") this.zoom(1 / 1.3);
    else if (key === "0") this.fit();
    else if (part && (key === "Enter" || key === " ")) this.press(part);
    else if (part && (key === "PageDown" || key === "PageUp")) {
      const next = this.order[this.order.indexOf(part.id) + (key === "PageDown" ? 1 : -1)];
      this.goTo(next ? this.items.get(next).place.part : null);
    } else return;
    event.preventDefault();
  }

  goTo(part) {
    if (part) this.choose(part, true);
  }
}

function frameOf({ part, x, y, width, height }) {
  return svg("rect", { class: `frame${part.guilty ? " guilty" : ""}`, x: x - width / 2, y: y - height / 2, width, height, rx: 10 });
}

function arrowHead(id) {
  return svg("defs", {}, svg("marker", { id, viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 6.5, markerHeight: 6.5, orient: "auto" },
    svg("path", { class: "head", d: "M0 0L8 4L0 8z" })));
}

function describe(picture, part) {
  if ("count" in part) return [part.label, `${part.count} nodes`, part.guilty && "the culprit is inside"].filter(Boolean);
  const inputs = part.inputs.map((index) => picture.nodes[index].name);
  const reads = inputs.length > 6 ? `${inputs.slice(0, 6).join(", ")} and ${inputs.length - 6} more` : inputs.join(", ");
  return [part.op || part.name, part.op && part.name, part.shape, part.guilty && "culprit", part.module && `in ${part.module}`, part.source, reads && `reads ${reads}`].filter(Boolean);
}
