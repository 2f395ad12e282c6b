// A table wider than its page scrolls sideways, by the keyboard only if it can have the focus.
const tables = new ResizeObserver((changed) => {
  for (const { target } of changed) {
    if (target.scrollWidth > target.clientWidth) target.tabIndex = 0;
    else target.removeAttribute("tabindex");
  }
});
document.querySelectorAll(".md-typeset table").forEach((table) => tables.observe(table));
