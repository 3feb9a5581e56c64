// Elements built from text. Text never becomes markup here.

export function byId(id) {
  return document.getElementById(id);
}

export function element(name, properties, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

export function table(headings, rows) {
  const cells = (row, kind) => element("tr", {}, ...row.map((text) => element(kind, {}, text)));
  return element("table", {}, element("thead", {}, cells(headings, "th")),
    element("tbody", {}, ...rows.map((row) => cells(row, "td"))));
}

// Shows the text that an action returns, or why it failed.
export async function tell(id, action, fault = "") {
  try {
    byId(id).textContent = await action();
  } catch (error) {
    byId(id).textContent = fault + error.message;
  }
}

// Entries are [text, colour, or "own" or "hatched"].
export function legend(parent, entries) {
  parent.replaceChildren(...entries.map(([text, color]) => {
    const isPattern = ["own", "hatched"].includes(color);
    const swatch = element("i", {className: `swatch ${isPattern ? color : ""}`});
    if (!isPattern) swatch.style.background = color;
    return element("span", {}, swatch, text);
  }));
}
