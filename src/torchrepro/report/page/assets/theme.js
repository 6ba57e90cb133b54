// Light and dark: as the system has it until the button is pressed, then as chosen.

const THEME_KEY = "torchrepro-theme";

// A browser may refuse a page from disk its storage: the choice then lasts as long as the page.
function remembered() {
  try {
    return localStorage.getItem(THEME_KEY);
  } catch {
    return null;
  }
}

function remember(theme) {
  try {
    localStorage.setItem(THEME_KEY, theme);
  } catch {
    return;
  }
}

function startTheme() {
  const toggle = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const root = document.documentElement;
  const current = () => root.dataset.theme ?? (system.matches ? "dark" : "light");
  const show = () => {
    toggle.textContent = current() === "dark" ? "Light" : "Dark";
    toggle.setAttribute("aria-label", `Switch to ${toggle.textContent.toLowerCase()} colours`);
  };
  const chosen = remembered();
  if (chosen === "dark" || chosen === "light") root.dataset.theme = chosen;
  toggle.hidden = false;
  toggle.addEventListener("click", () => {
    root.dataset.theme = current() === "dark" ? "light" : "dark";
    remember(root.dataset.theme);
    show();
  });
  system.addEventListener("change", show);
  show();
}
