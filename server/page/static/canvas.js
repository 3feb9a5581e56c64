// A canvas at the screen's resolution, cleared; lengths are CSS pixels.

export function begin(canvas, height = canvas.clientHeight) {
  const scale = devicePixelRatio || 1;
  const width = canvas.clientWidth;
  const [pixels, lines] = [Math.round(width * scale), Math.round(height * scale)];
  if (canvas.width !== pixels || canvas.height !== lines) {
    canvas.width = pixels;
    canvas.height = lines;
    if (height !== canvas.clientHeight) canvas.style.height = `${height}px`;
  }
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = "11px system-ui, sans-serif";
  return {context, width, height};
}
