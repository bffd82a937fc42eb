// Page of `viaduct dash`. The server sends the layout of the plots, and after each sample the list of
// services and the news of one subject; see viewer.rs. Names come from configs and from other
// hosts, so they only ever become text of elements.
"use strict";

const SAMPLES = 1200; // as many as the server keeps, two a second
const SECONDS = 600; // that are plotted
const RETRY_MS = 5000;
const $ = (id) => document.getElementById(id);
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

let source = null; // stream of events
let kinds = new Map(); // layout, by kind
let list = null; // latest list of services
let structure = ""; // list without its values, as JSON
let shown = null; // address of the subject whose plots are drawn, or will be
let isFresh = true; // true until the stream has sent its first news
let times = [];
let series = {}; // values by name, null where there is none
let plots = [];

function element(tag, text, attributes) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  for (const [name, value] of Object.entries(attributes || {})) made.setAttribute(name, value);
  return made;
}

function number(value, unit) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  const digits = size === 0 || size >= 100 ? 0 : size >= 10 ? 1 : size >= 0.1 ? 2 : 3;
  return value.toFixed(digits) + (unit ? " " + unit : "");
}

// Connection

function connect(id) {
  if (source) source.close();
  isFresh = true;
  const opened = new EventSource("events" + (id === null ? "" : "?subject=" + id));
  source = opened;
  const on = (name, act) => opened.addEventListener(name, (event) => {
    say("", false);
    act(JSON.parse(event.data));
  });
  on("layout", drawLayout);
  on("list", drawList);
  on("news", drawNews);
  opened.onerror = () => {
    isFresh = true;
    if (opened.readyState !== EventSource.CLOSED) return say("connection lost; trying again", true);
    say("the dashboard refuses this viewer; others may be too many", true);
    setTimeout(() => source === opened && connect(null), RETRY_MS);
  };
}

function say(text, isBad) {
  $("connection").textContent = text || "live";
  $("connection").className = isBad ? "bad" : "";
}

// List of services

function drawLayout(layout) {
  kinds = new Map(layout.kinds.map((kind) => [kind.kind, kind]));
  $("connection").title = "viaduct " + layout.version;
}

const address = (service, subject) =>
  "#" + [service, subject.kind, subject.name].map(encodeURIComponent).join("/");

function drawList(news) {
  list = news;
  const bare = JSON.stringify(news, (key, value) => (key === "values" ? undefined : value));
  if (bare !== structure) {
    structure = bare;
    const focused = document.activeElement.getAttribute("href");
    $("services").replaceChildren(...news.services.map(drawService));
    const links = [...document.querySelectorAll("nav a")];
    const again = links.find((link) => link.getAttribute("href") === focused);
    if (again) again.focus({ preventScroll: true });
    const more = news.left_out ? news.left_out + " more peers, policies, links or outbounds; not shown" : "";
    const trouble = [news.trouble, more].filter(Boolean).join("; ");
    $("trouble").textContent = trouble;
    $("trouble").hidden = !trouble;
    mark();
  }
  for (const subject of news.services.flatMap((service) => service.subjects)) {
    const values = document.querySelector(`small[data-id="${subject.id}"]`);
    if (values) values.textContent = headline(subject);
  }
  choose();
}

function drawService(service) {
  const section = element("section");
  section.append(element("h3", service.title));
  section.append(...service.troubles.map((text) => element("p", text, { class: "trouble" })));
  for (const kind of kinds.values()) {
    const own = service.subjects.filter((subject) => subject.kind === kind.kind);
    if (own.length) section.append(element("h4", kind.title));
    for (const subject of own) {
      const link = element("a", subject.name, { href: address(service.name, subject) });
      if (subject.state) link.append(" ", element("span", subject.state, { class: "trouble" }));
      link.append(element("small", "", { "data-id": subject.id }));
      section.append(link);
    }
  }
  return section;
}

function headline(subject) {
  const kind = kinds.get(subject.kind);
  if (!kind) return "";
  const texts = kind.headline.map((name, n) => {
    for (const plot of kind.plots) {
      const found = plot.series.find((one) => one[0] === name);
      if (found) return found[1] + " " + number(subject.values[n], plot.unit);
    }
    return "";
  });
  return texts.join(" · ");
}

