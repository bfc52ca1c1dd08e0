"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const text = data.text;
  const MISSING = 65535;
  const HEAT = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];
  const PHASES = {
    train: "#3f8f5b", eval: "#4aa3b5", checkpoint: "#4f6fc4", warmup: "#c9a227", startup: "#d9c36b", before_start: "#b8b8b8",
    hung: "#b3261e", idle: "#d0743c", tail: "#d0743c", restart: "#9d5bb5", interactive: "#7a8f3f", inference: "#3f7f8f",
    not_measured: "#80808040",
  };
  const SEVERITIES = { info: "--note", warning: "--bad", critical: "--alarm" };
  const root = document.documentElement;
  const holder = document.getElementById("charts");
  const view = { start: data.start, end: data.end };
  const panels = [];

  // ---- numbers

  function unpack(base64, low, high) {
    const bytes = Uint8Array.from(atob(base64), (sign) => sign.charCodeAt(0));
    const words = new DataView(bytes.buffer);
    const values = new Float32Array(bytes.length / 2);
    for (let i = 0; i < values.length; i++) {
      const word = words.getUint16(2 * i, true);
      values[i] = word === MISSING ? NaN : low + (word / (MISSING - 1)) * (high - low);
    }
    return values;
  }

  function scaled(value, steps) {
    const [factor, unit] = steps.find((step) => Math.abs(value) >= step[0]) || steps[steps.length - 1];
    return `${Number((value / factor).toPrecision(3))} ${unit}`;
  }

  const BYTES = [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"], [1, "B"]];
  const RATES = [[1e12, "TB/s"], [1e9, "GB/s"], [1e6, "MB/s"], [1e3, "kB/s"], [1, "B/s"]];
  const HERTZ = [[1e9, "GHz"], [1e6, "MHz"], [1e3, "kHz"], [1, "Hz"]];

  function quantity(value, unit) {
    if (Number.isNaN(value)) return text.not_measured;
    if (unit === "ratio") return `${Number((100 * value).toFixed(1))} %`;
    if (unit === "bytes") return scaled(value, BYTES);
    if (unit === "bytes_per_second") return scaled(value, RATES);
    if (unit === "hertz") return scaled(value, HERTZ);
    if (unit === "watts") return `${value.toFixed(0)} W`;
    if (unit === "celsius") return `${value.toFixed(0)} °C`;
    return Number(value.toPrecision(3)).toString();
  }

  function clock(ms, seconds = true) {
    const there = new Date(ms + data.offset_minutes * 60000).toISOString();
    const sameDay = there.slice(0, 10) === new Date(data.start + data.offset_minutes * 60000).toISOString().slice(0, 10);
    return (sameDay ? "" : there.slice(5, 10) + " ") + there.slice(11, seconds ? 19 : 16);
  }

  const colour = (name) => getComputedStyle(root).getPropertyValue(name).trim();

  // ---- panels: a label, a canvas, and how to draw it

  function element(tag, className, content) {
    const made = document.createElement(tag);
    if (className) made.className = className;
    if (content !== undefined) made.textContent = content;
    return made;
  }

  function panel(title, height, draw, describe) {
    const box = element("div", height < 20 ? "panel lane" : "panel");
    const label = element("div", "label");
    const name = element("div", "", title);
    const value = element("div", "value");
    const scale = element("div", "scale");
    const canvas = element("canvas");
    canvas.style.height = `${height}px`;
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", title);
    label.append(name, value);
    box.append(label, scale, canvas);
    holder.append(box);
    const made = { canvas, height, draw, describe, value, name, scale };
    panels.push(made);
    return made;
  }

  function paint(one) {
    const ratio = window.devicePixelRatio || 1;
    const width = one.canvas.clientWidth;
    one.canvas.width = Math.max(1, Math.round(width * ratio));
    one.canvas.height = Math.round(one.height * ratio);
    const context = one.canvas.getContext("2d");
    context.scale(ratio, ratio);
    one.draw(context, width, one.height);
  }

  const paintAll = () => panels.forEach(paint);
  const place = (ms, width) => ((ms - view.start) / (view.end - view.start)) * width;

  function drawAxis(context, width, height) {
    const steps = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 43200, 86400, 172800, 604800];
    const span = (view.end - view.start) / 1000;
    const step = steps.find((one) => (span / one) * 80 <= width) || 604800;
    context.fillStyle = colour("--dim");
    context.font = "11px system-ui, sans-serif";
    const offset = data.offset_minutes * 60000;
    for (let at = Math.ceil((view.start + offset) / 1000 / step) * step * 1000 - offset; at < view.end; at += step * 1000) {
      const x = place(at, width);
      context.fillRect(x, height - 5, 1, 5);
      if (x < width - 40) context.fillText(clock(at, step < 60), x + 3, height - 5);
    }
  }

  function drawSpans(context, width, height, spans, fill) {
    for (const [start, end] of spans) {
      const left = place(start, width);
      const right = place(end, width);
      if (right < 0 || left > width) continue;
      context.fillStyle = fill;
      context.fillRect(left, 0, Math.max(right - left, 1), height);
    }
  }

  function drawPhases(context, width, height) {
    for (const phase of data.phases) drawSpans(context, width, height, [[phase.start, phase.end]], PHASES[phase.phase] || "#999");
  }

  function drawFinding(finding) {
    return (context, width, height) => {
      context.fillStyle = colour("--card");
      context.fillRect(0, 0, width, height);
      drawSpans(context, width, height, finding.intervals, colour(SEVERITIES[finding.severity]));
    };
  }

  function drawEvents(context, width, height) {
    context.fillStyle = colour("--card");
    context.fillRect(0, 0, width, height);
    context.fillStyle = colour("--alarm");
    for (const event of data.events) {
      const x = place(event.time, width);
      context.beginPath();
      context.moveTo(x - 5, 0);
      context.lineTo(x + 5, 0);
      context.lineTo(x, height);
      context.fill();
    }
  }

  // bucket range of a pixel column, at least one bucket
  function range(column, width, buckets) {
    const per = (view.end - view.start) / width;
    const scale = buckets / (data.end - data.start);
    const first = Math.floor((view.start + column * per - data.start) * scale);
    const last = Math.ceil((view.start + (column + 1) * per - data.start) * scale);
    return [Math.max(first, 0), Math.min(Math.max(last, first + 1), buckets)];
  }

  function extremes(series, first, last) {
    let low = Infinity;
    let high = -Infinity;
    let sum = 0;
    let count = 0;
    for (let i = first; i < last; i++) {
      if (Number.isNaN(series.mean[i])) continue;
      low = Math.min(low, series.low[i]);
      high = Math.max(high, series.high[i]);
      sum += series.mean[i];
      count++;
    }
    return count ? { low, high, mean: sum / count } : null;
  }

  function drawEnvelope(chart) {
    return (context, width, height) => {
      const y = (value) => height - 1 - ((value - chart.bottom) / (chart.top - chart.bottom)) * (height - 2);
      context.fillStyle = colour("--card");
      context.fillRect(0, 0, width, height);
      const columns = [];
      for (let column = 0; column < width; column++) columns.push(extremes(chart.envelope, ...range(column, width, chart.buckets)));
      context.fillStyle = colour("--band");
      columns.forEach((one, x) => one && context.fillRect(x, y(one.high), 1, Math.max(y(one.low) - y(one.high), 1)));
      context.strokeStyle = colour("--mean");
      context.lineWidth = 1.3;
      context.beginPath();
      let pen = false;
      columns.forEach((one, x) => {
        if (one) pen ? context.lineTo(x + 0.5, y(one.mean)) : context.moveTo(x + 0.5, y(one.mean));
        pen = Boolean(one);
      });
      context.stroke();
    };
  }

  function heat(share) {
    const at = Math.min(Math.max(share, 0), 1) * (HEAT.length - 1);
    const i = Math.min(Math.floor(at), HEAT.length - 2);
    return HEAT[i].map((part, k) => part + (HEAT[i + 1][k] - part) * (at - i));
  }

  function drawStrips(state) {
    return (context, width, height) => {
      const chart = state.chart;
      const rows = data.gpus.length;
      const image = new ImageData(Math.max(width, 1), rows);
      const per = chart.strips.buckets;
      for (let row = 0; row < rows; row++) {
        const series = {
          low: chart.strips.low.subarray(row * per, (row + 1) * per),
          mean: chart.strips.mean.subarray(row * per, (row + 1) * per),
          high: chart.strips.high.subarray(row * per, (row + 1) * per),
        };
        for (let column = 0; column < width; column++) {
          const one = extremes(series, ...range(column, width, per));
          if (!one) continue;
          const [r, g, b] = heat((one.mean - chart.bottom) / (chart.top - chart.bottom));
          image.data.set([r, g, b, 255], 4 * (row * width + column));
        }
      }
      const sheet = new OffscreenCanvas(Math.max(width, 1), rows);
      sheet.getContext("2d").putImageData(image, 0, 0);
      context.fillStyle = colour("--card");
      context.fillRect(0, 0, width, height);
      context.imageSmoothingEnabled = false;
      context.drawImage(sheet, 0, 0, width, rows, 0, 0, width, height);
      context.fillStyle = colour("--paper");
      const tall = height / rows;
      if (tall >= 6) for (let row = 1; row < rows; row++) context.fillRect(0, Math.round(row * tall), width, 1);
    };
  }

  // ---- what the page is made of

  function series(packed) {
    return { low: unpack(packed.low, ...packed.scale), mean: unpack(packed.mean, ...packed.scale), high: unpack(packed.high, ...packed.scale) };
  }

  function at(one, ms, buckets, row = 0) {
    const bucket = Math.min(Math.max(Math.floor(((ms - data.start) * buckets) / (data.end - data.start)), 0), buckets - 1);
    return extremes({ low: one.low, mean: one.mean, high: one.high }, row * buckets + bucket, row * buckets + bucket + 1);
  }

  function described(found, unit) {
    if (!found) return text.not_measured;
    const mean = quantity(found.mean, unit);
    return found.low === found.high ? mean : `${mean}\n${quantity(found.low, unit)} – ${quantity(found.high, unit)}`;
  }

  function build() {
    panel("", 18, drawAxis, (ms) => clock(ms));
    if (data.phases.length) {
      panel(text.phases, 16, drawPhases, (ms) => {
        const phase = data.phases.find((one) => one.start <= ms && ms < one.end);
        return phase ? phase.label : "";
      });
    }
    for (const finding of data.findings) {
      if (!finding.intervals.length) continue;
      panel(`${text.finding} ${finding.number}`, 10, drawFinding(finding), () => "");
    }
    if (data.events.length) {
      panel(text.events, 10, drawEvents, (ms) => {
        const near = data.events.filter((event) => Math.abs(event.time - ms) < (view.end - view.start) / 100);
        return near.map((event) => event.text).join("\n");
      });
    }
    const charts = data.charts.map((chart) => ({
      ...chart,
      envelope: series(chart.envelope),
      strips: chart.strips && { ...series(chart.strips), buckets: chart.strips.buckets },
    }));
    charts.slice(0, 1).forEach(chartPanel);
    const striped = charts.filter((chart) => chart.strips);
    if (striped.length && data.gpus.length) stripPanel(striped);
    charts.slice(1).forEach(chartPanel);
    legend();
  }

  function chartPanel(chart) {
    const made = panel(chart.title, 64, drawEnvelope(chart), (ms) => described(at(chart.envelope, ms, chart.buckets), chart.unit));
    made.canvas.title = chart.help;
    for (const value of [chart.top, chart.bottom]) made.scale.append(element("span", "", quantity(value, chart.unit)));
  }

  function stripPanel(striped) {
    const state = { chart: striped[0] };
    const height = Math.max(Math.min(data.gpus.length * 14, 900), data.gpus.length, 20);
    const made = panel(text.per_gpu, height, drawStrips(state), (ms, y) => {
      if (y === null) return "";
      const row = Math.min(Math.floor((y / height) * data.gpus.length), data.gpus.length - 1);
      return `${data.gpus[row]}\n${described(at(state.chart.strips, ms, state.chart.strips.buckets, row), state.chart.unit)}`;
    });
    made.canvas.id = "strips";
    made.scale.classList.add("names");
    if (height / data.gpus.length >= 12) for (const gpu of data.gpus) made.scale.append(element("span", "", gpu));
    const choice = element("select");
    choice.setAttribute("aria-label", text.per_gpu);
    striped.forEach((chart, index) => choice.append(new Option(chart.title, String(index))));
    choice.addEventListener("change", () => {
      state.chart = striped[Number(choice.value)];
      paint(made);
    });
    made.name.append(element("br"), choice);
  }

  function legend() {
    const entry = (patch, label) => {
      const made = element("span");
      made.append(patch, label);
      document.getElementById("legend").append(made);
    };
    const seen = new Map(data.phases.map((phase) => [phase.phase, phase.label]));
    for (const [phase, label] of seen) {
      const patch = element("i");
      patch.style.background = PHASES[phase] || "#999";
      entry(patch, label);
    }
    const scale = element("i");
    scale.style.width = "60px";
    scale.style.background = `linear-gradient(90deg, ${HEAT.map((part) => `rgb(${part.join(" ")})`).join(", ")})`;
    entry(scale, text.low_to_high);
  }

  // ---- moving about

  function show(start, end) {
    const whole = data.end - data.start;
    const length = Math.min(Math.max(end - start, Math.min(1000, whole)), whole);
    view.start = Math.min(Math.max(start, data.start), data.end - length);
    view.end = view.start + length;
    root.dataset.view = `${Math.round(view.start)} ${Math.round(view.end)}`;
    paintAll();
  }

  function zoom(factor, centre = (view.start + view.end) / 2) {
    const length = (view.end - view.start) * factor;
    const share = (centre - view.start) / (view.end - view.start);
    show(centre - share * length, centre + (1 - share) * length);
  }

  function pan(share) {
    const step = (view.end - view.start) * share;
    show(view.start + step, view.end + step);
  }

  function showFinding(number) {
    const finding = data.findings[number - 1];
    if (!finding || !finding.intervals.length) return;
    const longest = finding.intervals.reduce((best, one) => (one[1] - one[0] > best[1] - best[0] ? one : best));
    const margin = Math.max((longest[1] - longest[0]) * 0.25, 30000);
    show(longest[0] - margin, longest[1] + margin);
    holder.scrollIntoView({ block: "nearest" });
  }

  const cross = element("div");
  cross.id = "cross";
  const selection = element("div");
  selection.id = "selection";
  let dragFrom = null;

  function pointed(event) {
    const box = panels[0].canvas.getBoundingClientRect();
    const x = Math.min(Math.max(event.clientX - box.left, 0), box.width);
    return { x, left: box.left - holder.getBoundingClientRect().left, ms: view.start + (x / box.width) * (view.end - view.start) };
  }

  function move(event) {
    const { x, left, ms } = pointed(event);
    cross.style.display = "block";
    cross.style.left = `${left + x}px`;
    for (const one of panels) {
      const y = event.target === one.canvas ? event.offsetY : null;
      one.value.textContent = one.describe(ms, y);
    }
    if (dragFrom !== null) {
      selection.style.display = "block";
      selection.style.left = `${left + Math.min(dragFrom.x, x)}px`;
      selection.style.width = `${Math.abs(dragFrom.x - x)}px`;
    }
  }

  function release(event) {
    if (dragFrom === null) return;
    const to = pointed(event);
    const from = dragFrom;
    dragFrom = null;
    selection.style.display = "none";
    if (Math.abs(to.x - from.x) > 4) show(Math.min(from.ms, to.ms), Math.max(from.ms, to.ms));
  }

  function key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.tagName === "SELECT") return;
    const actions = {
      ArrowLeft: () => pan(-0.25), ArrowRight: () => pan(0.25), "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2),
      0: () => show(data.start, data.end), Escape: () => show(data.start, data.end),
    };
    for (let number = 1; number <= 9; number++) actions[number] = () => showFinding(number);
    if (actions[event.key]) {
      actions[event.key]();
      event.preventDefault();
    }
  }

  function theme(name) {
    root.dataset.theme = name;
    paintAll();
  }

  build();
  holder.append(cross, selection);
  holder.addEventListener("pointermove", move);
  holder.addEventListener("pointerleave", () => (cross.style.display = "none"));
  holder.addEventListener("pointerdown", (event) => {
    if (event.target.tagName === "CANVAS") dragFrom = pointed(event);
  });
  window.addEventListener("pointerup", release);
  holder.addEventListener("dblclick", () => show(data.start, data.end));
  holder.addEventListener(
    "wheel",
    (event) => {
      if (!event.ctrlKey) return;
      event.preventDefault();
      zoom(event.deltaY > 0 ? 1.25 : 0.8, pointed(event).ms);
    },
    { passive: false },
  );
  document.addEventListener("keydown", key);
  for (const card of document.querySelectorAll("[data-finding]")) {
    const open = () => showFinding(Number(card.dataset.finding));
    card.addEventListener("click", open);
    card.addEventListener("keydown", (event) => event.key === "Enter" && open());
  }
  document.getElementById("theme").addEventListener("click", () => theme(root.dataset.theme === "dark" ? "light" : "dark"));
  window.addEventListener("resize", paintAll);
  let shown = "";
  let folded = [];
  window.addEventListener("beforeprint", () => {
    shown = root.dataset.theme;
    theme("light");
    folded = [...document.querySelectorAll("details:not([open])")];
    folded.forEach((part) => (part.open = true));
  });
  window.addEventListener("afterprint", () => {
    theme(shown);
    folded.forEach((part) => (part.open = false));
  });
  root.dataset.theme = window.matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  show(data.start, data.end);
  root.dataset.ready = "yes";
})();
