// The page: a picture comes in, its parse is shown, a click shows what a place attends to.

import { bitmapOf, blobOf, drawMaps } from "./attention.js";
import { Legend, percent } from "./legend.js";
import * as server from "./server.js";
import { Stage } from "./stage.js";

const $ = (id) => document.getElementById(id);
const state = { model: null, parse: null, file: null, work: null, looking: null, place: null, warm: false };

const stage = new Stage({ onPoint: point, onChoose: attend, onNear: warmUp });
const legend = new Legend($("legend"), document.querySelector('[data-do="all"]'), () =>
  stage.paint(legend.classes, legend.on, legend.alone));

const say = (text) => { $("status").textContent = text; };
const strength = () => Number($("strength").value) / 100;

/** `file` is named where it may be the reason. */
function trouble(problem, file = null) {
  if (problem?.name === "AbortError") return;
  const known = problem instanceof server.Problem;
  if (!known) console.warn(problem);
  const about = file && (!known || problem.refused) ? `${file.name || "Pasted picture"}: ` : "";
  $("trouble-text").textContent = about + (known ? problem.message : "This picture cannot be shown.");
  $("trouble").hidden = false;
}

// ---- a picture comes in

async function open(file, credit = "") {
  state.work?.abort();
  state.looking?.abort();
  $("trouble").hidden = true;
  const most = state.model?.limits.bytes;
  if (most && file.size > most) {
    const name = file.name || "This file";
    trouble(new server.Problem(`${name} has ${megabytes(file.size)}; the server takes at most ${megabytes(most)}.`));
    return;
  }
  const work = (state.work = new AbortController());
  const end = showWork();
  try {
    const parse = await read(file, work.signal, end.step);
    if (state.work === work) show(parse, file, credit);
  } catch (problem) {
    if (state.work === work) trouble(problem, file);
  } finally {
    if (state.work === work) end.done();
  }
}

async function read(file, signal, step) {
  if (!state.model) await learnModel();
  const answer = await server.parse(file, {
    signal,
    onUpload: (share) => step(share < 1 ? `Sending the picture, ${Math.round(share * 100)} %` : "Parsing", share),
    onSent: () => step("Parsing", 1),
  });
  answer.labelMap = await bitmapOf(answer.labels);
  answer.confidenceMap = answer.confidence ? await bitmapOf(answer.confidence) : null;
  try {
    answer.bitmap = await createImageBitmap(file);
  } catch {
    answer.bitmap = await createImageBitmap(await server.picture(file)); // TIFF, say
  }
  return answer;
}

/** The bar, with the seconds that have passed; `step` says what is going on, `done` takes it away. */
function showWork() {
  const start = performance.now();
  let what = "Sending the picture";
  let [sent, asked] = [false, 1];
  const tick = () => {
    const seconds = Math.floor((performance.now() - start) / 1000);
    $("working-text").textContent = what + (seconds > 1 ? ` … ${seconds} s` : " …");
    if (sent && seconds > asked) {
      asked = seconds;
      server.health().then(({ requests, progress }) => {
        if (showWork.timer !== timer) return;
        what = requests > 1 ? `Parsing, ${requests - 1} other requests are under way` : "Parsing";
        if (requests === 1 && progress !== null) $("bar").value = progress;
      }).catch(() => {}); // the request itself will tell
    }
  };
  const timer = setInterval(tick, 250);
  clearInterval(showWork.timer);
  showWork.timer = timer;
  $("bar").removeAttribute("value");
  $("working").hidden = false;
  $("result").classList.add("stale");
  say("Parsing the picture");
  tick();
  return {
    step(text, share) {
      what = text;
      sent = share === 1;
      if (share < 1) $("bar").value = share;
      else $("bar").removeAttribute("value");
      tick();
    },
    done() {
      clearInterval(timer);
      $("working").hidden = true;
      $("result").classList.remove("stale");
    },
  };
}

