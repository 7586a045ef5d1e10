/* Bar chart of surprisal along the text, on a canvas because a text can have thousands of words. */

const stripBox = document.getElementById("strip");
const canvas = document.getElementById("canvas");
const LABELS = 22; /* pixels below the bars */
const TOP = 10;
const MAX_SLOT = 84; /* pixels per word */

const strip = {
  bars: [] /* { value, label, name }; name is a CSS class that sets the color */,
  isDifference: false,
  mean: null,
  chosen: -1,
  pointed: -1,

  draw() {
    const width = stripBox.clientWidth, height = stripBox.clientHeight;
    const scale = window.devicePixelRatio || 1;
    if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
      canvas.width = Math.round(width * scale);
      canvas.height = Math.round(height * scale);
    }
    const pen = canvas.getContext("2d");
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.clearRect(0, 0, width, height);
    const look = getComputedStyle(stripBox);
    const soft = look.color, ink = look.caretColor, line = look.borderTopColor;
    pen.font = `11px ${look.fontFamily}`;
    const [low, high] = this.range();
    const bottom = height - LABELS;
    const y = (value) => bottom - ((value - low) / (high - low)) * (bottom - TOP);
    this.left = 26;
    this.slot = Math.min(MAX_SLOT, (width - this.left) / Math.max(1, this.bars.length));

    pen.textAlign = "right";
    pen.textBaseline = "middle";
    for (const tick of this.ticks(low, high)) {
      pen.fillStyle = line;
      pen.fillRect(this.left, Math.round(y(tick)), width - this.left, 1);
      pen.fillStyle = soft;
      pen.fillText(this.isDifference ? signed(tick, 0) : String(tick), this.left - 6, y(tick) + 0.5);
    }
    const colors = colorOf();
    const thick = Math.max(1, Math.min(26, this.slot * 0.62));
    const zero = y(Math.max(low, 0));
    this.bars.forEach((bar, i) => {
      const middle = this.left + (i + 0.5) * this.slot;
      const isMarked = i === this.chosen || i === this.pointed;
      if (isMarked) {
        pen.fillStyle = line;
        pen.fillRect(middle - Math.max(this.slot, 3) / 2, TOP - 6, Math.max(this.slot, 3), bottom - TOP + 6);
      }
      if (bar.value !== null) {
        const top = y(bar.value);
        pen.fillStyle = colors(bar.name);
        pen.fillRect(middle - thick / 2, Math.min(top, zero - 1), thick, Math.max(2, Math.abs(zero - top)));
        if (isMarked) {
          pen.fillStyle = ink;
          pen.fillRect(middle - thick / 2, top - 1, thick, 2);
        }
      }
    });
    if (this.mean !== null && this.bars.length) {
      pen.strokeStyle = ink;
      pen.setLineDash([2, 4]);
      pen.beginPath();
      pen.moveTo(this.left, y(this.mean));
      pen.lineTo(width, y(this.mean));
      pen.stroke();
      pen.setLineDash([]);
    }
    this.label(pen, width, height, soft, ink);
  },

  /* Words below the bars if there is room, otherwise word numbers. */
  label(pen, width, height, soft, ink) {
    pen.textBaseline = "alphabetic";
    pen.textAlign = "center";
    if (this.slot >= 30) {
      this.bars.forEach((bar, i) => {
        pen.fillStyle = i === this.chosen || i === this.pointed ? ink : soft;
        pen.fillText(shortened(pen, bar.label, this.slot - 3), this.left + (i + 0.5) * this.slot, height - 6);
      });
      return;
    }
    const every = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000].find((n) => n * this.slot > 60) ?? 1e5;
    pen.fillStyle = soft;
    for (let i = every - 1; i < this.bars.length; i += every) {
      const half = pen.measureText(count(i + 1)).width / 2;
      pen.fillText(count(i + 1), Math.min(width - half, this.left + (i + 0.5) * this.slot), height - 6);
    }
  },

  range() {
    const values = this.bars.map((bar) => bar.value).filter((value) => value !== null);
    const most = values.reduce((a, b) => Math.max(a, b), this.isDifference ? 2 : 12);
    if (!this.isDifference) return [0, Math.min(most, 40) * 1.04];
    const least = values.reduce((a, b) => Math.min(a, b), -2);
    return [Math.max(-30, least * 1.05), Math.min(30, most * 1.05)];
  },

  ticks(low, high) {
    const step = [1, 2, 4, 5, 10, 20].find((s) => (high - low) / s <= 5);
    const found = [];
    for (let tick = Math.ceil(low / step) * step; tick <= high; tick += step) found.push(tick);
    return found;
  },

  /* Index of the bar at a point of the window, or -1. */
  under(x) {
    const at = Math.floor((x - canvas.getBoundingClientRect().left - this.left) / this.slot);
    return at >= 0 && at < this.bars.length ? at : -1;
  },
};

/* Colors of CSS classes in the current theme, cached for one drawing. */
const probe = document.createElement("i");
probe.hidden = true;
stripBox.append(probe);

function colorOf() {
  const known = new Map();
  return (name) => {
    if (!known.has(name)) {
      probe.className = name;
      known.set(name, getComputedStyle(probe).getPropertyValue("--bar"));
    }
    return known.get(name);
  };
}

function shortened(pen, text, room) {
  if (pen.measureText(text).width <= room) return text;
  let cut = text.length;
  while (cut > 1 && pen.measureText(text.slice(0, cut) + "\u2026").width > room) cut--;
  return text.slice(0, cut) + "\u2026";
}
