// Where the boxes of a picture are. Each open group is laid out by itself, by dagre, and is then one large box in the
// group around it: dagre's own nested graphs take 0.4 s for 40 boxes, this takes a tenth of it. A value that crosses
// the edge of an open group does so at a port, which is a point on that edge.

//
// A value that is read many rows below (a mask, in each of 24 layers) is not a line there but a tag with its name: lines
// past rows are what dagre's time goes into, and what nobody can follow.

const PAD = 22;
const HEAD = 34; // above the boxes of a frame: its name, and what comes in
const MOST_PASSING = 60; // rows that the lines of a level may pass, all together

// From the innermost group outwards to the whole graph.
const chainOf = (picture, part) => [...groupsAround(picture, part), picture.groups[0]];

// The stretches of the wires in each open group: a wire leaves its groups, crosses one, and enters others.
function stretches(picture, wires) {
  const inside = new Map();
  const add = (group, from, to, { source, target }) => {
    if (!inside.has(group.id)) inside.set(group.id, new Map());
    const key = `${from} ${to} ${source.id}`;
    const known = inside.get(group.id);
    if (!known.has(key)) known.set(key, { from, to, signal: source.id, targets: new Set() });
    known.get(key).targets.add(target.id);
  };
  for (const wire of wires) {
    const [out, into] = [chainOf(picture, wire.source), chainOf(picture, wire.target)];
    while (out.length > 1 && into.length > 1 && out.at(-2) === into.at(-2)) {
      out.pop();
      into.pop();
    }
    const shared = out.pop();
    into.pop();
    let from = wire.source.id;
    for (const group of out) {
      add(group, from, `out ${wire.source.id}`, wire);
      from = group.id;
    }
    let to = wire.target.id;
    for (const group of into) {
      add(group, `in ${wire.source.id}`, to, wire);
      to = group.id;
    }
    add(shared, from, to, wire);
  }
  return inside;
}

function laidOut(picture) {
  const boxes = new Map();
  const wires = new Map();
  const standIns = picture.nodes.map((node) => shownAs(picture, node));
  const children = new Map([[picture.groups[0].id, new Set()]]);
  for (const part of standIns) {
    if (boxes.has(part.id)) continue;
    boxes.set(part.id, boxOf(part));
    let inner = part.id;
    for (const group of chainOf(picture, part)) {
      if (!children.has(group.id)) children.set(group.id, new Set());
      children.get(group.id).add(inner);
      inner = group.id;
    }
  }
  picture.nodes.forEach((node, index) => {
    for (const input of node.inputs) {
      const [source, target] = [standIns[input], standIns[index]];
      if (source !== target) wires.set(`${source.id} ${target.id}`, { source, target });
    }
  });
  const inside = stretches(picture, wires.values());
  const levels = new Map();
  // The groups inside come later in the list than those around them.
  for (const group of [...picture.groups].reverse()) {
    if (children.has(group.id)) {
      const items = [...children.get(group.id)].map((id) => boxes.get(id) ?? levels.get(id));
      levels.set(group.id, laidOutLevel(group, items, [...(inside.get(group.id)?.values() ?? [])], boxes));
    }
  }
  const whole = levels.get(picture.groups[0].id);
  const placed = { boxes: [], frames: [], tags: [], lines: [], width: whole.width, height: whole.height };
  place(whole, 0, 0, placed);
  placed.boxes.sort((a, b) => a.order - b.order);
  return placed;
}

// The stretches that stay lines; the longest become tags until the others pass few enough rows.
function tagged(items, segments) {
  const rows = new Map([...items].sort((a, b) => a.order - b.order).map(({ id }) => [id, 0]));
  const leaving = Map.groupBy(segments, ({ from }) => from);
  const earlier = new Set();
  for (const id of rows.keys()) {
    earlier.add(id);
    for (const { to } of leaving.get(id) ?? []) {
      if (rows.has(to) && !earlier.has(to)) rows.set(to, Math.max(rows.get(to), rows.get(id) + 1));
    }
  }
  // What comes in by a port comes from above all rows; what leaves by one has nobody to put a tag at.
  const passing = ({ from, to }) => (rows.has(to) ? Math.max(0, rows.get(to) - (rows.get(from) ?? 0) - 1) : 0);
  const long = segments.filter((segment) => passing(segment) > 1).sort((a, b) => passing(b) - passing(a));
  let total = long.reduce((sum, segment) => sum + passing(segment), 0);
  const tags = new Set();
  for (const segment of long) {
    if (total <= MOST_PASSING) break;
    total -= passing(segment);
    tags.add(segment);
  }
  return tags;
}

