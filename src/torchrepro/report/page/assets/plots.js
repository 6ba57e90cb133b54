// Curves and histograms.

function along(place, key, count) {
  const steps = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -count, End: count };
  return key in steps ? clamped((place ?? (steps[key] > 0 ? -1 : count)) + steps[key], 0, count - 1) : undefined;
}

// Curves over `xs`, which rise. `stepped`: a value holds until the next one.
function curvePlot(figure, { words, xs, series, title, stepped, suspect, linesAt }) {
  const top = 26;
  const foot = 40;
  const height = 280;
  const values = series.flatMap((each) => each.values);
  livePlot(figure, words, (width) => {
    const right = width - 10;
    const bottom = height - foot;
    const [low, high] = [xs[0], Math.max(xs[xs.length - 1], xs[0] + 1)];
    const across = (x) => LEFT + 8 + ((x - low) / (high - low)) * (right - LEFT - 16);
    const scale = logScale(values, top, bottom);
    const curve = ({ values: ys, look }) => {
      let path = "";
      let last = null;
      ys.forEach((y, place) => {
        const [px, py] = [across(xs[place]), y === null ? null : scale.at(y)];
        if (py !== null) {
          const via = stepped && last !== null ? `L${px.toFixed(1)} ${last.toFixed(1)}` : "";
          path += `${via}${last === null ? "M" : "L"}${px.toFixed(1)} ${py.toFixed(1)}`;
        }
        last = py;
      });
      return svg("path", { class: `curve ${look}`, d: path });
    };
    const dots = (each, places) =>
      places
        .filter((place) => each.values[place] !== null)
        .map((place) =>
          svg("circle", { class: `dot ${each.look}`, cx: across(xs[place]), cy: scale.at(each.values[place]), r: 3 }),
        );
    const every = xs.map((_, place) => place);
    const ticks = roundTicks(low, high, (right - LEFT) / 65);
    const marks = [
      ...legend(series, LEFT),
      ...levelAxis(scale.ticks, right),
      ...lowerAxis(ticks.map((x) => [across(x), x.toLocaleString("en")]), title, right, bottom),
    ];
    if (suspect >= 0) {
      const x = across(xs[suspect]);
      const late = x > (LEFT + right) / 2;
      marks.push(
        svg("line", { class: "suspect", x1: x, x2: x, y1: top, y2: bottom }),
        svg("text", { class: "suspect-name", x: late ? x - 6 : x + 6, y: top + 12, "text-anchor": late ? "end" : "start" }, "culprit"),
      );
    }
    marks.push(...series.map(curve));
    if (xs.length <= 120) marks.push(...series.flatMap((each) => dots(each, every)));
    return {
      height,
      marks,
      nearest: (px) => every.reduce((best, place) => (Math.abs(across(xs[place]) - px) < Math.abs(across(xs[best]) - px) ? place : best), 0),
      moved: (place, key) => along(place, key, xs.length),
      cursor: (place) =>
        svg("g", {}, svg("line", { class: "cursor", x1: across(xs[place]), x2: across(xs[place]), y1: top, y2: bottom }),
          ...series.flatMap((each) => dots(each, [place]))),
      anchor: (place) => [across(xs[place]), bottom],
      lines: linesAt,
    };
  });
}

function growthPlot(figure, growth, guilty) {
  curvePlot(figure, {
    words: "Error along the graph; left and right arrows move from node to node",
    xs: growth.map((_, place) => place + 1),
    series: [
      { name: "eager", look: "a", values: growth.map((point) => point.eager) },
      { name: "compiled", look: "b", values: growth.map((point) => point.compiled) },
    ],
    title: "node of the graph",
    stepped: false,
    suspect: growth.findIndex((point) => point.node === guilty),
    linesAt: (place) => {
      const { node, op, module, source, eager, compiled } = growth[place];
      return [node, op, `compiled ${shownNumber(compiled)}, eager ${shownNumber(eager)}`, module, source];
    },
  });
}

function stepsPlot(figure, steps) {
  curvePlot(figure, {
    words: "Size over queries; left and right arrows move from step to step",
    xs: steps.map((step) => step.query),
    series: [
      { name: "ops", look: "b", values: steps.map((step) => step.ops) },
      { name: "inputs", look: "a", values: steps.map((step) => step.inputs) },
      { name: "elements", look: "c3", values: steps.map((step) => step.elements) },
    ],
    title: "queries",
    stepped: true,
    suspect: -1,
    linesAt: (place) => {
      const { query, seconds, ops, inputs, elements, pass } = steps[place];
      const sizes = [[ops, "ops"], [inputs, "inputs"], [elements, "elements"]];
      return [`query ${query}`, pass && `after ${pass}`, sizes.map(([size, name]) => `${size.toLocaleString("en")} ${name}`).join(", "), `${seconds} s`];
    },
  });
}

function histogramPlot(figure, { edges, eager, compiled }) {
  const top = 26;
  const height = 260;
  const series = [
    { name: "eager", look: "a", counts: eager },
    { name: "compiled", look: "b", counts: compiled },
  ].filter((each) => each.counts.length);
  const bins = edges.length - 1;
  livePlot(figure, "How large the errors are; left and right arrows move from bin to bin", (width) => {
    const right = width - 10;
    const bottom = height - 40;
    const across = (edge) => LEFT + ((edge - edges[0]) / (edges[bins] - edges[0] || 1)) * (right - LEFT);
    const most = series.flatMap((each) => each.counts).reduce((a, b) => Math.max(a, b), 1);
    const scale = logScale([1, most * 1.2], top, bottom);
    const level = (count) => (count > 0 ? scale.at(count) - 3 : bottom);
    const shapes = series.flatMap(({ look, counts }) => {
      let path = `M${across(edges[0]).toFixed(1)} ${bottom}`;
      counts.forEach((count, bin) => {
        const y = level(count).toFixed(1);
        path += `L${across(edges[bin]).toFixed(1)} ${y}L${across(edges[bin + 1]).toFixed(1)} ${y}`;
      });
      path += `L${across(edges[bins]).toFixed(1)} ${bottom}`;
      return [svg("path", { class: `area ${look}`, d: `${path}Z` }), svg("path", { class: `curve ${look}`, d: path })];
    });
    const decades = roundTicks(edges[0], edges[bins], (right - LEFT) / 60);
    const middle = (bin) => across((edges[bin] + edges[bin + 1]) / 2);
    return {
      height,
      marks: [
        ...legend(series, LEFT),
        ...levelAxis(scale.ticks, right),
        ...lowerAxis(decades.map((exponent) => [across(exponent), powerOfTen(exponent)]), "error of an element", right, bottom),
        ...shapes,
      ],
      nearest: (px) => clamped(Math.floor(((px - LEFT) / (right - LEFT)) * bins), 0, bins - 1),
      moved: (bin, key) => along(bin, key, bins),
      cursor: (bin) => svg("line", { class: "cursor", x1: middle(bin), x2: middle(bin), y1: top, y2: bottom }),
      anchor: (bin) => [middle(bin), bottom],
      lines: (bin) => [
        `${(10 ** edges[bin]).toExponential(1)} to ${(10 ** edges[bin + 1]).toExponential(1)}`,
        ...series.map(({ name, counts }) => `${name}: ${counts[bin].toLocaleString("en")} elements`),
      ],
    };
  });
}
