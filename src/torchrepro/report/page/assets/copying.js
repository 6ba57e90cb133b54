// Buttons that copy the code beside them, exactly as it is shown.

async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Some browsers have no clipboard for a page from disk; the old way still works there.
    const area = html("textarea", { class: "unseen", "aria-hidden": "true" });
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}

function startCopying() {
  for (const copy of document.querySelectorAll("button.copy")) {
    const words = copy.textContent;
    const code = copy.parentElement.querySelector("code");
    copy.hidden = false;
    copy.addEventListener("click", async () => {
      const done = await copied(code.textContent);
      copy.textContent = done ? "Copied" : "Select and copy by hand";
      copy.classList.toggle("done", done);
      copy.focus();
      say(copy.textContent);
      setTimeout(() => {
        copy.textContent = words;
        copy.classList.remove("done");
      }, 1600);
    });
  }
}
