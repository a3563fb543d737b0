// Light or dark theme: that of the system, unless the user chooses. Runs before the first paint, to avoid flashing.
(() => {
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  const read = () => {
    try {
      return localStorage.getItem("afterglow.theme");
    } catch {
      return null; // storage is disabled
    }
  };
  const dark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  if (["light", "dark"].includes(read())) root.dataset.theme = read();

  document.addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    const label = () => {
      button.textContent = dark() ? "Light" : "Dark";
      button.setAttribute("aria-label", `Switch to the ${dark() ? "light" : "dark"} theme`);
    };
    button.addEventListener("click", () => {
      const wanted = dark() ? "light" : "dark";
      const systemSays = system.matches ? "dark" : "light";
      try {
        if (wanted === systemSays) localStorage.removeItem("afterglow.theme");
        else localStorage.setItem("afterglow.theme", wanted);
      } catch {
        // the choice applies to this page only
      }
      root.dataset.theme = wanted;
      label();
    });
    system.addEventListener("change", label);
    label();
  });
})();
