// The table of cases: sorts, filters, pages, unfolds, and is where every case is found again (#case=...).
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const plain = (text) => String(text).replaceAll("_", " ");
const LONG = 28; // letters of a cell that may take several lines

function element(tag, properties, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

function drawn(tag, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

// Values of a column: where words come again and again, they are sent once, and numbers into them.
const valueOf = (column, line) => column.words ? column.words[column.values[line]] : column.values[line];

// Hands a file to the reader; its name says what it is of.
function save(parts, type, ...names) {
  const link = element("a", {
    href: URL.createObjectURL(parts instanceof Blob ? parts : new Blob([parts], { type })),
    download: names.slice(0, -1).filter(Boolean).join("-").replace(/[^\w+.]+/g, "-").replace(/^[-.]+/, "").slice(0, 120) + names.at(-1),
  });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

// A text that a spreadsheet would read as a formula gets an apostrophe, which it shows as text.
function csv(lines) {
  const written = (cell) => {
    if (cell === null || cell === undefined) return "";
    const isFormula = typeof cell === "string" && /^[=+\-@\t\r]/.test(cell) && Number.isNaN(Number(cell));
    const text = isFormula ? "'" + cell : String(cell);
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return lines.map((line) => line.map(written).join(",") + "\n").join("");
}
const heading = (column) => plain(column.name) + (column.unit ? ` [${column.unit}]` : "");

const home = (() => {
  const PAGE = 50;
  const columns = data.columns;
  const count = columns[0].values.length;
  const ids = columns[0].words ? columns[0].values.map((index) => columns[0].words[index]) : columns[0].values;
  const table = byId("table");
  const body = table.tBodies[0];
  const outcomes = columns.find((column) => column.kind === "status");

  let order = Uint32Array.from({ length: count }, (_, line) => line);
  let matching = order;
  let page = 0;

  const grouped = new Intl.NumberFormat("en-US", { maximumSignificantDigits: 21 });
  const short = new Intl.NumberFormat("en-US", { maximumSignificantDigits: 4 });
  function written(column, value) {
    if (value === null || value === undefined) return "";
    if (column.kind === "status") return plain(value);
    if (column.kind !== "number") return String(value);
    const size = Math.abs(value);
    if (size !== 0 && size < 1e-4) return value.toExponential(1);
    return (size >= 1000 ? grouped : short).format(value);
  }

  // What a word is looked for in, lower case and prepared once: of a column that repeats itself its distinct words.
  const searched = columns.filter((column) => column.kind !== "number" || !column.unit);
  function prepared(column) {
    column.texts ??= (column.words ?? column.values).map((value) => {
      const text = String(value ?? "").toLowerCase();
      return text.includes("_") ? text + " " + plain(text) : text; // found as it is written and as it is shown
    });
    return column.texts;
  }

  function holds(word) {
    const hit = new Uint8Array(count);
    for (const column of searched) {
      const texts = prepared(column);
      if (!column.words) {
        for (let line = 0; line < count; line += 1) if (!hit[line] && texts[line].includes(word)) hit[line] = 1;
        continue;
      }
      const found = texts.map((text) => text.includes(word));
      if (!found.includes(true)) continue;
      for (let line = 0; line < count; line += 1) if (found[column.values[line]]) hit[line] = 1;
    }
    return hit;
  }

  function cell(column, line) {
    const value = valueOf(column, line);
    const made = element("td", { className: column.kind });
    if (column.kind === "status") made.classList.add("is-" + value);
    if (column === columns[0] && data.details) {
      const button = element("button", { type: "button", className: "unfold", textContent: value });
      button.setAttribute("aria-expanded", "false");
      button.addEventListener("click", () => unfold(button, line));
      made.append(button);
    } else {
      made.textContent = written(column, value);
      if (column.kind === "text" && made.textContent.length > LONG) made.classList.add("long");
    }
    return made;
  }

  function unfold(button, line) {
    const row = button.closest("tr");
    const open = button.getAttribute("aria-expanded") === "true";
    button.setAttribute("aria-expanded", String(!open));
    if (open) return row.nextElementSibling.remove();
    const { about, figures, samples } = data.details[line];
    const inside = element("div", {});
    const list = element("dl", {});
    for (const [name, text] of about) list.append(element("dt", { textContent: name }), element("dd", { textContent: text }));
    inside.append(list);
    if (samples) inside.append(iterations(samples));
    if (figures.length) {
      const head = element("tr", {});
      for (const name of ["metric", "value", "low – high", "expected", "basis"]) {
        head.append(element("th", { textContent: name, scope: "col" }));
      }
      const lines = element("tbody", {});
      for (const figure of figures) {
        const made = element("tr", { className: figure[4].startsWith("void: ") ? "void" : "" });
        figure.forEach((text, number) => {
          made.append(element("td", { textContent: number ? text : plain(text), className: number > 0 && number < 4 ? "figure" : "" }));
        });
        lines.append(made);
      }
      inside.append(element("table", {}, element("thead", {}, head), lines));
    }
    row.after(element("tr", { className: "unfolded" }, element("td", { colSpan: columns.length }, inside)));
  }

  // The time of each iteration, repeat beside repeat: a small picture, what it comes to, and the samples themselves.
  function iterations({ unit, repeats }) {
    const every = repeats.flatMap((repeat) => repeat.values);
    // From half the median to half more: what is steady looks steady, and what is not goes beyond.
    const middle = every.slice().sort((a, b) => a - b)[every.length >> 1];
    const [low, high] = [Math.min(middle / 2, ...every), Math.max(1.5 * middle, ...every)];
    const width = 560, height = 64, edge = 5, gap = 3;
    const step = (width - 2 * edge) / Math.max(1, every.length - 1 + gap * (repeats.length - 1));
    const y = (value) => edge + (height - 2 * edge) * (high - value) / (high - low);
    const words = repeats.map(({ repeat, count: all, summary: [least, median, most], values }) => {
      const name = `repeat ${repeat}: `;
      const more = all > values.length ? `, of which the first ${values.length} are shown` : "";
      return `${name}${all} iterations${more}; least ${least}, median ${median}, most ${most} ${unit}`;
    });
    const picture = drawn("svg", {
      class: "samples", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Time of each iteration. ${words.join(". ")}`,
    });
    let x = edge;
    for (const { values, summary } of repeats) {
      const points = values.map((value, number) => `${(x + number * step).toFixed(1)},${y(value).toFixed(1)}`);
      picture.append(drawn("polyline", { points: points.join(" ") }));
      for (const point of points) {
        const [cx, cy] = point.split(",");
        picture.append(drawn("circle", { cx, cy, r: values.length > 60 ? 1.2 : 2 }));
      }
      const level = y(Number(summary[1].replaceAll(",", "")));
      picture.append(drawn("line", { x1: x, x2: x + (values.length - 1) * step, y1: level, y2: level }));
      x += (values.length - 1 + gap) * step;
    }
    const listed = repeats.map(({ repeat, values }) => element("p", { textContent: `repeat ${repeat}: ${values.join(" ")}` }));
    return element("div", { className: "iterations" },
      element("p", { className: "quiet", textContent: `Time of each iteration in ${unit}, from its slowest rank. The picture goes from ${short.format(low)} to ${short.format(high)} ${unit}; dashed is the median.` }),
      picture,
      ...words.map((text) => element("p", { className: "quiet", textContent: text })),
      element("details", {}, element("summary", { textContent: `${every.length} samples in ${unit}` }), ...listed));
  }

  function draw() {
    const pages = Math.max(1, Math.ceil(matching.length / PAGE));
    page = Math.min(page, pages - 1);
    const lines = Array.from(matching.subarray(page * PAGE, (page + 1) * PAGE));
    body.replaceChildren(
      ...lines.map((line) => element("tr", {}, ...columns.map((column) => cell(column, line)))),
    );
    byId("shown").textContent = matching.length === count
      ? `${grouped.format(count)} ${count === 1 ? "case" : "cases"}`
      : `${grouped.format(matching.length)} of ${grouped.format(count)} cases`;
    byId("page").textContent = `page ${page + 1} of ${pages}`;
    byId("previous").disabled = page === 0;
    byId("next").disabled = page === pages - 1;
    document.querySelector(".pages").hidden = pages === 1;
  }

  function filter() {
    const hits = byId("filter").value.toLowerCase().split(/[\s,]+/).filter(Boolean).map(holds);
    const outcome = byId("outcome").value;
    if (outcome) {
      const wanted = outcomes.words?.indexOf(outcome) ?? outcome;
      hits.push(Uint8Array.from(outcomes.values, (value) => value === wanted));
    }
    matching = hits.length ? order.filter((line) => hits.every((hit) => hit[line])) : order;
    page = 0;
    draw();
  }

  // Place of each line in the order of a column, the unknown last either way; words are compared once each.
  function ranks(column) {
    if (column.ranks) return column.ranks;
    const distinct = column.words ?? [...new Set(column.values)];
    const compare = column.kind === "number" ? (a, b) => a - b : new Intl.Collator("en", { numeric: true }).compare;
    const known = distinct.filter((value) => value !== null && value !== undefined).sort(compare);
    const place = new Map(known.map((value, number) => [value, number]));
    column.ranks = Float64Array.from({ length: count }, (_, line) => place.get(valueOf(column, line)) ?? NaN);
    return column.ranks;
  }

  function sort(column, header) {
    const before = header.getAttribute("aria-sort");
    // A first click shows the largest figure, or the first word.
    const first = column.kind === "number" ? "descending" : "ascending";
    const direction = before === null ? first : before === "ascending" ? "descending" : "ascending";
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    header.setAttribute("aria-sort", direction);
    const sign = direction === "ascending" ? 1 : -1;
    const rank = ranks(column);
    order = order.slice().sort((left, right) => {
      const a = rank[left], b = rank[right];
      if (a !== a || b !== b) return (a !== a) - (b !== b) || left - right;
      return sign * (a - b) || left - right;
    });
    filter();
  }

  // To the line of a case, wherever it is: unfolded, in view, and with the focus.
  function home(line) {
    if (!matching.includes(line)) {
      byId("filter").value = byId("outcome").value = "";
      filter();
    }
    page = Math.floor(matching.indexOf(line) / PAGE);
    draw();
    const row = body.rows[matching.indexOf(line) % PAGE];
    row.classList.add("found");
    const button = row.querySelector(".unfold");
    if (button) unfold(button, line);
    row.cells[0].tabIndex = -1;
    row.scrollIntoView({ block: "start" });
    (button ?? row.cells[0]).focus({ preventScroll: true });
  }

  // The address says which case is looked at, so that the way back is the browser's own.
  let left = null;
  function follow() {
    const named = /^#case=(.*)$/s.exec(location.hash);
    if (!named) {
      left?.focus({ preventScroll: true });
      left = null;
      return;
    }
    let id = named[1];
    try { id = decodeURIComponent(id); } catch { /* a damaged address names no case */ }
    const line = ids.indexOf(id);
    if (line >= 0) home(line);
  }
  addEventListener("hashchange", follow);
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[href^='#case=']");
    if (!link) return;
    left = link;
    if (link.hash === location.hash) follow();
  });

  columns.forEach((column, number) => {
    const header = table.tHead.rows[0].cells[number];
    const name = header.firstChild;
    const button = element("button", { type: "button", textContent: name.textContent });
    name.replaceWith(button);
    button.addEventListener("click", () => sort(column, header));
  });
  for (const outcome of new Set(outcomes.words ?? outcomes.values)) {
    byId("outcome").append(element("option", { value: outcome, textContent: plain(outcome) }));
  }
  byId("filter").addEventListener("input", filter);
  byId("outcome").addEventListener("change", filter);
  byId("previous").addEventListener("click", () => { page -= 1; draw(); });
  byId("next").addEventListener("click", () => { page += 1; draw(); });
  byId("csv").addEventListener("click", () => {
    const lines = Array.from(matching, (line) => columns.map((column) => valueOf(column, line)));
    save(csv([columns.map(heading), ...lines]), "text/csv", data.run, "cases", ".csv");
  });
  document.querySelector(".controls").hidden = false;
  draw();
  if (location.hash) follow();
  (window.requestIdleCallback ?? setTimeout)(() => searched.forEach(prepared));

  // From a figure: by the address where it can be said, so that one can go back.
  return (line, from) => {
    const hash = "#case=" + encodeURIComponent(ids[line]);
    left = from;
    const before = location.hash;
    if (hash.length < 2000) location.hash = hash;
    if (location.hash === before) home(line); // an unchanged hash triggers no event
  };
})();
