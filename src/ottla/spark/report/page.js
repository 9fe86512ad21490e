"use strict";
(function () {
  const tip = document.getElementById("tip");
  function show(event) {
    const mark = event.target.closest("svg [aria-label][aria-roledescription]");
    const text = mark && mark.closest("figure") && mark.getAttribute("aria-label");
    tip.hidden = !text || mark.getAttribute("aria-roledescription").includes("group");
    if (tip.hidden) return;
    tip.textContent = text;
    const width = tip.offsetWidth, left = event.clientX + 14;
    tip.style.left = Math.max(8, Math.min(left, innerWidth - width - 8)) + "px";
    tip.style.top = Math.max(8, event.clientY - tip.offsetHeight - 12) + "px";
  }
  document.addEventListener("pointermove", show);
  document.addEventListener("pointerdown", show);
  document.addEventListener("scroll", () => { tip.hidden = true; }, true);
})();
