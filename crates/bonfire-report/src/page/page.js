"use strict";
// Draws every chart as SVG into its figure, again whenever its width, its scale or the smoothing changes.
const charts = JSON.parse(document.getElementById("charts").textContent);
const slider = document.getElementById("smoothing");
const height = 260, left = 64, right = 12, top_ = 8, bottom = 36;

function element(name, attributes, parent, text) {
  const made = document.createElementNS(parent.namespaceURI, name);
  for (const key in attributes) made.setAttribute(key, attributes[key]);
  if (text !== undefined) made.textContent = text;
  parent.append(made);
  return made;
}

function show(value) {
  const size = Math.abs(value);
  if (size >= 1e6) return Number((value / 1e6).toPrecision(4)) + " M";
  if (size >= 1e4) return Number((value / 1e3).toPrecision(4)) + " k";
  if (size > 0 && size < 1e-3) return Number(value.toPrecision(3)).toExponential();
  return String(Number(value.toPrecision(5)));
}

// A moving mean that forgets; divided by the weights so far, so that it begins at the first value.
function smooth(points, weight) {
  let sum = 0, weights = 0;
  return points.map(([step, value]) => {
    if (value === null) return [step, value];
    sum = sum * weight + value * (1 - weight);
    weights = weights * weight + 1 - weight;
    return [step, sum / weights];
  });
}

// Round values from low to high.
function ticks(low, high, count) {
  const power = 10 ** Math.floor(Math.log10((high - low) / count));
  const step = [1, 2, 5, 10].find(factor => factor * power * count >= high - low) * power;
  const found = [];
  for (let n = Math.ceil(low / step - 1e-9); n * step <= high + step * 1e-9; n++) found.push(n * step);
  return found;
}

// As many of 1, 2 and 5 times the powers of ten as there is room for; within one of them, round values.
function logTicks(low, high) {
  for (const factors of [[1, 2, 5], [1]]) {
    const found = [];
    for (let n = Math.floor(Math.log10(low)); n <= Math.log10(high); n++)
      for (const factor of factors) {
        const tick = factor * 10 ** n;
        if (tick >= low && tick <= high) found.push(tick);
      }
    if (found.length < 3) return ticks(low, high, 4).filter(tick => tick > 0);
    if (found.length < 10 || factors.length === 1) return found;
  }
}

function range(values, fromZero) {
  let low = Math.min(...values), high = Math.max(...values);
  if (!values.length) return [0, 1];
  if (fromZero) [low, high] = [Math.min(low, 0), Math.max(high, 0)];
  return low === high ? [low, low + (Math.abs(low) || 1)] : [low, high];
}

