// Theme of both pages: the system's, light or dark. Canvases are drawn again when it changes.

import {byId} from "./dom.js";
import {glyph} from "./icons.js";

const THEMES = ["auto", "light", "dark"];
const THEME_KEY = "splitfuse-theme";
const SYSTEM = matchMedia("(prefers-color-scheme: dark)");
const watchers = [];

export function isDark() {
  const {theme} = document.documentElement.dataset;
  return theme ? theme === "dark" : SYSTEM.matches;
}

export function onThemeChange(call) {
  watchers.push(call);
}

SYSTEM.addEventListener("change", () => watchers.forEach((call) => call()));

// A button that steps through the themes.
export function useThemes() {
  const button = byId("theme");
  let theme = remembered() ?? "auto";
  const apply = () => {
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    button.replaceChildren(glyph({auto: "auto", light: "sun", dark: "moon"}[theme]));
    button.title = `Theme: ${theme}`;
    button.setAttribute("aria-label", button.title);
    watchers.forEach((call) => call());
  };
  button.addEventListener("click", () => {
    theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
    localStorage.setItem(THEME_KEY, theme);
    apply();
  });
  apply();
}

function remembered() {
  const theme = localStorage.getItem(THEME_KEY);
  return THEMES.includes(theme) ? theme : null;
}