function show(parse, file, credit) {
  Object.assign(state, { parse, file, place: null, warm: false });
  $("empty").hidden = true;
  $("result").hidden = false;
  $("attention").hidden = true;
  $("name").textContent = file.name || "Pasted picture";
  $("credit").textContent = credit;
  $("credit").hidden = !credit;
  const size = `${parse.width} × ${parse.height} px`;
  $("facts").textContent = `${size}, ${parse.model}, protocol ${parse.protocol}, ${parse.seconds.toFixed(2)} s`;
  stage.show(parse);
  stage.strength(strength());
  legend.show(parse.classes);
  const largest = parse.classes.slice(0, 3).map((each) => `${each.name} ${percent(each.share)}`);
  say(`Parsed. ${largest.join(", ")}`);
}

const megabytes = (bytes) => `${(bytes / 1e6).toFixed(1)} MB`;

// ---- pointing and attention

function point(id, confidence, byKeys) {
  const found = state.model.classes[id];
  const share = confidence === null ? "" : `${Math.round(confidence * 100)} %`;
  if (byKeys) say(`${found.name} ${share}`);
  return { ...found, share };
}

/** The first look into a parse takes longest; it begins when the pointer comes near. */
function warmUp() {
  if (state.warm || !state.parse || !state.model.explains) return;
  state.warm = true;
  server.attention(state.parse.picture, state.file, 0, 0).catch(() => { state.warm = false; });
}

async function attend(x, y) {
  if (!state.model.explains) {
    $("attention").hidden = false;
    $("attention-text").textContent = `${state.model.name} cannot show attention: that needs the torch checkpoint (.safetensors) of a model that attends.`;
    say($("attention-text").textContent);
    return;
  }
  state.looking?.abort();
  const looking = (state.looking = new AbortController());
  state.warm = true;
  state.place = { x, y };
  stage.mark({ x, y });
  const opened = $("attention").hidden;
  $("attention").hidden = false;
  $("attention").setAttribute("aria-busy", "true");
  $("maps").classList.add("busy");
  if (!$("maps").firstChild) $("attention-text").textContent = "Looking …";
  const start = performance.now();
  try {
    const answer = await server.attention(state.parse.picture, state.file, x, y, looking.signal);
    await drawMaps($("maps"), answer, $("picture"));
    if (looking.signal.aborted) return;
    const [left, top, right, bottom] = answer.patch ?? [];
    stage.mark({ x, y }, answer.patch && { left, top, right, bottom });
    $("attention-text").textContent = explained(answer, performance.now() - start);
    if (opened) $("attention").scrollIntoView({ block: "nearest" }); // later clicks leave the picture where it is
    say(`Attention of ${answer.name} at x ${x}, y ${y} is shown below the picture.`);
  } catch (problem) {
    trouble(problem);
    if (problem?.name !== "AbortError") closeAttention();
  } finally {
    if (state.looking === looking) {
      $("attention").removeAttribute("aria-busy");
      $("maps").classList.remove("busy");
    }
  }
}

function explained(answer, milliseconds) {
  const sign = answer.similarity === "dot" ? " Red adds what is there, blue takes it away." : "";
  const scale = answer.scale < 1 ? ` The picture was seen at ${Math.round(answer.scale * 100)} % of its size.` : "";
  const closed = answer.gate?.closed ? " The gate is closed here: nothing of the long range passes." : "";
  return `${answer.name} at x ${answer.x}, y ${answer.y}, in ${Math.round(milliseconds)} ms.${sign}${closed}${scale}`;
}

function closeAttention() {
  $("attention").hidden = true;
  $("maps").replaceChildren();
  state.place = null;
  stage.mark(null);
}

// ---- saving

async function save(what) {
  const stem = (state.file.name || "picture").replace(/\.[^.]*$/, "");
  if (what === "labels") return download(blobOf(state.parse.labels), `${stem}.labels.png`);
  if (what === "overlay") return download(await stage.composed(strength()), `${stem}.overlay.png`);
  const { picture, width, height, classes, model, protocol, seconds } = state.parse;
  const text = JSON.stringify({ name: state.file.name, picture, width, height, classes, model, protocol, seconds }, null, 1);
  return download(new Blob([text], { type: "application/json" }), `${stem}.json`);
}

