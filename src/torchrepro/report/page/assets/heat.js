// The heat map: where in a tensor the errors are.

const LEVELS = 9;

function heatPlot(figure, { rows, dims }) {
  const cells = rows.flat().filter((cell) => isNumber(cell) && cell > 0);
  const largest = cells.reduce((a, b) => Math.max(a, b), 0);
  const smallest = Math.max(cells.reduce((a, b) => Math.min(a, b), Infinity), largest * 1e-8);
  const spread = Math.log(largest / smallest) || 0;
  const levelOf = (cell) => {
    if (cell === null) return "none";
    if (!isNumber(cell)) return `h${LEVELS}`;
    if (cell <= 0) return "h0";
    const share = spread > 0 ? clamped(Math.log(cell / smallest) / spread, 0, 1) : 1;
    return `h${1 + Math.round(share * (LEVELS - 1))}`;
  };
  const columns = rows[0].length;
  const top = 30;
  livePlot(figure, "Where the errors are; arrows move from cell to cell", (width) => {
    const across = Math.min((width - 2) / columns, 40);
    const down = clamped(300 / rows.length, 4, Math.max(4, Math.min(across, 40)));
    const height = top + rows.length * down + 4;
    const marks = [];
    const place = width < 420 ? 11 : 15;
    const shown = ["0", shownNumber(largest ? smallest : null), shownNumber(largest || null)];
    const wide = 11;
    marks.push(
      svg("rect", { class: "h0", x: 1, y: 4, width: wide, height: wide }),
      svg("text", { x: 1 + wide + 5, y: 4 + 10 }, "no error"),
    );
    if (largest) {
      marks.push(svg("text", { x: 84, y: 4 + 10 }, shown[1]));
      const from = 92 + 6.2 * shown[1].length;
      for (let level = 1; level <= LEVELS; level += 1) {
        marks.push(svg("rect", { class: `h${level}`, x: from + (level - 1) * place, y: 4, width: place, height: wide }));
      }
      marks.push(svg("text", { x: from + LEVELS * place + 6, y: 4 + 10 }, shown[2]));
    }
    rows.forEach((row, r) => {
      // Neighbours of the same colour are one rectangle: a map of 4,096 cells is then a few hundred.
      let start = 0;
      row.forEach((cell, c) => {
        const level = levelOf(cell);
        if (c + 1 < row.length && levelOf(row[c + 1]) === level) return;
        marks.push(
          svg("rect", { class: level, x: 1 + start * across, y: top + r * down, width: (c + 1 - start) * across + 0.3, height: down + 0.3 }),
        );
        start = c + 1;
      });
    });
    const total = rows.length * columns;
    return {
      height,
      marks,
      nearest: (px, py) => {
        const [r, c] = [Math.floor((py - top) / down), Math.floor((px - 1) / across)];
        return r >= 0 && r < rows.length && c >= 0 && c < columns ? r * columns + c : null;
      },
      moved: (cell, key) => {
        const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns, Home: -total, End: total };
        return key in steps ? clamped((cell ?? 0) + (cell === null ? 0 : steps[key]), 0, total - 1) : undefined;
      },
      cursor: (cell) =>
        svg("rect", { class: "cell-cursor", x: 1 + (cell % columns) * across, y: top + Math.floor(cell / columns) * down, width: across, height: down }),
      anchor: (cell) => [1 + (cell % columns) * across, top + Math.floor(cell / columns) * down],
      lines: (cell) => {
        const [r, c] = [Math.floor(cell / columns), cell % columns];
        const value = rows[r][c];
        return [value === null ? "no element" : `error ${shownNumber(value)}`, `row ${r + 1} of ${rows.length}: ${dims[0]}`, `column ${c + 1} of ${columns}: ${dims[1]}`];
      },
    };
  });
}
