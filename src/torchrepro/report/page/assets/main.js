// What is done when the page is read: the data decoded, the pictures and plots drawn where it has any.

function start() {
  const data = JSON.parse(document.getElementById("payload").textContent);
  const { strings } = data;
  // What cannot be drawn says so in its place; the rest of the page is not the worse for it.
  const within = (id, fill) => {
    const figure = document.getElementById(id);
    if (!figure) return;
    try {
      fill(figure);
    } catch (error) {
      console.error(error);
      figure.append(html("p", {}, `This could not be drawn: ${error.message}`));
    }
  };
  startTheme();
  startCopying();
  for (const [name, picture] of Object.entries(data.pictures)) {
    within(`picture-${name}`, (figure) => new GraphPicture(figure, decodedPicture(picture, strings)));
  }
  const growth = data.growth.map(([node, op, module, source, eager, compiled]) => ({
    node: strings[node], op: strings[op], module: strings[module], source: strings[source], eager, compiled,
  }));
  within("plot-growth", (figure) => growthPlot(figure, growth, data.guilty));
  data.errors.forEach((error, place) => {
    within(`plot-histogram-${place}`, (figure) => histogramPlot(figure, error));
    within(`plot-heat-${place}`, (figure) => heatPlot(figure, error));
  });
  const steps = data.steps.map(([query, seconds, ops, inputs, elements, pass]) => ({ query, seconds, ops, inputs, elements, pass }));
  within("plot-steps", (figure) => stepsPlot(figure, steps));
  performance.mark("torchrepro-ready");
}

start();
