// The clock of a step: plays its phases in the drawing. The phases, their groups and their words come with the page;
// without this file they stand there as a list.
"use strict";
(() => {
  const SECONDS_A_PHASE = 4;
  const RADIUS = 15;
  const ALL_PAIRS_UP_TO = 8;
  const { places, ranksPerNode, groups, phases } = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  const clock = byId("clock");
  const edges = clock.querySelector(".edges");
  const spots = [...clock.querySelectorAll(".spot")];
  const items = [...document.querySelectorAll(".phases li")];
  const node = (rank) => Math.floor(rank / ranksPerNode);

  let shown = 0;
  let only = null; // a rank, or all of them
  let timer = null;

  // Pairs between which a group's messages run, from and to.
  function pairs(group, flow) {
    const last = group.length - 1;
    if (flow === "forward") return group.slice(1).map((rank, number) => [group[number], rank]);
    if (flow === "backward") return group.slice(1).map((rank, number) => [rank, group[number]]);
    const steps = [1];
    if (flow === "all") {
      // Of large groups some pairs stand for all.
      for (let step = 2; step <= last; step = group.length <= ALL_PAIRS_UP_TO ? step + 1 : step * 2) steps.push(step);
    }
    return steps.flatMap((step) => group.map((rank, number) => [rank, group[(number + step) % group.length]]));
  }

  // A curve to the left of its direction, so that there and back lie beside each other.
  function curve(from, to) {
    const [x, y] = places[from], [toX, toY] = places[to];
    const length = Math.hypot(toX - x, toY - y);
    const [alongX, alongY] = [(toX - x) / length, (toY - y) / length];
    const bow = Math.min(64, 14 + length / 6);
    const [midX, midY] = [(x + toX) / 2 + alongY * bow, (y + toY) / 2 - alongX * bow];
    const edge = (atX, atY) => {
      const away = Math.hypot(midX - atX, midY - atY);
      return `${(atX + ((midX - atX) * RADIUS) / away).toFixed(1)} ${(atY + ((midY - atY) * RADIUS) / away).toFixed(1)}`;
    };
    return `M${edge(x, y)}Q${midX.toFixed(1)} ${midY.toFixed(1)} ${edge(toX, toY)}`;
  }

  function path(className, flow, far, d, marked) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", "path");
    made.setAttribute("class", `${className} ${flow}${far ? " far" : ""}`);
    made.setAttribute("d", d);
    if (marked) made.setAttribute("marker-end", far ? "url(#tip-far)" : "url(#tip)");
    return made;
  }

  function show(number) {
    shown = Math.min(Math.max(number, 0), phases.length - 1);
    const drawn = [];
    const speaking = new Set();
    for (const { axis, flow } of phases[shown].messages) {
      for (const group of groups[axis]) {
        if (only !== null && !group.includes(only)) continue;
        for (const rank of group) speaking.add(rank);
        for (const [from, to] of pairs(group, flow)) {
          const far = node(from) !== node(to), d = curve(from, to);
          drawn.push(path("edge", flow, far, d, true), path("dots", flow, far, d, false));
        }
      }
    }
    edges.replaceChildren(...drawn);
    spots.forEach((spot, rank) => {
      spot.classList.toggle("speaks", speaking.has(rank));
      spot.classList.toggle("chosen", rank === only);
    });
    items.forEach((item, place) => {
      if (place === shown) item.setAttribute("aria-current", "step");
      else item.removeAttribute("aria-current");
    });
    byId("now").replaceChildren(...[...items[shown].childNodes].map((child) => child.cloneNode(true)));
    const heading = document.createElement("strong");
    heading.textContent = `${shown + 1} of ${phases.length}: ${phases[shown].title}`;
    byId("now").firstElementChild.replaceWith(heading);
    byId("phase").value = String(shown + 1);
    byId("phase").setAttribute("aria-valuetext", heading.textContent);
  }

  function pause() {
    clearInterval(timer);
    timer = null;
    clock.classList.remove("playing");
    byId("play").textContent = "Play";
    byId("now").setAttribute("aria-live", "polite");
  }

  function play() {
    if (shown === phases.length - 1) show(0);
    clock.classList.add("playing");
    byId("play").textContent = "Pause";
    byId("now").setAttribute("aria-live", "off"); // or a screen reader would never end
    timer = setInterval(() => (shown === phases.length - 1 ? pause() : show(shown + 1)), SECONDS_A_PHASE * 1000);
  }

  function goTo(number) {
    pause();
    show(number);
  }

  function choose(rank) {
    only = rank;
    byId("rank").value = rank === null ? "" : String(rank);
    byId("rank-words").textContent = rank === null ? "" : spots[rank].querySelector("title").textContent;
    show(shown);
  }

  items.forEach((item, number) => {
    const title = item.firstElementChild;
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = title.textContent;
    button.addEventListener("click", () => goTo(number));
    title.replaceWith(button);
  });
  spots.forEach((spot, rank) => spot.addEventListener("click", () => choose(only === rank ? null : rank)));
  byId("rank").addEventListener("input", () => {
    const { value } = byId("rank");
    const rank = Number(value);
    choose(value !== "" && Number.isInteger(rank) && rank >= 0 && rank < spots.length ? rank : null);
    byId("rank").value = value;
  });
  byId("play").addEventListener("click", () => (timer === null ? play() : pause()));
  byId("previous").addEventListener("click", () => goTo(shown - 1));
  byId("next").addEventListener("click", () => goTo(shown + 1));
  byId("phase").addEventListener("input", () => goTo(Number(byId("phase").value) - 1));
  byId("step").addEventListener("keydown", (event) => {
    if (event.target instanceof HTMLInputElement || event.ctrlKey || event.metaKey || event.altKey) return;
    const scrolls = event.target.scrollWidth > event.target.clientWidth && event.target.classList.contains("scroll");
    if (scrolls && event.key.startsWith("Arrow")) return;
    const to = { ArrowLeft: shown - 1, ArrowRight: shown + 1, Home: 0, End: phases.length - 1 }[event.key];
    if (to !== undefined) goTo(to);
    else if (event.key === " " && !(event.target instanceof HTMLButtonElement)) byId("play").click();
    else return;
    event.preventDefault();
  });
  for (const hidden of clock.querySelectorAll("[hidden]")) hidden.hidden = false;
  show(0);
})();