function draw(chart, figure, hidden) {
  const svg = figure.querySelector("svg"), isLog = figure.querySelector("input").checked;
  const width = figure.clientWidth, weight = Number(slider.value);
  const fits = value => value !== null && (!isLog || value > 0);
  const lines = chart.lines.filter((_, place) => !hidden.has(place));
  const points = lines.flatMap(line => line.points.filter(point => fits(point[1])));
  const [first, last] = range(points.map(point => point[0]), false);
  let [low, high] = range(points.map(point => point[1]), chart.from_zero && !isLog);
  // Room above and below, but not below zero.
  if (!isLog) {
    const room = (high - low) * 0.05;
    [low, high] = [low >= 0 ? Math.max(low - room, 0) : low - room, high + room];
  }
  const scale = isLog ? Math.log : value => value;
  const x = step => left + (step - first) / (last - first) * (width - left - right);
  const y = value =>
    height - bottom - (scale(value) - scale(low)) / (scale(high) - scale(low)) * (height - top_ - bottom);
  const path = points => {
    let text = "", pen = "M";
    for (const [step, value] of points)
      if (fits(value)) { text += `${pen}${x(step).toFixed(1)} ${y(value).toFixed(1)}`; pen = "L"; } else pen = "M";
    return text;
  };
  svg.replaceChildren();
  svg.setAttribute("height", height);
  element("title", {}, svg, chart.heading);
  for (const tick of isLog ? logTicks(low, high) : ticks(low, high, 5)) {
    element("line", { class: "rule", x1: left, x2: width - right, y1: y(tick), y2: y(tick) }, svg);
    element("text", { x: left - 8, y: y(tick) + 4, "text-anchor": "end" }, svg, show(tick));
  }
  for (const tick of ticks(first, last, Math.max(2, width / 110))) {
    element("text", { x: x(tick), y: height - bottom + 18, "text-anchor": "middle" }, svg, show(tick));
  }
  element("text", { x: width - right, y: height - 2, "text-anchor": "end" }, svg, "step");
  for (const line of lines) {
    const stroke = `stroke:var(--c${line.colour % 8})`, dashed = line.dashed ? "dashed" : "";
    if (weight > 0) element("path", { d: path(line.points), class: `raw ${dashed}`, style: stroke }, svg);
    element("path", { d: path(smooth(line.points, weight)), class: dashed, style: stroke }, svg);
    const visible = line.points.filter(point => fits(point[1]));
    if (visible.length <= 30 && weight === 0)
      for (const [step, value] of visible)
        element("circle", { cx: x(step), cy: y(value), r: 2.5, style: stroke.replace("stroke", "fill") }, svg);
  }
  watch(figure, svg, lines, { x, width, fits });
}

// Tells the values nearest to the pointer.
function watch(figure, svg, lines, { x, width, fits }) {
  const cursor = element("line", { class: "cursor", y1: top_, y2: height - bottom, visibility: "hidden" }, svg);
  const box = document.createElement("div");
  box.className = "values";
  const leave = () => { cursor.setAttribute("visibility", "hidden"); box.remove(); };
  svg.onpointerleave = leave;
  svg.onpointermove = event => {
    const at = event.offsetX, distance = point => Math.abs(x(point[0]) - at);
    const nearest = lines.map(line => line.points.filter(point => fits(point[1]))
      .reduce((best, point) => !best || distance(point) < distance(best) ? point : best, null));
    const all = nearest.filter(point => point);
    if (!all.length) return leave();
    const step = all.reduce((best, point) => distance(point) < distance(best) ? point : best)[0];
    cursor.setAttribute("visibility", "visible");
    cursor.setAttribute("x1", x(step));
    cursor.setAttribute("x2", x(step));
    box.textContent = `step ${step}` + lines.map((line, place) =>
      nearest[place]?.[0] === step ? `\n${line.name}: ${show(nearest[place][1])}` : "").join("");
    figure.append(box);
    const room = width - box.offsetWidth - 4;
    box.style.left = `${Math.max(0, x(step) + 12 < room ? x(step) + 12 : x(step) - box.offsetWidth - 12)}px`;
    box.style.top = `${figure.clientHeight - height + 12}px`;
  };
}

const figures = [...document.querySelectorAll("figure")].map((figure, place) => {
  const chart = charts[place], hidden = new Set();
  const again = () => draw(chart, figure, hidden);
  // A single line is what the title says.
  if (chart.lines.length > 1) chart.lines.forEach((line, place) => {
    const button = document.createElement("button"), sample = document.createElement("i");
    sample.style.borderColor = `var(--c${line.colour % 8})`;
    sample.className = line.dashed ? "dashed" : "";
    button.append(sample, line.name);
    button.setAttribute("aria-pressed", "true");
    button.addEventListener("click", () => {
      if (!hidden.delete(place)) hidden.add(place);
      button.setAttribute("aria-pressed", String(!hidden.has(place)));
      again();
    });
    figure.querySelector(".legend").append(button);
  });
  figure.querySelector("input").addEventListener("change", again);
  new ResizeObserver(again).observe(figure);
  return again;
});
slider.addEventListener("input", () => {
  document.getElementById("weight").textContent = slider.value;
  figures.forEach(again => again());
});