function download(blob, name) {
  const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

// ---- buttons, dropping, pasting

const actions = {
  choose: () => $("file").click(),
  sample: async () => {
    const answer = await fetch("sample.jpg");
    const file = new File([await answer.blob()], "china.jpg", { type: "image/jpeg" });
    await open(file, "Photo by danielbuechele, CC BY 2.0");
  },
  cancel: () => {
    state.work?.abort();
    say("Given up");
  },
  dismiss: () => { $("trouble").hidden = true; },
  all: () => legend.all(),
  "close-attention": () => {
    closeAttention();
    $("stage").focus();
  },
  "no-token": () => $("token").close(),
};

document.addEventListener("click", (event) => {
  const { do: action, save: what } = event.target.closest("button")?.dataset ?? {};
  if (action) Promise.resolve(actions[action]()).catch(() => trouble(new server.Problem("The server cannot be reached.")));
  if (what) save(what).catch(trouble);
});

$("strength").addEventListener("input", () => {
  $("strength-text").textContent = `${$("strength").value} %`;
  stage.strength(strength());
});
$("file").addEventListener("change", () => {
  if ($("file").files[0]) open($("file").files[0]);
  $("file").value = "";
});
document.addEventListener("paste", (event) => {
  const file = [...event.clipboardData.files][0];
  if (file) open(file);
});

$("models").addEventListener("change", async () => {
  server.choose($("models").value);
  state.model = null;
  const place = state.place;
  try {
    await learnModel();
    if (!state.file) return;
    await open(state.file, $("credit").textContent); // the same picture, by the other model
    if (place && state.parse.model === state.model.name) await attend(place.x, place.y); // and the same place
  } catch (problem) {
    trouble(problem);
  }
});

let inside = 0; // how many nested elements the dragged file is over
document.addEventListener("dragenter", (event) => {
  inside++;
  $("drop").hidden = ![...event.dataTransfer.types].includes("Files");
});
document.addEventListener("dragleave", () => { if (--inside <= 0) $("drop").hidden = true; });
document.addEventListener("dragover", (event) => event.preventDefault());
document.addEventListener("drop", (event) => {
  event.preventDefault();
  inside = 0;
  $("drop").hidden = true;
  if (event.dataTransfer.files[0]) open(event.dataTransfer.files[0]);
});

server.onTokenNeeded((again) => new Promise((resolve) => {
  const dialog = $("token");
  $("token-title").textContent = again ? "That token is not the right one" : "This server asks for a token";
  $("token-text").value = "";
  dialog.returnValue = "";
  dialog.onclose = () => resolve(dialog.returnValue);
  $("token-form").onsubmit = (event) => {
    event.preventDefault();
    dialog.close($("token-text").value.trim());
  };
  dialog.showModal();
}));

async function learnModel() {
  state.model ??= await server.model();
  const { name, models, classes, explains } = state.model;
  const several = models.length > 1;
  const short = shortNames(models);
  const count = `${classes.length} ${classes.length === 1 ? "class" : "classes"}`;
  const label = several ? [count] : [part("model-name", short[0]), part("count", `, ${count}`)];
  $("model").replaceChildren(...label);
  $("model").title = name;
  $("models").hidden = !several;
  document.querySelector(".top").classList.toggle("several", several);
  if (several) {
    const options = models.map((each, i) => new Option(short[i], each, each === models[0], each === name));
    options.forEach((option) => { option.title = option.value; });
    $("models").replaceChildren(...options);
    $("models").title = name;
  }
  const [mouse, touch] = $("keys").children;
  mouse.textContent = explains
    ? "Point to name a class, click to see what that place attends to. Keys: arrows, Shift + arrows, Enter."
    : "Point to name a class. Keys: arrows, Shift + arrows.";
  touch.textContent = explains ? "Tap a place to see its class and what it attends to." : "Tap a place to see its class.";
}

const part = (className, textContent) => Object.assign(document.createElement("span"), { className, textContent });

/** runs/first/best.safetensors → first/best; models that would be called the same keep their whole name. */
function shortNames(models) {
  const short = models.map((each) => each.split(/[\\/]/).slice(-2).join("/").replace(/\.safetensors$/, ""));
  return short.map((each, i) => (short.indexOf(each) === short.lastIndexOf(each) ? each : models[i]));
}

learnModel().catch(trouble);
