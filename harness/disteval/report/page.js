"use strict";
{
  const one = (selector) => document.querySelector(selector);
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const say = (text) => { one("#status").textContent = text; };

  // Theme: the system's, until the button says otherwise.
  const system = matchMedia("(prefers-color-scheme: dark)");
  const theme = one("#theme");
  const chosen = () => document.documentElement.dataset.theme;
  const isDark = () => (chosen() ? chosen() === "dark" : system.matches);
  const showTheme = () => theme.setAttribute("aria-pressed", String(isDark()));
  theme.addEventListener("click", () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    showTheme();
  });
  system.addEventListener("change", showTheme);
  theme.hidden = false;
  showTheme();

  // Filter: words that name backends choose columns of the matrix, all others choose rows.
  const form = one("#filter");
  const heads = all(".matrix thead [data-label]");
  const filter = () => {
    const words = one("#words").value.toLowerCase().split(/\s+/).filter(Boolean);
    const onlyFailures = one("#only").checked;
    const has = (element, word) => element.dataset.filter.toLowerCase().includes(word);
    const labelled = (head, word) => head.dataset.label.toLowerCase().includes(word);
    const names = words.filter((word) => heads.some((head) => labelled(head, word)));
    const rest = words.filter((word) => !names.includes(word));
    for (const head of heads) {
      const shown = names.every((word) => labelled(head, word));
      for (const cell of all(`.matrix [data-column="${head.dataset.column}"]`)) cell.hidden = !shown;
    }
    for (const row of all(".matrix tr[data-filter]")) {
      const failed = row.querySelector("td:not([hidden]) .failed") !== null;
      row.hidden = !rest.every((word) => has(row, word)) || (onlyFailures && !failed);
    }
    for (const item of all("[data-filter]:not(.matrix tr)")) {
      const failed = item.dataset.failed !== undefined;
      item.hidden = !words.every((word) => has(item, word)) || (onlyFailures && !failed);
    }
    count();
  };
  const count = () => {
    const tell = (selector, noun) => {
      const found = all(selector);
      const shown = found.filter((element) => !element.hidden).length;
      return found.length ? `${shown} of ${found.length} ${noun}` : "";
    };
    const told = [tell(".matrix tr[data-filter]", "rules"), tell(".failure", "failures")];
    one("#count").textContent = told.filter(Boolean).join(", ");
    const nothing = one(".nothing");
    if (nothing) nothing.hidden = all(".failure:not([hidden])").length > 0;
  };
  if (form) {
    form.hidden = false;
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("input", filter);
    filter();
  }

  // Failures: one link opens one, the button all, and so does printing.
  const failures = all(".failure");
  const button = one("#all");
  const showAll = () => {
    const open = failures.every((failure) => failure.open);
    button.setAttribute("aria-expanded", String(open));
    button.textContent = open ? "Collapse all" : "Expand all";
  };
  const openTarget = () => {
    const target = failures.find((failure) => `#${failure.id}` === location.hash);
    if (!target) return;
    for (let part = target; part; part = part.parentElement.closest(".failure")) {
      part.hidden = false;
      part.open = true;
    }
    target.scrollIntoView();
    target.querySelector("summary").focus({ preventScroll: true });
  };
  if (button) {
    button.hidden = false;
    button.addEventListener("click", () => {
      const open = !failures.every((failure) => failure.open);
      for (const failure of failures) failure.open = open;
    });
    for (const failure of failures) failure.addEventListener("toggle", showAll);
    showAll();
  }
  addEventListener("hashchange", openTarget);
  for (const link of all('a[href^="#failure-"]')) {
    link.addEventListener("click", () => { if (link.hash === location.hash) openTarget(); });
  }
  openTarget();

  // Copying: where the clipboard is refused, the command is selected for the keyboard.
  for (const copy of all(".copy")) {
    const code = copy.parentElement.querySelector("code");
    copy.hidden = false;
    copy.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(code.textContent);
        copy.textContent = "Copied";
        say("The command was copied.");
      } catch {
        getSelection().selectAllChildren(code);
        copy.textContent = "Selected";
        say("The command is selected: copy it with the keyboard.");
      }
      setTimeout(() => { copy.textContent = "Copy"; }, 3000);
    });
  }
}
