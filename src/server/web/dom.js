// Elements from text. Nothing in this page ever parses HTML: what a model writes becomes text nodes.

// element("p", {class: "note", onclick: f}, "text", otherElement, ...)
export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) {
      made.addEventListener(name.slice(2), value);
    } else if (value === true) {
      made.setAttribute(name, "");
    } else if (value !== false && value != null) {
      made.setAttribute(name, value);
    }
  }
  made.append(...children);
  return made;
}

export const byId = (id) => document.getElementById(id);

// A button that copies what `text()` gives.
export function copyButton(text, label = "Copy") {
  const button = element("button", { type: "button", class: "quiet" }, label);
  button.addEventListener("click", async () => {
    button.textContent = (await copy(text())) ? "Copied" : "Not copied";
    setTimeout(() => (button.textContent = label), 1500);
  });
  return button;
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copyBySelection(text); // pages that came over plain HTTP have no clipboard
  }
}

function copyBySelection(text) {
  const field = element("textarea", { class: "hidden", "aria-hidden": "true" });
  field.value = text;
  document.body.append(field);
  field.select();
  const done = document.execCommand("copy");
  field.remove();
  return done;
}
