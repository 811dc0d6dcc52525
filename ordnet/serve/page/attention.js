// What one place attends to, as maps beside each other: the whole picture, its patch, the gate.

const SIGNED = [[18, 74, 138], [72, 145, 206], [255, 255, 255], [240, 130, 70], [176, 24, 44]];
const SHARES = [[255, 255, 255], [253, 190, 110], [240, 120, 40], [150, 50, 10]];
const LIGHT = [[49, 31, 96], [48, 86, 146], [31, 143, 138], [118, 198, 92], [250, 232, 80]];
const WIDE = 560;

/** Fills `holder` with one figure for each map of the answer; resolves when they are drawn. */
export async function drawMaps(holder, answer, picture) {
  const patch = answer.patch && box(answer.patch);
  const weights = answer.similarity === "dot" ? { ramp: SIGNED, fade: signedFade } : { ramp: SHARES, fade: shareFade };
  const figures = [];
  if (answer.long) {
    figures.push(figure(answer, picture, answer.long, weights, {
      title: "Long range", text: "Taken from the whole picture.",
      stamp: answer.gate?.closed ? "Closed: nothing of this passes" : "",
    }));
  }
  if (answer.middle) {
    figures.push(figure(answer, picture, answer.middle, weights, {
      title: "Middle range", text: "Taken from its own patch.", only: patch,
    }));
  }
  if (answer.gate) {
    figures.push(figure(answer, picture, answer.gate, { ramp: LIGHT, fade: () => 0.8 }, {
      title: "Gate", text: "How much each place lets in.",
      note: `${answer.gate.closed ? "closed here" : "here"}: ${number(answer.gate.here)}`,
    }));
  }
  holder.replaceChildren(...(await Promise.all(figures)));
}

const signedFade = (share) => Math.min(1, 0.08 + 0.95 * Math.abs(2 * share - 1));
const shareFade = (share) => Math.min(1, 0.08 + 0.95 * share);
const box = ([left, top, right, bottom]) => ({ left, top, right, bottom });

async function figure(answer, picture, map, { ramp, fade }, { title, text, only, note, stamp }) {
  const canvas = document.createElement("canvas");
  const shrink = Math.min(1, WIDE / answer.width, WIDE / answer.height);
  canvas.width = Math.max(1, Math.round(answer.width * shrink));
  canvas.height = Math.max(1, Math.round(answer.height * shrink));
  const context = canvas.getContext("2d");
  drawGrey(context, picture);
  const area = only ?? { left: 0, top: 0, right: answer.width, bottom: answer.height };
  const scale = [canvas.width / answer.width, canvas.height / answer.height];
  const rectangle = [area.left * scale[0], area.top * scale[1],
    (area.right - area.left) * scale[0], (area.bottom - area.top) * scale[1]];
  context.save();
  context.beginPath();
  context.rect(...rectangle);
  context.clip();
  context.imageSmoothingQuality = "high";
  context.drawImage(await coloured(map.map, ramp, fade), 0, 0, canvas.width, canvas.height);
  context.restore();
  if (only) outline(context, () => context.rect(...rectangle));
  const [x, y] = [(answer.x + 0.5) * scale[0], (answer.y + 0.5) * scale[1]];
  outline(context, () => context.arc(x, y, Math.max(6, canvas.width / 45), 0, 7));
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", described(title, map));
  return framed(canvas, title, text, ramp, map, note ?? strongest(map), stamp);
}

const strongest = (map) => `strongest ${number(map.weight)}`;

/** The picture without colours and pale, so that colours can speak over it. */
function drawGrey(context, picture) {
  const { width, height } = context.canvas;
  context.drawImage(picture, 0, 0, width, height);
  context.globalCompositeOperation = "saturation";
  context.fillStyle = "#888";
  context.fillRect(0, 0, width, height);
  context.globalCompositeOperation = "source-over";
  context.fillStyle = "#ffffff59";
  context.fillRect(0, 0, width, height);
}

function outline(context, path) {
  for (const [colour, width] of [["#000c", 7], ["#fff", 4]]) {
    context.beginPath();
    path();
    context.strokeStyle = colour;
    context.lineWidth = width;
    context.stroke();
  }
}

/** The grey values of a map as colours, each as opaque as `fade` says. */
async function coloured(text, ramp, fade) {
  const bitmap = await bitmapOf(text);
  const canvas = Object.assign(document.createElement("canvas"), { width: bitmap.width, height: bitmap.height });
  const context = canvas.getContext("2d");
  context.drawImage(bitmap, 0, 0);
  const image = context.getImageData(0, 0, canvas.width, canvas.height);
  const table = Array.from({ length: 256 }, (_, i) => [...between(ramp, i / 255), 255 * fade(i / 255)]);
  for (let i = 0; i < image.data.length; i += 4) image.data.set(table[image.data[i]], i);
  context.putImageData(image, 0, 0);
  return canvas;
}

function between(ramp, share) {
  const place = share * (ramp.length - 1);
  const first = Math.min(ramp.length - 2, Math.floor(place));
  return ramp[first].map((value, i) => value + (ramp[first + 1][i] - value) * (place - first));
}

/** The bar shows the part of the colours that occurs: from the least to the largest number, and zero. */
function framed(canvas, title, text, ramp, map, note, stamp) {
  const holder = document.createElement("figure");
  const caption = document.createElement("figcaption");
  const [heading, words, scale, ends] = ["b", "span", "div", "div"].map((tag) => document.createElement(tag));
  heading.textContent = title;
  words.textContent = text;
  words.className = "quiet small";
  scale.className = "scale";
  const [start, end] = map.weight === undefined ? [map.low, map.high] : [Math.min(0, map.min), Math.max(0, map.max)];
  const share = (value) => (map.high > map.low ? (value - map.low) / (map.high - map.low) : 0.5);
  const steps = Array.from({ length: 17 }, (_, i) => between(ramp, share(start + ((end - start) * i) / 16)));
  scale.style.background = `linear-gradient(90deg, ${steps.map((each) => `rgb(${each})`).join(", ")})`;
  ends.className = "ends quiet small";
  for (const words of [number(start), note, number(end)]) {
    ends.append(Object.assign(document.createElement("span"), { textContent: words }));
  }
  caption.append(heading, words);
  const shown = document.createElement("div");
  shown.className = "shown";
  shown.append(canvas);
  if (stamp) shown.append(Object.assign(document.createElement("p"), { className: "stamp", textContent: stamp }));
  holder.append(caption, shown, scale, ends);
  return holder;
}

function described(title, map) {
  const where = map.strongest ? `, strongest ${number(map.weight)} at x ${map.strongest[0]}, y ${map.strongest[1]}` : "";
  return `${title}: from ${number(map.min)} to ${number(map.max)}, mean ${number(map.mean)}${where}`;
}

/** Three digits; tiny and huge numbers with a power of ten. */
export function number(value) {
  const size = Math.abs(value);
  if (size === 0 || (size >= 0.001 && size < 1000)) return String(Number(value.toPrecision(3))).replace("-", "−");
  const [digits, power] = value.toExponential(1).split("e");
  const raised = [...String(Number(power))].map((each) => (each === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[each])).join("");
  return `${digits.replace("-", "−")} × 10${raised}`;
}

export function blobOf(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return new Blob([bytes], { type: "image/png" });
}

export function bitmapOf(text) {
  return createImageBitmap(blobOf(text), { colorSpaceConversion: "none", premultiplyAlpha: "none" });
}
