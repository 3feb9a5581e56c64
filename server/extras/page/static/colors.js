// Colours of requests and of the system's theme, light or dark, cached because a frame asks for thousands.

const HUE_STEP = 137.508;  // the golden angle: neighbours differ
const FIRST_HUE = 205;  // not the red of what ended early
const NUM_HUES = 720;
const DARK = matchMedia("(prefers-color-scheme: dark)");
const made = new Map();

DARK.addEventListener("change", () => made.clear());

export function isDark() {
  return DARK.matches;
}

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
    return `hsl(${(FIRST_HUE + hue * HUE_STEP) % 360} 62% ${lightness}%)`;
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

// Hatching for what was preempted: no colour means two things.
export function hatching(context) {
  return once("hatching", () => {
    const tile = new OffscreenCanvas(4, 4);
    const pen = tile.getContext("2d");
    pen.strokeStyle = themeColor("text");
    pen.lineWidth = 1.2;
    pen.beginPath();
    for (const at of [-4, 0, 4]) {
      pen.moveTo(at - 1, 5);
      pen.lineTo(at + 5, -1);
    }
    pen.stroke();
    return context.createPattern(tile, "repeat");
  });
}
