// Elements made of data. Texts become text nodes and nothing else: no markup is ever parsed.

const SVG = "http://www.w3.org/2000/svg";

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

const html = (tag, attributes = {}, ...children) => filled(document.createElement(tag), attributes, children);
const svg = (tag, attributes = {}, ...children) => filled(document.createElementNS(SVG, tag), attributes, children);

function button(words, action) {
  const made = html("button", { type: "button" }, words);
  made.addEventListener("click", action);
  return made;
}

// For who hears the page: pictures and plots say here where the keyboard has moved to.
function say(words) {
  document.getElementById("spoken").textContent = words;
}
