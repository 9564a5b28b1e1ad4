
// Figures: what is under the pointer, the link to its case, the text of a chosen entry, and downloads.
(() => {
  const tip = element("div", { id: "tip", hidden: true });
  tip.setAttribute("aria-hidden", "true"); // the place itself has the words
  document.body.append(tip);
  let pointed = null;
  let isStill = false; // after a choice the page scrolls below the pointer, which then is over a place that nobody asked
  document.addEventListener("pointermove", () => { isStill = false; });

  function point(place, hint) {
    pointed = place;
    const words = byId(place.getAttribute("aria-labelledby")).textContent.split("; ");
    tip.replaceChildren(...words.map((text) => element("div", { textContent: text })));
    if (hint) tip.append(element("div", { className: "hint", textContent: hint }));
    tip.hidden = false;
    const box = place.getBoundingClientRect(), width = document.documentElement.clientWidth;
    const left = Math.min(Math.max(6, box.left + box.width / 2 - tip.offsetWidth / 2), width - tip.offsetWidth - 6);
    const above = box.top - tip.offsetHeight - 8;
    tip.style.left = `${Math.max(6, left) + scrollX}px`;
    tip.style.top = `${(above > 4 ? above : box.bottom + 8) + scrollY}px`;
  }

  function leave() {
    pointed = null;
    tip.hidden = true;
  }
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") leave(); });

  function setUp(panel) {
    const of = data.panels.find((one) => one.name === panel.dataset.panel);
    const svg = panel.querySelector("svg");
    downloads(panel, of, svg);
    const places = [...svg.querySelectorAll("[data-entry]")];
    if (!places.length) return;
    // A picture that one can move in is no longer one picture: what can be reached are its places.
    svg.setAttribute("role", "group");
    for (const part of svg.children) part.setAttribute("aria-hidden", "true");
    const list = svg.querySelector(".places");
    list.removeAttribute("aria-hidden");
    list.setAttribute("role", "listbox");
    list.setAttribute("aria-label", `${svg.getAttribute("aria-label")}: what it shows`);
    const names = element("div", { hidden: true });
    for (const place of places) {
      const name = element("span", { id: `${of.name}-says-${place.dataset.entry}`, textContent: said(place.textContent, of, place.dataset.entry) });
      names.append(name);
      place.setAttribute("role", "option");
      place.setAttribute("aria-selected", "false");
      place.setAttribute("aria-labelledby", name.id);
      place.replaceChildren(); // the browser's own tooltip would stand beside ours
      place.setAttribute("tabindex", "-1");
    }
    panel.append(names);
    places[0].setAttribute("tabindex", "0");

    const story = (place) => of.stories[place.dataset.entry];
    const line = (place) => of.cases[place.dataset.entry] ?? -1;
    const hint = (place) => story(place) ? "Click or Enter: more of this" : line(place) >= 0 ? "Click or Enter: its case" : "";
    const choose = (place) => {
      leave();
      isStill = true;
      if (story(place)) tell(panel, place, story(place));
      else if (line(place) >= 0) home(line(place), place);
    };
    const over = (event) => event.target.closest("[data-entry]");
    let isSecond = true; // a first tap shows, a second one chooses; a mouse has shown already
    const pointAt = (event) => { if (event.pointerType !== "touch") point(over(event), hint(over(event))); };
    list.addEventListener("pointerover", (event) => { if (!isStill) pointAt(event); });
    list.addEventListener("pointermove", (event) => { if (isStill) pointAt(event); });
    list.addEventListener("pointerout", (event) => { if (event.pointerType !== "touch") leave(); });
    list.addEventListener("pointerdown", (event) => {
      isSecond = event.pointerType !== "touch" || pointed === over(event);
      if (!isSecond) point(over(event), hint(over(event)).replace("Click or Enter", "Tap again"));
    });
    list.addEventListener("click", (event) => { if (isSecond) choose(over(event)); });
    list.addEventListener("focusin", (event) => {
      if (pointed !== event.target) point(event.target, hint(event.target));
      for (const place of places) place.setAttribute("tabindex", place === event.target ? "0" : "-1");
    });
    list.addEventListener("focusout", leave);
    list.addEventListener("keydown", (event) => {
      const at = places.indexOf(event.target);
      const to = {
        ArrowRight: () => places[at + 1],
        ArrowLeft: () => places[at - 1],
        ArrowDown: () => nearest(places, event.target, 1),
        ArrowUp: () => nearest(places, event.target, -1),
        Home: () => places[0],
        End: () => places.at(-1),
      }[event.key];
      if (to) to()?.focus();
      else if (event.key === "Enter" || event.key === " ") choose(event.target);
      else return;
      event.preventDefault();
    });
  }

  // A cell that is a size or a number says of what, also where it is written as a word.
  function said(text, of, entry) {
    const sizes = of.columns.slice(1).map((column) => [valueOf(column, entry), column.name]).filter(([cell]) => /^[\d.,]+ ?\w*$/.test(cell));
    const names = new Map(sizes);
    return text.split("; ").map((part) => names.has(part) ? `${names.get(part)} ${part}` : part).join("; ");
  }


  // The place above or below: the nearest, where going sideways counts double.
  function nearest(places, from, direction) {
    const middle = (place) => [place.x.baseVal.value + place.width.baseVal.value / 2, place.y.baseVal.value + place.height.baseVal.value / 2];
    const [x, y] = middle(from);
    let best = null, least = Infinity;
    for (const place of places) {
      const [otherX, otherY] = middle(place), down = direction * (otherY - y);
      const far = down + 2 * Math.abs(otherX - x);
      if (down > 0.5 && far < least) [best, least] = [place, far];
    }
    return best;
  }

  // What there is to tell of an entry, below its figure: a title, sentences, and a table whose lines lead to their cases.
  function tell(panel, place, { title, sentences, columns, lines, cases }) {
    const name = `story-${panel.dataset.panel}`;
    byId(name)?.closest(".story").remove();
    const close = element("button", { type: "button", textContent: "Close" });
    const head = element("h4", { id: name, tabIndex: -1, textContent: title });
    const box = element("div", { className: "story" }, element("div", { className: "headline" }, head, close));
    box.setAttribute("role", "group");
    box.setAttribute("aria-labelledby", name);
    for (const text of sentences) box.append(element("p", { textContent: text }));
    if (lines.length) {
      const body = element("tbody", {}, ...lines.map((cells, number) => {
        const made = element("tr", {}, ...cells.map((text) => element("td", { className: text.length > LONG ? "text long" : "text", textContent: text })));
        const line = cases[number] ?? -1;
        if (line >= 0) {
          const id = valueOf(data.columns[0], line);
          const link = element("a", { href: "#case=" + encodeURIComponent(id) }, "case", element("span", { className: "hidden", textContent: ` ${id}` }));
          made.append(element("td", { className: "text" }, link));
        } else if (cases.length) made.append(element("td", {}));
        return made;
      }));
      const heads = [...columns, ...(cases.length ? ["case"] : [])].map((text) => element("th", { className: "text", scope: "col", textContent: text }));
      const scroll = element("div", { className: "scroll", tabIndex: 0 }, element("table", {}, element("thead", {}, element("tr", {}, ...heads)), body));
      scroll.setAttribute("role", "group");
      scroll.setAttribute("aria-labelledby", name);
      box.append(scroll);
    }
    const end = () => { box.remove(); place.setAttribute("aria-selected", "false"); place.focus(); };
    close.addEventListener("click", end);
    box.addEventListener("keydown", (event) => { if (event.key === "Escape") end(); });
    for (const other of panel.querySelectorAll("[aria-selected=true]")) other.setAttribute("aria-selected", "false");
    place.setAttribute("aria-selected", "true");
    panel.after(box);
    head.focus({ preventScroll: true });
    head.scrollIntoView({ block: "nearest" }); // no further than needed, so that the place stays in sight
  }

  // Downloads

  function downloads(panel, of, svg) {
    const button = (name, what) => {
      const made = element("button", { type: "button", textContent: name });
      made.setAttribute("aria-label", `${svg.getAttribute("aria-label")} as ${name}`);
      made.addEventListener("click", () => what([data.run, of.name, of.title]));
      return made;
    };
    const bar = element("div", { className: "downloads" },
      button("SVG", (names) => save(standalone(of, svg), "image/svg+xml", ...names, ".svg")),
      button("PNG", (names) => picture(standalone(of, svg), (blob) => save(blob, "image/png", ...names, ".png"))));
    if (of.columns.length) bar.append(button("CSV", (names) => save(csv(table(of)), "text/csv", ...names, ".csv")));
    (panel.querySelector("details.behind") ?? panel.lastElementChild).after(bar);
  }

  function table(of) {
    const cases = of.cases.length ? of.cases.map((line) => line < 0 ? "" : valueOf(data.columns[0], line)) : null;
    const lines = of.columns[0].values.map((_, number) => [
      ...of.columns.map((column) => valueOf(column, number)), ...(cases ? [cases[number]] : []),
    ]);
    return [[...of.columns.map(heading), ...(cases ? ["case"] : [])], ...lines];
  }

  // On its own a figure is printed or shown on a slide: light colours, whatever the page has, fonts by name, and below it
  // what it is of.
  function standalone(of, svg) {
    const copy = svg.cloneNode(true);
    copy.querySelector(".places")?.remove();
    for (const part of copy.children) part.removeAttribute("aria-hidden");
    const { x, y, width, height } = svg.viewBox.baseVal, size = 7, line = 10;
    const lines = [svg.closest("figure").querySelector("h3").textContent, ...data.source].flatMap((text) => wrapped(text, width / (size * .56)));
    const tall = height + line * (lines.length + .5);
    copy.setAttribute("viewBox", `${x} ${y} ${width} ${tall}`);
    copy.setAttribute("role", "img");
    copy.setAttribute("width", `${width}pt`);
    copy.setAttribute("height", `${tall}pt`);
    copy.setAttribute("font-family", "system-ui, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif");
    copy.prepend(drawn("title", {}, of.title), drawn("rect", { x, y, width: "100%", height: "100%", fill: "#ffffff" }));
    copy.append(...lines.map((text, number) => drawn("text", { x: x + 4, y: y + height + line * (number + .7), "font-size": size, fill: "#57606a" }, text)));
    return new XMLSerializer().serializeToString(copy).replace(/var\(--[\w-]+, (#[0-9a-f]+)\)/g, "$1");
  }

  function wrapped(text, most) {
    const lines = [""];
    for (const word of text.trim().split(/\s+/)) {
      if (lines.at(-1) && lines.at(-1).length + word.length >= most) lines.push("");
      lines.push(`${lines.pop()} ${word}`.trim());
    }
    return lines;
  }

  function picture(text, then) {
    const image = new Image();
    image.addEventListener("load", () => {
      const canvas = element("canvas", { width: 2 * image.width, height: 2 * image.height });
      canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
      canvas.toBlob(then, "image/png");
    });
    image.src = "data:image/svg+xml;charset=utf-8," + encodeURIComponent(text);
  }

  document.querySelectorAll(".panel[data-panel]").forEach(setUp);
  for (const hint of document.querySelectorAll(".moving")) hint.hidden = false;
})();
