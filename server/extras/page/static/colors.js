// Colours of requests and of the page's theme, cached because a frame asks for thousands.

import {isDark, onThemeChange} from "./theme.js";

const HUE_STEP = 137.508;  // the golden angle: neighbours differ
const NUM_HUES = 720;
const made = new Map();

onThemeChange(() => made.clear());

function once(key, make) {
  let color = made.get(key);
  if (color === undefined) {
    color = make();
    made.set(key, color);
  }
  return color;
}

export function requestColor(number, {light = false} = {}) {
  const hue = number % NUM_HUES;
  return once(light ? -1 - hue : hue, () => {
    const lightness = isDark() ? (light ? 38 : 62) : (light ? 78 : 46);
    return `hsl(${(hue * HUE_STEP) % 360} 62% ${lightness}%)`;
  });
}

export function themeColor(name) {
  return once(name, () => {
    const probe = document.createElement("i");
    probe.style.color = `var(--${name})`;
    document.body.append(probe);
    const color = getComputedStyle(probe).color;
    probe.remove();
    return color;
  });
}
