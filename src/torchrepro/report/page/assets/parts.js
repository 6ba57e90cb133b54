// The parts of a picture: nodes, groups, and what of them is seen while some groups are open and others closed.

const LETTER = 7.3;
const LONGEST_LABEL = 34;

// The end of a name tells it from its neighbours as often as its beginning does.
function shortened(text) {
  if (text.length <= LONGEST_LABEL) return text;
  return `${text.slice(0, LONGEST_LABEL - 14)}…${text.slice(-13)}`;
}

function decodedPicture({ groups, nodes }, strings) {
  const decoded = {
    groups: groups.map(([label, parent, count, open], index) => ({
      id: `g${index}`, index, label: strings[label], parent, count, open: open === 1, guilty: false, first: nodes.length,
    })),
    nodes: nodes.map(([name, op, kind, module, source, shape, guilty, group, inputs], index) => ({
      id: `n${index}`, index, name: strings[name], op: strings[op], kind: strings[kind], module: strings[module],
      source: strings[source], shape: strings[shape], guilty: guilty === 1, group, inputs,
    })),
  };
  for (const node of decoded.nodes) {
    for (const group of groupsAround(decoded, node)) {
      group.guilty ||= node.guilty;
      group.first = Math.min(group.first, node.index);
    }
  }
  return decoded;
}

// From the innermost group outwards; the whole graph is none of them.
function groupsAround(picture, { group, parent }) {
  const around = [];
  for (let at = group ?? parent; at !== 0; at = picture.groups[at].parent) around.push(picture.groups[at]);
  return around;
}

// What stands for a node or group: itself, or the outermost closed group around it.
function shownAs(picture, part) {
  return groupsAround(picture, part).findLast((group) => !group.open) ?? part;
}

const KINDS = ["input", "constant", "op", "output"];

function boxOf(part) {
  const isGroup = "count" in part;
  const title = shortened(isGroup ? part.label : part.kind === "op" ? part.op.replace(/\.default$/, "") : part.name);
  const below = shortened(isGroup ? `${part.count} nodes` : [part.kind === "op" ? part.name : part.kind, part.shape].filter(Boolean).join("  "));
  return {
    part,
    id: part.id,
    title,
    below,
    look: isGroup ? "closed" : KINDS.includes(part.kind) ? part.kind : "op",
    order: isGroup ? part.first : part.index,
    width: Math.max(part.guilty ? 136 : 64, LETTER * title.length + (isGroup ? 42 : 24), 6.5 * below.length + 24),
    height: 42,
  };
}
