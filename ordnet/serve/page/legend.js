// The classes with their shares: each can be switched off, or shown alone.

export const percent = (share) => (share > 0 && share < 0.001 ? "< 0.1 %" : `${(share * 100).toFixed(1)} %`);

export class Legend {
  /** `onChange()` after every change of `on` (a set of class ids) or `alone` (one class id or null). */
  constructor(list, showAll, onChange) {
    this.list = list;
    this.showAll = showAll;
    this.onChange = onChange;
    this.rows = new Map();
  }

  show(classes) {
    this.classes = classes;
    this.rows = new Map(classes.map((each) => [each.id, this.#row(each)]));
    this.list.replaceChildren(...[...this.rows.values()].map((row) => row.item));
    this.all();
  }

  all() {
    this.on = new Set(this.classes.map((each) => each.id));
    this.alone = null;
    this.#changed();
  }

  #row({ id, name, colour, share }) {
    const item = document.createElement("li");
    item.style.setProperty("--colour", colour);
    const box = Object.assign(document.createElement("input"), { type: "checkbox", checked: true });
    box.setAttribute("aria-label", `Show ${name}`);
    box.addEventListener("change", () => {
      if (box.checked) this.on.add(id);
      else this.on.delete(id);
      this.#changed();
    });
    const button = document.createElement("button");
    const [title, figure, length, filled] = ["span", "span", "span", "i"].map((tag) => document.createElement(tag));
    title.textContent = name;
    figure.textContent = percent(share);
    figure.className = "share";
    length.className = "length";
    filled.style.width = `${100 * share}%`;
    length.append(filled);
    button.append(title, figure, length);
    button.title = `See ${name} alone`;
    button.addEventListener("click", () => {
      this.alone = this.alone === id ? null : id;
      this.on.add(id);
      this.#changed();
    });
    item.append(box, button);
    return { item, box, button };
  }

  #changed() {
    for (const [id, { item, box, button }] of this.rows) {
      box.checked = this.on.has(id);
      button.setAttribute("aria-pressed", this.alone === id);
      item.className = this.alone === id ? "alone" : this.on.has(id) ? "" : "off";
    }
    this.showAll.hidden = this.alone === null && this.on.size === this.classes.length;
    this.onChange();
  }
}