function laidOutLevel(group, items, stretched, boxes) {
  const tags = tagged(items, stretched);
  const segments = stretched.filter((segment) => !tags.has(segment));
  const graph = new dagre.graphlib.Graph();
  graph.setGraph({ nodesep: 22, edgesep: 14, ranksep: 36 });
  const ports = new Set(segments.flatMap(({ from, to }) => [from, to]).filter(isPort));
  for (const { id, width, height } of items) graph.setNode(id, { width, height });
  for (const id of ports) graph.setNode(id, { width: 1, height: 1 });
  // Two groups may read each other; dagre is given only what goes down in the order of the graph. All that goes from one
  // box to another is one edge to it: of three and more between the same two it cannot make a picture.
  const orders = new Map(items.map(({ id, order }) => [id, order]));
  const rising = ({ from, to }) => orders.get(from) > orders.get(to);
  for (const segment of segments) {
    const [from, to] = rising(segment) ? [segment.to, segment.from] : [segment.from, segment.to];
    graph.setEdge(from, to, {});
  }
  // Ports are drawn to the upper and lower edge by two unseen boxes, which are above and below everything else.
  for (const [side, ends] of [["in", graph.sources()], ["out", graph.sinks()]]) {
    if (![...ports].some((id) => id.startsWith(`${side} `))) continue;
    graph.setNode(side, { width: 1, height: 1 });
    for (const id of ends) {
      const [from, to] = side === "in" ? [side, id] : [id, side];
      graph.setEdge(from, to, { weight: ports.has(id) ? 4 : 0 });
    }
  }
  dagre.layout(graph);
  const named = [...tags].map(({ to, signal, targets }) => ({ to, signal, targets, part: boxes.get(signal).part }));
  const paths = segments.map((segment) =>
    rising(segment) ? graph.edge(segment.to, segment.from).points.toReversed() : graph.edge(segment.from, segment.to).points,
  );
  return framed({ group, graph, items, segments, paths, ports, tags: named });
}

const isPort = (id) => id.includes(" ");

// The level as one box: how large it is, and where things are from its upper left corner.
function framed({ group, graph, items, segments, paths, ports, tags }) {
  const at = new Map(items.map(({ id }) => [id, graph.node(id)]));
  const ends = (key, size) => [...at.values()].flatMap((each) => [each[key] - each[size] / 2, each[key] + each[size] / 2]);
  const across = [...ends("x", "width"), ...paths.flatMap((points) => points.map(({ x }) => x))];
  const [left, right] = [across.reduce((a, b) => Math.min(a, b)), across.reduce((a, b) => Math.max(a, b))];
  const down = ends("y", "height");
  const [top, bottom] = [down.reduce((a, b) => Math.min(a, b)), down.reduce((a, b) => Math.max(a, b))];
  const words = `▾ ${shortened(group.label)}`;
  const width = Math.max(right - left + 2 * PAD, LETTER * words.length + 44);
  const height = bottom - top + HEAD + PAD;
  const [dx, dy] = [(width - (right - left)) / 2 - left, HEAD - top];
  const moved = ({ x, y }) => ({ x: x + dx, y: y + dy });
  const lines = segments.map((segment, place) => {
    const points = paths[place].map(moved);
    // A port is on the edge, wherever in its row it was put.
    if (isPort(segment.from)) points[0] = { x: moved(graph.node(segment.from)).x, y: 0 };
    if (isPort(segment.to)) points[points.length - 1] = { x: moved(graph.node(segment.to)).x, y: height };
    return { ...segment, points };
  });
  return {
    part: group, id: group.id, order: group.first - 0.5, title: words, width, height, lines, tags,
    items: items.map((item) => ({ item, ...moved(at.get(item.id)) })),
    ports: new Map([...ports].map((id) => [id, moved(graph.node(id)).x])),
  };
}

// Boxes, frames, tags and lines of a level and of all inside it, on the whole picture.
function place(level, left, top, placed) {
  const corners = new Map();
  for (const { item, x, y } of level.items) {
    const corner = { item, left: left + x - item.width / 2, top: top + y - item.height / 2 };
    corners.set(item.id, corner);
    (item.items ? placed.frames : placed.boxes).push({ ...item, x: left + x, y: top + y });
    if (item.items) place(item, corner.left, corner.top, placed);
  }
  const portOf = (corner, id) => corner?.item.ports?.get(id);
  for (const { from, to, signal, targets, points } of level.lines) {
    const path = points.map(({ x, y }) => ({ x: left + x, y: top + y }));
    const [source, target] = [corners.get(from), corners.get(to)];
    const [out, into] = [portOf(source, `out ${signal}`), portOf(target, `in ${signal}`)];
    if (out !== undefined) path[0] = { x: source.left + out, y: source.top + source.item.height };
    // All that comes in by a port may have become tags: the line then ends at the frame.
    if (into !== undefined) path[path.length - 1] = { x: target.left + into, y: target.top };
    placed.lines.push({ signal, targets, points: path, ends: into === undefined && !isPort(to) });
  }
  for (const [to, tags] of Map.groupBy(level.tags, (tag) => tag.to)) {
    let right = corners.get(to).left + corners.get(to).item.width;
    for (const tag of tags) {
      const title = shortened(tag.part.label ?? tag.part.name);
      const width = 6.4 * title.length + 16;
      placed.tags.push({ ...tag, title, width, height: 17, left: right - width, top: corners.get(to).top - 21 });
      right -= width + 4;
    }
  }
}

// A smooth line through the points: straight to the first and from the last, bent between them.
function wirePath(points) {
  const [first, ...rest] = points;
  let path = `M${first.x.toFixed(1)} ${first.y.toFixed(1)}`;
  rest.forEach((point, place) => {
    const next = rest[place + 1];
    path += next
      ? `Q${point.x.toFixed(1)} ${point.y.toFixed(1)} ${((point.x + next.x) / 2).toFixed(1)} ${((point.y + next.y) / 2).toFixed(1)}`
      : `L${point.x.toFixed(1)} ${point.y.toFixed(1)}`;
  });
  return path;
}