function mark() {
  for (const link of document.querySelectorAll("nav a")) {
    if (link.getAttribute("href") === shown) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

// Connects to the subject that the address names, if another one is shown.
function choose() {
  if (!list || location.hash.length < 2 || location.hash === shown) return;
  for (const service of list.services) {
    for (const subject of service.subjects) {
      if (address(service.name, subject) !== location.hash) continue;
      shown = location.hash;
      return connect(subject.id);
    }
  }
}

// Plots

function drawNews(news) {
  const kind = kinds.get(news.kind);
  if (!kind) return;
  shown = address(news.service, news);
  const isOther = plots.address !== shown;
  if (isFresh || isOther) [times, series] = [[], {}];
  isFresh = false;
  times.push(...news.times);
  for (const [name, values] of Object.entries(news.series)) {
    const all = series[name] || (series[name] = []);
    while (all.length < times.length - values.length) all.push(null);
    all.push(...values);
  }
  const surplus = Math.max(0, times.length - SAMPLES);
  times.splice(0, surplus);
  for (const all of Object.values(series)) all.splice(0, surplus);
  if (isOther) drawSubject(news, kind);
  drawFacts(news);
  for (const plot of plots) plot.update();
  // Browsers keep all marks, so one is set only when the subject changes.
  if (isOther) performance.mark("plotted");
}

function drawSubject(news, kind) {
  for (const plot of plots) plot.chart.destroy();
  $("subject").hidden = false;
  $("title").textContent = news.service + " · " + news.name;
  document.title = news.name + " – viaduct";
  $("plots").replaceChildren();
  plots = kind.plots.map(drawPlot);
  plots.address = shown;
  mark();
}

function drawFacts(news) {
  const rows = news.facts.map(([label, text]) => {
    const row = element("tr");
    row.append(element("th", label, { scope: "row" }), element("td", text));
    return row;
  });
  $("facts").tBodies[0].replaceChildren(...rows);
  const all = list ? list.services.flatMap((service) => service.subjects) : [];
  const subject = all.find((one) => one.id === news.id);
  const state = subject && subject.state;
  $("state").textContent = state ? state + (subject.reason ? ": " + subject.reason : "") : "";
  $("state").hidden = !state;
}

const HEIGHT = 170;
const width = () => Math.max(200, ($("plots").firstElementChild || $("plots")).clientWidth);

const clock = (time) => new Date(time * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hour12: false });

function drawPlot(plot) {
  const figure = element("figure");
  const caption = element("figcaption");
  caption.append(element("h3", plot.title + " "), element("span", plot.unit, { class: "key" }));
  const values = plot.series.map(([name, label], n) => {
    const value = element("b", "", { "data-series": name });
    const key = element("span", undefined, { class: "key" });
    key.append(element("i", "", { class: "k" + n }), label + " ", value);
    caption.append(key);
    return value;
  });
  figure.append(caption);
  $("plots").append(figure);
  const data = () => [times, ...plot.series.map(([name]) => series[name] || times.map(() => null))];
  const write = (chart) => {
    const at = chart.cursor.idx;
    const index = at === null || at === undefined ? times.length - 1 : at;
    plot.series.forEach(([name], n) => {
      values[n].textContent = number(series[name] ? series[name][index] : null);
    });
  };
  const axis = (more) => ({ stroke: () => css("--faint"), grid: { stroke: () => css("--line"), width: 1 }, ticks: { show: false }, ...more });
  const line = ([name, label], n) => ({ label, stroke: () => css("--s" + n), width: 1.5, points: { show: false }, spanGaps: false });
  const options = {
    width: width(),
    height: HEIGHT,
    legend: { show: false },
    cursor: { sync: { key: "dash" }, drag: { x: false, y: false } },
    scales: {
      x: { range: (_, least, most) => (most === null ? [0, SECONDS] : [most - SECONDS, most]) },
      y: { range: (_, least, most) => [0, most > 0 ? most * 1.1 : 1] },
    },
    axes: [axis({ size: 30, values: (_, times) => times.map(clock) }), axis({ size: 52 })],
    series: [{}, ...plot.series.map(line)],
    hooks: { setCursor: [write] },
  };
  const chart = new uPlot(options, data(), figure);
  return { chart, update: () => { chart.setData(data()); write(chart); } };
}

function resize() {
  for (const plot of plots) plot.chart.setSize({ width: width(), height: HEIGHT });
}

addEventListener("resize", resize);
addEventListener("hashchange", choose);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const plot of plots) plot.chart.redraw();
});
connect(null);
