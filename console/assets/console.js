// What the pages do beyond links and forms: relative times, the live view, charts, and
// the keyboard. Everything else works without this file.
"use strict";
(() => {
  const root = document.documentElement;
  root.classList.add("js"); // before the body, so that nothing moves
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];

  // Times are rendered by the server, and age in the browser.
  const age = (s) => s < 100 ? `${Math.floor(s)} s` : s < 6000 ? `${Math.floor(s / 60)} min` : s < 172800 ? `${Math.floor(s / 3600)} h` : `${Math.floor(s / 86400)} days`;
  const ages = () => all("time[datetime]").forEach((time) => {
    const seconds = (Date.now() - Date.parse(time.dateTime)) / 1000;
    if (Number.isNaN(seconds)) return;
    const text = seconds >= 1 ? `${age(seconds)} ago` : seconds > -1 ? "now" : `in ${age(-seconds)}`;
    if (time.textContent !== text) time.textContent = text;
  });

  // Charts
  const charts = new Map();
  const color = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const clock = (s) => new Date(s * 1000).toTimeString().slice(0, 8);
  const day = (s) => new Date(s * 1000).toISOString().slice(5, 10);
  const short = (n) => n >= 1e6 ? `${n / 1e6} M` : n >= 1e4 ? `${n / 1e3} k` : `${n}`;
  const draw = (box) => {
    charts.get(box.id)?.destroy();
    charts.delete(box.id);
    if (!box.dataset.chart || !window.uPlot) return;
    const { labels, data } = JSON.parse(box.dataset.chart);
    box.replaceChildren();
    const axis = { stroke: color("--muted"), grid: { stroke: color("--line"), width: 1 }, ticks: { stroke: color("--line"), width: 1 }, font: "12px system-ui, sans-serif" };
    const style = getComputedStyle(box);
    charts.set(box.id, new uPlot({
      width: box.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight),
      height: box.clientHeight - parseFloat(style.paddingTop) - parseFloat(style.paddingBottom) - (box.clientWidth < 420 ? 52 : 28), // the legend
      cursor: { drag: { x: false, y: false }, points: { size: 6 } },
      legend: { live: false },
      scales: { y: { range: (_, low, high) => [0, Math.max(4, high * 1.1)] } },
      axes: [box.dataset.unit === "day" ? { ...axis, incrs: [86400, 172800, 432000, 864000], values: (_, at) => at.map(day), space: 60 } : { ...axis, incrs: [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 86400], values: (_, at) => at.map(clock), space: 90 }, { ...axis, size: 56, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6, 2e6, 5e6, 1e7], values: (_, at) => at.map(short) }],
      series: [{}, ...labels.map((label, i) => ({ label, stroke: color(`--chart-${i + 1}`), width: 2, dash: [[], [8, 4], [2, 3]][i], points: { show: false } }))],
    }, data, box));
  };
  const drawAll = () => all(".chart").forEach(draw);

  // The live view. htmx loads it; here it pauses, keeps the focus, and says how it is.
  let paused = false;
  let focused = null;
  const say = (text) => { const state = document.getElementById("live-state"); if (state && state.textContent !== text) state.textContent = text; };
  // A person who presses the mouse or fills in a form keeps the page as it is.
  let pressed = false;
  const filling = () => all("#live input, #live textarea").some((field) => field === document.activeElement || field.value !== field.defaultValue);
  const place = (element) => {
    if (element?.id && element.closest("#live")) return { id: element.id };
    const href = element?.getAttribute?.("href");
    return href && element.closest("#live") ? { href, nth: all("#live a").filter((a) => a.getAttribute("href") === href).indexOf(element) } : null;
  };
  const pause = () => {
    const button = document.getElementById("live-switch");
    if (!button) return;
    paused = !paused;
    button.setAttribute("aria-pressed", paused);
    button.textContent = paused ? "Resume" : "Pause";
    say(paused ? "Paused" : "Live");
  };
  const live = () => {
    document.addEventListener("htmx:beforeRequest", (event) => {
      if (paused || document.hidden || pressed || filling() || !getSelection().isCollapsed) event.preventDefault();
      if (!paused && filling()) say("Paused while you type");
    });
    document.addEventListener("htmx:beforeSwap", (event) => {
      if (pressed || filling()) event.detail.shouldSwap = false; // since the request
      focused = place(document.activeElement);
    });
    for (const name of ["pointerdown", "pointerup", "pointercancel"]) addEventListener(name, () => { pressed = name === "pointerdown"; }, true);
    document.addEventListener("htmx:afterSettle", () => {
      const again = focused?.id ? document.getElementById(focused.id) : focused && all("#live a").filter((a) => a.getAttribute("href") === focused.href)[focused.nth];
      again?.focus({ preventScroll: true });
      const now = document.getElementById("live");
      if (now && !now.hasAttribute("hx-get")) {
        say("Ended");
        document.getElementById("live-switch")?.remove();
      } else if (!paused) say("Live");
      ages();
      drawAll();
    });
    for (const name of ["htmx:sendError", "htmx:responseError", "htmx:timeout"]) document.addEventListener(name, () => say("Not answering"));
    document.getElementById("live-switch")?.addEventListener("click", pause);
  };

  // The keyboard
  const pages = { v: "./", o: "outbox", d: "dead", s: "sent", f: "forwarders", c: "consumers", k: "parked", q: "quarantine", r: "replays", m: "trace", e: "reconcile", a: "audit" };
  let going = 0;
  const rows = () => all("a.row");
  const move = (by) => {
    const list = rows();
    if (!list.length) return;
    const row = document.activeElement?.closest("tr");
    const at = list.findIndex((link) => row && row.contains(link));
    list[Math.min(list.length - 1, Math.max(0, at < 0 ? 0 : at + by))].focus();
  };
  const keys = (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    if (event.target.closest("input:not([type=checkbox]), textarea, select")) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    if (Date.now() - going < 1500 && pages[event.key]) {
      location.assign(pages[event.key]);
    } else if (event.key === "j") move(1);
    else if (event.key === "k") move(-1);
    else if (event.key === "x") document.activeElement?.closest("tr")?.querySelector("input[type=checkbox]")?.click();
    else if (event.key === "p") pause();
    else if (event.key === "?") document.getElementById("keys").showModal();
    else if (event.key === "/" && document.querySelector(".filter input")) document.querySelector(".filter input").focus();
    else if (event.key !== "g") return;
    going = event.key === "g" ? Date.now() : 0;
    event.preventDefault();
  };

  document.addEventListener("DOMContentLoaded", () => {
    ages();
    setInterval(ages, 5000);
    drawAll();
    live();
    addEventListener("keydown", keys);
    document.getElementById("keys-open").addEventListener("click", () => document.getElementById("keys").showModal());
    // A second click must not send a form again.
    document.addEventListener("submit", (event) => {
      if (event.target.method !== "post") return;
      if (event.target.dataset.sent) event.preventDefault();
      event.target.dataset.sent = "1";
      event.submitter?.setAttribute("aria-disabled", "true");
    });
    addEventListener("pageshow", () => all("form").forEach((form) => { delete form.dataset.sent; all("button", form).forEach((b) => b.removeAttribute("aria-disabled")); }));
    let width = innerWidth;
    addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; drawAll(); } });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  });
})();
