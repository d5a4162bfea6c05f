// What scrolls sideways can be reached by the keyboard.
document$.subscribe(() => requestAnimationFrame(() => {
  for (const one of document.querySelectorAll(".md-typeset__scrollwrap, .md-typeset pre > code, .md-sidebar__scrollwrap"))
    one.tabIndex = 0;
}));
