// A plot that is drawn at the width it has, so that its letters stay readable on a phone, and has a cursor.

const clamped = (value, low, high) => Math.min(high, Math.max(low, value));

// A plot with a cursor that follows the pointer and the arrow keys. `draw(width)` gives the height, the marks and
// the places of the cursor: `nearest(x, y)`, `moved(place, key)`, `cursor(place)`, `anchor(place)`, `lines(place)`.
function livePlot(figure, words, draw) {
  const surface = svg("svg", { tabindex: 0, role: "application", "aria-roledescription": "plot", "aria-label": words });
  const tip = html("div", { class: "tip", hidden: "" });
  let drawn = null;
  let cursor = null;
  let place = null;

  const hide = () => {
    cursor?.remove();
    tip.hidden = true;
  };
  const show = (next) => {
    hide();
    place = next;
    if (place === null) return;
    cursor = drawn.cursor(place);
    surface.append(cursor);
    const [title, ...lines] = drawn.lines(place);
    tip.replaceChildren(html("b", {}, title), ...lines.filter(Boolean).map((line) => html("div", {}, line)));
    tip.hidden = false;
    const [x, y] = drawn.anchor(place);
    const left = x + 14 + tip.offsetWidth > surface.clientWidth ? x - 14 - tip.offsetWidth : x + 14;
    tip.style.left = `${clamped(left, 0, Math.max(0, surface.clientWidth - tip.offsetWidth))}px`;
    tip.style.top = `${surface.getBoundingClientRect().top - figure.getBoundingClientRect().top + y + 12}px`;
  };
  const render = () => {
    const width = Math.floor(figure.clientWidth);
    if (width < 80) return; // inside what is closed
    hide();
    drawn = draw(width);
    surface.setAttribute("viewBox", `0 0 ${width} ${drawn.height}`);
    surface.setAttribute("height", drawn.height);
    surface.replaceChildren(...drawn.marks);
  };

  surface.addEventListener("pointermove", (event) => {
    const box = surface.getBoundingClientRect();
    show(drawn.nearest(event.clientX - box.left, event.clientY - box.top));
  });
  surface.addEventListener("pointerleave", hide);
  surface.addEventListener("blur", hide);
  surface.addEventListener("keydown", (event) => {
    if (event.key === "Escape") return hide();
    const next = drawn.moved(place, event.key);
    if (next === undefined) return undefined;
    event.preventDefault();
    show(next);
    return say([...tip.children].map((line) => line.textContent).join(", "));
  });
  figure.append(surface, tip);
  new ResizeObserver(render).observe(figure);
  render();
}
