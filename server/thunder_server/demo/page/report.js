"use strict";
// Draws what the page's JSON holds: for each pair of runs the steps done, and for each run the memory that
// its programs want and one lane a program. Times are seconds since the run began, sizes tokens.
const data = JSON.parse(document.getElementById("data").textContent);
const LEFT = 118, RIGHT = 46, LANE = 11;
const engine = (n) => `var(--engine-${n % 4})`;
const say = (tokens) => tokens >= 1e6 ? (tokens / 1e6).toFixed(2) + " M" : tokens >= 1e3 ? Math.round(tokens / 1e3) + " k" : String(tokens);
const escape = (text) => text.replace(/[&<>"]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c]);

function ticks(until) {
  const step = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600].find((s) => until / s <= 12) || 7200;
  return Array.from({ length: Math.floor(until / step) + 1 }, (_, n) => n * step);
}

function frame(width, height, until, body) {
  const x = (t) => LEFT + t / until * (width - LEFT - RIGHT);
  const grid = ticks(until).map((t) =>
    `<line class="gridline" x1="${x(t)}" x2="${x(t)}" y1="0" y2="${height}"/>` +
    `<text x="${x(t)}" y="${height + 14}" text-anchor="middle">${t} s</text>`).join("");
  return `<svg viewBox="0 0 ${width} ${height + 18}" height="${height + 18}">${grid}${body(x)}</svg>`;
}

function drawSteps(pair, width) {
  const height = 150, left = 40;
  const most = Math.max(...pair.runs.map((run) => run.steps.length));
  const x = (t) => left + t / pair.until * (width - left - 14), y = (n) => height - n / most * height;
  const grid = ticks(pair.until).map((t) =>
    `<line class="gridline" x1="${x(t)}" x2="${x(t)}" y1="0" y2="${height}"/>` +
    `<text x="${x(t)}" y="${height + 14}" text-anchor="middle">${t} s</text>`).join("");
  const marks = [0, .5, 1].map((share) =>
    `<text x="${left - 6}" y="${y(share * most) + 4}" text-anchor="end">${Math.round(share * most)}</text>`).join("");
  const curves = pair.runs.map((run, index) => {
    const points = run.steps.map((t, n) => `${x(t).toFixed(1)},${y(n + 1).toFixed(1)}`);
    return `<polyline class="curve ${index ? "scheduled" : ""}" points="${x(0)},${height} ${points.join(" ")}"/>`;
  }).join("");
  return `<svg viewBox="0 0 ${width} ${height + 18}" height="${height + 18}">${grid}${marks}${curves}</svg>`;
}

function drawMemory(run, until, width) {
  const height = 54, gap = 16;
  const total = run.memory.length * (height + gap) - gap;
  return frame(width, total, until, (x) => run.memory.map((series, number) => {
    const top = number * (height + gap), floor = top + height;
    const y = (tokens) => floor - tokens / run.most * height;
    const area = (from, to) => {
      const there = series.map(([t, ...v], i) => {
        const end = i + 1 < series.length ? series[i + 1][0] : run.makespan;
        return [`${x(t).toFixed(1)},${y(to(v)).toFixed(1)}`, `${x(end).toFixed(1)},${y(to(v)).toFixed(1)}`];
      }).flat();
      const back = series.map(([t, ...v], i) => {
        const end = i + 1 < series.length ? series[i + 1][0] : run.makespan;
        return [`${x(t).toFixed(1)},${y(from(v)).toFixed(1)}`, `${x(end).toFixed(1)},${y(from(v)).toFixed(1)}`];
      }).flat().reverse();
      return [...there, ...back].join(" ");
    };
    return `<polygon points="${area(() => 0, (v) => v[0])}" fill="${engine(number)}"/>` +
      `<polygon points="${area((v) => v[0], (v) => v[0] + v[1])}" fill="var(--acting)"/>` +
      `<line class="gridline" x1="${LEFT}" x2="${width - RIGHT}" y1="${floor}" y2="${floor}"/>` +
      `<line class="capacity" x1="${LEFT}" x2="${width - RIGHT}" y1="${y(run.capacities[number])}" y2="${y(run.capacities[number])}"/>` +
      `<text x="${width - RIGHT + 5}" y="${y(run.capacities[number]) + 4}">${say(run.capacities[number])}</text>` +
      `<text x="${LEFT - 8}" y="${top + height / 2 + 4}" text-anchor="end">engine ${number + 1}</text>`;
  }).join(""));
}

function drawLanes(run, until, width) {
  const height = run.lanes.length * LANE;
  return frame(width, height, until, (x) => {
    const box = (lane, from, to, top, tall, fill, tip) =>
      `<rect x="${x(from).toFixed(2)}" y="${(lane * LANE + top).toFixed(1)}" width="${Math.max(.6, x(to) - x(from)).toFixed(2)}" ` +
      `height="${tall}" fill="${fill}"${tip ? ` data-tip="${escape(tip)}"` : ""}/>`;
    const out = run.lanes.map((lane, row) => {
      const parts = lane.segments.map(([from, to, kind, place, tokens, again, told]) => {
        const head = `${lane.name}\n${told}\n${from.toFixed(2)} s to ${to.toFixed(2)} s, context ${say(tokens)}`;
        if (kind === "acting") return box(row, from, to, 3, 4, "var(--acting)", head);
        if (kind === "waiting") return box(row, from, to, 1, 8, "var(--waiting)", head);
        const turn = from + (to - from) * again;
        return (again > 0.005 ? box(row, from, turn, 1, 8, "var(--again)", head) : "") +
          box(row, turn, to, 1, 8, place === null ? "var(--plain)" : engine(place), head);
      });
      const pauses = lane.paused.map(([from, to]) => box(row, from, to, 9, 1.5, "var(--waiting)", ""));
      const name = `<text class="name" x="${LEFT - 8}" y="${row * LANE + 8}" text-anchor="end">${lane.child ? "↳ " : ""}${escape(lane.name.slice(0, 22))}</text>`;
      return name + parts.join("") + pauses.join("");
    });
    const end = `<line class="end" x1="${x(run.makespan)}" x2="${x(run.makespan)}" y1="-4" y2="${height}"/>` +
      `<text x="${x(run.makespan) + 4}" y="8">${run.makespan.toFixed(1)} s</text>`;
    return out.join("") + end;
  });
}

function draw() {
  for (const place of document.querySelectorAll("[data-draw]")) {
    const [what, pair, run] = place.dataset.draw.split(" ");
    const width = place.clientWidth, of = data[pair];
    place.innerHTML = what === "steps" ? drawSteps(of, width)
      : what === "memory" ? drawMemory(of.runs[run], of.until, width)
      : drawLanes(of.runs[run], of.until, width);
  }
}

const tip = document.getElementById("tip");
document.addEventListener("mousemove", (event) => {
  const told = event.target.dataset && event.target.dataset.tip;
  tip.style.display = told ? "block" : "none";
  if (!told) return;
  tip.textContent = told;
  const { offsetWidth: w, offsetHeight: h } = tip;
  tip.style.left = Math.min(event.clientX + 14, innerWidth - w - 8) + "px";
  tip.style.top = (event.clientY + h + 24 > innerHeight ? event.clientY - h - 12 : event.clientY + 16) + "px";
});
document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement;
  root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark";
});
let resizing;
addEventListener("resize", () => { clearTimeout(resizing); resizing = setTimeout(draw, 120); });
draw();
