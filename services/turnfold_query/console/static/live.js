"use strict";
// An element with `data-changes` names a stream of changes. Each event there refreshes the parts of
// the page that wait for `session-changed`. Hidden tabs hold no connection.
(() => {
  const watched = document.querySelector("[data-changes]");
  if (!watched || !window.EventSource) return;
  let source = null;
  const close = () => {
    if (source) source.close();
    source = null;
  };
  const open = () => {
    close();
    source = new EventSource(watched.dataset.changes);
    source.addEventListener("session", () => htmx.trigger(document.body, "session-changed"));
    source.addEventListener("erased", close);
  };
  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  window.addEventListener("pagehide", close);
  if (!document.hidden) open();

  // Messages that are open stay so when the list is written anew.
  let opened = [];
  document.addEventListener("htmx:beforeSwap", () => {
    opened = [...document.querySelectorAll("details[open][id]")].map((one) => one.id);
  });
  document.addEventListener("htmx:afterSettle", () => {
    for (const id of opened) document.getElementById(id)?.setAttribute("open", "");
  });
})();
