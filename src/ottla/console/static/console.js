"use strict";
// Live parts ask again by themselves (htmx). This file pauses them, keeps the focus, and adds keyboard shortcuts.
(() => {
  const trouble = () => document.getElementById("trouble");
  const pause = () => document.getElementById("pause");
  const ARRIVED_MAX = 300;
  let paused = false;
  let going = false;

  // An answer for the page itself replaces its notice too.
  const replaces = (target, node) =>
    target.contains(node) || (target.id === "live" && document.getElementById("notice").contains(node));

  const isBusy = (target) => {
    const active = document.activeElement;
    if (target.id === "tail") return false;
    const typing = active && target.contains(active) && /^(INPUT|SELECT|TEXTAREA)$/.test(active.tagName);
    const chosen = window.getSelection();
    const selecting = chosen && !chosen.isCollapsed && replaces(target, chosen.anchorNode);
    const edited = [...target.querySelectorAll("input, textarea")].some((each) => each.value !== each.defaultValue);
    const open = target.querySelector("details[open]:not(.fold)");
    return typing || edited || selecting || open;
  };

  document.addEventListener("htmx:beforeRequest", (event) => {
    const target = event.detail.target;
    const first = target.querySelector(".loading");
    const isFolded = target.closest("details:not([open])");
    if (isFolded) target.dataset.missed = "yes";
    if (isFolded || (!first && (paused || document.hidden || isBusy(target)))) event.preventDefault();
  });

  // A folded part asks when it is opened.
  document.addEventListener("toggle", (event) => {
    for (const part of event.target.open ? event.target.querySelectorAll("[data-missed]") : []) {
      delete part.dataset.missed;
      window.htmx.trigger(part, "opened");
    }
  }, true);

  document.addEventListener("htmx:configRequest", (event) => {
    if (!event.detail.target.querySelector(".loading")) event.detail.headers["ottla-refresh"] = "true";
  });

  // On a phone the rows of these tables are cards, in which each cell shows the heading of its column.
  const label = () => {
    for (const table of document.querySelectorAll("table.cards")) {
      const heads = [...table.tHead.rows[0].cells].map((each) => each.textContent);
      for (const row of [...table.tBodies].flatMap((each) => [...each.rows])) {
        let at = 0;
        for (const cell of row.cells) {
          if (cell.textContent.trim()) cell.dataset.label = heads[at];
          at += cell.colSpan;
        }
      }
    }
  };

  // Sections that fold are closed on a phone. The browser's history remembers which its user has opened or closed.
  const phone = window.matchMedia("(max-width: 40rem)");
  const folds = () => (history.state && history.state.folds) || {};
  const fold = () => {
    for (const each of document.querySelectorAll("details.fold")) {
      each.open = folds()[each.firstElementChild.id] ?? !phone.matches;
    }
  };
  document.addEventListener("click", (event) => {
    const summary = event.target.closest("details.fold > summary");
    if (!summary) return;
    const known = { ...folds(), [summary.id]: !summary.parentElement.open };
    history.replaceState({ ...history.state, folds: known }, "");
  });

  label();
  fold();

  const place = (element) => element && (element.id ? `#${CSS.escape(element.id)}` : element.getAttribute("href"));
  let focused = null;
  document.addEventListener("htmx:beforeSwap", (event) => {
    const active = document.activeElement;
    const within = event.detail.target.contains(active) ? event.detail.target.id : "notice";
    focused = replaces(event.detail.target, active) ? { within, place: place(active) } : null;
  });
  document.addEventListener("htmx:afterSwap", (event) => {
    trouble().hidden = true;
    label();
    fold();
    const messages = document.querySelector("#messages");
    if (messages) [...messages.tBodies].slice(ARRIVED_MAX).forEach((each) => each.remove());
    const root = focused && focused.place && document.getElementById(focused.within);
    if (!root) return;
    const found = focused.place.startsWith("#")
      ? root.querySelector(focused.place)
      : [...root.querySelectorAll("a")].find((each) => each.getAttribute("href") === focused.place);
    if (found) found.focus({ preventScroll: true });
  });
  document.addEventListener("htmx:sendError", () => {
    trouble().textContent = "The console does not answer. What you see may be old. The page asks again by itself.";
    trouble().hidden = false;
  });

  const toggle = () => {
    paused = !paused;
    pause().setAttribute("aria-pressed", String(paused));
    pause().textContent = paused ? "Update again" : "Stop updates";
  };

  const move = (step) => {
    const links = [...document.querySelectorAll("table.rows tbody a")];
    if (!links.length) return;
    const at = links.indexOf(document.activeElement);
    links[Math.max(0, Math.min(links.length - 1, at + step))].focus();
  };

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    if (/^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    if (going) {
      going = false;
      const links = [...document.querySelectorAll("header a[data-key]")];
      const link = links.find((each) => each.dataset.key === event.key);
      if (link) link.click();
      return;
    }
    if (event.key === "/") {
      event.preventDefault();
      document.getElementById("search").focus();
    } else if (event.key === "g") going = true;
    else if (event.key === "j") move(1);
    else if (event.key === "k") move(-1);
    else if (event.key === "p" && !pause().hidden) toggle();
  });

  if (document.querySelector("[hx-trigger]")) {
    pause().hidden = false;
    pause().addEventListener("click", toggle);
  }
})();
