// The picture with its classes over it: drawing, pointing, clicking, arrow keys.

const $ = (id) => document.getElementById(id);
const MOST = 8e6; // pixels to work on; some phones draw nothing beyond 16 million

export class Stage {
  /** `onPoint(class, confidence, byKeys)` hears of the place under the cursor, `onChoose(x, y)` of the chosen pixel. */
  constructor({ onPoint, onChoose, onNear }) {
    this.box = $("stage");
    this.onPoint = onPoint;
    this.onChoose = onChoose;
    this.parse = null;
    this.cursor = null;
    this.box.addEventListener("pointermove", (event) => this.#hover(event));
    this.box.addEventListener("pointerleave", () => this.#leave());
    this.box.addEventListener("pointerenter", () => onNear());
    this.box.addEventListener("click", (event) => this.#click(event));
    this.box.addEventListener("keydown", (event) => this.#key(event));
    this.box.addEventListener("focus", () => onNear());
    this.box.addEventListener("blur", () => this.#leave());
  }

  /** A parse with `bitmap`, and its label and confidence maps as bitmaps. */
  show(parse) {
    this.parse = parse;
    const shrink = Math.min(1, Math.sqrt(MOST / (parse.width * parse.height)));
    this.width = Math.max(1, Math.round(parse.width * shrink));
    this.height = Math.max(1, Math.round(parse.height * shrink));
    this.labels = this.#values(parse.labelMap);
    this.confidence = parse.confidenceMap && this.#values(parse.confidenceMap);
    this.cursor = null;
    for (const id of ["picture", "overlay"]) Object.assign($(id), { width: this.width, height: this.height });
    const context = $("picture").getContext("2d");
    context.fillStyle = "#fff"; // under transparent parts, as the server sees them
    context.fillRect(0, 0, this.width, this.height);
    context.drawImage(parse.bitmap, 0, 0, this.width, this.height);
    this.box.style.aspectRatio = `${parse.width} / ${parse.height}`;
    this.box.style.maxWidth = `calc(60vh * ${parse.width / parse.height})`;
    this.#leave();
    this.mark(null);
  }

  /** Paint the classes that are on; one that stands alone darkens all others. */
  paint(classes, on, alone) {
    const table = new Uint32Array(256);
    const view = new DataView(table.buffer);
    for (const { id, colour } of classes) {
      const rgb = parseInt(colour.slice(1), 16);
      if (alone !== null && id !== alone) view.setUint32(id * 4, 0x101619e6);
      else if (on.has(id)) view.setUint32(id * 4, ((rgb << 8) | 0xff) >>> 0);
    }
    const image = new ImageData(this.width, this.height);
    const pixels = new Uint32Array(image.data.buffer);
    for (let i = 0; i < pixels.length; i++) pixels[i] = table[this.labels[i]];
    $("overlay").getContext("2d").putImageData(image, 0, 0);
  }

  strength(share) {
    $("overlay").style.opacity = share;
  }

  /** Marks a pixel and its patch {left, top, right, bottom}; null takes the marks away. */
  mark(pixel, patch = null) {
    place($("marker"), pixel && { left: pixel.x + 0.5, top: pixel.y + 0.5 }, this.parse);
    place($("patch"), patch, this.parse);
  }

  /** The picture and what lies over it, as a PNG blob. */
  async composed(strength) {
    const canvas = Object.assign(document.createElement("canvas"), { width: this.width, height: this.height });
    const context = canvas.getContext("2d");
    context.drawImage($("picture"), 0, 0);
    context.globalAlpha = strength;
    context.drawImage($("overlay"), 0, 0);
    return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
  }

  #values(bitmap) {
    const canvas = Object.assign(document.createElement("canvas"), { width: this.width, height: this.height });
    const context = canvas.getContext("2d", { willReadFrequently: true });
    context.imageSmoothingEnabled = false; // between two classes there is no third one
    context.drawImage(bitmap, 0, 0, this.width, this.height);
    const { data } = context.getImageData(0, 0, this.width, this.height);
    return Uint8Array.from({ length: data.length / 4 }, (_, i) => data[i * 4]);
  }

  #pixel(event) {
    const area = this.box.getBoundingClientRect();
    const within = (share, size) => Math.min(size - 1, Math.max(0, Math.floor(share * size)));
    return {
      x: within((event.clientX - area.left) / area.width, this.parse.width),
      y: within((event.clientY - area.top) / area.height, this.parse.height),
    };
  }

  #point({ x, y }, byKeys) {
    const column = Math.min(this.width - 1, Math.floor((x + 0.5) * (this.width / this.parse.width)));
    const row = Math.min(this.height - 1, Math.floor((y + 0.5) * (this.height / this.parse.height)));
    const index = row * this.width + column;
    const sure = this.confidence && this.confidence[index] / 255;
    const { name, colour, share } = this.onPoint(this.labels[index], sure, byKeys);
    const tip = $("tip");
    tip.hidden = false;
    const swatch = document.createElement("i");
    swatch.style.background = colour;
    const [title, figure] = [document.createElement("b"), document.createElement("span")];
    title.textContent = name;
    figure.textContent = share;
    tip.replaceChildren(swatch, title, figure);
    const left = ((x + 0.5) / this.parse.width) * this.box.clientWidth;
    const top = ((y + 0.5) / this.parse.height) * this.box.clientHeight;
    const right = left + 18 + tip.offsetWidth > this.box.clientWidth;
    tip.style.left = `${Math.max(0, right ? left - 16 - tip.offsetWidth : left + 18)}px`;
    tip.style.top = `${Math.max(0, Math.min(top + 14, this.box.clientHeight - tip.offsetHeight))}px`;
  }

  #hover(event) {
    if (!this.parse || event.pointerType === "touch") return;
    this.#point(this.#pixel(event), false);
  }

  #leave() {
    $("tip").hidden = true;
    $("cursor").hidden = true;
  }

  #click(event) {
    if (!this.parse) return;
    this.cursor = this.#pixel(event);
    $("cursor").hidden = true;
    this.#point(this.cursor, false);
    this.onChoose(this.cursor.x, this.cursor.y);
  }

  #key(event) {
    const [right, down] = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key] ?? [0, 0];
    const { width, height } = this.parse;
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      this.cursor ??= { x: width >> 1, y: height >> 1 };
      this.onChoose(this.cursor.x, this.cursor.y);
    } else if (right || down) {
      event.preventDefault();
      const step = event.shiftKey ? 1 : Math.max(1, Math.round(Math.max(width, height) / 50));
      const from = this.cursor ?? { x: width >> 1, y: height >> 1 };
      const within = (value, size) => Math.min(size - 1, Math.max(0, value));
      this.cursor = { x: within(from.x + right * step, width), y: within(from.y + down * step, height) };
      place($("cursor"), { left: this.cursor.x + 0.5, top: this.cursor.y + 0.5 }, this.parse);
      this.#point(this.cursor, true);
    }
  }
}

/** Puts an element over a part of the picture that is given in its pixels. */
function place(element, area, parse) {
  element.hidden = !area;
  if (!area) return;
  const percent = (value, size) => `${(100 * value) / size}%`;
  element.style.left = percent(area.left, parse.width);
  element.style.top = percent(area.top, parse.height);
  if (area.right === undefined) return;
  element.style.width = percent(area.right - area.left, parse.width);
  element.style.height = percent(area.bottom - area.top, parse.height);
}
