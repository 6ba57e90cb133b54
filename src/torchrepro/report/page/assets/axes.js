// Scales and axes. Errors and sizes are on a logarithmic scale, with a lane of its own for 0 and one for inf and NaN.

const LANE = 22;

const isNumber = (value) => typeof value === "number";

function shownNumber(value) {
  if (value === null || value === undefined) return "not seen";
  if (!isNumber(value)) return value === "nan" ? "NaN" : "inf";
  if (value === 0) return "0";
  return value >= 0.001 && value < 1e5 ? String(Number(value.toPrecision(3))) : value.toExponential(1);
}

const RAISED = "⁰¹²³⁴⁵⁶⁷⁸⁹";
const powerOfTen = (exponent) =>
  exponent >= 0 && exponent <= 3
    ? String(10 ** exponent)
    : `10${exponent < 0 ? "⁻" : ""}${[...String(Math.abs(exponent))].map((digit) => RAISED[digit]).join("")}`;

// Where values are between `top` and `bottom` in pixels; decades to mark; and the lanes that are needed.
function logScale(values, top, bottom) {
  const zero = values.some((value) => value === 0);
  const endless = values.some((value) => value !== null && !isNumber(value));
  const logs = values.filter((value) => isNumber(value) && value > 0).map(Math.log10);
  let low = 0;
  let high = 1;
  if (logs.length) {
    low = Math.floor(logs.reduce((a, b) => Math.min(a, b)) + 1e-9);
    high = Math.max(low + 1, Math.ceil(logs.reduce((a, b) => Math.max(a, b)) - 1e-9));
  }
  const first = endless ? top + LANE : top;
  const last = zero ? bottom - LANE : bottom;
  const place = (log) => last - ((log - low) / (high - low)) * (last - first);
  const at = (value) => {
    if (!isNumber(value)) return top + 4;
    return value <= 0 ? bottom - 4 : place(Math.log10(value));
  };
  const every = Math.max(1, Math.ceil((high - low) / Math.max(2, (last - first) / 34)));
  const ticks = [];
  for (let exponent = low; exponent <= high; exponent += every) ticks.push([place(exponent), powerOfTen(exponent)]);
  if (zero) ticks.push([bottom - 4, "0"]);
  if (endless) ticks.push([top + 4, "inf, NaN"]);
  return { at, ticks };
}

// Round numbers between `low` and `high`, about `count` of them.
function roundTicks(low, high, count) {
  const rough = Math.max((high - low) / Math.max(1, count), 1e-9);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = Math.max(1, [1, 2, 5, 10].map((factor) => factor * power).find((candidate) => candidate >= rough));
  const ticks = [];
  for (let value = Math.ceil(low / step) * step; value <= high; value += step) ticks.push(value);
  return ticks;
}

// Legend of a plot: a sample of each curve and its name.
function legend(series, left) {
  const marks = [];
  let x = left;
  for (const { name, look } of series) {
    marks.push(
      svg("line", { class: `curve ${look}`, x1: x, x2: x + 22, y1: 9, y2: 9 }),
      svg("text", { class: "strong", x: x + 28, y: 13 }, name),
    );
    x += 46 + 6.6 * name.length;
  }
  return marks;
}

const LEFT = 56;

function levelAxis(ticks, width) {
  return ticks.flatMap(([y, words]) => [
    svg("line", { class: "grid", x1: LEFT, x2: width, y1: y, y2: y }),
    svg("text", { x: LEFT - 8, y: y + 4, "text-anchor": "end" }, words),
  ]);
}

function lowerAxis(ticks, title, width, y) {
  return [
    svg("line", { class: "axis", x1: LEFT, x2: width, y1: y, y2: y }),
    ...ticks.flatMap(([x, words]) => [
      svg("line", { class: "axis", x1: x, x2: x, y1: y, y2: y + 4 }),
      svg("text", { x, y: y + 17, "text-anchor": "middle" }, words),
    ]),
    svg("text", { x: (LEFT + width) / 2, y: y + 34, "text-anchor": "middle" }, title),
  ];
}
