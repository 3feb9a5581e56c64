// A cleared canvas at the screen's resolution, in CSS pixels. Sizes are cached: reading one costs a layout per frame.

const sizes = new WeakMap();
const observer = new ResizeObserver((entries) => {
  for (const {target, contentRect} of entries) sizes.set(target, contentRect);
});

export function sizeOf(canvas) {
  if (!sizes.has(canvas)) {
    sizes.set(canvas, canvas.getBoundingClientRect());
    observer.observe(canvas);
  }
  return sizes.get(canvas);
}

export function begin(canvas, height = sizeOf(canvas).height) {
  const scale = devicePixelRatio || 1;
  const {width, height: before} = sizeOf(canvas);
  const [pixels, lines] = [Math.round(width * scale), Math.round(height * scale)];
  if (canvas.width !== pixels || canvas.height !== lines) {
    canvas.width = pixels;
    canvas.height = lines;
    if (height !== before) canvas.style.height = `${height}px`;
  }
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = "11px system-ui, sans-serif";
  return {context, width, height};
}

// Sets an attribute that screen readers announce, only when it changes.
export function tellOnce(target, name, text) {
  if (target.getAttribute(name) !== text) target.setAttribute(name, text);
}
