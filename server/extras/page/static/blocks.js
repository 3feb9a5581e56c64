// Map of the KV cache: one cell per block, coloured by its contents.

import {begin, sizeOf, tellOnce} from "./canvas.js";
import {requestColor, themeColor} from "./colors.js";

const [FREE, CACHED, SHARED] = [-1, -2, -3];

export class Blocks {
  constructor(canvas, words) {
    this.canvas = canvas;
    this.words = words;
    this.drawn = null;
  }

  draw(run) {
    const map = run.blocks;
    if (!map) {
      this.words.textContent = "No map of the blocks here.";
      return;
    }
    const key = `${run.version > 0}${sizeOf(this.canvas).width}${run.evicted}`;
    if (this.drawn?.map === map && this.drawn.key === key) return;
    this.drawn = {map, key};
    this.drawCells(map);
    this.tell(run, map);
  }

  drawCells(map) {
    const {context, width, height} = begin(this.canvas);
    const count = Math.ceil(map.num_blocks / map.stride);
    const size = Math.max(2, Math.min(14, Math.floor(Math.sqrt(width * height / count))));
    const perLine = Math.max(1, Math.floor(width / size));
    let cell = 0;
    for (let i = 0; i < map.runs.length; i += 2) {
      context.fillStyle = cellColor(map.runs[i + 1]);
      for (let left = map.runs[i]; left > 0; left -= 1, cell += 1) {
        context.fillRect(cell % perLine * size, Math.floor(cell / perLine) * size, size - (size > 3), size - (size > 3));
      }
    }
  }

  tell(run, map) {
    const counts = {};
    for (let i = 0; i < map.runs.length; i += 2) {
      const what = Math.min(map.runs[i + 1], 0);
      counts[what] = (counts[what] ?? 0) + map.runs[i] * map.stride;
    }
    const swapped = map.swapped.reduce((sum, [, blocks]) => sum + blocks, 0);
    const text = `${map.num_blocks} blocks: ${counts[0] ?? 0} in use by one request, ${counts[SHARED] ?? 0} shared, ` +
      `${counts[CACHED] ?? 0} cached and free, ${counts[FREE] ?? 0} empty. ${swapped} on the host. ` +
      `${run.evicted} evicted since you look.` + (map.stride > 1 ? ` A cell stands for ${map.stride} blocks.` : "");
    this.words.textContent = text;
    tellOnce(this.canvas, "aria-label", text);
  }
}

function cellColor(what) {
  if (what >= 0) return requestColor(what);
  return themeColor({[FREE]: "line", [CACHED]: "decode", [SHARED]: "text"}[what]);
}
