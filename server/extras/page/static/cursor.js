// Range of steps in view, and the selected step. Strip and lanes share one cursor.

export const COLUMN = 6;  // width of a step in CSS pixels

export class Cursor {
  constructor() {
    this.isPaused = false;
    this.end = 0;  // step after the last column, while paused
    this.selected = null;
    this.version = 0;
  }

  last(run) {
    return this.isPaused ? Math.max(run.first + 1, Math.min(this.end, run.count)) : run.count;
  }

  range(run, width) {
    const end = this.last(run);
    return [Math.max(run.first, end - Math.floor(width / COLUMN)), end];
  }

  pause(run, isPaused) {
    this.end = run.count;
    this.isPaused = isPaused;
    if (!isPaused) this.selected = null;
    this.version += 1;
  }

  scroll(run, steps) {
    if (!this.isPaused) this.pause(run, true);
    this.end = Math.max(run.first + 1, Math.min(run.count, this.end + steps));
    this.version += 1;
  }

  select(run, step) {
    if (run.count === run.first) return;
    this.selected = Math.max(run.first, Math.min(run.count - 1, step));
    this.version += 1;
  }

  // Moves the selection by keys and keeps it in view.
  move(run, steps, width) {
    if (!this.isPaused) this.pause(run, true);
    this.select(run, (this.selected ?? run.count - 1) + steps);
    const [from, end] = this.range(run, width);
    if (this.selected < from) this.scroll(run, this.selected - from);
    if (this.selected >= end) this.scroll(run, this.selected - end + 1);
  }
}
