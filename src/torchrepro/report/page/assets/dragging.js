// Pointers on a picture: one drags, two zoom; one that stays where it is presses.

const STILL = 4; // pixels: a finger trembles

function startDragging(view, { moved, zoomed, pressed }) {
  const pointers = new Map();
  let travelled = 0;
  const spread = () => {
    const [a, b] = [...pointers.values()];
    return Math.hypot(a.clientX - b.clientX, a.clientY - b.clientY);
  };
  view.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    if (!pointers.size) travelled = 0;
    pointers.set(event.pointerId, event);
  });
  addEventListener("pointermove", (event) => {
    const before = pointers.get(event.pointerId);
    if (!before) return;
    const apart = pointers.size === 2 ? spread() : 0;
    pointers.set(event.pointerId, event);
    const [dx, dy] = [event.clientX - before.clientX, event.clientY - before.clientY];
    travelled += Math.abs(dx) + Math.abs(dy);
    if (travelled <= STILL) return;
    view.classList.add("dragging");
    if (pointers.size === 1) moved(dx, dy);
    if (!apart) return;
    const box = view.getBoundingClientRect();
    const [a, b] = [...pointers.values()];
    zoomed(spread() / apart, (a.clientX + b.clientX) / 2 - box.left, (a.clientY + b.clientY) / 2 - box.top);
  });
  for (const end of ["pointerup", "pointercancel"]) {
    addEventListener(end, (event) => {
      if (pointers.delete(event.pointerId)) view.classList.remove("dragging");
    });
  }
  view.addEventListener("click", (event) => {
    if (travelled <= STILL) pressed(event.target);
  });
}
