"use strict";
// Parts of a page are replaced while they are read. Open messages, the focus and the scroll position
// stay, and so does what is being clicked.
(() => {
  const alike = (one) =>
    [...document.querySelectorAll(`main ${one.localName}`)].filter(
      (other) =>
        other.getAttribute("href") === one.getAttribute("href") &&
        other.parentElement.id === one.parentElement.id,
    );
  let opened = [];
  let focused = null;
  let place = 0;
  let seen = null;
  let top = 0;
  let pressed = null;
  let isLeftOut = false;
  document.addEventListener("pointerdown", (event) => (pressed = event.target), true);
  document.addEventListener("htmx:beforeSwap", (event) => {
    // It is a click only if the element is still there when the button goes up. A slider changes
    // the page while it is held.
    if (pressed && !pressed.matches("input")) {
      event.detail.shouldSwap = false;
      isLeftOut = true;
      return;
    }
    const messages = [...document.querySelectorAll("details[id]")];
    opened = messages.filter((one) => one.open).map((one) => one.id);
    focused = document.activeElement;
    place = alike(focused).indexOf(focused);
    seen = messages.find((one) => one.getBoundingClientRect().bottom > 0);
    top = seen?.getBoundingClientRect().top;
    // A page that is scrolled to its end shows the newest messages.
    if (innerHeight + scrollY > document.documentElement.scrollHeight - 8) seen = null;
  });
  // Not later ("htmx:afterSettle"), which would undo scrolling in between.
  document.addEventListener("htmx:afterSwap", () => {
    for (const id of opened) document.getElementById(id)?.setAttribute("open", "");
    if (focused && !focused.isConnected) alike(focused)[place]?.focus({ preventScroll: true });
    const now = seen && document.getElementById(seen.id);
    if (now) scrollBy(0, now.getBoundingClientRect().top - top);
  });

  // Where a menu opens at the press, it takes the release.
  for (const release of ["pointerup", "pointercancel", "contextmenu"]) {
    document.addEventListener(release, () => {
      pressed = null;
      if (!isLeftOut) return;
      isLeftOut = false;
      // After the click. What is replaced every few seconds is replaced then.
      setTimeout(() => htmx.trigger(document.body, "session-changed"));
    });
  }

  // Old numbers look current, so a page says since when it lacks newer ones.
  const stale = document.getElementById("stale");
  let updated = new Date();
  for (const failure of ["htmx:sendError", "htmx:responseError", "htmx:timeout"]) {
    document.addEventListener(failure, () => {
      stale.textContent = `Not updated since ${updated.toISOString().slice(11, 19)}`;
    });
  }
  document.addEventListener("htmx:afterRequest", (event) => {
    if (!event.detail.successful) return;
    updated = new Date();
    stale.textContent = "";
  });

  // An element with `data-changes` names a stream of changes. Each event there refreshes the parts
  // of the page that wait for `session-changed`. Hidden tabs hold no connection.
  const watched = document.querySelector("[data-changes]");
  if (!watched || !window.EventSource) return;
  const refresh = () => htmx.trigger(document.body, "session-changed");
  let source = null;
  let broken = null;
  const begun = () => {
    clearTimeout(broken);
    broken = null;
    if (stale.textContent) refresh();
  };
  const close = () => {
    if (source) source.close();
    source = null;
    clearTimeout(broken);
    broken = null;
  };
  const open = () => {
    close();
    source = new EventSource(watched.dataset.changes);
    source.addEventListener("session", refresh);
    source.addEventListener("open", begun);
    // A stream ends every half minute and begins again within a second. Otherwise the refresh fails
    // as well, and the page says so.
    source.addEventListener("error", () => (broken ??= setTimeout(refresh, 3_000)));
    source.addEventListener("erased", close);
  };
  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  window.addEventListener("pagehide", close);
  if (!document.hidden) open();
})();
