// The table of cases: sorts, filters, pages and unfolds. Everything else on the page works without it.
"use strict";
(() => {
  const PAGE = 50;
  const data = JSON.parse(document.getElementById("data").textContent);
  const columns = data.columns;
  for (const column of columns) {
    if (column.words) column.values = column.values.map((index) => column.words[index]);
  }
  const count = columns[0].values.length;
  const byId = (id) => document.getElementById(id);
  const table = byId("table");
  const body = table.tBodies[0];
  const outcomes = columns.find((column) => column.kind === "status").values;

  let order = Array.from({ length: count }, (_, line) => line);
  let matching = order;
  let page = 0;

  const plain = (text) => String(text).replaceAll("_", " ");
  function written(column, value) {
    if (value === null || value === undefined) return "";
    if (column.kind === "status") return plain(value);
    if (column.kind !== "number") return String(value);
    const size = Math.abs(value);
    if (size !== 0 && size < 1e-4) return value.toExponential(1);
    return value.toLocaleString("en-US", { maximumSignificantDigits: size >= 1000 ? 21 : 4 });
  }

  // One string per case to search in, made when it is first needed.
  let haystack = null;
  function search(words) {
    const searched = columns.filter((column) => column.kind !== "number" || !column.unit);
    haystack ??= columns[0].values.map((_, line) => {
      const text = searched.map((column) => column.values[line] ?? "").join(" ").toLowerCase();
      return text + " " + plain(text); // out_of_memory is found as it is written and as it is shown
    });
    return (line) => words.every((word) => haystack[line].includes(word));
  }

  function element(tag, properties, ...children) {
    const made = Object.assign(document.createElement(tag), properties);
    made.append(...children);
    return made;
  }

  function cell(column, line) {
    const value = column.values[line];
    const made = element("td", { className: column.kind });
    if (column.kind === "status") made.classList.add("is-" + value);
    if (column === columns[0] && data.details) {
      const button = element("button", { type: "button", className: "unfold", textContent: value });
      button.setAttribute("aria-expanded", "false");
      button.addEventListener("click", () => unfold(button, line));
      made.append(button);
    } else {
      made.textContent = written(column, value);
    }
    return made;
  }

  function unfold(button, line) {
    const row = button.closest("tr");
    const open = button.getAttribute("aria-expanded") === "true";
    button.setAttribute("aria-expanded", String(!open));
    if (open) return row.nextElementSibling.remove();
    const { about, figures } = data.details[line];
    const inside = element("div", {});
    const list = element("dl", {});
    for (const [name, text] of about) list.append(element("dt", { textContent: name }), element("dd", { textContent: text }));
    inside.append(list);
    if (figures.length) {
      const head = element("tr", {});
      for (const name of ["metric", "value", "low – high", "expected", "basis"]) {
        head.append(element("th", { textContent: name, scope: "col" }));
      }
      const lines = element("tbody", {});
      for (const figure of figures) {
        const made = element("tr", {});
        figure.forEach((text, number) => {
          made.append(element("td", { textContent: number ? text : plain(text), className: number > 0 && number < 4 ? "figure" : "" }));
        });
        lines.append(made);
      }
      inside.append(element("table", {}, element("thead", {}, head), lines));
    }
    row.after(element("tr", { className: "unfolded" }, element("td", { colSpan: columns.length }, inside)));
  }

  function draw() {
    const pages = Math.max(1, Math.ceil(matching.length / PAGE));
    page = Math.min(page, pages - 1);
    const lines = matching.slice(page * PAGE, (page + 1) * PAGE);
    body.replaceChildren(
      ...lines.map((line) => element("tr", {}, ...columns.map((column) => cell(column, line)))),
    );
    byId("shown").textContent = matching.length === count
      ? `${count.toLocaleString("en-US")} cases`
      : `${matching.length.toLocaleString("en-US")} of ${count.toLocaleString("en-US")} cases`;
    byId("page").textContent = `page ${page + 1} of ${pages}`;
    byId("previous").disabled = page === 0;
    byId("next").disabled = page === pages - 1;
    document.querySelector(".pages").hidden = pages === 1;
  }

  function filter() {
    const words = byId("filter").value.toLowerCase().split(/[\s,]+/).filter(Boolean);
    const outcome = byId("outcome").value;
    const hit = search(words);
    matching = order.filter((line) => (!outcome || outcomes[line] === outcome) && hit(line));
    page = 0;
    draw();
  }

  function sort(column, header) {
    const before = header.getAttribute("aria-sort");
    // A first click shows the largest figure, or the first word.
    const first = column.kind === "number" ? "descending" : "ascending";
    const direction = before === null ? first : before === "ascending" ? "descending" : "ascending";
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    header.setAttribute("aria-sort", direction);
    const sign = direction === "ascending" ? 1 : -1;
    const compare = new Intl.Collator("en", { numeric: true }).compare;
    const values = column.values;
    order = order.slice().sort((left, right) => {
      const a = values[left], b = values[right];
      if (a === b) return left - right;
      if (a === null || a === undefined) return 1; // what is unknown stands last either way
      if (b === null || b === undefined) return -1;
      return sign * (column.kind === "number" ? a - b : compare(a, b)) || left - right;
    });
    filter();
  }

  columns.forEach((column, number) => {
    const header = table.tHead.rows[0].cells[number];
    const name = header.firstChild;
    const button = element("button", { type: "button", textContent: name.textContent });
    name.replaceWith(button);
    button.addEventListener("click", () => sort(column, header));
  });
  for (const outcome of new Set(outcomes)) {
    byId("outcome").append(element("option", { value: outcome, textContent: plain(outcome) }));
  }
  byId("filter").addEventListener("input", filter);
  byId("outcome").addEventListener("change", filter);
  byId("previous").addEventListener("click", () => { page -= 1; draw(); });
  byId("next").addEventListener("click", () => { page += 1; draw(); });
  document.querySelector(".controls").hidden = false;
  draw();
})();
