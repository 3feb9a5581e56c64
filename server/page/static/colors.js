// Colours of requests and of the page's theme.

const HUE_STEP = 137.508;  // the golden angle: neighbours differ

export function isDark() {
  return matchMedia("(prefers-color-scheme: dark)").matches;
}

export function requestColor(number, {light = false} = {}) {
  const lightness = isDark() ? (light ? 38 : 62) : (light ? 78 : 46);
  return `hsl(${(number * HUE_STEP) % 360} 62% ${lightness}%)`;
}

const PROBES = {};

export function themeColor(name) {
  const key = name + isDark();
  if (!(key in PROBES)) {
    const probe = document.createElement("i");
    probe.style.color = `var(--${name})`;
    document.body.append(probe);
    PROBES[key] = getComputedStyle(probe).color;
    probe.remove();
  }
  return PROBES[key];
}
